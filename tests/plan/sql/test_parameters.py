"""Named parameters: where they are found, what becomes of their values, and the way back."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from impctl.data.schema import BOOLEAN, DATE, DOUBLE, INTEGER, LONG, STRING, TIMESTAMP, decimal
from impctl.errors import Location, QueryError, UsageError
from impctl.expr.nodes import Compare, Expr, Literal
from impctl.plan.nodes import Select, nodes_of
from impctl.sql.parameters import bind, literal_text
from impctl.sql.statement import parse_query
from impctl.types import ParameterValue
from tests.support.schemas import schema_of

CATALOG = {
    "t": schema_of(
        "i int, n bigint, m decimal(38,2), d double, s string, b boolean, y date, t timestamp"
    )
}
ATTACKS = (
    "' OR 1=1 --",
    "x' UNION SELECT * FROM t --",
    "\\' OR TRUE --",
    "\\",
    "'; DROP TABLE t; --",
    "/* */ '",
    '"',
    "`",
    "\n\r\0\x1a\t",
    "${env:HOME}",
    "$(x) ${spark.master}",
    "%_\\%\\_",
    "ünï\u2028\U0001f600",
    ":i",
    "",
)


def _operand(column: str, value: ParameterValue) -> Expr:
    """What `column >= :v` compares with, once bound."""
    bound = bind(f"SELECT i FROM t WHERE {column} >= :v", {"v": value}, name="q")
    (node,) = [x for x in nodes_of(parse_query(bound.sql, CATALOG).root) if isinstance(x, Select)]
    assert isinstance(node.predicate, Compare)
    return node.predicate.right


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("i", 5000, Literal(5000, INTEGER)),
        ("i", -5, Literal(-5, INTEGER)),
        ("n", 2**40, Literal(2**40, LONG)),
        ("n", -(2**63), Literal(-(2**63), LONG)),
        ("m", Decimal("0.5"), Literal(Decimal("0.5"), decimal(1, 1))),
        ("m", Decimal("7000"), Literal(Decimal(7000), decimal(4, 0))),
        ("m", Decimal("-1.25"), Literal(Decimal("-1.25"), decimal(3, 2))),
        ("d", 1e3, Literal(1000.0, DOUBLE)),
        ("d", -2.5e-300, Literal(-2.5e-300, DOUBLE)),
        ("d", 1e22, Literal(1e22, DOUBLE)),
        ("b", True, Literal(True, BOOLEAN)),
        ("y", date(2024, 1, 31), Literal(19753, DATE)),
        ("t", datetime(1970, 1, 2, tzinfo=UTC), Literal(86_400_000_000, TIMESTAMP)),
        ("t", datetime(1970, 1, 2, 3), Literal(97_200_000_000, TIMESTAMP)),
    ],
)
def test_a_value_is_a_literal_of_its_type(
    column: str, value: ParameterValue, expected: Expr
) -> None:
    assert _operand(column, value) == expected


@pytest.mark.parametrize("text", ATTACKS)
def test_text_is_text_whatever_it_holds(text: str) -> None:
    assert _operand("s", text) == Literal(text, STRING)
    written = literal_text(text)
    assert written[1:-1].isprintable()
    assert not set("'\"$") & set(written[1:-1])


def test_only_parameters_are_replaced() -> None:
    sql = "SELECT ':a', `:a` -- :a\n FROM t /* :a */ WHERE x > :a AND p:a::int = 1 OR :a<y"
    bound = bind(sql, {"a": 7}, name="q").sql
    assert bound == (
        "SELECT ':a', `:a` -- :a\n FROM t /* :a */ WHERE x > 7 AND p:a::int = 1 OR 7<y"
    )


def test_a_negative_number_does_not_start_a_comment() -> None:
    bound = bind("SELECT i -:a, -:a FROM t", {"a": -1}, name="q").sql
    assert bound == "SELECT i -(-1), -(-1) FROM t"


def test_a_text_without_parameters_stays_as_it_is() -> None:
    for sql in ("SELECT p:a FROM t", "SELECT 1", "SELECT ':"):
        assert bind(sql, {}, name="q").sql == sql


@pytest.mark.parametrize(
    ("sql", "values", "code", "column"),
    [
        ("SELECT i FROM t WHERE i > :lo", {"low": 1}, "parameter_unused", None),
        ("SELECT i FROM t WHERE i > :lo", {}, "parameter_unknown", 27),
        ("SELECT i FROM t WHERE y > DATE :a", {"a": "2024-01-01"}, "parameter_misplaced", 32),
        ("SELECT i FROM :a", {"a": "t"}, "parameter_misplaced", 15),
        ("SELECT i AS :a FROM t", {"a": "x"}, "parameter_misplaced", 13),
        ("SELECT i FROM t ORDER BY :a", {"a": 1}, "parameter_misplaced", 26),
        ("SELECT i FROM t WHERE y > INTERVAL :a DAYS", {"a": 1}, "parameter_misplaced", 36),
        ("SELECT i FROM t WHERE i > 2 :a", {"a": 1}, "parameter_misplaced", 29),
        ("SELECT i FROM t WHERE i > :a.5", {"a": 1}, "parameter_misplaced", 27),
    ],
)
def test_what_cannot_be_bound_is_told_with_its_place(
    sql: str, values: dict[str, ParameterValue], code: str, column: int | None
) -> None:
    with pytest.raises(UsageError) as caught:
        bind(sql, values, name="q")
    assert caught.value.code == code
    assert caught.value.hint
    place = None if column is None else Location("query `q`", 1, column)
    assert caught.value.location == place


def test_a_number_too_long_for_spark_is_refused() -> None:
    for value in (2**63, Decimal("1" * 39)):
        with pytest.raises(UsageError, match="more digits"):
            literal_text(value)


def test_a_place_in_the_bound_text_leads_back() -> None:
    sql = "SELECT i\nFROM t WHERE i > :a AND s = :b AND zz = 1"
    bound = bind(sql, {"a": 123456, "b": "it's"}, name="q")
    with pytest.raises(QueryError) as caught:
        parse_query(bound.sql, CATALOG, name="q")
    place = caught.value.location
    line, column = bound.written_at(place.line, place.column)
    assert (line, column) == (2, sql.split("\n")[1].index("zz") + 1)
    at_b = bound.sql.split("\n")[1].index("'it")
    assert bound.written_at(2, at_b + 3) == (2, sql.split("\n")[1].index(":b") + 1)
    assert bound.written_at(1, 8) == (1, 8)
