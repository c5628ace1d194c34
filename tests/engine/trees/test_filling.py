"""Trees that are filled once: what is remembered and told is what stepping would have come to."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from impctl.engine.circuit import Circuit
from impctl.engine.jointree import node as lots
from impctl.engine.jointree.spec import Edge, Mode
from impctl.engine.jointree.tree import Tree
from impctl.expr.nodes import CompareOp
from tests.engine.trees.test_against_reference import check
from tests.engine.trees.test_deciding import virtual
from tests.support.circuits import Rooted
from tests.support.hand_trees import Grown, N, Rows, compared, grown, node
from tests.support.random_cases import random_cases
from tests.support.tree_cases import Case, Row, Stored, random_case, random_changes, random_row

Change = tuple[int, Row, int]
STEPS = 3


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


def run(seed: int) -> Counter[str]:
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
    for _ in range(STEPS):
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


@random_cases(0, 30, 2_000, also="0-11 20 25 42 58 59")
def test_filling_is_stepping(cases: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    said: Counter[str] = Counter()
    for seed in cases:
        monkeypatch.setattr(lots, "LOT", (1, 3, 1_000)[seed % 3])
        said += run(seed)
    assert min(said[what] for what in ("ring", "bits")) > len(cases) // 6
    assert said["virtual"] > 0
    assert said["sketch"] > len(cases) * 5 // 6, said


def test_every_tuple_is_looked_at_once_on_either_way() -> None:
    """However many batches: so a capture's cost is that of the tables."""
    case = random_case(3, mode=Mode.RING, only_inner=True)
    random_ = random.Random(1)
    rows = [(table, random_row(random_), 1) for table in range(3) for _ in range(20)]
    one, many = filled(case, [rows]), filled(case, [[row] for row in rows])
    assert one.circuit.counters() == many.circuit.counters() | {
        name: number
        for name, number in one.circuit.counters().items()
        if name.endswith(("next_tuple", "next_key"))
    }
    tree = next(iter(many.circuit))
    assert isinstance(tree, Tree)
    tuples = sum(
        len(node.keys.whole({})[0] if node.is_flat else node.tuples.whole({})[0])
        for node in tree.nodes
        if not node.node.is_virtual
    )
    touched = many.circuit.counters()["tree0.touched"]
    assert touched == tuples or case.tree.root.is_virtual


def test_a_tree_in_a_circuit_of_its_own_is_filled_too() -> None:
    case = random_case(8, mode=Mode.RING)
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
    nodes = [node(0, "s", "a", "a"), node(1, "r", "a", "", [(0, Edge.INNER, "a")])]
    tree = grown(nodes, compared(N, CompareOp.LESS, 3))
    fill(tree, r=[((1,), 0, 1)], s=[((1,), 0, 1), ((1,), 1, 1)])
    assert tree.sketches == {"r": {0}, "s": {0, 1}}
    tree.step(s=[((1,), 2, 1)])
    assert tree.sketches == {"r": set(), "s": set()}


def test_of_a_virtual_root_only_what_is_alive_is_kept() -> None:
    tree = virtual(Edge.INNER, Edge.INNER)
    fill(tree, s=[((1, 20), 0, 1), ((2, 20), 1, 1)], t=[((1,), 2, 1), ((3,), 3, 1)])
    assert tree.sketches == {"s": {0}, "t": {2}}
    operator = next(iter(tree.rooted.circuit))
    assert isinstance(operator, Tree)
    root = operator.nodes[-1]
    assert root.keys.whole({})[0].tolist() == [1]
    assert root.up is not None
    assert root.up.rows == 1
