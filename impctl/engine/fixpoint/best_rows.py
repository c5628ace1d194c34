"""Rows of a fixpoint that keeps the best of each group, between two steps.

Law: rows with equal key columns are a group. All rows derived from rows that are in are kept by
group, with their tags, as often as they are derived. Of a row that is in there is its `rank`, the
stage at which it came in, and `low`, what those of its derivations weigh whose highest body rank is
below its own; of a group with such rows, the order of its best values. Memory: a row and its tags
per derivation; 16 bytes beside the row and its code per row that is in, as many per group.
Out of scope: what a step makes of them (`engine.fixpoint.touched_groups`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.data.schema import SqlType
from impctl.data.vector import Ints, Vector, from_stored
from impctl.engine.arrangement import Arrangement
from impctl.engine.batch import Batch, empty_batch
from impctl.engine.operator import Keeper
from impctl.engine.row_index import RowIndex
from impctl.types import AttributeId
from impctl.values import dataclass

RANK, LOW, HAS = "rank", "low", "has"
"""Columns of rows that are in, and of groups."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """What is best of such rows: the columns that tell groups, and the values that decide, each
    with whether the greatest is best; with `keeps_null` rows whose value is NULL are, too."""

    keys: tuple[AttributeId, ...]
    values: tuple[tuple[AttributeId, bool], ...]
    keeps_null: bool = False


class BestRows:
    """The rows of `columns`, between two steps, with tags for so many accesses."""

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        grouped: Grouped,
        accesses: int,
    ) -> None:
        self.columns = tuple(columns)
        self.names = tuple(column for column, _ in columns)
        self.kinds = tuple(kind for _, kind in columns)
        self.grouped = grouped
        self.inside = Arrangement(
            f"{name}.rows", self.kinds, RANK, lambda: dict.fromkeys((RANK, LOW), np.int64)
        )
        self.derived = RowIndex(f"{name}.derived", columns, grouped.keys, accesses)
        kinds = dict(columns)
        self.best_names = tuple(f"best{place}" for place, _ in enumerate(grouped.values))
        self.best = Arrangement(
            f"{name}.best",
            [kinds[key] for key in grouped.keys],
            HAS,
            lambda: dict.fromkeys((HAS, *self.best_names), np.int64),
        )
        self.accesses = accesses

    @property
    def keepers(self) -> tuple[Keeper, ...]:
        """The state."""
        return self.inside, self.derived, self.best

    def rows(self) -> Batch:
        """All rows that are in, once each. Cost: these rows."""
        run = self.inside.whole()
        if run is None:
            return empty_batch(0)
        keys = list(map(from_stored, run.keys, self.kinds))
        return self.batch(keys, np.ones(len(run), dtype=np.int64))

    def batch(self, keys: Sequence[Vector], weights: Ints) -> Batch:
        """Rows of these columns, which carry no fragment."""
        return Batch(dict(zip(self.names, keys, strict=True)), weights, ())
