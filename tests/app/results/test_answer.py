"""An answer as Arrow: what other libraries read of it, and where Python lacks values."""

from __future__ import annotations

import importlib.util
from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa
import pytest

from impctl.errors import EvaluationError, UsageError
from impctl.service.results import QueryResult
from tests.support.refused import refused

TABLE = pa.table([[1, 2], ["a", None], [0.5, 1.5]], ["n", "s", "n"])


def result(table: pa.Table = TABLE) -> QueryResult:
    return QueryResult(
        query="q", answer=table, versions={"t": 0}, files_kept=1, files_total=1, elapsed_ms=1.0
    )


def test_columns_and_rows_with_one_name_twice() -> None:
    match = result()
    assert match.columns == ("n", "s", "n")
    assert match.rows == ((1, "a", 0.5), (2, None, 1.5))
    assert match.row_count == 2
    assert match.to_arrow() is TABLE
    assert match == result(pa.table([[1, 2], ["a", None], [0.5, 1.5]], ["n", "s", "n"]))
    assert match != result(TABLE.slice(1))
    assert "0.5" not in repr(match)
    assert asdict(match)["answer"].equals(TABLE)


def test_a_limit_is_of_what_is_shown() -> None:
    match = replace(result(), limit=1)
    assert match.shown.num_rows == 1
    assert (match.row_count, len(match.rows), match.to_arrow().num_rows) == (2, 2, 2)


def test_pyarrow_reads_the_stream() -> None:
    reader = pa.RecordBatchReader.from_stream(result())
    assert reader.read_all().equals(TABLE)
    wanted = pa.schema([("n", pa.int32()), ("s", pa.string()), ("n", pa.float64())])
    assert pa.table(result(), schema=wanted).schema == wanted


def test_duckdb_reads_it_by_name() -> None:
    duckdb = pytest.importorskip("duckdb")
    answer = result(TABLE.select([0, 1]))
    assert answer is not None
    assert duckdb.sql("SELECT n + 1 FROM answer WHERE s IS NULL").fetchall() == [(3,)]


@pytest.mark.slow
def test_polars_reads_it() -> None:
    polars = pytest.importorskip("polars")
    assert polars.DataFrame(result(TABLE.select([0, 1]))).rows() == [(1, "a"), (2, None)]


def test_pandas_is_given_it() -> None:
    pytest.importorskip("pandas")
    frame = result().to_pandas()
    assert list(frame.columns) == ["n", "s", "n"]
    assert frame.iloc[:, 0].tolist() == [1, 2]


def test_pandas_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def missing(name: str, *rest: Any) -> Any:
        return None if name == "pandas" else find(name, *rest)

    monkeypatch.setattr("impctl.service.answer.find_spec", missing)
    with refused(UsageError, "pandas_missing", "pandas") as caught:
        result().to_pandas()
    assert "pip install pandas" in str(caught.value.hint)


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")])
def test_a_year_that_python_lacks(kind: pa.DataType) -> None:
    number = 3_672_178 if kind == pa.date32() else 317_276_222_400_000_000
    days = pa.array([number], pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
    match = result(pa.table({"d": days}))
    with refused(EvaluationError, "beyond_python"):
        _ = match.rows
    assert match.to_arrow().column("d").to_pylist is not None
    assert match.row_count == 1
