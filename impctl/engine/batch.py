"""A batch: rows with signed weights and a tag per sketched access.

Law: a batch means the sum of its rows; two batches are equal when their consolidated sums are.
Batches never change. Out of scope: where rows come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from impctl.data.keys import Grouping, group_normal
from impctl.data.memory import reserve
from impctl.data.vector import Bools, Ints, Once, Vector, concat, once
from impctl.engine.tags import Tags, no_fragments, stacked
from impctl.types import AttributeId
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Batch:
    """Columns by identity, weights of shape (n,), and one tag column per sketched access.

    Several circuits may read one batch; what they find alike of it is then `shared`.
    """

    columns: Mapping[AttributeId, Vector]
    weights: Ints
    tags: tuple[Tags, ...]
    shared: Once | None = None

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def size(self) -> int:
        """Bytes of the columns and weights."""
        return sum(column.size for column in self.columns.values()) + self.weights.nbytes

    def keep(self, mask: Bools) -> Batch:
        """The rows where `mask` is set."""
        kept = int(np.count_nonzero(mask))
        if kept == len(mask):
            return self
        first = int(mask.argmax())
        if kept and bool(mask[first : first + kept].all()):
            return self._between(first, first + kept)
        return self.take(np.flatnonzero(mask))

    def lots(self, most: int) -> Iterator[Batch]:
        """The rows in batches of at most so many, in their order; none without rows."""
        if 0 < len(self) <= most:
            yield self
            return
        for start in range(0, len(self), most):
            yield self._between(start, min(start + most, len(self)))

    def grouped_by(self, names: Sequence[AttributeId]) -> tuple[list[Vector], Grouping]:
        """The columns of these names in canonical form, and the groups of rows alike in them."""
        columns = [self.columns[name] for name in names]
        return once(self.shared, (Grouping, *names), lambda: group_normal(columns, len(self)))

    def shares(self, made: Batch) -> Batch:
        """What was made of this batch, to be shared by those who share this one."""
        is_own = self.shared is None or made is self
        return made if is_own else replace(made, shared=Once())

    def _between(self, start: int, end: int) -> Batch:
        """The rows from one position to before another, without copying columns."""
        positions = np.arange(start, end if self.tags else start, dtype=np.int64)
        return Batch(
            {name: column.between(start, end) for name, column in self.columns.items()},
            self.weights[start:end],
            tuple(tag.take(positions) for tag in self.tags),
        )

    def take(self, positions: Ints) -> Batch:
        """The rows at these positions, in that order."""
        reserve(len(positions) * self.weights.itemsize * (1 + len(self.tags)))
        return Batch(
            {name: column.take(positions) for name, column in self.columns.items()},
            self.weights[positions],
            tuple(tag.take(positions) for tag in self.tags),
        )

    def negated(self) -> Batch:
        """The same rows taken away."""
        return Batch(self.columns, -self.weights, self.tags)


def empty_batch(accesses: int) -> Batch:
    """No rows, with tags for so many sketched accesses."""
    tags = tuple(no_fragments(0) for _ in range(accesses))
    return Batch({}, np.zeros(0, dtype=np.int64), tags)


def stacked_batches(batches: Sequence[Batch]) -> Batch:
    """The rows of several batches of one form, one after the other; at least one."""
    if len(batches) == 1:
        return batches[0]
    columns = {
        name: concat([batch.columns[name] for batch in batches]) for name in batches[0].columns
    }
    reserve(sum(batch.weights.nbytes for batch in batches) * (1 + len(batches[0].tags)))
    weights = np.concatenate([batch.weights for batch in batches])
    tags = tuple(
        stacked([batch.tags[at] for batch in batches]) for at in range(len(batches[0].tags))
    )
    return Batch(columns, weights, tags)


def difference(came: Batch, went: Batch) -> Batch:
    """The one less the other; of one form, but for what is empty."""
    parts = [part for part in (came, went.negated()) if len(part)]
    return stacked_batches(parts) if parts else came
