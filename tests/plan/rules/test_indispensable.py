"""A plan has no rows without those of an access that is called indispensable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import pytest

from impctl.plan.nodes import (
    Join,
    JoinKind,
    SetKind,
    SetOperation,
    attributes_of,
    nodes_of,
    scans_of,
)
from impctl.plan.properties import indispensable
from impctl.rules.optimize import apply_rules
from impctl.rules.pushdown import column_behind
from impctl.sql.statement import parse_query
from tests.plan.rules.test_joined_columns import CATALOG
from tests.plan.trials import make_trial
from tests.support.random_cases import random_cases
from tests.support.reference_expr import ReferenceFailure, ReferenceLimit
from tests.support.reference_plan import evaluate


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
