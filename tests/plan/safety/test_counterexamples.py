"""Queries and data on which an unsafe sketch gives a wrong answer, each refused for that reason.

Every case proves itself: the sketch covers the provenance and still changes the answer, so a
procedure that accepted it would be wrong. Controls at the end must be accepted and be right.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from impctl.safety.facts import Fact, FactKind, FactSource
from impctl.safety.judge import Verdict, check_safety
from impctl.sql.statement import parse_query
from tests.plan.safety.corner_cases import CORNERS
from tests.plan.safety.counterexamples import (
    CITIES,
    COUNTED,
    NONNEGATIVE_V,
    SIGNED,
    UNSAFE,
    Example,
)
from tests.plan.safety.rare_corner_cases import RARE_CORNERS
from tests.plan.trials import accurate_sketches, instances_of
from tests.support.reference_plan import annotate, bag, evaluate


def _results(example: Example, sql: str | None = None) -> tuple[object, object, bool]:
    """Answer over the tables, over the sketch, and whether the sketch covers the provenance."""
    query = parse_query(sql or example.sql, example.catalog())
    tables = example.rows()
    partitions = {access: (c, bounds) for access, (c, bounds, _) in example.sketches.items()}
    sketches = {access: ids for access, (_, _, ids) in example.sketches.items()}
    result = annotate(query.root, tables)
    needed = accurate_sketches(result, query.root, tables, partitions, barriers=False)
    covers = all(needed[access] <= set(sketches[access]) for access in partitions)
    instances = instances_of(query.root, tables, partitions, sketches)
    whole = bag(row for row, _ in result.rows)
    return whole, bag(evaluate(query.root, tables, instances)), covers


def _verdict(example: Example) -> Verdict:
    query = parse_query(example.sql, example.catalog())
    sketched = {access: column for access, (column, _, _) in example.sketches.items()}
    return check_safety(query, sketched, example.facts)


@pytest.mark.parametrize("example", [*UNSAFE, *CORNERS, *RARE_CORNERS], ids=str)
def test_unsafe_is_refused_with_its_reason(example: Example) -> None:
    verdict = _verdict(example)
    assert not verdict.safe
    assert verdict.reason == example.reason
    assert verdict.span is not None


@pytest.mark.slow
@pytest.mark.parametrize("example", [*UNSAFE, *CORNERS, *RARE_CORNERS], ids=str)
def test_accepting_the_unsafe_sketch_would_change_the_answer(example: Example) -> None:
    whole, sketched, covers = _results(example)
    assert covers, "the sketch must hold the whole provenance, else the case proves nothing"
    assert whole != sketched


TOP_UNDER_JOIN = Example(
    "CE-11 top-k under a join",
    {"k": ("id v", ((1, 100), (2, 90), (3, 80))), "m": ("id", ((2,), (3,)))},
    "SELECT a.id FROM (SELECT id, v FROM k ORDER BY v DESC, id LIMIT 2) a JOIN m ON a.id = m.id",
    sketches={"k#1": ("id", (2,), frozenset({1}))},
)
TOP_UNDER_HAVING = Example(
    "CE-12 top-k under HAVING",
    {"t": ("g p v", (("a", 1, 10), ("a", 1, 9), ("b", 2, 8), ("a", 1, 7)))},
    "SELECT g, count(*) FROM (SELECT g, v FROM t ORDER BY v DESC, g LIMIT 3) a GROUP BY g"
    " HAVING count(*) >= 2",
)
TOP_UNDER_HAVING_KEYED = Example(
    "CE-12 top-k under HAVING, grouping attribute",
    TOP_UNDER_HAVING.tables,
    TOP_UNDER_HAVING.sql,
    sketches={"t#1": ("g", ("b",), frozenset({0}))},
)


@pytest.mark.parametrize(
    "example", [TOP_UNDER_JOIN, TOP_UNDER_HAVING, TOP_UNDER_HAVING_KEYED], ids=str
)
def test_top_k_below_other_operators_needs_its_own_rows_in_the_sketch(example: Example) -> None:
    verdict = _verdict(example)
    assert verdict.safe
    assert verdict.barriers == 1
    whole, sketched, covers = _results(example)
    assert covers
    assert whole != sketched, "without the first rows' lineage the answer is wrong"

    query = parse_query(example.sql, example.catalog())
    tables = example.rows()
    partitions = {access: (c, bounds) for access, (c, bounds, _) in example.sketches.items()}
    result = annotate(query.root, tables)
    assert set(verdict.barrier_positions) == set(result.first_rows)
    sketches = accurate_sketches(result, query.root, tables, partitions)
    instances = instances_of(query.root, tables, partitions, sketches)
    assert bag(evaluate(query.root, tables, instances)) == whole


NULL_ATTRIBUTE = Example(
    "CE-17 rows with NULL in the attribute have a fragment of their own",
    {"t": ("g p v", (("A", None, 5), ("A", 1, 5), ("B", 1, 3)))},
    "SELECT g, sum(v) FROM t GROUP BY g HAVING sum(v) >= 10",
    sketches={"t#1": ("p", (1, 2), frozenset({1}))},
    facts=NONNEGATIVE_V,
)
TWO_ACCESSES = Example(
    "CE-28 the fragment of one access must not filter the other",
    {"t": ("id parent x", ((1, 2, 9), (2, None, 1)))},
    "SELECT a.id, b.id FROM t a JOIN t b ON a.parent = b.id WHERE a.x > 5",
    sketches={"t#1": ("id", (2,), frozenset({0})), "t#2": ("id", (2,), frozenset({0}))},
)
UNCOVERED = (
    NULL_ATTRIBUTE,
    Example(
        "CE-14 one witness of the maximum is not enough once aggregates nest",
        {"t": ("h v", ((1, -1), (1, -1), (2, -5), (2, Decimal("-0.5"))))},
        "SELECT max(s) FROM (SELECT h, sum(v) AS s FROM t GROUP BY h) a",
        sketches={"t#1": ("v", (Decimal("-2"),), frozenset({1}))},
    ),
    Example(
        "CE-15 captured with another constant",
        {"t": ("g x p a", ((1, 9, 1, 100), (1, 7, 2, 6)))},
        "SELECT g, max(a) FROM t WHERE x < 8 GROUP BY g HAVING max(a) > 5",
        sketches={"t#1": ("p", (2,), frozenset({0}))},
    ),
    Example(
        "CE-23 captured with another constant",
        {"t": ("id a v", ((1, 9, 100), (2, 9, 90), (3, 5, 80), (4, 5, 70)))},
        "SELECT id FROM t WHERE a < 8 ORDER BY v DESC LIMIT 2",
        sketches={"t#1": ("id", (3,), frozenset({0}))},
    ),
    Example(
        "CE-24 captured with another constant",
        {"t": ("g a v", (("A", 1, 10), ("A", 9, 2), ("B", 3, 3), ("B", 9, 20)))},
        "SELECT g, avg(v) FROM t WHERE a < 5 GROUP BY g HAVING avg(v) > 8",
        sketches={"t#1": ("g", ("B",), frozenset({1}))},
    ),
    Example(
        "CE-25 captured with another constant",
        {"t": ("g", (("A",), ("A",), ("B",)))},
        "SELECT g, count(*) FROM t GROUP BY g HAVING count(*) >= 1",
        sketches={"t#1": ("g", ("B",), frozenset({0}))},
    ),
    TWO_ACCESSES,
)


@pytest.mark.parametrize("example", UNCOVERED, ids=str)
def test_a_sketch_that_lacks_a_fragment_changes_the_answer(example: Example) -> None:
    assert _verdict(example).safe
    whole, sketched, covers = _results(example)
    assert not covers
    assert whole != sketched


def test_a_fact_from_statistics_is_named_because_later_rows_may_break_it() -> None:
    # v >= 0 held at capture; then (A, 1, 5) and (A, 2, -9) came.
    before = (("B", 1, 12), ("A", 1, 10), ("A", 2, 0))
    after = (*before, ("A", 1, 5), ("A", 2, -9))
    sql = "SELECT g, sum(v) FROM t GROUP BY g HAVING sum(v) > 11"
    first = Example("before", {"t": ("g p v", before)}, sql, facts=NONNEGATIVE_V)
    assert _verdict(first).assumptions == NONNEGATIVE_V
    assert _results(first)[0] == _results(first)[1]
    whole, sketched, covers = _results(Example("after", {"t": ("g p v", after)}, sql))
    assert covers
    assert whole != sketched


CONTROLS = (
    Example(
        "top-1 by sum of nonnegative values",
        {"cities": CITIES},
        "SELECT state, sum(popden) AS s FROM cities GROUP BY state ORDER BY s DESC LIMIT 1",
        sketches={"cities#1": ("popden", (4001,), frozenset({1}))},
        facts=(Fact("cities", "popden", FactKind.NONNEGATIVE, FactSource.CONSTRAINT),),
    ),
    Example(
        "CE-3 on the grouping attribute",
        {"t": COUNTED},
        "SELECT g, count(*) FROM t GROUP BY g HAVING count(*) <= 1",
        sketches={"t#1": ("g", ("B",), frozenset({1}))},
    ),
    Example(
        "max at least",
        {"t": ("g p v", (("A", 1, 1), ("A", 2, 9), ("B", 1, 2)))},
        "SELECT g, max(v) FROM t GROUP BY g HAVING max(v) >= 9",
        sketches={"t#1": ("p", (2,), frozenset({0, 1}))},
    ),
    Example(
        "avg only shown",
        {"t": ("g p v", (("A", 1, 1), ("A", 1, 9), ("B", 2, 2)))},
        "SELECT g, avg(v), count(*) FROM t GROUP BY g HAVING count(*) >= 2",
    ),
    Example(
        "row_number at the root",
        {"t": ("g p v", (("A", 1, 1), ("A", 2, 9), ("B", 2, 2)))},
        "SELECT * FROM (SELECT g, v, row_number() OVER (PARTITION BY g ORDER BY v DESC) AS n"
        " FROM t) a WHERE n <= 1",
        sketches={"t#1": ("p", (2,), frozenset({1}))},
    ),
    Example(
        "CE-26 a constant that keeps negatives out",
        {"t": SIGNED},
        "SELECT g, sum(v) FROM t WHERE v > 0 GROUP BY g HAVING sum(v) > 4",
    ),
    Example(
        "CE-19 with NULLS LAST",
        {"t": ("g p v", (("A", 2, 5), ("B", 1, 10), ("B", 2, None)))},
        "SELECT g, min(v) FROM t GROUP BY g ORDER BY min(v) ASC NULLS LAST, g LIMIT 1",
        sketches={"t#1": ("p", (2,), frozenset({1}))},
    ),
    Example(
        "CE-30 below the largest of a group",
        {
            "r": ("k x", ((1, 2), (2, 5))),
            "s": ("k p y", ((1, 1, 3), (2, 1, 4), (2, 2, 9))),
        },
        "SELECT r.k FROM r JOIN (SELECT k, max(y) AS m FROM s GROUP BY k) a ON r.k = a.k"
        " WHERE r.x < a.m",
        sketches={"s#1": ("p", (2,), frozenset({0, 1}))},
    ),
    Example(
        "CE-16 a capture that joins back would multiply rows on ties and miss k1",
        {"t": ("k g v", (("k1", "a", 5), ("k1", "a", 5), ("k2", "b", 1), ("k2", "c", 2)))},
        "SELECT k, count(*) FROM (SELECT k, g, max(v) AS m FROM t GROUP BY k, g) a GROUP BY k"
        " HAVING count(*) <= 1",
        sketches={"t#1": ("k", ("k2",), frozenset({0}))},
    ),
    replace(
        NULL_ATTRIBUTE,
        name="CE-17 with the fragment of NULL",
        sketches={"t#1": ("p", (1, 2), frozenset({1, 3}))},
    ),
    Example(
        "CE-18 ranges leave no gap between whole numbers",
        {
            "t": (
                "g p v",
                (("A", Decimal("600.5"), 7), ("A", Decimal("700"), 5), ("B", Decimal("1200"), 1)),
            )
        },
        "SELECT g, sum(v) FROM t GROUP BY g HAVING sum(v) >= 10",
        sketches={"t#1": ("p", (Decimal("601"), Decimal("1001")), frozenset({0, 1}))},
        facts=NONNEGATIVE_V,
    ),
    Example(
        "CE-21 a NULL group is a group",
        {"t": ("g x", ((None, 5), (None, 6), ("x", 1)))},
        "SELECT g, avg(x) FROM t GROUP BY g HAVING avg(x) > 2",
        sketches={"t#1": ("g", ("m",), frozenset({2}))},
    ),
    replace(
        TWO_ACCESSES,
        name="CE-28 each access of a table has its own sketch",
        sketches={"t#1": ("id", (2,), frozenset({0})), "t#2": ("id", (2,), frozenset({1}))},
    ),
)


@pytest.mark.parametrize("example", CONTROLS, ids=str)
def test_controls_are_accepted_and_right(example: Example) -> None:
    assert _verdict(example).safe
    whole, sketched, covers = _results(example)
    assert covers
    assert whole
    assert whole == sketched
