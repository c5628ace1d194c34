"""Fronts of any size give the same state; how steps of one join are recognized."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pytest

from impctl.data import keys as keys_module
from impctl.data.pages import CheckedPages, PagedTable
from impctl.data.schema import DOUBLE, INTEGER, LONG, STRING, SqlType
from impctl.engine.circuit import Circuit
from impctl.engine.fixpoint import single_join
from impctl.engine.fixpoint.best_values import Offset, ValuedStep, valued_step
from impctl.engine.fixpoint.rows import Grouped
from impctl.engine.fixpoint.single_join import plain_step
from impctl.engine.join import JoinOperator, Side
from impctl.engine.linear import ProjectOperator, SelectOperator
from impctl.engine.operator import Operator
from impctl.expr.nodes import Arithmetic, ArithmeticOp, ColumnRef, Compare, CompareOp, Expr, Literal
from tests.engine.fixpoint.test_fixpoint import added, check, difference, stored_state
from tests.support.paged_tables import stream_of, sums_of, table_in
from tests.support.random_cases import random_seeds
from tests.support.recursive_circuits import Recursive, Row, recursive

Tables = dict[str, Counter[Row]]
THINS = (0, 1, 3, 10**9)
ONE_NUMBER = (("t.0", LONG),)


def refs(**outputs: str) -> ProjectOperator:
    return ProjectOperator(
        [(new.replace("_", "."), ColumnRef(old, LONG)) for new, old in outputs.items()]
    )


def joined(key: str = "t.0") -> JoinOperator:
    rows = Side((("t.0", LONG), ("rank", LONG)), (key,), 0)
    return JoinOperator("join", rows, Side((("a", LONG), ("b", LONG)), ("a",), 1), [False])


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
CHOSEN = SelectOperator(Compare(CompareOp.LESS, ColumnRef("b", LONG), ONE), must_be_sure=True)
MORE = Arithmetic(ArithmeticOp.ADD, ColumnRef("b", LONG), ONE)
RANK = ("rank", ColumnRef("rank", LONG))
OTHERS: Mapping[str, tuple[list[Operator], list[tuple[int, ...]]]] = {
    "residual": ([joined(), CHOSEN, refs(**HEADS)], [(-1, -2), (0,), (1,)]),
    "computed": ([joined(), ProjectOperator([("t.0", MORE), RANK])], [(-1, -2), (0,)]),
    "computed below": (
        [ProjectOperator([("t.0", ONE), RANK]), joined(), refs(**HEADS)],
        [(-1,), (0, -2), (1,)],
    ),
    "filtered table": ([CHOSEN, joined(), refs(**HEADS)], [(-2,), (-1, 0), (1,)]),
    "renamed table": ([refs(a="b", b="a"), joined(), refs(**HEADS)], [(-2,), (-1, 0), (1,)]),
    "a parallel operator": ([CHOSEN, joined(), refs(**HEADS)], [(-2,), (-1, -2), (1,)]),
    "another rank": ([joined(), refs(t_0="b", rank="a")], [(-1, -2), (0,)]),
    "by rank": ([joined("rank"), refs(**HEADS)], [(-1, -2), (0,)]),
    "a rank as a column": ([joined(), refs(t_0="rank", rank="rank")], [(-1, -2), (0,)]),
    "the table twice": ([joined(), refs(**HEADS)], [(-2, -2), (0,)]),
    "its rows twice": ([joined(), refs(**HEADS)], [(-1, -1), (0,)]),
    "another table": ([joined(), refs(**HEADS)], [(-1, -3), (0,)]),
    "no join": ([refs(t_0="t.0", rank="rank")], [(-1,)]),
}


@pytest.mark.parametrize("name", [*STEPS, *OTHERS])
def test_only_steps_of_a_single_join_are_recognized(name: str) -> None:
    result = plain_step(Circuit(*(STEPS | OTHERS)[name]), ONE_NUMBER, "rank")
    assert (result is not None) == (name in STEPS)
    assert result is None or (result.is_of_numbers, result.side) == (True, 0)


@pytest.mark.parametrize(("kind", "is_number"), [(LONG, True), (DOUBLE, False), (STRING, False)])
def test_only_integers_are_processed_row_by_row(kind: SqlType, is_number: bool) -> None:
    rows = Side((("t.0", kind), ("rank", LONG)), ("t.0",), 0)
    join = JoinOperator("join", rows, Side((("a", kind), ("b", kind)), ("a",), 1), [False])
    heads = ProjectOperator([("t.0", ColumnRef("b", kind)), ("rank", ColumnRef("rank", LONG))])
    result = plain_step(Circuit([join, heads], [(-1, -2), (0,)]), (("t.0", kind),), "rank")
    assert result.is_of_numbers == is_number


def sparse(rng: random.Random, nodes: int) -> Tables:
    """Long chains with cycles, branches and duplicates."""
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
    """Deleted and inserted links, mostly of the chains, and sometimes a seed."""
    links: Counter[Row] = Counter()
    present = sorted(tables["links"], key=repr)
    for row in rng.sample(present, min(len(present), rng.randint(1, most))):
        links[row] -= rng.randint(1, tables["links"][row])
    for _ in range(rng.randint(0, most)):
        links[rng.randrange(nodes), rng.randrange(nodes), rng.choice((None, 1))] += 1
    seeds: Counter[Row] = Counter()
    if rng.random() < 0.2:
        seeds[rng.randrange(nodes), 2] += 1
    return {"links": Counter({row: n for row, n in links.items() if n}), "seeds": seeds}


@pytest.mark.parametrize(("program", "nodes"), [("reach", 60), ("left-linear", 9)])
@random_seeds(1, 2, 40)
def test_fronts_of_any_size_agree(program: str, nodes: int, seed: int) -> None:
    rng = random.Random(f"fronts {program} {seed}")
    tables = sparse(rng, nodes)
    recursions = [recursive(program, thin=thin) for thin in THINS]
    rows = Counter[Row]()
    change = tables
    for turn in range(8):
        deltas = [recursion.step(change) for recursion in recursions]
        after = check(recursions[turn % len(recursions)], program, tables)
        assert deltas == [difference(after, rows)] * len(recursions)
        first, *others = map(stored_state, recursions)
        assert all(other == first for other in others)
        rows = after
        change = some_change(rng, tables, nodes, rng.choice((1, 2, 8)))
        tables = added(tables, change)
        if rng.random() < 0.3:
            recursions = [
                recursion.restarted(recursive(program, thin=thin))
                for recursion, thin in zip(recursions, THINS, strict=True)
            ]


def test_each_path_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the test above: one step processes fronts row by row and as a whole."""
    calls: Counter[str] = Counter()

    def count_calls(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def counted(*arguments: object) -> object:
            result = original(*arguments)
            calls[f"{owner.__name__}.{name}"] += result is not None
            return result

        monkeypatch.setattr(owner, name, counted)

    for name in ("out", "come"):
        count_calls(single_join.ThinFronts, name)
    for name in ("_all_out", "_all_come"):
        count_calls(single_join.JoinedMoves, name)
    few = {"ThinFronts.out", "ThinFronts.come"}
    many = {"JoinedMoves._all_out", "JoinedMoves._all_come"}
    cases = ((0, many), (10**9, few), (3, few | many))
    for thin, expected in cases:
        calls.clear()
        rng = random.Random(1)
        tables = sparse(rng, 60)
        recursion = recursive("reach", thin=thin)
        recursion.step(tables)
        for _ in range(9):
            change = some_change(rng, tables, 60, rng.choice((1, 9)))
            recursion.step(change)
            tables = added(tables, change)
        check(recursion, "reach", tables)
        assert {name for name, count in calls.items() if count} == expected


@pytest.mark.parametrize("program", ["left-linear", "right-linear", "two keys"])
@pytest.mark.parametrize("thin", THINS)
@random_seeds(1, 2, 20)
def test_rows_whose_codes_collide(
    program: str, thin: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two columns have only a few codes, so values must be compared."""
    monkeypatch.setattr(keys_module, "_mix", lambda words: words & np.uint64(3))
    monkeypatch.setattr(keys_module, "_mixed", lambda word: word & 3)
    rng = random.Random(f"collide {program} {seed}")
    tables = {**sparse(rng, 7), "seeds": Counter[Row]()}
    recursion = recursive(program, thin=thin)
    recursion.step(tables)
    check(recursion, program, tables)
    for _ in range(5):
        change = {**some_change(rng, tables, 7, 3), "seeds": Counter[Row]()}
        recursion.step(change)
        tables = added(tables, change)
        check(recursion, program, tables)


class AlteredError(Exception):
    """Raised for altered pages."""


def paged(table: pa.Table, altered: str | None) -> PagedTable:
    """The table in pages; one bit in the middle of column `altered` is flipped."""
    whole = stream_of(table)
    data = bytearray(whole)
    content = pa.py_buffer(data)
    result = table_in(content)
    if altered is not None:
        (chunk,) = result.column(altered).chunks
        data[chunk.buffers()[1].address - content.address + 8 * (len(result) // 2)] ^= 1
    return PagedTable(result, CheckedPages(content, sums_of(whole), AlteredError))


def from_pages(
    recursion: Recursive, thin: int, name: str = "", altered: str | None = None
) -> Recursive:
    """A new one that continues from the stored state, with each run in pages."""
    recursion.save()
    fresh = recursive("reach", thin=thin)
    for keeper in fresh.circuit.arrangements():
        runs = sorted(recursion.stored[keeper.name].items())
        column = altered if keeper.name == name else None
        keeper.load([(number, paged(table, column)) for number, table in runs])
    fresh.circuit.take_up(recursion.circuit.counters())
    fresh.merge = recursion.merge
    return fresh


def test_state_holds_no_other_memory() -> None:
    """Each column owns its memory, so the rows of a step are freed after it."""
    recursion = recursive("reach")
    recursion.step(chain(3_000))
    (run,) = recursion.fixpoint.rows.arrangement.runs
    for array in (run.codes, *run.values.values()):
        assert array.strides == (8,)
        assert array.base is None or array.base.nbytes == array.nbytes


def chain(length: int) -> Tables:
    links = Counter({(node, node + 1, 1): 1 for node in range(length)})
    return {"links": links, "seeds": Counter({(0, 1): 1})}


@pytest.mark.parametrize("thin", THINS)
def test_paged_state_is_checked_before_use(thin: int) -> None:
    """Delete a link in the middle of a chain, and insert it again."""
    tables, deleted = chain(300), Counter({(150, 151, 1): -1})
    recursion = recursive("reach", thin=thin)
    recursion.step(tables)
    fresh = from_pages(recursion, thin)
    deleted_rows = fresh.step({"links": deleted, "seeds": Counter()})
    assert deleted_rows == Counter({(node,): -1 for node in range(151, 301)})
    inserted_rows = fresh.step({"links": Counter({(150, 151, 1): 1}), "seeds": Counter()})
    assert inserted_rows == Counter({(node,): 1 for node in range(151, 301)})
    ranks = {row: rank for row, (rank, _, _) in fresh.ranked().items()}
    assert sorted(ranks) == [(node,) for node in range(301)]
    assert all(ranks[node,] < ranks[node + 1,] for node in range(300))


@pytest.mark.parametrize("thin", THINS)
def test_altered_pages_are_an_error(thin: int) -> None:
    """The deleted rows are in the first page, those after them in the second, altered page."""
    recursion = recursive("reach")
    recursion.step(chain(1_200))
    for name, columns in {
        "fix.rows": ("code", "rank", "all", "low"),
        "step.join0.right": ("code", "column1", "weight"),
    }.items():
        for column in columns:
            fresh = from_pages(recursion, thin, name, column)
            with pytest.raises(AlteredError):
                fresh.step({"links": Counter({(490, 491, 1): -1}), "seeds": Counter()})


COLUMNS = (("n", LONG), ("c", LONG))
BY_KEY = Grouped(("n",), (("c", False),))
GREATEST = Grouped(("n",), (("c", True),))
LINKS = Side((("a", LONG), ("b", LONG), ("w", LONG), ("v", INTEGER), ("d", DOUBLE)), ("a",), 1)
KINDS = dict((*COLUMNS, *LINKS.columns))


def ref(name: str) -> ColumnRef:
    return ColumnRef(name, KINDS.get(name, LONG))


def number(value: int | None, kind: SqlType = LONG) -> Literal:
    return Literal(value, kind)


def plus(left: Expr, right: Expr) -> Expr:
    return Arithmetic(ArithmeticOp.ADD, left, right)


def minus(left: Expr, right: Expr) -> Expr:
    return Arithmetic(ArithmeticOp.SUBTRACT, left, right)


C, W, V = ref("c"), ref("w"), ref("v")


def recognized(
    *outputs: Mapping[str, Expr],
    grouped: Grouped = BY_KEY,
    columns: tuple[tuple[str, SqlType], ...] = COLUMNS,
    keys: tuple[str, ...] = ("n",),
    links: Side = LINKS,
) -> ValuedStep | None:
    """What a step with these projections above its join, lowest first, is recognized as."""
    join = JoinOperator("join", Side((*columns, ("rank", LONG)), keys, 0), links, [False])
    above = [ProjectOperator(list(one.items())) for one in outputs]
    wires: Sequence[tuple[int, ...]] = [(-1, -2), *((index,) for index in range(len(above)))]
    return valued_step(Circuit([join, *above], wires), columns, grouped, "rank")


def heads(value: Expr, key: Expr = ref("b"), rank: Expr = ref("rank")) -> Mapping[str, Expr]:  # noqa: B008
    return {"n": key, "c": value, "rank": rank}


ADDED: Mapping[str, tuple[Expr, Offset]] = {
    "nothing": (C, Offset()),
    "a column": (plus(C, W), Offset("w")),
    "a column, first": (plus(W, C), Offset("w")),
    "a column less": (minus(C, W), Offset("w", -1)),
    "a smaller number": (plus(C, V), Offset("v")),
    "a constant": (plus(number(7), C), Offset(constant=7)),
    "a constant less": (minus(C, number(7)), Offset(constant=-7)),
    "both": (minus(plus(minus(C, number(2)), W), number(3)), Offset("w", 1, -5)),
    "both, less": (plus(number(1), minus(C, W)), Offset("w", -1, 1)),
    "a large constant": (plus(C, number((1 << 50) - 1)), Offset(constant=(1 << 50) - 1)),
}
OTHER_STEPS: Mapping[str, Expr] = {
    "taken from a column": minus(W, C),
    "taken from a constant": minus(number(7), C),
    "taken from what was added": minus(number(7), plus(C, W)),
    "added, then taken from": minus(W, plus(C, number(1))),
    "twice": plus(C, C),
    "two columns": plus(plus(C, W), V),
    "a column twice": plus(plus(C, W), W),
    "times": Arithmetic(ArithmeticOp.MULTIPLY, C, W),
    "no number": plus(C, number(None)),
    "a part of one": plus(C, Literal(1.5, DOUBLE)),
    "a constant too large": plus(C, number(1 << 50)),
    "a constant too small": minus(C, number(1 << 50)),
    "a sum of others": plus(C, plus(W, number(1))),
    "another one": W,
    "the key": plus(ref("n"), W),
    "the rank": plus(ref("rank"), W),
    "a double": plus(C, ref("d")),
}


@pytest.mark.parametrize("name", ADDED)
def test_offsets_are_recognized_in_either_order(name: str) -> None:
    value, offset = ADDED[name]
    result = recognized(heads(value))
    assert (result.key, result.value, result.head, result.side) == ("n", "c", "b", 0)
    assert (result.offset, result.is_greatest) == (offset, False)
    for_greatest = recognized(heads(value), grouped=GREATEST)
    assert for_greatest.offset == Offset(offset.column, -offset.sign, -offset.constant)
    assert for_greatest.is_greatest


@pytest.mark.parametrize("name", OTHER_STEPS)
def test_other_steps_are_not_recognized(name: str) -> None:
    assert recognized(heads(OTHER_STEPS[name])) is None


def test_offsets_add_up_over_projections() -> None:
    below = {"b1": ref("b"), "c1": plus(C, W), "r1": ref("rank"), "more": number(4)}
    above = heads(minus(ref("c1"), ref("more")), ref("b1"), ref("r1"))
    assert recognized(below, above).offset == Offset("w", 1, -4)
    taken_from = heads(minus(ref("more"), ref("c1")), ref("b1"), ref("r1"))
    assert recognized(below, taken_from) is None


def test_keys_come_from_the_table_and_ranks_from_the_rows() -> None:
    value = plus(C, W)
    assert recognized(heads(value)) is not None
    assert recognized(heads(value, ref("n"))) is None, "its own key"
    assert recognized(heads(value, plus(ref("b"), number(1)))) is None, "a key that is computed"
    assert recognized(heads(value, ref("v"))) is None, "a key of another type"
    assert recognized(heads(value, rank=ref("w"))) is None, "another rank"
    assert recognized(heads(value, rank=plus(ref("rank"), number(1)))) is None, "a rank computed"


def test_only_one_integer_key_and_value_are_recognized() -> None:
    step = heads(plus(C, W))
    assert recognized(step, grouped=Grouped(("n", "c"), (("c", False),))) is None
    assert recognized(step, grouped=Grouped(("n",), (("c", False), ("n", False)))) is None
    for kinds in ({"n": STRING, "c": LONG}, {"n": LONG, "c": INTEGER}, {"n": LONG, "c": DOUBLE}):
        links = Side((("a", kinds["n"]), ("b", kinds["n"]), ("w", kinds["c"])), ("a",), 1)
        value = plus(ColumnRef("c", kinds["c"]), ColumnRef("w", kinds["c"]))
        outputs = heads(value, ColumnRef("b", kinds["n"]))
        assert recognized(outputs, columns=tuple(kinds.items()), links=links) is None
    more = (*COLUMNS, ("x", LONG))
    for keys, columns in ((("n", "x"), more), (("n",), more), (("n", "c"), COLUMNS)):
        links = Side(LINKS.columns, ("a", "w")[: len(keys)], 1)
        outputs = {**heads(plus(C, W)), **({"x": ref("w")} if columns is more else {})}
        assert recognized(outputs, columns=columns, keys=keys, links=links) is None
