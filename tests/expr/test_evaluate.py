"""The evaluator against the row-by-row reference, and which errors it must raise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import chain, combinations, product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.data.schema import BOOLEAN, DOUBLE, INTEGER, LONG, TIMESTAMP, decimal
from impctl.data.vector import INT64_MAX, INT64_MIN, Vector, from_arrow
from impctl.errors import EvaluationError, NotExactError, QueryError
from impctl.expr.cast import cast
from impctl.expr.compare import Truth, certain, conjoin, disjoin, negate, of_vector
from impctl.expr.evaluate import Condition, Evaluator, find_blocker
from impctl.expr.functions import ONE_ROW, one_row
from impctl.expr.nodes import ColumnRef, Expr
from impctl.expr.types import fixed_offset, moved_by
from impctl.plan.functions import AGGREGATES, SCALARS
from tests.expr.test_in_spark import EXPRESSIONS, SCHEMA, rows, value_at
from tests.plan.catalogs import read, selected
from tests.support.reference_plan import ReferenceFailure, Value, value_of

MORE = [
    "i + l", "l - 3", "i * 2", "-d", "-i % 7", "d / 2", "d % 1.5", "m + n", "m - 0.01", "n * 0",
    "CAST(d AS DOUBLE)", "CAST(f AS DOUBLE) > 0", "CAST(m AS BIGINT)", "CAST(b AS DOUBLE)",
    "CAST(NULL AS INT)", "CAST(NULL AS STRING)", "NOT (d > e)", "NOT (s = 'a')",
    "i > 0 AND l > 0 AND d > 0", "i > 0 OR l > 0 OR d > 0", "(i > 0 OR d > 0) AND NOT b",
    "i NOT IN (1, 7)", "i IN (1, l)", "s NOT IN ('a', 'B')", "s NOT LIKE 'a%'",
    "s LIKE '%'", "i NOT BETWEEN 0 AND 7", "d BETWEEN e AND 2", "s BETWEEN 'A' AND 'b'",
    "i <=> l", "b <=> true", "s <=> NULLIF(s, 'a')", "m <=> n",
    "CASE WHEN i > 2 THEN 1 END", "CASE i WHEN 1 THEN 'one' WHEN 7 THEN 'seven' ELSE s END",
    "CASE WHEN i IS NULL THEN d ELSE e END", "CASE WHEN d > e THEN m ELSE n END",
    "COALESCE(NULLIF(i, 7), l, 0)", "COALESCE(d, e)", "COALESCE(NULLIF(s, ''), 'z')",
    "NULLIF(d, e)", "NULLIF(m, 1.25)", "IF(b, i, l)", "IF(NULL, 1, 2)",
    "abs(i % 5) + abs(m)", "m = 1.25 AND i > 0",
    "t BETWEEN DATE '1969-12-27' AND DATE '1970-01-03'",
    "d = d", "d <> d", "n > m", "l < n", "m >= i", "i = d", "1 + 1", "'a' < 'b'", "true AND NULL",
]  # fmt: skip


def expression(sql: str) -> Expr:
    expr = selected(f"SELECT {sql} AS x FROM t", {"t": SCHEMA})
    assert find_blocker(expr) is None, find_blocker(expr)
    return expr


TABLE = rows()
COLUMNS = {f"t#1.{c.name}": from_arrow(TABLE[c.name], c.type) for c in SCHEMA}


def plain_rows(columns: Mapping[str, Vector], length: int) -> list[dict[str, Value]]:
    """Convert columns to rows of Python values."""
    return [
        {name: value_at(vector, row) for name, vector in columns.items()} for row in range(length)
    ]


def normalized(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return str(value) if isinstance(value, Decimal) else value


def near(result: Any, expected: Any, bound: float) -> bool:
    if bound and isinstance(result, float) and isinstance(expected, float):
        return abs(result - expected) <= bound
    return bool(normalized(result) == normalized(expected)) and type(result) is type(expected)


def outcomes(truth: Truth, row: int) -> set[bool | None]:
    flags = (truth.may_true[row], truth.may_false[row], truth.may_null[row])
    return {o for o, is_set in zip((True, False, None), flags, strict=True) if is_set}


# The reference evaluates both sides of AND; guards are tested separately below.
UNGUARDED = [sql for sql in [*EXPRESSIONS, *MORE] if sql != "i <> 0 AND 10 / i > 2"]


@pytest.mark.parametrize("sql", UNGUARDED)
def test_agrees_with_the_reference(sql: str) -> None:
    """Compare row by row. If a row fails, the others and the failure are compared."""
    expr = expression(sql)
    empty = {name: vector.take(np.zeros(0, dtype=np.int64)) for name, vector in COLUMNS.items()}
    assert len(Evaluator(expr).values(empty, 0)) == 0, "empty input"
    expected: dict[int, Value] = {}
    rows = plain_rows(COLUMNS, len(TABLE))
    for row, values in enumerate(rows):
        one_row_value = {name: vector.take(np.array([row])) for name, vector in COLUMNS.items()}
        try:
            expected[row] = value_of(expr, values)
        except ReferenceFailure:
            with pytest.raises(EvaluationError):
                Evaluator(expr).values(one_row_value, 1)
            continue
        check_value(Evaluator(expr).values(one_row_value, 1), 0, expected[row])
    assert expected
    if len(expected) < len(rows):
        with pytest.raises(EvaluationError):
            Evaluator(expr).values(COLUMNS, len(TABLE))
        return
    all_rows = Evaluator(expr).values(COLUMNS, len(TABLE))
    for row, value in expected.items():
        check_value(all_rows, row, value)


def check_value(vector: Vector, row: int, expected: Value) -> None:
    bound = 0.0 if vector.error is None else float(vector.error[row])
    value = value_at(vector, row)
    assert near(value, expected, bound), (row, value, expected)


@pytest.mark.parametrize("sql", [sql for sql in MORE if " AND " in sql or " OR " in sql])
def test_truth_includes_the_expected_outcome(sql: str) -> None:
    expr = expression(sql)
    truth = Condition(expr).truth(COLUMNS, len(TABLE))
    for row, values in enumerate(plain_rows(COLUMNS, len(TABLE))):
        assert value_of(expr, values) in outcomes(truth, row)


def columns(**inputs: list[Any]) -> dict[str, Vector]:
    """Columns of the catalog's types, for the named columns only."""
    fields = {column.name: column for column in SCHEMA}
    kinds = {name: TABLE.schema.field(name).type for name in inputs}
    return {
        f"t#1.{name}": from_arrow(pa.array(values, kinds[name]), fields[name].type)
        for name, values in inputs.items()
    }


def values(sql: str, **inputs: list[Any]) -> list[Any]:
    length = len(next(iter(inputs.values())))
    vector = Evaluator(expression(sql)).values(columns(**inputs), length)
    return [value_at(vector, row) for row in range(length)]


@pytest.mark.parametrize(
    ("sql", "inputs", "expected"),
    [
        *(
            (sql, {"i": [0, 1, None, 5]}, expected)
            for sql, expected in (
                ("i <> 0 AND 10 / i > 2", [False, True, None, False]),
                ("i = 0 OR 10 / i > 2", [True, True, None, False]),
                ("i <> 0 AND (10 / i > 2 OR 10 % i = 1)", [False, True, None, False]),
                ("i <> 0 AND i IS NOT NULL AND 10 / i > 2", [False, True, False, False]),
                ("NOT (i = 0 OR 10 / i <= 2)", [False, True, None, False]),
                ("CASE WHEN i = 0 THEN -1 ELSE 10 div i END", [-1, 10, None, 2]),
                ("CASE WHEN i = 0 THEN 0 WHEN 10 / i > 2 THEN 1 ELSE 2 END", [0, 1, 2, 2]),
                ("IF(i = 0, NULL, 10 % i)", [None, 0, None, 0]),
                ("COALESCE(NULLIF(i, 5), 10 div (i - 1))", [0, 1, None, 2]),
                ("COALESCE(CASE WHEN i = 0 THEN 7 END, 10 div i)", [7, 10, None, 2]),
            )
        ),
        ("i < 2147483647 AND i + 1 > 0", {"i": [2**31 - 1, 1, None]}, [False, True, None]),
        ("l < 1000 AND CAST(l AS INT) > 5", {"l": [2**40, 7, None]}, [False, True, None]),
        ("IF(l > -9223372036854775807, -l, 0)", {"l": [-(2**63), 5]}, [0, -5]),
        ("IF(i > 0, abs(i), 0)", {"i": [-(2**31), 5]}, [0, 5]),
        # At the limit, but not beyond it.
        ("i + 1", {"i": [2**31 - 2]}, [2**31 - 1]),
        ("l * 1", {"l": [-(2**63)]}, [-(2**63)]),
        ("l % -1", {"l": [-(2**63)]}, [0]),
        ("l % 3", {"l": [-7]}, [-1]),
        ("l div 3", {"l": [-7]}, [-2]),
        ("CAST(d AS BIGINT)", {"d": [-(2.0**63)]}, [-(2**63)]),
        ("CAST(d AS INT)", {"d": [-1.9]}, [-1]),
        # NULL with zero or overflow gives NULL.
        *(
            (sql, {"i": [None, 2**31 - 1], "l": [0, None]}, [None, None])
            for sql in ("i div l", "i % l", "i + l", "i / l > 1")
        ),
    ],
)
def test_unevaluated_rows_do_not_fail(
    sql: str, inputs: dict[str, list[Any]], expected: list[Any]
) -> None:
    assert values(sql, **inputs) == expected


@pytest.mark.parametrize(
    ("sql", "inputs", "code"),
    [
        ("10 / i > 2 AND i <> 0", {"i": [0]}, "division_by_zero"),
        ("10 / i > 2 OR i = 0", {"i": [0]}, "division_by_zero"),
        ("i IS NULL OR 10 / i > 2", {"i": [None, 0]}, "division_by_zero"),
        ("CASE WHEN 10 / i > 2 THEN 1 ELSE 0 END", {"i": [0]}, "division_by_zero"),
        ("COALESCE(10 div i, 1)", {"i": [None, 0]}, "division_by_zero"),
        ("i div 0", {"i": [1]}, "division_by_zero"),
        ("l % 0", {"l": [1]}, "division_by_zero"),
        ("d / 0", {"d": [1.0]}, "division_by_zero"),
        ("m / 0", {"m": [Decimal(1)]}, "division_by_zero"),
        ("m % 0.0", {"m": [Decimal(1)]}, "division_by_zero"),
        ("d % 0", {"d": [math.nan]}, "division_by_zero"),
        ("i + 1", {"i": [2**31 - 1]}, "arithmetic_overflow"),
        ("i - 1", {"i": [-(2**31)]}, "arithmetic_overflow"),
        ("i * 2", {"i": [2**30]}, "arithmetic_overflow"),
        ("l + 1", {"l": [2**63 - 1]}, "arithmetic_overflow"),
        ("l * l", {"l": [2**32]}, "arithmetic_overflow"),
        ("l div -1", {"l": [-(2**63)]}, "arithmetic_overflow"),
        ("-i", {"i": [-(2**31)]}, "arithmetic_overflow"),
        ("-l", {"l": [-(2**63)]}, "arithmetic_overflow"),
        ("abs(l)", {"l": [-(2**63)]}, "arithmetic_overflow"),
        ("n * n", {"n": [Decimal("1e30")]}, "arithmetic_overflow"),
        ("CAST(l AS INT)", {"l": [2**31]}, None),
        ("CAST(i AS TINYINT)", {"i": [128]}, None),
        ("CAST(m AS DECIMAL(3,2))", {"m": [Decimal("10.00")]}, None),
        ("CAST(d AS INT)", {"d": [math.nan]}, "cast_overflow"),
        ("CAST(d AS BIGINT)", {"d": [2.0**63]}, "cast_overflow"),
    ],
)
def test_division_by_zero_and_overflow_fail(
    sql: str, inputs: dict[str, list[Any]], code: str | None
) -> None:
    with pytest.raises(EvaluationError) as caught:
        values(sql, **inputs)
    assert code is None or caught.value.code == code


NEAR = {
    "t#1.d": Vector(
        DOUBLE,
        np.array([1.0, 1.0, 1.0, 5.0, 1.0]),
        np.array([True, True, True, True, False]),
        np.array([0.0, 0.1, 0.1, 0.1, 0.1]),
    ),
    "t#1.e": Vector(DOUBLE, np.array([1.0, 1.05, 1.0, 1.0, 1.0])),
    "t#1.i": columns(i=[1, 0, 1, None, None])["t#1.i"],
}
BOTH = {True, False}


@pytest.mark.parametrize("operator", ["=", "<>", "<", "<=", ">", ">="])
def test_values_within_the_error_have_two_outcomes(operator: str) -> None:
    truth = Condition(expression(f"d {operator} e")).truth(NEAR, 5)
    is_equal = operator in ("=", "<=", ">=")
    is_greater = operator in ("<>", ">", ">=")
    assert [outcomes(truth, row) for row in range(5)] == [
        {is_equal}, BOTH, BOTH, {is_greater}, {None},
    ]  # fmt: skip
    reversed_operator = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(operator, operator)
    swapped = Condition(expression(f"e {reversed_operator} d")).truth(NEAR, 5)
    assert [outcomes(swapped, row) for row in range(5)] == [outcomes(truth, r) for r in range(5)]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("d > e AND i = 1", [{False}, {False}, BOTH, {None}, {None}]),
        ("i = 1 AND d > e", [{False}, {False}, BOTH, {None}, {None}]),
        ("d > e OR i = 1", [{True}, BOTH, {True}, {True}, {None}]),
        ("NOT (d > e)", [{True}, BOTH, BOTH, {False}, {None}]),
        ("d > e AND i IS NULL", [{False}, {False}, {False}, {True}, {None}]),
        ("d > e OR d <= e", [{True}, BOTH, BOTH, {True}, {None}]),
        ("d + 1 > e + 1", [{False}, BOTH, BOTH, {True}, {None}]),
        ("i = 1 AND d * 2 > e * 2", [{False}, {False}, BOTH, {None}, {None}]),
        ("-d < -e", [{False}, BOTH, BOTH, {True}, {None}]),
        ("d IS NULL", [{False}, {False}, {False}, {False}, {True}]),
    ],
)
def test_unsure_outcomes_combine(sql: str, expected: list[set[bool | None]]) -> None:
    truth = Condition(expression(sql)).truth(NEAR, 5)
    assert [outcomes(truth, row) for row in range(5)] == expected


def test_uncertain_operands_that_may_fail_do_fail() -> None:
    with pytest.raises(EvaluationError):
        Condition(expression("d > e AND 10 / i > 2")).truth(NEAR, 5)
    unsure = {"t#1.d": Vector(DOUBLE, np.array([1e-20]), None, np.array([1e-16]))}
    with pytest.raises(EvaluationError):
        Evaluator(expression("1 / d")).values(unsure, 1)


def one_row_value(sql: str, **values: str | None) -> object:
    """Evaluate over one row, with columns `x` DECIMAL(38,18) and `o` DECIMAL(38,30)."""
    expr = selected(f"SELECT {sql} AS v FROM t", {"t": SCHEMA})
    columns = {}
    for column in SCHEMA:
        if column.name in values:
            value = values[column.name]
            kind = pa.decimal128(column.type.precision, column.type.scale)
            array = pa.array([None if value is None else Decimal(value)], kind)
            columns[f"t#1.{column.name}"] = from_arrow(array, column.type)
    return value_at(Evaluator(expr).values(columns, 1), 0)


LONG_DECIMAL = "12345678901234567890.123456789012345678"
SHORTENED = "12345678901234567890.123456789012350000"


@pytest.mark.parametrize(
    ("sql", "x", "expected"),
    [
        # Negation keeps 34 digits, as in Spark 4.3.
        ("-x", LONG_DECIMAL, f"-{SHORTENED}"),
        ("negative(x)", f"-{LONG_DECIMAL}", SHORTENED),
        ("abs(x)", f"-{LONG_DECIMAL}", SHORTENED),
        ("abs(x)", LONG_DECIMAL, LONG_DECIMAL),
        # Halves are rounded to the even digit.
        ("-x", "10000000000000000.000000000000000005", "-10000000000000000.000000000000000000"),
        ("-x", "10000000000000000.000000000000000015", "-10000000000000000.000000000000000020"),
        ("-x", None, "None"),
        # `div` keeps the last 64 bits.
        ("CAST(x AS DECIMAL(38, 0)) div 0.1", "9223372036854775807", "-10"),
        ("x div 7", None, "None"),
        ("7 div x", None, "None"),
        ("x div 7", "-15.5", "-2"),
    ],
)
def test_a_sign_and_div_of_decimals(sql: str, x: str | None, expected: str) -> None:
    assert str(one_row_value(sql, x=x)) == expected


def test_a_scale_of_30_digits() -> None:
    assert one_row_value("o = 0", o="0") is True
    assert one_row_value("CASE WHEN o < 0 THEN 1 ELSE 2 END", o="-1E-30") == 1
    with pytest.raises(EvaluationError):
        one_row_value("-o", o="99999999.999999999999999999999999999999")
    with pytest.raises(EvaluationError):
        # Java does not compute this remainder.
        one_row_value("x % o", x="12345678901234567890", o="7E-30")


@pytest.mark.parametrize("sign", [1, -1])
def test_decimals_just_below_an_integer_are_not_cast_to_int(sign: int) -> None:
    # Spark gives 1 if it stores the value as a BigDecimal, and 0 if it stores a long.
    near = Vector(decimal(38, 37), np.array([sign * (10**37 - 1)], dtype=object), None)
    assert cast(near, LONG).values.tolist() == [0]
    with pytest.raises(NotExactError):
        cast(near, INTEGER)
    half = Vector(decimal(38, 37), np.array([sign * 5 * 10**36], dtype=object), None)
    assert cast(half, INTEGER).values.tolist() == [0]


Outcome = bool | None
Outcomes = frozenset[Outcome]

SETS: list[Outcomes] = [
    frozenset(result)
    for result in chain.from_iterable(combinations((True, False, None), size) for size in (1, 2, 3))
]


def truth_of(rows: Sequence[Outcomes]) -> Truth:
    def flag(outcome: Outcome) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.array([outcome in row for row in rows], dtype=np.bool_)

    return Truth(flag(True), flag(False), flag(None))


def rows_of(truth: Truth) -> list[Outcomes]:
    flags = zip(truth.may_true, truth.may_false, truth.may_null, strict=True)
    return [
        frozenset(o for o, is_set in zip((True, False, None), row, strict=True) if is_set)
        for row in flags
    ]


def kleene_and(parts: Iterable[Outcome]) -> Outcome:
    known = set(parts)
    return False if False in known else None if None in known else True


def kleene_or(parts: Iterable[Outcome]) -> Outcome:
    known = set(parts)
    return True if True in known else None if None in known else False


@pytest.mark.parametrize("operands", [1, 2, 3])
@pytest.mark.parametrize(
    ("join", "kleene"), [(conjoin, kleene_and), (disjoin, kleene_or)], ids=["and", "or"]
)
def test_connectives_over_all_sets_of_outcomes(
    operands: int,
    join: Callable[[Sequence[Truth]], Truth],
    kleene: Callable[[Iterable[Outcome]], Outcome],
) -> None:
    """The outcomes of a connective are those of all combinations of its operands' outcomes."""
    cases = list(product(SETS, repeat=operands))
    parts = [truth_of([case[i] for case in cases]) for i in range(operands)]
    expected = [frozenset(kleene(choice) for choice in product(*case)) for case in cases]
    assert rows_of(join(parts)) == expected


def test_not_over_all_sets_of_outcomes() -> None:
    expected = [frozenset(None if o is None else not o for o in row) for row in SETS]
    assert rows_of(negate(truth_of(SETS))) == expected
    assert truth_of(SETS).is_unsure.tolist() == [len(row) > 1 for row in SETS]
    assert len(truth_of(SETS)) == len(SETS) == 7


def test_vectors_and_back() -> None:
    values, valid = np.array([True, False, True, False]), np.array([True, True, False, False])
    for truth in (of_vector(Vector(BOOLEAN, values, valid)), certain(values, valid)):
        assert rows_of(truth) == [{True}, {False}, {None}, {None}]
        vector = truth.to_vector()
        assert vector.type == BOOLEAN
        assert vector.validity().tolist() == valid.tolist()
        assert vector.values[:2].tolist() == [True, False]
    sure = certain(values, None)
    assert not sure.may_null.any()
    assert sure.to_vector().valid is None


CHECK = one_row(ColumnRef("q.rows", LONG, nullable=False), None)


def test_a_second_row_of_a_subquery_is_an_error() -> None:
    def outcome(*counts: int) -> list[bool]:
        rows = Vector(LONG, np.array(counts, dtype=np.int64))
        return Condition(CHECK).truth({"q.rows": rows}, len(counts)).sure_true().tolist()

    assert find_blocker(CHECK) is None
    assert outcome(0, 1, 1) == [True, True, True]
    assert outcome() == []
    with pytest.raises(EvaluationError, match="More than one row returned by a subquery") as caught:
        outcome(1, 2)
    assert caught.value.code == "subquery_of_several_rows"
    assert "MAX(...)" in (caught.value.hint or "")
    assert ONE_ROW not in SCALARS | AGGREGATES
    with pytest.raises(QueryError) as unknown:
        read(f"SELECT sid FROM sales WHERE {ONE_ROW}(sid)")
    assert unknown.value.code == "function_unknown"


LIMIT = 2.0**31


def bounded(value: float, error: float) -> Vector:
    return Vector(DOUBLE, np.array([value]), None, np.array([error]))


def test_inexact_doubles_are_cast_if_both_ends_fit() -> None:
    """If only one end fits, Spark may succeed."""
    assert cast(bounded(7.5, 0.25), INTEGER).values.tolist() == [7]
    for value in (LIMIT - 0.5, LIMIT, -LIMIT - 1):
        with pytest.raises(NotExactError):
            cast(bounded(value, 1.0), INTEGER)
    for value in (LIMIT + 10, -LIMIT - 10):
        with pytest.raises(EvaluationError) as caught:
            cast(bounded(value, 1.0), INTEGER)
        assert caught.value.code == "cast_overflow"


MINUTE = 60_000_000


OFFSETS = {
    **dict.fromkeys(("Z", "UTC", "GMT", "UT", "Etc/UTC", "+00:00", "-0", "UTC+0"), 0),
    "+02:00": 120,
    "-03:30": -210,
    "GMT+2": 120,
    "UTC-1145": -705,
    "+5:7": 307,
    "-18:00": -1080,
}
OTHER_ZONES = (
    *("Europe/Berlin", "Etc/GMT+2", "EST", "CET", "GMT0", "utc", "", "+", "02:00", "+18:01", "+19"),
    *("-23:59", "+01:60", "+123", "+01:30:00", "UTC +2", " UTC", "+٢"),
)


@pytest.mark.parametrize("zone", [*OFFSETS, *OTHER_ZONES])
def test_only_fixed_offsets_are_supported(zone: str) -> None:
    assert fixed_offset(zone) == (OFFSETS[zone] * MINUTE if zone in OFFSETS else None)


def test_times_beyond_the_range_are_refused() -> None:
    for end, offset in ((INT64_MIN, -MINUTE), (INT64_MAX, MINUTE)):
        times = Vector(TIMESTAMP, np.array([0, end]))
        assert moved_by(times, -offset).values.tolist() == [-offset, end - offset]
        with pytest.raises(NotExactError):
            moved_by(times, offset)
    hidden = Vector(TIMESTAMP, np.array([0, INT64_MAX]), np.array([True, False]))
    assert moved_by(hidden, MINUTE).values[0] == MINUTE
