"""AVG over short decimals, which Spark computes in doubles: the last step to the last digit."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from impctl.data.schema import LONG, decimal
from impctl.data.vector import Vector
from impctl.errors import EvaluationError
from impctl.expr.numeric import mean, most_rows
from impctl.expr.types import average_type, sum_type

KINDS = [
    *[(11, 0), (11, 2), (7, 2), (10, 2), (5, 5), (11, 11), (1, 0)],
    *[(12, 2), (20, 4), (25, 6), (28, 10), (38, 18)],
]


def averages(digits: int, scale: int, totals: list[int], counts: list[int]) -> list[int | None]:
    kind = decimal(digits, scale)
    total, result = sum_type(kind), average_type(kind)
    assert total is not None
    assert result is not None
    match = mean(Vector(total, np.array(totals)), Vector(LONG, np.array(counts)), result)
    valid = match.validity()
    return [int(value) if valid[at] else None for at, value in enumerate(match.values.tolist())]


def test_seven_cents_over_160_rows_are_rounded_as_a_double() -> None:
    # 0.0004375 as a decimal; the nearest double, and so Spark, lies below.
    assert averages(7, 2, [7, -7, 0, 5], [160, 160, 160, 0]) == [437, -437, 0, None]
    assert averages(12, 2, [7, -7, 0, 5], [160, 160, 160, 0]) == [438, -438, 0, None]


def test_more_rows_than_doubles_sum_exactly_are_refused() -> None:
    most = most_rows(decimal(15, 6))
    assert averages(11, 2, [most], [most]) == [10_000]
    with pytest.raises(EvaluationError, match="more than 90,071 rows") as caught:
        averages(11, 2, [1], [most + 1])
    assert "CAST(... AS DECIMAL(12, 2))" in caught.value.hint


@pytest.mark.spark
def test_averages_are_sparks(spark: Any, tmp_path: Any) -> None:
    random = np.random.default_rng(5)
    for digits, scale in KINDS:
        sizes = random.choice([1, 3, 7, 9, 64, 160], 300)
        groups = np.repeat(np.arange(300), sizes)
        most = 10 ** random.integers(1, min(digits, 18) + 1, len(groups))
        unscaled = [int(random.integers(-m + 1, m)) for m in most.tolist()]
        values = [Decimal(value).scaleb(-scale) for value in unscaled]
        table = pa.table({"g": groups, "p": pa.array(values, pa.decimal128(digits, scale))})
        path = str(tmp_path / f"{digits}-{scale}.parquet")
        pq.write_table(table, path)
        kind = average_type(decimal(digits, scale))
        assert kind is not None
        spark.read.parquet(path).createOrReplaceTempView("x")
        sql = "SELECT AVG(p) AS a, SUM(p) AS t, COUNT(p) AS n FROM x GROUP BY g"
        rows = spark.sql(sql).toArrow().to_pylist()
        ours = averages(
            digits,
            scale,
            [int(row["t"].scaleb(scale)) for row in rows],
            [row["n"] for row in rows],
        )
        theirs = [int(row["a"].scaleb(kind.scale)) for row in rows]
        assert ours == theirs, (digits, scale)
