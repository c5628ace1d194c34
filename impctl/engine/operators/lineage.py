"""Lineage of a fixpoint: the fragments of all rows that take part in deriving its rows.

Identity: the output has, for every derivation of a row of the fixpoint from rows of it, the
fragments of the rows of tables that it uses; the change is that of the fixpoint's last step. Since
any row of the fixpoint may matter above it, whatever stands there, these fragments are counted at
the root on a branch of their own, as the first rows of a top-k are (decision 0015). Of a fixpoint
whose rows have numbers it has heads and bodies beside, to be followed back first
(`operators.backward`). No state, no other columns; cost is proportional to the derivations that
came or went. A row that goes out and comes in again in one step takes its derivations back: weights
of either sign, which cancel where they are counted. Not to be confused with the fixpoint's rows,
which carry no fragments.
"""

from __future__ import annotations

from impctl.engine.batch import Batch
from impctl.engine.operator import Operator
from impctl.engine.operators.recursion import Recursion


class Lineage(Operator):
    """Its input is the output of the fixpoint, which is there whenever that was stepped."""

    def __init__(self, fixpoint: Recursion) -> None:
        self._fixpoint = fixpoint
        self.form = fixpoint.form

    def step(self, batch: Batch) -> Batch:
        """The derivations that came or went in the step just now."""
        del batch  # It tells that there was a step: derivations may change where no row does.
        return self._fixpoint.told()
