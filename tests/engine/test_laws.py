"""The laws every operator keeps, over circuits in which each of them stands.

Batches = their sum = singletons; a batch and its negative leave nothing; restored = never stopped;
everything deleted = empty; and the sketch equals one computed from scratch.
"""

from __future__ import annotations

import math
from random import Random

import pytest

from impctl.errors import CountBelowZeroError
from tests.support.circuits import SHAPES, Row, contents, feed, restarted
from tests.support.random_cases import random_cases

SMALL = (None, 0, 1, 2, 3, 4, 5, 6, 7)
TEXTS = (None, "", "a", "ab", "é", "b")
DOUBLES = (None, 0.0, -0.0, 1.5, -1.5, 1e16, 1.0, math.nan, math.inf, -math.inf)
shapes = pytest.mark.parametrize("shape", SHAPES)


def some_rows(rng: Random, most: int, values: tuple[int | None, ...]) -> list[Row]:
    """Up to `most` rows, whose x is one of the values."""
    columns = (SMALL, SMALL, TEXTS, values, DOUBLES)
    return [tuple(map(rng.choice, columns)) for _ in range(rng.randint(0, most))]  # type: ignore[misc]


@pytest.mark.slow
@shapes
@random_cases(3, 9, 60)
def test_any_batching_means_the_same(shape: str, cases: range) -> None:
    for seed in cases:
        rng = Random(f"batching {shape} {seed}")
        rows = some_rows(rng, 14, (None, -2, 0, 1, 2, 3, 5, 7))
        scan, whole = SHAPES[shape]()
        feed(scan, whole, rows, [1] * len(rows))
        _, parts = SHAPES[shape]()
        rng.shuffle(rows)
        while rows:
            size = min(len(rows), rng.randint(1, 4))
            feed(scan, parts, rows[:size], [1] * size)
            rows = rows[size:]
        assert contents(parts) == contents(whole), seed


@pytest.mark.slow
@shapes
@random_cases(3, 9, 60)
def test_a_batch_and_its_negative_leave_nothing(shape: str, cases: range) -> None:
    for seed in cases:
        rng = Random(f"negative {shape} {seed}")
        scan, circuit = SHAPES[shape]()
        rows, more = some_rows(rng, 10, (2,)), some_rows(rng, 6, (4,))
        weights = [rng.randint(1, 3) for _ in more]
        negative = [-weight for weight in weights]
        feed(scan, circuit, rows, [1] * len(rows))
        before = contents(circuit)
        feed(scan, circuit, more, weights)
        feed(scan, circuit, more, negative)
        assert contents(circuit) == before, seed
        feed(scan, circuit, more + more, weights + negative)
        assert contents(circuit) == before, seed
        feed(scan, circuit, [], [])
        assert contents(circuit) == before, seed


@pytest.mark.slow
@shapes
@random_cases(3, 9, 40)
def test_restored_is_never_stopped_and_all_deleted_is_empty(shape: str, cases: range) -> None:
    for seed in cases:
        rng = Random(f"restored {shape} {seed}")
        rows, later = (some_rows(rng, most, (0, 1, 2, 3, 4, 5, 7)) for most in (12, 6))
        scan, circuit = SHAPES[shape]()
        feed(scan, circuit, rows, [1] * len(rows))
        fresh = restarted(circuit, SHAPES[shape]()[1])
        deltas = [feed(scan, c, later, [1] * len(later)) for c in (circuit, fresh)]
        assert [d.added.tolist() for d in deltas[0]] == [d.added.tolist() for d in deltas[1]]
        assert contents(fresh) == contents(circuit), seed
        everything = rows + later
        feed(scan, fresh, everything, [-1] * len(everything))
        assert set(contents(fresh)[0]) == {0}, seed
        assert all(state == () for state in contents(fresh)[1:]) or shape == "global"


@shapes
def test_deleting_what_was_never_there_is_an_error(shape: str) -> None:
    scan, circuit = SHAPES[shape]()
    row: Row = (1, 1, "a", 5, 1.0)
    feed(scan, circuit, [row] * 3, [1] * 3)
    with pytest.raises(CountBelowZeroError, match="never contained"):
        feed(scan, circuit, [row] * 5, [-1] * 5)


def test_a_float_sum_that_changes_while_the_row_count_does_not_is_seen() -> None:
    """Pathway loses this change: one row leaves, another enters, the count stays."""
    scan, circuit = SHAPES["group by string"]()
    feed(scan, circuit, [(1, 1, "a", 1, 1.0)], [1])
    feed(scan, circuit, [(1, 1, "a", 1, 1.0), (5, 1, "a", 4, 2.5)], [-1, 1])
    assert circuit.merge.members(0).tolist() == [False, False, True, False, False]
    assert contents(circuit)[1][0][1] == [("count0", 1), ("count1", 1), ("low0", 4), ("rows", 1)]
