"""Rows of a SELECT that have one of the given keys, and rows of it slice by slice.

Law: every row whose keys are among those given is there, as often as the SELECT has it, and no
other. NULL is equal to NULL where a NULL is asked for. The keys are broadcast; where they are one
column of integers the rows are first narrowed to their range, which skips row groups.
Out of scope: what the SELECT is (`capture.render`), what the rows are for
(`app.capturing.partners.by_spark`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


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
