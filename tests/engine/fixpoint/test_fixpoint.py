"""Recursive programs over random tables and batches, against their definition; examples."""

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
"""Rows of a front up to which it is followed row by row: none, the least, all."""
every_way = pytest.mark.parametrize("thin", THINS)


class Mode(StrEnum):
    """What a fixpoint keeps."""

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
    """A row of a table: circles and self-loops are likely, NULLs there."""
    ends = [rng.randrange(nodes) if rng.random() > 0.06 else None for _ in "ab"]
    range_id = rng.choice((None, 0, 1, 2, 3))
    return (*ends[: 1 + (name == "links")], range_id)


def some_change(rng: random.Random, tables: Change, nodes: int, most: int) -> ProgramTables:
    """Rows that come, with copies, and rows that go; some go and come at once."""
    change: ProgramTables = {}
    for name, held in tables.items():
        counts: Counter[Row] = Counter()
        for _ in range(rng.randint(0, most if name == "links" else 2)):
            counts[some_row(rng, name, nodes)] += rng.choice((1, 1, 1, 2))
        there = sorted(held.elements(), key=repr)
        for row in rng.sample(there, min(len(there), rng.randint(0, most))):
            counts[row] -= 1
        change[name] = Counter({row: weight for row, weight in counts.items() if weight})
    return change


def added(tables: Change, change: Change) -> ProgramTables:
    """The tables after a change."""
    result = {name: Counter(held) for name, held in tables.items()}
    for name, rows in change.items():
        result[name].update(rows)
        result[name] = +result[name]
    return result


def negated(tables: Change) -> ProgramTables:
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


def check(
    made: Recursive,
    program: str,
    tables: Change,
    mode: Mode = Mode.SET,
    limits: LevelLimits = SMALL,
) -> Counter[Row]:
    """That all that is kept is what the definition says; the rows."""
    if mode is Mode.BAG:
        levels, derivations = levels_of(BAGS[program], tables, limits.levels, limits.rows)
        rows = sum(levels, Counter[Row]())
        expected = {(row, at): n for at, level in enumerate(levels) for row, n in level.items()}
        assert made.levelled() == expected
        assert made.circuit.counters() == {"fix.count": rows.total()}
    else:
        ranks, derivations = ranked_as_defined(made, program, tables)
        rows = Counter(list(ranks))
        if mode is Mode.SET and program in KEYS:
            wanted = {
                (*row, rank): 1
                for row, rank in ranks.items()
                if all(row[at] is not None for at in KEYS[program])
            }
            assert made.by_keys() == [wanted]
    assert made.rows_of(made.fixpoint.output()) == rows
    if mode is Mode.CHOSEN:
        check_choices(made, program, tables, derivations, ranks)
    else:
        assert made.ranges() == range_ids_of(derivations, cut)
    return rows


def ranked_as_defined(
    made: Recursive, program: str, tables: Change
) -> tuple[dict[Row, int], list[Derivation]]:
    """That the rows, and what derives each, are those of the definition; their ranks, and all
    derivations."""
    rows = least_fixpoint(PROGRAMS[program], tables)
    derivations = list(PROGRAMS[program](tables, rows))
    ranks, every = ranks_of(made), weights_of(derivations)
    assert ranks.keys() == rows
    low = low_weights(derivations, ranks)
    assert all(ranks[row] > 0 < low[row] for row in rows), "each has ground"
    assert made.ranked() == {row: (ranks[row], every[row], low[row]) for row in rows}
    return ranks, derivations


def check_choices(
    made: Recursive,
    program: str,
    tables: Tables,
    derivations: Iterable[Derivation],
    ranks: Mapping[Row, int],
) -> None:
    """That the least derivation of each row is reported, and that over what is reported, and over
    more, all rows are derived."""
    ranges = made.ranges()
    assert ranges == recounted(derivations, ranks)
    rng = random.Random(repr(ranges))
    for wider in (0.0, 0.3):
        sketch = {
            access: {f for f in range(LAST + 1) if (access, f) in ranges or rng.random() < wider}
            for access in range(made.accesses)
        }
        assert least_fixpoint(over(PROGRAMS[program], sketch), tables) == ranks.keys()


def difference(after: Counter[Row], before: Counter[Row]) -> Counter[Row]:
    counts = Counter(after)
    counts.subtract(before)
    return Counter({row: n for row, n in counts.items() if n})


def remembered(made: Recursive, mode: Mode = Mode.SET) -> object:
    """What is kept but for ranks and what depends on them, and the counts at the root."""
    if mode is Mode.BAG:
        return made.levelled(), made.ranges(), made.circuit.counters()
    every = {row: every for row, (_, every, _) in made.ranked().items()}
    return every, made.ranges() if mode is Mode.SET else None


def is_within(mode: Mode, program: str, tables: Tables) -> bool:
    """Whether the definition is within the limits."""
    try:
        if mode is Mode.BAG:
            levels_of(BAGS[program], tables, SMALL.levels, SMALL.rows)
    except Beyond:
        return False
    return True


class Drawn:
    """Changes of the tables of one program, and its circuits."""

    def __init__(self, what: str, mode: Mode, program: str, kind: str, seed: int) -> None:
        self.rng = random.Random(f"{what} {mode} {program} {kind} {seed}")
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
def test_every_batch_leaves_what_the_definition_says(
    mode: Mode, program: str, kind: str, seed: int
) -> None:
    drawn = Drawn("every batch", mode, program, kind, seed)
    made, tables, rows = drawn.fresh(), NOTHING, Counter[Row]()
    for _ in range(12 if mode is Mode.BAG else 6):
        change = drawn.change(tables, drawn.rng.choice((1, 2, 4, 9)))
        after = added(tables, change)
        made.save()
        counters = made.circuit.counters()
        if not is_within(mode, program, after):
            # Where rows are too many and on too many levels, either may be told.
            with pytest.raises(UnsupportedError, match="reaches its limit of"):
                made.step(change)
            made = made.gone_on(drawn.fresh(), counters)
            assert check(made, program, tables, mode) == rows
            continue
        before, delta, tables = rows, made.step(change), after
        rows = check(made, program, tables, mode)
        assert delta == difference(rows, before)
        if drawn.rng.random() < 0.3:
            made = made.restarted(drawn.fresh())
    assert made.step(negated(tables)) == difference(Counter(), rows)
    assert not (made.levelled() if mode is Mode.BAG else made.ranked())
    assert not made.ranges()
    assert mode is not Mode.CHOSEN or not len(made.fixpoint._choices.index.whole())


@every_case
@random_seeds(1, 1, 30)
def test_however_rows_come_they_leave_the_same(
    mode: Mode, program: str, kind: str, seed: int
) -> None:
    drawn = Drawn("batches", mode, program, kind, seed)
    tables, rng = drawn.tables(), drawn.rng
    whole, parts, filled = (drawn.fresh(rng.choice(THINS)) for _ in range(3))
    whole.step(tables)
    rows = check(whole, program, tables, mode)
    assert row_by_row(parts, tables, rng) == rows
    assert remembered(parts, mode) == remembered(whole, mode)
    assert table_by_table(filled, tables, rng) == rows
    check(filled, program, tables, mode)


@every_case
@random_seeds(1, 1, 30)
def test_a_batch_and_its_negative_leave_nothing(
    mode: Mode, program: str, kind: str, seed: int
) -> None:
    drawn = Drawn("negative", mode, program, kind, seed)
    tables, made = drawn.tables(), drawn.fresh()
    made.step(tables)
    before = remembered(made, mode)
    change = drawn.change_within(tables, 6)
    there = made.step(change)
    check(made, program, added(tables, change), mode)
    again = made.step(negated(change))
    assert remembered(made, mode) == before
    assert Counter({row: -n for row, n in there.items()}) == again
    check(made, program, tables, mode)
    assert not made.step(NOTHING)
    assert remembered(made, mode) == before


def tables_of(
    *links: tuple[int, int], seeds: tuple[int, ...] = (1,), weight: int = 1
) -> ProgramTables:
    return {
        "links": Counter({(*link, 0): weight for link in links}),
        "seeds": Counter({(seed, 0): weight for seed in seeds}),
    }


def without(tables: ProgramTables, gone: ProgramTables) -> ProgramTables:
    return {name: tables[name] - gone[name] for name in tables}


def filled(
    tables: ProgramTables,
    limits: Limits = Limits(),  # noqa: B008 - a value
    thin: int = THIN,
) -> Recursive:
    made = recursive("reach", limits=limits, thin=thin)
    made.step(tables)
    return made


def ranks_of(made: Recursive) -> dict[Row, int]:
    return {row: rank for row, (rank, _, _) in made.ranked().items()}


@every_way
def test_a_circle_goes_with_its_ground(thin: int) -> None:
    """CE-R7: 1 -> 2 -> 3 -> 2, then 1 -> 2 goes: 2 and 3 only derive one another. Who counts
    derivations alone keeps both."""
    tables = tables_of((1, 2), (2, 3), (3, 2))
    made = filled(tables, thin=thin)
    gone = tables_of((1, 2), seeds=())
    assert made.step(negated(gone)) == Counter({(2,): -1, (3,): -1})
    left = without(tables, gone)
    assert check(made, "reach", left) == {(1,): 1}


@every_way
def test_a_row_that_leaves_and_comes_back_is_no_change(thin: int) -> None:
    """3 is derived by 2 first; without that link it is taken out, and comes back by 4."""
    tables = tables_of((1, 2), (2, 3), (1, 5), (5, 4), (4, 3), (3, 6))
    made = filled(tables, thin=thin)
    before = ranks_of(made)
    gone = tables_of((2, 3), seeds=())
    assert made.step(negated(gone)) == Counter()
    after = ranks_of(made)
    assert {row for row in before if before[row] != after[row]} == {(3,), (6,)}
    check(made, "reach", without(tables, gone))


@every_way
def test_both_signs_at_once_take_nothing_out(thin: int) -> None:
    """A link that comes saves the row that another one held, so its rank stays."""
    tables = tables_of((1, 2), (1, 3), (2, 4), (4, 5))
    made = filled(tables, thin=thin)
    before = ranks_of(made)
    change = negated(tables_of((2, 4), seeds=()))
    change["links"][3, 4, 0] = 1
    assert made.step(change) == Counter()
    assert ranks_of(made) == before


@every_way
def test_ranks_begin_again_where_much_goes_and_stay_where_less_does(thin: int) -> None:
    """A chain is cut at its head, to which leads another way, found later."""
    chain = [(n, n + 1) for n in range(1, 40)]
    made = filled(tables_of(*chain), thin=thin)
    made.step(tables_of((1, 200), (200, 2), seeds=()))
    assert max(ranks_of(made).values()) == 41
    gone = tables_of((1, 2), seeds=())
    assert made.step(negated(gone)) == Counter()
    assert made.fixpoint.recomputations == 1, "as a run reports"
    check(made, "reach", without(tables_of(*chain, (1, 200), (200, 2)), gone))
    assert ranks_of(made)[(200,)] == 2, "its rank was 41 before, and would be still"
    assert made.circuit.counters() == {"fix.stage": 41, "fix.count": 41}
    # The same far behind: rows before keep their ranks, those after get others.
    chain = [(n, n + 1) for n in range(1, 40)]
    made = filled(tables_of(*chain), thin=thin)
    made.step(tables_of((1, 200), (200, 30), seeds=()))
    gone = tables_of((29, 30), seeds=())
    assert made.step(negated(gone)) == Counter()
    assert made.fixpoint.recomputations == 0
    ranks = ranks_of(made)
    assert [ranks[n,] for n in (1, 29, 200, 30, 40)] == [1, 29, 41, 42, 52]
    check(made, "reach", without(tables_of(*chain, (1, 200), (200, 30)), gone))


@every_way
def test_limits_are_held_and_named(thin: int) -> None:
    chain = tables_of(*[(n, n + 1) for n in range(1, 10)])
    assert len(filled(chain, Limits(rounds=10, rows=10), thin).ranked()) == 10
    with pytest.raises(UnsupportedError, match="limit of 9 rounds") as caught:
        filled(chain, Limits(rounds=9), thin)
    assert (caught.value.code, caught.value.exit_code) == ("recursion_limit", 3)
    with pytest.raises(UnsupportedError, match="limit of 9 rows"):
        filled(chain, Limits(rows=9), thin)


def test_a_limit_leaves_what_is_stored_as_it_was() -> None:
    """Nobody writes a checkpoint after it, and what was written goes on."""
    made = filled(tables_of((1, 2)), Limits(rows=3))
    made.save()
    counters = made.circuit.counters()
    assert counters == {"fix.stage": 2, "fix.count": 2}
    with pytest.raises(UnsupportedError):
        made.step(tables_of((2, 3), (3, 4), seeds=()))
    fresh = made.gone_on(recursive("reach", limits=Limits(rows=3)), counters)
    assert fresh.step(tables_of((2, 3), seeds=())) == Counter({(3,): 1})


@pytest.mark.parametrize("thin", [*THINS, None])
def test_rows_that_were_never_there_cannot_go(thin: int | None) -> None:
    """Of a set by each way, and of a bag."""
    made = filled_bag(tables_of((1, 2))) if thin is None else filled(tables_of((1, 2)), thin=thin)
    with pytest.raises(CountBelowZeroError, match="never contained"):
        made.step(negated(tables_of((1, 2), weight=2)))


@every_way
def test_what_derives_rows_is_never_below_zero(thin: int) -> None:
    """Told by the fixpoint itself, before anything is counted above it."""
    for *before, last in ([((1, 2, 0), -2)], [((5, 6, 0), -1), ((2, 5, 0), 1)]):
        made = filled(tables_of((1, 2)), thin=thin)
        for link, weight in before:
            made.circuit.step(None, made.read("links", Counter({link: weight})))
        with pytest.raises(CountBelowZeroError, match="ways to derive rows"):
            made.circuit.step(None, made.read("links", Counter(dict([last]))))


def test_a_step_with_other_constants_or_limits_keeps_other_rows() -> None:
    """What moved inside a step cannot be made up above it."""
    one, other = recursive("reach"), recursive("two branches")
    assert one.fixpoint.keeps_like(recursive("reach").fixpoint)
    assert not one.fixpoint.keeps_like(other.fixpoint)
    collisions = recursive("two branches", "collisions")
    assert not other.fixpoint.keeps_like(collisions.fixpoint), "the constant is another one there"
    assert other.fixpoint.keeps_like(recursive("two branches").fixpoint)
    bag = recursive("reach", limits=LIMITS)
    assert bag.fixpoint.keeps_like(recursive("reach", limits=LIMITS).fixpoint)
    assert not bag.fixpoint.keeps_like(recursive("both ways", limits=LIMITS).fixpoint)
    assert not bag.fixpoint.keeps_like(one.fixpoint)
    assert not one.fixpoint.keeps_like(bag.fixpoint)
    assert not bag.fixpoint.keeps_like(recursive("reach", limits=LevelLimits(levels=7)).fixpoint)


@pytest.mark.parametrize("limits", [Limits(), LEVEL_LIMITS])
def test_what_is_asked_for_by_rows_held_back_is_not_let_go(limits: Limits | LevelLimits) -> None:
    """Rows come from a fixpoint last of all, and look for partners then."""
    made = recursive("reach", limits=limits)
    others = Side((("a", LONG), ("b", LONG)), ("a",), 1, is_distant=True, is_held=True)
    join = JoinOperator("above", Side((("t.0", LONG),), ("t.0",), 0), others, [False])
    project = ProjectOperator([("t.0", ColumnRef("a", LONG))])
    circuit = Circuit([project, made.fixpoint, join], [(-1,), (0, -2), (1, -3)])
    links = made.read("links", Counter({(1, 2, 0): 1}))
    circuit.fill(True)
    circuit.step(None, None, links)
    circuit.ended([False, False, True])
    circuit.step(made.read("seeds", Counter({(1, 0): 1})), links, None)
    circuit.ended([True, True, True])
    (result,) = circuit.filled()
    assert result.columns["b"].values.tolist() == [2]


def filled_bag(tables: ProgramTables, limits: LevelLimits = LIMITS) -> Recursive:
    made = recursive("reach", limits=limits)
    made.step(tables)
    return made


def chain(last: int) -> ProgramTables:
    """A row at each of so many levels."""
    return tables_of(*[(n, n + 1) for n in range(1, last)])


def test_limits_are_those_of_spark() -> None:
    """The base is the first level; as many rows as the limit are too many, copies counted."""
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


def test_only_the_rows_and_levels_in_the_end_count() -> None:
    """A step brings rows of a level too many, and takes away what they are made of."""
    made = filled_bag(chain(3), LevelLimits(levels=3, rows=4))
    change = negated(tables_of((1, 2), seeds=()))
    change["links"][3, 4, 0] = 1
    change["links"][1, 3, 0] = 1
    assert made.step(change) == Counter({(2,): -1, (4,): 1})
    assert made.levelled() == {((1,), 0): 1, ((3,), 1): 1, ((4,), 2): 1}
    made = filled_bag(chain(3), LevelLimits(rows=4))
    change = negated(tables_of((1, 2), seeds=()))
    change["seeds"].update({(7, 0): 1, (8, 0): 1})
    assert made.step(change) == Counter({(2,): -1, (3,): -1, (7,): 1, (8,): 1})
    with pytest.raises(UnsupportedError, match="limit of 4 rows"):
        made.step(tables_of((7, 9), seeds=()))


def test_a_circle_never_ends_unless_nothing_leads_to_it() -> None:
    made = filled_bag(tables_of((1, 2), (2, 3)), LevelLimits(levels=50))
    with pytest.raises(UnsupportedError, match="limit of 50 levels"):
        made.step(tables_of((3, 1), seeds=()))
    # CE-R7: a row owes its weight to the level below alone, so nothing is left of a circle.
    tables = tables_of((1, 2), (2, 9))
    made = filled_bag(tables, LevelLimits(levels=4))
    gone = tables_of((1, 2), seeds=())
    change = negated(gone)
    change["links"][9, 2, 0] = 1
    assert made.step(change) == Counter({(2,): -1, (9,): -1})
    left = without(tables, gone)
    assert check(made, "reach", left, Mode.BAG, LevelLimits(levels=4)) == {(1,): 1}


def test_rows_are_equal_value_for_value() -> None:
    """0.0 and -0.0 join with the same rows, and each goes as it came."""
    made = recursive("reach", "doubles", LIMITS)
    # As of the second place of a batch, node 0 is -0.0.
    made.step({"links": Counter(), "seeds": Counter({(0, 0): 1})})
    made.step({"links": Counter(), "seeds": Counter({(1, 0): 1, (0, 1): 1})})
    signs = [str(v) for v in made.fixpoint.output().columns["t.0"].values.tolist()]
    assert sorted(signs) == ["-0.0", "0.0", "1.5"]
    assert made.step({"links": Counter({(0, 3, 0): 1}), "seeds": Counter()}) == {(3,): 2}
    made = made.restarted(recursive("reach", "doubles", LIMITS))
    assert made.step({"links": Counter(), "seeds": Counter({(0, 0): -1})}) == {(0,): -1, (3,): -1}
    with pytest.raises(CountBelowZeroError):
        made.step({"links": Counter(), "seeds": Counter({(0, 0): -1})})


LAST = len(FRAGMENTS) + 1
Sketch = Mapping[int, Iterable[int]]
"""Fragments by access."""


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


TWO_WAYS = Counter({(1, 2, 0): 1, (1, 3, 0): 1, (2, 4, 1): 1, (3, 4, 2): 1})
"""Of CE-R4 and CE-R5: 1 -> 2 (0), 1 -> 3 (0), 2 -> 4 (1), 3 -> 4 (2)."""


def test_a_choice_is_kept_where_rows_stay_and_moves_where_it_goes() -> None:
    """CE-R4: 2 -> 4 goes."""
    tables = {"links": TWO_WAYS, "seeds": Counter({(1, 0): 1})}
    made = recursive("reach", chooses=True)
    made.step(tables)
    assert made.ranges() == {(0, 0): 1, (1, 0): 2, (1, 1): 1}
    after = {**tables, "links": TWO_WAYS - Counter({(2, 4, 1): 1})}
    stale = least_fixpoint(over(PROGRAMS["reach"], {1: {0, 1}, 0: {0}}), after)
    assert stale == {(1,), (2,), (3,)}, "the sketch left as it is lacks a row"
    assert not made.step({"links": Counter({(2, 4, 1): -1}), "seeds": Counter()})
    assert made.ranges() == {(0, 0): 1, (1, 0): 2, (1, 2): 1}, "and T stays"
    assert least_fixpoint(PROGRAMS["reach"], after) == {(1,), (2,), (3,), (4,)}


def test_a_derivation_of_a_body_that_returned_later_is_not_low() -> None:
    """2 -> 3 is chosen for 3. Then 2 loses its ground and returns by 3: over its old rank it would
    still look low, and the two would keep each other."""
    tables = {
        "links": Counter({(1, 2, 0): 1, (2, 3, 0): 1, (3, 2, 0): 1, (1, 3, 3): 1}),
        "seeds": Counter({(1, 0): 1}),
    }
    made = recursive("reach", chooses=True)
    made.step({**tables, "links": tables["links"] - Counter({(1, 3, 3): 1})})
    made.step({"links": Counter({(1, 3, 3): 1}), "seeds": Counter()})
    tables["links"] -= Counter({(1, 2, 0): 1})
    made.step({"links": Counter({(1, 2, 0): -1}), "seeds": Counter()})
    check(made, "reach", tables, Mode.CHOSEN)
    assert made.ranges()[1, 3] == 1


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
    before = ranks_of(made)
    assert made.ranges()[1, 0] == 1
    made.step({"links": Counter({(1, 10, 1): -1}), "seeds": Counter()})
    tables["links"] = links - Counter({(1, 10, 1): 1})
    check(made, "reach", tables, Mode.CHOSEN)
    after = ranks_of(made)
    assert [row for row in after if after[row] != before[row]] == [(4,)]
    assert made.ranges()[1, 3] == 1


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
