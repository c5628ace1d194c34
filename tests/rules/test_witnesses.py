"""What a plan cannot do without: columns tied by joins, accesses that must have rows, witnesses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from random import Random

import pytest

from impctl.plan.nodes import (
    Join,
    JoinKind,
    Plan,
    Query,
    SetKind,
    SetOperation,
    Witness,
    attributes_of,
    nodes_of,
    scans_of,
)
from impctl.plan.properties import indispensable
from impctl.rules.optimize import apply_rules
from impctl.rules.pushdown import ColumnTie, column_behind, tied_columns
from impctl.safety.judge import check_safety
from impctl.sql.statement import parse_query
from tests.plan.catalogs import schema_of
from tests.plan.random_fixpoints import kept_by_witnesses, make_witness_trial
from tests.plan.trials import Tally, Trial, make_barrier_trial, make_trial, run_trial
from tests.rules.test_rules import is_open
from tests.support.random_cases import random_cases
from tests.support.reference_plan import (
    ReferenceFailure,
    ReferenceLimit,
    annotate,
    bag,
    evaluate,
    identity,
)

CATALOG = {
    "t": schema_of("g int, p int"),
    "u": schema_of("h int, q int"),
}


def ties(sql: str) -> set[str]:
    plan = apply_rules(parse_query(sql, CATALOG).root)
    table = {scan.access: scan.table for scan in scans_of(plan)}

    def word(tied: ColumnTie) -> str:
        return " in ".join(
            f"{table[one.access]}.{one.attribute.name}" for one in (tied.column, tied.to)
        )

    return {word(tied) for tied in tied_columns(plan)}


BOTH = {"t.g in u.h", "u.h in t.g"}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT t.p FROM t JOIN u ON t.g = u.h", BOTH),
        ("SELECT t.p FROM t, u WHERE t.g = u.h AND t.p < u.q", BOTH),
        ("SELECT t.p FROM t LEFT JOIN u ON t.g = u.h", {"u.h in t.g"}),
        ("SELECT t.p FROM t RIGHT JOIN u ON t.g = u.h", {"t.g in u.h"}),
        ("SELECT t.p FROM t FULL JOIN u ON t.g = u.h", set()),
        ("SELECT t.p FROM t WHERE t.g IN (SELECT h FROM u)", BOTH),
        ("SELECT t.p FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.h = t.g)", {"u.h in t.g"}),
        ("SELECT t.p FROM t WHERE t.g NOT IN (SELECT h FROM u)", set()),
        ("SELECT t.p FROM t JOIN u ON t.g = u.h OR t.p = u.q", set()),
        ("SELECT t.p FROM t JOIN u ON t.g + 0 = u.h", set()),
        # A group is seen whole or not at all.
        ("SELECT t.p FROM t JOIN (SELECT h, SUM(q) s FROM u GROUP BY h) v ON t.g = v.h", BOTH),
        # What is summed up is no column of a row.
        (
            "SELECT t.p FROM t JOIN (SELECT MAX(h) m FROM u GROUP BY q) v ON t.g = v.m",
            set(),
        ),
        # The first rows are others without those left out.
        (
            "SELECT t.p FROM t JOIN (SELECT h FROM u ORDER BY q LIMIT 3) v ON t.g = v.h",
            {"t.g in u.h"},
        ),
    ],
)
def test_what_is_tied(sql: str, expected: set[str]) -> None:
    assert ties(sql) == expected


@random_cases(67, 234, 4000, also="89 105 111 160 227 233 259 274 283 413 421 447 474 499 500 546")
def test_leaving_out_rows_without_partners_changes_no_answer(cases: Collection[int]) -> None:
    compared = left_out = 0
    for seed in cases:
        trial, rng = make_trial(seed), Random(seed)
        root = apply_rules(trial.root)
        result = tied_columns(root)
        if not result or not any(isinstance(node, Join) for node in nodes_of(root)):
            continue
        seen = {
            scan.access: [at for at in range(len(trial.tables[scan.table])) if rng.random() < 0.8]
            for scan in scans_of(root)
        }
        try:
            before = _answers(root, trial, seen, rng)
        except (ReferenceFailure, ReferenceLimit):
            continue
        if len(before) > 1:
            continue
        for tied in rng.choices(result, k=4):
            left_out += _leave_out(root, trial, tied, seen, rng)
        compared += 1
        assert _answers(root, trial, seen, rng) == before, seed
    assert compared > len(cases) // 60
    assert left_out > compared


def _answers(root: Plan, trial: Trial, seen: dict[str, list[int]], rng: Random) -> set[object]:
    runs = 12 if is_open(root) else 1
    return {
        frozenset(bag(evaluate(root, trial.tables, seen, rng.shuffle)).items()) for _ in range(runs)
    }


def _leave_out(
    root: Plan, trial: Trial, tied: ColumnTie, seen: dict[str, list[int]], rng: Random
) -> int:
    """Take out some of the rows whose value the other column does not have."""
    table = {scan.access: trial.tables[scan.table] for scan in scans_of(root)}
    mine, other = tied.column, tied.to
    values = {
        identity(table[other.access][at][other.attribute.name])
        for at in seen[other.access]
        if table[other.access][at][other.attribute.name] is not None
    }
    kept = [
        at
        for at in seen[mine.access]
        if identity(table[mine.access][at][mine.attribute.name]) in values or rng.random() < 0.3
    ]
    gone = len(seen[mine.access]) - len(kept)
    seen[mine.access] = kept
    return gone


@random_cases(67, 234, 4000, also="91 107 111 160 227 234 257 282 380 415 422 446 474 498 503 546")
def test_no_rows_without_what_is_indispensable(cases: Collection[int]) -> None:
    seen: Counter[str] = Counter()
    for seed in cases:
        trial = make_trial(seed)
        root = apply_rules(trial.root)
        kinds = {str(node.kind) for node in nodes_of(root) if isinstance(node, Join | SetOperation)}
        every = {s.access: list(range(len(trial.tables[s.table]))) for s in scans_of(root)}
        for access in indispensable(root):
            try:
                assert not evaluate(root, trial.tables, {**every, access: []}), (seed, access)
            except (ReferenceFailure, ReferenceLimit):
                continue
            seen.update(kinds)
    for kind in (JoinKind.INNER, JoinKind.SEMI, JoinKind.LEFT, SetKind.INTERSECT, SetKind.EXCEPT):
        assert seen[str(kind)], seen


@pytest.mark.parametrize(
    ("sql", "needed"),
    [
        ("SELECT t.p FROM t JOIN u ON t.g = u.h", {"t", "u"}),
        ("SELECT t.p FROM t LEFT JOIN u ON t.g = u.h", {"t"}),
        ("SELECT t.p FROM t RIGHT JOIN u ON t.g = u.h", {"u"}),
        ("SELECT t.p FROM t FULL JOIN u ON t.g = u.h", set()),
        ("SELECT p FROM t WHERE g IN (SELECT h FROM u)", {"t", "u"}),
        ("SELECT p FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE h = g)", {"t"}),
        ("SELECT g FROM t UNION ALL SELECT h FROM u", set()),
        ("SELECT g FROM t EXCEPT SELECT h FROM u", {"t"}),
        ("SELECT g FROM t INTERSECT SELECT h FROM u", {"t", "u"}),
        ("SELECT COUNT(*) FROM t", set()),
        ("SELECT g, COUNT(*) FROM t GROUP BY g", {"t"}),
        ("SELECT g, COUNT(*) FROM t GROUP BY ROLLUP (g)", set()),
    ],
)
def test_what_is_indispensable(sql: str, needed: set[str]) -> None:
    root = parse_query(sql, CATALOG).root
    assert {scan.table for scan in scans_of(root) if scan.access in indispensable(root)} == needed


@pytest.mark.parametrize(
    ("sql", "behind"),
    [
        ("SELECT t.g FROM t LEFT JOIN u ON t.g = u.h", "t"),
        ("SELECT u.h FROM t LEFT JOIN u ON t.g = u.h", None),
        ("SELECT u.h FROM t RIGHT JOIN u ON t.g = u.h", "u"),
        ("SELECT t.g FROM t RIGHT JOIN u ON t.g = u.h", None),
        ("SELECT t.g FROM t FULL JOIN u ON t.g = u.h", None),
        ("SELECT g FROM t WHERE g IN (SELECT h FROM u)", "t"),
        ("SELECT g FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE h = g)", "t"),
        ("SELECT g FROM t UNION ALL SELECT h FROM u", None),
    ],
)
def test_what_is_behind_a_column(sql: str, behind: str | None) -> None:
    root = parse_query(sql, CATALOG).root
    result = column_behind(root, attributes_of(root)[0].id)
    tables = {scan.access: scan.table for scan in scans_of(root)}
    assert (None if result is None else tables[result.access]) == behind


def check(cases: Collection[int], make: Callable[[int], Trial]) -> None:
    tally = Tally()
    for seed in cases:
        run_trial(seed, tally, rewrite=apply_rules, make=make, kept=kept_by_witnesses)
    assert tally.accepted > tally.trials // 3


@random_cases(
    25,
    88,
    500,
    first=9_000_000,
    also="41 43 49 67 79 114 123 125 131 133 144 145 150 189 218 227 246 250 262 283 305 306 "
    "321 326 335 343 363 364 365 380 395 403 438 450 453 454 457 461 502 528 536 545 551 "
    "553 557 575 578 585",
)
def test_plans(cases: Collection[int]) -> None:
    check(cases, make_trial)


@random_cases(25, 88, 500, first=9_000_000, also="31 51 95 174 201 261 265 356 402 432 461 523")
def test_plans_with_barriers(cases: Collection[int]) -> None:
    check(cases, make_barrier_trial)


@random_cases(0, 40, 500, first=9_000_000, also="280")
def test_conditions_on_partners_that_can_fail(cases: Collection[int]) -> None:
    check(cases, partial(make_witness_trial, casts=True))


@random_cases(
    25,
    88,
    500,
    first=9_000_000,
    also="28 35 37 43 51 71 76 83 84 107 131 150 170 174 175 179 181 212 224 226 239 259 274 282 "
    "288 298 308 320 341 349 350 358 384 389 416 434 468 494 501 508 517 536 549 552 590",
)
def test_plans_that_one_row_decides(cases: Collection[int]) -> None:
    """Their witnesses are part of the lineage, and often less."""
    check(cases, make_witness_trial)
    fewer = placed = 0
    for seed in cases:
        trial = make_witness_trial(seed)
        root = apply_rules(trial.root)
        verdict = check_safety(Query("", root), trial.sketched, trial.facts)
        if not verdict.safe:
            continue
        kept = kept_by_witnesses(root, trial, verdict)
        if not any(isinstance(node, Witness) for node in nodes_of(kept)):
            continue
        try:
            whole, some = (annotate(plan, trial.tables).lineage for plan in (root, kept))
        except ReferenceFailure:
            continue
        placed += 1
        assert some <= whole, seed
        fewer += some < whole
    assert placed > len(cases) // 4
    assert fewer > placed // 4
