"""Absorption by examples: circles, other ways, limits, and derivations that sleep.

`tests/compile/provenance` compares it with ranks and with the reference over random tables.
"""

from __future__ import annotations

import random
import tomllib
from itertools import count
from math import nan
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from impctl.data.schema import DOUBLE
from impctl.data.vector import Ints, from_arrow
from impctl.engine.fixpoint.absorption import (
    Absorption,
    Grounded,
    LazyDerivations,
    Shipping,
    grounded,
    missing_package,
)
from impctl.engine.fixpoint.rows import RowNumbers
from impctl.errors import UnsupportedError, UsageError
from tests.support.diagrams import HAS_DIAGRAMS, derivations_in, take_away, with_diagrams
from tests.support.random_cases import random_seeds


@with_diagrams
def test_a_circle_goes_with_its_ground_and_a_second_way_keeps_it() -> None:
    """The worked example of the paper: A->B, B->C, C->A, C->B; what A reaches."""
    links = {name: at for at, name in enumerate(("AB", "BC", "CA", "CB", "AC"))}
    rows = {name: at for at, name in enumerate("ABC")}

    def link(name: str, *bodies: str) -> Grounded:
        return Grounded(rows[name[1]], tuple(rows[b] for b in bodies), (links[name],))

    for ship in Shipping:
        absorption = Absorption(ship)
        came = [link("AB"), link("AB", "A"), link("BC", "B"), link("CA", "C"), link("CB", "C")]
        assert absorption.step((), came) == ({0, 1, 2}, set())
        # Whether it is a smallest set is known where the whole function was handed on.
        is_known = ship is Shipping.EAGER
        assert absorption.smallest(rows["C"]) == ({links["AB"], links["BC"]}, is_known)
        assert absorption.step([links["CB"]]) == (set(), set())
        assert absorption.step((), [link("AC"), link("AC", "A")]) == (set(), set())
        assert absorption.step((), [link("CB", "C")]) == (set(), set())
        assert absorption.gone_without([links["AB"]]) == set()
        assert absorption.step([links["AB"]]) == (set(), set()), "C->B is a way"
        assert absorption.gone_without([links["CA"]]) == {rows["A"]}
        assert absorption.step([links["AC"]]) == (set(), {0, 1, 2}), "the circle B, C keeps none"


@with_diagrams
def test_a_variable_stands_for_another_leaf_once_its_own_went() -> None:
    for ship in Shipping:
        absorption = Absorption(ship)
        for turn in range(50):
            assert absorption.step((), [Grounded(turn, (), (turn,))]) == ({turn}, set())
            assert absorption.step([turn]) == (set(), {turn})
        assert absorption._manager.num_vars() == 1


def test_rows_keep_their_numbers_while_they_are_there() -> None:
    """Rows are equal as in DISTINCT: -0.0 is 0.0, and NaN is NaN."""
    held, unused = RowNumbers("n", [("a", DOUBLE)]), count()

    def fresh(number: int) -> Ints:
        return np.array([next(unused) for _ in range(number)], dtype=np.int64)

    def counted(*rows: tuple[float | None, int]) -> tuple[list[int], list[int]]:
        values, weights = zip(*rows, strict=True)
        column = from_arrow(pa.array(values, pa.float64()), DOUBLE)
        result = held.counted([column], np.array(weights, dtype=np.int64), fresh)
        return result.numbers.tolist(), result.gone.tolist()

    (zero, same_zero, odd, same_odd, null), gone = counted(
        (0.0, 1), (-0.0, 1), (nan, 1), (-nan, 2), (None, 1)
    )
    assert (zero, odd, gone) == (same_zero, same_odd, [])
    assert len({zero, odd, null}) == 3
    assert counted((-0.0, -1), (nan, -2)) == ([zero, odd], [])
    _, gone = counted((-0.0, -1), (nan, -1), (None, 1), (7.0, 1), (7.0, -1))
    assert {*gone} == {zero, odd}
    assert counted((None, -1)) == ([null], [])
    (again,), _ = counted((0.0, 1))
    assert again not in (zero, odd, null)
    assert sorted(held.whole().weights.tolist()) == [1, 1]


def complete(nodes: int) -> list[Grounded]:
    """What node 0 reaches in a complete graph."""
    pairs = [(one, other) for one in range(nodes) for other in range(nodes) if one != other]
    result = [Grounded(other, (one,), (at,)) for at, (one, other) in enumerate(pairs)]
    return [*result, Grounded(0, (), (len(pairs),))]


@with_diagrams
def test_a_budget_of_nodes_is_held() -> None:
    with pytest.raises(UnsupportedError) as raised:
        Absorption(Shipping.EAGER, 500).step((), complete(8))
    assert raised.value.code == "provenance_too_large"
    assert raised.value.hint
    lazy = Absorption(Shipping.LAZY, 5000)
    assert lazy.step((), complete(8))[0] == set(range(8))
    assert lazy._manager.num_inner_nodes() <= 500


def test_without_the_package_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (missing_package() is None) == HAS_DIAGRAMS
    take_away(monkeypatch)
    with pytest.raises(UsageError, match="not installed") as raised:
        Absorption()
    assert raised.value.code == "extra_missing"
    missing = missing_package()
    assert (missing.message, missing.hint) == (raised.value.message, raised.value.hint)
    project = tomllib.loads(Path("pyproject.toml").read_text())
    (wanted,) = project["project"]["optional-dependencies"]["bdd"]
    assert f"`pip install '{wanted}'`" in str(missing.hint)


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
    asleep, known = LazyDerivations(numbers), grounded(numbers)
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
    assert len(derivations_in(absorption)) == length * count - 2
    assert absorption.step((), [Grounded(2 * 4, (2 * length,), (2 * 4 + 1,))])[0] == {2 * 4}
    assert absorption._functions.keys() == own - {2 * 5} | {2 * length}
