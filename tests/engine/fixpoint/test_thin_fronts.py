"""Steps that are one join: what is taken for one, and that fronts of any size leave the same.

Law tested: however large a front must be not to be followed row by row, rows, what came and went,
`all` and the fragments are the same, and ranks are right; on graphs where fronts grow and shrink in
a step. State that lies in pages is looked at before it is used, and what was altered is an error.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest

from impctl.data import keys as keys_module
from impctl.data.pages import CheckedPages, PagedTable
from impctl.data.schema import DOUBLE, LONG, STRING
from impctl.engine.circuit import Circuit
from impctl.engine.fixpoint import single_join, small_frontier
from impctl.engine.fixpoint.small_frontier import plain_step
from impctl.engine.join import Join, Side
from impctl.engine.linear import Project, Select
from impctl.engine.operator import Operator
from impctl.expr.nodes import Arithmetic, ArithmeticOp, ColumnRef, Compare, CompareOp, Literal
from tests.engine.fixpoint.test_programs import PLAIN, check, difference
from tests.support.paged_tables import stream_of, sums_of, table_in
from tests.support.random_cases import random_seeds
from tests.support.recursive_circuits import Recursive, recursive
from tests.support.reference_fixpoint import PROGRAMS, Row

Tables = dict[str, Counter[Row]]
WAYS = (0, 1, 3, 10**9)
NUMBER = (("t.0", LONG),)


def refs(**outputs: str) -> Project:
    return Project([(new.replace("_", "."), ColumnRef(old, LONG)) for new, old in outputs.items()])


def joined(key: str = "t.0") -> Join:
    own = Side((("t.0", LONG), ("rank", LONG)), (key,), 0)
    return Join("join", own, Side((("a", LONG), ("b", LONG)), ("a",), 1), [False])


HEADS = {"t_0": "b", "rank": "rank"}
STEPS: Mapping[str, tuple[list[Operator], list[tuple[int, ...]]]] = {
    "plain": ([joined(), refs(**HEADS)], [(-1, -2), (0,)]),
    "renamed": (
        [refs(t_0="t.0", rank="rank"), joined(), refs(x="b", y="rank"), refs(t_0="x", rank="y")],
        [(-1,), (0, -2), (1,), (2,)],
    ),
    "the join alone": ([joined()], [(-1, -2)]),
    "its key again": ([joined(), refs(t_0="a", rank="rank")], [(-1, -2), (0,)]),
}
ONE = Literal(1, LONG)
CHOSEN = Select(Compare(CompareOp.LESS, ColumnRef("b", LONG), ONE), must_be_sure=True)
MORE = Arithmetic(ArithmeticOp.ADD, ColumnRef("b", LONG), ONE)
RANK = ("rank", ColumnRef("rank", LONG))
OTHERS: Mapping[str, tuple[list[Operator], list[tuple[int, ...]]]] = {
    "residual": ([joined(), CHOSEN, refs(**HEADS)], [(-1, -2), (0,), (1,)]),
    "computed": ([joined(), Project([("t.0", MORE), RANK])], [(-1, -2), (0,)]),
    "computed below": (
        [Project([("t.0", ONE), RANK]), joined(), refs(**HEADS)],
        [(-1,), (0, -2), (1,)],
    ),
    "of a table chosen from": ([CHOSEN, joined(), refs(**HEADS)], [(-2,), (-1, 0), (1,)]),
    "of a table renamed": (
        [refs(a="b", b="a"), joined(), refs(**HEADS)],
        [(-2,), (-1, 0), (1,)],
    ),
    "an operator beside it": ([CHOSEN, joined(), refs(**HEADS)], [(-2,), (-1, -2), (1,)]),
    "another rank": ([joined(), refs(t_0="b", rank="a")], [(-1, -2), (0,)]),
    "by rank": ([joined("rank"), refs(**HEADS)], [(-1, -2), (0,)]),
    "a rank as a column": ([joined(), refs(t_0="rank", rank="rank")], [(-1, -2), (0,)]),
    "the table's twice": ([joined(), refs(**HEADS)], [(-2, -2), (0,)]),
    "its rows twice": ([joined(), refs(**HEADS)], [(-1, -1), (0,)]),
    "another table": ([joined(), refs(**HEADS)], [(-1, -3), (0,)]),
    "no join": ([refs(t_0="t.0", rank="rank")], [(-1,)]),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_that_is_one_join_is_taken_for_that(name: str) -> None:
    operators, wires = STEPS[name]
    result = plain_step(Circuit(operators, wires), NUMBER, "rank")
    assert result is not None
    assert result.is_of_numbers
    assert result.side == 0


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_more_than_one_join_is_not(name: str) -> None:
    operators, wires = OTHERS[name]
    assert plain_step(Circuit(operators, wires), NUMBER, "rank") is None


def test_which_programs_are_one_join() -> None:
    plain = {name for name in PROGRAMS if recursive(name).fixpoint._plain is not None}
    assert plain == {*PLAIN, "two keys"}


def test_only_whole_numbers_are_followed_row_by_row() -> None:
    for kind, is_number in ((LONG, True), (DOUBLE, False), (STRING, False)):
        own = Side((("t.0", kind), ("rank", LONG)), ("t.0",), 0)
        join = Join("join", own, Side((("a", kind), ("b", kind)), ("a",), 1), [False])
        heads = Project([("t.0", ColumnRef("b", kind)), ("rank", ColumnRef("rank", LONG))])
        result = plain_step(Circuit([join, heads], [(-1, -2), (0,)]), (("t.0", kind),), "rank")
        assert result is not None
        assert result.is_of_numbers == is_number


def sparse(rng: random.Random, nodes: int) -> Tables:
    """Long chains with circles, branches and duplicates."""
    links: Counter[Row] = Counter()
    for node in range(nodes - 1):
        links[node, node + 1, rng.choice((None, 1, 2, 3))] += 1
    for _ in range(nodes // 2):
        links[rng.randrange(nodes), rng.randrange(nodes), rng.choice((0, 1, 3))] += 1
    for _ in range(nodes // 2):
        # A hub: more than a few partners at once.
        links[nodes // 2, rng.randrange(nodes), 2] += rng.choice((1, 1, 2))
    return {"links": links, "seeds": Counter({(rng.randrange(nodes // 4), 1): 1 for _ in "ab"})}


def some_change(rng: random.Random, tables: Tables, nodes: int, most: int) -> Tables:
    """Links that go and come, mostly of the chains, and now and then a seed."""
    links: Counter[Row] = Counter()
    held = sorted(tables["links"], key=repr)
    for row in rng.sample(held, min(len(held), rng.randint(1, most))):
        links[row] -= rng.randint(1, tables["links"][row])
    for _ in range(rng.randint(0, most)):
        links[rng.randrange(nodes), rng.randrange(nodes), rng.choice((None, 1))] += 1
    seeds: Counter[Row] = Counter()
    if rng.random() < 0.2:
        seeds[rng.randrange(nodes), 2] += 1
    return {"links": Counter({row: n for row, n in links.items() if n}), "seeds": seeds}


def added(tables: Tables, change: Tables) -> Tables:
    result = {name: Counter(held) for name, held in tables.items()}
    for name, rows in change.items():
        result[name].update(rows)
    return {name: +held for name, held in result.items()}


def remembered(made: Recursive) -> object:
    """What is kept but for ranks, and the counts at the root."""
    return {row: every for row, (_, every, _) in made.ranked().items()}, made.fragments()


@pytest.mark.parametrize(("program", "nodes"), [("reach", 60), ("left-linear", 9)])
@random_seeds(1, 2, 40)
def test_fronts_of_any_size_leave_the_same(program: str, nodes: int, seed: int) -> None:
    rng = random.Random(f"fronts {program} {seed}")
    tables = sparse(rng, nodes)
    ways = [recursive(program, thin=thin) for thin in WAYS]
    rows: frozenset[Row] = frozenset()
    change = tables
    for turn in range(8):
        deltas = [made.step(change) for made in ways]
        after = check(ways[turn % len(ways)], program, tables)
        assert deltas == [difference(after, rows)] * len(ways)
        first, *others = map(remembered, ways)
        assert all(other == first for other in others)
        rows = after
        change = some_change(rng, tables, nodes, rng.choice((1, 2, 8)))
        tables = added(tables, change)
        if rng.random() < 0.3:
            ways = [
                made.restarted(recursive(program, thin=thin))
                for made, thin in zip(ways, WAYS, strict=True)
            ]


def test_each_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the test above: fronts are followed row by row, and not, in one step."""
    seen: Counter[str] = Counter()

    def noted(owner: type, name: str) -> None:
        whole = getattr(owner, name)

        def called(*arguments: object) -> object:
            result = whole(*arguments)
            seen[f"{owner.__name__}.{name}"] += result is not None
            return result

        monkeypatch.setattr(owner, name, called)

    for name in ("out", "come", "changed"):
        noted(small_frontier.ThinFronts, name)
    for name in ("_all_out", "_all_come"):
        noted(single_join.JoinedMoves, name)
    few = {"ThinFronts.out", "ThinFronts.come", "ThinFronts.changed"}
    many = {"JoinedMoves._all_out", "JoinedMoves._all_come"}
    ways = ((0, many), (10**9, few), (3, few | many))
    for thin, wanted in ways:
        seen.clear()
        rng = random.Random(1)
        tables = sparse(rng, 60)
        made = recursive("reach", thin=thin)
        made.step(tables)
        for _ in range(9):
            change = some_change(rng, tables, 60, rng.choice((1, 9)))
            made.step(change)
            tables = added(tables, change)
        check(made, "reach", tables)
        assert {name for name, count in seen.items() if count} == wanted


@pytest.mark.parametrize("program", ["left-linear", "right-linear", "two keys"])
@pytest.mark.parametrize("thin", WAYS)
@random_seeds(1, 2, 20)
def test_rows_whose_codes_collide(
    program: str, thin: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Codes of two columns are a handful: the columns decide."""
    monkeypatch.setattr(keys_module, "_mix", lambda words: words & np.uint64(3))
    monkeypatch.setattr(keys_module, "_mixed", lambda word: word & 3)
    rng = random.Random(f"collide {program} {seed}")
    tables = {**sparse(rng, 7), "seeds": Counter[Row]()}
    made = recursive(program, thin=thin)
    made.step(tables)
    check(made, program, tables)
    for _ in range(5):
        change = {**some_change(rng, tables, 7, 3), "seeds": Counter[Row]()}
        made.step(change)
        tables = added(tables, change)
        check(made, program, tables)


class AlteredError(Exception):
    """What is raised for pages that were altered."""


def paged(table: pa.Table, altered: str | None) -> PagedTable:
    """The table in pages; in the middle of a column one bit is another."""
    whole = stream_of(table)
    shown = bytearray(whole)
    content = pa.py_buffer(shown)
    result = table_in(content)
    if altered is not None:
        (chunk,) = result.column(altered).chunks
        shown[chunk.buffers()[1].address - content.address + 8 * (len(result) // 2)] ^= 1
    return PagedTable(result, CheckedPages(content, sums_of(whole), AlteredError))


def from_pages(made: Recursive, thin: int, name: str = "", altered: str | None = None) -> Recursive:
    """A fresh one that goes on from what is stored, each run in pages."""
    made.save()
    fresh = recursive("reach", thin=thin)
    for keeper in fresh.circuit.arrangements():
        runs = sorted(made.stored[keeper.name].items())
        column = altered if keeper.name == name else None
        keeper.load([(number, paged(table, column)) for number, table in runs])
    fresh.circuit.take_up(made.circuit.counters())
    fresh.merge = made.merge
    return fresh


def test_what_is_kept_keeps_no_more_in_memory() -> None:
    """Rows lie column by column, each in memory of its own: a step's rows go when it is over."""
    made = recursive("reach")
    made.step(chain(3_000))
    (run,) = made.fixpoint.rows.arrangement.runs
    for array in (run.codes, *run.values.values()):
        assert array.strides == (8,)
        assert array.base is None or array.base.nbytes == array.nbytes


def chain(length: int) -> Tables:
    links = Counter({(node, node + 1, 1): 1 for node in range(length)})
    return {"links": links, "seeds": Counter({(0, 1): 1})}


@pytest.mark.parametrize("thin", WAYS)
def test_state_in_pages_is_looked_at_first(thin: int) -> None:
    """A chain loses a link in the middle, and gets it back."""
    tables, gone = chain(300), Counter({(150, 151, 1): -1})
    made = recursive("reach", thin=thin)
    made.step(tables)
    fresh = from_pages(made, thin)
    went = fresh.step({"links": gone, "seeds": Counter()})
    assert went == Counter({(node,): -1 for node in range(151, 301)})
    again = fresh.step({"links": Counter({(150, 151, 1): 1}), "seeds": Counter()})
    assert again == Counter({(node,): 1 for node in range(151, 301)})
    ranks = {row: rank for row, (rank, _, _) in fresh.ranked().items()}
    assert sorted(ranks) == [(node,) for node in range(301)]
    assert all(ranks[node,] < ranks[node + 1,] for node in range(300))


@pytest.mark.parametrize("thin", WAYS)
def test_altered_pages_are_an_error(thin: int) -> None:
    made = recursive("reach", thin=thin)
    made.step(chain(1_200))
    for name, columns in {
        "fix.rows": ("code", "rank", "all", "low"),
        "step.join0.right": ("code", "column1", "weight"),
    }.items():
        for column in columns:
            fresh = from_pages(made, thin, name, column)
            with pytest.raises(AlteredError):
                fresh.step({"links": Counter({(0, 1, 1): -1}), "seeds": Counter()})
