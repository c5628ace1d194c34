"""How many rows a condition over partition columns alone takes, told by the log.

Law: a number is given only where it is certain; it is what a delete by that condition must delete,
whatever deltalake makes of the condition.
Out of scope: conditions over other columns, whose rows only a scan counts.
"""

from __future__ import annotations

import pyarrow as pa

from impctl.data.vector import from_arrow
from impctl.errors import EvaluationError
from impctl.expr.evaluate import truth
from impctl.expr.nodes import columns_of
from impctl.expr.support import find_blocker
from impctl.tables.arrow_types import to_arrow_type
from impctl.tables.snapshot import Snapshot, partition_array
from impctl.tables.update_sql import read_condition


def rows_taken(snapshot: Snapshot, where: str | None) -> int | None:
    """Rows for which the condition is true, all without one; None where the log does not tell."""
    counts = snapshot.actions.column("num_records")
    # Of files with deletion vectors deltalake counts rows that are gone, too.
    if counts.null_count or snapshot.deletions:
        return None
    if where is None:
        return snapshot.rows
    scan, condition = read_condition(snapshot, where)
    used = columns_of(condition)
    read = {a.id: snapshot.column(a.name) for a in scan.attributes if a.id in used}
    is_told = all(column.name in snapshot.partition_columns for column in read.values())
    if not is_told or find_blocker(condition) is not None:
        return None
    columns = {}
    for key, column in read.items():
        values = pa.chunked_array([partition_array(snapshot.actions, column.name)])
        columns[key] = from_arrow(to_arrow_type(values, column.type), column.type)
    try:
        taken = truth(condition, columns, len(counts)).sure_true()
    except EvaluationError:
        return None
    rows: list[int] = counts.to_pylist()
    return sum(count for count, is_taken in zip(rows, taken, strict=True) if is_taken)
