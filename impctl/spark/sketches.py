"""Sketches captured in Spark."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa  # Spark reads the annotations of the function that it calls.
from msgspec import Struct

from impctl.data.schema import Column as TableColumn
from impctl.data.schema import Kind, SqlType, quoted
from impctl.data.vector import Ints, from_arrow
from impctl.errors import UsageError
from impctl.plan.nodes import Join, Plan, Query
from impctl.sketch.sketch import RangeSet
from impctl.spark.capture import RANGE_ID, STAGED, PassKind, SketchPass, sketch_passes, staged_name
from impctl.spark.render import render_plan
from impctl.spark.run import plain_failures, selected
from impctl.types import AccessId, ColumnName, TableName, TableVersion

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from impctl.safety.judge import Verdict
    from impctl.sketch.sketch import BoundaryValue, RangePartition


# The range of every row, as an int column: the ids of `RangePartition.range_ids_of` for every
# value, so that engine, capture and filters agree. Three ways, the cheapest exact one: a binary
# search in the JVM over doubles, a balanced CASE tree, a sort in an Arrow UDF. The search is exact
# for integers v (of 64 bits) and boundaries b with |b| < 2^53: rounding to double, d, is monotone,
# and b and b - 1 are doubles. So v >= b gives d(v) >= d(b) = b, and v <= b - 1 gives d(v) <= b - 1
# < b.

EXACT_BELOW = 2**53
CASE_TREE_BOUNDARIES = 50
"""A CASE tree of more branches takes longer to compile than an Arrow UDF takes to run."""

_COUNTED = frozenset(
    {Kind.BOOLEAN, Kind.BYTE, Kind.SHORT, Kind.INTEGER, Kind.LONG, Kind.DATE, Kind.TIMESTAMP}
)
"""Types whose canonical values Spark itself turns into integers."""

_MAX_PRECISION = 38


def with_range_id(
    frame: DataFrame, partition: RangePartition, column: ColumnName, name: ColumnName
) -> DataFrame:
    """The frame and an int column `name`: the range of `column` under `partition`. Cost: a binary
    search per row where exact on doubles, else a CASE tree for few boundaries or an Arrow UDF."""
    from pyspark.sql import functions as F

    value = F.col(quoted(column))
    if not partition.boundaries:
        result: Column = F.lit(0)
    elif _is_exact_on_doubles(partition):
        return _with_bucket(frame, partition, value, name)
    elif (
        len(partition.boundaries) <= CASE_TREE_BOUNDARIES
        # A local timestamp has no integer form in Spark that is independent of the session's zone.
        and partition.type.kind is not Kind.TIMESTAMP_NTZ
    ):
        result = _case_tree(_comparable(value, partition.type), _literals(partition), 0)
    else:
        result = _by_sorting(partition)(value)
    known = F.when(value.isNull(), F.lit(partition.null_range)).otherwise(result)
    return frame.withColumn(name, known.cast("int"))


def rows_per_range(frame: DataFrame, partition: RangePartition) -> Ints:
    """How many rows of the frame, which has the attribute, are in each range; shape (size,)."""
    tagged = with_range_id(frame, partition, partition.attribute, "fragment")
    result = tagged.groupBy("fragment").count().toArrow()
    counts = np.zeros(partition.size, dtype=np.int64)
    counts[result.column(0).to_numpy()] = result.column(1).to_numpy()
    return counts


def _is_exact_on_doubles(partition: RangePartition) -> bool:
    if partition.type.is_fractional:
        # Infinite boundaries would repeat the outer ones of the search.
        return all(math.isfinite(boundary) for boundary in partition.boundaries)  # type: ignore[arg-type]  # doubles have float boundaries
    kind = partition.type
    # Spark multiplies a decimal to its unscaled integer, which must not lose digits.
    is_scalable = kind.kind is Kind.DECIMAL and kind.precision + kind.scale + 2 <= _MAX_PRECISION
    if kind.kind not in _COUNTED and not is_scalable:
        return False
    return all(isinstance(b, int) and abs(b) < EXACT_BELOW for b in partition.boundaries)


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
    # The search puts NaN into a separate bucket after the last one.
    last = F.least(F.col(quoted(bucket)).cast("int"), F.lit(partition.ranges - 1))
    result = F.when(value.isNull(), F.lit(partition.null_range)).otherwise(last)
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
    from pyspark.sql import functions as F

    if not boundaries:
        return F.lit(first)
    middle = len(boundaries) // 2
    above = _case_tree(value, boundaries[middle + 1 :], first + middle + 1)
    return F.when(value >= boundaries[middle], above).otherwise(
        _case_tree(value, boundaries[:middle], first)
    )


def _by_sorting(partition: RangePartition) -> Callable[[Column], Column]:
    """An Arrow UDF for any type. It needs only pyarrow on the executors, never impctl."""
    from pyspark.sql.functions import arrow_udf

    boundaries: list[BoundaryValue] | list[Decimal] = list(partition.boundaries)
    if partition.type.kind is Kind.DECIMAL:
        boundaries = _decimals(partition)
    count = len(boundaries)

    def ranges(values: pa.Array) -> pa.Array:
        # A stable sort of boundaries before values puts an equal boundary first; bytes sort as
        # UTF-8 does in Spark, NaN sorts last, NULL after it.
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

    mapper: Callable[[Any], Any] = arrow_udf(ranges, "int")
    return mapper


# Captures the accurate sketch of every access in Spark, by the cheapest pass (`spark.capture`).
# Only distinct range ids and the keys of surviving groups reach the driver.

MAX_BROADCAST_GROUPS = 2_000_000
"""Above, Spark chooses how to join by itself."""

_STAGED_VIEW = "impctl_staged"
_RETURNING = frozenset(Kind) - {Kind.TIMESTAMP_NTZ, Kind.NULL, Kind.OTHER}
"""Types of group keys that survive a round trip to the driver."""


def capture_sketches(
    spark: SparkSession,
    query: Query,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
    frames: Mapping[AccessId, DataFrame],
    *,
    versions: Mapping[TableName, TableVersion] | None = None,
) -> dict[AccessId, RangeSet]:
    """The ranges that the query needs of each access in `partitions`. `verdict` is that of this
    very query; `frames` holds the rows of every access, those of sketched ones with their partition
    attribute. Raises what `sketch_passes` and running it in Spark raise."""
    for access, partition in partitions.items():
        columns_read = {name.lower() for name in frames[access].columns}
        if partition.attribute.lower() not in columns_read:
            raise UsageError(
                f"The rows of `{access}` do not have the partition attribute "
                f"`{partition.attribute}`",
                code="partition_attribute_missing",
                hint="read the attribute together with the columns of the query",
            )
    columns = {a: TableColumn(p.attribute, p.type) for a, p in partitions.items()}
    scans = enumerate(query.root.scans)
    views = {scan.access: f"impctl_view{index}" for index, scan in scans}
    capture = _Capture(spark, frames, views, partitions)
    result: dict[AccessId, set[int]] = {}
    for pass_ in sketch_passes(query, verdict, columns):
        with plain_failures(versions):
            result.update(capture.ranges(pass_))
    return {a: RangeSet.of(sorted(result[a]), p.size) for a, p in partitions.items()}


_RangeIds = dict[AccessId, set[int]]


class _Capture(Struct, frozen=True):
    spark: SparkSession
    frames: Mapping[AccessId, DataFrame]
    views: Mapping[AccessId, str]
    partitions: Mapping[AccessId, RangePartition]

    def ranges(self, pass_: SketchPass) -> _RangeIds:
        match pass_.way:
            case PassKind.KEYED:
                return self._of_keys(pass_)
            case PassKind.GROUPS:
                return self._of_groups(pass_)
        rows = self._rows(pass_)
        if pass_.above is not None:
            named = {**self.views, STAGED: _STAGED_VIEW}
            rows = self._frame(pass_.above, named, {STAGED: rows})
        return _ids(rows, pass_)

    def _of_keys(self, pass_: SketchPass) -> _RangeIds:
        """The keys are at most as many as result rows, so they are mapped without Spark."""
        positions = _places(pass_)
        rows = self._frame(pass_.rows, self.views)
        names = list(map(staged_name, sorted(set(positions.values()))))
        keys = rows.toDF(*map(staged_name, range(len(rows.columns)))).select(*names)
        if any(isinstance(node, Join) for node in pass_.rows.walk()):
            keys = keys.distinct()
        fetched = keys.toArrow()
        result: _RangeIds = {}
        for access, position in positions.items():
            partition = self.partitions[access]
            values = from_arrow(fetched.column(staged_name(position)), partition.type)
            result[access] = set(np.unique(partition.range_ids_of(values)).tolist())
        return result

    def _of_groups(self, pass_: SketchPass) -> _RangeIds:
        """Joining on `=` is far cheaper than on `<=>`, so NULL keys are looked for first."""
        from pyspark.sql import functions as F

        assert pass_.groups is not None
        groups = self._frame(pass_.groups, self.views)
        names = [f"g{index}" for index in range(len(pass_.group))]
        groups, null_free = self._fetched(groups.toDF(*names) if names else groups, pass_)
        if null_free is None:
            return {access: set() for access in pass_.keys}
        rows = self._rows(pass_)
        ids = [a.id for a in pass_.rows.attributes]
        condition = F.lit(True)
        for name, group in zip(names, pass_.group, strict=True):
            mine, theirs = F.col(staged_name(ids.index(group))), F.col(name)
            same = mine == theirs if name in null_free else mine.eqNullSafe(theirs)
            condition = condition & same
        return _ids(rows.join(groups, condition, "left_semi") if names else rows, pass_)

    def _fetched(
        self, groups: DataFrame, pass_: SketchPass
    ) -> tuple[DataFrame, frozenset[str] | None]:
        """The groups, computed once, and their columns without NULL; None for no groups at all."""
        from pyspark.sql.functions import broadcast

        assert pass_.groups is not None
        if not pass_.group:
            # One global group, which a filter above it may have dropped.
            return groups, None if groups.count() == 0 else frozenset()
        kinds = [a.type.kind if a.type is not None else None for a in pass_.groups.attributes]
        if not all(kind in _RETURNING for kind in kinds):
            return groups, frozenset()
        if any(isinstance(node, Join) for node in pass_.groups.walk()):
            groups = groups.distinct()
        answer = groups.toArrow()
        if answer.num_rows == 0:
            return groups, None
        null_free = frozenset(n for n in answer.column_names if answer[n].null_count == 0)
        fetched = self.spark.createDataFrame(answer, groups.schema)
        few = answer.num_rows <= MAX_BROADCAST_GROUPS
        return (broadcast(fetched) if few else fetched), null_free

    def _rows(self, pass_: SketchPass) -> DataFrame:
        rows = self._frame(pass_.rows, self.views)
        rows = rows.toDF(*(staged_name(position) for position in range(len(rows.columns))))
        for number, (access, position) in enumerate(_places(pass_).items()):
            # The only one, or the first, is as `staged` calls it.
            name = f"{RANGE_ID}/{number}" if number else RANGE_ID
            rows = with_range_id(rows, self.partitions[access], staged_name(position), name)
        return rows

    def _frame(
        self,
        plan: Plan,
        views: Mapping[AccessId, str],
        staged: Mapping[AccessId, DataFrame] = MappingProxyType({}),
    ) -> DataFrame:
        frames = {**self.frames, **staged}
        read = {scan.access for scan in plan.scans} & frames.keys()
        sql = render_plan(plan, views)
        return selected(self.spark, sql, {views[access]: frames[access] for access in read})


def _places(pass_: SketchPass) -> dict[AccessId, int]:
    ids = [attribute.id for attribute in pass_.rows.attributes]
    return {access: ids.index(key) for access, key in pass_.keys.items()}


def _ids(rows: DataFrame, pass_: SketchPass) -> _RangeIds:
    from pyspark.sql import functions as F

    accesses, columns = list(pass_.keys), rows.columns[-len(pass_.keys) :]
    if len(accesses) == 1:
        single = rows.select(f"`{columns[0]}`").distinct().toArrow().column(0).to_pylist()
        # Where ranges are collected, NULL represents a side that has none.
        return {accesses[0]: {range_id for range_id in single if range_id is not None}}
    pairs = [
        F.struct(F.lit(index).alias("at"), F.col(f"`{column}`").alias("id"))
        for index, column in enumerate(columns)
    ]
    result = rows.select(F.inline(F.array(*pairs))).distinct().toArrow()
    numbers, ids = result.column(0).to_numpy(), result.column(1).to_numpy()
    return {a: set(ids[numbers == number].tolist()) for number, a in enumerate(accesses)}
