"""Rows that are one and the same counted once, and those that cancel left out.

Law: a batch and its consolidated form mean the same sum. Rows are one where all columns and all
tags are, value for value: 0.0 does not cancel -0.0, one NaN cancels another only bit for bit.
Out of scope: runs of rows by a key (`engine.row_index`), which merge by the same identity.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from impctl.data.keys import group_rows, in_order, key_codes, same_keys
from impctl.data.schema import LONG, Kind, SqlType
from impctl.data.vector import Ints, Vector
from impctl.engine.batch import Batch
from impctl.engine.tags import RowTags, SetTags, Tags

_BINARY = SqlType(Kind.BINARY)
_FEW = 8
"""Rows, per one that repeats a code, from which on it pays to pick those with such a code."""


def consolidated(batch: Batch) -> Batch:
    """The batch with each row once, in no order. Cost: rows log(rows), and their tags."""
    kept, weights = summed(batch, list(batch.columns.values()))
    if len(kept) == len(batch):
        # Each is the only one of its kind.
        return batch
    rows = batch.take(kept)
    return Batch(rows.columns, weights, rows.tags)


def summed(batch: Batch, columns: Sequence[Vector]) -> tuple[Ints, Ints]:
    """Positions of one row for each that does not cancel, ascending, and what these weigh."""
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
    """The rows and their ascending codes, those that are one with the row before it added to it.

    For rows that do not cancel. Cost: the rows that have a code like the one before.
    """
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
    """Which share of the rows is one that is there already."""
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
    places = np.minimum(twice.searchsorted(codes), len(twice) - 1)
    some: Ints = (twice[places] == codes).nonzero()[0]
    return some


def identity_of(column: Vector) -> Vector:
    """A column in which values are equal only when the same: 0.0 does not cancel -0.0."""
    if not column.type.is_fractional:
        return column
    return Vector(LONG, column.values.view(np.int64), column.valid)


def contents_of(tag: Tags) -> Vector:
    """Each tag's set as the bytes of its fragments."""
    return Vector(_BINARY, packed(tag.sets()))


def packed(tag: SetTags) -> pa.Array:
    """Each set as the bytes of its fragments."""
    start, end = int(tag.offsets[0]), int(tag.offsets[-1])
    data = np.ascontiguousarray(tag.fragments[start:end], dtype=np.int32)
    offsets = np.ascontiguousarray((tag.offsets - start) * data.itemsize)
    return pa.Array.from_buffers(
        pa.large_binary(), len(tag), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def unpacked(array: pa.Array) -> SetTags:
    """The inverse of `packed`."""
    _, offsets, data = array.buffers()
    size = np.dtype(np.int32).itemsize
    ends = np.frombuffer(offsets, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
    whole = np.zeros(0, np.int32)
    if data is not None and ends[-1]:
        whole = np.frombuffer(data, np.int32, count=int(ends[-1]) // size)
    return SetTags(ends // size, whole)


def _comparable(tag: Tags) -> Vector:
    """A column in which equal tags, and only these, are equal."""
    if isinstance(tag, RowTags):
        return Vector(SqlType(Kind.INTEGER), tag.fragments.astype(np.int64))
    sets = tag.sets()
    sizes = np.diff(sets.offsets)
    if not len(sizes) or sizes.max() > 1:
        return contents_of(sets)
    # At most one each: a number tells it.
    numbers = np.full(len(sizes), -1, dtype=np.int64)
    start, end = int(sets.offsets[0]), int(sets.offsets[-1])
    numbers[sizes > 0] = sets.fragments[start:end]
    return Vector(LONG, numbers)
