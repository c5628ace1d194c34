"""Reuse of sketches of keyed fixpoints: as of a table's, by what stands above, too."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from random import Random
from typing import Any

import pytest

from impctl.plan.nodes import Query
from impctl.plan.reuse.verdict import check_reuse
from impctl.plan.rules.order import apply_rules, core_of
from impctl.plan.safety.verdict import carried, check_safety
from tests.plan.keyed_sketches import evened, keyed_positions, without_keyed
from tests.plan.network import read
from tests.plan.trials import accurate_sketches, instances_of
from tests.support.random_cases import random_cases
from tests.support.reference_plan import annotate, bag, evaluate

ENTRY = (
    "WITH RECURSIVE r(t, n) AS (SELECT cost, dst FROM links WHERE src = 1 UNION "
    "SELECT r.t, l.dst FROM r JOIN links l ON r.n = l.src AND r.t = l.cost) "
)
BOTH = {"links#1": "cost", "links#2": "cost"}
ABOVE = (
    "SELECT t, COUNT(*) FROM r GROUP BY t HAVING COUNT(*) <= {}",
    "SELECT t, COUNT(*) FROM r GROUP BY t HAVING COUNT(*) > {}",
    "SELECT t FROM r WHERE n >= {}",
    "SELECT t, MAX(n) FROM r WHERE n < {} GROUP BY t HAVING MAX(n) > 1",
    "SELECT n, COUNT(*) FROM r GROUP BY n HAVING COUNT(*) > {}",
    "SELECT n, COUNT(*) FROM r GROUP BY n HAVING COUNT(*) < {}",
    "SELECT t FROM r WHERE n = 2 ORDER BY t LIMIT {}",
)


@cache
def _ruled(sql: str) -> Query:
    query = read(sql)
    return Query(query.sql, apply_rules(query.root))


def _links(rng: Random) -> dict[str, Any]:
    rows = [(rng.randint(1, 4), rng.randint(1, 3), rng.randint(1, 3)) for _ in range(9)]
    own = [
        {"cost": t, "src": src, "dst": dst, "region": "A", "weight": 1.0} for t, src, dst in rows
    ]
    return {"links": own}


@pytest.mark.slow
@random_cases(30, 75, 2000, also="293")
def test_what_is_allowed_gives_the_asked_answer(cases: Collection[int]) -> None:
    allowed = 0
    for seed in cases:
        rng = Random(seed)
        above = rng.choice(ABOVE)
        captured, asked = (_ruled(ENTRY + above.format(rng.randint(1, 4))) for _ in range(2))
        if not check_reuse(asked, captured, BOTH, ()).allowed:
            continue
        allowed += captured.sql != asked.sql
        verdict = check_safety(captured, BOTH, ())
        core = Query("", core_of(captured.root))
        kept = carried(verdict, core, BOTH)
        tables, partitions = _links(rng), dict.fromkeys(BOTH, ("cost", (2, 3, 4)))
        found = without_keyed(core.root, kept, annotate(core.root, tables))
        sketches: Any = accurate_sketches(found, core.root, tables, partitions)
        sketches = evened(core.root, kept, sketches)
        instances = instances_of(asked.root, tables, partitions, sketches)
        whole = bag(evaluate(asked.root, tables))
        assert bag(evaluate(asked.root, tables, instances)) == whole, seed
    assert allowed > len(cases) // 5


@pytest.mark.parametrize(
    ("captured", "asked", "reason"),
    [
        ("HAVING COUNT(*) <= 3", "HAVING COUNT(*) <= 2", None),
        ("HAVING COUNT(*) <= 2", "HAVING COUNT(*) <= 3", "does not imply"),
        # Where nothing is left out the sketch holds derivations of all rows.
        ("", "HAVING COUNT(*) <= 3", None),
        ("HAVING COUNT(*) <= 3", "", "its recursion is keyed"),
    ],
)
def test_what_stands_above_decides(captured: str, asked: str, reason: str | None) -> None:
    text = ENTRY + "SELECT t, COUNT(*) FROM r GROUP BY t "
    verdict = check_reuse(_ruled(text + asked), _ruled(text + captured), BOTH, ())
    assert verdict.allowed is (reason is None)
    assert reason is None or reason in verdict.reason


def test_a_query_that_needs_all_rows_is_not_answered_by_the_keys_of_some() -> None:
    """Of one core: what the asked query puts out beside keeps its fixpoint from being keyed."""
    text = ENTRY + "SELECT t{} FROM r WHERE n = 2"
    captured, asked = _ruled(text.format("")), _ruled(text.format(", RANK() OVER (ORDER BY n)"))
    assert core_of(captured.root) == core_of(asked.root)
    keyed, whole = (check_safety(query, BOTH, ()) for query in (captured, asked))
    assert keyed_positions(captured.root, keyed)
    assert not keyed_positions(asked.root, whole)
    verdict = check_reuse(asked, captured, BOTH, ())
    assert not verdict.allowed
    assert verdict.reason == "the sketch lacks the rows that a recursion derives"
    assert check_reuse(captured, asked, BOTH, ()).allowed
