"""Running SQL text on DataFrames, and reading the result as Arrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from impctl.data.schema import quoted
from impctl.spark.failures import plain_failures
from impctl.spark.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from impctl.types import TableName, TableVersion


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


def with_keys(
    spark: SparkSession, rows: DataFrame, places: Sequence[int], keys: pa.Table
) -> DataFrame:
    """The rows whose columns at `places` are, in this order, a row of `keys`."""
    from pyspark.sql import functions as F

    named = _renamed(rows)
    wanted = F.broadcast(spark.createDataFrame(keys.rename_columns(_key_names(keys.num_columns))))
    condition: Column | None = None
    for name, place, column in zip(wanted.columns, places, keys.columns, strict=True):
        mine, theirs = F.col(named.columns[place]), F.col(name)
        same = mine.eqNullSafe(theirs) if column.null_count else mine == theirs
        condition = same if condition is None else condition & same
    if len(places) == 1 and not keys.column(0).null_count:
        named = _narrowed(named, named.columns[places[0]], keys.column(0))
    return named.join(wanted, condition, "left_semi")


def slice_of(rows: DataFrame, number: int, slices: int) -> DataFrame:
    """One of so many parts of the rows, which together are all of them."""
    from pyspark.sql import functions as F

    named = _renamed(rows)
    if slices == 1:
        return named
    return named.where(F.pmod(F.xxhash64(*named.columns), F.lit(slices)) == number)


def _renamed(rows: DataFrame) -> DataFrame:
    return rows.toDF(*(f"r{place}" for place in range(len(rows.columns))))


def _key_names(count: int) -> list[str]:
    return [f"k{place}" for place in range(count)]


def _narrowed(rows: DataFrame, name: str, keys: pa.ChunkedArray) -> DataFrame:
    from pyspark.sql import functions as F

    if not pa.types.is_integer(keys.type):
        return rows
    result = pc.min_max(keys).as_py()
    return rows.where(F.col(name).between(F.lit(result["min"]), F.lit(result["max"])))
