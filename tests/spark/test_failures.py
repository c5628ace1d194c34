"""What Spark throws, as errors of impctl: texts as Spark words them, and Spark itself."""

from __future__ import annotations

import pytest

from impctl.errors import EvaluationError, ImpctlError, RetryableError
from impctl.spark.run import plain_failures, run_sql

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
    assert isinstance(several, EvaluationError)
    assert several.code == "subquery_of_several_rows"
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
    with pytest.raises(EvaluationError) as caught:
        run_sql(spark, sql, {"t": spark.range(2)})
    assert caught.value.code == code
    assert "awaitResult" not in caught.value.message
