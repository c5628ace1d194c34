"""Recursive programs over random tables and batches, compared with their definition."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from itertools import product

import numpy as np
import pytest

from impctl.data.schema import LONG
from impctl.engine.circuit import Circuit
from impctl.engine.fixpoint import frontier
from impctl.engine.fixpoint.single_join import THIN
from impctl.engine.join import JoinOperator, Side
from impctl.engine.linear import ProjectOperator
from impctl.engine.operator import LEVEL_LIMITS, LevelLimits, Limits
from impctl.engine.operator import LEVEL_LIMITS as LIMITS
from impctl.engine.tags import RowTags, SetTags
from impctl.errors import CountBelowZeroError, UnsupportedError
from impctl.expr.nodes import ColumnRef
from tests.support.random_cases import random_seeds
from tests.support.recursive_circuits import (
    BAGS,
    FRAGMENTS,
    KINDS,
    PROGRAMS,
    Beyond,
    Derivation,
    Recursive,
    Row,
    Rules,
    Tables,
    cut,
    least_fixpoint,
    levels_of,
    low_weights,
    range_ids_of,
    recursive,
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
THINS = (0, 2, 10**9)
"""Sizes of fronts up to which they are processed row by row: none, small, all."""
every_thin = pytest.mark.parametrize("thin", THINS)


class Mode(StrEnum):
    """What a fixpoint stores."""

    SET = "set"
    CHOSEN = "chosen"  # A set, with one derivation of each row
    BAG = "bag"


SMALL = LevelLimits(levels=5, rows=400)
CASES = [
    *((Mode.SET, *case) for case in product(PROGRAMS, KINDS)),
    *((Mode.BAG, *case) for case in product(BAGS, ("numbers", "collisions", "texts"))),
    *(
        pytest.param(Mode.CHOSEN, *case, marks=pytest.mark.slow)
        for case in product(PROGRAMS, KINDS)
    ),
]
every_case = pytest.mark.parametrize(("mode", "program", "kind"), CASES)

Change = Mapping[str, Counter[Row]]
ProgramTables = dict[str, Counter[Row]]
NOTHING: ProgramTables = {"links": Counter(), "seeds": Counter()}


def some_row(rng: random.Random, name: str, nodes: int) -> Row:
    """A random row of a table; cycles and self-loops are likely, and NULLs possible."""
    ends = [rng.randrange(nodes) if rng.random() > 0.06 else None for _ in "ab"]
    range_id = rng.choice((None, 0, 1, 2, 3))
    return (*ends[: 1 + (name == "links")], range_id)


def some_change(rng: random.Random, tables: Change, nodes: int, most: int) -> ProgramTables:
    """Inserted rows, some with copies, and deleted rows; a row may be in both."""
    change: ProgramTables = {}
    for name, rows in tables.items():
        counts: Counter[Row] = Counter()
        for _ in range(rng.randint(0, most if name == "links" else 2)):
            counts[some_row(rng, name, nodes)] += rng.choice((1, 1, 1, 2))
        present = sorted(rows.elements(), key=repr)
        for row in rng.sample(present, min(len(present), rng.randint(0, most))):
            counts[row] -= 1
        change[name] = Counter({row: weight for row, weight in counts.items() if weight})
    return change


def added(tables: Change, change: Change) -> ProgramTables:
    """The tables after a change."""
    result = {name: Counter(table) for name, table in tables.items()}
    for name, rows in change.items():
        result[name].update(rows)
        result[name] = +result[name]
    return result


def negated(tables: Change) -> ProgramTables:
    return {name: Counter({row: -n for row, n in rows.items()}) for name, rows in tables.items()}


def row_by_row(recursion: Recursive, tables: Change, rng: random.Random) -> Counter[Row]:
    """Step for each row of the tables; return the inserted result rows."""
    steps = [(name, row, n) for name, result in tables.items() for row, n in result.items()]
    inserted: Counter[Row] = Counter()
    for name, row, weight in rng.sample(steps, len(steps)):
        inserted.update(recursion.step({**NOTHING, name: Counter({row: weight})}))
    return Counter({row: n for row, n in inserted.items() if n})


def table_by_table(recursion: Recursive, tables: Change, rng: random.Random) -> Counter[Row]:
    """Fill table by table, as a capture does; return the result rows."""
    recursion.circuit.fill(True)
    for name in rng.sample(["links", "seeds"], 2):
        assert not recursion.step({**NOTHING, name: tables[name]})
    result: Counter[Row] = Counter()
    for batch in recursion.circuit.filled():
        result.update(recursion.counted(batch))
    recursion.circuit.fill(False)
    return result


KEYS = {
    "reach": (0,),
    "right-linear": (0,),
    "left-linear": (1,),
    "two keys": (0, 1),
    "same generation": (0,),
    "two branches": (0,),
}
"""The columns on which the step joins the fixpoint's rows, if it stores them once."""


def check(
    recursion: Recursive,
    program: str,
    tables: Change,
    mode: Mode = Mode.SET,
    limits: LevelLimits = SMALL,
) -> Counter[Row]:
    """Assert that all state matches the definition; return the rows."""
    if mode is Mode.BAG:
        levels, derivations = levels_of(BAGS[program], tables, limits.levels, limits.rows)
        rows = sum(levels, Counter[Row]())
        expected = {
            (row, index): n for index, level in enumerate(levels) for row, n in level.items()
        }
        assert recursion.levelled() == expected
        assert recursion.circuit.counters() == {"fix.count": rows.total()}
    else:
        ranks, derivations = ranked_as_defined(recursion, program, tables)
        rows = Counter(list(ranks))
        if mode is Mode.SET and program in KEYS:
            expected_by_keys = {
                (*row, rank): 1
                for row, rank in ranks.items()
                if all(row[index] is not None for index in KEYS[program])
            }
            assert recursion.by_keys() == [expected_by_keys]
    assert recursion.rows_of(recursion.fixpoint.output()) == rows
    if mode is Mode.CHOSEN:
        check_choices(recursion, program, tables, derivations, ranks)
    else:
        assert recursion.ranges() == range_ids_of(derivations, cut)
    return rows


def ranked_as_defined(
    recursion: Recursive, program: str, tables: Change
) -> tuple[dict[Row, int], list[Derivation]]:
    """Assert that rows and derivations match the definition; return ranks and derivations."""
    rows = least_fixpoint(PROGRAMS[program], tables)
    derivations = list(PROGRAMS[program](tables, rows))
    ranks, every = ranks_of(recursion), weights_of(derivations)
    assert ranks.keys() == rows
    low = low_weights(derivations, ranks)
    assert all(ranks[row] > 0 < low[row] for row in rows), "each has a ground"
    assert recursion.ranked() == {row: (ranks[row], every[row], low[row]) for row in rows}
    return ranks, derivations


def check_choices(
    recursion: Recursive,
    program: str,
    tables: Tables,
    derivations: Iterable[Derivation],
    ranks: Mapping[Row, int],
) -> None:
    """Assert that the least derivation of each row is reported.

    All rows must be derived from the reported ranges, and from a superset of them.
    """
    ranges = recursion.ranges()
    assert ranges == recounted(derivations, ranks)
    rng = random.Random(repr(ranges))
    for wider in (0.0, 0.3):
        sketch = {
            access: {f for f in range(LAST + 1) if (access, f) in ranges or rng.random() < wider}
            for access in range(recursion.accesses)
        }
        assert least_fixpoint(over(PROGRAMS[program], sketch), tables) == ranks.keys()


def difference(after: Counter[Row], before: Counter[Row]) -> Counter[Row]:
    counts = Counter(after)
    counts.subtract(before)
    return Counter({row: n for row, n in counts.items() if n})


def stored_state(recursion: Recursive, mode: Mode = Mode.SET) -> object:
    """All state except ranks and what depends on them, with the counts at the root."""
    if mode is Mode.BAG:
        return recursion.levelled(), recursion.ranges(), recursion.circuit.counters()
    every = {row: every for row, (_, every, _) in recursion.ranked().items()}
    return every, recursion.ranges() if mode is Mode.SET else None


def is_within(mode: Mode, program: str, tables: Tables) -> bool:
    """Whether the result by definition is within the limits."""
    try:
        if mode is Mode.BAG:
            levels_of(BAGS[program], tables, SMALL.levels, SMALL.rows)
    except Beyond:
        return False
    return True


class Drawn:
    """Random tables and changes of one program, and its circuits."""

    def __init__(self, label: str, mode: Mode, program: str, kind: str, seed: int) -> None:
        self.rng = random.Random(f"{label} {mode} {program} {kind} {seed}")
        self._mode, self._program, self._kind = mode, program, kind
        is_bag = mode is Mode.BAG
        self._nodes = self.rng.choice((4, 6, 9)) if is_bag else NODES[program]
        self._most = 5 if is_bag else 12
        self._limits = SMALL if is_bag else Limits()
        self.thin = self.rng.choice(THINS)

    def fresh(self, thin: int | None = None) -> Recursive:
        thin, is_chosen = self.thin if thin is None else thin, self._mode is Mode.CHOSEN
        return recursive(self._program, self._kind, self._limits, thin, chooses=is_chosen)

    def change(self, tables: Change, most: int) -> ProgramTables:
        return some_change(self.rng, tables, self._nodes, most)

    def change_within(self, tables: Change, most: int) -> ProgramTables:
        while True:
            change = self.change(tables, most)
            if is_within(self._mode, self._program, added(tables, change)):
                return change

    def tables(self) -> ProgramTables:
        return self.change_within(NOTHING, self._most)


@pytest.mark.slow
@every_case
@random_seeds(1, 1, 100)
def test_every_batch_matches_the_definition(mode: Mode, program: str, kind: str, seed: int) -> None:
    drawn = Drawn("every batch", mode, program, kind, seed)
    recursion, tables, rows = drawn.fresh(), NOTHING, Counter[Row]()
    for _ in range(12 if mode is Mode.BAG else 6):
        change = drawn.change(tables, drawn.rng.choice((1, 2, 4, 9)))
        after = added(tables, change)
        recursion.save()
        counters = recursion.circuit.counters()
        if not is_within(mode, program, after):
            # If there are too many rows and too many levels, either may be reported.
            with pytest.raises(UnsupportedError, match="reaches its limit of"):
                recursion.step(change)
            recursion = recursion.gone_on(drawn.fresh(), counters)
            assert check(recursion, program, tables, mode) == rows
            continue
        before, delta, tables = rows, recursion.step(change), after
        rows = check(recursion, program, tables, mode)
        assert delta == difference(rows, before)
        if drawn.rng.random() < 0.3:
            recursion = recursion.restarted(drawn.fresh())
    assert recursion.step(negated(tables)) == difference(Counter(), rows)
    assert not (recursion.levelled() if mode is Mode.BAG else recursion.ranked())
    assert not recursion.ranges()
    assert mode is not Mode.CHOSEN or not len(recursion.fixpoint._choices.index.whole())


@every_case
@random_seeds(1, 1, 30)
def test_state_does_not_depend_on_batches(mode: Mode, program: str, kind: str, seed: int) -> None:
    drawn = Drawn("batches", mode, program, kind, seed)
    tables, rng = drawn.tables(), drawn.rng
    whole, parts, filled = (drawn.fresh(rng.choice(THINS)) for _ in range(3))
    whole.step(tables)
    rows = check(whole, program, tables, mode)
    assert row_by_row(parts, tables, rng) == rows
    assert stored_state(parts, mode) == stored_state(whole, mode)
    assert table_by_table(filled, tables, rng) == rows
    check(filled, program, tables, mode)


@every_case
@random_seeds(1, 1, 30)
def test_a_batch_and_its_negative_cancel(mode: Mode, program: str, kind: str, seed: int) -> None:
    drawn = Drawn("negative", mode, program, kind, seed)
    tables, recursion = drawn.tables(), drawn.fresh()
    recursion.step(tables)
    before = stored_state(recursion, mode)
    change = drawn.change_within(tables, 6)
    forward = recursion.step(change)
    check(recursion, program, added(tables, change), mode)
    backward = recursion.step(negated(change))
    assert stored_state(recursion, mode) == before
    assert Counter({row: -n for row, n in forward.items()}) == backward
    check(recursion, program, tables, mode)
    assert not recursion.step(NOTHING)
    assert stored_state(recursion, mode) == before


def tables_of(
    *links: tuple[int, int], seeds: tuple[int, ...] = (1,), weight: int = 1
) -> ProgramTables:
    return {
        "links": Counter({(*link, 0): weight for link in links}),
        "seeds": Counter({(seed, 0): weight for seed in seeds}),
    }


def without(tables: ProgramTables, deleted: ProgramTables) -> ProgramTables:
    return {name: tables[name] - deleted[name] for name in tables}


def filled(
    tables: ProgramTables,
    limits: Limits = Limits(),  # noqa: B008 - a value
    thin: int = THIN,
) -> Recursive:
    recursion = recursive("reach", limits=limits, thin=thin)
    recursion.step(tables)
    return recursion


def ranks_of(recursion: Recursive) -> dict[Row, int]:
    return {row: rank for row, (rank, _, _) in recursion.ranked().items()}


@every_thin
def test_a_cycle_dies_with_its_ground(thin: int) -> None:
    """CE-R7: 1 -> 2 -> 3 -> 2; without 1 -> 2, rows 2 and 3 only derive each other.

    Counting derivations alone would keep both.
    """
    tables = tables_of((1, 2), (2, 3), (3, 2))
    recursion = filled(tables, thin=thin)
    deleted = tables_of((1, 2), seeds=())
    assert recursion.step(negated(deleted)) == Counter({(2,): -1, (3,): -1})
    remaining = without(tables, deleted)
    assert check(recursion, "reach", remaining) == {(1,): 1}


@every_thin
def test_a_row_derived_another_way_is_no_change(thin: int) -> None:
    """3 is derived from 2; without that link it is removed, then derived from 4."""
    tables = tables_of((1, 2), (2, 3), (1, 5), (5, 4), (4, 3), (3, 6))
    recursion = filled(tables, thin=thin)
    before = ranks_of(recursion)
    deleted = tables_of((2, 3), seeds=())
    assert recursion.step(negated(deleted)) == Counter()
    after = ranks_of(recursion)
    assert {row for row in before if before[row] != after[row]} == {(3,), (6,)}
    check(recursion, "reach", without(tables, deleted))


@every_thin
def test_a_replaced_link_removes_no_row(thin: int) -> None:
    """A new link derives the row that the deleted one derived, so its rank stays."""
    tables = tables_of((1, 2), (1, 3), (2, 4), (4, 5))
    recursion = filled(tables, thin=thin)
    before = ranks_of(recursion)
    change = negated(tables_of((2, 4), seeds=()))
    change["links"][3, 4, 0] = 1
    assert recursion.step(change) == Counter()
    assert ranks_of(recursion) == before


@every_thin
def test_ranks_restart_only_after_large_deletions(thin: int) -> None:
    """A chain is cut at its head; a longer path, added later, still reaches it."""
    chain = [(n, n + 1) for n in range(1, 40)]
    recursion = filled(tables_of(*chain), thin=thin)
    recursion.step(tables_of((1, 200), (200, 2), seeds=()))
    assert max(ranks_of(recursion).values()) == 41
    deleted = tables_of((1, 2), seeds=())
    assert recursion.step(negated(deleted)) == Counter()
    assert recursion.fixpoint.recomputations == 1, "as a run reports"
    check(recursion, "reach", without(tables_of(*chain, (1, 200), (200, 2)), deleted))
    assert ranks_of(recursion)[(200,)] == 2, "its rank was 41 before"
    assert recursion.circuit.counters() == {"fix.stage": 41, "fix.count": 41}
    # The same far down the chain: only the rows after the cut get new ranks.
    chain = [(n, n + 1) for n in range(1, 40)]
    recursion = filled(tables_of(*chain), thin=thin)
    recursion.step(tables_of((1, 200), (200, 30), seeds=()))
    deleted = tables_of((29, 30), seeds=())
    assert recursion.step(negated(deleted)) == Counter()
    assert recursion.fixpoint.recomputations == 0
    ranks = ranks_of(recursion)
    assert [ranks[n,] for n in (1, 29, 200, 30, 40)] == [1, 29, 41, 42, 52]
    check(recursion, "reach", without(tables_of(*chain, (1, 200), (200, 30)), deleted))


@every_thin
def test_limits_raise_named_errors(thin: int) -> None:
    chain = tables_of(*[(n, n + 1) for n in range(1, 10)])
    assert len(filled(chain, Limits(rounds=10, rows=10), thin).ranked()) == 10
    with pytest.raises(UnsupportedError, match="limit of 9 rounds") as caught:
        filled(chain, Limits(rounds=9), thin)
    assert (caught.value.code, caught.value.exit_code) == ("recursion_limit", 3)
    with pytest.raises(UnsupportedError, match="limit of 9 rows"):
        filled(chain, Limits(rows=9), thin)


def test_reaching_a_limit_keeps_stored_state() -> None:
    """No checkpoint is written after it, and the previous one can be continued."""
    recursion = filled(tables_of((1, 2)), Limits(rows=3))
    recursion.save()
    counters = recursion.circuit.counters()
    assert counters == {"fix.stage": 2, "fix.count": 2}
    with pytest.raises(UnsupportedError):
        recursion.step(tables_of((2, 3), (3, 4), seeds=()))
    fresh = recursion.gone_on(recursive("reach", limits=Limits(rows=3)), counters)
    assert fresh.step(tables_of((2, 3), seeds=())) == Counter({(3,): 1})


@pytest.mark.parametrize("thin", [*THINS, None])
def test_deleting_missing_rows_is_an_error(thin: int | None) -> None:
    """From a set, with fronts of any size, and from a bag."""
    recursion = (
        filled_bag(tables_of((1, 2))) if thin is None else filled(tables_of((1, 2)), thin=thin)
    )
    with pytest.raises(CountBelowZeroError, match="never contained"):
        recursion.step(negated(tables_of((1, 2), weight=2)))


@every_thin
def test_negative_derivation_weights_fail(thin: int) -> None:
    """The fixpoint itself raises it, before anything is counted above."""
    for *before, last in ([((1, 2, 0), -2)], [((5, 6, 0), -1), ((2, 5, 0), 1)]):
        recursion = filled(tables_of((1, 2)), thin=thin)
        for link, weight in before:
            recursion.circuit.step(None, recursion.read("links", Counter({link: weight})))
        with pytest.raises(CountBelowZeroError, match="ways to derive rows"):
            recursion.circuit.step(None, recursion.read("links", Counter(dict([last]))))


def test_keeps_like_compares_constants_and_limits() -> None:
    """A change inside the step cannot be compensated above it."""
    one, other = recursive("reach"), recursive("two branches")
    assert one.fixpoint.keeps_like(recursive("reach").fixpoint)
    assert not one.fixpoint.keeps_like(other.fixpoint)
    collisions = recursive("two branches", "collisions")
    assert not other.fixpoint.keeps_like(collisions.fixpoint), "its constant differs"
    assert other.fixpoint.keeps_like(recursive("two branches").fixpoint)
    bag = recursive("reach", limits=LIMITS)
    assert bag.fixpoint.keeps_like(recursive("reach", limits=LIMITS).fixpoint)
    assert not bag.fixpoint.keeps_like(recursive("both ways", limits=LIMITS).fixpoint)
    assert not bag.fixpoint.keeps_like(one.fixpoint)
    assert not one.fixpoint.keeps_like(bag.fixpoint)
    assert not bag.fixpoint.keeps_like(recursive("reach", limits=LevelLimits(levels=7)).fixpoint)


@pytest.mark.parametrize("limits", [Limits(), LEVEL_LIMITS])
def test_partners_of_delayed_rows_are_not_released(limits: Limits | LevelLimits) -> None:
    """A fixpoint outputs its rows last, and only then do they look for partners."""
    recursion = recursive("reach", limits=limits)
    others = Side((("a", LONG), ("b", LONG)), ("a",), 1, is_distant=True, is_held=True)
    join = JoinOperator("above", Side((("t.0", LONG),), ("t.0",), 0), others, [False])
    project = ProjectOperator([("t.0", ColumnRef("a", LONG))])
    circuit = Circuit([project, recursion.fixpoint, join], [(-1,), (0, -2), (1, -3)])
    links = recursion.read("links", Counter({(1, 2, 0): 1}))
    circuit.fill(True)
    circuit.step(None, None, links)
    circuit.ended([False, False, True])
    circuit.step(recursion.read("seeds", Counter({(1, 0): 1})), links, None)
    circuit.ended([True, True, True])
    (result,) = circuit.filled()
    assert result.columns["b"].values.tolist() == [2]


def filled_bag(tables: ProgramTables, limits: LevelLimits = LIMITS) -> Recursive:
    recursion = recursive("reach", limits=limits)
    recursion.step(tables)
    return recursion


def chain(last: int) -> ProgramTables:
    """One row at each of `last` levels."""
    return tables_of(*[(n, n + 1) for n in range(1, last)])


def test_limits_are_those_of_spark() -> None:
    """The base is the first level. The row limit counts copies, and reaching it is an error."""
    assert LevelLimits() == LevelLimits(levels=100, rows=1_000_000)
    twice, nothing = tables_of((1, 2), weight=2), LevelLimits(levels=0, rows=1)
    assert len(filled_bag(chain(100)).levelled()) == 100
    filled_bag(chain(9), LevelLimits(levels=9, rows=10))
    assert filled_bag(twice, LevelLimits(rows=7)).levelled() == {((1,), 0): 2, ((2,), 1): 4}
    assert not filled_bag(tables_of((1, 2), seeds=()), nothing).levelled(), "no row, no limit"
    for tables, limits, match in (
        (chain(101), LIMITS, "limit of 100 levels"),
        (chain(9), LevelLimits(levels=9, rows=9), "limit of 9 rows"),
        (twice, LevelLimits(rows=6), "limit of 6 rows"),
        (tables_of(), nothing, "0 levels"),
    ):
        with pytest.raises(UnsupportedError, match=match) as caught:
            filled_bag(tables, limits)
        assert (caught.value.code, caught.value.exit_code) == ("recursion_limit", 3)
    with pytest.raises(UnsupportedError) as caught:
        filled_bag(chain(101))
    assert "MAX RECURSION LEVEL" in str(caught.value.hint)


def test_limits_apply_to_final_rows_and_levels() -> None:
    """A step adds rows on a level too many, and deletes those they are derived from."""
    recursion = filled_bag(chain(3), LevelLimits(levels=3, rows=4))
    change = negated(tables_of((1, 2), seeds=()))
    change["links"][3, 4, 0] = 1
    change["links"][1, 3, 0] = 1
    assert recursion.step(change) == Counter({(2,): -1, (4,): 1})
    assert recursion.levelled() == {((1,), 0): 1, ((3,), 1): 1, ((4,), 2): 1}
    recursion = filled_bag(chain(3), LevelLimits(rows=4))
    change = negated(tables_of((1, 2), seeds=()))
    change["seeds"].update({(7, 0): 1, (8, 0): 1})
    assert recursion.step(change) == Counter({(2,): -1, (3,): -1, (7,): 1, (8,): 1})
    with pytest.raises(UnsupportedError, match="limit of 4 rows"):
        recursion.step(tables_of((7, 9), seeds=()))


def test_a_reachable_cycle_exceeds_the_limit() -> None:
    recursion = filled_bag(tables_of((1, 2), (2, 3)), LevelLimits(levels=50))
    with pytest.raises(UnsupportedError, match="limit of 50 levels"):
        recursion.step(tables_of((3, 1), seeds=()))
    # CE-R7: a row's weight comes only from the level below, so no cycle keeps itself.
    tables = tables_of((1, 2), (2, 9))
    recursion = filled_bag(tables, LevelLimits(levels=4))
    deleted = tables_of((1, 2), seeds=())
    change = negated(deleted)
    change["links"][9, 2, 0] = 1
    assert recursion.step(change) == Counter({(2,): -1, (9,): -1})
    remaining = without(tables, deleted)
    assert check(recursion, "reach", remaining, Mode.BAG, LevelLimits(levels=4)) == {(1,): 1}


def test_zeros_join_but_stay_distinct() -> None:
    """0.0 and -0.0 join with the same rows, but are inserted and deleted separately."""
    recursion = recursive("reach", "doubles", LIMITS)
    # At the second position of a batch, node 0 is -0.0.
    recursion.step({"links": Counter(), "seeds": Counter({(0, 0): 1})})
    recursion.step({"links": Counter(), "seeds": Counter({(1, 0): 1, (0, 1): 1})})
    signs = [str(v) for v in recursion.fixpoint.output().columns["t.0"].values.tolist()]
    assert sorted(signs) == ["-0.0", "0.0", "1.5"]
    assert recursion.step({"links": Counter({(0, 3, 0): 1}), "seeds": Counter()}) == {(3,): 2}
    recursion = recursion.restarted(recursive("reach", "doubles", LIMITS))
    assert recursion.step({"links": Counter(), "seeds": Counter({(0, 0): -1})}) == {
        (0,): -1,
        (3,): -1,
    }
    with pytest.raises(CountBelowZeroError):
        recursion.step({"links": Counter(), "seeds": Counter({(0, 0): -1})})


LAST = len(FRAGMENTS) + 1
Sketch = Mapping[int, Iterable[int]]
"""Ranges by access."""


def over(rules: Rules, sketch: Sketch) -> Rules:
    """The program over only those rows of the tables that are in the sketch."""

    def restricted(tables: Tables, rows: frozenset[Row]) -> Iterable[Derivation]:
        return (
            one
            for one in rules(tables, rows)
            if all(cut(leaf) in sketch.get(access, ()) for access, leaf in one.leaves)
        )

    return restricted


def order_of(derivation: Derivation) -> tuple[object, ...]:
    """Derivations without a body first, then by the ranges of each access."""
    result = {access: cut(leaf) for access, leaf in derivation.leaves}
    return (bool(derivation.bodies), *(result.get(access, -1) for access in range(3)))


def recounted(derivations: Iterable[Derivation], ranks: Mapping[Row, int]) -> Counter[object]:
    """The ranges of each row's least derivation from rows of lower rank."""
    best: dict[Row, Derivation] = {}
    for one in derivations:
        if all(ranks[body] < ranks[one.head] for body in one.bodies):
            current = best.setdefault(one.head, one)
            if order_of(one) < order_of(current):
                best[one.head] = one
    return Counter((access, cut(leaf)) for one in best.values() for access, leaf in one.leaves)


TWO_PATHS = Counter({(1, 2, 0): 1, (1, 3, 0): 1, (2, 4, 1): 1, (3, 4, 2): 1})
"""From CE-R4 and CE-R5: 1 -> 2 (0), 1 -> 3 (0), 2 -> 4 (1), 3 -> 4 (2)."""


def test_a_deleted_choice_is_replaced() -> None:
    """CE-R4: 2 -> 4 is deleted."""
    tables = {"links": TWO_PATHS, "seeds": Counter({(1, 0): 1})}
    recursion = recursive("reach", chooses=True)
    recursion.step(tables)
    assert recursion.ranges() == {(0, 0): 1, (1, 0): 2, (1, 1): 1}
    after = {**tables, "links": TWO_PATHS - Counter({(2, 4, 1): 1})}
    stale = least_fixpoint(over(PROGRAMS["reach"], {1: {0, 1}, 0: {0}}), after)
    assert stale == {(1,), (2,), (3,)}, "the old sketch lacks a row"
    assert not recursion.step({"links": Counter({(2, 4, 1): -1}), "seeds": Counter()})
    assert recursion.ranges() == {(0, 0): 1, (1, 0): 2, (1, 2): 1}, "and the rows are unchanged"
    assert least_fixpoint(PROGRAMS["reach"], after) == {(1,), (2,), (3,), (4,)}


def test_a_derivation_from_a_rederived_body_is_not_low() -> None:
    """2 -> 3 is chosen for 3. Then 2 loses its ground and is derived from 3.

    With the old rank of 2 the choice would still look low, and the two would keep each other.
    """
    tables = {
        "links": Counter({(1, 2, 0): 1, (2, 3, 0): 1, (3, 2, 0): 1, (1, 3, 3): 1}),
        "seeds": Counter({(1, 0): 1}),
    }
    recursion = recursive("reach", chooses=True)
    recursion.step({**tables, "links": tables["links"] - Counter({(1, 3, 3): 1})})
    recursion.step({"links": Counter({(1, 3, 3): 1}), "seeds": Counter()})
    tables["links"] -= Counter({(1, 2, 0): 1})
    recursion.step({"links": Counter({(1, 2, 0): -1}), "seeds": Counter()})
    check(recursion, "reach", tables, Mode.CHOSEN)
    assert recursion.ranges()[1, 3] == 1


def test_a_row_with_only_a_new_rank_chooses_again() -> None:
    """Most rows are deleted, so ranks restart: only that of 4 changes.

    4 was derived from 3, but its new rank is below that of 3.
    """
    others = range(10, 31)
    links = Counter({(1, 2, 1): 1, (2, 3, 1): 1, (3, 4, 0): 1, (1, 10, 1): 1})
    links.update({(10, other, 1): 1 for other in others})
    tables = {"links": links, "seeds": Counter({(1, 0): 1})}
    recursion = recursive("reach", chooses=True)
    recursion.step(tables)
    recursion.step({"links": Counter({(1, 4, 3): 1}), "seeds": Counter()})
    links[1, 4, 3] += 1
    before = ranks_of(recursion)
    assert recursion.ranges()[1, 0] == 1
    recursion.step({"links": Counter({(1, 10, 1): -1}), "seeds": Counter()})
    tables["links"] = links - Counter({(1, 10, 1): 1})
    check(recursion, "reach", tables, Mode.CHOSEN)
    after = ranks_of(recursion)
    assert [row for row in after if after[row] != before[row]] == [(4,)]
    assert recursion.ranges()[1, 3] == 1


def test_sets_of_any_form_are_ordered_like_lists() -> None:
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
        order = frontier._order_of(tag).tolist()
        pairs = list(zip(lists[1:], order, strict=True))
        for (one, a), (other, b) in product(pairs, pairs):
            assert ((one > other) - (one < other)) == ((a > b) - (a < b))
    rows = RowTags(np.array([3, 1, 3], dtype=np.int32))
    assert frontier._order_of(rows).tolist() == [3, 1, 3]
