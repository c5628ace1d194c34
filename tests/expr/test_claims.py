"""What the engine claims to compute it computes, and as Spark does.

By hand, all of it in three time zones: `-m long` (some 15 minutes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    is_alike,
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
    with pytest.raises(UnsupportedExpressionError, match="the engine does not support"):
        Condition(claim.expr)


def rows_of(spark: Any, row: int | None = None) -> Any:
    """The rows in Spark, or one of them; in UTC, since Spark takes local times for moments."""
    local = "timestampadd(MICROSECOND, unix_micros(k), TIMESTAMP_NTZ '1970-01-01 00:00:00') AS k"
    rows = ROWS if row is None else ROWS.slice(row, 1)
    return spark.createDataFrame(rows).selectExpr(*(local if n == "k" else n for n in TYPES))


@pytest.fixture
def views(spark: Any) -> dict[int | None, Any]:
    """All rows, by None, and each of them by its number."""
    return {row: rows_of(spark, row) for row in (None, *range(len(ROWS)))}


def differences(result: Sequence[Claim], spark: Any, views: Mapping[int | None, Any]) -> list[str]:
    """Claims of which Spark gives other values or another type, or values where ours fails.

    Where a row makes one of the two fail, each row is compared by itself.
    """
    wrong, failing = [], []
    for claim, expected in paired(result, spark, views[None]):
        if expected is None:
            failing.append(claim)
        elif (said := difference(claim, expected)) is not None:
            wrong.append(said)
    for row in range(len(ROWS)):
        computable = [claim for claim in failing if is_computable(claim, row)]
        for claim, expected in paired(computable, spark, views[row]):
            said = "Spark fails" if expected is None else difference(claim, expected, row)
            if said is not None:
                wrong.append(f"row {row}: {claim.sql}: {said}")
    return wrong


def paired(
    result: Sequence[Claim], spark: Any, view: Any
) -> Iterator[tuple[Claim, pa.ChunkedArray | None]]:
    """The claims with Spark's columns; None where a row fails, or Spark refuses the types."""
    for start in range(0, len(result), TOGETHER):
        part = result[start : start + TOGETHER]
        yield from zip(part, asked(spark, view, part), strict=True)


def asked(spark: Any, view: Any, part: Sequence[Claim]) -> list[pa.ChunkedArray | None]:
    from impctl.spark.run import run_sql

    columns = ", ".join(f"{claim.sql} AS x{at}" for at, claim in enumerate(part))
    try:
        return list(run_sql(spark, f"SELECT {columns} FROM t", {"t": view}).columns)
    except ImpctlError:
        if len(part) == 1:
            return [None]
        half = len(part) // 2
        return asked(spark, view, part[:half]) + asked(spark, view, part[half:])


def is_computable(claim: Claim, row: int) -> bool:
    try:
        computed(claim, row)
    except (EvaluationError, NotExactError):
        return False
    return True


def difference(claim: Claim, expected: pa.ChunkedArray, row: int | None = None) -> str | None:
    try:
        array, vector = computed(claim, row)
    except NotExactError:
        # Left to Spark when it is met.
        return None
    except EvaluationError as error:
        return f"{claim.sql} in {claim.zone} fails: {error}"
    if not is_alike(array.type, expected.type):
        return f"{claim.sql} in {claim.zone} is {array.type} instead of {expected.type}"
    ours, theirs = shown(array), shown(expected)
    for at, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        bound = 0.0 if vector.error is None else float(vector.error[at])
        is_close = bound > 0 and abs(one[0] - other[0]) <= bound
        if one != other and not is_close:
            return f"{claim.sql} in {claim.zone} is {one} instead of {other}"
    return None


@pytest.mark.spark
@pytest.mark.parametrize("zone", ZONES)
def test_what_is_claimed_is_sparks(
    zone: str, spark: Any, views: Mapping[int | None, Any], in_zone: Callable[[str], None]
) -> None:
    in_zone(zone)
    texts = Random(zone).sample([*taken_calls(), *casts(), *operations()], 150)
    result = list(claims(texts, zone))
    assert len(result) > 30
    wrong = differences(result, spark, views)
    assert not wrong, "\n".join(wrong)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("zone", ZONES)
def test_all_that_is_claimed_is_sparks(
    zone: str, spark: Any, views: Mapping[int | None, Any], in_zone: Callable[[str], None]
) -> None:
    in_zone(zone)
    listed = [row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()]
    names = [name for name in listed if name.replace("_", "").isalnum()]
    result = list(claims([*calls_of(names), *taken_calls(), *casts(), *operations()], zone))
    wrong = differences(result, spark, views)
    assert not wrong, "\n".join(wrong)
