"""Numbers of rows against a dictionary: over random batches, and after taking them up again."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from impctl.data.schema import DOUBLE, LONG
from impctl.data.vector import Ints, Vector, from_arrow
from impctl.engine.fixpoint.rows import NUMBER, RowNumbers, RowsByNumber
from impctl.errors import CountBelowZeroError
from tests.support.random_cases import random_seeds

COLUMNS = (("a", LONG), ("b", DOUBLE))
VALUES = (None, 0.0, -0.0, 1.5, float("nan"))


def key(row: tuple[int | None, float | None]) -> tuple[object, object]:
    a, b = row
    return a, "NaN" if b is not None and b != b else b


class Numbers:
    """The numbers that are given, one after the other."""

    def __init__(self) -> None:
        self.given = 0

    def fresh(self, count: int) -> Ints:
        self.given += count
        return np.arange(self.given - count, self.given, dtype=np.int64)


def vectors(rows: list[tuple[int | None, float | None]]) -> list[Vector]:
    return [
        from_arrow(pa.chunked_array([pa.array([row[0] for row in rows], pa.int64())]), LONG),
        from_arrow(pa.chunked_array([pa.array([row[1] for row in rows], pa.float64())]), DOUBLE),
    ]


@random_seeds(6, 13, 60)
def test_each_row_keeps_its_number_while_it_is_there(seed: int) -> None:
    rng = random.Random(seed)
    held, numbers = RowNumbers("n", COLUMNS), Numbers()
    copies: Counter[tuple[object, object]] = Counter()
    number_of: dict[tuple[object, object], int] = {}
    for turn in range(30):
        rows = [(rng.choice((None, 1, 2)), rng.choice(VALUES)) for _ in range(rng.randint(1, 6))]
        weights, after = [], Counter(copies)
        for row in rows:
            weights.append(rng.choice((1, 2, -1 if after[key(row)] > 0 else 1)))
            after[key(row)] += weights[-1]
        before = numbers.given
        result = held.counted(vectors(rows), np.array(weights, dtype=np.int64), numbers.fresh)
        gone = {one for one, count in copies.items() if count and not after[one]}
        assert {*result.gone.tolist()} == {number_of.pop(one) for one in gone}
        for row, number in zip(rows, result.numbers.tolist(), strict=True):
            if key(row) in gone:
                continue
            known = number_of.setdefault(key(row), number)
            assert number == known
            assert number < before or not copies[key(row)], "only new rows have fresh numbers"
        copies = Counter({one: count for one, count in after.items() if count})
        number_of = {one: number for one, number in number_of.items() if copies[one]}
        assert len({*number_of.values()}) == len(number_of)
        if turn % 7 == 3:
            stored = held.index.changes()
            again = RowNumbers("n", COLUMNS)
            held.index.saved()
            if not stored.drop and turn == 3:
                again.index.load(sorted(stored.put, key=lambda run: run[0]))
                held = again
    whole = held.whole()
    assert Counter(
        dict(zip(whole.columns[NUMBER].values.tolist(), whole.weights.tolist(), strict=True))
    ) == Counter({number_of[one]: count for one, count in copies.items()})


def test_more_copies_than_there_are_cannot_go() -> None:
    held, numbers = RowNumbers("n", COLUMNS), Numbers()
    one = vectors([(1, 1.5)])
    held.counted(one, np.array([2]), numbers.fresh)
    with pytest.raises(CountBelowZeroError):
        held.counted(one, np.array([-3]), numbers.fresh)


def test_a_row_that_comes_again_has_another_number() -> None:
    held, numbers = RowNumbers("n", COLUMNS), Numbers()
    one = vectors([(1, None)])
    first = held.counted(one, np.array([1]), numbers.fresh)
    gone = held.counted(one, np.array([-1]), numbers.fresh)
    assert gone.numbers.tolist() == gone.gone.tolist() == first.numbers.tolist()
    again = held.counted(one, np.array([1]), numbers.fresh)
    assert again.numbers.tolist() != first.numbers.tolist()


def test_rows_are_found_by_their_numbers() -> None:
    held = RowsByNumber(COLUMNS, "number")
    held.put(vectors([(1, 1.5), (2, None), (None, 0.0)]), np.array([0, 4, 2]), 1)
    held.put(vectors([(2, None)]), np.array([4]), -1)
    result = held.rows([2, 0], -1)
    rows = dict(
        zip(
            result.columns["number"].values.tolist(),
            result.columns["a"].to_arrow().to_pylist(),
            strict=True,
        )
    )
    assert rows == {0: 1, 2: None}
    assert result.weights.tolist() == [-1, -1]
    assert not len(held.rows([], 1))
