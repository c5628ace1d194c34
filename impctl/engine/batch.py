"""A batch: rows with signed weights and a tag per sketched access, in canonical form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from impctl.data.keys import (
    Grouping,
    group_normal,
    group_rows,
    in_order,
    key_codes,
    normalise,
    same_keys,
)
from impctl.data.memory import reserve
from impctl.data.schema import LONG, Kind, SqlType
from impctl.data.vector import Bools, Ints, Once, Vector, concat, once
from impctl.engine.tags import RowTags, SetTags, Tags, no_ranges, stacked
from impctl.errors import CountBelowZeroError, StateCorruptError

if TYPE_CHECKING:
    from impctl.types import AttributeId


# Law: state that contradicts a change (a count below zero, rows that were never counted) is an
# error that asks for recapture, never a guess. So is stored state with entries that are missing,
# unknown or of other types, which only another release writes.


def disagreement(message: str) -> CountBelowZeroError:
    """The error for state that contradicts its input; `message` says what was deleted or found."""
    return CountBelowZeroError(
        message, hint="the table's history does not match the state; run `impctl capture` again"
    )


def never_held(what: str) -> CountBelowZeroError:
    return disagreement(f"The change removes {what} that the stored state never contained")


def unreadable(what: str) -> StateCorruptError:
    return StateCorruptError(
        f"The stored state was not written by this release of impctl: {what}",
        hint="run `impctl capture` again; `impctl maintain` does this if the policy allows it",
    )


@contextmanager
def loading() -> Iterator[None]:
    """Blame the stored state for errors while it is loaded."""
    try:
        yield
    except KeyError as error:
        raise unreadable(f"`{error.args[0]}` is missing") from error
    except (LookupError, TypeError, ValueError, pa.ArrowException) as error:
        raise unreadable(str(error).partition("\n")[0]) from error


# Law: a batch means the sum of its rows; two batches are equal when their consolidated sums are.
# Batches never change.


class Batch(Struct, frozen=True):
    """Columns by identity, weights of shape (n,), and one tag column per sketched access. Several
    circuits may read one batch; results that they have in common are `shared`."""

    columns: Mapping[AttributeId, Vector]
    weights: Ints
    tags: tuple[Tags, ...]
    shared: Once | None = None

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def size(self) -> int:
        return sum(column.size for column in self.columns.values()) + self.weights.nbytes

    def keep(self, mask: Bools) -> Batch:
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

    def codes_of(self, names: Sequence[AttributeId]) -> Ints:
        """A code per row of the columns of these names, equal for equal rows; shape (rows,)."""
        return key_codes([normalise(self.columns[name]) for name in names], len(self))

    def grouped_by(self, names: Sequence[AttributeId]) -> tuple[list[Vector], Grouping]:
        """The columns of these names in canonical form, and the groups of equal rows in them."""
        columns = [self.columns[name] for name in names]
        return once(self.shared, (Grouping, *names), lambda: group_normal(columns, len(self)))

    def shares(self, result: Batch) -> Batch:
        """The batch made of this one, with a cache for those who share it."""
        is_own = self.shared is None or result is self
        return result if is_own else replace(result, shared=Once())

    def _between(self, start: int, end: int) -> Batch:
        """The rows from one position to before another, without copying columns."""
        positions = np.arange(start, end if self.tags else start, dtype=np.int64)
        return Batch(
            {name: column.between(start, end) for name, column in self.columns.items()},
            self.weights[start:end],
            tuple(tag.take(positions) for tag in self.tags),
        )

    def take(self, positions: Ints) -> Batch:
        reserve(len(positions) * self.weights.itemsize * (1 + len(self.tags)))
        return Batch(
            {name: column.take(positions) for name, column in self.columns.items()},
            self.weights[positions],
            tuple(tag.take(positions) for tag in self.tags),
        )

    def negated(self) -> Batch:
        return Batch(self.columns, -self.weights, self.tags)


def empty_batch(accesses: int) -> Batch:
    tags = tuple(no_ranges(0) for _ in range(accesses))
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
        stacked([batch.tags[index] for batch in batches]) for index in range(len(batches[0].tags))
    )
    return Batch(columns, weights, tags)


def stacked_or_empty(batches: Iterable[Batch], accesses: int) -> Batch:
    """The rows of several batches of one form, of which some or all may have none."""
    parts = [batch for batch in batches if len(batch)]
    return stacked_batches(parts) if parts else empty_batch(accesses)


def difference(inserted: Batch, deleted: Batch) -> Batch:
    """The difference of two batches of one form; an empty one may have any form."""
    parts = [part for part in (inserted, deleted.negated()) if len(part)]
    return stacked_batches(parts) if parts else inserted


# Consolidation: equal rows are summed, rows that cancel are dropped. Law: a batch and its
# consolidated form mean the same sum. Rows are equal when all columns and all tags are, to the bit:
# 0.0 does not cancel -0.0.

_BINARY = SqlType(Kind.BINARY)
_FEW = 8  # Rows per repeated code from which picking the rows with such a code pays


def consolidated(batch: Batch) -> Batch:
    """The batch with each row once, in no order. Cost: rows log(rows), and their tags."""
    kept, weights = summed(batch, list(batch.columns.values()))
    if len(kept) == len(batch):
        # All rows are different.
        return batch
    rows = batch.take(kept)
    return Batch(rows.columns, weights, rows.tags)


def summed(batch: Batch, columns: Sequence[Vector]) -> tuple[Ints, Ints]:
    """Positions, ascending, of one row for each that does not cancel, and their total weights."""
    vectors = [*map(identity_of, columns), *map(_comparable, batch.tags)]
    some = _perhaps_again(key_codes(vectors, len(batch)))
    weights = batch.weights
    if len(some):
        grouping = group_rows([vector.take(some) for vector in vectors], len(some))
        weights = weights.copy()
        weights[some] = 0
        weights[some[grouping.first]] = np.add.reduceat(
            batch.weights[some][grouping.order], grouping.starts
        )
    kept = weights.nonzero()[0]
    return kept, weights[kept]


def united_neighbours(codes: Ints, batch: Batch) -> tuple[Ints, Batch]:
    """The rows and their ascending codes, with equal neighbors added up. For rows that do not
    cancel. Cost: the rows whose code equals the one before."""
    again = (codes[1:] == codes[:-1]).nonzero()[0]
    vectors = [*map(identity_of, batch.columns.values()), *map(_comparable, batch.tags)]
    for vector in vectors if len(again) else ():
        is_same = same_keys([vector.take(again)], [vector.take(again + 1)])
        assert is_same is not None, "of one column"
        again = again[is_same]
    if not len(again):
        return codes, batch
    is_first = np.ones(len(codes), dtype=np.bool_)
    is_first[again + 1] = False
    first = is_first.nonzero()[0]
    rows = batch.take(first)
    weights = np.add.reduceat(batch.weights, first)
    return codes[first], Batch(rows.columns, weights, rows.tags)


def repeating(batch: Batch) -> float:
    kept, _ = summed(batch, list(batch.columns.values()))
    return 1.0 - len(kept) / max(len(batch), 1)


def _perhaps_again(codes: Ints) -> Ints:
    """Positions of rows with the code of another one: most have none, and need no comparing."""
    ordered = in_order(codes)
    twice: Ints = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(twice):
        return twice
    if _FEW * len(twice) > len(codes):
        return np.arange(len(codes))
    positions = np.minimum(twice.searchsorted(codes), len(twice) - 1)
    some: Ints = (twice[positions] == codes).nonzero()[0]
    return some


def identity_of(column: Vector) -> Vector:
    """A column in which values are equal only when identical: 0.0 does not cancel -0.0."""
    if not column.type.is_fractional:
        return column
    return Vector(LONG, column.values.view(np.int64), column.valid)


def contents_of(tag: Tags) -> Vector:
    """Each tag's set as the bytes of its ranges."""
    return Vector(_BINARY, packed(tag.sets()))


def packed(tag: SetTags) -> pa.Array:
    """Each set as the bytes of its ranges."""
    start, end = int(tag.offsets[0]), int(tag.offsets[-1])
    data = np.ascontiguousarray(tag.ranges[start:end], dtype=np.int32)
    offsets = np.ascontiguousarray((tag.offsets - start) * data.itemsize)
    return pa.Array.from_buffers(
        pa.large_binary(), len(tag), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def unpacked(array: pa.Array) -> SetTags:
    _, offsets, data = array.buffers()
    size = np.dtype(np.int32).itemsize
    ends = np.frombuffer(offsets, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
    values = np.zeros(0, np.int32)
    if data is not None and ends[-1]:
        values = np.frombuffer(data, np.int32, count=int(ends[-1]) // size)
    return SetTags(ends // size, values)


def _comparable(tag: Tags) -> Vector:
    """A column in which equal tags, and only these, are equal."""
    if isinstance(tag, RowTags):
        return Vector(SqlType(Kind.INTEGER), tag.ranges.astype(np.int64))
    sets = tag.sets()
    sizes = np.diff(sets.offsets)
    if not len(sizes) or sizes.max() > 1:
        return contents_of(sets)
    # At most one range each: its number identifies the set.
    numbers = np.full(len(sizes), -1, dtype=np.int64)
    start, end = int(sets.offsets[0]), int(sets.offsets[-1])
    numbers[sizes > 0] = sets.ranges[start:end]
    return Vector(LONG, numbers)
