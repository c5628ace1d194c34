"""The net change is the change as a bag, with no row on both sides."""

from __future__ import annotations

import math
import struct
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from impctl.tables.changes import netted
from tests.support.random_cases import FEW

ODD = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0001))[0]
VALUES = st.sampled_from([0.0, -0.0, 1.5, math.nan, ODD, None])
ROWS = st.lists(
    st.tuples(st.sampled_from([1, 2, None]), VALUES, st.sampled_from(["", "a", None])), max_size=30
)


def as_bag(table: pa.Table, weights: np.ndarray) -> Counter[tuple[object, ...]]:
    """Weights by row, doubles by their bits; rows of weight 0 left out."""
    counts: Counter[tuple[object, ...]] = Counter()
    for row, weight in zip(table.to_pylist(), weights.tolist(), strict=True):
        key = tuple(struct.pack("<d", v) if isinstance(v, float) else v for v in row.values())
        counts[key] += weight
    return Counter({row: weight for row, weight in counts.items() if weight})


@FEW
@given(ROWS, st.data())
def test_the_bag_stays_and_nothing_is_on_both_sides(
    rows: list[tuple[int | None, float | None, str | None]], data: st.DataObject
) -> None:
    schema = pa.schema([("i", pa.int64()), ("d", pa.float64()), ("s", pa.string())])
    columns = list(zip(*rows, strict=True)) if rows else [(), (), ()]
    table = pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )
    signs = st.sampled_from([-2, -1, 1, 2])
    weights = np.array([data.draw(signs) for _ in rows], dtype=np.int64)
    left, result = netted(table, weights)
    assert left.schema == schema
    bag = as_bag(table, weights)
    assert as_bag(left, result) == bag
    if len(weights) and (weights > 0).any() and (weights < 0).any():
        assert len(left) == len(bag)


@pytest.mark.parametrize(("weights", "total"), [([1, 1, -1], 1), ([-1, -1, 1], -1), ([1, -1], 0)])
def test_rows_without_columns_are_counted(weights: list[int], total: int) -> None:
    table = pa.table({"x": pa.nulls(len(weights))}).select([])
    left, result = netted(table, np.array(weights, dtype=np.int64))
    assert (int(result.sum()), len(result), len(left)) == (total, abs(total), abs(total))
