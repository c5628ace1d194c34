"""Expressions as SQL: brackets where precedence asks for them."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from impctl.data.schema import BOOLEAN, DOUBLE, INTEGER, LONG, STRING, decimal
from impctl.errors import QueryError
from impctl.expr.nodes import (
    And,
    Arithmetic,
    ArithmeticOp,
    Call,
    Case,
    Cast,
    Coalesce,
    ColumnRef,
    Compare,
    CompareOp,
    InList,
    IsNull,
    Like,
    Literal,
    Mean,
    Negate,
    Not,
    Or,
)
from impctl.expr.signature import one_row
from impctl.spark.expressions import DIALECT, render_expr
from impctl.spark.run import run_sql

A, B = ColumnRef("t.a", INTEGER), ColumnRef("t.b", INTEGER)
P, Q = ColumnRef("t.p", BOOLEAN), ColumnRef("t.q", BOOLEAN)
S = ColumnRef("t.s", STRING)
NAMES = {"t.a": "c0", "t.b": "c1", "t.p": "c2", "t.q": "c3", "t.s": "c4"}


def math(op, left, right):
    return Arithmetic(ArithmeticOp(op), left, right)


TEXTS = [
    (math("*", math("+", A, B), A), "(`c0` + `c1`) * `c0`"),
    (math("-", A, math("-", B, A)), "`c0` - (`c1` - `c0`)"),
    (math("div", A, B), "`c0` DIV `c1`"),
    (math("%", Negate(A), Literal(-3, INTEGER)), "(-`c0`) % (-3)"),
    (Not(And((P, Q))), "NOT (`c2` AND `c3`)"),
    (And((Or((P, Q)), P)), "(`c2` OR `c3`) AND `c2`"),
    (Or((And((P, Q)), Not(P))), "(`c2` AND `c3`) OR (NOT `c2`)"),
    (IsNull(math("+", A, B)), "(`c0` + `c1`) IS NULL"),
    (Not(IsNull(A)), "NOT (`c0` IS NULL)"),
    (Compare(CompareOp.EQUAL, IsNull(A), P), "(`c0` IS NULL) = `c2`"),
    (InList(A, (Literal(1, INTEGER), B)), "`c0` IN (1, `c1`)"),
    (Like(S, "a%"), "`c4` LIKE 'a%'"),
    (Like(S, "a#%", "#"), "`c4` LIKE 'a#%' ESCAPE '#'"),
    (Coalesce((A, B)), "COALESCE(`c0`, `c1`)"),
    (
        one_row(A, None),
        "CASE WHEN `c0` <= 1 THEN TRUE ELSE RAISE_ERROR('More than one row returned by a subquery "
        "used as an expression') END",
    ),
    (Cast(A, LONG), "CAST(`c0` AS BIGINT)"),
    (Case(((P, A),), B), "CASE WHEN `c2` THEN `c0` ELSE `c1` END"),
    (Call("upper", (S,)), "UPPER(`c4`)"),
]


@pytest.mark.parametrize(("expr", "text"), TEXTS)
def test_text(expr, text):
    assert render_expr(expr, NAMES).sql(DIALECT) == text


def test_a_function_name_cannot_carry_sql():
    with pytest.raises(QueryError):
        render_expr(Call("upper(x); --", (S,)), NAMES)


MONEY = decimal(18, 2)


@pytest.mark.spark
def test_mean_is_what_avg_is(spark):
    amounts = [["0.01", "0.02"], ["1.00", "1.00", "1.01"], [None], ["-0.01", "0.00", "0.00"]]
    rows = [(place, text) for place, texts in enumerate(amounts) for text in texts]
    table = pa.table(
        {
            "g": [g for g, _ in rows],
            "m": pa.array(
                [None if m is None else Decimal(m) for _, m in rows], pa.decimal128(18, 2)
            ),
            "d": [None if m is None else float(m) for _, m in rows],
        }
    )
    names = {"total": "total", "count": "n"}
    count = ColumnRef("count", LONG)
    for column, kind, result in (("m", decimal(28, 2), decimal(22, 6)), ("d", DOUBLE, DOUBLE)):
        mean = render_expr(Mean(ColumnRef("total", kind), count, result), names).sql(DIALECT)
        sql = (
            f"SELECT g, a = mean OR (a IS NULL AND mean IS NULL) AS same, typeof(a) AS x, "
            f"typeof(mean) AS y FROM (SELECT g, a, {mean} AS mean FROM "
            f"(SELECT g, avg({column}) AS a, sum({column}) AS total, count({column}) AS n "
            "FROM t GROUP BY g))"
        )
        answer = run_sql(spark, sql, {"t": spark.createDataFrame(table)})
        assert answer["same"].to_pylist() == [True] * len(amounts)
        assert answer["x"].to_pylist() == answer["y"].to_pylist()
