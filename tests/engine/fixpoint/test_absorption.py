"""Absorption by examples: cycles, other derivations, limits, and lazy derivations.

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
def test_a_cycle_dies_with_its_ground_unless_another_exists() -> None:
    """The worked example of the paper: A->B, B->C, C->A, C->B; what A reaches."""
    links = {name: number for number, name in enumerate(("AB", "BC", "CA", "CB", "AC"))}
    rows = {name: number for number, name in enumerate("ABC")}

    def link(name: str, *bodies: str) -> Grounded:
        return Grounded(rows[name[1]], tuple(rows[b] for b in bodies), (links[name],))

    for ship in Shipping:
        absorption = Absorption(ship)
        inserted = [link("AB"), link("AB", "A"), link("BC", "B"), link("CA", "C"), link("CB", "C")]
        assert absorption.step((), inserted) == ({0, 1, 2}, set())
        # The set is known to be smallest only if the whole function was shipped.
        is_known = ship is Shipping.EAGER
        assert absorption.smallest(rows["C"]) == ({links["AB"], links["BC"]}, is_known)
        assert absorption.step([links["CB"]]) == (set(), set())
        assert absorption.step((), [link("AC"), link("AC", "A")]) == (set(), set())
        assert absorption.step((), [link("CB", "C")]) == (set(), set())
        assert absorption.gone_without([links["AB"]]) == set()
        assert absorption.step([links["AB"]]) == (set(), set()), "C->B derives B"
        assert absorption.gone_without([links["CA"]]) == {rows["A"]}
        assert absorption.step([links["AC"]]) == (set(), {0, 1, 2}), "the cycle B, C has no ground"


@with_diagrams
def test_variables_of_deleted_leaves_are_reused() -> None:
    for ship in Shipping:
        absorption = Absorption(ship)
        for turn in range(50):
            assert absorption.step((), [Grounded(turn, (), (turn,))]) == ({turn}, set())
            assert absorption.step([turn]) == (set(), {turn})
        assert absorption._manager.num_vars() == 1


def test_rows_keep_their_numbers_until_deleted() -> None:
    """Rows are equal as in DISTINCT: -0.0 is 0.0, and NaN is NaN."""
    row_numbers, unused = RowNumbers("n", [("a", DOUBLE)]), count()

    def fresh(number: int) -> Ints:
        return np.array([next(unused) for _ in range(number)], dtype=np.int64)

    def counted(*rows: tuple[float | None, int]) -> tuple[list[int], list[int]]:
        values, weights = zip(*rows, strict=True)
        column = from_arrow(pa.array(values, pa.float64()), DOUBLE)
        result = row_numbers.counted([column], np.array(weights, dtype=np.int64), fresh)
        return result.numbers.tolist(), result.deleted.tolist()

    (zero, same_zero, odd, same_odd, null), deleted = counted(
        (0.0, 1), (-0.0, 1), (nan, 1), (-nan, 2), (None, 1)
    )
    assert (zero, odd, deleted) == (same_zero, same_odd, [])
    assert len({zero, odd, null}) == 3
    assert counted((-0.0, -1), (nan, -2)) == ([zero, odd], [])
    _, deleted = counted((-0.0, -1), (nan, -1), (None, 1), (7.0, 1), (7.0, -1))
    assert {*deleted} == {zero, odd}
    assert counted((None, -1)) == ([null], [])
    (reinserted,), _ = counted((0.0, 1))
    assert reinserted not in (zero, odd, null)
    assert sorted(row_numbers.whole().weights.tolist()) == [1, 1]


def complete(nodes: int) -> list[Grounded]:
    """Derivations of the nodes that node 0 reaches in a complete graph."""
    pairs = [(one, other) for one in range(nodes) for other in range(nodes) if one != other]
    result = [Grounded(other, (one,), (leaf,)) for leaf, (one, other) in enumerate(pairs)]
    return [*result, Grounded(0, (), (len(pairs),))]


@with_diagrams
def test_node_budget_is_enforced() -> None:
    with pytest.raises(UnsupportedError) as raised:
        Absorption(Shipping.EAGER, 500).step((), complete(8))
    assert raised.value.code == "provenance_too_large"
    assert raised.value.hint
    lazy = Absorption(Shipping.LAZY, 5000)
    assert lazy.step((), complete(8))[0] == set(range(8))
    assert lazy._manager.num_inner_nodes() <= 500


def test_the_error_for_a_missing_package_has_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (missing_package() is None) == HAS_DIAGRAMS
    take_away(monkeypatch)
    with pytest.raises(UsageError, match="not installed") as raised:
        Absorption()
    assert raised.value.code == "extra_missing"
    missing = missing_package()
    assert (missing.message, missing.hint) == (raised.value.message, raised.value.hint)
    project = tomllib.loads(Path("pyproject.toml").read_text())
    (requirement,) = project["project"]["optional-dependencies"]["bdd"]
    assert f"`pip install '{requirement}'`" in str(missing.hint)


def some_numbers(rng: random.Random) -> np.ndarray:
    """Random derivations, some without a ground."""
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
    lazy, known = LazyDerivations(numbers), grounded(numbers)
    rows = lazy.rows().tolist()
    assert rows == sorted(rows_by_rounds(known))
    chosen = [lazy.chosen(row) for row in rows]
    assert set(chosen) <= set(known)
    assert [one.head for one in chosen] == rows
    assert rows_by_rounds(chosen) == set(rows), "the chosen ones suffice"
    for leaf in range(1, 12, 2):
        without = [one for one in chosen if leaf not in one.leaves]
        assert lazy.made_of(leaf) & set(rows) == set(rows) - rows_by_rounds(without)
    remaining = set(known)
    for number in random.Random(seed).sample(range(24), 6):
        if number % 2 or number % 4:
            removed = lazy.take_of_part(number)
            expected = {one for one in remaining if number in (*one.bodies, *one.leaves)}
        else:
            removed = lazy.take_of_head(number)
            expected = {one for one in remaining if number == one.head}
        assert set(removed) == expected
        remaining -= expected
        assert set(lazy.unused()) == remaining
    assert len(lazy) >= len(remaining), "there may be duplicates"


@with_diagrams
def test_a_change_loads_only_its_rows() -> None:
    """Change one of 200 chains."""
    length, count = 6, 200
    chains = [
        (2 * index, *((2 * (index - 1),) if index % length else (-1,)), 2 * index + 1)
        for index in range(length * count)
    ]
    absorption = Absorption()
    absorption.take_up(np.array(chains, dtype=np.int64))
    assert len(absorption.rows) == length * count
    assert not absorption._functions
    chain = {2 * index for index in range(length)}
    assert absorption.gone_without([2 * 4 + 1]) == {2 * 4, 2 * 5}
    assert absorption._functions.keys() <= chain
    assert absorption.step([2 * 4 + 1]) == (set(), {2 * 4, 2 * 5})
    assert absorption._functions.keys() == chain - {2 * 4, 2 * 5}
    assert len(derivations_in(absorption)) == length * count - 2
    assert absorption.step((), [Grounded(2 * 4, (2 * length,), (2 * 4 + 1,))])[0] == {2 * 4}
    assert absorption._functions.keys() == chain - {2 * 5} | {2 * length}
