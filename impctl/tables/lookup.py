"""Rows of a table that have one of some values, found in its files without a JVM."""

from __future__ import annotations

import datetime as dt
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from impctl.data.keys import key_codes, normalise
from impctl.data.schema import Column, Kind
from impctl.data.vector import Bools, Vector, from_arrow
from impctl.tables.prune import prune_to_values
from impctl.tables.rows import FileReader, bare_rows
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.tables.snapshot import DataFile, Snapshot
    from impctl.types import ColumnName


@dataclass(frozen=True, slots=True)
class WantedValues:
    """The distinct values of `values`, in a form in which many rows are held against them."""

    values: Vector
    distinct: pa.Array
    has_null: bool

    @classmethod
    def of(cls, values: Vector) -> WantedValues:
        """All of these, each once."""
        valid = values.validity()
        known = values if bool(valid.all()) else values.take(np.flatnonzero(valid))
        return cls(values, pc.unique(_comparable(known)), not bool(valid.all()))

    def may_lie(self, low: int, high: int, *, has_null: bool) -> bool:
        """Whether one lies between two whole numbers, or is NULL where there are NULLs; integers
        and dates alone are asked this."""
        if self.has_null and has_null:
            return True
        mine = self.distinct.to_numpy(zero_copy_only=False)
        return bool(((mine >= low) & (mine <= high)).any())

    def held_by(self, column: Vector) -> Bools:
        """Which rows have one of the values; shape (n,). The column is of the values' type."""
        mine = _comparable(column)
        result = _mask(pc.is_in(mine, value_set=self.distinct.cast(mine.type)))
        if column.valid is None:
            return result
        return result | ~column.valid if self.has_null else result & column.valid


def _comparable(column: Vector) -> Any:
    """The column as Arrow compares it right: as it is, or by the codes of its keys."""
    if column.is_textual:
        return column.values
    if column.values.dtype.kind in "iub":
        return pa.array(column.values)
    return pa.array(key_codes([normalise(column)], len(column)))


def _mask(result: Any) -> Bools:
    array = result.combine_chunks() if isinstance(result, pa.ChunkedArray) else result
    mask: Bools = array.to_numpy(zero_copy_only=False).astype(np.bool_, copy=False)
    return mask


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


MOST_BYTES = 128 << 20
"""What a run may hold of columns: the keys of some ten million rows."""

_Columns = tuple[tuple[str, str], ...]
"""Columns by their names in files and their types."""
_Place = tuple[str, str, str, int]
"""A file, a column's name in files, its type, and a row group."""


class ReadOnce:
    """Decoded columns of row groups, and what is known of the groups of files."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._bytes = 0
        self._held: OrderedDict[_Place, pa.ChunkedArray] = OrderedDict()
        self._groups: dict[tuple[str, _Columns], tuple[RowGroup, ...]] = {}
        self._readers: dict[tuple[str, int, _Columns], FileReader] = {}

    def groups(
        self, snapshot: Snapshot, names: Sequence[ColumnName], file: DataFile
    ) -> tuple[RowGroup, ...]:
        """The row groups of a file, with bounds of these columns."""
        columns = tuple(snapshot.readable(name) for name in names)
        key = (file.uri, tuple(_known_by(snapshot, one) for one in columns))
        if key not in self._groups:
            metadata, stored = self._reader(snapshot, columns).described(file)
            self._groups[key] = row_groups(metadata, stored, columns)
        return self._groups[key]

    def columns(
        self, snapshot: Snapshot, names: Sequence[ColumnName], file: DataFile, group: int, rows: int
    ) -> pa.Table:
        """These columns of a row group that has so many rows, deleted rows included."""
        if not names:
            return bare_rows(rows)
        wanted = [snapshot.readable(name) for name in names]
        places = {one.name: (file.uri, *_known_by(snapshot, one), group) for one in wanted}
        missing = [one for one in wanted if places[one.name] not in self._held]
        result = {name: self._held[at] for name, at in places.items() if at in self._held}
        if missing:
            table = self._reader(snapshot, missing).read_some(file, lambda _: (group,))
            result |= {one.name: table.column(one.name) for one in missing}
        for name, place in places.items():
            self._hold(place, result[name])
        return pa.table({one.name: result[one.name] for one in wanted})

    def _reader(self, snapshot: Snapshot, columns: Sequence[Column]) -> FileReader:
        known_by = tuple(_known_by(snapshot, column) for column in columns)
        key = (snapshot.table, snapshot.version, known_by)
        if key not in self._readers:
            self._readers[key] = FileReader(snapshot, columns, snapshot.files)
        return self._readers[key]

    def _hold(self, place: _Place, column: pa.ChunkedArray) -> None:
        """Now asked for last; what is too large for all is not held."""
        before = self._held.pop(place, None)
        if before is not None:
            self._bytes -= before.nbytes
        if column.nbytes > self._most:
            return
        self._held[place] = column
        self._bytes += column.nbytes
        while self._bytes > self._most:
            _, oldest = self._held.popitem(last=False)
            self._bytes -= oldest.nbytes


def _known_by(snapshot: Snapshot, column: Column) -> tuple[str, str]:
    """What files call the column, if they have it, and its type."""
    return snapshot.columns.physical[column.name], str(column.type)


def rows_with(
    snapshot: Snapshot,
    columns: Sequence[ColumnName],
    values: Mapping[ColumnName, Sequence[Vector]],
    files: Sequence[DataFile],
    once: ReadOnce,
) -> Iterator[pa.Table]:
    """The rows in these files, exactly these columns, which have one value of each of the lists.

    Raises HistoryGoneError for a file that is gone, TableError for a column that cannot be read.
    """
    wanted = {name: [WantedValues.of(one) for one in lists] for name, lists in values.items()}
    left = {file.uri for file in files}
    for name, lists in values.items():
        for one in lists:
            left &= {file.uri for file in prune_to_values(snapshot, {name: one})}
    for file in files:
        if file.uri in left:
            for group, rows, kept in _groups(snapshot, file, wanted, once):
                yield once.columns(snapshot, columns, file, group, rows).filter(pa.array(kept))


def _groups(
    snapshot: Snapshot,
    file: DataFile,
    wanted: Mapping[ColumnName, Sequence[WantedValues]],
    once: ReadOnce,
) -> Iterator[tuple[int, int, Bools]]:
    """The row groups of a file with a row to be found, their rows, and which of them these are."""
    names = list(wanted)
    start = 0
    for number, group in enumerate(once.groups(snapshot, names, file)):
        first, start = start, start + group.rows
        if not _may_hold(group, wanted):
            continue
        table = once.columns(snapshot, names, file, number, group.rows)
        kept = np.ones(group.rows, dtype=np.bool_)
        for name, lists in wanted.items():
            column = from_arrow(table.column(name), snapshot.readable(name).type)
            for values in lists:
                kept &= values.held_by(column)
        if file.deleted is not None:
            low, high = np.searchsorted(file.deleted, [first, start])
            kept[file.deleted[low:high] - first] = False
        if bool(kept.any()):
            yield number, group.rows, kept


def _may_hold(group: RowGroup, wanted: Mapping[ColumnName, Sequence[WantedValues]]) -> bool:
    """Whether a row may have a value of every list, by the bounds of the group's columns."""
    return all(
        values.may_lie(bounds.low, bounds.high, has_null=bounds.has_null)
        for name, bounds in group.bounds.items()
        for values in wanted[name]
    )
