"""Recursive programs over random tables and batches, against their definition.

After every batch: the rows, what came and went, what derives each row (`all`, `low`), and how often
each fragment is used, recounted; and the rows beside those of delete-and-rederive. Then the laws of
operators, which hold but for ranks: how changes come does not matter.
By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from tests.support.node_kinds import KINDS
from tests.support.random_cases import random_seeds
from tests.support.recursive_circuits import Recursive, cut, recursive
from tests.support.reference_fixpoint import (
    PROGRAMS,
    DeleteAndRederive,
    Derivation,
    Row,
    fragments_of,
    least_fixpoint,
    low_weights,
    weights_of,
)

NODES = {
    "reach": 6,
    "right-linear": 5,
    "left-linear": 5,
    "two keys": 4,
    "closure": 4,
    "same generation": 5,
    "two branches": 6,
}
PLAIN = ("reach", "right-linear", "left-linear")
"""Programs whose fronts are followed row by row, where they are few numbers."""
THINS = {"never": 0, "at times": 2, "always": 10**9}
CASES = [
    (program, kind, thin)
    for program in PROGRAMS
    for kind in KINDS
    for thin in (THINS if program in PLAIN and kind in ("numbers", "collisions") else ("at times",))
]
cases = pytest.mark.parametrize(("program", "kind", "thin"), CASES)

Change = Mapping[str, Counter[Row]]
Tables = dict[str, Counter[Row]]
NOTHING: Tables = {"links": Counter(), "seeds": Counter()}


def some_row(rng: random.Random, name: str, nodes: int) -> Row:
    """A row of a table: circles and self-loops are likely, NULLs there."""
    ends = [rng.randrange(nodes) if rng.random() > 0.06 else None for _ in "ab"]
    fragment = rng.choice((None, 0, 1, 2, 3))
    return (*ends[: 1 + (name == "links")], fragment)


def some_change(rng: random.Random, tables: Change, nodes: int, most: int) -> Tables:
    """Rows that come, with copies, and rows that go; some go and come at once."""
    change: Tables = {}
    for name, held in tables.items():
        counts: Counter[Row] = Counter()
        for _ in range(rng.randint(0, most if name == "links" else 2)):
            counts[some_row(rng, name, nodes)] += rng.choice((1, 1, 1, 2))
        there = sorted(held.elements(), key=repr)
        for row in rng.sample(there, min(len(there), rng.randint(0, most))):
            counts[row] -= 1
        change[name] = Counter({row: weight for row, weight in counts.items() if weight})
    return change


def added(tables: Change, change: Change) -> Tables:
    """The tables after a change."""
    result = {name: Counter(held) for name, held in tables.items()}
    for name, rows in change.items():
        result[name].update(rows)
        result[name] = +result[name]
    return result


def negated(tables: Change) -> Tables:
    return {name: Counter({row: -n for row, n in held.items()}) for name, held in tables.items()}


def row_by_row(made: Recursive, tables: Change, rng: random.Random) -> Counter[Row]:
    """Fill by a step for each row of the tables; the rows that came."""
    single = [(name, row, n) for name, result in tables.items() for row, n in result.items()]
    came: Counter[Row] = Counter()
    for name, row, weight in rng.sample(single, len(single)):
        came.update(made.step({**NOTHING, name: Counter({row: weight})}))
    return Counter({row: n for row, n in came.items() if n})


def table_by_table(made: Recursive, tables: Change, rng: random.Random) -> Counter[Row]:
    """Fill as a capture does; the rows that came in the end."""
    made.circuit.fill(True)
    for name in rng.sample(["links", "seeds"], 2):
        assert not made.step({**NOTHING, name: tables[name]})
    result: Counter[Row] = Counter()
    for batch in made.circuit.filled():
        result.update(made.counted(batch))
    made.circuit.fill(False)
    return result


KEYS = {
    "reach": (0,),
    "right-linear": (0,),
    "left-linear": (1,),
    "two keys": (0, 1),
    "same generation": (0,),
    "two branches": (0,),
}
"""The columns by which the step joins the fixpoint's rows, where it keeps them once."""


def check(made: Recursive, program: str, tables: Change) -> frozenset[Row]:
    """That all that is kept is what the definition says; the rows."""
    ranks, derivations = ranked_as_defined(made, program, tables)
    if program in KEYS:
        wanted = {
            (*row, rank): 1
            for row, rank in ranks.items()
            if all(row[at] is not None for at in KEYS[program])
        }
        assert made.by_keys() == [wanted]
    assert made.fragments() == fragments_of(derivations, cut)
    assert made.rows_of(made.fixpoint.output()) == Counter(list(ranks))
    return frozenset(ranks)


def ranked_as_defined(
    made: Recursive, program: str, tables: Change
) -> tuple[dict[Row, int], list[Derivation]]:
    """That the rows, and what derives each, are those of the definition; their ranks, and all
    derivations."""
    rules = PROGRAMS[program]
    rows = least_fixpoint(rules, tables)
    derivations = list(rules(tables, rows))
    ranked = made.ranked()
    assert ranked.keys() == rows
    ranks = {row: rank for row, (rank, _, _) in ranked.items()}
    assert all(rank > 0 for rank in ranks.values())
    assert {row: every for row, (_, every, _) in ranked.items()} == weights_of(derivations)
    low = low_weights(derivations, ranks)
    assert {row: result for row, (_, _, result) in ranked.items()} == low
    assert all(low[row] > 0 for row in rows), "each has ground"
    return ranks, derivations


def difference(after: frozenset[Row], before: frozenset[Row]) -> Counter[Row]:
    return Counter({row: 1 if row in after else -1 for row in after ^ before})


@pytest.mark.slow
@cases
@random_seeds(1, 4, 100)
def test_every_batch_leaves_what_the_definition_says(
    program: str, kind: str, thin: str, seed: int
) -> None:
    rng = random.Random(f"{program} {kind} {seed}")
    made = recursive(program, kind, thin=THINS[thin])
    other = DeleteAndRederive(PROGRAMS[program])
    tables: Tables = NOTHING
    rows: frozenset[Row] = frozenset()
    for _ in range(6):
        change = some_change(rng, tables, NODES[program], rng.choice((1, 4, 9)))
        before, tables = tables, added(tables, change)
        delta = made.step(change)
        after = check(made, program, tables)
        assert delta == difference(after, rows)
        assert other.step(before, tables) == after
        rows = after
        if rng.random() < 0.3:
            made = made.restarted(recursive(program, kind, thin=THINS[thin]))
    assert made.step(negated(tables)) == difference(frozenset(), rows)
    assert not made.ranked()
    assert not made.fragments()


def some_tables(rng: random.Random, program: str) -> dict[str, Counter[Row]]:
    return some_change(rng, NOTHING, NODES[program], 12)


def remembered(made: Recursive) -> object:
    """What is kept but for ranks, and the counts at the root."""
    return {row: every for row, (_, every, _) in made.ranked().items()}, made.fragments()


@cases
@random_seeds(1, 2, 30)
def test_however_rows_come_they_leave_the_same(
    program: str, kind: str, thin: str, seed: int
) -> None:
    rng = random.Random(f"batches {program} {kind} {seed}")
    tables = some_tables(rng, program)
    whole, parts, filled = (recursive(program, kind, thin=THINS[thin]) for _ in range(3))
    whole.step(tables)
    rows = check(whole, program, tables)
    assert row_by_row(parts, tables, rng) == Counter(rows)
    assert remembered(parts) == remembered(whole)
    assert table_by_table(filled, tables, rng) == Counter(rows)
    check(filled, program, tables)


@cases
@random_seeds(1, 2, 30)
def test_a_batch_and_its_negative_leave_nothing(
    program: str, kind: str, thin: str, seed: int
) -> None:
    rng = random.Random(f"negative {program} {kind} {seed}")
    tables = some_tables(rng, program)
    made = recursive(program, kind, thin=THINS[thin])
    made.step(tables)
    before = remembered(made)
    change = some_change(rng, tables, NODES[program], 6)
    there = made.step(change)
    again = made.step(negated(change))
    assert remembered(made) == before
    assert {row: -n for row, n in there.items()} == again
    check(made, program, tables)
    assert not made.step(NOTHING)
    assert remembered(made) == before
