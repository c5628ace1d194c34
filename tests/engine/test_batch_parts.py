"""Rows kept of a batch: all, one run of them, some, none; with tags, NULL and text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from impctl.data.schema import LONG, STRING
from impctl.data.vector import Vector
from impctl.engine.batch import Batch
from impctl.engine.tags import RowTags
from impctl.types import AttributeId

SIZE = 10
NUMBER, TEXT = AttributeId(0), AttributeId(1)


def batch() -> Batch:
    valid = np.arange(SIZE) % 3 != 0
    texts = pa.array([f"t{at}" for at in range(SIZE)], pa.large_string())
    columns = {
        NUMBER: Vector(LONG, np.arange(SIZE), valid, None),
        TEXT: Vector(STRING, texts),
    }
    return Batch(columns, np.arange(SIZE) + 1, (RowTags(np.arange(SIZE, dtype=np.int32)),))


@pytest.mark.parametrize("kept", [[], [0], [9], [3, 4, 5], [0, 1], [2, 4], list(range(SIZE))])
def test_rows_kept_are_those_of_the_mask(kept: list[int]) -> None:
    mask = np.isin(np.arange(SIZE), kept)
    keep = batch().keep(mask)
    assert keep.weights.tolist() == [at + 1 for at in kept]
    assert keep.columns[NUMBER].values.tolist() == kept
    assert keep.columns[NUMBER].validity().tolist() == [at % 3 != 0 for at in kept]
    assert keep.columns[TEXT].values.to_pylist() == [f"t{at}" for at in kept]
    (tag,) = keep.tags
    assert isinstance(tag, RowTags)
    assert tag.fragments.tolist() == kept


@pytest.mark.parametrize(
    ("most", "sizes"), [(3, [3, 3, 3, 1]), (5, [5, 5]), (10, [10]), (99, [10])]
)
def test_lots_are_the_rows_in_their_order(most: int, sizes: list[int]) -> None:
    lots = list(batch().lots(most))
    assert [len(lot) for lot in lots] == sizes
    assert [weight for lot in lots for weight in lot.weights.tolist()] == list(range(1, SIZE + 1))
    texts = [text for lot in lots for text in lot.columns[TEXT].values.to_pylist()]
    assert texts == [f"t{at}" for at in range(SIZE)]


def test_no_rows_are_no_lot() -> None:
    assert list(batch().take(np.zeros(0, dtype=np.int64)).lots(3)) == []
