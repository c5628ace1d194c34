"""Which rows of an index are the same row, so that one takes the other away."""

from __future__ import annotations

import numpy as np
import pytest

from impctl.data.schema import DOUBLE, LONG
from impctl.data.vector import Vector
from impctl.engine.batch import Batch
from impctl.engine.row_index import RowIndex
from impctl.engine.tags import RowTags

COLUMNS = (("k", LONG), ("d", DOUBLE))


def batch(values: list[float], fragments: list[int], weight: int) -> Batch:
    keys = np.ones(len(values), dtype=np.int64)
    columns = {"k": Vector(LONG, keys), "d": Vector(DOUBLE, np.array(values))}
    tags = (RowTags(np.array(fragments, dtype=np.int32)),)
    return Batch(columns, keys * weight, tags)


def index_of(*batches: Batch) -> RowIndex:
    index = RowIndex("i", COLUMNS, ("k",), 1)
    for rows in batches:
        index.add(rows, index.codes_of(rows))
    return index


def held(index: RowIndex) -> list[tuple[str, int, int]]:
    """Value, fragment and weight of what is left once all runs are one."""
    index.compact()
    key = Vector(LONG, np.array([1], dtype=np.int64))
    asked = Batch({"k": key}, np.ones(1, dtype=np.int64), ())
    found = index.find(index.codes_of(asked), [key]).rows
    pairs = found.tags[0].expand(np.arange(len(found)), found.weights)
    rows = zip(found.columns["d"].values[pairs.slots], pairs.fragments, pairs.weights, strict=True)
    return sorted((repr(float(d)), int(f), int(w)) for d, f, w in rows)


def test_zeros_of_either_sign_are_two_rows() -> None:
    """A cast to text tells them apart, so taking one away leaves the other."""
    fillers = [batch([float(number)], [1], 1) for number in range(1, 8)]
    index = index_of(batch([0.0, -0.0], [1, 1], 1), batch([0.0], [1], -1), *fillers)
    zeros = [row for row in held(index) if "0.0" in (row[0], row[0][1:])]
    assert zeros == [("-0.0", 1, 1)]


@pytest.mark.parametrize("value", [1.5, float("nan")])
def test_rows_of_two_fragments_are_two_rows(value: float) -> None:
    index = index_of(batch([value] * 80, [1] * 80, 1), batch([value], [2], 1))
    weights = {1: 0, 2: 0}
    for _, fragment, weight in held(index):
        weights[fragment] += weight
    assert weights == {1: 80, 2: 1}
