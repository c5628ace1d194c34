"""Recursive programs of UNION ALL over random tables and batches, against their definition.

After every batch: the rows with their levels and weights, what came and went, and how often each
fragment is used, recounted. Tables have circles: where the definition goes beyond its limits, so
does the circuit, and what was stored of it before goes on.
By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"`.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from impctl.engine.operator import LEVEL_LIMITS as LIMITS
from impctl.engine.operator import LevelLimits as Limits
from impctl.errors import CountBelowZeroError, UnsupportedError
from tests.engine.fixpoint.test_fixpoint import tables_of, without
from tests.engine.fixpoint.test_programs import (
    NOTHING,
    Change,
    Tables,
    added,
    negated,
    row_by_row,
    some_change,
    table_by_table,
)
from tests.support.random_cases import random_seeds
from tests.support.recursive_circuits import Recursive, cut, recursive
from tests.support.reference_fixpoint import BAGS, Beyond, Row, fragments_of, levels_of

SMALL = Limits(levels=5, rows=400)
CASES = [(program, kind) for program in BAGS for kind in ("numbers", "collisions", "texts")]
cases = pytest.mark.parametrize(("program", "kind"), CASES)


def rows_at(levels: list[Counter[Row]]) -> Counter[Row]:
    return sum(levels, Counter())


def check(made: Recursive, program: str, tables: Change, limits: Limits = SMALL) -> Counter[Row]:
    """That all that is kept is what the definition says; the rows as often as they are derived."""
    levels, derivations = levels_of(BAGS[program], tables, limits.levels, limits.rows)
    expected = {(row, at): n for at, level in enumerate(levels) for row, n in level.items()}
    assert made.levelled() == expected
    assert made.fragments() == fragments_of(derivations, cut)
    rows = rows_at(levels)
    assert made.rows_of(made.fixpoint.output()) == rows
    assert made.circuit.counters() == {"fix.count": rows.total()}
    return rows


def difference(after: Counter[Row], before: Counter[Row]) -> Counter[Row]:
    counts = Counter(after)
    counts.subtract(before)
    return Counter({row: n for row, n in counts.items() if n})


@pytest.mark.slow
@cases
@random_seeds(1, 3, 100)
def test_every_batch_leaves_what_the_definition_says(program: str, kind: str, seed: int) -> None:
    rng = random.Random(f"bags {program} {kind} {seed}")
    made = recursive(program, kind, SMALL)
    tables: Tables = NOTHING
    rows: Counter[Row] = Counter()
    steps = 0
    nodes = rng.choice((4, 6, 9))
    for _ in range(12):
        change = some_change(rng, tables, nodes, rng.choice((1, 2, 4)))
        after = added(tables, change)
        made.save()
        counters = made.circuit.counters()
        try:
            levels_of(BAGS[program], after, SMALL.levels, SMALL.rows)
        except Beyond:
            # Where rows are too many and on too many levels, either may be told.
            with pytest.raises(UnsupportedError, match="reaches its limit of"):
                made.step(change)
            made = made.gone_on(recursive(program, kind, SMALL), counters)
            assert check(made, program, tables) == rows
            continue
        delta = made.step(change)
        tables, steps = after, steps + 1
        result = check(made, program, tables)
        assert delta == difference(result, rows)
        rows = result
        if rng.random() < 0.3:
            made = made.restarted(recursive(program, kind, SMALL))
    assert steps
    assert made.step(negated(tables)) == difference(Counter(), rows)
    assert not made.levelled()
    assert not made.fragments()


def some_tables(rng: random.Random, program: str) -> dict[str, Counter[Row]]:
    """Tables of which the definition is within the limits."""
    while True:
        result = some_change(rng, NOTHING, 9, 5)
        try:
            levels_of(BAGS[program], result, SMALL.levels, SMALL.rows)
        except Beyond:
            continue
        return result


def remembered(made: Recursive) -> object:
    return made.levelled(), made.fragments(), made.circuit.counters()


@cases
@random_seeds(1, 2, 30)
def test_however_rows_come_they_leave_the_same(program: str, kind: str, seed: int) -> None:
    rng = random.Random(f"batches of bags {program} {kind} {seed}")
    tables = some_tables(rng, program)
    whole, parts, filled = (recursive(program, kind, SMALL) for _ in range(3))
    whole.step(tables)
    rows = check(whole, program, tables)
    assert row_by_row(parts, tables, rng) == rows
    assert remembered(parts) == remembered(whole)
    assert table_by_table(filled, tables, rng) == rows
    check(filled, program, tables)


@cases
@random_seeds(1, 2, 30)
def test_a_batch_and_its_negative_leave_nothing(program: str, kind: str, seed: int) -> None:
    rng = random.Random(f"negative of bags {program} {kind} {seed}")
    tables = some_tables(rng, program)
    other = some_tables(rng, program)
    change = {name: difference(other[name], tables[name]) for name in tables}
    made = recursive(program, kind, SMALL)
    made.step(tables)
    before = remembered(made)
    there = made.step(change)
    check(made, program, other)
    again = made.step(negated(change))
    assert remembered(made) == before
    assert Counter({row: -n for row, n in there.items()}) == again
    assert not made.step(NOTHING)
    assert remembered(made) == before


def filled(tables: Tables, limits: Limits = LIMITS) -> Recursive:
    made = recursive("reach", limits=limits)
    made.step(tables)
    return made


def chain(last: int) -> Tables:
    """A row at each of so many levels."""
    return tables_of(*[(n, n + 1) for n in range(1, last)])


def test_limits_are_those_of_spark() -> None:
    """The base is the first level; as many rows as the limit are too many."""
    assert len(filled(chain(100)).levelled()) == 100
    with pytest.raises(UnsupportedError, match="limit of 100 levels") as caught:
        filled(chain(101))
    assert (caught.value.code, caught.value.exit_code) == ("recursion_limit", 3)
    assert caught.value.hint
    assert "MAX RECURSION LEVEL" in caught.value.hint
    filled(chain(9), Limits(levels=9, rows=10))
    with pytest.raises(UnsupportedError, match="limit of 9 rows"):
        filled(chain(9), Limits(levels=9, rows=9))
    assert Limits() == Limits(levels=100, rows=1_000_000)


def test_without_rows_no_limit_is_met() -> None:
    nothing = Limits(levels=0, rows=1)
    assert not filled(tables_of((1, 2), seeds=()), nothing).levelled()
    with pytest.raises(UnsupportedError, match="0 levels"):
        filled(tables_of(), nothing)


def test_copies_are_rows() -> None:
    twice = tables_of((1, 2), weight=2)
    assert filled(twice, Limits(rows=7)).levelled() == {((1,), 0): 2, ((2,), 1): 4}
    with pytest.raises(UnsupportedError, match="limit of 6 rows"):
        filled(twice, Limits(rows=6))


def test_only_what_there_is_in_the_end_counts() -> None:
    """A step brings rows of a level too many, and takes away what they are made of."""
    made = filled(chain(3), Limits(levels=3, rows=4))
    change = negated(tables_of((1, 2), seeds=()))
    change["links"][3, 4, 0] = 1
    change["links"][1, 3, 0] = 1
    assert made.step(change) == Counter({(2,): -1, (4,): 1})
    assert made.levelled() == {((1,), 0): 1, ((3,), 1): 1, ((4,), 2): 1}


def test_rows_that_come_one_by_one_are_too_many_in_the_end() -> None:
    made = filled(chain(3), Limits(rows=4))
    change = negated(tables_of((1, 2), seeds=()))
    change["seeds"].update({(7, 0): 1, (8, 0): 1})
    assert made.step(change) == Counter({(2,): -1, (3,): -1, (7,): 1, (8,): 1})
    with pytest.raises(UnsupportedError, match="limit of 4 rows"):
        made.step(tables_of((7, 9), seeds=()))


def test_a_circle_never_ends() -> None:
    made = filled(tables_of((1, 2), (2, 3)), Limits(levels=50))
    with pytest.raises(UnsupportedError, match="limit of 50 levels"):
        made.step(tables_of((3, 1), seeds=()))


def test_a_circle_that_nothing_leads_to_is_none() -> None:
    """CE-R7: a row owes its weight to the level below alone, so nothing is left of a circle."""
    tables = tables_of((1, 2), (2, 9))
    made = filled(tables, Limits(levels=4))
    gone = tables_of((1, 2), seeds=())
    change = negated(gone)
    change["links"][9, 2, 0] = 1
    assert made.step(change) == Counter({(2,): -1, (9,): -1})
    left = without(tables, gone)
    assert check(made, "reach", left, Limits(levels=4)) == Counter({(1,): 1})


def test_rows_that_were_never_there_cannot_go() -> None:
    made = filled(tables_of((1, 2)))
    with pytest.raises(CountBelowZeroError, match="never contained"):
        made.step(negated(tables_of((1, 2), weight=2)))


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


def test_a_step_with_other_constants_keeps_other_rows() -> None:
    one, same, other = (recursive(name, limits=LIMITS) for name in ("reach", "reach", "both ways"))
    assert one.fixpoint.keeps_like(same.fixpoint)
    assert not one.fixpoint.keeps_like(other.fixpoint)
    assert not one.fixpoint.keeps_like(recursive("reach").fixpoint)
    assert not recursive("reach").fixpoint.keeps_like(one.fixpoint)
    assert not one.fixpoint.keeps_like(recursive("reach", limits=Limits(levels=7)).fixpoint)
