"""Derivations taken up from arrays: what goes on from them is what never stopped.

Then rows, changes and derivations are those of the definition after every batch, however much of
them is asleep, and what is asked for wakes no more than it needs.
Run where `oxidd` is installed.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from impctl.engine.fixpoint.absorption import Absorption, Asleep, Grounded, Ship, grounded
from tests.engine.fixpoint.test_absorption import Driven, ships
from tests.engine.fixpoint.test_programs import NODES, some_change
from tests.support.diagrams import derivations_in, remembered, with_diagrams
from tests.support.random_cases import random_seeds
from tests.support.reference_fixpoint import PROGRAMS, least_fixpoint


@with_diagrams
@ships
@pytest.mark.parametrize("program", PROGRAMS)
@random_seeds(1, 3, 60)
def test_what_is_taken_up_goes_on(program: str, ship: Ship, seed: int) -> None:
    rng = random.Random(f"asleep {program} {seed}")
    driven = Driven(program, ship)
    for _ in range(12):
        size = rng.choice((1, 1, 2, 7))
        driven.step(some_change(rng, driven.tables, min(NODES[program], 5), size))
        assert driven.rows == least_fixpoint(PROGRAMS[program], driven.tables)
        known = derivations_in(driven.absorption)
        assert set(known) == driven.grounded(driven.rows)
        assert remembered(driven.absorption) == len(known) == len(set(known))
        if rng.random() < 0.4:
            driven.take_up()
        if rng.random() < 0.5:
            leaves = sorted(driven.leaves)
            some = set(rng.sample(leaves, min(len(leaves), rng.randint(0, 3))))
            rest = least_fixpoint(PROGRAMS[program], driven.of_leaves(driven.leaves - some))
            gone = driven.absorption.gone_without(some)
            assert driven.rows_of(gone) == driven.rows - rest
        for row in [*driven.absorption.rows][: rng.randrange(2)]:
            leaves_of, _ = driven.absorption.smallest(row)
            over = least_fixpoint(PROGRAMS[program], driven.of_leaves(leaves_of))
            assert driven.rows_of({row}) <= over


def some_numbers(rng: random.Random) -> np.ndarray:
    """Derivations at random, of which some have no ground."""
    parts = [-1, -1, *range(0, 20, 2), *range(1, 12, 2)]
    result = {
        (2 * rng.randrange(10), *rng.choices(parts, k=3)) for _ in range(rng.randrange(1, 25))
    }
    return np.array(sorted(result), dtype=np.int64)


def rows_by_rounds(derivations: list[Grounded]) -> set[int]:
    rows: set[int] = set()
    while new := {one.head for one in derivations if rows.issuperset(one.bodies)} - rows:
        rows |= new
    return rows


@random_seeds(15, 28, 600)
def test_chosen_derivations_have_a_ground(seed: int) -> None:
    numbers = some_numbers(random.Random(seed))
    asleep, known = Asleep(numbers), grounded(numbers)
    rows = asleep.rows().tolist()
    assert rows == sorted(rows_by_rounds(known))
    chosen = [asleep.chosen(row) for row in rows]
    assert set(chosen) <= set(known)
    assert [one.head for one in chosen] == rows
    assert rows_by_rounds(chosen) == set(rows), "of chosen ones alone"
    for leaf in range(1, 12, 2):
        without = [one for one in chosen if leaf not in one.leaves]
        assert asleep.made_of(leaf) & set(rows) == set(rows) - rows_by_rounds(without)
    left = set(known)
    for number in random.Random(seed).sample(range(24), 6):
        if number % 2 or number % 4:
            taken = asleep.take_of_part(number)
            wanted = {one for one in left if number in (*one.bodies, *one.leaves)}
        else:
            taken = asleep.take_of_head(number)
            wanted = {one for one in left if number == one.head}
        assert set(taken) == wanted
        left -= wanted
        assert set(asleep.here()) == left
    assert len(asleep) >= len(left), "equal ones may be there twice"


@with_diagrams
def test_a_change_wakes_what_it_touches() -> None:
    """Of 200 chains from a row each, a change of one."""
    length, count = 6, 200
    chains = [
        (2 * at, *((2 * (at - 1),) if at % length else (-1,)), 2 * at + 1)
        for at in range(length * count)
    ]
    absorption = Absorption()
    absorption.take_up(np.array(chains, dtype=np.int64))
    assert len(absorption.rows) == length * count
    assert not absorption._functions
    own = {2 * at for at in range(length)}
    assert absorption.gone_without([2 * 4 + 1]) == {2 * 4, 2 * 5}
    assert absorption._functions.keys() <= own
    assert absorption.step([2 * 4 + 1]) == (set(), {2 * 4, 2 * 5})
    assert absorption._functions.keys() == own - {2 * 4, 2 * 5}
    assert remembered(absorption) == length * count - 2
    assert absorption.step((), [Grounded(2 * 4, (2 * length,), (2 * 4 + 1,))])[0] == {2 * 4}
    assert absorption._functions.keys() == own - {2 * 5} | {2 * length}
