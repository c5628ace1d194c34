"""Random trees, tables and changes against brute force after every batch; invalid trees."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from impctl.data.schema import DOUBLE, LONG, STRING
from impctl.engine.accumulators import AggregateColumn, Count, ExactSum
from impctl.engine.circuit import Circuit
from impctl.engine.extremes import Extreme, FirstValue
from impctl.engine.jointree import node
from impctl.engine.jointree.spec import Access, Edge, JoinTree, Link, TreeMode, TreeNode
from impctl.engine.jointree.tree import Tree
from impctl.errors import InvariantError, UnsupportedError
from impctl.expr.nodes import CompareOp
from tests.engine.jointree.test_traps import virtual
from tests.support.circuits import Rooted
from tests.support.join_trees import (
    SUM,
    Case,
    Grown,
    N,
    Row,
    Rows,
    Stored,
    compared,
    groups_of,
    grown,
    random_case,
    random_changes,
    random_row,
    sketches,
)
from tests.support.join_trees import node as tree_node
from tests.support.random_cases import random_cases

STEPS = 8


def stored_groups(case: Case, circuit: Rooted) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The groups in the state of the tree, with their values."""
    batch = next(iter(circuit.circuit)).output()
    names = [*case.tree.root.key, *(column.id for column in case.tree.columns)]
    lists = [batch.columns[name].to_arrow().to_pylist() for name in names] if len(batch) else []
    keys = len(case.tree.root.key)
    assert not len(batch) or set(batch.weights.tolist()) == {1}
    rows = zip(*lists, strict=True)
    return {row[:keys]: dict(zip(names[keys:], row[keys:], strict=True)) for row in rows}


def check(case: Case, circuit: Rooted, tables: list[Counter[Row]]) -> list[set[int]]:
    rows_of_nodes = case.held(tables)
    expected = sketches(case.tree, rows_of_nodes, case.survives)
    result = [set(circuit.merge.members(a).nonzero()[0].tolist()) for a in range(len(expected))]
    assert result == expected
    if case.tree.mode is TreeMode.RING:
        groups = groups_of(case.tree, rows_of_nodes)
        if not case.tree.root.key:
            groups.setdefault((), [])
        assert stored_groups(case, circuit) == {k: case.outputs(rows) for k, rows in groups.items()}
    return result


def run(case: Case, seed: int, *, restarts: bool) -> Counter[str]:
    random_ = random.Random(seed + 1)
    tables: list[Counter[Row]] = [Counter() for _ in range(3)]
    circuit = started(case.circuit())
    counts: Counter[str] = Counter()
    stored = Stored()
    for _ in range(STEPS):
        changes = random_changes(random_, tables)
        circuit.step(*case.batches(changes))
        for table, row, weight in changes:
            tables[table][row] += weight
        counts["sketch"] += any(check(case, circuit, tables))
        if restarts:
            circuit = stored.restarted(circuit, case.circuit())
    for name, number in circuit.circuit.counters().items():
        counts[name.rpartition(".")[2]] += number
    return counts


@random_cases(18, 45, 1_000)
def test_sketches_and_groups_equal_brute_force(cases: range) -> None:
    for seed in cases:
        run(random_case(seed), seed, restarts=seed % 3 == 0)


@pytest.fixture
def path() -> Grown:
    """r1 and r3 at both ends of r2, GROUP BY r2.g HAVING SUM(r3.x) > 20."""
    nodes = [
        tree_node(0, "r1", "b", "b"),
        tree_node(1, "r3", "c", "c", argument=True),
        tree_node(2, "r2", "bcg", "g", [(0, Edge.INNER, "b"), (1, Edge.INNER, "c")]),
    ]
    tree = grown(nodes, compared(SUM, CompareOp.GREATER, 20))
    tree.step(
        r1=[((1,), 0, 1), ((1,), 1, 1), ((2,), 2, 1)],
        r2=[((1, 10, 7), 0, 1), ((1, 20, 7), 1, 1), ((2, 10, 8), 2, 1)],
        r3=[((10, 5), 0, 1), ((10, 7), 1, 1)],
    )
    return tree


def test_a_passing_group_adds_the_ranges_of_its_rows(path: Grown) -> None:
    before = {"r1": {0, 1}, "r2": {0}, "r3": {0, 1}}
    assert path.sketches == before
    # Key 2 of r1 and one tuple of r2; key 10 of r3 has one more parent, which flips nothing.
    assert path.step(r1=[((2,), 3, 1)]) == (2, 2, 3)
    assert path.sketches == {"r1": {0, 1, 2, 3}, "r2": {0, 2}, "r3": {0, 1}}
    assert path.step(r1=[((2,), 3, -1)]) == (2, 2, 3)
    assert path.sketches == before


def test_a_row_without_partners_touches_only_itself(path: Grown) -> None:
    assert path.step(r1=[((5,), 9, 1)]) == (1, 0, 0)
    assert path.step(r3=[((99, 1), 9, 1)]) == (1, 0, 0)


@pytest.mark.parametrize("partners", [1, 10, 100])
def test_touched_does_not_grow_with_the_joined_rows(partners: int) -> None:
    nodes = [
        tree_node(0, "s", "a", "a", argument=True),
        tree_node(1, "r", "a", "a", [(0, Edge.INNER, "a")]),
    ]
    tree = grown(nodes, compared(SUM, CompareOp.GREATER, 0))
    copies = [((1,), index % 8, 1) for index in range(partners)]
    tree.step(r=copies, s=[((1, 1), index % 8, 1) for index in range(partners)])
    assert tree.step(s=[((1, 5), 0, 1)]) == (2, 0, 0)


def test_a_hub_of_bits_is_touched_only_when_liveness_changes() -> None:
    hub = 1000
    nodes = [tree_node(0, "s", "a", "a"), tree_node(1, "r", "ab", "b", [(0, Edge.INNER, "a")])]
    tree = grown(nodes, bits=True)
    tree.step(r=[((1, index), index % 8, 1) for index in range(hub)])
    everything = (hub + 1, hub + 1, hub + 1)
    for range_id, weight, touched in ((0, 1, everything), (1, 1, (1, 0, 1)), (0, -1, (1, 0, 1))):
        assert tree.step(s=[((1,), range_id, weight)]) == touched
    assert tree.step(s=[((1,), 1, -1)]) == everything


X = Count("x", 0)
SUM_OF_X = AggregateColumn("sum", LONG, ExactSum("x", 0, LONG), X)
LEAF = TreeNode("s", 0, (("s.a", LONG),), ("s.a",), (False,), (), (("x", LONG),), (Access(0),))
ROOT = TreeNode("r", 1, (("r.a", LONG),), ("r.a",), (), (Link(0, Edge.INNER, ("r.a",)),))
GOOD = JoinTree("tree0", (LEAF, ROOT), TreeMode.RING, (SUM_OF_X,), 1)


def with_leaf(**changes: object) -> JoinTree:
    return replace(GOOD, nodes=(replace(LEAF, **changes), ROOT))  # type: ignore[arg-type]


def with_root(**changes: object) -> JoinTree:
    return replace(GOOD, nodes=(LEAF, replace(ROOT, **changes)))  # type: ignore[arg-type]


def test_a_valid_tree() -> None:
    assert Tree(GOOD).tree == GOOD
    assert GOOD.inputs == 2


INVALID_TREES: dict[str, Callable[[], JoinTree]] = {
    "every node but the root is the child": lambda: with_root(links=()),
    "every input belongs to one node": lambda: with_leaf(input=1),
    "two nodes have one name": lambda: with_leaf(name="r"),
    "every access belongs to one node": lambda: replace(GOOD, accesses=2),
    "only a root is virtual": lambda: replace(
        GOOD, nodes=(replace(LEAF, input=None), replace(ROOT, input=0))
    ),
    "does not keep its key": lambda: with_leaf(key=("s.b",)),
    "does not say what NULL is": lambda: with_leaf(null_safe=()),
    "stands before its child": lambda: replace(
        GOOD, nodes=(replace(ROOT, null_safe=(False,)), replace(LEAF, links=()))
    ),
    "have different keys": lambda: with_root(links=(Link(0, Edge.INNER, ()),)),
    "does not keep a key of its child": lambda: with_root(links=(Link(0, Edge.INNER, ("r.b",)),)),
    "a virtual root has an inner edge": lambda: with_root(
        input=None, links=(Link(0, Edge.LEFT, ("r.a",)),)
    ),
    "a child of a virtual root has all its columns": lambda: with_root(
        input=None, kept=(("r.a", LONG), ("r.b", LONG)), key=("r.a", "r.b")
    ),
    "nothing but its group columns": lambda: with_root(input=None, key=()),
    "does not keep the column of its ranges": lambda: with_leaf(
        accesses=(Access(0, ("s.b", None)),)  # type: ignore[arg-type]  # not checked
    ),
    "every argument belongs to one node": lambda: with_leaf(arguments=()),
    "bits have no columns": lambda: replace(GOOD, mode=TreeMode.BITS),
    "is seen above it": lambda: with_root(links=(Link(0, Edge.SEMI, ("r.a",)),)),
    "an extreme has a rank": lambda: replace(
        with_leaf(arguments=(("x", STRING),)),
        columns=(AggregateColumn("min", STRING, Extreme("x", 0, False), X),),
    ),
    "stands beside the count": lambda: replace(
        GOOD, columns=(AggregateColumn("min", LONG, Extreme("x", 0, False), None),)
    ),
}


def test_an_unsupported_call_is_refused_by_name() -> None:
    part = Extreme("x", 0, False, 10)
    tree = replace(GOOD, columns=(SUM_OF_X, AggregateColumn("y", LONG, part, X)))
    with pytest.raises(UnsupportedError, match="a bounded MIN or MAX") as error:
        Tree(tree)
    assert error.value.code == "no_join_tree"


ONCE = replace(GOOD, nodes=(replace(LEAF, arguments=()), ROOT), once=(("x", "r.a"),))


INVALID_ONCE: dict[str, Callable[[], JoinTree]] = {
    "does not keep a column whose values count once": lambda: replace(ONCE, once=(("x", "s.a"),)),
    "a virtual root has no values that count once": lambda: replace(
        ONCE, nodes=(replace(LEAF, arguments=()), replace(ROOT, input=None))
    ),
    "every argument belongs to one node": lambda: replace(GOOD, once=(("x", "r.a"),)),
    "is counted or summed up exactly": lambda: replace(
        ONCE, columns=(SUM_OF_X, AggregateColumn("y", LONG, Extreme("x", 0, False), X))
    ),
}


def test_an_argument_that_counts_once_is_a_column_of_the_root() -> None:
    assert [column.kept for column in Tree(ONCE).nodes[-1].once] == ["r.a"]


FIRST = AggregateColumn("first", STRING, FirstValue("k", "v", 1, 2, False), Count("k", 1))
TEXT_ROOT = replace(ROOT, kept=(("r.a", LONG), ("r.k", LONG), ("r.v", STRING)))
ORDERED = replace(
    GOOD, nodes=(LEAF, TEXT_ROOT), columns=(SUM_OF_X, FIRST), ordered=(("k", "r.k"), ("v", "r.v"))
)
INVALID_ORDERED: dict[str, Callable[[], JoinTree]] = {
    "the first values of a group are of columns that are ordered": lambda: replace(
        ORDERED, ordered=(("k", "r.k"),)
    ),
    "does not keep a column that is ordered": lambda: replace(
        ORDERED, ordered=(("k", "s.a"), ("v", "r.v"))
    ),
    "a virtual root has no values that are ordered": lambda: replace(
        ORDERED,
        nodes=(LEAF, replace(ROOT, input=None)),
        columns=(SUM_OF_X, replace(FIRST, type=LONG)),
        ordered=(("k", "r.a"), ("v", "r.a")),
    ),
    "what is ordered alone is only counted": lambda: replace(
        ORDERED, columns=(SUM_OF_X, FIRST, AggregateColumn("k", LONG, ExactSum("k", 1, LONG), None))
    ),
    "every argument belongs to one node": lambda: replace(ORDERED, columns=(FIRST,)),
    "exactly what is kept": lambda: replace(
        ORDERED, nodes=(LEAF, replace(TEXT_ROOT, kept=(*TEXT_ROOT.kept[:2], ("r.v", LONG))))
    ),
    "a first value is": lambda: replace(
        ORDERED,
        nodes=(LEAF, replace(TEXT_ROOT, kept=(*TEXT_ROOT.kept[:2], ("r.v", DOUBLE)))),
        columns=(SUM_OF_X, replace(FIRST, type=DOUBLE)),
    ),
}


def test_ordered_arguments_are_root_columns() -> None:
    assert Tree(ORDERED).tree == ORDERED


@pytest.mark.parametrize(
    ("reason", "tree"), [*INVALID_TREES.items(), *INVALID_ONCE.items(), *INVALID_ORDERED.items()]
)
def test_invalid_trees_are_refused(reason: str, tree: Callable[[], JoinTree]) -> None:
    with pytest.raises(InvariantError, match=reason):
        Tree(tree())


def test_an_ordered_argument_may_have_other_aggregates() -> None:
    root_with_argument = replace(TEXT_ROOT, arguments=(("k", LONG),))
    for tree, counts in (
        (ORDERED, (Count("k", 1),)),
        (replace(ORDERED, nodes=(LEAF, root_with_argument)), ()),
    ):
        (root,) = (one for one in Tree(tree).nodes if one.is_root)
        assert root.ordered.counts == counts


@pytest.mark.parametrize(
    ("length", "most", "expected"),
    [
        (0, 2, []),
        (2, 2, [(0, 2)]),
        (5, 4, [(0, 3), (3, 5)]),
        (5, 1, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]),
    ],
)
def test_lots_have_a_maximum_length(
    length: int, most: int, expected: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "LOT", 3)
    assert list(node.lots(length, most)) == expected


@random_cases(2, 3, 100, first=200, also="10 14")
def test_sketches_and_groups_equal_brute_force_in_any_lots(
    cases: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in cases:
        case = random_case(seed)
        whole = run(case, seed, restarts=False)
        with monkeypatch.context() as patched:
            patched.setattr(node, "MOST", 1 + seed % 2)
            counts = run(case, seed, restarts=seed % 3 == 0)
        # Lots of any size touch, flip and output the same tuples.
        for number in ("sketch", "touched", "flips", "pairs"):
            assert counts[number] == whole[number], (seed, number)


Change = tuple[int, Row, int]
STEPS_AFTER = 3


def whole_tables(random_: random.Random) -> list[Change]:
    """Rows of three tables in any order, some of them twice."""
    rows: list[Change] = []
    for table in range(3):
        for _ in range(random_.choice([0, 2, 5, 9])):
            row = random_row(random_)
            rows += [(table, row, 1)] * random_.choice([1, 1, 2])
    random_.shuffle(rows)
    return rows


def splits(random_: random.Random, rows: list[Change]) -> list[list[Change]]:
    """The rows as batches, each of any size."""
    result = []
    while rows:
        size = random_.randint(1, 6)
        result.append(rows[:size])
        rows = rows[size:]
    return result


def started(circuit: Rooted) -> Rooted:
    first = circuit.circuit.start()
    if first is not None:
        circuit.merge.step(first)
    return circuit


def filled(case: Case, batches: list[list[Change]]) -> Rooted:
    circuit = started(case.circuit())
    circuit.circuit.fill(True)
    for rows in batches:
        assert circuit.circuit.step(*case.batches(rows)) is None
        assert not any(counts.any() for counts in circuit.merge.counts[: case.tree.accesses])
    for batch in circuit.circuit.filled():
        circuit.merge.step(batch)
    circuit.circuit.fill(False)
    return circuit


def stepped(case: Case, batches: list[list[Change]]) -> Rooted:
    circuit = started(case.circuit())
    for rows in batches:
        circuit.step(*case.batches(rows))
    return circuit


def merge_counts(circuit: Rooted) -> list[list[int]]:
    return [counts.tolist() for counts in circuit.merge.counts]


def run_filled(seed: int) -> Counter[str]:
    """Fill a tree and step it; compare with brute force and a tree that was only stepped."""
    case, random_ = random_case(seed), random.Random(seed + 1)
    rows = whole_tables(random_)
    circuit, other = filled(case, splits(random_, rows)), stepped(case, splits(random_, rows))
    tables: list[Counter[Row]] = [Counter() for _ in range(3)]
    for table, row, weight in rows:
        tables[table][row] += weight
    stored = Stored()
    counts: Counter[str] = Counter({str(case.tree.mode): 1})
    counts["virtual"] += case.tree.root.is_virtual
    for _ in range(STEPS_AFTER):
        counts["sketch"] += any(check(case, circuit, tables))
        assert merge_counts(circuit) == merge_counts(other)
        changes = random_changes(random_, tables)
        circuit.step(*case.batches(changes))
        other.step(*case.batches(changes))
        for table, row, weight in changes:
            tables[table][row] += weight
        if seed % 3 == 0:
            circuit = stored.restarted(circuit, case.circuit())
    check(case, circuit, tables)
    return counts


@random_cases(0, 6, 2_000, also="0-11 20 25 42 58 59")
def test_fill_equals_steps(cases: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[str] = Counter()
    for seed in cases:
        monkeypatch.setattr(node, "LOT", (1, 3, 1_000)[seed % 3])
        counts += run_filled(seed)
    assert min(counts[mode] for mode in ("ring", "bits")) > len(cases) // 6
    assert counts["virtual"] > 0
    assert counts["sketch"] > len(cases) * 5 // 6, counts


def test_every_tuple_is_touched_once_in_a_fill() -> None:
    """The number of batches does not matter, so a capture costs as much as its tables."""
    case = random_case(3, mode=TreeMode.RING, only_inner=True)
    random_ = random.Random(1)
    rows = [(table, random_row(random_), 1) for table in range(3) for _ in range(20)]
    one, many = filled(case, [rows]), filled(case, [[row] for row in rows])
    assert one.circuit.counters() == many.circuit.counters() | {
        name: number
        for name, number in one.circuit.counters().items()
        if name.endswith(("next_tuple", "next_key"))
    }
    tuples = sum(
        len((node.keys if node.is_flat else node.tuples).whole({})[0])
        for node in next(iter(many.circuit)).nodes
        if not node.node.is_virtual
    )
    touched = many.circuit.counters()["tree0.touched"]
    assert touched == tuples or case.tree.root.is_virtual


def test_a_tree_in_a_nested_circuit_is_filled() -> None:
    case = random_case(8, mode=TreeMode.RING)
    rows = whole_tables(random.Random(5))
    plain = filled(case, [rows])
    inner = case.circuit()
    wires = [tuple(-1 - index for index in range(case.tree.inputs))]
    nested = Rooted(Circuit([inner.circuit], wires), inner.merge)
    started(nested)
    nested.circuit.fill(True)
    assert nested.circuit.step(*case.batches(rows)) is None
    for batch in nested.circuit.filled():
        nested.merge.step(batch)
    assert merge_counts(nested) == merge_counts(plain)


def fill(tree: Grown, **rows: Rows) -> None:
    """Insert all rows at once, as a capture does."""
    tree.rooted.circuit.fill(True)
    tree.step(**rows)
    for batch in tree.rooted.circuit.filled():
        tree.rooted.merge.step(batch)
    tree.rooted.circuit.fill(False)


def test_the_group_of_an_empty_input_counts_once() -> None:
    """It passes when empty and when filled, and must be deletable."""
    nodes = [tree_node(0, "s", "a", "a"), tree_node(1, "r", "a", "", [(0, Edge.INNER, "a")])]
    tree = grown(nodes, compared(N, CompareOp.LESS, 3))
    fill(tree, r=[((1,), 0, 1)], s=[((1,), 0, 1), ((1,), 1, 1)])
    assert tree.sketches == {"r": {0}, "s": {0, 1}}
    tree.step(s=[((1,), 2, 1)])
    assert tree.sketches == {"r": set(), "s": set()}


def test_a_virtual_root_stores_only_live_keys() -> None:
    tree = virtual(Edge.INNER, Edge.INNER)
    fill(tree, s=[((1, 20), 0, 1), ((2, 20), 1, 1)], t=[((1,), 2, 1), ((3,), 3, 1)])
    assert tree.sketches == {"s": {0}, "t": {2}}
    root = next(iter(tree.rooted.circuit)).nodes[-1]
    assert root.keys.whole({})[0].tolist() == [1]
    assert root.up.rows == 1
