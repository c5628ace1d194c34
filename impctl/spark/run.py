"""Running SQL text in Spark, and Spark's failures as errors of impctl."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from impctl.data.schema import quoted
from impctl.errors import (
    EvaluationError,
    HistoryGoneError,
    ImpctlError,
    QueryError,
    RetryableError,
    UnsupportedError,
    UsageError,
)
from impctl.expr.functions import SEVERAL_ROWS, several_rows
from impctl.spark.session import PACKAGES, is_connect

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from impctl.types import TableName, TableVersion


# Failures in Spark as errors of impctl with one plain message, never a JVM stack trace. The kind of
# error follows from Spark's error condition and exception class, not from its text.
# KeyboardInterrupt passes, also if Spark replaced it by a complaint about the cancelled job.

_MISSING_FILE = ("PATH_NOT_FOUND", "FAILED_READ_FILE.FILE_NOT_EXIST")
_MISSING_FILE_TEXT = re.compile(r"FileNotFoundException|\[PATH_NOT_FOUND\]|FILE_NOT_EXIST")
_CONDITION = re.compile(r"^\[([A-Z][A-Z0-9_.]*)\]\s*")
_SQL_STATE = re.compile(r"\s*SQLSTATE: \w+.*$")
_NO_SCHEME = re.compile(r"No FileSystem for scheme \"?(\w+)")
_NO_CLASS = re.compile(r"Class (org\.apache\.hadoop\.fs\.[\w.]+|com\.google\.[\w.]+) not found")
_SEVERAL_ROWS = re.compile(
    r"\[SCALAR_SUBQUERY_TOO_MANY_ROWS\]|\[USER_RAISED_EXCEPTION\] " + re.escape(SEVERAL_ROWS)
)
"""Of Spark's own check of a subquery, and of the one in texts that impctl writes."""
_RECURSION = re.compile(r"\[RECURSION_(?:LEVEL|ROW)_LIMIT_EXCEEDED\] (.+)")
_FAILED_ROW = re.compile(
    r"^Caused by: org\.apache\.spark\.Spark(?:Arithmetic|ArrayIndexOutOfBounds|DateTime"
    r"|NumberFormat|Runtime)Exception: (.+)$",
    re.MULTILINE,
)
"""What Spark includes in the exception of a waiting thread: of subqueries and broadcasts."""
_SCHEMES_OF_CLASSES = {
    "org.apache.hadoop.fs.s3a.S3AFileSystem": "s3a",
    "org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem": "abfss",
    "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem": "gs",
}
_JAVA_CLASS = re.compile(r"^(?:[a-z]\w*\.)+[A-Z]\w*: ")


@contextmanager
def plain_failures(versions: Mapping[TableName, TableVersion] | None = None) -> Iterator[None]:
    """Turn Spark's exceptions inside the block into errors of impctl."""
    # Py4JError is not part of pyspark's own tree, yet some failures (and a dead JVM) raise it bare.
    from pyspark.core.context import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        if _is_interrupted(error):
            raise KeyboardInterrupt from error
        # A gateway's error has no class or condition to tell.
        raise _translated(error, versions or {}) from error
    except (ConnectionError, EOFError) as error:
        raise RetryableError(
            "Spark failed: its process ended",
            code="spark_failed",
            hint="run again; more driver memory may help (`spark.driver.memory`)",
        ) from error


def _is_interrupted(error: BaseException) -> bool:
    """Whether KeyboardInterrupt occurred first: PySpark raises again while cleaning up after it."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, KeyboardInterrupt):
        seen = seen.__context__
    return seen is not None


def _without_file_system(text: str) -> ImpctlError | None:
    """The error if Spark lacks an object store's file system; None for other causes."""
    result = _NO_SCHEME.search(text) or _NO_CLASS.search(text)
    if result is None:
        return None
    scheme = _SCHEMES_OF_CLASSES.get(result[1], result[1])
    package = PACKAGES.get(scheme)
    add = (
        "add the JAR of its Hadoop file system to `spark.jars.packages`"
        if package is None
        else f"add `{package.format(hadoop=hadoop_version())}` to `spark.jars.packages` under "
        "`spark.conf`, or add its JARs to the Spark installation"
    )
    return UsageError(
        f"Spark has no file system for `{scheme}://`, which a table's path uses",
        code="spark_file_system_missing",
        hint=f"{add}; `capture` and `maintain` can read the table without Spark",
    )


def hadoop_version() -> str:
    """The version of PySpark's own Hadoop, for a JAR that must match it."""
    import pyspark

    folder = Path(pyspark.__file__).parent / "jars"
    for jar in sorted(folder.glob("hadoop-client-api-*.jar")):
        return jar.stem.removeprefix("hadoop-client-api-")
    return "VERSION"


def _translated(error: Exception, versions: Mapping[TableName, TableVersion]) -> ImpctlError:
    from pyspark.errors import (
        AnalysisException,
        ArithmeticException,
        ArrayIndexOutOfBoundsException,
        DateTimeException,
        NumberFormatException,
        SparkRuntimeException,
    )

    text, condition = str(error), _condition_of(error)
    missing = _without_file_system(text)
    if missing is not None:
        return missing
    if condition.startswith(_MISSING_FILE) or _MISSING_FILE_TEXT.search(text):
        return history_gone(versions)
    plain = _known(text)
    if plain is not None:
        return plain
    if isinstance(error, AnalysisException):
        return QueryError(
            f"Spark cannot run the query: {first_sentence(text)}",
            code="query_rejected_by_spark",
            hint="check the query's names and types against the tables",
        )
    evaluation = (
        ArithmeticException,
        ArrayIndexOutOfBoundsException,
        DateTimeException,
        NumberFormatException,
        SparkRuntimeException,
    )
    if isinstance(error, evaluation):
        return _on_a_row(text)
    return _handed_on(text)


def _condition_of(error: Exception) -> str:
    condition = getattr(error, "getCondition", lambda: None)()
    return condition if isinstance(condition, str) else ""


def _known(text: str) -> ImpctlError | None:
    """What the text of an error says for certain, whoever raised it."""
    if _SEVERAL_ROWS.search(text):
        return several_rows()
    match = _RECURSION.search(text)
    if match is None:
        return None
    return UnsupportedError(
        f"A recursive query exceeds Spark's limit: {first_sentence(match[1])}",
        code="recursion_limit",
        hint="limit the recursion in the query, for example by a level; MAX RECURSION LEVEL n "
        "after its name allows more levels",
    )


def _handed_on(text: str) -> ImpctlError:
    match = _FAILED_ROW.search(text)
    if match is not None:
        return _on_a_row(match[1])
    return RetryableError(
        f"Spark failed: {first_sentence(text)}",
        code="spark_failed",
        hint="run again with `-vv` to see Spark's log; more driver memory may help",
    )


def _on_a_row(text: str) -> EvaluationError:
    return EvaluationError(
        f"The query fails on a row: {first_sentence(text)}",
        hint="guard the expression or fix the row; Spark also fails without impctl, unless it "
        "finds that the result does not need the row",
    )


def history_gone(versions: Mapping[TableName, TableVersion]) -> HistoryGoneError:
    names = (f"Version {number} of table `{table}`" for table, number in sorted(versions.items()))
    named = " and ".join(names) or "The pinned version"
    return HistoryGoneError(
        f"{named} can no longer be read (vacuumed?): a data file is missing",
        code="data_files_gone",
        hint=(
            "run again on the current version; keep data files for longer than the time between "
            "two runs"
        ),
    )


def first_sentence(text: str) -> str:
    """Spark's message without plan, stack trace, Java class, SQL state and full stop."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = lines[0] if lines else "no message"
    if first.startswith("An error occurred while calling") and len(lines) > 1:
        first = lines[1].removeprefix(": ")
    for noise in (_JAVA_CLASS, _CONDITION, _SQL_STATE):
        first = noise.sub("", first)
    return first.rstrip(".;: ")


# Running SQL text on DataFrames, and reading the answer as Arrow. A name in the text means its
# frame, also in what is computed from the answer later; no view outlives the call. A failure is one
# plain error of impctl.


def run_sql(
    spark: SparkSession,
    sql: str,
    views: Mapping[str, DataFrame],
    *,
    versions: Mapping[TableName, TableVersion] | None = None,
) -> pa.Table:
    """The answer of `sql` over the DataFrames `views`, by name. If data files are missing, errors
    name `versions`, those pinned behind the views. QueryError, EvaluationError,
    HistoryGoneError."""
    with plain_failures(versions):
        return selected(spark, sql, views).toArrow()


def frame_of(
    spark: SparkSession,
    sql: str,
    views: Mapping[str, DataFrame],
    *,
    versions: Mapping[TableName, TableVersion] | None = None,
) -> DataFrame:
    """`sql` as a frame that has read nothing yet; it keeps the meaning of the names."""
    with plain_failures(versions):
        return selected(spark, sql, views)


def selected(spark: SparkSession, sql: str, views: Mapping[str, DataFrame]) -> DataFrame:
    """The same without error translation: inside `plain_failures`."""
    if is_connect(spark):
        frame = _with_arguments(spark, sql, views)
        # The server resolves it only on demand; here mistakes are reported.
        _ = frame.schema
        return frame
    created: list[str] = []
    try:
        for name, frame in views.items():
            frame.createOrReplaceTempView(quoted(name))
            created.append(name)
        return spark.sql(sql)
    finally:
        for name in created:
            spark.catalog.dropTempView(name)


def _with_arguments(spark: SparkSession, sql: str, views: Mapping[str, DataFrame]) -> DataFrame:
    """A server resolves names when the frame is computed, so the frames go along with the text.
    They are named before the whole query, put in brackets, as it may begin with WITH itself."""
    if not views:
        return spark.sql(sql)
    arguments = {
        f"impctl_{index}": (name, frame) for index, (name, frame) in enumerate(views.items())
    }
    named = ", ".join(
        f"{_escaped(quoted(name))} AS (SELECT * FROM {{{argument}}})"
        for argument, (name, _) in arguments.items()
    )
    frames = {argument: frame for argument, (_, frame) in arguments.items()}
    return spark.sql(f"WITH {named} ({_escaped(sql)}\n)", **frames)


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


# The rows of a SELECT that have one of the given keys, and rows of it slice by slice: exactly those
# rows, as often as the SELECT has them; NULL equals NULL if requested. The keys are broadcast. A
# single column of integer keys first narrows the rows to its range, which skips row groups.


def with_keys(
    spark: SparkSession, rows: DataFrame, places: Sequence[int], keys: pa.Table
) -> DataFrame:
    """The rows whose columns at `places` are, in this order, a row of `keys`."""
    from pyspark.sql import functions as F

    named, names = _renamed(rows), [f"k{index}" for index in range(keys.num_columns)]
    keyed = F.broadcast(spark.createDataFrame(keys.rename_columns(names)))
    condition: Column | None = None
    for name, index, column in zip(keyed.columns, places, keys.columns, strict=True):
        left, right = F.col(named.columns[index]), F.col(name)
        same = left.eqNullSafe(right) if column.null_count else left == right
        condition = same if condition is None else condition & same
    is_single = len(places) == 1 and not keys.column(0).null_count
    if is_single and pa.types.is_integer(keys.column(0).type):
        bounds, key = pc.min_max(keys.column(0)).as_py(), F.col(named.columns[places[0]])
        named = named.where(key.between(F.lit(bounds["min"]), F.lit(bounds["max"])))
    return named.join(keyed, condition, "left_semi")


def slice_of(rows: DataFrame, number: int, slices: int) -> DataFrame:
    """One of so many disjoint parts of the rows."""
    from pyspark.sql import functions as F

    named = _renamed(rows)
    if slices == 1:
        return named
    return named.where(F.pmod(F.xxhash64(*named.columns), F.lit(slices)) == number)


def _renamed(rows: DataFrame) -> DataFrame:
    return rows.toDF(*(f"r{index}" for index in range(len(rows.columns))))
