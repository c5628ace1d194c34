"""One derivation of each row: over its rows of tables all rows are derived again, at every moment.

Programs and tables are those of `test_programs`. After every batch the fragments told are recounted
from ranks by the definition, and the rows are derived anew from the tables' rows in them, and in
wider sketches. By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import product

import numpy as np
import pytest

from impctl.engine.fixpoint import frontier
from impctl.engine.tags import RowTags, SetTags
from tests.engine.fixpoint.test_programs import (
    NODES,
    NOTHING,
    added,
    difference,
    negated,
    ranked_as_defined,
    some_change,
    some_tables,
    table_by_table,
)
from tests.support.node_kinds import KINDS
from tests.support.random_cases import random_seeds
from tests.support.recursive_circuits import FRAGMENTS, Recursive, cut, recursive
from tests.support.reference_fixpoint import (
    BAGS,
    PROGRAMS,
    Derivation,
    Row,
    Rules,
    Tables,
    least_fixpoint,
    levels_of,
)

LAST = len(FRAGMENTS) + 1
Sketch = Mapping[int, Iterable[int]]
"""Fragments by access."""

cases = pytest.mark.parametrize(
    ("program", "kind"), [(program, kind) for program in PROGRAMS for kind in KINDS]
)


def over(rules: Rules, sketch: Sketch) -> Rules:
    """The program over the tables' rows in the sketch alone."""

    def kept(tables: Tables, rows: frozenset[Row]) -> Iterable[Derivation]:
        return (
            one
            for one in rules(tables, rows)
            if all(cut(leaf) in sketch.get(access, ()) for access, leaf in one.leaves)
        )

    return kept


def order_of(derivation: Derivation) -> tuple[object, ...]:
    """Those without a body first, then by the fragments of one access after the other."""
    result = {access: cut(leaf) for access, leaf in derivation.leaves}
    return (bool(derivation.bodies), *(result.get(access, -1) for access in range(3)))


def recounted(derivations: Iterable[Derivation], ranks: Mapping[Row, int]) -> Counter[object]:
    """The fragments of the least derivation of each row, of those of lower rank."""
    best: dict[Row, Derivation] = {}
    for one in derivations:
        if all(ranks[body] < ranks[one.head] for body in one.bodies):
            held = best.setdefault(one.head, one)
            if order_of(one) < order_of(held):
                best[one.head] = one
    return Counter((access, cut(leaf)) for one in best.values() for access, leaf in one.leaves)


def check(made: Recursive, program: str, tables: Tables, rng: random.Random) -> frozenset[Row]:
    """That the rows are right, and over what is told of their derivations too; the rows."""
    ranks, derivations = ranked_as_defined(made, program, tables)
    rows = frozenset(ranks)
    fragments = made.fragments()
    assert fragments == recounted(derivations, ranks)
    for wider in (0.0, 0.3):
        sketch = {
            access: {f for f in range(LAST + 1) if (access, f) in fragments or rng.random() < wider}
            for access in range(made.accesses)
        }
        assert least_fixpoint(over(PROGRAMS[program], sketch), tables) == rows
    return rows


@pytest.mark.slow
@cases
@random_seeds(1, 3, 100)
def test_over_the_rows_chosen_all_rows_are_derived(program: str, kind: str, seed: int) -> None:
    rng = random.Random(f"chosen {program} {kind} {seed}")
    made = recursive(program, kind, chooses=True)
    tables: Mapping[str, Counter[Row]] = NOTHING
    rows: frozenset[Row] = frozenset()
    for _ in range(6):
        change = some_change(rng, tables, NODES[program], rng.choice((1, 4, 9)))
        tables = added(tables, change)
        delta = made.step(change)
        after = check(made, program, tables, rng)
        assert delta == difference(after, rows)
        rows = after
        if rng.random() < 0.3:
            made = made.restarted(recursive(program, kind, chooses=True))
    assert made.step(negated(tables)) == difference(frozenset(), rows)
    assert not made.ranked()
    assert not made.fragments()
    assert not len(made.fixpoint._choices.index.whole())


@pytest.mark.slow
@cases
@random_seeds(1, 2, 20)
def test_filled_or_stepped_each_row_has_a_choice(program: str, kind: str, seed: int) -> None:
    rng = random.Random(f"filled {program} {kind} {seed}")
    tables = some_tables(rng, program)
    stepped, filled = (recursive(program, kind, chooses=True) for _ in range(2))
    stepped.step(tables)
    check(stepped, program, tables, rng)
    table_by_table(filled, tables, rng)
    check(filled, program, tables, rng)


def test_a_choice_is_kept_where_rows_stay_and_moves_where_it_goes() -> None:
    """CE-R4: 1 -> 2 (0), 1 -> 3 (0), 2 -> 4 (1), 3 -> 4 (2); then 2 -> 4 goes."""
    links = Counter({(1, 2, 0): 1, (1, 3, 0): 1, (2, 4, 1): 1, (3, 4, 2): 1})
    tables = {"links": links, "seeds": Counter({(1, 0): 1})}
    made = recursive("reach", chooses=True)
    made.step(tables)
    chosen = {1: {0, 1}, 0: {0}}
    assert made.fragments() == {(0, 0): 1, (1, 0): 2, (1, 1): 1}
    after = {**tables, "links": links - Counter({(2, 4, 1): 1})}
    stale = least_fixpoint(over(PROGRAMS["reach"], chosen), after)
    assert stale == {(1,), (2,), (3,)}, "the sketch left as it is lacks a row"
    assert not made.step({"links": Counter({(2, 4, 1): -1}), "seeds": Counter()})
    assert made.fragments() == {(0, 0): 1, (1, 0): 2, (1, 2): 1}, "and T stays"
    assert least_fixpoint(PROGRAMS["reach"], after) == {(1,), (2,), (3,), (4,)}


def test_one_derivation_is_too_few_for_a_bag() -> None:
    """CE-R5: two ways to 4, one of them chosen: the answer counts both."""
    links = Counter({(1, 2, 0): 1, (1, 3, 0): 1, (2, 4, 1): 1, (3, 4, 2): 1})
    tables = {"links": links, "seeds": Counter({(1, 0): 1})}
    every, _ = levels_of(BAGS["reach"], tables, 9, 99)
    some, _ = levels_of(over(BAGS["reach"], {0: {0}, 1: {0, 1}}), tables, 9, 99)
    assert (sum(every, Counter())[4,], sum(some, Counter())[4,]) == (2, 1)


def test_a_derivation_of_a_body_that_returned_later_is_not_low() -> None:
    """2 -> 3 is chosen for 3. Then 2 loses its ground and returns by 3: over its old rank it would
    still look low, and the two would keep each other."""
    tables = {
        "links": Counter({(1, 2, 0): 1, (2, 3, 0): 1, (3, 2, 0): 1, (1, 3, 3): 1}),
        "seeds": Counter({(1, 0): 1}),
    }
    made = recursive("reach", chooses=True)
    rng = random.Random(1)
    made.step({**tables, "links": tables["links"] - Counter({(1, 3, 3): 1})})
    made.step({"links": Counter({(1, 3, 3): 1}), "seeds": Counter()})
    tables["links"] -= Counter({(1, 2, 0): 1})
    made.step({"links": Counter({(1, 2, 0): -1}), "seeds": Counter()})
    check(made, "reach", tables, rng)
    assert made.fragments()[1, 3] == 1


def test_a_row_whose_rank_alone_changed_chooses_anew() -> None:
    """Most rows go, so that ranks begin again: those of 1, 2 and 3 are what they were, that of 4,
    which came by 3, is lower now: 3 came after it."""
    others = range(10, 31)
    links = Counter({(1, 2, 1): 1, (2, 3, 1): 1, (3, 4, 0): 1, (1, 10, 1): 1})
    links.update({(10, other, 1): 1 for other in others})
    tables = {"links": links, "seeds": Counter({(1, 0): 1})}
    made = recursive("reach", chooses=True)
    made.step(tables)
    made.step({"links": Counter({(1, 4, 3): 1}), "seeds": Counter()})
    links[1, 4, 3] += 1
    before = {row: rank for row, (rank, _, _) in made.ranked().items()}
    assert made.fragments()[1, 0] == 1
    made.step({"links": Counter({(1, 10, 1): -1}), "seeds": Counter()})
    tables["links"] = links - Counter({(1, 10, 1): 1})
    check(made, "reach", tables, random.Random(2))
    after = {row: rank for row, (rank, _, _) in made.ranked().items()}
    assert [row for row in after if after[row] != before[row]] == [(4,)]
    assert made.fragments()[1, 3] == 1


def test_sets_are_ordered_as_their_lists_whatever_their_form() -> None:
    rng = random.Random(3)
    for _ in range(200):
        most = rng.choice((1, 1, 3))
        lists = [
            sorted(rng.sample((0, 1, 2, 255, 256, 70_000), rng.randint(0, most))) for _ in range(9)
        ]
        sizes = [0, *map(len, lists)]
        tag = SetTags(
            np.cumsum(sizes, dtype=np.int64), np.array(sum(lists, []), dtype=np.int32)
        ).take(np.arange(1, 9))
        tolist = frontier._order_of(tag).tolist()
        pairs = list(zip(lists[1:], tolist, strict=True))
        for (one, a), (other, b) in product(pairs, pairs):
            assert ((one > other) - (one < other)) == ((a > b) - (a < b))
    rows = RowTags(np.array([3, 1, 3], dtype=np.int32))
    assert frontier._order_of(rows).tolist() == [3, 1, 3]
