"""Scalar expressions and constants of SQL text: the expected nodes, with Spark's types."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from impctl.data.schema import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    NULL,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    SqlType,
    decimal,
    other,
)
from impctl.data.vector import from_arrow
from impctl.expr import nodes as e
from impctl.expr.evaluate import Evaluator, find_blocker
from impctl.expr.types import type_of
from impctl.plan.explain import expr_text
from impctl.plan.nodes import Aggregate, Project, Select
from tests.plan.catalogs import cases, listed, plan_of, schema_of, selected, text_of

PRICE = e.ColumnRef("sales#1.price", INTEGER)
DAY = e.ColumnRef("sales#1.day", DATE)
BRAND = e.ColumnRef("sales#1.brand", STRING)


def column(row_literals: str) -> e.Expr:
    return selected(f"SELECT {row_literals} AS it FROM sales")


def number(value: int) -> e.Literal:
    return e.Literal(value, INTEGER)


@pytest.mark.parametrize(
    ("row_literals", "expected"),
    [
        ("price", PRICE),
        ("PRICE", PRICE),
        ("`Price`", PRICE),
        ("Sales.price", PRICE),
        (
            "price BETWEEN 1 AND 2",
            e.And(
                (
                    e.Compare(e.CompareOp.GREATER_EQUAL, PRICE, number(1)),
                    e.Compare(e.CompareOp.LESS_EQUAL, PRICE, number(2)),
                )
            ),
        ),
        ("price IN (1, 2)", e.InList(PRICE, (number(1), number(2)))),
        ("price NOT IN (1)", e.Not(e.InList(PRICE, (number(1),)))),
        ("price != 1", e.Compare(e.CompareOp.NOT_EQUAL, PRICE, number(1))),
        ("price == 1", e.Compare(e.CompareOp.EQUAL, PRICE, number(1))),
        ("price <=> 1", e.Compare(e.CompareOp.NULL_SAFE_EQUAL, PRICE, number(1))),
        (
            "price IS DISTINCT FROM 1",
            e.Not(e.Compare(e.CompareOp.NULL_SAFE_EQUAL, PRICE, number(1))),
        ),
        ("price IS NULL", e.IsNull(PRICE)),
        ("price IS NOT NULL", e.Not(e.IsNull(PRICE))),
        (
            "ok IS NOT TRUE",
            e.Not(
                e.Compare(
                    e.CompareOp.NULL_SAFE_EQUAL,
                    e.ColumnRef("sales#1.ok", BOOLEAN),
                    e.Literal(True, BOOLEAN),
                )
            ),
        ),
        ("brand LIKE 'a%'", e.Like(BRAND, "a%")),
        ("brand NOT LIKE 'a!%' ESCAPE '!'", e.Not(e.Like(BRAND, "a!%", "!"))),
        ("brand LIKE brand", e.Call("like", (BRAND, BRAND), BOOLEAN)),
        ("coalesce(price, 1)", e.Coalesce((PRICE, number(1)))),
        ("NVL(price, 1)", e.Coalesce((PRICE, number(1)))),
        (
            "nullif(price, 1)",
            e.Case(
                ((e.Compare(e.CompareOp.EQUAL, PRICE, number(1)), e.Literal(None, NULL)),), PRICE
            ),
        ),
        (
            "CASE price WHEN 1 THEN 2 ELSE 3 END",
            e.Case(((e.Compare(e.CompareOp.EQUAL, PRICE, number(1)), number(2)),), number(3)),
        ),
        (
            "if(price > 1, 2, 3)",
            e.Case(((e.Compare(e.CompareOp.GREATER, PRICE, number(1)), number(2)),), number(3)),
        ),
        ("CAST(price AS STRING)", e.Cast(PRICE, STRING)),
        ("price::bigint", e.Cast(PRICE, LONG)),
        ("CAST(price AS decimal(12, 3))", e.Cast(PRICE, decimal(12, 3))),
        ("CAST(price AS decimal(12))", e.Cast(PRICE, decimal(12, 0))),
        ("CAST(price AS decimal)", e.Cast(PRICE, decimal(10, 0))),
        ("CAST(price AS varchar(3))", e.Cast(PRICE, STRING)),
        ("double(price)", e.Cast(PRICE, DOUBLE)),
        ("UPPER(brand)", e.Call("upper", (BRAND,), STRING)),
        ("locate('x', brand)", e.Call("locate", (e.Literal("x", STRING), BRAND), INTEGER)),
        ("position('x' IN brand)", e.Call("locate", (e.Literal("x", STRING), BRAND), INTEGER)),
        ("extract(YEAR FROM day)", e.Call("year", (DAY,), INTEGER)),
        ("extract(WEEK FROM day)", e.Call("weekofyear", (DAY,), INTEGER)),
        ("extract(DECADE FROM day)", e.Call("date_part", (e.Literal("decade", STRING), DAY))),
        (
            "extract(DAY FROM day - day)",
            e.Call(
                "date_part",
                (e.Literal("day", STRING), e.Arithmetic(e.ArithmeticOp.SUBTRACT, DAY, DAY)),
            ),
        ),
        ("DATE '1970-01-02'::STRING", e.Cast(e.Literal(1, DATE), STRING)),
        (
            "datediff(HOUR, day, day)",
            e.Call("timestampdiff", (e.Literal("HOUR", STRING), DAY, DAY), LONG),
        ),
        ("day + 3", e.Call("date_add", (DAY, number(3)), DATE)),
        ("day - INTERVAL 1 WEEK", e.Call("date_sub", (DAY, number(7)), DATE)),
        (
            "dateadd(day, 3, day)",
            e.Call("timestampadd", (e.Literal("DAY", STRING), number(3), DAY)),
        ),
        ("datediff(day, day)", e.Call("datediff", (DAY, DAY), INTEGER)),
        ("abs(price)", e.Call("abs", (PRICE,), INTEGER)),
        ("+price", PRICE),
        ("+brand", e.Call("positive", (BRAND,))),
        ("+'5'", e.Call("positive", (e.Literal("5", STRING),))),
        ("+ +5", e.Cast(number(5), INTEGER)),
        ("brand IN (+'5')", e.InList(BRAND, (e.Call("positive", (e.Literal("5", STRING),)),))),
        ("brand || 'x'", e.Call("concat", (BRAND, e.Literal("x", STRING)), STRING)),
        ("day = '1970-01-02'", e.Compare(e.CompareOp.EQUAL, DAY, e.Literal(1, DATE))),
        ("'1970-01-02' < day", e.Compare(e.CompareOp.LESS, e.Literal(1, DATE), DAY)),
        ("day IN ('1970-01-02')", e.InList(DAY, (e.Literal(1, DATE),))),
        ("day = '1970-1-2'", e.Compare(e.CompareOp.EQUAL, DAY, e.Literal("1970-1-2", STRING))),
        ("price = '1'", e.Compare(e.CompareOp.EQUAL, PRICE, e.Literal("1", STRING))),
    ],
)
def test_nodes(row_literals: str, expected: e.Expr) -> None:
    assert column(row_literals) == expected


@pytest.mark.parametrize(("row_literals", "text"), cases("expressions", "precedence"))
def test_precedence(row_literals: str, text: str) -> None:
    assert expr_text(column(row_literals)) == text


def test_every_part_has_its_span() -> None:
    sql = (
        "SELECT sid FROM sales\nWHERE (price + 1) * 2 > 3 AND brand LIKE 'x%'"
        " AND coalesce(price, (numSold)) IN (1, 2)"
    )
    root = plan_of(sql)
    assert isinstance(root, Project)
    assert isinstance(root.child, Select)
    expected = {
        "(price + 1) * 2 > 3",
        "(price + 1) * 2",
        "price + 1",
        "brand LIKE 'x%'",
        "coalesce(price, (numSold)) IN (1, 2)",
        "coalesce(price, (numSold))",
        "numSold",
    }
    spans = [part.span for part in root.child.predicate.walk()]
    assert expected <= {sql[span.start : span.end] for span in spans if span is not None}
    assert all(span is not None and span.line == 2 for span in spans)
    assert all(
        sql.split("\n")[1][s.column - 1 :].startswith(sql[s.start : s.end]) for s in spans if s
    )


@pytest.mark.parametrize(
    ("row_literals", "expected"),
    [
        ("price * numSold", INTEGER),
        ("sid + price", LONG),
        ("price / 2", DOUBLE),
        ("cost * 2", decimal(12, 2)),
        ("cost + 0.125", decimal(12, 3)),
        ("price > 1", BOOLEAN),
    ],
)
def test_types_of_outputs(row_literals: str, expected: SqlType) -> None:
    assert type_of(column(row_literals)) == expected


@pytest.mark.parametrize(
    ("row_literals", "is_known"),
    [
        ("median(price)", True),
        ("percentile(price, 0.5)", True),
        ("percentile(price, 1)", True),
        ("percentile(price, array(0.5, 0.9))", False),
    ],
)
def test_types_of_percentiles(row_literals: str, is_known: bool) -> None:
    root = plan_of(f"SELECT {row_literals} AS x FROM sales")
    assert isinstance(root, Aggregate)
    (output,) = root.aggregates
    assert (output.attribute.type == DOUBLE) is is_known


@pytest.mark.parametrize(("row_literals", "name"), cases("expressions", "names of columns"))
def test_only_columns_and_their_casts_have_column_names(row_literals: str, name: str) -> None:
    root = plan_of(f"SELECT {row_literals} FROM sales")
    assert isinstance(root, Project)
    assert root.outputs[0].attribute.name == name


def test_order_by_a_column_under_its_negation() -> None:
    """`-price` is not named `price`, and `price` in ORDER BY is the table's column."""
    text = text_of("SELECT -price FROM sales ORDER BY price")
    assert text.splitlines()[:2] == ["project -price", "  sort by price"]


@pytest.mark.parametrize(
    ("row_literals", "arguments"),
    [
        ("overlay(brand PLACING 'x' FROM price)", 3),
        ("OVERLAY(brand PLACING 'x' FROM 2 FOR price + 1)", 4),
        ("overlay(brand, 'x', 2)", 3),
    ],
)
def test_overlay_is_a_call_in_any_syntax(row_literals: str, arguments: int) -> None:
    result = column(row_literals)
    assert isinstance(result, e.Call)
    assert (result.name, len(result.arguments)) == ("overlay", arguments)
    assert result.arguments[:2] == (BRAND, e.Literal("x", STRING))
    assert result.span.end - result.span.start == len(row_literals)


@pytest.mark.parametrize(
    ("row_literals", "value", "kind"),
    [
        ("5", 5, INTEGER),
        ("00012", 12, INTEGER),
        ("2147483647", 2147483647, INTEGER),
        ("2147483648", 2147483648, LONG),
        ("-2147483648", -2147483648, INTEGER),
        ("- 5", -5, INTEGER),
        ("5000000000", 5000000000, LONG),
        ("-9223372036854775808", -(2**63), LONG),
        ("99999999999999999999", Decimal("99999999999999999999"), decimal(20, 0)),
        ("4L", 4, LONG),
        ("-4L", -4, LONG),
        ("2S", 2, SHORT),
        ("3Y", 3, BYTE),
        ("-128Y", -128, BYTE),
        ("0.12", Decimal("0.12"), decimal(2, 2)),
        ("0.00", Decimal("0.00"), decimal(2, 2)),
        ("-0.0", Decimal("0.0"), decimal(1, 1)),
        (".5", Decimal("0.5"), decimal(1, 1)),
        ("-.5", Decimal("-0.5"), decimal(1, 1)),
        ("100.", Decimal(100), decimal(3, 0)),
        ("1.50BD", Decimal("1.50"), decimal(3, 2)),
        ("-1.5bd", Decimal("-1.5"), decimal(2, 1)),
        ("1e-3bd", Decimal("0.001"), decimal(3, 3)),
        ("1e3", 1000.0, DOUBLE),
        ("-2.5E-1", -0.25, DOUBLE),
        ("1.0D", 1.0, DOUBLE),
        ("1.5F", 1.5, FLOAT),
        ("0.1F", 0.10000000149011612, FLOAT),
        # Parsed via a double it would be rounded to 1.0.
        ("1.00000005960464477540F", 1.0000001192092896, FLOAT),
        ("1.00000005960464477539F", 1.0, FLOAT),
        ("1e-60F", 0.0, FLOAT),
        ("1e-9999999999999999999F", 0.0, FLOAT),
        ("1e-9999999999999999999D", 0.0, DOUBLE),
        ("1e-45F", 1.401298464324817e-45, FLOAT),
        ("'x'", "x", STRING),
        ('"x"', "x", STRING),
        (r"'it\'s'", "it's", STRING),
        (r"'a\tb\\'", "a\tb\\", STRING),
        (r"'\%\_\q'", r"\%\_q", STRING),
        (r"'\101\u0041'", "AA", STRING),
        (r"r'a\n'", r"a\n", STRING),
        ("TRUE", True, BOOLEAN),
        ("false", False, BOOLEAN),
        ("NULL", None, NULL),
        ("X'1f'", b"\x1f", BINARY),
        ("DATE '1970-01-02'", 1, DATE),
        ("DATE '1969-12-31'", -1, DATE),
        ("TIMESTAMP '1970-01-01 00:00:01Z'", 1_000_000, TIMESTAMP),
        ("TIMESTAMP '1970-01-01 01:00:00.5+01:00'", 500_000, TIMESTAMP),
        ("TIMESTAMP_NTZ '1970-01-01 00:00:01'", 1_000_000, TIMESTAMP_NTZ),
        ("DATE '2024-01-31' + INTERVAL 1 MONTH", 19782, DATE),
        ("DATE '2024-03-01' - INTERVAL '1' DAY", 19782, DATE),
        ("DATE '2024-02-29' - INTERVAL 1 YEAR", 19416, DATE),
        ("DATE '2024-02-15' + INTERVAL 2 WEEKS", 19782, DATE),
    ],
)
def test_value_and_type(row_literals: str, value: object, kind: SqlType) -> None:
    expr = column(row_literals)
    assert isinstance(expr, e.Literal)
    assert expr == e.Literal(value, kind)  # type: ignore[arg-type]
    assert type(expr.value) is type(value)


def test_an_interval_is_a_cast() -> None:
    expr = column("day + INTERVAL 3 MONTHS")
    assert isinstance(expr, e.Arithmetic)
    assert expr.right == e.Cast(e.Literal("3", STRING), other("interval month"))


def test_a_minus_before_parentheses_negates() -> None:
    assert isinstance(column("-(5)"), e.Negate)


def test_a_literal_span_includes_minus_and_suffix() -> None:
    sql = "SELECT sid FROM sales WHERE price > -5L"
    root = plan_of(sql)
    literal = root.child.predicate.right  # type: ignore[union-attr]
    assert sql[literal.span.start : literal.span.end] == "-5L"


SCHEMA = schema_of("h timestamp, n timestamp_ntz, d date")
NOON = datetime(2024, 2, 29, 12, 0, 0, 5)
CONSTANTS = [text for (text,) in listed("expressions", "constants of time")]


CONDITIONS = [text for (text,) in listed("expressions", "conditions on times")]


ZONES = ("UTC", "+05:30", "-03:00")


def moment_of(sql: str, zone: str) -> e.Expr:
    return selected(f"SELECT {sql} AS x FROM t", {"t": SCHEMA}, zone)


def rows() -> pa.Table:
    moments = [NOON + timedelta(microseconds=step) for step in (-5, -1, 0, 1)]
    moments += [datetime(2024, 2, 29) + timedelta(hours=h, microseconds=m)
                for h in (-30, -24, -6, -3, 0, 3, 6, 24) for m in (-1, 0)]  # fmt: skip
    aware = pa.array([*(m.replace(tzinfo=UTC) for m in moments), None], pa.timestamp("us", "UTC"))
    local = pa.array([*moments, None], pa.timestamp("us"))
    return pa.table({"h": aware, "n": local, "d": local.cast(pa.date32(), safe=False)})


@pytest.mark.parametrize("sql", CONSTANTS)
def test_time_constants_are_literals_in_fixed_offsets(sql: str) -> None:
    for zone in ZONES:
        assert isinstance(moment_of(sql, zone), e.Literal)


@pytest.mark.parametrize("sql", CONDITIONS)
def test_the_engine_can_compare_times(sql: str) -> None:
    assert find_blocker(moment_of(sql, "UTC")) is None


@pytest.mark.parametrize("sql", cases("expressions", "left to Spark in a region"))
def test_regions_are_left_to_spark(sql: str) -> None:
    expr = moment_of(sql, "Europe/Berlin")
    assert not isinstance(expr, e.Literal)
    assert find_blocker(expr) is not None


@pytest.mark.parametrize("sql", cases("expressions", "left to Spark"))
def test_ambiguous_times_are_left_to_spark(sql: str) -> None:
    assert not isinstance(moment_of(sql, "UTC"), e.Literal)


def micros(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value - datetime(1970, 1, 1, tzinfo=value.tzinfo)) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - date(1970, 1, 1)).days
    return value


@pytest.mark.spark
@pytest.mark.parametrize("zone", ZONES)
def test_spark_computes_the_same(zone: str, spark: Any, in_zone: Callable[[str], None]) -> None:
    from impctl.spark.run import run_sql

    in_zone(zone)
    selected = ", ".join(f"{sql} AS x{i}" for i, sql in enumerate(CONSTANTS))
    result = run_sql(spark, f"SELECT {selected}", {})
    for sql, column in zip(CONSTANTS, result.columns, strict=True):
        expr = moment_of(sql, zone)
        assert isinstance(expr, e.Literal)
        assert expr.value == micros(column[0].as_py()), (sql, zone)


READ = """timestamp_micros(h) AS h, date_from_unix_date(d) AS d,
    TIMESTAMP_NTZ '1970-01-01 00:00:00' + (n DIV 1000000) * INTERVAL '1' SECOND
    + make_dt_interval(0, 0, 0, (n % 1000000) / 1000000D) AS n"""


def row_literals(table: pa.Table) -> list[str]:
    """Write the rows as numbers, so that they do not depend on the time zone."""
    columns = [[micros(value) for value in table[name].to_pylist()] for name in "hnd"]
    texts = [["NULL" if value is None else str(value) for value in column] for column in columns]
    return [f"({', '.join(row)})" for row in zip(*texts, strict=True)]


@pytest.mark.spark
@pytest.mark.parametrize("zone", ZONES)
def test_conditions_hold_for_the_same_rows(
    zone: str, spark: Any, in_zone: Callable[[str], None]
) -> None:
    from impctl.spark.run import run_sql

    in_zone(zone)
    table = rows()
    columns = {f"t#1.{c.name}": from_arrow(table[c.name], c.type) for c in SCHEMA}
    view = f"SELECT {READ} FROM VALUES {', '.join(row_literals(table))} AS v(h, n, d)"
    selected = ", ".join(f"({sql}) AS x{i}" for i, sql in enumerate(CONDITIONS))
    result = run_sql(spark, f"SELECT {selected} FROM ({view})", {})
    for sql, column in zip(CONDITIONS, result.columns, strict=True):
        vector = Evaluator(moment_of(sql, zone)).values(columns, len(table))
        ours = [bool(value) if ok else None
                for value, ok in zip(vector.values, vector.validity(), strict=True)]  # fmt: skip
        assert ours == column.to_pylist(), (sql, zone)
