"""A fixpoint by examples: circles that lose their ground, limits, ranks, and what it is like."""

from __future__ import annotations

from collections import Counter

import pytest

from impctl.data.schema import LONG
from impctl.engine.circuit import Circuit
from impctl.engine.fixpoint.small_frontier import THIN
from impctl.engine.join import Join, Side
from impctl.engine.linear import Project
from impctl.engine.operator import LEVEL_LIMITS, LevelLimits, Limits
from impctl.errors import CountBelowZeroError, UnsupportedError
from impctl.expr.nodes import ColumnRef
from tests.engine.fixpoint.test_programs import Tables, check, negated
from tests.support.recursive_circuits import Recursive, recursive
from tests.support.reference_fixpoint import Row, by_counting, least_fixpoint, reach


def tables_of(*links: tuple[int, int], seeds: tuple[int, ...] = (1,), weight: int = 1) -> Tables:
    return {
        "links": Counter({(*link, 0): weight for link in links}),
        "seeds": Counter({(seed, 0): weight for seed in seeds}),
    }


def without(tables: Tables, gone: Tables) -> Tables:
    return {name: tables[name] - gone[name] for name in tables}


every_way = pytest.mark.parametrize("thin", [0, 2, 10**9])
"""Fronts followed row by row: none, the least, all."""


def filled(
    tables: Tables,
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
    """CE-R7: 1 -> 2 -> 3 -> 2, then 1 -> 2 goes: 2 and 3 only derive one another."""
    tables = tables_of((1, 2), (2, 3), (3, 2))
    made = filled(tables, thin=thin)
    gone = tables_of((1, 2), seeds=())
    assert made.step(negated(gone)) == Counter({(2,): -1, (3,): -1})
    left = without(tables, gone)
    assert check(made, "reach", left) == {(1,)}
    counting = by_counting(reach, left, least_fixpoint(reach, tables))
    assert counting == {(1,), (2,), (3,)}, "what counting alone makes of it"


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
def test_where_much_goes_the_rest_follows_and_ranks_begin_again(thin: int) -> None:
    """A chain is cut at its head, to which leads another way, found later."""
    chain = [(n, n + 1) for n in range(1, 40)]
    made = filled(tables_of(*chain), thin=thin)
    made.step(tables_of((1, 200), (200, 2), seeds=()))
    assert max(ranks_of(made).values()) == 41
    gone = tables_of((1, 2), seeds=())
    assert made.step(negated(gone)) == Counter()
    check(made, "reach", without(tables_of(*chain, (1, 200), (200, 2)), gone))
    assert ranks_of(made)[(200,)] == 2, "its rank was 41 before, and would be still"
    assert made.circuit.counters() == {"fix.stage": 41, "fix.count": 41}


@every_way
def test_where_less_goes_the_rest_stays(thin: int) -> None:
    """The same far behind: rows before keep their ranks, those after get others."""
    chain = [(n, n + 1) for n in range(1, 40)]
    made = filled(tables_of(*chain), thin=thin)
    made.step(tables_of((1, 200), (200, 30), seeds=()))
    gone = tables_of((29, 30), seeds=())
    assert made.step(negated(gone)) == Counter()
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
    with pytest.raises(UnsupportedError):
        made.step(tables_of((2, 3), (3, 4), seeds=()))
    fresh = recursive("reach", limits=Limits(rows=3))
    for keeper in fresh.circuit.arrangements():
        keeper.load(sorted(made.stored[keeper.name].items()))
    fresh.circuit.take_up({"fix.stage": 2, "fix.count": 2})
    assert fresh.step(tables_of((2, 3), seeds=())) == Counter({(3,): 1})


@every_way
def test_rows_that_were_never_there_cannot_go(thin: int) -> None:
    made = filled(tables_of((1, 2)), thin=thin)
    with pytest.raises(CountBelowZeroError, match="never contained"):
        made.step(negated(tables_of((1, 2), weight=2)))


@every_way
def test_what_derives_rows_is_never_below_zero(thin: int) -> None:
    """Told by the fixpoint itself, before anything is counted above it."""
    made = filled(tables_of((1, 2)), thin=thin)
    with pytest.raises(CountBelowZeroError, match="ways to derive rows"):
        made.circuit.step(None, made.read("links", Counter({(1, 2, 0): -2})))
    made = filled(tables_of((1, 2)), thin=thin)
    made.circuit.step(None, made.read("links", Counter({(5, 6, 0): -1})))
    with pytest.raises(CountBelowZeroError, match="ways to derive rows"):
        made.circuit.step(None, made.read("links", Counter({(2, 5, 0): 1})))


def test_a_step_with_other_constants_keeps_other_rows() -> None:
    """What moved inside a step cannot be made up above it."""
    one, same, other = (recursive(name) for name in ("reach", "reach", "two branches"))
    assert one.fixpoint.keeps_like(same.fixpoint)
    assert not one.fixpoint.keeps_like(other.fixpoint)
    numbers, others = (recursive("two branches", kind) for kind in ("numbers", "collisions"))
    assert not numbers.fixpoint.keeps_like(others.fixpoint), "the constant is another one there"
    assert numbers.fixpoint.keeps_like(recursive("two branches").fixpoint)


@pytest.mark.parametrize("limits", [Limits(), LEVEL_LIMITS])
def test_what_is_asked_for_by_rows_held_back_is_not_let_go(limits: Limits | LevelLimits) -> None:
    """Rows come from a fixpoint last of all, and look for partners then."""
    made = recursive("reach", limits=limits)
    others = Side((("a", LONG), ("b", LONG)), ("a",), 1, is_distant=True, is_held=True)
    join = Join("above", Side((("t.0", LONG),), ("t.0",), 0), others, [False])
    project = Project([("t.0", ColumnRef("a", LONG))])
    circuit = Circuit([project, made.fixpoint, join], [(-1,), (0, -2), (1, -3)])
    links = made.read("links", Counter({(1, 2, 0): 1}))
    circuit.fill(True)
    circuit.step(None, None, links)
    circuit.ended([False, False, True])
    circuit.step(made.read("seeds", Counter({(1, 0): 1})), links, None)
    circuit.ended([True, True, True])
    (result,) = circuit.filled()
    assert result.columns["b"].values.tolist() == [2]
