"""SQL on DataFrames: the answer as Arrow, views that go away, failures in plain words."""

from __future__ import annotations

import os
import signal
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from impctl.errors import EvaluationError, HistoryGoneError, QueryError
from impctl.spark.run import run_sql
from impctl.spark.session import is_connect

pytestmark = pytest.mark.spark


def test_answer_is_an_arrow_table(spark):
    frame = spark.createDataFrame(pa.table({"a": [1, 2, 3]}))
    answer = run_sql(spark, "SELECT sum(a) AS s FROM t", {"t": frame})
    assert answer.to_pylist() == [{"s": 6}]


@pytest.mark.parametrize("name", ["plain", "with space", "dash-ed", "tick`ed", "UPPER"])
def test_views_live_as_long_as_the_query(spark, name):
    quoted = "`" + name.replace("`", "``") + "`"
    assert run_sql(spark, f"SELECT * FROM {quoted}", {name: spark.range(2)}).num_rows == 2
    # Where plans are interpreted the catalog's own listing fails as soon as a table lies there.
    left = [row.tableName.lower() for row in spark.sql("SHOW TABLES").collect()]
    assert name.lower() not in left


def test_views_go_away_after_a_failure(spark):
    with pytest.raises(QueryError):
        run_sql(spark, "SELECT nothing FROM gone_view", {"gone_view": spark.range(2)})
    assert not spark.catalog.tableExists("gone_view")


def test_unknown_column_is_a_query_error_without_a_plan(spark):
    with pytest.raises(QueryError) as caught:
        run_sql(spark, "SELECT nothing FROM t", {"t": spark.range(2)})
    assert "nothing" in caught.value.message
    assert "\n" not in caught.value.message
    assert "SQLSTATE" not in caught.value.message
    assert "Project" not in caught.value.message


def test_syntax_error_is_a_query_error(spark):
    with pytest.raises(QueryError):
        run_sql(spark, "SELEC 1", {})


@pytest.mark.parametrize(
    "expression",
    ["id / 0", "CAST('x' AS INT)", "9223372036854775807 + id + 1", "DATE('nonsense')"],
)
def test_ansi_failure_is_an_evaluation_error(spark, expression):
    with pytest.raises(EvaluationError) as caught:
        run_sql(spark, f"SELECT {expression} FROM t", {"t": spark.range(2)})
    assert "\n" not in caught.value.message
    assert "at org." not in caught.value.message


def test_sum_overflow_is_an_evaluation_error(spark):
    frame = spark.createDataFrame(pa.table({"a": [2**63 - 1, 1]}))
    with pytest.raises(EvaluationError):
        run_sql(spark, "SELECT sum(a) FROM t", {"t": frame})


def test_missing_file_names_the_version(spark, tmp_path):
    path = tmp_path / "part.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    frame = spark.read.schema("a bigint").parquet(str(path))
    path.unlink()
    with pytest.raises(HistoryGoneError) as caught:
        run_sql(spark, "SELECT sum(a) FROM t", {"t": frame}, versions={"t": 7})
    assert caught.value.message.startswith("Version 7 of table `t` can no longer be read")


def test_interrupt_passes(spark, monkeypatch):
    def interrupted(*_args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(spark, "sql", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_sql(spark, "SELECT 1", {})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_spark_runs_is_an_interrupt(spark, number):
    """And no failure of the query, after which the next one would begin."""

    def interrupted(number: int, frame: object) -> None:
        if is_connect(spark):
            spark.interruptAll()
        else:
            spark.sparkContext.cancelAllJobs()
        raise KeyboardInterrupt

    before = signal.signal(number, interrupted)
    ended = threading.Event()

    def interrupt_what_runs() -> None:
        """Spark Connect does not tell of its jobs."""
        while not ended.wait(3.0 if is_connect(spark) else 0.05):
            if is_connect(spark) or spark.sparkContext.statusTracker().getActiveJobsIds():
                os.kill(os.getpid(), number)
                return

    thread = threading.Thread(target=interrupt_what_runs)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_sql(spark, "SELECT sum(hash(a.id, b.id)) FROM t a, t b", {"t": spark.range(10**7)})
    finally:
        ended.set()
        thread.join()
        signal.signal(number, before)
    assert run_sql(spark, "SELECT 1 AS one", {}).to_pylist() == [{"one": 1}]
