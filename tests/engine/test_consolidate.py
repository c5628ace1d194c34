"""A batch and its consolidated form mean the same sum, value for value and set for set."""

from __future__ import annotations

import math
import random
import struct
from collections import Counter

import numpy as np

from impctl.data.schema import DOUBLE, LONG
from impctl.data.vector import Vector
from impctl.engine.batch import Batch, consolidated
from impctl.engine.tags import RowTags, SetTags
from tests.support.random_cases import random_cases

OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]
DOUBLES = (0.0, -0.0, 1.5, math.nan, OTHER_NAN, None)
SETS = ((), (1,), (1, 2), (12,))

Row = tuple[int | None, float | None, int, tuple[int, ...]]


def batch_of(rows: list[Row], weights: list[int]) -> Batch:
    """A number, a double, a fragment and a set of them per row."""
    numbers, doubles, fragments, sets = zip(*rows, strict=True) if rows else ((), (), (), ())
    columns = {
        "n": Vector(
            LONG,
            np.array([0 if n is None else n for n in numbers], dtype=np.int64),
            np.array([n is not None for n in numbers], dtype=bool),
        ),
        "d": Vector(
            DOUBLE,
            np.array([0.0 if d is None else d for d in doubles], dtype=np.float64),
            np.array([d is not None for d in doubles], dtype=bool),
        ),
    }
    offsets = np.cumsum([0, *map(len, sets)], dtype=np.int64)
    spelled = SetTags(offsets, np.array([f for one in sets for f in one], dtype=np.int32))
    tags = (RowTags(np.array(fragments, dtype=np.int32)), spelled)
    return Batch(columns, np.array(weights, dtype=np.int64), tags)


def meaning(batch: Batch) -> list[tuple[object, int]]:
    """Each row with its weight; doubles by their bits, tags by their fragments."""
    number, double = batch.columns["n"], batch.columns["d"]
    first, second = (tag.sets() for tag in batch.tags)
    result: list[tuple[object, int]] = []
    for at, weight in enumerate(batch.weights.tolist()):
        row = (
            int(number.values[at]) if number.valid is None or number.valid[at] else None,
            struct.pack("<d", double.values[at])
            if double.valid is None or double.valid[at]
            else None,
            tuple(first.fragments[first.offsets[at] : first.offsets[at + 1]].tolist()),
            tuple(second.fragments[second.offsets[at] : second.offsets[at + 1]].tolist()),
        )
        result.append((row, weight))
    return result


def summed(batch: Batch) -> Counter[object]:
    counts: Counter[object] = Counter()
    for row, weight in meaning(batch):
        counts[row] += weight
    return Counter({row: weight for row, weight in counts.items() if weight})


@random_cases(100, 550, 6_000)
def test_the_sum_stays_and_each_row_is_there_once(cases: range) -> None:
    cancelled = merged = 0
    for seed in cases:
        rng = random.Random(seed)
        rows: list[Row] = [
            (
                rng.choice((None, 0, 1)),
                rng.choice(DOUBLES),
                rng.choice((1, 2)),
                rng.choice(SETS),
            )
            for _ in range(rng.randrange(6))
        ]
        picked = [rng.choice(rows) for _ in range(rng.randrange(12))] if rows else []
        batch = batch_of(picked, [rng.choice((-2, -1, 1, 2)) for _ in picked])
        result, wanted = consolidated(batch), summed(batch)
        assert Counter(dict(meaning(result))) == wanted, seed
        assert len(result) == len(wanted), seed
        cancelled += len({row for row, _ in meaning(batch)}) > len(wanted)
        merged += len(wanted) < len(batch)
    assert min(cancelled, merged) > len(cases) // 10


def test_zeros_and_nans_are_told_apart_by_their_bits() -> None:
    rows: list[Row] = [(0, value, 1, ()) for value in (0.0, -0.0, math.nan, OTHER_NAN, math.nan)]
    result = consolidated(batch_of(rows, [1, -1, 1, -1, -1]))
    assert sorted(result.weights.tolist()) == [-1, -1, 1]


def test_one_row_is_one_only_with_the_same_fragments() -> None:
    rows: list[Row] = [(0, None, 1, (1,)), (0, None, 2, (1,)), (0, None, 1, (1, 2))]
    assert len(consolidated(batch_of(rows, [1, -1, -1]))) == len(rows)
    assert len(consolidated(batch_of([rows[2], rows[2]], [1, -1]))) == 0
