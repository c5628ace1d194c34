"""Fixpoints that keep the best rows alone: the same rows on random texts, and when not."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from impctl.plan import recursion
from impctl.plan.fingerprint import fingerprint
from impctl.plan.nodes import BestOnly, Fixpoint, Plan, inputs_of, nodes_of, with_inputs
from impctl.plan.recursion import recursion_notes
from impctl.rules.normalize import best_fixpoints
from impctl.rules.optimize import apply_rules, core_of
from tests.plan.network import fixpoints_of, links, plan_of
from tests.support.random_cases import random_cases
from tests.support.reference_expr import ReferenceFailure
from tests.support.reference_plan import bag, evaluate

_ADDED = ("r.c + l.cost", "l.cost + r.c", "r.c - l.cost", "r.c", "r.c + r.n", "r.c + r.p")
_COMPARED = ("greatest(r.c, l.cost)", "least(l.cost, r.c)", "r.c * 2", "r.c + l.cost * r.c")
_BESIDE = ("r.p", "l.dst", "r.p + 1", "r.n", "r.c", "l.cost", "l.dst + r.n")
_CONDITIONS = (
    "r.c < 3", "r.c + l.cost <= 4", "4 > r.c", "r.c > 1", "r.c % 2 = 0", "r.p < 3", "r.n <> 3",
    "l.cost > 0", "r.c = l.cost", "r.c < l.src", "r.c < r.p", "r.c IS NOT NULL",
)  # fmt: skip
_ABOVE = (
    "SELECT n, min(c) FROM r GROUP BY n",
    "SELECT n, max(c) FROM r GROUP BY n",
    "SELECT n, min(c), min(p) FROM r GROUP BY n",
    "SELECT n, min(c), max(c) FROM r GROUP BY n",
    "SELECT n, max(c + n) FROM r GROUP BY n",
    "SELECT n, min(greatest(c, 2)) FROM r GROUP BY n",
    "SELECT p, min(c) FROM r GROUP BY p",
    "SELECT n, min(c) FROM r WHERE p > 1 GROUP BY n",
    "SELECT n, min(c) FROM r WHERE c <= 2 GROUP BY n",
    "SELECT n, min(c) FROM r WHERE c > 2 GROUP BY n",
    "SELECT n, min(c), min(p) FROM r WHERE c < 3 GROUP BY n",
    "SELECT min(c) FROM r",
    "SELECT n, min(c), count(*) FROM r GROUP BY n",
    "SELECT n, min(c) FILTER (WHERE p = 1) FROM r GROUP BY n",
    "SELECT l.region, min(r.c + l.cost) FROM r JOIN links l ON r.n = l.src GROUP BY l.region",
    "SELECT l.dst, min(r.c) FROM links l LEFT JOIN r ON l.src = r.n GROUP BY l.dst",
    "SELECT n, min(c) FROM r GROUP BY GROUPING SETS ((n), ())",
    "SELECT DISTINCT n, min(c) OVER (PARTITION BY n) FROM r",
    "SELECT r.n, r.p FROM r JOIN (SELECT n, min(c) AS c FROM r GROUP BY n) m"
    " ON r.n = m.n AND r.c = m.c",
    "SELECT r.n, r.p FROM r JOIN (SELECT n, min(c) AS c FROM r GROUP BY n) m"
    " ON r.n = m.n AND r.c <=> m.c",
    "SELECT r.n, r.p FROM r JOIN (SELECT n, min(c) AS c FROM r GROUP BY n) m"
    " ON r.n = m.n AND r.c >= m.c",
    "SELECT r.n, r.p FROM r JOIN (SELECT n, min(c) AS c FROM r GROUP BY n) m ON r.c = m.c",
    "SELECT m.n, r.p FROM (SELECT n, max(c) AS c FROM r GROUP BY n) m, r"
    " WHERE m.n = r.n AND m.c = r.c AND r.p > 0",
    "SELECT n, p, c FROM r WHERE (n, c) IN (SELECT n, min(c) FROM r GROUP BY n)",
    "SELECT n, p, c FROM r WHERE (n, c) IN (SELECT n, min(c) FROM r WHERE p > 1 GROUP BY n)",
    "SELECT n, p, c FROM r WHERE c IN (SELECT min(c) FROM r)",
)


def _text(rng: random.Random) -> str:
    value = rng.choice(_ADDED if rng.random() < 0.75 else _COMPARED)
    beside = rng.choice(_BESIDE)
    conditions = rng.sample(_CONDITIONS, rng.choice((0, 0, 1, 1, 2)))
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    columns = f"l.dst, CAST({beside} AS BIGINT), CAST({value} AS BIGINT)"
    if rng.random() < 0.15:
        # The other column is no column of the text: values alone, without ties.
        columns = f"l.dst, 1L, CAST({value.replace('r.p', 'r.n')} AS BIGINT)"
    return (
        "WITH RECURSIVE r(n, p, c) AS (SELECT dst, src, CAST(cost AS BIGINT) FROM links"
        f" WHERE src < 2 UNION SELECT {columns} FROM r JOIN links l ON r.n = l.src{where}) "
        + rng.choice(_ABOVE)
    )


def _links(rng: random.Random) -> list[dict[str, Any]]:
    """Without circles, so that all rows have an end; some cost less than nothing, or NULL."""
    result = []
    for _ in range(rng.randint(4, 11)):
        src = rng.randrange(4)
        cost = rng.choice((None, -2, -1, 0, 0, 1, 1, 2, 3))
        result.append((src, rng.randint(src + 1, 5), rng.choice("AB"), cost))
    return links(*result)


def _has_best(plan: Plan) -> bool:
    return any(isinstance(node, Fixpoint) and node.best for node in nodes_of(plan))


def _changed(seed: int) -> bool | None:
    """Whether the rule changes the answer; None where it changes no plan."""
    rng = random.Random(f"best {seed}")
    plan, tables = plan_of(_text(rng)), {"links": _links(rng)}
    after = best_fixpoints(plan)
    if after == plan:
        return None
    try:
        before = bag(evaluate(plan, tables))
    except ReferenceFailure:
        return None
    return bag(evaluate(after, tables)) != before or bag(evaluate(apply_rules(plan), tables)) != (
        before
    )


@random_cases(80, 240, 6000, also="171 383 501 592 1083")
def test_the_bag_of_rows_stays(cases: Sequence[int]) -> None:
    result = [_changed(seed) for seed in cases]
    assert True not in result, cases[result.index(True)]
    assert result.count(False) > len(cases) // 8


PATHS = (
    "WITH RECURSIVE r(x, y, p, c) AS (SELECT src, dst, region, CAST(cost AS BIGINT) FROM links"
    " UNION SELECT r.x, l.dst, {}, CAST({} AS BIGINT) FROM r JOIN links l ON r.y = l.src{}) "
)
PLAIN = PATHS.format("concat(r.p, l.region)", "r.c + l.cost", "")
CHEAPEST = "SELECT x, y, min(c) FROM r GROUP BY x, y"
BACK = (
    "SELECT r.x, r.y, r.p FROM r JOIN (SELECT x, y, min(c) AS c FROM r GROUP BY x, y) m"
    " ON r.x = m.x AND r.y = m.y AND r.c = m.c"
)


def _best(sql: str) -> list[str]:
    return [str(one.best) for one in fixpoints_of(apply_rules(plan_of(sql)))]


@pytest.mark.parametrize(
    ("sql", "best"),
    [
        (PLAIN + CHEAPEST, ["best min 3 by 0, 1"]),
        (PLAIN + BACK, ["best min 3 by 0, 1"] * 2),
        (PLAIN + "SELECT x, max(c) FROM r GROUP BY x", ["best max 3 by 0, 1"]),
        (PLAIN + "SELECT min(c) FROM r WHERE x = 1 AND y = 9", ["best min 3 by 0, 1"]),
        (PATHS.format("l.region", "r.c + l.cost", " WHERE r.c < 9") + CHEAPEST, None),
        (PATHS.format("'A'", "least(r.c, l.cost)", " WHERE r.p = 'A'")
         + "SELECT x, y, max(c) FROM r GROUP BY x, y", ["best max 3 by 0, 1, 2 null"]),
        (PATHS.format("l.region", "r.c + l.cost", " WHERE r.p = 'A'") + CHEAPEST,
         ["best min 3 by 0, 1, 2"]),
    ],
)  # fmt: skip
def test_what_stays(sql: str, best: list[str] | None) -> None:
    assert _best(sql) == (["best min 3 by 0, 1"] if best is None else best)
    core = core_of(plan_of(sql))
    assert _has_best(core)
    assert apply_rules(core) == core


def _refusals() -> Iterator[tuple[str, str]]:
    step = PATHS.format
    yield step("r.p", "r.c + l.cost", " WHERE r.c % 2 = 0") + CHEAPEST, "read `c`"
    yield step("r.p", "r.c + l.cost", " WHERE r.c > 2") + CHEAPEST, "read `c`"
    yield step("CAST(r.c AS STRING)", "r.c + l.cost", "") + CHEAPEST, "`p` is computed from"
    yield step("r.p", "r.c * 2", "") + CHEAPEST, "by more than adding to it"
    yield step("r.p", "greatest(r.c, l.cost)", "") + CHEAPEST, "GREATEST or LEAST, one"
    yield step("'A'", "least(r.c, l.cost)", " WHERE r.p = 'A'") + CHEAPEST, "could replace the `c`"
    yield step("'A'", "greatest(r.c + l.cost, 1)", " WHERE r.p = 'A'") + CHEAPEST, "both adds"
    yield PLAIN + "SELECT x, y, min(c), sum(c) FROM r GROUP BY x, y", "SUM needs all of them"
    yield PLAIN + "SELECT x, y, min(c), count(*) FROM r GROUP BY x, y", "COUNT needs all of them"
    yield PLAIN + "SELECT x, min(greatest(c, 2)) FROM r GROUP BY x", "turn NULL into a value"
    yield PLAIN + "SELECT x, max(least(c, y) + 1) FROM r GROUP BY x", "turn NULL into a value"
    yield PLAIN + "SELECT x, min(y) FROM r GROUP BY x", "`y` by more than adding to it"
    yield PLAIN + "SELECT x, min(p) FROM r GROUP BY x", "`p` is of type string"
    yield (
        "WITH RECURSIVE r(n, c) AS (SELECT dst, weight FROM links UNION SELECT l.dst,"
        " r.c + l.weight FROM r JOIN links l ON r.n = l.src) SELECT n, min(c) FROM r GROUP BY n",
        "`c` has type double",
    )
    yield (
        "WITH RECURSIVE r(x, y, c) AS (SELECT src, dst, CAST(cost AS BIGINT) FROM links UNION"
        " SELECT a.x, b.y, a.c + b.c FROM r a JOIN r b ON a.y = b.x)"
        " SELECT x, y, min(c) FROM r GROUP BY x, y",
        "read twice",
    )


@pytest.mark.parametrize(("sql", "reason"), list(_refusals()))
def test_why_all_rows_stay(sql: str, reason: str) -> None:
    root = apply_rules(plan_of(sql))
    assert not _has_best(root)
    notes = recursion_notes(root)
    (result,) = (notes[at] for at, one in enumerate(nodes_of(root)) if isinstance(one, Fixpoint))
    assert "keeps rows that MIN or MAX does not need: " in result
    assert reason in result


def test_a_condition_on_one_value_decides_on_the_other() -> None:
    """Dear and short, cheap and long: the one in between goes on where the short one stops."""
    sql = (
        "WITH RECURSIVE r(n, h, c) AS (SELECT dst, 1L, CAST(cost AS BIGINT) FROM links"
        " WHERE src = 1 UNION SELECT l.dst, r.h + 1L, CAST(r.c + l.cost AS BIGINT)"
        " FROM r JOIN links l ON r.n = l.src {}) SELECT n, min(c), min(h) FROM r GROUP BY n"
    )
    assert _best(sql.format("")) == ["best min 2, min 1 by 0"]
    assert _best(sql.format("WHERE r.c < 10")) == ["None"]


def test_only_best_rows_would_be_wrong_below_a_condition_on_costs() -> None:
    """1 -> 2 costs 1 or 2, 2 -> 3 costs 1; only what costs an even number goes on."""
    sql = (
        "WITH RECURSIVE r(n, c) AS (SELECT dst, CAST(cost AS BIGINT) FROM links WHERE src = 1"
        " UNION SELECT l.dst, CAST(r.c + l.cost AS BIGINT) FROM r JOIN links l ON r.n = l.src"
        " WHERE r.c % 2 = 0) SELECT n, min(c) FROM r GROUP BY n"
    )
    rows = links((1, 2, "A", 1), (1, 2, "A", 2), (2, 3, "A", 1))
    plan = plan_of(sql)
    assert bag(evaluate(apply_rules(plan), {"links": rows})) == bag([(2, 1), (3, 3)])
    (own,) = fixpoints_of(plan)
    wrong = _with_best(plan, BestOnly((0,), (recursion.BestValue(1),)))
    assert bag(evaluate(wrong, {"links": rows})) == bag([(2, 1)])
    assert fingerprint(wrong) != fingerprint(plan)
    assert own.best is None


def _with_best(plan: Plan, best: BestOnly) -> Plan:
    if isinstance(plan, Fixpoint):
        return replace(plan, best=best)
    return with_inputs(plan, tuple(_with_best(one, best) for one in inputs_of(plan)))


def test_filters_go_in_only_on_groups() -> None:
    """On `x` whole groups stay out; on `p`, which no step changes either, better rows would."""
    sql = PATHS.format("r.p", "r.c + l.cost", "") + BACK + " AND r.{} = {}"
    by_group, beside = (
        fixpoints_of(apply_rules(plan_of(sql.format(*pair))))[0]
        for pair in (("x", "1"), ("p", "'A'"))
    )
    assert "Select" in {type(node).__name__ for node in nodes_of(by_group.base)}
    assert "Select" not in {type(node).__name__ for node in nodes_of(beside.base)}
