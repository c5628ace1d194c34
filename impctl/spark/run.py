"""Running SQL text on DataFrames, and reading the answer as Arrow.

Law: views exist only while the SQL runs; a failure leaves as one plain error of impctl.
Out of scope: writing the SQL (`capture`), what failures mean (`spark.failures`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from impctl.aliases import TableName, TableVersion
from impctl.data.identifiers import quoted
from impctl.spark.failures import plain_failures

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
    with plain_failures(versions), temporary_views(spark, views):
        return spark.sql(sql).toArrow()


def frame_of(
    spark: SparkSession,
    sql: str,
    views: Mapping[str, DataFrame],
    *,
    versions: Mapping[TableName, TableVersion] | None = None,
) -> DataFrame:
    """`sql` as a frame that has read nothing yet; it keeps what the views stood for."""
    with plain_failures(versions), temporary_views(spark, views):
        return spark.sql(sql)


@contextmanager
def temporary_views(spark: SparkSession, views: Mapping[str, DataFrame]) -> Iterator[None]:
    """The views, for as long as the block lasts."""
    made: list[str] = []
    try:
        for name, frame in views.items():
            frame.createOrReplaceTempView(quoted(name))
            made.append(name)
        yield
    finally:
        for name in made:
            spark.catalog.dropTempView(name)
