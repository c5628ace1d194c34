"""Derivations of a fixpoint's rows as rows of their own: from a head to each of its bodies.

Law: for every derivation whose bodies are all in the fixpoint there is a row per body, with the
number of its head and that of the body, and one with the body `NOTHING` where there is no body. The
first of them carries the derivation's fragments, others carry none, so that fragments count once.
What came and went in a step is told when it is over, when every head has its number. Cost: the
derivations that came or went in the step, sorted once.
Out of scope: the numbers (`numbered_rows`), who follows them back (`operators.backward`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.data.schema import LONG
from impctl.data.vector import Ints, Vector
from impctl.engine.batch import Batch, stacked_batches
from impctl.engine.consolidate import consolidated
from impctl.engine.disagreement import disagreement
from impctl.engine.fixpoint.moves import ToldInTheEnd, slots_for
from impctl.engine.fixpoint.numbered_rows import TouchedNumbers
from impctl.engine.fixpoint.touched_rows import TouchedRows
from impctl.engine.tags import no_fragments
from impctl.types import AttributeId

HEAD, BODY = "impctl/head", "impctl/body"
"""The columns of such a row, both numbers."""
NOTHING = 0
"""The body of a derivation from nothing: no row's number."""
_SLOT = "impctl/slot"


class HeadsAndBodies(ToldInTheEnd):
    """Of derivations with heads of `columns`, and in the columns `bodies` the bodies' numbers."""

    def __init__(
        self,
        accesses: tuple[int, int],
        columns: Sequence[AttributeId],
        bodies: Sequence[AttributeId],
    ) -> None:
        super().__init__(accesses)
        self._columns = tuple(columns)
        self._bodies = tuple(bodies)

    def end(self, touched: TouchedRows) -> None:
        assert isinstance(touched, TouchedNumbers), "only rows with numbers have heads and bodies"
        parts = [self._numbered(touched, batch) for batch in self.taken()]
        if not parts:
            return
        noted = consolidated(stacked_batches(parts))
        if not len(noted):
            return
        heads = touched.numbers[noted.columns[_SLOT].values]
        if not bool(heads.all()):
            raise disagreement(
                "A derivation in WITH RECURSIVE belongs to a row that does not exist"
            )
        for at, name in enumerate(self._bodies or ("",)):
            bodies = noted.columns[name].values if self._bodies else np.zeros_like(heads)
            columns = {HEAD: Vector(LONG, heads), BODY: Vector(LONG, bodies)}
            if at == 0:
                self.keep(Batch(columns, noted.weights, noted.tags))
                continue
            tags = tuple(no_fragments(len(noted)) for _ in noted.tags)
            self.keep(Batch(columns, noted.weights, tags).keep(bodies != NOTHING))

    def _numbered(self, touched: TouchedRows, batch: Batch) -> Batch:
        """The derivations by the slots of their heads; without bodies where there are none."""
        heads = [batch.columns[name] for name in self._columns]
        columns = {_SLOT: Vector(LONG, slots_for(touched, heads, len(batch)))}
        nothing: Ints = np.full(len(batch), NOTHING, dtype=np.int64)
        for name in self._bodies:
            columns[name] = batch.columns.get(name, Vector(LONG, nothing))
        return Batch(columns, batch.weights, batch.tags)
