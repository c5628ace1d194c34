"""Random trees, tables and changes against brute force after every batch; what is no tree."""

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


def groups_told(case: Case, circuit: Rooted) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The tree's groups, from its state."""
    batch = next(iter(circuit.circuit)).output()
    names = [*case.tree.root.key, *(column.id for column in case.tree.columns)]
    lists = [batch.columns[name].to_arrow().to_pylist() for name in names] if len(batch) else []
    keys = len(case.tree.root.key)
    assert not len(batch) or set(batch.weights.tolist()) == {1}
    rows = zip(*lists, strict=True)
    return {row[:keys]: dict(zip(names[keys:], row[keys:], strict=True)) for row in rows}


def check(case: Case, circuit: Rooted, tables: list[Counter[Row]]) -> list[set[int]]:
    held = case.held(tables)
    wanted = sketches(case.tree, held, case.survives)
    result = [set(circuit.merge.members(a).nonzero()[0].tolist()) for a in range(len(wanted))]
    assert result == wanted
    if case.tree.mode is TreeMode.RING:
        groups = groups_of(case.tree, held)
        if not case.tree.root.key:
            groups.setdefault((), [])
        assert groups_told(case, circuit) == {k: case.outputs(rows) for k, rows in groups.items()}
    return result


def run(case: Case, seed: int, *, restarts: bool) -> Counter[str]:
    random_ = random.Random(seed + 1)
    tables: list[Counter[Row]] = [Counter() for _ in range(3)]
    circuit = started(case.circuit())
    said: Counter[str] = Counter()
    stored = Stored()
    for _ in range(STEPS):
        changes = random_changes(random_, tables)
        circuit.step(*case.batches(changes))
        for table, row, weight in changes:
            tables[table][row] += weight
        said["sketch"] += any(check(case, circuit, tables))
        if restarts:
            circuit = stored.restarted(circuit, case.circuit())
    for name, number in circuit.circuit.counters().items():
        said[name.rpartition(".")[2]] += number
    return said


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


def test_a_group_that_comes_to_pass_tells_what_it_is_made_of(path: Grown) -> None:
    before = {"r1": {0, 1}, "r2": {0}, "r3": {0, 1}}
    assert path.sketches == before
    # Key 2 of r1 and one tuple of r2; key 10 of r3 is wanted once more, which flips nothing.
    assert path.step(r1=[((2,), 3, 1)]) == (2, 2, 3)
    assert path.sketches == {"r1": {0, 1, 2, 3}, "r2": {0, 2}, "r3": {0, 1}}
    assert path.step(r1=[((2,), 3, -1)]) == (2, 2, 3)
    assert path.sketches == before


def test_a_row_that_finds_nobody_touches_itself_alone(path: Grown) -> None:
    assert path.step(r1=[((5,), 9, 1)]) == (1, 0, 0)
    assert path.step(r3=[((99, 1), 9, 1)]) == (1, 0, 0)


@pytest.mark.parametrize("partners", [1, 10, 100])
def test_touched_does_not_grow_with_the_joined_rows(partners: int) -> None:
    nodes = [
        tree_node(0, "s", "a", "a", argument=True),
        tree_node(1, "r", "a", "a", [(0, Edge.INNER, "a")]),
    ]
    tree = grown(nodes, compared(SUM, CompareOp.GREATER, 0))
    copies = [((1,), at % 8, 1) for at in range(partners)]
    tree.step(r=copies, s=[((1, 1), at % 8, 1) for at in range(partners)])
    assert tree.step(s=[((1, 5), 0, 1)]) == (2, 0, 0)


def test_a_hub_of_bits_is_touched_only_where_it_comes_or_goes() -> None:
    hub = 1000
    nodes = [tree_node(0, "s", "a", "a"), tree_node(1, "r", "ab", "b", [(0, Edge.INNER, "a")])]
    tree = grown(nodes, bits=True)
    tree.step(r=[((1, at), at % 8, 1) for at in range(hub)])
    all_of_it = (hub + 1, hub + 1, hub + 1)
    for range_id, weight, touched in ((0, 1, all_of_it), (1, 1, (1, 0, 1)), (0, -1, (1, 0, 1))):
        assert tree.step(s=[((1,), range_id, weight)]) == touched
    assert tree.step(s=[((1,), 1, -1)]) == all_of_it


X = Count("x", 0)
SUM_OF_X = AggregateColumn("sum", LONG, ExactSum("x", 0, LONG), X)
LEAF = TreeNode("s", 0, (("s.a", LONG),), ("s.a",), (False,), (), (("x", LONG),), (Access(0),))
ROOT = TreeNode("r", 1, (("r.a", LONG),), ("r.a",), (), (Link(0, Edge.INNER, ("r.a",)),))
GOOD = JoinTree("tree0", (LEAF, ROOT), TreeMode.RING, (SUM_OF_X,), 1)


def with_leaf(**changes: object) -> JoinTree:
    return replace(GOOD, nodes=(replace(LEAF, **changes), ROOT))  # type: ignore[arg-type]


def with_root(**changes: object) -> JoinTree:
    return replace(GOOD, nodes=(LEAF, replace(ROOT, **changes)))  # type: ignore[arg-type]


def test_a_tree_is_taken() -> None:
    assert Tree(GOOD).tree == GOOD
    assert GOOD.inputs == 2


NO_TREES: dict[str, Callable[[], JoinTree]] = {
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
        accesses=(Access(0, ("s.b", None)),)  # type: ignore[arg-type]  # not even looked at
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


def test_a_call_that_a_tree_cannot_keep_is_refused_by_name() -> None:
    part = Extreme("x", 0, False, 10)
    tree = replace(GOOD, columns=(SUM_OF_X, AggregateColumn("y", LONG, part, X)))
    with pytest.raises(UnsupportedError, match="a bounded MIN or MAX") as error:
        Tree(tree)
    assert error.value.code == "no_join_tree"


ONCE = replace(GOOD, nodes=(replace(LEAF, arguments=()), ROOT), once=(("x", "r.a"),))


NOT_ONCE: dict[str, Callable[[], JoinTree]] = {
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
NOT_ORDERED: dict[str, Callable[[], JoinTree]] = {
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


def test_what_is_ordered_is_a_column_of_the_root() -> None:
    assert Tree(ORDERED).tree == ORDERED


@pytest.mark.parametrize(
    ("reason", "tree"), [*NO_TREES.items(), *NOT_ONCE.items(), *NOT_ORDERED.items()]
)
def test_what_is_no_tree_is_refused(reason: str, tree: Callable[[], JoinTree]) -> None:
    with pytest.raises(InvariantError, match=reason):
        Tree(tree())


def test_of_an_argument_that_is_ordered_something_else_may_be_asked_too() -> None:
    kept = replace(TEXT_ROOT, arguments=(("k", LONG),))
    for tree, counts in ((ORDERED, (Count("k", 1),)), (replace(ORDERED, nodes=(LEAF, kept)), ())):
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
def test_more_than_there_may_be_are_divided(
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
            said = run(case, seed, restarts=seed % 3 == 0)
        # The same tuples are touched, flip and are told, in whatever lots.
        for number in ("sketch", "touched", "flips", "pairs"):
            assert said[number] == whole[number], (seed, number)


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


def told(circuit: Rooted) -> list[list[int]]:
    return [counts.tolist() for counts in circuit.merge.counts]


def run_filled(seed: int) -> Counter[str]:
    """A tree that is filled and goes on, beside brute force and one that was stepped."""
    case, random_ = random_case(seed), random.Random(seed + 1)
    rows = whole_tables(random_)
    circuit, other = filled(case, splits(random_, rows)), stepped(case, splits(random_, rows))
    tables: list[Counter[Row]] = [Counter() for _ in range(3)]
    for table, row, weight in rows:
        tables[table][row] += weight
    stored = Stored()
    said: Counter[str] = Counter({str(case.tree.mode): 1})
    said["virtual"] += case.tree.root.is_virtual
    for _ in range(STEPS_AFTER):
        said["sketch"] += any(check(case, circuit, tables))
        assert told(circuit) == told(other)
        changes = random_changes(random_, tables)
        circuit.step(*case.batches(changes))
        other.step(*case.batches(changes))
        for table, row, weight in changes:
            tables[table][row] += weight
        if seed % 3 == 0:
            circuit = stored.restarted(circuit, case.circuit())
    check(case, circuit, tables)
    return said


@random_cases(0, 6, 2_000, also="0-11 20 25 42 58 59")
def test_filling_is_stepping(cases: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    said: Counter[str] = Counter()
    for seed in cases:
        monkeypatch.setattr(node, "LOT", (1, 3, 1_000)[seed % 3])
        said += run_filled(seed)
    assert min(said[what] for what in ("ring", "bits")) > len(cases) // 6
    assert said["virtual"] > 0
    assert said["sketch"] > len(cases) * 5 // 6, said


def test_every_tuple_is_looked_at_once_on_either_way() -> None:
    """However many batches: so a capture's cost is that of the tables."""
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


def test_a_tree_in_a_circuit_of_its_own_is_filled_too() -> None:
    case = random_case(8, mode=TreeMode.RING)
    rows = whole_tables(random.Random(5))
    plain = filled(case, [rows])
    inner = case.circuit()
    wires = [tuple(-1 - at for at in range(case.tree.inputs))]
    nested = Rooted(Circuit([inner.circuit], wires), inner.merge)
    started(nested)
    nested.circuit.fill(True)
    assert nested.circuit.step(*case.batches(rows)) is None
    for batch in nested.circuit.filled():
        nested.merge.step(batch)
    assert told(nested) == told(plain)


def fill(tree: Grown, **rows: Rows) -> None:
    """All rows at once, as a capture brings them."""
    tree.rooted.circuit.fill(True)
    tree.step(**rows)
    for batch in tree.rooted.circuit.filled():
        tree.rooted.merge.step(batch)
    tree.rooted.circuit.fill(False)


def test_the_one_group_that_was_there_before_any_row_counts_once() -> None:
    """It passes over nothing, passes when all is filled, and has to be able to leave."""
    nodes = [tree_node(0, "s", "a", "a"), tree_node(1, "r", "a", "", [(0, Edge.INNER, "a")])]
    tree = grown(nodes, compared(N, CompareOp.LESS, 3))
    fill(tree, r=[((1,), 0, 1)], s=[((1,), 0, 1), ((1,), 1, 1)])
    assert tree.sketches == {"r": {0}, "s": {0, 1}}
    tree.step(s=[((1,), 2, 1)])
    assert tree.sketches == {"r": set(), "s": set()}


def test_of_a_virtual_root_only_what_is_alive_is_kept() -> None:
    tree = virtual(Edge.INNER, Edge.INNER)
    fill(tree, s=[((1, 20), 0, 1), ((2, 20), 1, 1)], t=[((1,), 2, 1), ((3,), 3, 1)])
    assert tree.sketches == {"s": {0}, "t": {2}}
    root = next(iter(tree.rooted.circuit)).nodes[-1]
    assert root.keys.whole({})[0].tolist() == [1]
    assert root.up.rows == 1
