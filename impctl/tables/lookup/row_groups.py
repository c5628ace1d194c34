"""The row groups of a data file: rows of each, and the whole numbers that a column lies between.

Law: bounds are told of integers and dates alone, where the writer told both and how many values are
NULL; text is cut off by writers, and doubles have a NaN and two zeros that bounds do not show. What
is told is trusted as a file's own metadata is.
Out of scope: leaving groups out (`tables.lookup.rows_with`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from impctl.data.schema import Column, Kind
from impctl.types import ColumnName
from impctl.values import dataclass

_EPOCH = dt.date(1970, 1, 1).toordinal()


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the greatest value of a column, dates in days since 1970."""

    low: int
    high: int
    has_null: bool


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of a group, deleted ones included, and the bounds that are known of columns."""

    rows: int
    bounds: Mapping[ColumnName, Bounds]


def row_groups(
    metadata: Any, stored: Mapping[ColumnName, str], columns: tuple[Column, ...]
) -> tuple[RowGroup, ...]:
    """The groups of a file, by its Parquet `metadata`; `stored` are the file's names of columns."""
    result = []
    for at in range(metadata.num_row_groups):
        group = metadata.row_group(at)
        places = {group.column(i).path_in_schema: i for i in range(group.num_columns)}
        bounds = {}
        for column in columns:
            place = places.get(stored.get(column.name, ""))
            one = None if place is None else _bounds(group.column(place).statistics, column)
            if one is not None:
                bounds[column.name] = one
        result.append(RowGroup(group.num_rows, bounds))
    return tuple(result)


def _bounds(told: Any, column: Column) -> Bounds | None:
    if told is None or not told.has_min_max or not told.has_null_count:
        return None
    low, high = _whole(told.min, column), _whole(told.max, column)
    return None if low is None or high is None else Bounds(low, high, told.null_count > 0)


def _whole(value: object, column: Column) -> int | None:
    if column.type.is_integral and isinstance(value, int) and not isinstance(value, bool):
        return value
    if column.type.kind is Kind.DATE and type(value) is dt.date:
        return value.toordinal() - _EPOCH
    return None
