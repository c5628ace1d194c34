"""Diagrams are canonical: one number for one function, whatever it was made of."""

from __future__ import annotations

import random
from itertools import product

import pytest

from impctl.bench.peers.diagrams import FALSE, TRUE, Diagrams
from impctl.bench.peers.network import CutOff

VARIABLES = range(5)
WORLDS = list(product((False, True), repeat=len(VARIABLES)))


def truth_of(diagrams: Diagrams, function: int) -> tuple[bool, ...]:
    """By asking with variables gone: in each world, those that are false in it."""
    found = []
    for world in WORLDS:
        gone = {variable for variable in VARIABLES if not world[variable]}
        found.append(diagrams.without(function, gone) != FALSE)
    return tuple(found)


def test_equal_functions_are_one_number_and_others_another() -> None:
    rng, diagrams = random.Random(1), Diagrams(100_000)
    known: dict[tuple[bool, ...], int] = {
        tuple(False for _ in WORLDS): FALSE,
        tuple(True for _ in WORLDS): TRUE,
    }
    made = [(tuple(w[v] for w in WORLDS), diagrams.variable(v)) for v in VARIABLES]
    for _ in range(600):
        (one, first), (other, second) = rng.choice(made), rng.choice(made)
        if rng.random() < 0.5:
            truth = tuple(a or b for a, b in zip(one, other, strict=True))
            function = diagrams.either(first, second)
        else:
            truth = tuple(a and b for a, b in zip(one, other, strict=True))
            function = diagrams.both(first, second)
        assert known.setdefault(truth, function) == function
        assert truth_of(diagrams, function) == truth
        depends = {v for v in VARIABLES if _depends(truth, v)}
        assert diagrams.support(function) == depends
        made.append((truth, function))
    assert len({*known.values()}) == len(known) > 50


def _depends(truth: tuple[bool, ...], variable: int) -> bool:
    by_world = dict(zip(WORLDS, truth, strict=True))
    return any(
        by_world[world]
        != by_world[(*world[:variable], not world[variable], *world[variable + 1 :])]
        for world in WORLDS
    )


def test_size_counts_shared_nodes_once() -> None:
    diagrams = Diagrams(1000)
    one, two, three = map(diagrams.variable, range(3))
    # (0 or 1) and 2: the node of 2 is below both others.
    assert diagrams.size(diagrams.both(diagrams.either(one, two), three)) == 3
    assert diagrams.size(TRUE) == diagrams.size(FALSE) == 0


def test_beyond_the_room_work_is_given_up_unless_something_is_freed() -> None:
    diagrams = Diagrams(10)
    kept = diagrams.both(diagrams.variable(1), diagrams.variable(2))
    with pytest.raises(CutOff, match="10 nodes"):
        list(map(diagrams.variable, range(3, 30)))
    assert diagrams.size(kept) == 2
    diagrams.keep([kept])
    # One node of room is left for the variable 1 by itself.
    for variable in range(40, 40 + 10 - 2 - 1):
        assert diagrams.variable(variable) > TRUE
    assert diagrams.both(diagrams.variable(1), diagrams.variable(2)) == kept
    assert diagrams.support(kept) == {1, 2}
    fresh = diagrams.support(diagrams.variable(41))
    assert fresh == {41}, "a node that is used again is not what it was"
