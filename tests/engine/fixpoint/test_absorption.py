"""Absorption provenance against the definition and the default, over random programs."""

from __future__ import annotations

import random
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from impctl.compile.provenance.absorbed import MakingList
from impctl.compile.provenance.derivation import Claim, derivation_of
from impctl.engine.fixpoint.absorption import (
    Absorption,
    Grounded,
    LazyDerivations,
    Shipping,
    grounded,
    missing_package,
)
from impctl.errors import UnsupportedError, UsageError
from tests.engine.fixpoint.test_fixpoint import NODES, difference, some_change
from tests.support.diagrams import (
    HAS_DIAGRAMS,
    derivations_in,
    remembered,
    take_away,
    with_diagrams,
)
from tests.support.random_cases import random_seeds
from tests.support.recursive_circuits import PROGRAMS, Row, cut, least_fixpoint, recursive

ships = pytest.mark.parametrize("ship", list(Shipping))

Tables = dict[str, Counter[Row]]
Leaf = tuple[str, Row]


class Driven:
    """A program whose derivations are found by definition and handed over, round by round.

    Rows have even numbers, leaves odd ones.
    """

    def __init__(self, program: str, ship: Shipping, nodes: int = 1 << 20) -> None:
        self.absorption = Absorption(ship, nodes)
        self._ship, self._nodes = ship, nodes
        self._rules = PROGRAMS[program]
        self.tables: Tables = {"links": Counter(), "seeds": Counter()}
        self.copies: dict[Leaf, list[int]] = {}
        self.leaf_of: dict[int, Leaf] = {}
        self._numbers: dict[Row, int] = {}
        self._rows: list[Row] = []
        self.accesses: dict[Grounded, tuple[int, ...]] = {}
        self._sent: set[Grounded] = set()

    def rows_of(self, numbers: Iterator[int] | set[int]) -> frozenset[Row]:
        return frozenset(self._rows[number // 2] for number in numbers)

    @property
    def rows(self) -> frozenset[Row]:
        return self.rows_of({*self.absorption.rows})

    def step(self, change: Mapping[str, Counter[Row]]) -> Counter[Row]:
        """Copies come and go; the rows that came and went, net."""
        before = self.rows
        went = self._changed(change)
        self._sent = {one for one in self._sent if not went & set(one.leaves)}
        while True:
            came = self.grounded(self.rows) - self._sent
            if not came and not went:
                return difference(self.rows, before)
            self._sent |= came
            held = self.rows
            entered, left = self.absorption.step(went, came)
            assert self.rows_of(entered) == self.rows - held
            assert self.rows_of(left) == held - self.rows
            self._sent = {one for one in self._sent if not left & set(one.bodies)}
            went = set()

    def take_up(self) -> None:
        """Go on from what a store would hold."""
        held = [[one.head, *one.bodies, *one.leaves] for one in derivations_in(self.absorption)]
        widest = max(map(len, held), default=1)
        padded = [[*one, *[-1] * (widest - len(one))] for one in held]
        self.absorption = Absorption(self._ship, self._nodes)
        self.absorption.take_up(np.array(padded, dtype=np.int64).reshape(len(held), widest))

    def _changed(self, change: Mapping[str, Counter[Row]]) -> set[int]:
        """The leaves that go."""
        went = set()
        for table, result in change.items():
            for row, weight in result.items():
                copies = self.copies.setdefault((table, row), [])
                for _ in range(weight):
                    number = 2 * len(self.leaf_of) + 1
                    self.leaf_of[number] = (table, row)
                    copies.append(number)
                for _ in range(-weight):
                    went.add(copies.pop())
            self.tables[table].update(result)
            self.tables[table] = +self.tables[table]
        return went

    def grounded(self, rows: frozenset[Row]) -> set[Grounded]:
        """All derivations over these rows, one per choice of copies."""
        result = set()
        for one in self._rules(self.tables, rows):
            leaves = [(("seeds", "links")[len(row) == 3], row) for _, row in one.leaves]
            for chosen in product(*(self.copies[leaf] for leaf in leaves)):
                made = Grounded(
                    self._number(one.head), tuple(map(self._number, one.bodies)), chosen
                )
                self.accesses[made] = tuple(access for access, _ in one.leaves)
                result.add(made)
        return result

    def _number(self, row: Row) -> int:
        if row not in self._numbers:
            self._numbers[row] = 2 * len(self._rows)
            self._rows.append(row)
        return self._numbers[row]

    def ranges(self) -> Counter[object]:
        result: Counter[object] = Counter()
        for one in derivations_in(self.absorption):
            for access, leaf in zip(self.accesses[one], one.leaves, strict=True):
                result[access, cut(self.leaf_of[leaf][1])] += 1
        return result

    def of_leaves(self, leaves: set[int] | frozenset[int]) -> Tables:
        tables: Tables = {"links": Counter(), "seeds": Counter()}
        for leaf in leaves:
            table, row = self.leaf_of[leaf]
            tables[table][row] += 1
        return tables

    @property
    def leaves(self) -> set[int]:
        return {number for copies in self.copies.values() for number in copies}


@with_diagrams
@ships
@pytest.mark.parametrize("program", PROGRAMS)
@random_seeds(1, 3, 60)
def test_every_batch_leaves_what_ranks_do(program: str, ship: Shipping, seed: int) -> None:
    """Also from what is stored; and what would go without some leaves is what the rest lacks."""
    rng = random.Random(f"asleep {program} {seed}")
    made, driven = recursive(program, "numbers"), Driven(program, ship)
    for _ in range(12):
        size = rng.choice((1, 1, 2, 7))
        change = some_change(rng, driven.tables, min(NODES[program], 5), size)
        assert made.step(change) == driven.step(change)
        rows = driven.rows
        assert rows == least_fixpoint(PROGRAMS[program], driven.tables)
        known = derivations_in(driven.absorption)
        assert set(known) == driven.grounded(rows)
        assert remembered(driven.absorption) == len(known) == len(set(known))
        assert made.ranges() == driven.ranges()
        if rng.random() < 0.4:
            driven.take_up()
        if rng.random() < 0.5:
            leaves = sorted(driven.leaves)
            some = set(rng.sample(leaves, min(len(leaves), rng.randint(0, 4))))
            rest = least_fixpoint(PROGRAMS[program], driven.of_leaves(driven.leaves - some))
            assert driven.rows_of(driven.absorption.gone_without(some)) == rows - rest
            assert driven.rows == rows, "nothing went"
        for row in [*driven.absorption.rows][: rng.randrange(2)]:
            leaves_of, _ = driven.absorption.smallest(row)
            over = least_fixpoint(PROGRAMS[program], driven.of_leaves(leaves_of))
            assert driven.rows_of({row}) <= over
    gone = {n: Counter({row: -w for row, w in held.items()}) for n, held in driven.tables.items()}
    assert made.step(gone) == driven.step(gone)
    assert not driven.rows
    assert not derivations_in(driven.absorption)


@with_diagrams
@ships
@pytest.mark.parametrize("program", PROGRAMS)
@random_seeds(1, 2, 40)
def test_smallest_sets_are_those_that_the_search_finds(
    program: str, ship: Shipping, seed: int
) -> None:
    rng = random.Random(f"smallest {program} {seed}")
    driven = Driven(program, ship)
    for _ in range(3):
        driven.step(some_change(rng, driven.tables, min(NODES[program], 5), 6))
    first = 2 * len(driven.leaf_of) + 1
    makings = MakingList()
    for one in derivations_in(driven.absorption):
        bodies = [first + body for body in one.bodies] + list(one.leaves)
        heads = np.array([first + one.head], dtype=np.int64)
        makings.add(heads, np.array([bodies], dtype=np.int64))
    whole = makings.whole()
    for row in driven.absorption.rows:
        result, is_smallest = driven.absorption.smallest(row)
        tables = driven.of_leaves(result)
        assert driven.rows_of({row}) <= least_fixpoint(PROGRAMS[program], tables)
        expected = derivation_of(whole, first + row, first)
        assert expected.claim is Claim.SMALLEST
        assert is_smallest == (ship is Shipping.EAGER)
        if is_smallest:
            assert len(result) == len(expected.rows)
        else:
            assert len(result) >= len(expected.rows)


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
    assert remembered(absorption) == length * count - 2
    assert absorption.step((), [Grounded(2 * 4, (2 * length,), (2 * 4 + 1,))])[0] == {2 * 4}
    assert absorption._functions.keys() == own - {2 * 5} | {2 * length}
