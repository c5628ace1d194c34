"""WITH entries that read themselves by UNION, derived for Spark, which does not run them.

Law: the rows are those of the entry over the rows that the query reads: of each access those of its
filter, for whole ranges, as the text has them. Entries that nothing uses have no rows.
Out of scope: the rounds (`spark.recursion`), the text that reads them (`spark.predicates`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from impctl.app.preparing.filters import Pruned
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.workbench.recursion_limits import limits_of
from impctl.app.workbench.workbench import Workbench
from impctl.compile.flows import BlockedError
from impctl.errors import EvaluationError, NotExactError, OutOfMemoryError, TableError
from impctl.expr.nodes import Span
from impctl.plan.fingerprint import fingerprint
from impctl.plan.nodes import Fixpoint, Plan, nodes_of, scans_of
from impctl.spark.expressions import DIALECT
from impctl.spark.predicates import filter_condition
from impctl.store.records import StoredSketch
from impctl.types import AccessId, TableName, TableVersion
from impctl.values import dataclass

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_VIEW = "impctl_rows_of"


@dataclass(frozen=True, slots=True)
class DerivedEntry:
    """An entry: where its text stands, and the view that has its rows."""

    span: Span
    view: str
    rows: DataFrame


def derived_entries(
    desk: Workbench,
    prepared: PreparedQuery,
    versions: Mapping[TableName, TableVersion],
    pruned: Pruned | None,
    sketches: Sequence[StoredSketch] | None = None,
) -> tuple[DerivedEntry, ...]:
    """The outermost of these entries; UnsupportedError (`recursion_limit`) where one has no end.

    Given `sketches`, those that the query was pruned by, the engine derives what it can: in rounds
    of Spark the same takes seconds a round.
    """
    outer, unused = list(_outer(prepared)), _unused(prepared)
    if not outer and not unused:
        return ()
    from impctl.spark.failures import plain_failures
    from impctl.spark.recursion import Rounds

    if outer:
        desk.reporter.step(f"deriving rows of {prepared.spec.name}")
    name = prepared.spec.name

    def tell(line: str) -> None:
        desk.reporter.step(f"{name}: {line}")

    result, rounds = [], Rounds(desk.spark(), limits_of(desk), tell)
    for place, (span, fixpoint) in enumerate(unused.items()):
        rows = desk.spark().createDataFrame([], _schema(fixpoint))
        result.append(DerivedEntry(span, f"{_VIEW}_unused_{place}", rows))
    for place, (span, fixpoint) in enumerate(outer):
        rows = None
        if sketches is not None and pruned is not None:
            rows = _by_engine(desk, prepared, fixpoint, versions, pruned, sketches)
        if rows is None:
            frames = {
                scan.access: _rows(desk, scan.table, scan.access, versions, pruned)
                for scan in scans_of(fixpoint)
            }
            with plain_failures(versions):
                rows = rounds.rows(fixpoint, frames)
        names = (attribute.name for attribute in fixpoint.attributes)
        result.append(DerivedEntry(span, f"{_VIEW}_{place}", rows.toDF(*names)))
    return tuple(result)


def _by_engine(
    desk: Workbench,
    prepared: PreparedQuery,
    fixpoint: Fixpoint,
    versions: Mapping[TableName, TableVersion],
    pruned: Pruned,
    sketches: Sequence[StoredSketch],
) -> DataFrame | None:
    """The rows of a fixpoint as the engine derives them; None where it cannot."""
    from impctl.app.using.engine_answer import engine_answer

    alone = replace(prepared, planned=replace(prepared.planned, root=fixpoint, cut=None))
    try:
        rows = engine_answer(desk, alone, versions, pruned, sketches)
    except (BlockedError, EvaluationError, NotExactError, OutOfMemoryError, TableError):
        return None
    return desk.spark().createDataFrame(rows)


def _outer(prepared: PreparedQuery) -> Iterator[tuple[Span, Fixpoint]]:
    """Sets, once each, that stand in the text of no other one.

    One that the text reads once, or in one way, is taken with the filters that moved into it, and
    with the best of its rows where these are all that count: its other rows would not pass above.
    """
    every = _sets(prepared.query.root)
    ruled = _sets(prepared.planned.root)
    for span, copies in every.items():
        around = (one for one in every if one.start <= span.start and span.end <= one.end)
        if all(one == span for one in around):
            result = ruled.get(span, [])
            is_one = len(copies) == len(result) and len({fingerprint(one) for one in result}) == 1
            yield span, (result if is_one else copies)[0]


def _unused(prepared: PreparedQuery) -> dict[Span, Fixpoint]:
    """Sets of entries that nothing reads, which stand in no other one: no row of them is asked for,
    but Spark refuses the text with them in it.
    """
    read = {span for span, _ in _outer(prepared)}
    alone = {one.span: one for one in prepared.query.unused if one.is_set and one.span is not None}
    every = {*read, *alone}
    return {
        span: one
        for span, one in alone.items()
        if span not in read and not any(_is_within(span, other) for other in every)
    }


def _is_within(span: Span, other: Span) -> bool:
    return span != other and other.start <= span.start and span.end <= other.end


def _schema(fixpoint: Fixpoint) -> str:
    """The columns as Spark has them written."""
    names = (attribute.name.replace("`", "``") for attribute in fixpoint.attributes)
    kinds = (attribute.type or "string" for attribute in fixpoint.attributes)
    return ", ".join(f"`{name}` {kind}" for name, kind in zip(names, kinds, strict=True))


def _sets(plan: Plan) -> dict[Span, list[Fixpoint]]:
    """The fixpoints of UNION, by their places in the text."""
    result: dict[Span, list[Fixpoint]] = {}
    for node in nodes_of(plan):
        if isinstance(node, Fixpoint) and node.is_set and node.span is not None:
            result.setdefault(node.span, []).append(node)
    return result


def _rows(
    desk: Workbench,
    table: TableName,
    access: AccessId,
    versions: Mapping[TableName, TableVersion],
    pruned: Pruned | None,
) -> DataFrame:
    """What the query reads of an access; columns that hide values are guarded above files."""
    from impctl.spark.snapshots import snapshot_frame

    snapshot = desk.tables.snapshot(table, versions.get(table))
    if pruned is None:
        return snapshot_frame(desk.spark(), snapshot)
    rows = snapshot_frame(desk.spark(), snapshot, files=pruned.files.get(table))
    wanted = pruned.filters.get(access)
    return rows if wanted is None else rows.where(filter_condition(wanted).sql(DIALECT))
