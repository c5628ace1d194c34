"""Which rows of an index are the same row, so that one takes the other away."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from random import Random

import numpy as np
import pytest

from impctl.data import keys as order
from impctl.data.schema import DOUBLE, LONG
from impctl.data.vector import Vector
from impctl.engine import trace
from impctl.engine.batch import Batch, repeating, united_neighbours
from impctl.engine.tags import RowTags
from impctl.engine.trace import Arrangement, RowIndex

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
    result = index.find(index.codes_of(asked), [key]).rows
    pairs = result.tags[0].expand(np.arange(len(result)), result.weights)
    rows = zip(result.columns["d"].values[pairs.slots], pairs.fragments, pairs.weights, strict=True)
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


Rows = Counter[tuple[int, int, int]]
"""Copies of (key, value, fragment)."""


def rows_of(result: Batch) -> Rows:
    counts: Rows = Counter()
    values = (result.columns[name].values.tolist() for name in ("k", "v"))
    fragments = result.tags[0].expand(np.arange(len(result)), result.weights).fragments.tolist()
    for key, value, fragment, n in zip(*values, fragments, result.weights.tolist(), strict=True):
        counts[key, value, fragment] += n
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("united", [0, 1 << 16])
@pytest.mark.parametrize("hardly", [0.1, 1.0])
@pytest.mark.parametrize("many", [1, 10**6])
@pytest.mark.parametrize("keys", [3, 40, 10**9])
def test_rows_come_and_go_whatever_runs_they_lie_in(
    keys: int, many: int, hardly: float, united: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_MANY_ROWS", united)
    monkeypatch.setattr(trace, "_HARDLY", hardly)
    monkeypatch.setattr(order, "MANY", many)
    monkeypatch.setattr(trace, "MANY", many)
    random = Random(keys)
    index = RowIndex("i", (("k", LONG), ("v", LONG)), ("k",), 1)
    there: Rows = Counter()
    for _ in range(14):
        changes = [
            (
                random.randrange(keys),
                random.randrange(2),
                random.randrange(2),
                random.choice([1, 1, 2]),
            )
            for _ in range(random.choice([1, 30, 90]))
        ]
        changes += [(*row, -n) for row, n in there.items() if n and random.random() < 0.3]
        for key, value, fragment, n in changes:
            there[key, value, fragment] += n
        columns = list(zip(*changes, strict=True))
        vectors = [Vector(LONG, np.array(column, dtype=np.int64)) for column in columns[:2]]
        tags = (RowTags(np.array(columns[2], dtype=np.int32)),)
        weights = np.array(columns[3], dtype=np.int64)
        rows = Batch({"k": vectors[0], "v": vectors[1]}, weights, tags)
        index.add(rows, index.codes_of(rows))
        asked = sorted({key for key, _, _ in there} | {-1, 5})
        random.shuffle(asked)
        key = Vector(LONG, np.array(asked, dtype=np.int64))
        result = index.find(key.values, [key])
        assert rows_of(result.rows) == there
        of_rows = result.rows.columns["k"].values.tolist()
        assert [asked[owner] for owner in result.owners.tolist()] == of_rows
        of_keys = np.bincount(result.owners, minlength=len(asked))
        assert index.count(key.values).tolist() == of_keys.tolist()
    whole = index.whole()
    assert rows_of(whole) == {row: n for row, n in there.items() if n}
    assert len(whole) == len(rows_of(whole))
    assert whole.columns["k"].values.tolist() == sorted(whole.columns["k"].values.tolist())


@pytest.mark.parametrize("united", [0, 1 << 16])
def test_rows_that_only_come_are_counted_once_each(
    united: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is left side by side in a run, the rows of the index come to the same sum."""
    monkeypatch.setattr(trace, "_MANY_ROWS", united)
    monkeypatch.setattr(trace, "_HARDLY", 1.0)
    values, fragments = [0.0, -0.0, float("nan"), 1.0, 1.0, 1.0], [0, 0, 1, 1, 1, 2]
    index = index_of(*(batch(values, fragments, weight) for weight in (1, 2, 1)))
    result = index.whole()
    assert len(result) == 5
    assert sorted(result.weights.tolist()) == [4, 4, 4, 4, 8]


def test_neighbours_that_are_one_row_are_united_and_others_are_not() -> None:
    rows = batch([1.0, 1.0, 1.0, -0.0, 0.0, 2.0, 2.0], [0, 0, 1, 1, 1, 1, 1], 3)
    codes = np.array([5, 5, 5, 5, 5, 5, 6])
    result, one = united_neighbours(codes, rows)
    assert result.tolist() == [5, 5, 5, 5, 5, 6]
    assert one.weights.tolist() == [6, 3, 3, 3, 3, 3]
    assert repeating(batch([1.0, 2.0, 1.0, 1.0], [0, 0, 0, 0], 1)) == 0.5


def test_state_goes_with_whoever_held_it() -> None:
    """Without waiting for cycles to be looked for: it may be most of the memory there is."""
    gc.disable()
    try:
        index, keyed = index_of(batch([1.0], [0], 1)), Arrangement("a", (LONG,), "n")
        index.whole()
        gone = [weakref.ref(index), weakref.ref(keyed)]
        del index, keyed
        assert [one() for one in gone] == [None, None]
    finally:
        gc.enable()
