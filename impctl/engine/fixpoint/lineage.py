"""Lineage of a fixpoint: the rows and ranges that take part in deriving its rows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from impctl.data.schema import LONG
from impctl.data.vector import Ints, Vector
from impctl.engine.batch import Batch
from impctl.engine.circuit import Circuit
from impctl.engine.fixpoint.absorption import BODY, HEAD
from impctl.engine.fixpoint.fixpoint import Fixpoint
from impctl.engine.join import Join, Side
from impctl.engine.linear import Project
from impctl.engine.operator import Keeper, Limits, Operator
from impctl.engine.range_counts import FragmentCounts
from impctl.expr.nodes import ColumnRef

if TYPE_CHECKING:
    from impctl.engine.fixpoint.frontier import Recursion

_RANK = "impctl/rank"
_NO_LIMITS = Limits(rounds=sys.maxsize, rows=sys.maxsize)


class Backward(Fixpoint):
    """Its inputs are rows of A, with a number in the column `ROW`, and derivations with so many
    `accesses`."""

    def __init__(self, name: str, accesses: int) -> None:
        rows = Side(((ROW, LONG), (_RANK, LONG)), (ROW,), 0)
        derivations = Side(((HEAD, LONG), (BODY, LONG)), (HEAD,), accesses)
        join = Join(f"{name}.derivations", rows, derivations, [False])
        chosen = Project([(ROW, ColumnRef(BODY, LONG)), (_RANK, ColumnRef(_RANK, LONG))])
        step = Circuit([join, chosen], [(-1, -2), (0,)])
        super().__init__(name, ((ROW, LONG),), _RANK, step, (0, accesses), _NO_LIMITS)

    def end_by(self, limits: Limits) -> None:
        """The limits are of the rows of the query, of which these are some."""


class Lineage(Operator):
    """Its input is the output of the fixpoint, which is there whenever that was stepped."""

    def __init__(self, fixpoint: Recursion) -> None:
        self._fixpoint = fixpoint
        self.form = fixpoint.form

    def step(self, batch: Batch) -> Batch:
        """The derivations that came or went in the step just now."""
        del batch  # It tells that there was a step: derivations may change where no row does.
        return self._fixpoint.told()


ROW = "impctl/row"
"""The column with the number of a row."""
_ALL: Ints = np.zeros(1, dtype=np.int64)
"""The one group of all rows."""


class UsedRows(Operator):
    """The numbers that rows carry; without tags."""

    def __init__(self, name: str) -> None:
        self.counts = FragmentCounts(f"{name}.uses")

    def step(self, batch: Batch) -> Batch:
        """Numbers that came to be carried (+1), or no longer are (-1)."""
        pairs = batch.tags[0].expand(np.zeros(len(batch), dtype=np.int64), batch.weights)
        crossed = self.counts.count(_ALL, pairs).crossings()
        return Batch({ROW: Vector(LONG, crossed.fragments)}, crossed.weights, ())

    def arrangements(self) -> Sequence[Keeper]:
        return (self.counts.arrangement,)
