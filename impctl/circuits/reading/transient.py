"""Rows of a side computed by the engine for one step, and forgotten.

Law: what `rows` gives for rows of the tables is what the flow has that the side belongs to, for
these rows: columns, weights and tags alike. It is the circuit that the side's plan compiles to,
under names of its own, so that no column of the plan is taken for one of its own.
Out of scope: which rows of the tables (`circuits.reading.cascade`), reading them (`app`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from impctl.circuits.build import Builder
from impctl.circuits.flows import Flow, Source
from impctl.circuits.reading.readable import Readable
from impctl.engine.batch import Batch, consolidated, empty_batch
from impctl.engine.circuit import Circuit
from impctl.sketch.partition import RangePartition
from impctl.types import AccessId

_NAMES = "read/"


class Transient:
    """The rows of a side, from rows of its tables; for one use."""

    def __init__(self, wanted: Readable, partitions: Mapping[AccessId, RangePartition]) -> None:
        sketched = {access: partitions[access] for access in wanted.accesses}
        builder = Builder(sketched)
        builder.prefix = _NAMES
        self._flow: Flow = builder.root(wanted.rows)
        self._wanted = wanted
        self._circuit = Circuit(builder.operators, builder.inputs)
        self.sources: Mapping[AccessId, Source] = {one.access: one for one in builder.sources}

    def rows(self, tables: Mapping[AccessId, pa.Table]) -> Batch:
        """The rows of the side for these rows of each access."""
        batches = [self.sources[access].came(tables[access]) for access in self.sources]
        result = batches[-1 - self._flow.at] if self._flow.at < 0 else self._circuit.step(*batches)
        if result is None or not len(result):
            return empty_batch(len(self._wanted.accesses))
        columns = {name: result.columns[name] for name, _ in self._wanted.columns}
        place = {access: at for at, access in enumerate(self._flow.accesses)}
        tags = tuple(result.tags[place[access]] for access in self._wanted.accesses)
        rows = Batch(columns, result.weights.astype(np.int64, copy=False), tags)
        # Of joins that take rows away again only what is left may be given out in parts.
        return consolidated(rows) if bool((rows.weights < 0).any()) else rows
