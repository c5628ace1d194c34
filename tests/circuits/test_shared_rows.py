"""Queries that are stepped by the same rows find alike things of them once, and nothing else.

Random plans over the same tables, some of them twice and some with another constant: each steps as
it does alone, to the bit of its state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import copysign
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.compile.buffers import Buffers
from impctl.compile.compile import Compiled, compile_plan
from impctl.compile.flows import BlockedError, Source
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import DOUBLE
from impctl.data.vector import Ints, Once, Vector
from impctl.engine.batch import Batch
from impctl.engine.linear import Project, Scan, Select
from impctl.errors import EvaluationError, NotExactError
from impctl.expr.nodes import Arithmetic, ArithmeticOp, ColumnRef, Compare, CompareOp, Literal
from impctl.rules.optimize import apply_rules
from tests.circuits.plan_cases import Rows, changes_of, partitions_of, table_of
from tests.plan.trials import make_trial
from tests.support.random_cases import random_cases

ROUNDS = 3


class Stepped:
    """A compiled query and what its steps left, by checkpoint; it ends at the first error."""

    def __init__(self, seed: int, tables: dict[str, Rows]) -> None:
        trial = make_trial(seed)
        partitions, root = partitions_of(trial), apply_rules(trial.root)
        self.compiled: Compiled = compile_plan(
            root, partitions, {}, None, barriers=(), buffers=Buffers.of(None)
        )
        self.session = MaintainedQuery(self.compiled)
        self.tables = tables
        self.is_over = False
        self.left: list[Any] = []
        self._attempt(
            lambda: self.session.load(
                (name, table_of(name, tables[name])) for name in self.compiled.tables
            )
        )

    def step(self, changes: dict[str, TableChange]) -> None:
        own = {name: result for name, result in changes.items() if name in self.compiled.tables}
        self._attempt(lambda: self.session.step(own, self._rows))

    def _rows(self, source: Source, keys: dict[str, Vector]) -> list[pa.Table]:
        return [table_of(source.table, self.tables[source.table]).select(source.scan.table_columns)]

    def _attempt(self, work: Any) -> None:
        if self.is_over:
            return
        try:
            work()
        except (EvaluationError, NotExactError) as error:
            self.is_over = True
            self.left.append(type(error).__name__)
            return
        checkpoint = self.session.checkpoint()
        self.session.saved()
        runs = [(name, at, table.to_pylist()) for name, at, table in checkpoint.put]
        fragments = {a: kept.ids for a, kept in self.session.fragments().items()}
        self.left.append((repr(runs), checkpoint.drop, dict(checkpoint.counters), fragments))


def compare(seeds: Sequence[int]) -> int:
    """Steps each of the trials beside the others and alone; how many got through all batches."""
    rng = Random(seeds[0])
    spare: dict[str, Rows] = {n: list(rows) for n, rows in make_trial(seeds[0]).tables.items()}
    tables = {name: [row for row in spare[name] if rng.random() < 0.7] for name in spare}
    pairs = []
    for seed in (*seeds, seeds[0]):
        try:
            pairs.append((Stepped(seed, tables), Stepped(seed, tables)))
        except BlockedError:
            continue
    for _ in range(ROUNDS):
        changes = changes_of(rng, list(tables), tables, spare)
        shared = {name: replace(result, shared=Once()) for name, result in changes.items()}
        for beside, alone in pairs:
            beside.step(shared)
            alone.step(changes)
    for beside, alone in pairs:
        assert beside.left == alone.left, seeds
    return sum(not beside.is_over for beside, _ in pairs)


@pytest.mark.slow
@random_cases(0, 10, 250, also="5 12 15 16 24")
def test_queries_beside_each_other_step_as_alone(cases: Sequence[int]) -> None:
    assert sum(compare(range(5 * group, 5 * group + 5)) for group in cases) > 3 * len(cases)


@pytest.mark.parametrize("zeros", [(0.0, -0.0), (-0.0, 0.0)])
def test_zeros_of_either_sign_are_computed_apart(zeros: tuple[float, float]) -> None:
    """They compare equal, and so would all that is made with them."""
    shared = Once()
    scan = Scan([("x", "x", DOUBLE)], [])
    rows, weights = pa.table({"x": [1.0]}), pa.array([1]).to_numpy()
    for zero in zeros:
        times_zero = Arithmetic(
            ArithmeticOp.MULTIPLY, ColumnRef("x", DOUBLE), Literal(zero, DOUBLE)
        )
        result = Project([("z", times_zero)]).step(scan.read(rows, weights, shared))
        assert copysign(1, result.columns["z"].values[0]) == copysign(1, zero)


def test_what_is_alike_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    whole = Scan._read

    def counted(self: Scan, rows: pa.Table, weights: Ints, shared: Once | None) -> Batch:
        read.append(self)
        return whole(self, rows, weights, shared)

    monkeypatch.setattr(Scan, "_read", counted)
    scan = Scan([], [])
    rows, weights, shared = pa.table({"a": [1]}), pa.array([1]).to_numpy(), Once()
    batches = [scan.read(rows, weights, shared) for _ in range(3)]
    assert len(read) == 1
    assert batches[0] is batches[2]


def test_conditions_on_one_batch_keep_their_own_rows() -> None:
    rows, weights = pa.table({"x": [1.0, 2.0, 3.0]}), np.ones(3, dtype=np.int64)
    batch = Scan([("x", "x", DOUBLE)], []).read(rows, weights, Once())
    for bound in (1.0, 2.0, 1.0):
        above = Compare(CompareOp.GREATER, ColumnRef("x", DOUBLE), Literal(bound, DOUBLE))
        kept = Select(above, must_be_sure=False).step(batch)
        assert kept.columns["x"].values.tolist() == [x for x in (1.0, 2.0, 3.0) if x > bound]


def test_no_more_than_a_few_answers_are_held() -> None:
    shared = Once()
    made: list[int] = []
    for question in (*range(20), 19, 0):
        assert shared.of(question, lambda q=question: made.append(q) or q) == question
    assert made == [*range(20), 0]
