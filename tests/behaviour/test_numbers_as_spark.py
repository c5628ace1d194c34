"""Numbers on the border of a condition, where Spark's own rounding decides the answer.

Law: what is captured and maintained by the engine is what Spark finds; `verify --results` asks
Spark with the query as it is written.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.expr import numeric
from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Cli

pytestmark = pytest.mark.spark

WORKLOAD = """\
version: 1
tables: {{t: {{path: t}}}}
partitions: {{t: {{{column}: {{boundaries: [5]}}}}}}
queries: {{q: {{sql: "{sql}", sketch: {{t: {column}}}}}}}
spark: {{master: "local[2]"}}
"""


def rows_of(columns: dict[str, Any], digits: int, scale: int) -> pa.Table:
    kind = pa.decimal128(digits, scale)
    return pa.table(
        {
            name: pa.array([Decimal(v) for v in values], kind)
            if isinstance(values[0], str)
            else pa.array(values, pa.int32())
            for name, values in columns.items()
        }
    )


@pytest.fixture
def opened(tmp_path: Path, capsys: pytest.CaptureFixture[str], spark: Any) -> Any:
    def open_with(sql: str, column: str, rows: pa.Table) -> Cli:
        create_table(str(tmp_path / "t"), rows)
        return Cli.over(capsys, tmp_path, WORKLOAD.format(sql=sql, column=column))

    return open_with


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT g FROM t GROUP BY g HAVING AVG(p) < 0.000438",
        "SELECT g FROM t GROUP BY g ORDER BY AVG(p), g LIMIT 1",
    ],
)
def test_averages_of_short_decimals(opened: Any, tmp_path: Path, sql: str) -> None:
    cents = ["0.01"] * 7 + ["0.00"] * 153
    rows = rows_of({"g": [1] * 160 + [9], "p": [*cents, "5.00"]}, 7, 2)
    cli = opened(sql, "g", rows)
    cli.good("capture")
    cli.verified(is_exact=False)
    # The same average in another range, by maintenance alone.
    write_deltalake(str(tmp_path / "t"), rows_of({"g": [7] * 160, "p": cents}, 7, 2), mode="append")
    cli.good("maintain")
    cli.verified(is_exact=False)


def answers(cli: Cli) -> list[Any]:
    """Rows through the sketch, which must be those without."""
    cli.verified(is_exact=False)
    (answer,) = cli.good("query", "--query", "q").results
    rows = answer["rows"]
    assert isinstance(rows, list)
    return rows


@pytest.mark.parametrize(
    ("digits", "scale", "values", "limit"),
    [
        (7, 2, ["0.01"] * 7 + ["0.00"] * 153, "< 0.000438"),
        (38, 18, ["1E-18"] + ["0"] * 99, "> 0"),
        (25, 6, ["0.000001"] + ["0"] * 7, "> 0.0000001"),
    ],
)
def test_averages_captured_by_spark(
    opened: Any, tmp_path: Path, digits: int, scale: int, values: list[str], limit: str
) -> None:
    columns = {"g": [1] * len(values), "p": values, "d": ["1"] * len(values)}
    rows = rows_of(columns, digits, scale)
    # A sum of distinct values is left to Spark, and with it the whole condition.
    sql = (
        f"SELECT g FROM t GROUP BY g HAVING AVG(p) {limit} AND SUM(DISTINCT CAST(d AS DOUBLE)) > 0"
    )
    cli = opened(sql, "g", rows)
    (captured,) = cli.good("capture").results
    assert captured["mode"] != "exact"
    assert answers(cli) == [[1]]


def test_groups_too_large_for_doubles_are_captured_by_spark(
    opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numeric, "EXACT_DOUBLE", 10**9)
    few, many = ["5.00"] * 50, ["7.00"] * 101
    rows = rows_of({"g": [1] * 50 + [9] * 101, "p": few + many}, 7, 2)
    cli = opened("SELECT g FROM t GROUP BY g HAVING AVG(p) > 6", "g", rows)
    cli.good("capture")
    assert answers(cli) == [[9]]
    more = rows_of({"g": [1] * 60, "p": ["9.00"] * 60}, 7, 2)
    write_deltalake(str(tmp_path / "t"), more, mode="append")
    cli.good("maintain")
    assert sorted(answers(cli)) == [[1], [9]]


def test_a_quotient_is_rounded_once(opened: Any, tmp_path: Path) -> None:
    a = 45 * 10**30
    rows = rows_of({"g": [9], "a": ["1"], "b": ["1"]}, 38, 0)
    cli = opened("SELECT g FROM t GROUP BY g HAVING MIN(a / b) <= 0", "g", rows)
    cli.good("capture")
    added = rows_of({"g": [1], "a": [str(a)], "b": [str(2 * 10**6 * a + 1)]}, 38, 0)
    write_deltalake(str(tmp_path / "t"), added, mode="append")
    cli.good("maintain")
    cli.verified(is_exact=False)
    (answer,) = cli.good("query", "--query", "q").results
    assert answer["rows"] == [[1]]


@pytest.mark.parametrize("condition", ["x >= CAST(0 AS BIGINT)", "x >= +0"])
def test_a_decimal_that_is_rounded_to_be_compared_has_no_sign(opened: Any, condition: str) -> None:
    tiny = ["3E-19", "-4E-19", "1"]
    rows = rows_of({"g": [1, 1, 2], "p": [1, 9, 1], "x": tiny}, 38, 30)
    sql = f"SELECT g FROM t WHERE {condition} GROUP BY g HAVING SUM(x) > 0"
    cli = opened(sql, "p", rows)
    ran = cli("capture")
    assert (ran.code, ran.error["code"]) == (3, "sketch_unsafe")


@pytest.mark.parametrize(
    ("digits", "scale", "value", "condition"),
    [
        (38, 18, "12345678901234567890.123456789012345678",
         "-x = -12345678901234567890.12345678901235"),
        (10, 4, "1.0000", "x / 3Y > 0.333333"),
        (10, 4, "1.0000", "x / -(3) < -0.333333"),
        (38, 30, "3.000000000000000000000000000004", "3 BETWEEN x AND 4 AND x > 3"),
        (38, 30, "3.000000000000000000000000000004", "nullif(3, x) IS NULL"),
        (38, 0, "9223372036854775807", "x div 0.1 = -10"),
    ],
)  # fmt: skip
def test_numbers_on_the_border(
    opened: Any, digits: int, scale: int, value: str, condition: str
) -> None:
    rows = rows_of({"g": [1, 9], "x": [value, "0"]}, digits, scale)
    cli = opened(f"SELECT g FROM t WHERE {condition} GROUP BY g", "g", rows)
    cli.good("capture")
    assert answers(cli) == [[1]]


def test_a_quotient_that_wraps_has_no_sign(opened: Any) -> None:
    rows = rows_of({"g": [1, 1], "p": [1, 9], "x": ["9223372036854775807", "1"]}, 38, 0)
    sql = "SELECT g FROM t WHERE x >= 0 GROUP BY g HAVING SUM(x div 0.1) > 0"
    ran = opened(sql, "p", rows)("capture")
    assert (ran.code, ran.error["code"]) == (3, "sketch_unsafe")
