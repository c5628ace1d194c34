"""Random joins of changing tables: a tree's sketches, the index join's and the reference's agree.

Queries as `random_joins` writes them, a partition on each access, several tables changed in a
batch, rows that come back, tables emptied, a restart in between.

By hand: `IMPCTL_FUZZ=30` and `-m slow` for 9,000 queries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from impctl.circuits.checkpoint import Checkpoint
from impctl.circuits.compile import Compiled, compile_plan
from impctl.circuits.flows import BlockedError
from impctl.circuits.session import MaintainedQuery, TableChange
from impctl.circuits.strategy import AsRecorded
from impctl.circuits.trees.built import NoTreeError
from impctl.data.schema import LONG
from impctl.engine.operators.live import Live
from impctl.engine.trees import way_down
from impctl.errors import QueryError
from impctl.plan.nodes import Plan, scans_of
from impctl.sketch.partition import RangePartition
from tests.circuits.trees.drawn import CATALOG, core
from tests.circuits.trees.random_joins import COLUMNS, JoinMaker, random_tables
from tests.support.random_cases import TIMES
from tests.support.reference_plan import Tables, annotate

BATCHES = 4


@dataclass
class Case:
    """A query, its tables as they are, and its circuits by trees and by joins."""

    seed: int
    rng: Random
    sql: str
    root: Plan
    tables: Tables
    partitions: dict[str, RangePartition]

    def compiled(self, *, by_tree: bool) -> Compiled:
        return compile_plan(
            self.root, self.partitions, {}, AsRecorded(has_trees=by_tree), barriers=()
        )

    def started(self, *, by_tree: bool) -> MaintainedQuery:
        session = MaintainedQuery(self.compiled(by_tree=by_tree))
        names = sorted(session.compiled.tables)
        session.load((name, arrow(self.tables[name])) for name in names)
        return session

    def changed(self) -> dict[str, TableChange]:
        """A batch of some tables, which are brought up to date: rows go, rows come, some of which
        went before or come twice."""
        found = {}
        for name in self.tables:
            if self.rng.random() < 0.4:
                continue
            held = list(self.tables[name])
            gone = [row for row in held if self.rng.random() < self.rng.choice((0.2, 0.4, 1.0))]
            came = list(random_tables(self.rng)[name])[: self.rng.randint(0, 4)]
            came += [row for row in gone if self.rng.random() < 0.3]
            for row in gone:
                held.remove(row)
            self.tables = {**self.tables, name: [*held, *came]}
            weights = np.array([-1] * len(gone) + [1] * len(came), dtype=np.int64)
            found[name] = TableChange(arrow([*gone, *came]), weights)
        return found

    def wanted(self) -> dict[str, set[int]]:
        """The fragments of the rows that the query's rows stem from."""
        found: dict[str, set[int]] = {access: set() for access in self.partitions}
        by_table = {scan.access: scan.table for scan in scans_of(self.root)}
        for access, place in annotate(self.root, self.tables).lineage:
            if access in found:
                row = self.tables[by_table[access]][place]
                found[access].add(fragment(row[self.partitions[access].attribute]))
        return found


def fragment(value: object) -> int:
    assert value is None or isinstance(value, int)
    return 3 if value is None else min(value, 2)


def arrow(rows: Iterable[Mapping[str, object]]) -> pa.Table:
    rows = list(rows)
    kinds = {name: pa.int32() if name == "i" else pa.int64() for name in COLUMNS}
    return pa.table(
        {name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()}
    )


def case_of(seed: int) -> Case | None:
    rng = Random(seed)
    sql = JoinMaker(rng).sql()
    try:
        root = core(sql)
    except QueryError:
        return None
    partitions = {
        scan.access: RangePartition(scan.table, rng.choice("abc"), LONG, (1, 2))
        for scan in scans_of(root)
    }
    return Case(seed, rng, sql, root, random_tables(rng), partitions)


def one_case(seed: int, seen: Counter[str]) -> None:
    case = case_of(seed)
    if case is None:
        return
    try:
        tree, joined = case.started(by_tree=True), case.started(by_tree=False)
    except (NoTreeError, BlockedError) as error:
        seen[type(error).__name__] += 1
        return
    if not tree.compiled.trees:
        return
    for batch in range(BATCHES):
        compare(case, tree, joined, batch, seen)
        if batch == 1:
            tree = restarted(case, tree)
        changes = case.changed()
        for session in (tree, joined):
            tables = set(session.compiled.tables)
            session.step({name: found for name, found in changes.items() if name in tables})
    compare(case, tree, joined, BATCHES, seen)
    counters = tree.circuit.counters()
    for what in ("flips", "touched"):
        seen[what] += sum(n for name, n in counters.items() if name.endswith(f".{what}"))
    seen["trees"] += 1
    for built in tree.compiled.trees:
        seen[str(built.tree.mode)] += 1
        seen.update(str(link.edge) for _, link, _ in built.tree.edges())


def compare(
    case: Case, tree: MaintainedQuery, joined: MaintainedQuery, batch: int, seen: Counter[str]
) -> None:
    found, theirs = (
        {access: set(held.ids) for access, held in session.fragments().items()}
        for session in (tree, joined)
    )
    assert found == theirs, (case.seed, batch, case.sql, found, theirs)
    wanted = case.wanted()
    assert found == wanted, (case.seed, batch, case.sql, found, wanted)
    seen["with fragments"] += any(found.values())


def restarted(case: Case, session: MaintainedQuery) -> MaintainedQuery:
    """What goes on from the state alone."""
    checkpoint: Checkpoint = session.checkpoint()
    runs: dict[str, list[tuple[int, pa.Table]]] = {}
    for name, sequence, table in checkpoint.put:
        runs.setdefault(name, []).append((sequence, table))
    fresh = MaintainedQuery(case.compiled(by_tree=True))
    fresh.restore(runs, checkpoint.counters)
    return fresh


def several_cases(seeds: Iterable[int]) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        one_case(seed, seen)
    return seen


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(300), id="few"),
        pytest.param(range(300, 300 * TIMES), id="rest", marks=pytest.mark.slow),
    ],
)
def test_trees_joins_and_reference_agree(seeds: range) -> None:
    seen = several_cases(seeds)
    if not len(seeds):
        return
    assert seen["trees"] > len(seeds) // 2, seen
    assert seen["with fragments"] > seen["trees"], seen
    assert seen["flips"] > seen["trees"], seen
    for what in ("ring", "bits", "inner", "semi", "anti", "left"):
        assert seen[what] > len(seeds) // 50, (what, seen)


def test_a_flip_that_is_not_told_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: decisions that never come down leave fragments behind."""
    whole = way_down.surviving
    monkeypatch.setattr("impctl.engine.operators.live.surviving", lambda *_: None)
    assert whole is not None
    with pytest.raises(AssertionError):
        several_cases(range(60))


def test_the_same_rows_in_two_nodes_are_read_once_each() -> None:
    """A table joined with itself: one batch is in both nodes, and its rows meet each other."""
    sql = "SELECT COUNT(*) AS n FROM r x JOIN r y ON x.a = y.b GROUP BY x.c HAVING COUNT(*) > 1"
    assert set(CATALOG) >= {"r"}
    root = core(sql)
    accesses = [scan.access for scan in scans_of(root)]
    partitions = {access: RangePartition("r", "c", LONG, (1, 2)) for access in accesses}
    case = Case(0, Random(0), sql, root, {"r": []}, partitions)
    tree = case.started(by_tree=True)
    assert any(isinstance(operator, Live) for operator in tree.circuit)
    row = {**dict.fromkeys(COLUMNS), "a": 1, "b": 1, "c": 0}
    tree.step({"r": TableChange(arrow([row, row]), np.ones(2, dtype=np.int64))})
    assert [set(held.ids) for held in tree.fragments().values()] == [{0}, {0}]
    tree.step({"r": TableChange(arrow([row]), -np.ones(1, dtype=np.int64))})
    assert [set(held.ids) for held in tree.fragments().values()] == [set(), set()]
