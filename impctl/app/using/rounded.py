"""A query's answer by Spark, with how far each double of it may be off.

Law: as `rules.error_columns` says of the query's plan. Spark computes all of it from the tables, so
that nothing wrong in what is kept can widen it.
Out of scope: comparing (`app.using.same_rows`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.results.answer import RowValue, rows_of
from impctl.app.workbench.workbench import Workbench
from impctl.errors import ImpctlError
from impctl.plan.nodes import attributes_of, scans_of
from impctl.rules.error_columns import with_rounding
from impctl.spark.render import render_plan
from impctl.types import TableName, TableVersion

Rounded = tuple[list[tuple[RowValue, ...]], list[tuple[float, ...]]]


def rounded_answer(
    desk: Workbench, prepared: PreparedQuery, versions: Mapping[TableName, TableVersion]
) -> Rounded | None:
    """Rows, and for each of their cells the most it may be off; None where nothing is known."""
    from impctl.spark.run import run_sql
    from impctl.spark.snapshots import snapshot_frame

    bounded = with_rounding(prepared.query.root)
    if bounded is None:
        return None
    plan, inexact = bounded
    names, frames = {}, {}
    for place, scan in enumerate(scans_of(plan)):
        name = names[scan.access] = f"impctl_view{place}"
        columns = [attribute.name for attribute in scan.attributes]
        snapshot = desk.tables.snapshot(scan.table, versions.get(scan.table))
        frames[name] = snapshot_frame(desk.spark(), snapshot, columns)
    try:
        table = run_sql(desk.spark(), render_plan(plan, names).sql, frames, versions=versions)
    except ImpctlError:
        # It computes more than the query, and may not be written in Spark's SQL as a whole.
        return None
    shown = len(attributes_of(prepared.query.root))
    rows, errors = [], []
    for row in rows_of(table):
        off = [0.0] * shown
        for at, error in zip(inexact, row[shown:], strict=True):
            off[at] = error if isinstance(error, float) and not math.isnan(error) else 0.0
        rows.append(row[:shown])
        errors.append(tuple(off))
    return rows, errors
