"""The rows that a circuit does not keep, by the slow reference: every row of the side, always.

Law: what a reader must deliver, and more (rows of other keys, which it is free to deliver too).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from impctl.aliases import AccessId, TableName
from impctl.circuits.compile import Compiled
from impctl.circuits.readable import FRAGMENT_COLUMN, Readable
from impctl.data.schema import SqlType
from impctl.data.vector import Vector, from_arrow
from impctl.engine.batch import Batch
from impctl.engine.tags import RowTags
from impctl.plan.nodes import Plan, Project, Scan, inputs_of, scans_of, with_inputs
from impctl.sketch.partition import RangePartition
from tests.support.reference_plan import Lineage, Tables, annotate


@dataclass(frozen=True)
class ReferencePartners:
    """Reads sides and joins of a circuit from the tables as they are when it is asked."""

    compiled: Compiled
    partitions: Mapping[AccessId, RangePartition]
    tables: Tables
    types: Mapping[str, pa.DataType]
    """Arrow types of the tables' columns by SQL type's text."""

    def rows(self, side: str, keys: Sequence[Vector]) -> Batch:
        assert keys
        assert len(keys[0])
        return self._read(self.compiled.read_side(side))

    def pairs(self, joined: Readable) -> list[Batch]:
        whole = self._read(joined)
        half = len(whole) // 2
        return [whole.take(np.arange(half)), whole.take(np.arange(half, len(whole)))]

    def _read(self, wanted: Readable) -> Batch:
        plan = _without_fragments(wanted.plan)
        found = annotate(plan, self.tables)
        columns = {
            name: self._vector([values[at] for values, _ in found.rows], kind)
            for at, (name, kind) in enumerate(wanted.columns)
        }
        names = {scan.access: scan.table for scan in scans_of(plan)}
        tags = tuple(
            RowTags(self._fragments(access, names[access], [of for _, of in found.rows]))
            for access in wanted.accesses
        )
        return Batch(columns, np.ones(len(found.rows), np.int64), tags)

    def _vector(self, values: list[object], kind: SqlType) -> Vector:
        return from_arrow(pa.array(values, self.types[str(kind)]), kind)

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
