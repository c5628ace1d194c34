"""The least value of a group, where its first values were deleted and stand in other runs.

A look-up reads the first few values of each run; these cases delete more than it reads first.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from impctl.data.schema import DOUBLE
from impctl.data.vector import Ints, Vector
from impctl.engine.extremes import OrderedCounts, ranks_of, values_of
from impctl.errors import CountBelowZeroError


def ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def add(state: OrderedCounts, group: int, ranks: list[int], weight: int = 1) -> None:
    """One run more."""
    state.add(ints([group] * len(ranks)), ints(ranks), ints([weight] * len(ranks)))


def best(state: OrderedCounts, *groups: int) -> list[int]:
    return [int(rank) for rank in state.best(ints(list(groups)))]


@pytest.mark.parametrize("reverse", [False, True])
def test_ranks_of_doubles_are_in_sparks_order(reverse: bool) -> None:
    tiny, huge = 5e-324, 1.7e308
    ordered = np.array([-np.inf, -huge, -1.5, -tiny, 0.0, tiny, 1.5, huge, np.inf, np.nan])
    ranks = ranks_of(Vector(DOUBLE, ordered), reverse=reverse)
    steps = np.diff(ranks)
    assert bool((steps < 0).all() if reverse else (steps > 0).all())
    assert repr(values_of(ranks, DOUBLE, reverse=reverse).tolist()) == repr(ordered.tolist())
    of_other_bits = np.array([0x7FF8_0000_0000_0001]).view(np.float64)
    alike = np.array([0.0, -0.0, np.nan, -np.nan, *of_other_bits])
    zero, minus_zero, *nans = ranks_of(Vector(DOUBLE, alike), reverse=reverse).tolist()
    assert zero == minus_zero
    assert len(set(nans)) == 1


@pytest.mark.parametrize("deleted", [7, 8, 9, 15, 16, 17, 40, 399])
def test_a_greater_value_of_a_short_run_does_not_win_over_a_cut_one(deleted: int) -> None:
    """Runs of 400, -8 and +1 values: the ninth is the least, not the one of the newest run."""
    state = OrderedCounts("s")
    add(state, 1, list(range(1, 401)))
    add(state, 1, list(range(1, deleted + 1)), -1)
    add(state, 1, [5000])
    assert best(state, 1) == [deleted + 1]


def test_groups_that_need_a_wider_window_stand_beside_groups_that_do_not() -> None:
    state = OrderedCounts("s")
    for group in (1, 2, 3):
        add(state, group, list(range(10 * group, 10 * group + 100)))
    add(state, 2, list(range(20, 60)), -1)
    add(state, 3, list(range(30, 130)), -1)
    add(state, 2, [900])
    assert best(state, 3, 2, 1, 2, 7) == [0, 60, 10, 60, 0]


def test_a_value_at_the_edge_of_what_was_read_is_sure() -> None:
    """The eighth value of a cut run, deleted in another run and counted twice in a third."""
    state = OrderedCounts("s")
    add(state, 1, list(range(1, 101)))
    add(state, 1, list(range(1, 9)), -1)
    add(state, 1, [8])
    assert best(state, 1) == [8]


def test_a_value_never_held_is_told() -> None:
    state = OrderedCounts("s")
    add(state, 1, list(range(1, 101)))
    add(state, 1, [0], -1)
    with pytest.raises(CountBelowZeroError):
        state.best(ints([1]))


@pytest.mark.parametrize("seed", range(20))
def test_against_a_plain_minimum(seed: int) -> None:
    rng = Random(seed)
    state = OrderedCounts("s")
    held: dict[int, list[int]] = {group: [] for group in range(4)}
    for _ in range(12):
        group = rng.randrange(4)
        mine = held[group]
        if len(mine) > 30 and rng.random() < 0.7:
            mine.sort()
            gone = mine[: rng.randrange(1, len(mine) + 1)]
            del mine[: len(gone)]
            add(state, group, gone, -1)
        else:
            start = rng.randrange(500)
            new = [start + rng.randrange(300) for _ in range(rng.choice((1, 40, 200)))]
            mine.extend(new)
            add(state, group, new)
        groups = list(held)
        rng.shuffle(groups)
        wanted = [min(held[group], default=0) for group in groups]
        assert best(state, *groups) == wanted
