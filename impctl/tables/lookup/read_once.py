"""Columns of row groups that several readers of one run ask for, decoded once.

Law: what is given is what `FileReader` reads of the same file. Files do not change, but what names
mean does between versions, so a column is known by its name in files and its type. No more than
`most` bytes are held: what was asked for longest ago goes first.
Out of scope: which groups are read (`tables.lookup.rows_with`); one of these serves one run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import pyarrow as pa

from impctl.data.schema import Column
from impctl.tables.lookup.row_groups import RowGroup, row_groups
from impctl.tables.rows import FileReader, bare_rows
from impctl.tables.snapshot import DataFile, Snapshot
from impctl.types import ColumnName

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
