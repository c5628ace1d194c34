"""The fragment of every row, as an int column.

Law: the ids are those of `RangePartition.fragments_of`, for every value there is: engine, capture
and use filter agree. Three ways, the cheapest that is exact: a binary search in the JVM over
doubles, a balanced CASE tree, a sort in an Arrow UDF.
Out of scope: which partition to take, what is done with the ids (`capture`).

Why the search over doubles is exact for integers v and boundaries b with |b| < 2^53, though v may
be any 64-bit integer: rounding to double, d, is monotone, and b and b - 1 are doubles themselves.
So v >= b gives d(v) >= d(b) = b, and v < b, that is v <= b - 1, gives d(v) <= b - 1 < b.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from impctl.data.schema import Kind, SqlType, quoted
from impctl.data.vector import Ints
from impctl.sketch.partition import BoundaryValue, RangePartition
from impctl.types import ColumnName

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EXACT_BELOW = 2**53
CASE_TREE_BOUNDARIES = 50
"""A CASE tree of more branches takes longer to compile than an Arrow UDF takes to run."""

_COUNTED = frozenset(
    {Kind.BOOLEAN, Kind.BYTE, Kind.SHORT, Kind.INTEGER, Kind.LONG, Kind.DATE, Kind.TIMESTAMP}
)
"""Types whose canonical values Spark itself turns into integers."""

_MAX_PRECISION = 38


def with_fragment(
    frame: DataFrame, partition: RangePartition, column: ColumnName, name: ColumnName
) -> DataFrame:
    """The frame and an int column `name`: the fragment of `column` under `partition`.

    Cost: one binary search per row where that is exact (see the module), else a CASE tree for few
    boundaries or an Arrow UDF.
    """
    from pyspark.sql import functions as F

    value = F.col(quoted(column))
    if not partition.boundaries:
        result: Column = F.lit(0)
    elif _is_exact_on_doubles(partition):
        return _with_bucket(frame, partition, value, name)
    elif _has_case_tree(partition):
        result = _case_tree(_comparable(value, partition.type), _literals(partition), 0)
    else:
        result = _by_sorting(partition)(value)
    known = F.when(value.isNull(), F.lit(partition.null_fragment)).otherwise(result)
    return frame.withColumn(name, known.cast("int"))


def rows_per_fragment(frame: DataFrame, partition: RangePartition) -> Ints:
    """How many rows of the frame, which has the attribute, are in each fragment; shape (size,)."""
    tagged = with_fragment(frame, partition, partition.attribute, "fragment")
    result = tagged.groupBy("fragment").count().toArrow()
    counts = np.zeros(partition.size, dtype=np.int64)
    counts[result.column(0).to_numpy()] = result.column(1).to_numpy()
    return counts


def _is_exact_on_doubles(partition: RangePartition) -> bool:
    if partition.type.is_fractional:
        # Infinite boundaries would repeat the outer ones of the search.
        return all(math.isfinite(boundary) for boundary in partition.boundaries)  # type: ignore[arg-type]  # doubles have float boundaries
    if partition.type.kind not in _COUNTED and not _is_unscalable(partition.type):
        return False
    return all(isinstance(b, int) and abs(b) < EXACT_BELOW for b in partition.boundaries)


def _is_unscalable(kind: SqlType) -> bool:
    """Whether Spark can multiply the decimal to its unscaled integer without losing digits."""
    return kind.kind is Kind.DECIMAL and kind.precision + kind.scale + 2 <= _MAX_PRECISION


def _with_bucket(
    frame: DataFrame, partition: RangePartition, value: Column, name: ColumnName
) -> DataFrame:
    from pyspark.ml.feature import Bucketizer
    from pyspark.sql import functions as F

    # Adding zero makes -0.0 the 0.0 it equals; the search would tell them apart.
    splits = [-math.inf, *(float(b) + 0.0 for b in partition.boundaries), math.inf]
    number, bucket = f"{name}__number", f"{name}__bucket"
    search = Bucketizer(splits=splits, inputCol=number, outputCol=bucket, handleInvalid="keep")
    searched = search.transform(frame.withColumn(number, _as_double(value, partition.type)))
    # The search puts NaN into a bucket of its own after the last one.
    last = F.least(F.col(quoted(bucket)).cast("int"), F.lit(partition.ranges - 1))
    result = F.when(value.isNull(), F.lit(partition.null_fragment)).otherwise(last)
    return searched.withColumn(name, result).drop(number, bucket)


def _as_double(value: Column, kind: SqlType) -> Column:
    """The canonical value as a double, rounded at most once."""
    from pyspark.sql import functions as F

    if kind.is_fractional:
        return value.cast("double") + F.lit(0.0)
    if kind.kind is Kind.DECIMAL:
        unit = F.lit(str(10**kind.scale)).cast(f"decimal({kind.scale + 1},0)")
        return (value * unit).cast("double")
    return _comparable(value, kind).cast("double")


def _comparable(value: Column, kind: SqlType) -> Column:
    """The value in the form that `_literals` compares with."""
    from pyspark.sql import functions as F

    if kind.kind is Kind.DATE:
        return F.unix_date(value)
    if kind.kind is Kind.TIMESTAMP:
        return F.unix_micros(value)
    return value.cast("int") if kind.kind is Kind.BOOLEAN else value


def _has_case_tree(partition: RangePartition) -> bool:
    # A local timestamp has no integer form in Spark that is independent of the session's zone.
    return (
        len(partition.boundaries) <= CASE_TREE_BOUNDARIES
        and partition.type.kind is not Kind.TIMESTAMP_NTZ
    )


def _literals(partition: RangePartition) -> list[Column]:
    from pyspark.sql import functions as F

    if partition.type.kind is Kind.DECIMAL:
        texts = [str(value) for value in _decimals(partition)]
        return [F.lit(text).cast(partition.type.spark_name) for text in texts]
    return [F.lit(boundary) for boundary in partition.boundaries]


def _decimals(partition: RangePartition) -> list[Decimal]:
    # Made from text, because arithmetic on Decimals rounds to 28 digits.
    return [Decimal(f"{b}e-{partition.type.scale}") for b in partition.boundaries]  # type: ignore[str-bytes-safe]  # decimals have int boundaries


def _case_tree(value: Column, boundaries: Sequence[Column], first: int) -> Column:
    """Balanced tree of comparisons; `first` is the fragment below all these boundaries."""
    from pyspark.sql import functions as F

    if not boundaries:
        return F.lit(first)
    middle = len(boundaries) // 2
    above = _case_tree(value, boundaries[middle + 1 :], first + middle + 1)
    return F.when(value >= boundaries[middle], above).otherwise(
        _case_tree(value, boundaries[:middle], first)
    )


def _by_sorting(partition: RangePartition) -> Callable[[Column], Column]:
    """An Arrow UDF for any type. It needs pyarrow alone on the executors, never impctl."""
    from pyspark.sql.functions import arrow_udf

    boundaries: list[BoundaryValue] | list[Decimal] = list(partition.boundaries)
    if partition.type.kind is Kind.DECIMAL:
        boundaries = _decimals(partition)
    count = len(boundaries)

    def fragments(values: pa.Array) -> pa.Array:
        # A stable sort of boundaries before values puts an equal boundary first, as it must be;
        # bytes sort as UTF-8 does in Spark, NaN sorts last, NULL after it.
        import numpy as np
        import pyarrow
        import pyarrow.compute

        if pyarrow.types.is_timestamp(values.type) or pyarrow.types.is_date(values.type):
            values = values.view("int64" if values.type.bit_width == 64 else "int32")
        edges = pyarrow.array(boundaries).cast(values.type)
        order = pyarrow.compute.sort_indices(pyarrow.concat_arrays([edges, values]))
        positions = order.to_numpy(zero_copy_only=False)
        ids = np.empty(len(positions), dtype=np.int32)
        ids[positions] = np.cumsum(positions < count)
        return pyarrow.array(ids[count:])

    mapper: Callable[[Any], Any] = arrow_udf(fragments, "int")
    return mapper
