"""Buffers of best values against all values: what is said to be best is, also at the edge."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from impctl.data.vector import Ints
from impctl.engine.extremes import Best, BestValues
from impctl.engine.lookups import COMPLETE
from tests.support.random_cases import random_seeds

GROUP = np.array([7], dtype=np.int64)


def ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def change(values: BestValues, edge: int, ranks: list[int], weight: int) -> Best:
    owners, weights = ints([0] * len(ranks)), ints([weight] * len(ranks))
    return values.change(GROUP, ints([edge]), owners, ints(ranks), weights)


def test_a_value_at_the_edge_is_held_and_can_go() -> None:
    values = BestValues("v", 1)
    edge = int(change(values, COMPLETE, [1, 2, 3, 4, 5], 1).edges[0])
    assert edge < 5
    result = change(values, edge, list(range(1, edge + 1)), -1)
    assert not result.is_found[0], "more may be in the table, and nothing is held"


def test_another_copy_of_the_edge_is_counted() -> None:
    values = BestValues("v", 1)
    edge = int(change(values, COMPLETE, [1, 2, 3, 4, 5], 1).edges[0])
    change(values, edge, [edge], 1)
    result = change(values, edge, list(range(1, edge + 1)), -1)
    assert (bool(result.is_found[0]), int(result.ranks[0])) == (True, edge)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3])
@random_seeds(3, 6, 30)
def test_the_best_is_the_least_of_all(size: int, seed: int) -> None:
    rng = Random(seed)
    values = BestValues("v", size)
    held: list[int] = []
    edge = COMPLETE
    refills = 0
    for _ in range(60):
        if held and rng.random() < 0.6:
            held.sort()
            gone = held[: rng.randrange(1, min(len(held), 4) + 1)]
            del held[: len(gone)]
            result = change(values, edge, gone, -1)
        else:
            new = [rng.randrange(12) for _ in range(rng.randrange(1, 9))]
            held.extend(new)
            result = change(values, edge, new, 1)
        edge = int(result.edges[0])
        if held and not result.is_found[0]:
            assert edge != COMPLETE
            refills += 1
            values.clear(GROUP)
            owners, weights = ints([0] * len(held)), ints([1] * len(held))
            result = values.refill(GROUP, owners, ints(held), weights)
            edge = int(result.edges[0])
        assert bool(result.is_found[0]) == bool(held)
        if held:
            assert int(result.ranks[0]) == min(held)
    assert refills > 0
