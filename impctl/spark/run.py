"""Running SQL text on DataFrames, and reading the answer as Arrow.

Law: a name in the text stands for its frame, in the answer and in whatever is computed from it
later; no view outlives the call. A failure leaves as one plain error of impctl.
Out of scope: writing the SQL (`capture`), what failures mean (`spark.failures`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from impctl.data.schema import quoted
from impctl.spark.connect import is_connect
from impctl.spark.failures import plain_failures
from impctl.types import TableName, TableVersion

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def run_sql(
    spark: SparkSession,
    sql: str,
    views: Mapping[str, DataFrame],
    *,
    versions: Mapping[TableName, TableVersion] | None = None,
) -> pa.Table:
    """The answer of `sql`, in which each name of `views` stands for its DataFrame.

    `versions` are the pinned versions behind the views, named when data files turn out to be gone.
    Raises QueryError, EvaluationError or HistoryGoneError.
    """
    with plain_failures(versions):
        return selected(spark, sql, views).toArrow()


def frame_of(
    spark: SparkSession,
    sql: str,
    views: Mapping[str, DataFrame],
    *,
    versions: Mapping[TableName, TableVersion] | None = None,
) -> DataFrame:
    """`sql` as a frame that has read nothing yet; it keeps what the names stood for."""
    with plain_failures(versions):
        return selected(spark, sql, views)


def selected(spark: SparkSession, sql: str, views: Mapping[str, DataFrame]) -> DataFrame:
    """The same without a word for what fails: inside `plain_failures`."""
    if is_connect(spark):
        frame = _with_arguments(spark, sql, views)
        # Asked of the server only when needed; here it is where mistakes are told.
        _ = frame.schema
        return frame
    made: list[str] = []
    try:
        for name, frame in views.items():
            frame.createOrReplaceTempView(quoted(name))
            made.append(name)
        return spark.sql(sql)
    finally:
        for name in made:
            spark.catalog.dropTempView(name)


def _with_arguments(spark: SparkSession, sql: str, views: Mapping[str, DataFrame]) -> DataFrame:
    """A server resolves names when the frame is computed, so the frames go along with the text.

    Each is named before the whole query, which stands in brackets: it may begin with WITH itself.
    """
    if not views:
        return spark.sql(sql)
    places = {f"impctl_{at}": (name, frame) for at, (name, frame) in enumerate(views.items())}
    named = ", ".join(
        f"{_escaped(quoted(name))} AS (SELECT * FROM {{{place}}})"
        for place, (name, _) in places.items()
    )
    frames = {place: frame for place, (_, frame) in places.items()}
    return spark.sql(f"WITH {named} ({_escaped(sql)}\n)", **frames)


def _escaped(text: str) -> str:
    """Text in which braces mean braces."""
    return text.replace("{", "{{").replace("}", "}}")
