"""Recursive queries with `lineage: witness`: over the sketches kept rows are those over tables.

Queries, tables and batches are those of `test_recursion`; then random plans. A sketch is a choice,
so it is not compared with another: after every batch, and after taking up what was stored, what the
fixpoint derives over it is what it derives over the tables, and so is the answer. It is part of
that of all derivations.
By hand: `IMPCTL_FUZZ=10` and `-m slow` for 6,000 plans.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pytest

from impctl.compile.compile import compile_plan
from impctl.compile.flows import BlockedError
from impctl.compile.session import MaintainedQuery
from impctl.data.schema import LONG, Column
from impctl.engine.fixpoint.fixpoint import Fixpoint as FixpointOperator
from impctl.errors import EvaluationError, NotExactError
from impctl.plan.nodes import Fixpoint, Plan, Query, nodes_of, scans_of
from impctl.rules.optimize import apply_rules, core_of
from impctl.rules.witnesses import witnessed
from impctl.safety.judge import check_safety
from tests.circuits.conversion_cases import whole_table
from tests.circuits.plan_cases import changes_of, partitions_of, table_of
from tests.circuits.test_recursion import (
    DRAWN,
    EXCEPT_LINKS,
    QUERIES,
    SIZES,
    Case,
    case_of,
    expected,
)
from tests.plan.fixpoint_plans import make_fixpoint_trial
from tests.plan.trials import accurate_sketches, instances_of
from tests.plan.witness_plans import kept_by_witnesses
from tests.support.carried_queries import Row, fragment
from tests.support.random_cases import random_cases, seen_in
from tests.support.reference_expr import ReferenceFailure, ReferenceLimit
from tests.support.reference_plan import annotate, bag, evaluate
from tests.support.restored_query import sketches_of

UNSAFE = {"groups in the step", "a group as base"}
"""Those that no sketch on another column than that of the groups is safe for."""
RECURSIVE = [n for n, sql in QUERIES.items() if "RECURSIVE" in sql and n not in UNSAFE]
Tables = Mapping[str, Sequence[Row]]


def chosen_case(name: str) -> Case:
    """The query with the plan that a sketch of witnesses is kept by."""
    case = case_of(name)
    query = replace(case.query, root=apply_rules(case.query.root))
    sketched = dict.fromkeys(case.sketched, "f")
    verdict = check_safety(query, sketched, ())
    assert verdict.safe, verdict.reason
    columns = dict.fromkeys(case.sketched, Column("f", LONG))
    return Case(query, case.sketched, core_of(witnessed(query, verdict, columns).query.root))


def rows_over(plan: Plan, tables: Tables, sketches: Mapping[str, Collection[int]]) -> object:
    """What a plan gives over the rows in the sketches."""
    instances = {
        scan.access: [
            at
            for at, row in enumerate(tables[scan.table])
            if fragment(row) in sketches[scan.access]
        ]
        for scan in scans_of(plan)
        if scan.access in sketches
    }
    return bag(evaluate(plan, tables, instances))


def check(query: MaintainedQuery, case: Case, tables: Tables, rng: random.Random) -> int:
    """That rows over the sketches, and over wider ones, are those over the tables; how many ranges
    they spare."""
    held, every = sketches_of(query), expected(case, tables)
    wider = {
        access: result | {one for one in range(5) if rng.random() < 0.3}
        for access, result in held.items()
    }
    plans = [case.query.root, *(n for n in nodes_of(case.core) if isinstance(n, Fixpoint))]
    for plan in plans:
        whole = bag(evaluate(plan, tables))
        for sketches in (held, wider):
            assert rows_over(plan, tables, sketches) == whole, (held, every)
    assert all(held[access] <= every[access] for access in held)
    return sum(len(every[access]) - len(held[access]) for access in held)


@pytest.mark.parametrize("name", RECURSIVE)
@random_cases(1, 3, 6)
def test_rows_over_what_is_chosen_are_those_over_the_tables(name: str, cases: range) -> None:
    case = chosen_case(name)
    made = partial(case.compiled, with_answer=False)
    assert any(isinstance(one, FixpointOperator) for one in made().circuit)
    for seed in cases:
        rng = random.Random(f"chosen {name} {seed}")
        tables = DRAWN.some_tables(rng, SIZES)
        for query in DRAWN.carried(rng, tables, made, 6):
            check(query, case, tables, rng)


def test_what_is_chosen_is_often_less() -> None:
    spared, rng = Counter[str](), random.Random(4)
    for name in RECURSIVE:
        case = chosen_case(name)
        if EXCEPT_LINKS.get(name):
            continue
        query = MaintainedQuery(case.compiled(with_answer=False))
        tables = DRAWN.some_tables(rng, {"links": 16, "seeds": 3})
        query.load(DRAWN.whole(tables))
        spared[name] = check(query, case, tables, rng)
    assert sum(spared.values()) > len(spared), spared


def one_plan(seed: int, seen: Counter[str]) -> None:
    """A random plan over tables that change."""
    trial, rng = make_fixpoint_trial(seed), random.Random(seed)
    root = apply_rules(trial.root)
    verdict = check_safety(Query("", root), trial.sketched, trial.facts)
    if not verdict.safe or verdict.ties is not None:
        seen["not sketched, or ties"] += 1
        return
    kept = kept_by_witnesses(root, trial, verdict)
    if not any(isinstance(node, Fixpoint) and node.chooses for node in nodes_of(kept)):
        seen["nothing to choose"] += 1
        return
    own = check_safety(Query("", kept), trial.sketched, trial.facts)
    partitions = partitions_of(trial)
    spare = {name: list(rows) for name, rows in trial.tables.items()}
    tables = {name: [row for row in spare[name] if rng.random() < 0.7] for name in spare}
    try:
        session = MaintainedQuery(
            compile_plan(kept, partitions, own.key_columns, barriers=own.barrier_positions)
        )
        session.load([(name, table_of(name, tables[name])) for name in session.compiled.tables])
        for _ in range(4):
            held = {access: set(result.ids) for access, result in session.fragments().items()}
            instances = instances_of(root, tables, trial.partitions, held)
            whole = bag(evaluate(root, tables))
            assert bag(evaluate(root, tables, instances)) == whole, (seed, held)
            every = accurate_sketches(annotate(root, tables), root, tables, trial.partitions)
            seen["less"] += any(every[access] - held[access] for access in held)
            seen["compared"] += 1
            changes = changes_of(rng, session.compiled.tables, tables, spare)
            session.step(changes, partial(whole_table, tables))
    except BlockedError:
        seen["blocked"] += 1
    except (ReferenceFailure, ReferenceLimit, EvaluationError, NotExactError) as error:
        seen[f"failed: {type(error).__name__}"] += 1


@random_cases(0, 40, 1_000, also="4 32 46 80 128 137 142 146")
def test_answers_of_random_plans_over_what_is_chosen(cases: Sequence[int]) -> None:
    seen = seen_in(cases, one_plan)
    assert seen["compared"] > len(cases), seen
    assert seen["less"] > len(cases) // 20, seen
