"""SQL on DataFrames: the answer as Arrow, views that go away, failures in plain words, shuffles."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from impctl.errors import EvaluationError, HistoryGoneError, ImpctlError, QueryError, RetryableError
from impctl.spark.run import plain_failures, run_sql
from impctl.spark.session import PARTITIONS, is_connect, shuffles_for
from tests.support.run_cli import refused


@pytest.mark.spark
def test_answer_is_an_arrow_table(spark):
    frame = spark.createDataFrame(pa.table({"a": [1, 2, 3]}))
    assert run_sql(spark, "SELECT sum(a) AS s FROM t", {"t": frame}).to_pylist() == [{"s": 6}]


@pytest.mark.spark
@pytest.mark.parametrize("name", ["plain", "with space", "dash-ed", "tick`ed", "UPPER"])
def test_views_live_as_long_as_the_query(spark, name):
    quoted = "`" + name.replace("`", "``") + "`"
    assert run_sql(spark, f"SELECT * FROM {quoted}", {name: spark.range(2)}).num_rows == 2
    # Where plans are interpreted the catalog's own listing fails as soon as a table lies there.
    left = [row.tableName.lower() for row in spark.sql("SHOW TABLES").collect()]
    assert name.lower() not in left


@pytest.mark.spark
def test_views_go_away_after_a_failure(spark):
    with pytest.raises(QueryError):
        run_sql(spark, "SELECT nothing FROM gone_view", {"gone_view": spark.range(2)})
    assert not spark.catalog.tableExists("gone_view")


@pytest.mark.spark
def test_what_is_wrong_in_the_text_is_a_query_error_without_a_plan(spark):
    with pytest.raises(QueryError) as caught:
        run_sql(spark, "SELECT nothing FROM t", {"t": spark.range(2)})
    assert "nothing" in caught.value.message
    assert not [word for word in ("\n", "SQLSTATE", "Project") if word in caught.value.message]
    with pytest.raises(QueryError):
        run_sql(spark, "SELEC 1", {})


@pytest.mark.spark
@pytest.mark.parametrize(
    "expression", ["id / 0", "CAST('x' AS INT)", "9223372036854775807 + id + 1", "DATE('nonsense')"]
)
def test_ansi_failure_is_an_evaluation_error(spark, expression):
    with pytest.raises(EvaluationError) as caught:
        run_sql(spark, f"SELECT {expression} FROM t", {"t": spark.range(2)})
    assert not [word for word in ("\n", "at org.") if word in caught.value.message]


@pytest.mark.spark
def test_sum_overflow_is_an_evaluation_error(spark):
    frame = spark.createDataFrame(pa.table({"a": [2**63 - 1, 1]}))
    with pytest.raises(EvaluationError):
        run_sql(spark, "SELECT sum(a) FROM t", {"t": frame})


@pytest.mark.spark
def test_missing_file_names_the_version(spark, tmp_path):
    path = tmp_path / "part.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    frame = spark.read.schema("a bigint").parquet(str(path))
    path.unlink()
    with pytest.raises(HistoryGoneError) as caught:
        run_sql(spark, "SELECT sum(a) FROM t", {"t": frame}, versions={"t": 7})
    assert caught.value.message.startswith("Version 7 of table `t` can no longer be read")


@pytest.mark.spark
def test_interrupt_passes(spark, monkeypatch):
    def interrupted(*_args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(spark, "sql", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_sql(spark, "SELECT 1", {})


@pytest.mark.spark
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


_WAITED = (
    "An error occurred while calling o83.getResult.\n"
    ": org.apache.spark.SparkException: Exception thrown in awaitResult: \n"
    "\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:53)\n"
    "Caused by: org.apache.spark.{kind}: {text}\n"
)


def failure(text: str) -> ImpctlError:
    from pyspark.core.context import Py4JError

    with pytest.raises(ImpctlError) as caught, plain_failures():
        raise Py4JError(text)
    return caught.value


def test_what_another_thread_met_is_told_for_what_it_is() -> None:
    text = "[SCALAR_SUBQUERY_TOO_MANY_ROWS] More than one row returned. SQLSTATE: 21000"
    several = failure(_WAITED.format(kind="SparkException", text=text))
    assert (type(several), several.code) == (EvaluationError, "subquery_of_several_rows")
    text = "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012"
    failing = failure(_WAITED.format(kind="SparkArithmeticException", text=text))
    assert isinstance(failing, EvaluationError)
    assert failing.message == "The query fails on a row: Division by zero"
    other = failure(_WAITED.format(kind="SparkException", text="Job 3 cancelled"))
    assert isinstance(other, RetryableError), "it may be tried again"


@pytest.mark.spark
@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SELECT id FROM t WHERE id > (SELECT id FROM t)", "subquery_of_several_rows"),
        ("SELECT id FROM t WHERE id > (SELECT max(1 div id) FROM t)", "evaluation_failed"),
        (
            "SELECT id FROM t WHERE CASE WHEN id < 1 THEN TRUE ELSE raise_error("
            "'More than one row returned by a subquery used as an expression') END",
            "subquery_of_several_rows",
        ),
        ("SELECT raise_error('mine') FROM t", "evaluation_failed"),
    ],
)
def test_spark_itself(spark, sql: str, code: str) -> None:
    with refused(EvaluationError, code) as caught:
        run_sql(spark, sql, {"t": spark.range(2)})
    assert "awaitResult" not in caught.value.message


MEGABYTE = 1 << 20


def inside(spark: Any, size: int) -> str:
    with shuffles_for(spark, size):
        return str(spark.conf.get(PARTITIONS))


@pytest.fixture
def fresh(spark: Any) -> Any:
    """A session of its own, with Spark's default."""
    session = spark.newSession()
    session.conf.set(PARTITIONS, "200")
    session.conf.unset(PARTITIONS)
    if session.conf.get(PARTITIONS) != "200":
        pytest.skip("the installation has another number")
    return session


@pytest.mark.spark
def test_a_small_read_has_few_parts_and_a_large_one_spark_s_own(fresh: Any) -> None:
    few = str(max(8, 0 if is_connect(fresh) else 2 * fresh.sparkContext.defaultParallelism))
    sizes = (0, 400 * MEGABYTE, 400 * MEGABYTE + 1, 2000 * MEGABYTE)
    assert [inside(fresh, size) for size in sizes] == [few, "100", "101", "200"]
    assert fresh.conf.get(PARTITIONS) == "200"
    with pytest.raises(ZeroDivisionError), shuffles_for(fresh, 0):
        raise ZeroDivisionError
    assert fresh.conf.get(PARTITIONS) == "200", "a failure leaves the session as it was"


@pytest.mark.spark
def test_what_somebody_chose_stays(fresh: Any) -> None:
    fresh.conf.set(PARTITIONS, "64")
    assert (inside(fresh, 0), fresh.conf.get(PARTITIONS)) == ("64", "64")
