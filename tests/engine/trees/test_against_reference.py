"""Random trees, tables and changes: sketches and groups equal brute force after every batch."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from impctl.engine.jointree.spec import Mode
from impctl.engine.jointree.tree import Tree
from tests.support.circuits import Rooted
from tests.support.random_cases import random_cases
from tests.support.reference_tree import groups_of, sketches
from tests.support.tree_cases import Case, Row, Stored, random_case, random_changes

STEPS = 8


def groups_told(case: Case, circuit: Rooted) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The tree's groups, from its state."""
    tree = next(iter(circuit.circuit))
    assert isinstance(tree, Tree)
    batch = tree.output()
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
    if case.tree.mode is Mode.RING:
        groups = groups_of(case.tree, held)
        if not case.tree.root.key:
            groups.setdefault((), [])
        assert groups_told(case, circuit) == {k: case.outputs(rows) for k, rows in groups.items()}
    return result


def run(case: Case, seed: int, *, restarts: bool) -> Counter[str]:
    random_ = random.Random(seed + 1)
    tables: list[Counter[Row]] = [Counter() for _ in range(3)]
    circuit = case.circuit()
    first = circuit.circuit.start()
    if first is not None:
        circuit.merge.step(first)
    said: Counter[str] = Counter()
    stored = Stored()
    for _ in range(STEPS):
        changes = random_changes(random_, tables)
        circuit.step(*case.batches(changes))
        for table, row, weight in changes:
            tables[table][row] += weight
        result = check(case, circuit, tables)
        said["sketch"] += any(result)
        if restarts:
            circuit = stored.restarted(circuit, case.circuit())
    for name, number in circuit.circuit.counters().items():
        said[name.rpartition(".")[2]] += number
    return said


@random_cases(30, 90, 1_000)
def test_sketches_and_groups_equal_brute_force(cases: range) -> None:
    for seed in cases:
        run(random_case(seed), seed, restarts=seed % 3 == 0)
