"""Random expressions over numbers of every type and width, against Spark.

Law: the evaluator gives Spark's type and value or refuses by an error of its own, and the text that
is written for Spark means the same as the one that was read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import localcontext
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.data.schema import Kind
from impctl.data.vector import Vector, from_arrow
from impctl.errors import EvaluationError, ImpctlError, NotExactError
from impctl.expr.evaluate import Columns, Evaluator, find_blocker
from impctl.expr.nodes import Expr
from impctl.expr.types import type_of
from impctl.spark.expressions import render_expr
from tests.expr.number_texts import COLUMNS, LITERALS, SCHEMA, TextMaker, rows_of
from tests.expr.test_in_spark import agrees, shown, value_at
from tests.plan.catalogs import selected
from tests.support.random_cases import random_seeds

ROWS = 14
EXPRESSIONS = 120
NAMES = {f"t#1.{name}": name for name in COLUMNS}

BESIDE_LITERALS = [
    *(f"c10_4 {op} ({one})" for op in "+-*/%" for one in LITERALS),
    *(f"({one}) {op} c38_30" for op in "+-*/%" for one in LITERALS),
    *(f"({one}) >= c38_30" for one in LITERALS),
    *(f"({one}) BETWEEN c38_30 AND c10_4" for one in LITERALS),
    *(f"nullif({one}, c38_30)" for one in LITERALS),
    *(f"coalesce(c10_4, {one})" for one in LITERALS),
    *(f"least({one}, c38_6)" for one in LITERALS),
    *(f"c38_6 IN ({one}, 1)" for one in LITERALS),
    *(f"if(b, {one}, c18_9)" for one in LITERALS),
    *(f"-({one})" for one in LITERALS),
]
"""Every literal form in every place where its type counts."""


@dataclass
class Case:
    """An expression, the rows on which it does not fail, and its values there; None if refused."""

    sql: str
    expr: Expr
    rows: list[int]
    found: Vector | None


def read(sql: str) -> Expr | None:
    """The expression; None where the text is refused."""
    try:
        return selected(f"SELECT {sql} AS x FROM t", {"t": SCHEMA})
    except ImpctlError:
        return None


def evaluated(sql: str, columns: Columns) -> Case | None:
    """What the engine says; any exception that is not impctl's own comes through."""
    expr = read(sql)
    if expr is None:
        return None
    if find_blocker(expr) is not None:
        return Case(sql, expr, [], None)
    every = range(ROWS)
    try:
        return Case(sql, expr, [*every], Evaluator(expr).values(columns, ROWS))
    except (EvaluationError, NotExactError):
        rows = [row for row in every if _works(expr, columns, row)]
    return Case(sql, expr, rows, Evaluator(expr).values(_at(columns, rows), len(rows)))


def _at(columns: Columns, rows: list[int]) -> dict[str, Vector]:
    return {name: vector.take(np.array(rows, dtype=np.int64)) for name, vector in columns.items()}


def _works(expr: Expr, columns: Columns, row: int) -> bool:
    try:
        Evaluator(expr).values(_at(columns, [row]), 1)
    except (EvaluationError, NotExactError):
        return False
    return True


def columns_of_rows(table: pa.Table) -> dict[str, Vector]:
    return {f"t#1.{c.name}": from_arrow(table[c.name], c.type) for c in SCHEMA}


def random_texts(seed: int, count: int) -> Iterator[str]:
    maker = TextMaker(Random(seed))
    return (maker.any() for _ in range(count))


@random_seeds(1, 2, 20)
def test_nothing_but_an_error_of_ours_comes_out(seed: int) -> None:
    columns = columns_of_rows(rows_of(Random(seed), ROWS))
    cases = [evaluated(sql, columns) for sql in random_texts(100 + seed, 150)]
    values = [len(case.rows) for case in cases if case is not None and case.found is not None]
    # Most are computed, on most rows.
    assert sum(values) > 50 * ROWS


def differences(spark: Any, cases: list[Case], table: pa.Table) -> list[Any]:
    """Where types or values are not Spark's, and where the text written for Spark is another."""
    wrong: list[Any] = []
    asked = []
    both = [(case, render_expr(case.expr, NAMES).sql(dialect="spark")) for case in cases]
    kinds = [
        kind for at in range(0, len(both), 30) for kind in spark_types(spark, both[at : at + 30])
    ]
    for (case, written), names in zip(both, kinds, strict=True):
        kind = type_of(case.expr)
        if names is None:
            # Spark refuses the text itself, so there is nothing to be wrong about.
            continue
        theirs, again = names
        known = kind is not None and kind.kind is not Kind.OTHER
        if again != theirs or (known and kind is not None and kind.spark_name != theirs):
            wrong.append((case.sql, written, str(kind), theirs, again))
        elif case.rows:
            asked.append((case, written))
    for at in range(0, len(asked), 30):
        wrong += values_differ(spark, asked[at : at + 30], table)
    return wrong


def spark_types(spark: Any, both: list[tuple[Case, str]]) -> list[tuple[str, str] | None]:
    """Types of the text that was read and of the one written; None where Spark refuses one."""
    from pyspark.errors import AnalysisException, ParseException

    texts = [text for case, written in both for text in (case.sql, written)]
    try:
        frame = spark.table("t").selectExpr(*(f"{sql} AS x{at}" for at, sql in enumerate(texts)))
        names = [name for _, name in frame.dtypes]  # a server looks at the text only here
    except (AnalysisException, ParseException):
        if len(both) == 1:
            return [None]
        half = len(both) // 2
        return [*spark_types(spark, both[:half]), *spark_types(spark, both[half:])]
    return list(zip(names[::2], names[1::2], strict=True))


def values_differ(spark: Any, asked: list[tuple[Case, str]], table: pa.Table) -> list[Any]:
    from pyspark.errors import PySparkException

    texts = ["at"]
    for at, (case, written) in enumerate(asked):
        where = f"at IN ({', '.join(map(str, case.rows))})"
        texts += [f"CASE WHEN {where} THEN {case.sql} END AS x{at}"]
        texts += [f"CASE WHEN {where} THEN {written} END AS y{at}"]
    try:
        sort = spark.table("t").selectExpr(*texts).toArrow().sort_by("at")
    except PySparkException as error:
        if len(asked) == 1:
            return [(asked[0][0].sql, "Spark fails", str(error)[:200])]
        half = len(asked) // 2
        parts = (asked[:half], asked[half:])
        return [one for part in parts for one in values_differ(spark, part, table)]
    wrong: list[Any] = []
    for at, (case, written) in enumerate(asked):
        theirs, again = (
            [shown(value) for value in sort[f"{name}{at}"].to_pylist()] for name in "xy"
        )
        if theirs != again:
            wrong.append((case.sql, written))
        assert case.found is not None
        for place, row in enumerate(case.rows):
            ours = shown(value_at(case.found, place))
            if not agrees(ours, theirs[row], 0.0):
                inputs = {name: str(table[name][row]) for name in COLUMNS if name in case.sql}
                wrong.append((case.sql, inputs, ours, theirs[row]))
    return wrong


def compared(spark: Any, texts: Iterator[str], seed: int) -> tuple[list[Any], int]:
    """Differences from Spark, and how many values were held against it."""
    table = rows_of(Random(seed), ROWS)
    columns = columns_of_rows(table)
    spark.createDataFrame(table).createOrReplaceTempView("t")
    try:
        with localcontext(prec=60):
            cases = [case for sql in texts if (case := evaluated(sql, columns)) is not None]
            result = differences(spark, cases, table)
            return result, sum(len(case.rows) for case in cases)
    finally:
        spark.catalog.dropTempView("t")


@pytest.mark.spark
@random_seeds(0, 2, 10)
def test_random_numbers_are_sparks(seed: int, spark: Any) -> None:
    wrong, values = compared(spark, random_texts(seed, EXPRESSIONS), seed)
    assert wrong == []
    assert values > EXPRESSIONS


@pytest.mark.spark
def test_every_literal_counts_as_in_spark(spark: Any) -> None:
    wrong, values = compared(spark, iter(BESIDE_LITERALS), 1)
    assert wrong == []
    assert values > 10 * len(LITERALS) * ROWS
