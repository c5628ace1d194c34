"""Rows of tables that derive one row of an answer together, found by the engine.

Law: read is what the query reads through its sketches, less what cannot matter to the row; over it
the row is derived in all ways in which it is over the tables, since a sketch holds the whole
lineage of the answer. A sketch of witnesses does not, and is left away. What is told is rows of
the tables at the pinned versions, by the columns that the query reads.
Out of scope: how a row is given (`app.using.row_given`), which set is told
(`provenance`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from impctl.app.preparing.filters import Pruned
from impctl.app.preparing.wanted_files import files_by_table, wanted_files
from impctl.app.results.answer import RowValue, rows_of
from impctl.app.results.why import WhyEntry
from impctl.app.using.fresh_sketch import Fresh
from impctl.app.using.row_given import RowGiven, condition_of_row
from impctl.app.using.worth import what_is_read
from impctl.app.workbench.memory_limit import MemoryLimit, held_to, memory_of
from impctl.app.workbench.recursion_limits import limits_of
from impctl.app.workbench.workbench import Workbench
from impctl.compile.flows import BlockedError
from impctl.data.vector import from_arrow
from impctl.errors import QueryError, UsageError
from impctl.plan.nodes import Plan, Scan, Select, attributes_of, scans_of
from impctl.provenance.absorbed import numbered
from impctl.provenance.derivation import Derivation, derivation_of
from impctl.provenance.program import Made, made_rows
from impctl.rules.optimize import apply_rules
from impctl.store.records import StoredSketch
from impctl.tables.rows import read_rows
from impctl.types import AccessId, ColumnName, TableName
from impctl.values import dataclass
from impctl.workload.models import SketchUse

if TYPE_CHECKING:
    from impctl.tables.snapshot import DataFile

_SHOWN = 3
"""Rows of an answer that are named where a row could be any of several."""


@dataclass(frozen=True, slots=True)
class DerivedRow:
    """A row of the answer and the rows that derive it; what was read for it, or that it was told
    from the state. `lineage`: how many rows take part in any derivation."""

    row: Mapping[ColumnName, RowValue]
    derivation: Derivation
    rows: tuple[WhyEntry, ...]
    files: int
    files_total: int
    lineage: int
    from_state: bool = False


def derived_row(desk: Workbench, result: Fresh, given: RowGiven) -> DerivedRow:
    """The one row of the answer that has these values, and what derives it.

    UsageError where it is not one row, QueryError where the query is not traced to rows; other
    errors as of `engine_answer`.
    """
    outputs = attributes_of(result.prepared.planned.root)
    wanted = condition_of_row(given, outputs)
    root = apply_rules(Select(result.prepared.query.root, wanted))
    pruned = what_is_read(desk.tables, result, SketchUse.ALWAYS).pruned
    limit = MemoryLimit(memory_of(desk.settings, desk.workload))
    try:
        with held_to(limit):
            tables = _Tables(desk, result, root, pruned)
            made = made_rows(
                root, tables.of_accesses(), tables.rows, limit.check, limits=limits_of(desk)
            )
    except BlockedError as blocked:
        raise _not_traced(result, blocked) from None
    (number, row) = the_row(result, desk.session_zone, root, made)
    derivation = derivation_of(made.makings, number, tables.rows)
    entries = tables.entries(derivation.rows)
    files = (tables.files, pruned.files_total)
    return DerivedRow(row, derivation, entries, *files, derivation.lineage)


class _Tables:
    """What is read of the tables, each row with a number of its own."""

    def __init__(self, desk: Workbench, result: Fresh, root: Plan, pruned: Pruned) -> None:
        snapshots = {
            scan.access: desk.tables.snapshot(scan.table, result.versions.get(scan.table))
            for scan in scans_of(root)
        }
        files = files_by_table(snapshots, wanted_files(root, snapshots, pruned.filters))
        self._scans = scans_of(root)
        self._used = {one.access: one for one in result.sketches if one.access in pruned.filters}
        self._shown = _columns((*scans_of(result.prepared.root), *self._scans))
        self._rows: dict[TableName, pa.Table] = {}
        self._starts: dict[TableName, int] = {}
        self.files = sum(map(len, files.values()))
        self.rows = 0
        for table, snapshot in {one.table: one for one in snapshots.values()}.items():
            wanted = list(self._shown[table])
            wanted += [one.attribute for one in self._used.values() if one.table == table]
            own: Sequence[DataFile] = files[table]
            rows = read_rows(snapshot, list(dict.fromkeys(wanted)), own)
            self._rows[table] = rows
            self._starts[table] = self.rows
            self.rows += len(rows)

    def of_accesses(self) -> dict[AccessId, pa.Table]:
        """The rows that each access reads, with their numbers."""
        return {scan.access: self._of(scan) for scan in self._scans}

    def _of(self, scan: Scan) -> pa.Table:
        rows = self._rows[scan.table]
        rows = numbered(rows, self._starts[scan.table])
        sketch = self._used.get(scan.access)
        return rows if sketch is None else _inside(sketch, rows)

    def entries(self, numbers: Sequence[int]) -> tuple[WhyEntry, ...]:
        """The rows of these numbers, in their order."""
        result: dict[int, WhyEntry] = {}
        for table, rows in self._rows.items():
            start, names = self._starts[table], self._shown[table]
            own = [number for number in numbers if start <= number < start + len(rows)]
            places = pa.array([number - start for number in own], pa.int64())
            taken = rows_of(rows.select(list(names)).take(places))
            # Without columns there is nothing to tell rows by.
            values = taken if names else ((),) * len(own)
            for number, row in zip(own, values, strict=True):
                result[number] = WhyEntry(table, dict(zip(names, row, strict=True)))
        return tuple(result[number] for number in numbers)


def _columns(scans: Sequence[Scan]) -> dict[TableName, tuple[ColumnName, ...]]:
    """The columns that are read of each table."""
    result: dict[TableName, dict[ColumnName, None]] = {}
    for scan in scans:
        result.setdefault(scan.table, {}).update(dict.fromkeys(a.name for a in scan.attributes))
    return {table: tuple(names) for table, names in result.items()}


def _inside(sketch: StoredSketch, rows: pa.Table) -> pa.Table:
    """The rows whose fragment is in the sketch."""
    partition = sketch.partition
    values = from_arrow(rows.column(sketch.attribute), partition.type)
    mask = sketch.fragments.to_mask()[partition.fragments_of(values)]
    return rows.filter(pa.array(mask))


def the_row(
    result: Fresh, zone: str, root: Plan, made: Made
) -> tuple[int, Mapping[ColumnName, RowValue]]:
    """The number of the only row that was made, and the row."""
    names = [one.name for one in attributes_of(root)]
    rows = rows_of(made.to_arrow(attributes_of(root), zone))
    if len(made.numbers) == 1:
        return int(made.numbers[0]), dict(zip(names, rows[0], strict=True)) if names else {}
    name = result.prepared.spec.name
    if not len(made.numbers):
        raise UsageError(
            f"The result of query `{name}` has no such row",
            hint="`impctl query` shows the rows; text must match exactly",
            code="row_not_there",
        )
    some = "; ".join(
        ", ".join(f"{column}={value!s}" for column, value in zip(names, row, strict=True))
        for row in rows[:_SHOWN]
    )
    raise UsageError(
        f"The result of query `{name}` has {len(made.numbers):,} different rows like this: "
        f"{some}{'; ...' if len(rows) > _SHOWN else ''}",
        hint="give values of more columns with `--row`",
        code="row_ambiguous",
    )


def _not_traced(result: Fresh, blocked: BlockedError) -> QueryError:
    return QueryError(
        f"impctl cannot trace a row of query `{result.prepared.spec.name}` to rows of its "
        f"tables: {blocked.message}",
        hint="the engine traces filters, inner joins, EXISTS, IN, UNION, DISTINCT, GROUP BY and "
        "WITH RECURSIVE; `--without` shows for other queries, too, which results disappear "
        "without some rows",
        code="not_traced",
        location=result.prepared.place(blocked.span),
    )
