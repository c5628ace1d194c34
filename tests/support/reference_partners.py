"""The rows that a circuit does not keep: of sides that Spark reads by the slow reference, every row
of the side, always; of those that are read from files by the order and the circuit that these have,
from tables in memory of which no more is given than is asked for.

Law: what a reader must deliver, and more (rows of other keys, which it is free to deliver too).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from impctl.compile.compile import Compiled
from impctl.compile.fill import Transient
from impctl.compile.flows import FRAGMENT_COLUMN, Readable, Source, Strategy
from impctl.compile.session import read_in_turn
from impctl.data.schema import SqlType
from impctl.data.vector import Bools, Vector, from_arrow
from impctl.engine.batch import Batch, empty_batch
from impctl.engine.tags import RowTags
from impctl.expr.evaluate import Condition
from impctl.expr.nodes import Expr, columns_of
from impctl.plan.moved_conditions import MovedConditions
from impctl.plan.nodes import Plan, Project, Scan, inputs_of, scans_of, with_inputs
from impctl.sketch.partition import RangePartition
from impctl.tables.lookup import WantedValues
from impctl.tables.rows import bare_rows
from impctl.tables.schema import arrow_type
from impctl.types import AccessId, ColumnName, TableName
from tests.support.reference_plan import Tables, annotate
from tests.support.reference_rows import Lineage


@dataclass(frozen=True)
class ReferencePartners:
    """Reads sides and joins of a circuit from the tables as they are when it is asked."""

    compiled: Compiled
    partitions: Mapping[AccessId, RangePartition]
    tables: Tables

    def rows(self, side: str, keys: Sequence[Vector]) -> Batch:
        assert keys
        assert len(keys[0])
        wanted = self.compiled.read_side(side)
        if side not in self.compiled.sides_by(Strategy.FILES):
            return self._read(wanted)
        return self._by_files(wanted, keys)

    def _by_files(self, wanted: Readable, keys: Sequence[Vector]) -> Batch:
        reading = Transient(wanted, self.partitions)
        sizes = {access: len(self.tables[s.table]) for access, s in reading.sources.items()}
        result = read_in_turn(wanted, reading.sources, keys, sizes, self._asked)
        return empty_batch(len(wanted.accesses)) if result is None else reading.rows(result)

    def _asked(self, source: Source, asked: Mapping[ColumnName, Sequence[Vector]]) -> pa.Table:
        """The rows of a table with these values, and no other."""
        kinds = {name: kind for _, name, kind in source.scan.columns}
        kinds |= {p.attribute: p.type for p in source.scan.partitions}
        held = self.tables[source.table]
        columns = {
            name: pa.array([row[name] for row in held], arrow_type(kinds[name]))
            for name in source.scan.table_columns
        }
        kept = np.ones(len(held), dtype=np.bool_)
        for name, lists in asked.items():
            for values in lists:
                kept &= WantedValues.of(values).held_by(from_arrow(columns[name], kinds[name]))
        return pa.table(columns).filter(pa.array(kept)) if columns else bare_rows(len(held))

    def whole(self, side: str) -> Iterator[Batch]:
        """All rows of a side, in two parts."""
        yield from self._halves(self._all(self.compiled.read_side(side)))

    def moved(self, side: str, before: Expr, after: Expr) -> Iterator[Batch]:
        """The rows that statistics as exact as can be leave, in two parts."""
        rows = self._all(self.compiled.read_side(side))
        wanted = MovedConditions((before,), (after,)).rows_that_move
        kept = np.zeros(len(rows), dtype=np.bool_)
        for parts in wanted if len(rows) else ():
            kept |= np.logical_and.reduce([_may_meet(part, rows) for part in parts])
        yield from self._halves(rows.keep(kept))

    def _all(self, wanted: Readable) -> Batch:
        if wanted.plan is wanted.rows:
            # Above a grouping the slow reference has sets of fragments that it cannot put in rows.
            return self._by_files(wanted, ())
        return self._read(wanted)

    def pairs(self, joined: Readable) -> list[Batch]:
        return self._halves(self._read(joined))

    @staticmethod
    def _halves(whole: Batch) -> list[Batch]:
        half = len(whole) // 2
        return [whole.take(np.arange(half)), whole.take(np.arange(half, len(whole)))]

    def _read(self, wanted: Readable) -> Batch:
        plan = _without_fragments(wanted.plan)
        result = annotate(plan, self.tables)
        columns = {
            name: self._vector([values[at] for values, _ in result.rows], kind)
            for at, (name, kind) in enumerate(wanted.columns)
        }
        names = {scan.access: scan.table for scan in scans_of(plan)}
        tags = tuple(
            RowTags(self._fragments(access, names[access], [of for _, of in result.rows]))
            for access in wanted.accesses
        )
        return Batch(columns, np.ones(len(result.rows), np.int64), tags)

    def _vector(self, values: list[object], kind: SqlType) -> Vector:
        return from_arrow(pa.array(values, arrow_type(kind)), kind)

    def _fragments(
        self, access: AccessId, table: TableName, lineages: Sequence[Lineage]
    ) -> np.ndarray:
        partition = self.partitions[access]
        numbers = [next(row for of, row in lineage if of == access) for lineage in lineages]
        values = [self.tables[table][number][partition.attribute] for number in numbers]
        return partition.fragments_of(self._vector(list(values), partition.type))


def _without_fragments(plan: Plan) -> Plan:
    """The plan as it was before fragments were carried through it."""
    if isinstance(plan, Scan):
        kept = tuple(a for a in plan.attributes if a.name != FRAGMENT_COLUMN)
        return replace(plan, attributes=kept)
    if isinstance(plan, Project):
        outputs = tuple(o for o in plan.outputs if o.attribute.name != FRAGMENT_COLUMN)
        plan = replace(plan, outputs=outputs)
    return with_inputs(plan, tuple(_without_fragments(child) for child in inputs_of(plan)))


def _may_meet(condition: Expr, rows: Batch) -> Bools:
    """Which rows may meet a condition, of which nothing is known where it reads other columns."""
    if not columns_of(condition) <= rows.columns.keys():
        return np.ones(len(rows), dtype=np.bool_)
    return Condition(condition).truth(rows.columns, len(rows)).may_true
