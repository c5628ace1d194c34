"""Columns tied by joins: what may be left out, on plans with a known answer and on random ones."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

import pytest

from impctl.plan.nodes import Join, Plan, nodes_of, scans_of
from impctl.rules.optimize import apply_rules
from impctl.rules.pushdown import Tied, tied_columns
from impctl.sql.statement import parse_query
from tests.plan.rules.test_rules import is_open
from tests.plan.trials import Trial, make_trial
from tests.support.random_cases import random_cases
from tests.support.reference_expr import ReferenceFailure, ReferenceLimit, identity
from tests.support.reference_plan import bag, evaluate
from tests.support.schemas import schema_of

CATALOG = {
    "t": schema_of("g int, p int"),
    "u": schema_of("h int, q int"),
}


def ties(sql: str) -> set[str]:
    plan = apply_rules(parse_query(sql, CATALOG).root)
    table = {scan.access: scan.table for scan in scans_of(plan)}

    def word(tied: Tied) -> str:
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
    root: Plan, trial: Trial, tied: Tied, seen: dict[str, list[int]], rng: Random
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
