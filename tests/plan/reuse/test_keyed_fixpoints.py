"""Reuse of sketches of keyed fixpoints: as of a table's, by what stands above, too."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from random import Random
from typing import Any

import pytest

from impctl.plan.nodes import Query
from impctl.reuse.verdict import check_reuse
from impctl.rules.optimize import core_of
from impctl.safety.judge import carried, check_safety
from tests.plan.keyed_sketches import evened, keyed_positions, without_keyed
from tests.plan.network import BY_COST, KEYED, links, ruled
from tests.plan.trials import accurate_sketches, instances_of
from tests.support.random_cases import random_cases
from tests.support.reference_plan import annotate, bag, evaluate

ABOVE = (
    "SELECT t, COUNT(*) FROM r GROUP BY t HAVING COUNT(*) <= {}",
    "SELECT t, COUNT(*) FROM r GROUP BY t HAVING COUNT(*) > {}",
    "SELECT t FROM r WHERE n >= {}",
    "SELECT t, MAX(n) FROM r WHERE n < {} GROUP BY t HAVING MAX(n) > 1",
    "SELECT n, COUNT(*) FROM r GROUP BY n HAVING COUNT(*) > {}",
    "SELECT n, COUNT(*) FROM r GROUP BY n HAVING COUNT(*) < {}",
    "SELECT t FROM r WHERE n = 2 ORDER BY t LIMIT {}",
)


_ruled = cache(ruled)


def _links(rng: Random) -> dict[str, Any]:
    rows = [(rng.randint(1, 4), rng.randint(1, 3), rng.randint(1, 3)) for _ in range(9)]
    return {"links": links(*((src, dst, "A", cost) for cost, src, dst in rows))}


@pytest.mark.slow
@random_cases(30, 75, 2000, also="293")
def test_what_is_allowed_gives_the_asked_answer(cases: Collection[int]) -> None:
    allowed = 0
    for seed in cases:
        rng = Random(seed)
        above = rng.choice(ABOVE)
        captured, asked = (_ruled(KEYED + above.format(rng.randint(1, 4))) for _ in range(2))
        if not check_reuse(asked, captured, BY_COST, ()).allowed:
            continue
        allowed += captured.sql != asked.sql
        verdict = check_safety(captured, BY_COST, ())
        core = Query("", core_of(captured.root))
        kept = carried(verdict, core, BY_COST)
        tables, partitions = _links(rng), dict.fromkeys(BY_COST, ("cost", (2, 3, 4)))
        result = without_keyed(core.root, kept, annotate(core.root, tables))
        sketches: Any = accurate_sketches(result, core.root, tables, partitions)
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
    text = KEYED + "SELECT t, COUNT(*) FROM r GROUP BY t "
    verdict = check_reuse(_ruled(text + asked), _ruled(text + captured), BY_COST, ())
    assert verdict.allowed is (reason is None)
    assert reason is None or reason in verdict.reason


def test_a_query_that_needs_all_rows_is_not_answered_by_the_keys_of_some() -> None:
    """Of one core: what the asked query puts out beside keeps its fixpoint from being keyed."""
    text = KEYED + "SELECT t{} FROM r WHERE n = 2"
    captured, asked = _ruled(text.format("")), _ruled(text.format(", RANK() OVER (ORDER BY n)"))
    assert core_of(captured.root) == core_of(asked.root)
    keyed, whole = (check_safety(query, BY_COST, ()) for query in (captured, asked))
    assert keyed_positions(captured.root, keyed)
    assert not keyed_positions(asked.root, whole)
    verdict = check_reuse(asked, captured, BY_COST, ())
    assert not verdict.allowed
    assert verdict.reason == "the sketch does not have the rows that a recursion derives"
    assert check_reuse(captured, asked, BY_COST, ()).allowed
