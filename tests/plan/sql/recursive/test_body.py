"""The stretch of text that a recursive entry is: what stands between its brackets."""

from __future__ import annotations

import pytest

from tests.plan.network import fixpoint_of, fixpoints_of, plan_of

STEP = "SELECT l.dst FROM r JOIN links l ON r.n = l.src"
BODIES = [
    f"SELECT dst FROM links UNION {STEP}",
    f"(SELECT dst FROM links) UNION ({STEP})",
    f"((SELECT dst FROM links) UNION ({STEP}))",
    "SELECT 1L AS n FROM links UNION SELECT x FROM (SELECT dst AS x FROM links) t JOIN r ON n = x",
    f" -- a bracket )\n SELECT dst FROM links WHERE region = ')' UNION {STEP} /* ( */ ",
]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("head", ["r(n) AS ", "`r` (`n`)\nAS\n", "R(n) as ", "r(n) "])
def test_an_entry_is_all_that_stands_between_its_brackets(body: str, head: str) -> None:
    sql = f"WITH RECURSIVE a(n) AS (SELECT n FROM nodes), {head}({body}) SELECT 1 FROM a AS b, r"
    fixpoint = fixpoint_of(sql)
    assert sql[fixpoint.span.start : fixpoint.span.end] == body


def test_an_entry_inside_another_one_stands_in_its_text() -> None:
    inner = "SELECT dst FROM links UNION SELECT l.dst FROM s JOIN links l ON s.n = l.src"
    sql = (
        "WITH RECURSIVE r(n) AS (SELECT n FROM"
        f" (WITH RECURSIVE s(n) AS ({inner}) SELECT n FROM s) t UNION {STEP}) SELECT n FROM r"
    )
    outer, within = fixpoints_of(plan_of(sql))
    assert sql[within.span.start : within.span.end] == inner
    assert outer.span.start < within.span.start
    assert within.span.end < outer.span.end
