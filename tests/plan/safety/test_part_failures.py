"""Which queries may fail through a sketch although they work without one."""

from __future__ import annotations

from fractions import Fraction

import pytest

from impctl.safety.facts import FactKind
from impctl.safety.failures import Sizes, part_failure
from impctl.sql.statement import parse_query
from tests.plan.safety.judged import fact
from tests.support.schemas import schema_of

CATALOG = {"t": schema_of("g int, p int, x int, y int, b bigint, d double, m decimal(38,2)")}
ROWS = 1_000_000

CAN_FAIL = [
    "SUM(x) / SUM(y)",
    "SUM(x) % SUM(y)",
    "SUM(x) div SUM(y)",
    "SUM(d) / SUM(d)",
    "SUM(b)",
    "SUM(m)",
    "AVG(m)",
    "CAST(SUM(x) AS INT)",
    "CAST(SUM(d) AS INT)",
    "CAST(CAST(SUM(x) AS STRING) AS INT)",
    "MAX(x) - MIN(x)",
    "SUM(x) * SUM(x) * SUM(x)",
    "-SUM(b)",
    "element_at(array(1, 2), COUNT(*))",
    "raise_error(CAST(COUNT(*) AS STRING))",
    "SUM(x) / NULLIF(SUM(y), 1)",
    "SUM(x) / NULLIF(SUM(x), 0) / SUM(y)",
    "CASE WHEN SUM(y) >= 0 THEN SUM(x) / SUM(y) END",
    "CASE WHEN SUM(y) = 0 THEN SUM(x) / SUM(y) END",
    "CASE WHEN SUM(y) <> 1 THEN 0 ELSE SUM(x) / SUM(y) END",
    "CASE WHEN SUM(x) > 0 THEN SUM(x) / SUM(y) END",
    "SUM(x) / COUNT(y)",
    "SUM(x) / COUNT(x) FILTER (WHERE y > 0)",
    "SUM(1 / y) / SUM(y)",
    "1 / (COUNT(*) - 1)",
    "SUM(x) / CAST(SUM(d) AS FLOAT)",
]
CANNOT = [
    "SUM(x)",
    "SUM(x / y)",
    "g / (g - 1)",
    "SUM(x) / 2",
    "SUM(x) / COUNT(*)",
    "SUM(x) / COUNT(1)",
    "100.0 * SUM(x) / COUNT(*)",
    "SUM(x) / COUNT(x)",
    "ROUND(AVG(x), 2)",
    "SUM(x) / NULLIF(SUM(y), 0)",
    "SUM(x) / NULLIF(CAST(SUM(y) AS DOUBLE), 0)",
    "CASE WHEN SUM(y) > 0 THEN SUM(x) / SUM(y) END",
    "CASE WHEN 0 < SUM(y) THEN SUM(x) / SUM(y) END",
    "CASE WHEN SUM(y) = 0 THEN 0 ELSE SUM(x) / SUM(y) END",
    "IF(SUM(y) <> 0, SUM(x) % SUM(y), 0)",
    "CASE WHEN NOT SUM(y) = 0 THEN SUM(x) / SUM(y) END",
    "try_divide(SUM(x), SUM(y))",
    "SUM(x) + SUM(y) - COUNT(*)",
    "SUM(d) * SUM(d) + 1",
    "CAST(SUM(x) AS STRING)",
    "CAST(COUNT(*) AS INT)",
    "-SUM(x)",
    "ABS(SUM(x))",
    "SQRT(SUM(d))",
    "COALESCE(SUM(x), 0)",
    "MAX(b)",
]
FIRST = "SELECT g, {} AS r FROM t GROUP BY g ORDER BY COUNT(*) DESC, g LIMIT 1"


def may_fail(sql: str, *, t: str = "p", **bounds: tuple[int, int]) -> bool:
    """Whether it may fail through a sketch of `t` on that column, with columns between bounds."""
    between = {f"t#1.{c}": (Fraction(a), Fraction(b)) for c, (a, b) in bounds.items()}
    signs = [fact(c, FactKind.NONNEGATIVE) for c, (least, _) in bounds.items() if least >= 0]
    sizes = Sizes({"t#1": ROWS}, between)
    return part_failure(parse_query(sql, CATALOG), {"t#1": t}, signs, sizes) is not None


@pytest.mark.parametrize("output", CAN_FAIL)
def test_outputs_that_can_fail(output: str) -> None:
    assert may_fail(FIRST.format(output))


@pytest.mark.parametrize("output", CANNOT)
def test_outputs_that_cannot_fail_or_do_without_a_sketch(output: str) -> None:
    assert not may_fail(FIRST.format(output))


@pytest.mark.parametrize("output", CAN_FAIL)
def test_whole_groups_fail_as_ever(output: str) -> None:
    assert not may_fail(FIRST.format(output), t="g")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT g FROM t GROUP BY g HAVING COUNT(*) > 5 AND SUM(x) / SUM(y) > 2", True),
        ("SELECT g FROM t GROUP BY g HAVING COUNT(*) > 5 AND SUM(x) / COUNT(*) > 2", False),
        ("SELECT g, SUM(x) / SUM(y) FROM t WHERE y > 0 GROUP BY g HAVING COUNT(*) > 5", True),
        ("SELECT x / y FROM t WHERE p > 3", False),
        (
            "SELECT g, s / u FROM (SELECT g, SUM(x) AS s, SUM(y) AS u FROM t GROUP BY g"
            " ORDER BY COUNT(*) DESC, g LIMIT 1)",
            False,
        ),
        (
            "SELECT a.g, a.s / a.u FROM (SELECT g, SUM(x) AS s, SUM(y) AS u, COUNT(*) AS n FROM t"
            " GROUP BY g) AS a JOIN t AS o ON a.g = o.g WHERE a.n > 5",
            True,
        ),
        ("SELECT g, COUNT(*) FROM t GROUP BY g HAVING COUNT(*) > 10 / (g - 1)", False),
    ],
)
def test_where_it_stands(sql: str, expected: bool) -> None:
    assert may_fail(sql) is expected


@pytest.mark.parametrize(
    ("output", "bounds", "expected"),
    [
        ("SUM(b)", {"b": (-1000, 1000)}, False),
        ("SUM(b)", {"b": (-(2**62), 2**62)}, True),
        ("SUM(b)", {"b": (0, 2**62)}, False),
        ("SUM(b * x)", {"b": (-1000, 1000), "x": (-1000, 1000)}, False),
        ("SUM(b) - SUM(y)", {"b": (0, 2**62), "y": (0, 9)}, False),
        ("SUM(b) * 100", {"b": (0, 2**62)}, False),
        ("SUM(b) * -100", {"b": (0, 2**62)}, False),
        ("SUM(b) * SUM(x)", {"b": (0, 2**62), "x": (0, 9)}, False),
        ("SUM(b) * SUM(x)", {"b": (0, 2**62), "x": (-9, 9)}, True),
        ("CAST(SUM(b) AS SMALLINT)", {"b": (0, 2**62)}, False),
        ("MAX(x) - MIN(x)", {"x": (0, 100)}, False),
        ("CAST(SUM(x) AS INT)", {"x": (-100, 100)}, False),
        ("SUM(x) / SUM(y)", {"y": (1, 100)}, True),
        ("SUM(x) / MAX(y)", {"y": (1, 100)}, False),
        ("SUM(m)", {"m": (-(10**20), 10**20)}, False),
        ("SUM(m)", {"m": (-(10**35), 10**35)}, True),
    ],
)
def test_statistics_bound_what_a_part_comes_to(
    output: str, bounds: dict[str, tuple[int, int]], expected: bool
) -> None:
    assert may_fail(FIRST.format(output), **bounds) is expected
