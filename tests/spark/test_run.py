"""SQL on DataFrames: Arrow results, temporary views, plain error messages, shuffle partitions."""

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
def test_the_result_is_an_arrow_table(spark):
    frame = spark.createDataFrame(pa.table({"a": [1, 2, 3]}))
    assert run_sql(spark, "SELECT sum(a) AS s FROM t", {"t": frame}).to_pylist() == [{"s": 6}]


@pytest.mark.spark
@pytest.mark.parametrize("name", ["plain", "with space", "dash-ed", "tick`ed", "UPPER"])
def test_views_are_dropped_after_the_query(spark, name):
    quoted = "`" + name.replace("`", "``") + "`"
    assert run_sql(spark, f"SELECT * FROM {quoted}", {name: spark.range(2)}).num_rows == 2
    # `catalog.listTables` fails on any existing table if plans are interpreted.
    remaining = [row.tableName.lower() for row in spark.sql("SHOW TABLES").collect()]
    assert name.lower() not in remaining


@pytest.mark.spark
def test_views_are_dropped_after_a_failure(spark):
    with pytest.raises(QueryError):
        run_sql(spark, "SELECT nothing FROM gone_view", {"gone_view": spark.range(2)})
    assert not spark.catalog.tableExists("gone_view")


@pytest.mark.spark
def test_invalid_sql_is_a_query_error_without_a_plan(spark):
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
def test_interrupts_propagate(spark, monkeypatch):
    def interrupted(*_args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(spark, "sql", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_sql(spark, "SELECT 1", {})


@pytest.mark.spark
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_during_a_spark_job_propagates(spark, number):
    """It is not a failure of the query, after which the next query would start."""

    def interrupted(number: int, frame: object) -> None:
        if is_connect(spark):
            spark.interruptAll()
        else:
            spark.sparkContext.cancelAllJobs()
        raise KeyboardInterrupt

    previous = signal.signal(number, interrupted)
    is_done = threading.Event()

    def interrupt_running_job() -> None:
        """Spark Connect does not report its jobs."""
        while not is_done.wait(3.0 if is_connect(spark) else 0.05):
            if is_connect(spark) or spark.sparkContext.statusTracker().getActiveJobsIds():
                os.kill(os.getpid(), number)
                return

    thread = threading.Thread(target=interrupt_running_job)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_sql(spark, "SELECT sum(hash(a.id, b.id)) FROM t a, t b", {"t": spark.range(10**7)})
    finally:
        is_done.set()
        thread.join()
        signal.signal(number, previous)
    assert run_sql(spark, "SELECT 1 AS one", {}).to_pylist() == [{"one": 1}]


_AWAIT_FAILURE = (
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


def test_failures_of_another_thread_are_classified() -> None:
    text = "[SCALAR_SUBQUERY_TOO_MANY_ROWS] More than one row returned. SQLSTATE: 21000"
    several = failure(_AWAIT_FAILURE.format(kind="SparkException", text=text))
    assert (type(several), several.code) == (EvaluationError, "subquery_of_several_rows")
    text = "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012"
    failing = failure(_AWAIT_FAILURE.format(kind="SparkArithmeticException", text=text))
    assert isinstance(failing, EvaluationError)
    assert failing.message == "The query fails on a row: Division by zero"
    other = failure(_AWAIT_FAILURE.format(kind="SparkException", text="Job 3 cancelled"))
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
def test_spark_failures_have_codes(spark, sql: str, code: str) -> None:
    with refused(EvaluationError, code) as caught:
        run_sql(spark, sql, {"t": spark.range(2)})
    assert "awaitResult" not in caught.value.message


MEGABYTE = 1 << 20


def partitions_in_block(spark: Any, size: int) -> str:
    with shuffles_for(spark, size):
        return str(spark.conf.get(PARTITIONS))


@pytest.fixture
def new_session(spark: Any) -> Any:
    """A new session with Spark's default."""
    session = spark.newSession()
    session.conf.set(PARTITIONS, "200")
    session.conf.unset(PARTITIONS)
    if session.conf.get(PARTITIONS) != "200":
        pytest.skip("the installation has another default")
    return session


@pytest.mark.spark
def test_shuffle_partitions_grow_with_the_input(new_session: Any) -> None:
    few = str(
        max(8, 0 if is_connect(new_session) else 2 * new_session.sparkContext.defaultParallelism)
    )
    sizes = (0, 400 * MEGABYTE, 400 * MEGABYTE + 1, 2000 * MEGABYTE)
    assert [partitions_in_block(new_session, size) for size in sizes] == [few, "100", "101", "200"]
    assert new_session.conf.get(PARTITIONS) == "200"
    with pytest.raises(ZeroDivisionError), shuffles_for(new_session, 0):
        raise ZeroDivisionError
    assert new_session.conf.get(PARTITIONS) == "200", "a failure restores the setting"


@pytest.mark.spark
def test_a_user_setting_is_not_changed(new_session: Any) -> None:
    new_session.conf.set(PARTITIONS, "64")
    assert (partitions_in_block(new_session, 0), new_session.conf.get(PARTITIONS)) == ("64", "64")
