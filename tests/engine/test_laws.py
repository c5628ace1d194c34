"""The laws every operator keeps, over circuits in which each of them stands.

Batches = their sum = singletons; a batch and its negative leave nothing; restored = never stopped;
everything deleted = empty; and the sketch equals one computed from scratch.
"""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from impctl.errors import CountBelowZeroError
from tests.support.circuits import SHAPES, Row, contents, feed, restarted

VALUES = st.sampled_from([None, -2, 0, 1, 2, 3, 5, 2**62, -(2**62)])
SMALL = st.sampled_from([None, 0, 1, 2, 3, 4, 5, 6, 7])
TEXTS = st.sampled_from([None, "", "a", "ab", "é", "b"])
DOUBLES = st.sampled_from([None, 0.0, -0.0, 1.5, -1.5, 1e16, 1.0, math.nan, math.inf, -math.inf])
ROWS = st.tuples(SMALL, SMALL, TEXTS, VALUES, DOUBLES)
shapes = pytest.mark.parametrize("shape", SHAPES)


@shapes
@settings(max_examples=60, deadline=None)
@given(rows=st.lists(ROWS, max_size=14), seed=st.integers(0, 2**16))
def test_any_batching_means_the_same(shape: str, rows: list[Row], seed: int) -> None:
    rows = [row if abs(row[3] or 0) < 10 else (*row[:3], 7, row[4]) for row in rows]
    random_ = random.Random(seed)
    scan, whole = SHAPES[shape]()
    feed(scan, whole, rows, [1] * len(rows))
    _, parts = SHAPES[shape]()
    shuffled = random_.sample(rows, len(rows))
    while shuffled:
        size = random_.randint(1, 4)
        feed(scan, parts, shuffled[:size], [1] * len(shuffled[:size]))
        shuffled = shuffled[size:]
    assert contents(parts) == contents(whole)


@shapes
@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(ROWS, max_size=10),
    extra=st.lists(st.tuples(ROWS, st.integers(1, 3)), min_size=1, max_size=6),
)
def test_a_batch_and_its_negative_leave_nothing(
    shape: str, rows: list[Row], extra: list[tuple[Row, int]]
) -> None:
    scan, circuit = SHAPES[shape]()
    rows = [(*row[:3], 2, row[4]) for row in rows]
    feed(scan, circuit, rows, [1] * len(rows))
    before = contents(circuit)
    more = [(*row[:3], 4, row[4]) for row, _ in extra]
    weights = [weight for _, weight in extra]
    feed(scan, circuit, more, weights)
    feed(scan, circuit, more, [-w for w in weights])
    assert contents(circuit) == before
    feed(scan, circuit, more + more, weights + [-w for w in weights])
    assert contents(circuit) == before
    feed(scan, circuit, [], [])
    assert contents(circuit) == before


@shapes
@settings(max_examples=40, deadline=None)
@given(rows=st.lists(ROWS, max_size=12), later=st.lists(ROWS, max_size=6))
def test_restored_is_never_stopped_and_all_deleted_is_empty(
    shape: str, rows: list[Row], later: list[Row]
) -> None:
    rows = [(*row[:3], (row[3] or 0) % 9, row[4]) for row in rows]
    later = [(*row[:3], (row[3] or 0) % 9, row[4]) for row in later]
    scan, circuit = SHAPES[shape]()
    feed(scan, circuit, rows, [1] * len(rows))
    fresh = restarted(circuit, SHAPES[shape]()[1])
    deltas = [feed(scan, c, later, [1] * len(later)) for c in (circuit, fresh)]
    assert [d.added.tolist() for d in deltas[0]] == [d.added.tolist() for d in deltas[1]]
    assert contents(fresh) == contents(circuit)
    everything = rows + later
    feed(scan, fresh, everything, [-1] * len(everything))
    assert set(contents(fresh)[0]) == {0}
    assert all(state == () for state in contents(fresh)[1:]) or shape == "global"


@shapes
def test_deleting_what_was_never_there_is_an_error(shape: str) -> None:
    scan, circuit = SHAPES[shape]()
    row: Row = (1, 1, "a", 5, 1.0)
    feed(scan, circuit, [row] * 3, [1] * 3)
    with pytest.raises(CountBelowZeroError, match="never held"):
        feed(scan, circuit, [row] * 5, [-1] * 5)


def test_a_float_sum_that_changes_while_the_row_count_does_not_is_seen() -> None:
    """Pathway loses this change: one row leaves, another enters, the count stays."""
    scan, circuit = SHAPES["group by string"]()
    feed(scan, circuit, [(1, 1, "a", 1, 1.0)], [1])
    feed(scan, circuit, [(1, 1, "a", 1, 1.0), (5, 1, "a", 4, 2.5)], [-1, 1])
    assert circuit.merge.members(0).tolist() == [False, False, True, False, False]
    assert contents(circuit)[1][0][1] == [("count0", 1), ("count1", 1), ("low0", 4), ("rows", 1)]
