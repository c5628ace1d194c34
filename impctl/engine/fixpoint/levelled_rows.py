"""Rows of a bag fixpoint by their contents and their level, each with its weight.

Law: the *level* of a row is how many steps derived it from a row of the base; the same row may be
there at many levels. Rows are equal value for value: 0.0 is not -0.0, which a step may tell apart.
Cost: the rows that change, looked up and written once. Memory: 8 bytes beside the row, its level
and its code.
Out of scope: what derives which rows (`engine.operators.levels`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.data.keys import group_rows
from impctl.data.schema import LONG, SqlType
from impctl.data.vector import Ints, Vector, concat, from_stored
from impctl.engine.arrangement import Arrangement
from impctl.engine.batch import Batch, empty_batch
from impctl.engine.consolidate import identity_of
from impctl.engine.disagreement import never_held
from impctl.types import AttributeId
from impctl.values import dataclass

_WEIGHT = "weight"


@dataclass(frozen=True, slots=True)
class _Counted:
    """Rows of one level as they are from now on, by their codes."""

    codes: Ints
    keys: Sequence[Vector]
    weights: Ints


class LevelledRows:
    """The rows of `columns` and their level, which goes by the name `level`."""

    def __init__(
        self, name: str, columns: Sequence[tuple[AttributeId, SqlType]], level: AttributeId
    ) -> None:
        self.columns = tuple(columns)
        self.level = level
        kinds = [LONG if kind.is_fractional else kind for _, kind in self.columns]
        self.arrangement = Arrangement(f"{name}.rows", (*kinds, LONG), _WEIGHT)
        self._counted: list[_Counted] = []

    def begin(self) -> None:
        """A step begins: what a step before it counted and did not keep is forgotten."""
        self._counted = []

    def count(self, level: int, rows: Batch) -> Batch:
        """Count all that comes and goes at a level in; the same with each row once, and its level.

        Asked once per level and step. CountBelowZeroError where more goes than there was.
        """
        columns = [rows.columns[name] for name, _ in self.columns]
        levels = Vector(LONG, np.full(len(rows), level, dtype=np.int64))
        keys = [*map(identity_of, columns), levels]
        grouping = group_rows(keys, len(rows))
        changes = grouping.sums(rows.weights)
        moved = changes.nonzero()[0]
        if not len(moved):
            return empty_batch(0)
        first, changes = grouping.first[moved], changes[moved]
        codes, keys = grouping.codes[moved], [key.take(first) for key in keys]
        weights = self._weights(codes, keys) + changes
        if weights.min() < 0:
            raise never_held("ways to derive rows")
        self._counted.append(_Counted(codes, keys, weights))
        named = {
            name: column.take(first)
            for (name, _), column in zip(self.columns, columns, strict=True)
        }
        return Batch({**named, self.level: keys[-1]}, changes, ())

    def _weights(self, codes: Ints, keys: Sequence[Vector]) -> Ints:
        """What these rows weigh as they are kept."""
        result: Ints = self.arrangement.gather(self.arrangement.find(codes, keys), _WEIGHT)
        return result

    def keep(self) -> None:
        """The step is over: keep what was counted."""
        parts, self._counted = self._counted, []
        if not parts:
            return
        codes = np.concatenate([part.codes for part in parts])
        weights = np.concatenate([part.weights for part in parts])
        keys = [concat(list(of_key)) for of_key in zip(*(part.keys for part in parts), strict=True)]
        order = np.argsort(codes, kind="stable")
        self.arrangement.put(
            codes[order], [key.take(order) for key in keys], {_WEIGHT: weights[order]}
        )

    def whole(self) -> Batch:
        """All rows with their levels, each row of a level once. Cost: the rows."""
        run = self.arrangement.whole()
        if run is None:
            return empty_batch(0)
        columns = {}
        for (name, kind), stored in zip(self.columns, run.keys, strict=False):
            if kind.is_fractional:
                held = from_stored(stored, LONG)
                columns[name] = Vector(kind, held.values.view(np.float64), held.valid)
            else:
                columns[name] = from_stored(stored, kind)
        columns[self.level] = from_stored(run.keys[-1], LONG)
        return Batch(columns, run.values[_WEIGHT], ())
