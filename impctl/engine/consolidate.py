"""Rows that are one and the same counted once, and those that cancel left out.

Law: a batch and its consolidated form mean the same sum. Rows are one where all columns and all
tags are, value for value: 0.0 does not cancel -0.0, one NaN cancels another only bit for bit.
Out of scope: runs of rows by a key (`engine.row_index`), which merge by the same identity.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from impctl.data.keys import group_rows
from impctl.data.schema import LONG, Kind, SqlType
from impctl.data.vector import Ints, Vector
from impctl.engine.batch import Batch
from impctl.engine.tags import RowTags, SetTags, Tags

_BINARY = SqlType(Kind.BINARY)


def consolidated(batch: Batch) -> Batch:
    """The batch with each row once, in no order. Cost: rows log(rows), and their tags."""
    kept, weights = summed(batch, list(batch.columns.values()))
    rows = batch.take(kept)
    return Batch(rows.columns, weights, rows.tags)


def summed(batch: Batch, columns: Sequence[Vector]) -> tuple[Ints, Ints]:
    """Positions of one row for each that does not cancel, and the sums of their weights."""
    identity = [identity_of(column) for column in columns]
    tags = [_comparable(tag) for tag in batch.tags]
    grouping = group_rows([*identity, *tags], len(batch))
    weights = np.add.reduceat(batch.weights[grouping.order], grouping.starts)
    return grouping.first[weights != 0], weights[weights != 0]


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


def _comparable(tag: Tags) -> Vector:
    """A column in which equal tags, and only these, are equal."""
    if isinstance(tag, RowTags):
        return Vector(SqlType(Kind.INTEGER), tag.fragments.astype(np.int64))
    return contents_of(tag)
