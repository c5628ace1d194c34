"""Range partitions of one attribute over its whole domain.

Law: every value has exactly one range. With boundaries b1 < ... < bm, range 0 is open below, range
i holds b_i <= v < b_(i+1), range m is open above and holds NaN; range m + 1 holds NULL only. -0.0
equals 0.0. Strings compare by code point, which is Spark's UTF8 binary order.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from impctl.data.schema import FRACTIONAL, INTEGRAL, TEMPORAL, Kind, SqlType
from impctl.data.vector import INT64_MIN, Bools, Vector
from impctl.errors import UsageError

if TYPE_CHECKING:
    from impctl.types import ColumnName, TableName

BoundaryValue = int | float | str | bytes
"""A boundary in canonical form (see `data.vector`): unscaled for decimals, days for dates."""
PARTITIONABLE = INTEGRAL | FRACTIONAL | TEMPORAL | {Kind.DECIMAL, Kind.STRING}
"""Types that ranges can be made of."""
RangeIds = npt.NDArray[np.int32]

_TABLE = 1 << 20  # Integers from the first boundary to the last that a look-up table may hold
_PER_VALUE = 8  # Table entries allowed per value looked up


class RangePartition(Struct, frozen=True, dict=True):
    """A partition of `table` on `attribute` by strictly increasing canonical boundaries."""

    table: TableName
    attribute: ColumnName
    type: SqlType
    boundaries: tuple[BoundaryValue, ...]

    def __post_init__(self) -> None:
        for low, high in zip(self.boundaries, self.boundaries[1:], strict=False):
            if not low < high:  # type: ignore[operator]  # one column, one value type
                raise UsageError(
                    f"Boundaries of `{self.table}.{self.attribute}` must increase:"
                    f" {low!r}, {high!r}",
                    code="boundaries_not_increasing",
                    hint="sort the boundaries and remove duplicates",
                )

    @property
    def ranges(self) -> int:
        """Number of ranges, not counting the one for NULL."""
        return len(self.boundaries) + 1

    @property
    def null_range(self) -> int:
        """Id of the range for NULL; it is the last one."""
        return self.ranges

    @property
    def size(self) -> int:
        """Number of ranges, including the one for NULL."""
        return self.ranges + 1

    @cached_property
    def id(self) -> str:
        """Content hash: equal exactly when rows are mapped to ranges the same way."""
        text = repr((self.table, self.attribute.lower(), str(self.type), self.boundaries))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def _array(self) -> npt.NDArray[np.int64] | npt.NDArray[np.float64] | None:
        """Boundaries as a NumPy array if one holds them exactly."""
        # An array of texts would reserve the length of the longest for each.
        if not self.boundaries or isinstance(self.boundaries[0], str | bytes):
            return None
        # With integers beyond 64 bits the array's type is not int64.
        array = np.array(self.boundaries)
        wanted = np.float64 if isinstance(self.boundaries[0], float) else np.int64
        return array if array.dtype == wanted else None

    @cached_property
    def _span(self) -> int | None:
        """Integers from below the first boundary to the last one; None if too many."""
        array = self._array
        if array is None or array.dtype != np.int64:
            return None
        span = int(array[-1]) - int(array[0]) + 2
        return span if span <= _TABLE and int(array[0]) > INT64_MIN else None

    @cached_property
    def _table(self) -> RangeIds:
        """The range id of each integer of the span."""
        array, span = self._array, self._span
        assert array is not None
        assert span is not None
        numbers = np.arange(span, dtype=np.int64) + (int(array[0]) - 1)
        return np.searchsorted(array, numbers, side="right").astype(np.int32)

    def range_ids_of(self, vector: Vector) -> RangeIds:
        """Range id of each value; shape (n,), int32. Cost: n log(ranges), at most."""
        span = self._span
        if not self.boundaries:
            ids = np.zeros(len(vector), dtype=np.int32)
        elif span is not None and _is_whole(vector) and len(vector) * _PER_VALUE >= span:
            # Values outside the span have the range of its nearest end.
            below = int(self.boundaries[0]) - 1
            ids = self._table[np.clip(vector.values, below, below + span - 1) - below]
        elif not vector.is_textual and self._array is not None and vector.values.dtype != object:
            ids = np.searchsorted(self._array, vector.values, side="right").astype(np.int32)
        else:
            ids = self._one_by_one(vector)
        if vector.valid is not None:
            ids[~vector.valid] = self.null_range
        return ids

    def are_all_in(self, vector: Vector, wanted: Bools) -> bool:
        """Whether `wanted`, a mask of shape (size,), has every range from the least value to the
        greatest, without looking values up. False if unknown: for all but integers without NULL."""
        if not len(vector) or vector.valid is not None or not _is_whole(vector):
            return False
        ends = np.array([vector.values.min(), vector.values.max()])
        low, high = self.range_ids_of(Vector(vector.type, ends)).tolist()
        return bool(wanted[low : high + 1].all())

    def _one_by_one(self, vector: Vector) -> RangeIds:
        # Strings and wide decimals have no NumPy order: one search per distinct value of the batch.
        values = vector.values.to_pylist() if vector.is_textual else vector.values
        known: dict[object, int] = {}
        ids = np.zeros(len(vector), dtype=np.int32)
        for position, value in enumerate(values):
            if value is None:
                continue
            result = known.get(value)
            if result is None:
                result = known[value] = bisect_right(self.boundaries, value)
            ids[position] = result
        return ids


def _is_whole(vector: Vector) -> bool:
    """Whether NumPy holds the values as integers, unlike wide decimals."""
    return not vector.is_textual and vector.values.dtype == np.int64
