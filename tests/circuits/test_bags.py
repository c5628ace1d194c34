"""Queries WITH RECURSIVE of UNION ALL by their circuits, against the slow reference.

As `test_recursion`, over the same tables; rows carry a level that ends them, since there are
circles. Where there is none, a circle ends the step at the limit.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import pytest

from impctl.compile.compile import compile_plan
from impctl.compile.flows import BlockedError
from impctl.compile.session import MaintainedQuery
from impctl.engine.fixpoint.fixpoint import Levels
from impctl.engine.operator import LEVEL_LIMITS
from impctl.errors import UnsupportedError
from impctl.plan.nodes import Distinct, Fixpoint, Plan, nodes_of
from impctl.rules.optimize import apply_rules
from tests.circuits.test_recursion import (
    COLUMNS,
    DRAWN,
    SIZES,
    Case,
    case_of,
    case_of_sql,
    change_of,
    expected,
)
from tests.plan.network import fixpoints_of
from tests.support.carried_queries import Row, rows_kept
from tests.support.random_cases import random_cases
from tests.support.reference_plan import bag, evaluate
from tests.support.restored_query import sketches_of

REACH = (
    "WITH RECURSIVE r(n, k) AS (SELECT a, CAST(0 AS BIGINT) FROM seeds UNION ALL {} WHERE r.k < 3) "
)
NEXT = "r.k + CAST(1 AS BIGINT)"
JOINED = f"SELECT l.b, {NEXT} FROM r JOIN links l ON r.n = l.a"
QUERIES = {
    "walks": REACH.format(JOINED) + "SELECT n, k FROM r",
    "how many": REACH.format(JOINED) + "SELECT n, count(*) AS c FROM r GROUP BY n",
    "one of few": REACH.format(JOINED)
    + "SELECT k, count(*) AS c FROM r GROUP BY k HAVING count(*) < 4",
    "a column less": REACH.format(JOINED) + "SELECT k FROM r",
    "sources": "WITH RECURSIVE r(x, y, k) AS (SELECT a, b, CAST(1 AS BIGINT) FROM links UNION ALL"
    f" SELECT r.x, l.b, {NEXT} FROM r JOIN links l ON r.y = l.a WHERE r.k < 3)"
    " SELECT y, k FROM r WHERE x = 1",
    "two parts": REACH.format(
        f"SELECT * FROM ({JOINED} WHERE r.k < 2 UNION ALL"
        f" SELECT l.a, {NEXT} FROM r JOIN links l ON l.b = r.n) x"
    )
    .replace(" WHERE r.k < 3)", ")")
    .replace("= r.n)", "= r.n WHERE r.k < 2)")
    + "SELECT n, k FROM r",
    "optional side": REACH.format(f"SELECT l.b, {NEXT} FROM r LEFT JOIN links l ON r.n = l.a")
    + "SELECT n, k FROM r",
    "half of them": REACH.format(f"SELECT r.n, {NEXT} FROM r LEFT SEMI JOIN links l ON r.n = l.a")
    + "SELECT n, k FROM r",
    "groups in the step": REACH.format(
        f"SELECT m.b, {NEXT} FROM r JOIN (SELECT a, max(b) AS b FROM links GROUP BY a) m"
        " ON r.n = m.a"
    )
    + "SELECT n, k FROM r",
    "not reached": REACH.format(JOINED)
    + "SELECT s.a FROM seeds s WHERE s.a NOT IN (SELECT n FROM r WHERE n IS NOT NULL AND k > 0)",
    "twice": REACH.format(JOINED)
    + "SELECT p.n, q.k FROM r p JOIN r q ON p.n = q.n + CAST(1 AS BIGINT) WHERE p.k > 1",
    "as deep as said": REACH.format(JOINED).replace("r(n, k)", "r(n, k) MAX RECURSION LEVEL 4")
    + "SELECT n, k FROM r",
}
SKETCHED = {"optional side": ("seeds",)}
"""Tables whose accesses may be sketched, where not all."""


def bag_case(name: str) -> Case:
    return case_of_sql(QUERIES[name], SKETCHED.get(name, tuple(COLUMNS)))


@pytest.mark.slow
@pytest.mark.parametrize("name", QUERIES)
@random_cases(2, 4, 12)
def test_sketches_and_rows_are_those_of_the_reference(name: str, cases: range) -> None:
    case = bag_case(name)
    for seed in cases:
        with_answer = seed % 2 == 0
        rng = random.Random(f"bags {name} {seed}")
        tables = DRAWN.some_tables(rng, SIZES)
        made = partial(case.compiled, with_answer=with_answer)
        for query in DRAWN.carried(rng, tables, made, 5, (1, 3, 5)):
            assert sketches_of(query) == expected(case, tables), seed
            if with_answer:
                assert answer_of(query, case) == bag(evaluate(case.query.root, tables)), seed


def answer_of(query: MaintainedQuery, case: Case) -> object:
    return rows_kept(query, replace(case.query, root=apply_rules(case.query.root)))


CIRCLES = "WITH RECURSIVE r(n){} AS (SELECT a FROM seeds UNION ALL SELECT l.b FROM r JOIN links l "
CIRCLES += "ON r.n = l.a) SELECT n FROM r"


def some_tables(*links: tuple[int, int]) -> Mapping[str, Sequence[Row]]:
    return {
        "links": [{"a": a, "b": b, "f": 1} for a, b in links],
        "seeds": [{"a": 1, "f": 0}],
    }


@pytest.mark.parametrize(("levels", "most"), [("", 100), (" MAX RECURSION LEVEL 7", 7)])
def test_a_circle_in_the_tables_ends_at_the_limit(levels: str, most: int) -> None:
    """Whether it is there when the circuit is filled, or a change closes it."""
    case = case_of_sql(CIRCLES.format(levels), tuple(COLUMNS))
    for is_there in (True, False):
        query = MaintainedQuery(case.compiled(with_answer=False))
        tables = some_tables((1, 2), (2, 3), *([(3, 1)] if is_there else []))
        loaded = DRAWN.whole(tables)
        if is_there:
            with pytest.raises(UnsupportedError, match=f"limit of {most} levels") as caught:
                query.load(loaded)
        else:
            query.load(loaded)
            assert sketches_of(query) == expected(case, tables)
            change = {"links": change_of("links", some_tables((3, 1))["links"], [1])}
            with pytest.raises(UnsupportedError, match=f"limit of {most} levels") as caught:
                query.step(change)
        assert caught.value.code == "recursion_limit"


def test_limits_are_the_querys_own() -> None:
    for text, most in (("", LEVEL_LIMITS.levels), (" MAX RECURSION LEVEL 250", 250)):
        case = case_of_sql(CIRCLES.format(text), ("links",))
        (levels,) = (
            one for one in case.compiled(with_answer=False).circuit if isinstance(one, Levels)
        )
        assert levels.limits == replace(LEVEL_LIMITS, levels=most)


def _twice(node: Fixpoint) -> Plan:
    (closure,) = fixpoints_of(case_of("closure").query.root)
    return replace(closure, is_set=False)


def _alone(node: Fixpoint) -> Plan:
    return replace(node, step=node.base, is_set=False)


def _once_each(node: Fixpoint) -> Plan:
    return replace(node, step=Distinct(node.step))


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (_twice, "rows made of none of its rows or of two"),
        (_alone, "rows made of none of its rows or of two"),
        (_once_each, "Distinct over rows of"),
    ],
)
def test_a_step_of_another_kind_is_named(other: object, reason: str) -> None:
    assert callable(other)
    (node,) = fixpoints_of(case_of_sql(CIRCLES.format(""), ()).query.root)
    with pytest.raises(BlockedError, match=reason):
        compile_plan(other(node), {}, {})


def test_columns_that_nobody_needs_are_not_kept() -> None:
    case = bag_case("a column less")
    (node,) = (node for node in nodes_of(case.core) if isinstance(node, Fixpoint))
    assert [a.name for a in node.attributes] == ["n", "k"], "the step needs the one for the other"
    lonely = case_of_sql(
        QUERIES["sources"].replace("SELECT y, k FROM r WHERE x = 1", "SELECT k FROM r"), ()
    )
    (node,) = (node for node in nodes_of(lonely.core) if isinstance(node, Fixpoint))
    assert [a.name for a in node.attributes] == ["y", "k"]
