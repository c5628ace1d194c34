"""Every rule about signs, bounds and direction, against Spark's values at the ends of each type.

One step of an expression over two columns, on all pairs of values: what is claimed of it must be
true of what Spark computes. Rows on which Spark fails have no value.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.data.schema import Column, Schema, from_spark
from impctl.errors import ImpctlError
from impctl.expr.nodes import Expr
from impctl.plan.nodes import Project
from impctl.safety.direction import Columns, Relation, direction
from impctl.safety.facts import Signs, signs_of
from impctl.sql.statement import parse_query
from tests.plan.safety.test_direction import SIGNS, fits
from tests.support.reference_expr import ReferenceFailure, ReferenceLimit, sort_key, value_of

pytestmark = pytest.mark.spark

_TINY, _HUGE = 5e-324, sys.float_info.max
_ODD = (math.nan, math.inf, -math.inf)
_SINGLE = float(np.finfo(np.float32).max)


def _decimals(texts: str) -> list[Decimal]:
    return [Decimal(text) for text in texts.split()]


KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tinyint": (pa.int8(), [-128, -127, -2, -1, 0, 1, 2, 127]),
    "smallint": (pa.int16(), [-(2**15), -2, -1, 0, 1, 3, 2**15 - 1]),
    "int": (pa.int32(), [-(2**31), -2, -1, 0, 1, 3, 2**31 - 1]),
    "bigint": (pa.int64(), [-(2**63), -(2**53) - 1, -2, -1, 0, 1, 3, 2**53 + 1, 2**63 - 1]),
    "float": (pa.float32(), [*_ODD, -0.0, 0.0, 0.5, -1.5, _SINGLE, -_SINGLE]),
    "double": (
        pa.float64(),
        [*_ODD, -0.0, 0.0, _TINY, -_TINY, 0.05, -1.5, 9.3e18, _HUGE, -_HUGE],
    ),
    "decimal(10,2)": (
        pa.decimal128(10, 2),
        _decimals("-99999999.99 -1.50 -0.01 0.00 0.01 0.50 1.00 99999999.99"),
    ),
    "decimal(38,2)": (
        pa.decimal128(38, 2),
        _decimals(f"-{'9' * 36}.99 -2.00 -0.01 0.00 0.01 1.50 {'9' * 36}.99"),
    ),
    "decimal(38,38)": (
        pa.decimal128(38, 38),
        _decimals(f"-0.{'9' * 38} -0.5 0.0 0.{'0' * 37}1 0.{'9' * 38}"),
    ),
}  # fmt: skip
STEPS = (
    "-a", "a + b", "a - b", "a * b", "a / b", "a div b", "a % b", "a + 1", "1 - a", "a - 0.5",
    "a * 2", "a * -2", "a * 0", "a * 0.5", "a / 2", "a / -3", "a * a", "a * 1.5D", "a / 1e300D",
    "abs(a)", "sign(a)", "coalesce(a, 0)", "coalesce(a, -1)", "coalesce(a, b)", "nvl(a, 1)",
    "greatest(a, b)", "least(a, b)", "greatest(a, 0)", "least(a, b, a)",
    "round(a)", "round(a, 1)", "round(a, -1)", "bround(a)", "floor(a)", "ceil(a)",
    "sqrt(a)", "exp(a)", "ln(a)", "log10(a)", "log2(a)", "log1p(a)", "cbrt(a)",
    "pow(a, 2)", "pow(a, 3)", "pow(a, -1)", "pow(a, -2)", "pow(a, 0.5D)", "pow(a, b)", "pow(2, a)",
    "CASE WHEN a > 0 THEN a ELSE 0 END", "CASE WHEN a > 0 THEN a END", "nullif(a, b)",
    "CASE WHEN a >= b THEN a ELSE b END", "if(a < 0, -1, 1)", "nanvl(a, 0)",
    *(f"CAST(a AS {kind})" for kind in KINDS), "CAST(a > 0 AS INT)",
    "CAST(CAST(a AS INT) AS DOUBLE)",
)  # fmt: skip
PAIRED = (Relation.EQUAL, Relation.AT_MOST, Relation.AT_LEAST)


def rows_of(kind: str) -> list[tuple[Any, Any]]:
    """All pairs of the first column's values with some of the second's, NULL among them."""
    values = [None, *KINDS[kind][1]]
    return list(product(values, values[:: 2 if len(values) > 8 else 1]))


def read(step: str, kind: str) -> Expr | None:
    """The expression over `a` and `b` of the kind; None where it is refused."""
    own = from_spark(kind)
    assert own is not None
    catalog = {"t": Schema((Column("a", own), Column("b", own)))}
    try:
        root = parse_query(f"SELECT {step} AS v FROM t", catalog).root
    except ImpctlError:
        return None
    return root.outputs[0].expr if isinstance(root, Project) else None


def may_fail(expr: Expr, a: Any, b: Any) -> bool:
    """Whether the reference fails on the row, or does not know the expression."""
    try:
        value_of(expr, {"t#1.a": a, "t#1.b": b})
    except ReferenceLimit:
        return False
    except (ReferenceFailure, OverflowError, ValueError):
        return True
    return False


def values_in_spark(spark: Any, view: str, steps: Sequence[str], left_out: Sequence[set[int]],
                    first: int, last: int) -> list[list[Any]]:  # fmt: skip
    """Per step the values of these rows; `...` where Spark fails or was not asked."""
    from pyspark.errors import PySparkException

    outputs = []
    for at, (step, failing) in enumerate(zip(steps, left_out, strict=True)):
        own = sorted(row for row in failing if first <= row < last)
        guard = f"r IN ({', '.join(map(str, own))})" if own else "false"
        outputs.append(f"CASE WHEN {guard} THEN NULL ELSE {step} END AS x{at}")
    sql = f"SELECT {', '.join(outputs)} FROM {view} WHERE r >= {first} AND r < {last} ORDER BY r"
    try:
        columns = [column.to_pylist() for column in spark.sql(sql).toArrow().columns]
    except PySparkException:
        if len(steps) > 1:
            return [
                values_in_spark(spark, view, [step], [failing], first, last)[0]
                for step, failing in zip(steps, left_out, strict=True)
            ]
        if last - first == 1:
            return [[...]]
        half = (first + last) // 2
        parts = ((first, half), (half, last))
        result = [values_in_spark(spark, view, steps, left_out, *part)[0] for part in parts]
        return [result[0] + result[1]]
    return [
        [... if first + at in failing else value for at, value in enumerate(column)]
        for column, failing in zip(columns, left_out, strict=True)
    ]


def ranks(values: Sequence[Any]) -> Any:
    """Places of the values in Spark's order, shape (rows,): -1 for NULL, -2 for no value."""
    known = sorted({sort_key(v) for v in values if v is not None and v is not ...})
    places = {key: at for at, key in enumerate(known)}
    return np.array([-2 if v is ... else -1 if v is None else places[sort_key(v)] for v in values])


def related(one: Any, relation: Relation) -> Any:
    """Whether row i over the sketch and row j over the table compare so, shape (rows, rows)."""
    sketch, table = one[:, None], one[None, :]
    if relation is Relation.UNKNOWN:
        return np.ones((len(one), len(one)), dtype=np.bool_)
    if relation is Relation.EQUAL:
        return sketch == table
    is_less = sketch <= table if relation is Relation.AT_MOST else sketch >= table
    return (sketch == -1) | ((table != -1) & is_less)


def wrong_claims(expr: Expr, step: str, rows: Sequence[tuple[Any, Any]],
                 values: Sequence[Any]) -> Iterator[str]:  # fmt: skip
    """What is claimed of the step and not true of its values."""
    a, b, made = (ranks(column) for column in ([r[0] for r in rows], [r[1] for r in rows], values))
    has_value = made != -2
    for signs in SIGNS:
        known = {"t#1.a": signs, "t#1.b": Signs()}
        allowed = np.array([fits(_plain(row[0]), signs) for row in rows]) & has_value
        claimed = signs_of(expr, known)
        for at in np.flatnonzero(allowed):
            if not fits(_plain(values[at]), claimed):
                yield f"{step} of {rows[at]} is {values[at]}, not {claimed} ({signs})"
        for left, right in product(PAIRED, PAIRED):
            columns = Columns({"t#1.a": left, "t#1.b": right}, known)
            relation = direction(expr, columns)
            if relation in (Relation.UNKNOWN, Relation.EQUAL):
                continue
            pairs = related(a, left) & related(b, right) & np.outer(allowed, allowed)
            for i, j in np.argwhere(pairs & ~related(made, relation))[:1]:
                yield (
                    f"{step} of {rows[i]} is {values[i]}, of {rows[j]} {values[j]}: not {relation}"
                    f" ({left}, {right}, {signs})"
                )


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float) else float(value)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=() if k == "double" else pytest.mark.long) for k in KINDS],
)
def test_what_is_claimed_is_true_of_sparks_values(kind: str, spark: Any) -> None:
    rows = rows_of(kind)
    own = KINDS[kind][0]
    table = pa.table({
        "r": pa.array(range(len(rows)), pa.int32()),
        "a": pa.array([a for a, _ in rows], own),
        "b": pa.array([b for _, b in rows], own),
    })  # fmt: skip
    spark.createDataFrame(table).createOrReplaceTempView("ends")
    steps = {step: expr for step in STEPS if (expr := read(step, kind)) is not None}
    failing = [
        {at for at, (a, b) in enumerate(rows) if may_fail(expr, a, b)} for expr in steps.values()
    ]
    result = values_in_spark(spark, "ends", list(steps), failing, 0, len(rows))
    spark.catalog.dropTempView("ends")
    wrong = [
        claim
        for (step, expr), values in zip(steps.items(), result, strict=True)
        for claim in wrong_claims(expr, step, rows, values)
    ]
    assert wrong == []
