"""What the engine claims to compute it computes, and as Spark does.

By hand, all of it in three time zones: `-m long` (some 15 minutes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from impctl.errors import (
    EvaluationError,
    ImpctlError,
    NotExactError,
    UnsupportedExpressionError,
)
from impctl.expr.evaluate import Condition
from impctl.expr.types import type_of
from tests.expr.claims import (
    ROWS,
    TYPES,
    Claim,
    calls_of,
    casts,
    claims,
    computed,
    operations,
    shown,
    taken_calls,
)

ZONES = ("UTC", "Europe/Berlin", "+05:30")
TOGETHER = 60
"""Expressions that Spark is asked for at once."""


def test_whatever_is_claimed_is_computed_with_its_type() -> None:
    """No function and no cast is met that the evaluator does not know."""
    tried = 0
    texts = Random(1).sample([*casts(), *operations()], 1500)
    for claim in claims([*Random(1).sample([*taken_calls()], 600), *texts]):
        tried += 1
        try:
            _, vector = computed(claim)
        except (EvaluationError, NotExactError):
            continue
        assert (len(vector), vector.type) == (len(ROWS), type_of(claim.expr)), claim.sql
    assert tried > 700


@pytest.mark.slow
@pytest.mark.long
def test_all_that_is_claimed_is_computed_with_its_type() -> None:
    for claim in claims([*taken_calls(), *casts(), *operations()]):
        try:
            _, vector = computed(claim)
        except (EvaluationError, NotExactError):
            continue
        assert (len(vector), vector.type) == (len(ROWS), type_of(claim.expr)), claim.sql


@pytest.mark.parametrize("sql", ["i", "s", "upper(s)", "d + 1"])
def test_a_value_that_is_no_truth_value_is_no_condition(sql: str) -> None:
    (claim,) = claims([sql])
    with pytest.raises(UnsupportedExpressionError, match="is left to Spark"):
        Condition(claim.expr)


def rows_of(spark: Any) -> Any:
    """The rows in Spark. It must be in UTC, since it takes local times for moments."""
    local = "timestampadd(MICROSECOND, unix_micros(k), TIMESTAMP_NTZ '1970-01-01 00:00:00') AS k"
    return spark.createDataFrame(ROWS).selectExpr(*(local if n == "k" else n for n in TYPES))


def differences(found: Sequence[Claim], spark: Any, view: Any) -> Iterator[str]:
    """Claims of which Spark gives other values or another type, or values where ours fails."""
    for start in range(0, len(found), TOGETHER):
        part = found[start : start + TOGETHER]
        for claim, expected in zip(part, asked(spark, view, part), strict=True):
            wrong = difference(claim, expected)
            if wrong is not None:
                yield f"{claim.sql} in {claim.zone}: {wrong}"


def asked(spark: Any, view: Any, part: Sequence[Claim]) -> list[pa.ChunkedArray | None]:
    """Spark's columns; None where a row fails, or Spark refuses the types."""
    from impctl.spark.run import run_sql

    columns = ", ".join(f"{claim.sql} AS x{at}" for at, claim in enumerate(part))
    try:
        return list(run_sql(spark, f"SELECT {columns} FROM t", {"t": view}).columns)
    except ImpctlError:
        if len(part) == 1:
            return [None]
        half = len(part) // 2
        return asked(spark, view, part[:half]) + asked(spark, view, part[half:])


def difference(claim: Claim, expected: pa.ChunkedArray | None) -> str | None:
    try:
        array, vector = computed(claim)
    except NotExactError:
        # Left to Spark when it is met.
        return None
    except EvaluationError as error:
        return None if expected is None else f"fails: {error}"
    if expected is None:
        return None
    if not is_alike(array.type, expected.type):
        return f"{array.type} instead of {expected.type}"
    ours, theirs = shown(array), shown(expected)
    for row, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        bound = 0.0 if vector.error is None else float(vector.error[row])
        is_close = bound > 0 and abs(one[0] - other[0]) <= bound
        if one != other and not is_close:
            return f"{one} instead of {other}"
    return None


def is_alike(one: pa.DataType, other: pa.DataType) -> bool:
    """The same type, whatever time zone a moment is shown in."""
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other):
        return (one.tz is None) == (other.tz is None)
    return one == other


@pytest.mark.spark
@pytest.mark.parametrize("zone", ZONES)
def test_what_is_claimed_is_sparks(zone: str, spark: Any, in_zone: Callable[[str], None]) -> None:
    view = rows_of(spark)
    in_zone(zone)
    texts = Random(zone).sample([*taken_calls(), *casts(), *operations()], 500)
    found = list(claims(texts, zone))
    assert len(found) > 100
    assert list(differences(found, spark, view)) == []


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("zone", ZONES)
def test_all_that_is_claimed_is_sparks(
    zone: str, spark: Any, in_zone: Callable[[str], None]
) -> None:
    view = rows_of(spark)
    in_zone(zone)
    listed = [row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()]
    names = [name for name in listed if name.replace("_", "").isalnum()]
    found = list(claims([*calls_of(names), *taken_calls(), *casts(), *operations()], zone))
    assert list(differences(found, spark, view)) == []
