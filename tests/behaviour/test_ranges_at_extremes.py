"""Proposed ranges of columns that hold their type's first and last values.

Law: a proposed boundary is a value of the column's type; Spark reads the filter made of it, and
answers over the sketch as without.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Cli

LIMITS: dict[str, tuple[pa.DataType, Any, Any]] = {
    "byte": (pa.int8(), -(2**7), 2**7 - 1),
    "short": (pa.int16(), -(2**15), 2**15 - 1),
    "int": (pa.int32(), -(2**31), 2**31 - 1),
    "long": (pa.int64(), -(2**63), 2**63 - 1),
    "narrow": (pa.decimal128(3, 1), Decimal("-99.9"), Decimal("99.9")),
    "wide": (pa.decimal128(38, 2), Decimal("-" + "9" * 36 + ".99"), Decimal("9" * 36 + ".99")),
    "single": (pa.float32(), float("-inf"), float("inf")),
    "double": (pa.float64(), -1.7976931348623157e308, 1.7976931348623157e308),
    "day": (pa.date32(), date.min, date.max),
    "moment": (pa.timestamp("us"), datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)),
}


def rows(first: int) -> pa.Table:
    """Every column at both its ends, and a key that no two tables share."""
    columns = {
        name: pa.array([low, low, high, high, high], kind)
        for name, (kind, low, high) in LIMITS.items()
    }
    return pa.table({"id": pa.array(range(first, first + 5), pa.int64()), **columns})


@pytest.fixture
def extremes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    path = str(tmp_path / "t")
    create_table(path, rows(0))
    for first in (5, 10):
        # The last value of a file starts others, so that ranges are proposed behind it.
        write_deltalake(path, rows(first).slice(2), mode="append")
    queries = {
        name: {
            "sql": f"SELECT {name}, COUNT(*) AS n FROM t GROUP BY {name} HAVING COUNT(*) > 2",
            "sketch": {"t": name},
        }
        for name in LIMITS
    }
    workload = {
        "version": 1,
        "tables": {"t": {"path": "t"}},
        "queries": queries,
        "store": ".impctl",
        "spark": {"master": "local[2]"},
    }
    return Cli.over(capsys, tmp_path, yaml.safe_dump(workload))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
def test_spark_reads_filters_of_proposed_ranges(extremes: Cli) -> None:
    extremes.good("capture")
    extremes.verified(is_exact=False)
