"""Columns tied by joins, accesses that must have rows, and witnesses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from random import Random

import pytest

from impctl.plan.nodes import Join, JoinKind, Plan, Query, SetKind, SetOperation, Witness
from impctl.plan.properties import indispensable
from impctl.rules.optimize import apply_rules
from impctl.rules.pushdown import ColumnTie, column_behind, tied_columns
from impctl.safety.judge import check_safety
from impctl.sql.statement import parse_query
from tests.plan.catalogs import cases, schema_of
from tests.plan.random_fixpoints import kept_by_witnesses, make_witness_trial
from tests.plan.trials import Tally, Trial, make_barrier_trial, make_trial, run_trial
from tests.rules.test_rules import answers, is_open
from tests.support.random_cases import more_seeds, random_cases
from tests.support.reference_plan import (
    ReferenceFailure,
    ReferenceLimit,
    annotate,
    evaluate,
    identity,
)

CATALOG = {"t": schema_of("g int, p int"), "u": schema_of("h int, q int")}


def ties(sql: str) -> str:
    plan = apply_rules(parse_query(sql, CATALOG).root)
    table = {scan.access: scan.table for scan in plan.scans}

    def word(tied: ColumnTie) -> str:
        return " in ".join(
            f"{table[one.access]}.{one.attribute.name}" for one in (tied.column, tied.to)
        )

    return ", ".join(sorted({word(tied) for tied in tied_columns(plan)})) or "nothing"


@pytest.mark.parametrize(("sql", "expected"), cases("plans", "tied"))
def test_tied_columns(sql: str, expected: str) -> None:
    assert ties(sql) == expected


@random_cases(67, 234, 4000, also="89 105 111 160 227 233 259 274 283 413 421 447 474 499 500 546")
def test_rows_without_partners_do_not_matter(cases: Collection[int]) -> None:
    compared = removed = 0
    for seed in cases:
        trial, rng = make_trial(seed), Random(seed)
        root = apply_rules(trial.root)
        result = tied_columns(root)
        if not result or not any(isinstance(node, Join) for node in root.walk()):
            continue
        visible = {
            scan.access: [row for row in range(len(trial.tables[scan.table])) if rng.random() < 0.8]
            for scan in root.scans
        }
        runs = 12 if is_open(root) else 1
        try:
            before = answers(root, trial.tables, rng, runs, visible)
        except (ReferenceFailure, ReferenceLimit):
            continue
        if len(before) > 1:
            continue
        for tied in rng.choices(result, k=4):
            removed += _remove_unmatched(root, trial, tied, visible, rng)
        compared += 1
        assert answers(root, trial.tables, rng, runs, visible) == before, seed
    assert compared > len(cases) // 60
    assert removed > compared


def _remove_unmatched(
    root: Plan, trial: Trial, tied: ColumnTie, visible: dict[str, list[int]], rng: Random
) -> int:
    """Remove some of the rows whose value the other column does not have."""
    table = {scan.access: trial.tables[scan.table] for scan in root.scans}
    own, other = tied.column, tied.to
    values = {
        identity(table[other.access][row][other.attribute.name])
        for row in visible[other.access]
        if table[other.access][row][other.attribute.name] is not None
    }
    kept = [
        row
        for row in visible[own.access]
        if identity(table[own.access][row][own.attribute.name]) in values or rng.random() < 0.3
    ]
    removed = len(visible[own.access]) - len(kept)
    visible[own.access] = kept
    return removed


@random_cases(67, 234, 4000, also="91 107 111 160 227 234 257 282 380 415 422 446 474 498 503 546")
def test_no_rows_without_indispensable_accesses(cases: Collection[int]) -> None:
    counts: Counter[str] = Counter()
    for seed in cases:
        trial = make_trial(seed)
        root = apply_rules(trial.root)
        kinds = {str(node.kind) for node in root.walk() if isinstance(node, Join | SetOperation)}
        rows = {s.access: list(range(len(trial.tables[s.table]))) for s in root.scans}
        for access in indispensable(root):
            try:
                assert not evaluate(root, trial.tables, {**rows, access: []}), (seed, access)
            except (ReferenceFailure, ReferenceLimit):
                continue
            counts.update(kinds)
    for kind in (JoinKind.INNER, JoinKind.SEMI, JoinKind.LEFT, SetKind.INTERSECT, SetKind.EXCEPT):
        assert counts[str(kind)], counts


@pytest.mark.parametrize(("sql", "needed"), cases("plans", "indispensable"))
def test_indispensable_accesses(sql: str, needed: str) -> None:
    root = parse_query(sql, CATALOG).root
    tables = {scan.table for scan in root.scans if scan.access in indispensable(root)}
    assert (" ".join(sorted(tables)) or "none") == needed


@pytest.mark.parametrize(("sql", "behind"), cases("plans", "behind a column"))
def test_source_of_a_column(sql: str, behind: str) -> None:
    root = parse_query(sql, CATALOG).root
    result = column_behind(root, root.attributes[0].id)
    tables = {scan.access: scan.table for scan in root.scans}
    assert ("none" if result is None else tables[result.access]) == behind


def check(cases: Collection[int], make: Callable[[int], Trial]) -> None:
    tally = Tally()
    for seed in cases:
        run_trial(seed, tally, rewrite=apply_rules, make=make, kept=kept_by_witnesses)
    assert tally.accepted > tally.trials // 3


@random_cases(25, 88, 500, first=9_000_000, also=more_seeds("plans with witnesses"))
def test_random_plans(cases: Collection[int]) -> None:
    check(cases, make_trial)


@random_cases(25, 38, 500, first=9_000_000, also="31 51 95 174 201 261 265 356 402 432 461 523")
def test_plans_with_barriers(cases: Collection[int]) -> None:
    check(cases, make_barrier_trial)


@random_cases(0, 40, 500, first=9_000_000, also="280")
def test_conditions_on_partners_that_can_fail(cases: Collection[int]) -> None:
    check(cases, partial(make_witness_trial, casts=True))


@random_cases(25, 33, 500, first=9_000_000, also=more_seeds("plans that one row decides"))
def test_plans_that_one_row_decides(cases: Collection[int]) -> None:
    """Their witnesses are part of the lineage, often a proper part."""
    check(cases, make_witness_trial)
    fewer = placed = 0
    for seed in cases:
        trial = make_witness_trial(seed)
        root = apply_rules(trial.root)
        verdict = check_safety(Query("", root), trial.sketched, trial.facts)
        if not verdict.safe:
            continue
        kept = kept_by_witnesses(root, trial, verdict)
        if not any(isinstance(node, Witness) for node in kept.walk()):
            continue
        try:
            all_rows, witnesses = (annotate(plan, trial.tables).lineage for plan in (root, kept))
        except ReferenceFailure:
            continue
        placed += 1
        assert witnesses <= all_rows, seed
        fewer += witnesses < all_rows
    assert placed > len(cases) // 4
    assert fewer > placed // 4
