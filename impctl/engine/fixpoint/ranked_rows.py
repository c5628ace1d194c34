"""Rows of a fixpoint by their contents, each with its rank and the weight of what derives it.

Law: a *derivation* is one way to derive a row from others; its *bodies* are the rows of the
fixpoint that it uses. Of a row, `all` is what its derivations weigh whose bodies are all in the
fixpoint; `rank`, from 1 up, is the stage at which the row came in; `low` is what those of its
derivations weigh whose highest body rank is below its own. A row is in the fixpoint where it has a
rank, and as long as every such row has a `low` above zero, none of them owes itself to a circle.
Rows are equal as DISTINCT has it. Cost: the rows touched, looked up once in a step, and those that
changed, written once. Memory: 24 bytes beside the row and its code.
Out of scope: which rows come and go (`engine.operators.fixpoint`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.data.schema import SqlType
from impctl.data.vector import Ints, Vector, from_stored
from impctl.engine.arrangement import Arrangement
from impctl.engine.batch import Batch, empty_batch
from impctl.types import AttributeId
from impctl.values import dataclass

_RANK, _ALL, _LOW = "rank", "all", "low"
NAMES = (_RANK, _ALL, _LOW)


@dataclass(frozen=True, slots=True)
class Ranked:
    """All rows: their codes and columns, and what is remembered of each; shapes (rows,)."""

    codes: Ints
    keys: tuple[Vector, ...]
    rank: Ints
    all: Ints
    low: Ints

    def __len__(self) -> int:
        return len(self.codes)


class RankedRows:
    """The rows of `columns`, between two steps."""

    stored: tuple[str, ...] = NAMES
    """The names of what is kept of each row."""

    def __init__(self, name: str, columns: Sequence[tuple[AttributeId, SqlType]]) -> None:
        self.columns = tuple(columns)
        self.kinds = tuple(kind for _, kind in columns)
        self.arrangement = Arrangement(
            f"{name}.rows", self.kinds, _ALL, lambda: dict.fromkeys(self.stored, np.int64)
        )

    def whole(self) -> Ranked:
        """All rows, by their codes. Cost: the rows."""
        run = self.arrangement.whole()
        if run is None:
            none = np.zeros(0, dtype=np.int64)
            return Ranked(none, (), none, none, none)
        keys = tuple(map(from_stored, run.keys, self.kinds))
        rank, every, low = (run.values[name] for name in NAMES)
        return Ranked(run.codes, keys, rank, every, low)

    def rows(self) -> Batch:
        """All rows, once each. Cost: the rows."""
        result = self.whole()
        if not len(result):
            return empty_batch(0)
        return self.batch(result.keys, np.ones(len(result), dtype=np.int64))

    def batch(self, keys: Sequence[Vector], weights: Ints) -> Batch:
        """Rows of these columns, which carry no fragment."""
        columns = {name: key for (name, _), key in zip(self.columns, keys, strict=True)}
        return Batch(columns, weights, ())
