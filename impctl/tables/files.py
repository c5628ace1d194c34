"""The data files of a table: opening them, and what their footers say."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import or_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import astuple

from impctl.data.schema import Column, Kind, SqlType
from impctl.errors import HistoryGoneError, ImpctlError, StorageError, TableError, UnsupportedError
from impctl.tables.snapshot import PHYSICAL_NAME, DataFile, Snapshot, outside_table
from impctl.tables.storage import (
    READ_FAILURES,
    below_root,
    failure_text,
    is_missing,
    local_path,
    object_store,
)

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from impctl.types import ColumnName


# Old dates and times. Law: Spark writes some files in the hybrid calendar: Spark 2 always, Spark
# 3.0 as INT96, later versions in a legacy mode. Such a column is read only while no value lies
# before the calendars agree; otherwise it is refused.

_FIRST_SAFE_DAY = -141427
"""1582-10-15: since then both calendars name the same days."""
_FIRST_SAFE_MICROSECOND = -2208988800000000
"""1900-01-01: since then zone offsets agree too, as Spark itself assumes."""
_LEGACY_MARKS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_SPARK_VERSION = b"org.apache.spark.version"
_FIRST_PROLEPTIC = b"3.0.0"
_FIRST_PROLEPTIC_INT96 = b"3.1.0"
"""Spark 3.0 still wrote INT96 in the old calendar, and Spark compares the versions as texts."""


def is_hybrid(footer: Mapping[bytes, bytes] | None, *, as_int96: bool = False) -> bool:
    """Whether a Parquet footer declares the file's dates to be in the hybrid calendar. `as_int96`
    is about timestamps of that physical type."""
    if footer is None:
        return False
    first = _FIRST_PROLEPTIC_INT96 if as_int96 else _FIRST_PROLEPTIC
    version = footer.get(_SPARK_VERSION)
    return any(mark in footer for mark in _LEGACY_MARKS) or (
        version is not None and version < first
    )


def hybrid_columns(file: pq.FileMetaData, columns: Iterable[str]) -> frozenset[str]:
    """Those of these columns (leaves) whose dates and times are in the hybrid calendar."""
    if is_hybrid(file.metadata):
        return frozenset(columns)
    if not is_hybrid(file.metadata, as_int96=True):
        return frozenset()
    leaves = (file.schema.column(index) for index in range(len(file.schema)))
    return frozenset(columns) & {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}


def is_surely_modern(file: pq.FileMetaData, index: int) -> bool:
    """Whether the leaf at this index holds no date or time from before the calendars agree. True
    for a leaf of another type; False if a row group lacks its least value."""
    leaf = file.schema.column(index)
    kind = leaf.logical_type
    if leaf.physical_type != "INT96" and kind.type not in ("DATE", "TIMESTAMP"):
        return True
    if kind.type == "TIMESTAMP" and "microseconds" not in kind.to_json():
        return False
    limit = _FIRST_SAFE_DAY if kind.type == "DATE" else _FIRST_SAFE_MICROSECOND
    chunks = (file.row_group(group).column(index) for group in range(file.num_row_groups))
    return all(_starts_at(chunk, limit) for chunk in chunks)


def _starts_at(chunk: Any, limit: int) -> bool:
    """Whether a column chunk's statistics exclude values below this one."""
    if not chunk.is_stats_set:
        return False
    stated = chunk.statistics
    if stated.null_count == chunk.num_values:
        return True
    return stated.has_min_max and isinstance(stated.min_raw, int) and stated.min_raw >= limit


def check_calendar(values: Any, kind: SqlType, column: str, uri: str) -> None:
    """Raise TableError if a value of a hybrid file lies where the calendars differ."""
    if kind.kind is Kind.DATE:
        numbers, limit = values.cast(pa.int32()), _FIRST_SAFE_DAY
    elif kind.kind is Kind.TIMESTAMP:
        numbers, limit = values.cast(pa.int64()), _FIRST_SAFE_MICROSECOND
    else:
        return
    lowest = pc.min(numbers).as_py()
    if lowest is not None and lowest < limit:
        raise TableError(
            f"Column `{column}` has old dates or times in the calendar of Spark 2: {uri}",
            hint="rewrite the file with Spark 3.1 or newer, or remove the column from the query",
            code="legacy_calendar",
        )


# Opening data files. Law: the log chooses only among files below the table's folder or a folder in
# `clone_of`. A name in the log never selects a file system, a host or an option, so reading a local
# table causes no network access. FIFOs, devices and links that lead out of the folder are refused
# before they are opened. Cost: one `lstat` per local file.


class DataFiles:
    """The data files of one snapshot, including its change data and removed files. An object store
    need not be asked for the sizes of `files`."""

    def __init__(self, snapshot: Snapshot, files: Iterable[DataFile] = ()) -> None:
        self._snapshot = snapshot
        self._known = tuple(files)
        self._stores: dict[str, Any] = {}
        self._folders: dict[str, bool] = {}
        """Whether a local folder, links followed, lies below its root."""

    def open(self, file: DataFile, *, buffer: int = 0) -> pq.ParquetFile:
        """The file, to be closed by the caller; OSError or ArrowException if it is unreadable. With
        a `buffer` columns of a local file are read in pieces of this size; in an object store
        that would be many requests. UnsupportedError for a file that the table must not have."""
        import pyarrow.parquet as pq

        store, name, is_local = self._place(file)
        return pq.ParquetFile(
            name,
            filesystem=store,
            buffer_size=buffer if is_local else 0,
            coerce_int96_timestamp_unit="us",
        )

    def footer(self, file: DataFile) -> pq.FileMetaData:
        """The Parquet metadata of the file; errors as for `open`."""
        import pyarrow.parquet as pq

        store, name, _ = self._place(file)
        return pq.read_metadata(name, filesystem=store)

    def try_footer(self, file: DataFile) -> pq.FileMetaData | None:
        """Like `footer`; None if the file cannot be read."""
        try:
            return self.footer(file)
        except READ_FAILURES:
            return None

    def check(self, files: Iterable[DataFile]) -> None:
        """UnsupportedError if one of these must not be opened; for other readers."""
        for file in files:
            self._check_local(file, self._root(file)[0])

    def _place(self, file: DataFile) -> tuple[Any, str, bool]:
        """The file system of the file, its name there, and whether it is on the local disk."""
        root, name = self._root(file)
        self._check_local(file, root)
        if root not in self._stores:
            self._stores[root] = self._store(root)
        is_local = local_path(root) is not None
        return self._stores[root], file.uri if is_local else name, is_local

    def _root(self, file: DataFile) -> tuple[str, str]:
        """The root that the file lies below, and its path from there."""
        for root in self._snapshot.roots:
            name = below_root(root, file.uri)
            if name is not None:
                return root, name
        raise outside_table(self._snapshot.table, file.uri)

    def _store(self, root: str) -> Any:
        if local_path(root) is not None:
            import pyarrow.fs as pa_fs

            return pa_fs.LocalFileSystem()
        names = ((below_root(root, file.uri), file.size) for file in self._known)
        sizes = {name: size for name, size in names if name and size}
        return object_store(root, self._snapshot.storage_options, sizes)

    def _check_local(self, file: DataFile, root: str) -> None:
        if local_path(root) is None:
            return
        try:
            mode = os.lstat(file.uri).st_mode
        except OSError:
            return  # Its reader reports the error.
        folder = os.path.dirname(file.uri)
        if folder not in self._folders:
            self._folders[folder] = _is_inside(folder, root)
        is_inside = self._folders[folder]
        if stat.S_ISLNK(mode):
            is_inside = is_inside and _is_inside(file.uri, root)
            mode = os.stat(file.uri).st_mode if os.path.exists(file.uri) else stat.S_IFREG
        if not is_inside:
            raise outside_table(self._snapshot.table, file.uri)
        if not stat.S_ISREG(mode):
            raise UnsupportedError(
                f"A data file of table `{self._snapshot.table}` is not a regular file: {file.uri}",
                hint="the table's log lists it; check who writes to the table",
                code="data_file_irregular",
            )


def _is_inside(path: str, root: str) -> bool:
    """Whether a local path lies below the root, or is it, once links are followed."""
    real, top = os.path.realpath(path), os.path.realpath(root)
    return real == top or real.startswith(os.path.join(top, ""))


def read_failure(snapshot: Snapshot, file: DataFile, error: Exception) -> ImpctlError:
    """The error for a data file that could not be read."""
    if is_missing(error):
        return HistoryGoneError(
            f"Version {snapshot.version} of table `{snapshot.table}` can no longer be read:"
            f" data file {file.uri} is gone",
            hint="run `impctl capture`; to keep files longer, raise "
            "`delta.deletedFileRetentionDuration` before the next VACUUM",
        )
    return StorageError(
        f"Reading a data file of table `{snapshot.table}` failed: {failure_text(error)}",
        hint=f"check that the file can be read: {file.uri}",
    )


# Snapshots for readers that know no Delta. Law: a reason is given if such a reader would get
# anything wrong: rows that are deleted but still in files, and columns that files lack or name
# differently.


def why_not_plain(snapshot: Snapshot, *, reads_folders: bool = False) -> str:
    """Why its rows are not those of its files; empty if they are. A reader that `reads_folders`
    takes the values of partition columns from their names (`day=2026-01-31`)."""
    if snapshot.column_mapping is not None:
        return "it uses column mapping"
    # Delta does not require that the path of a file names its partition.
    folders = [f"/{column}=" for column in snapshot.partition_columns]
    is_in_folders = all(name in file.uri for file in snapshot.files for name in folders)
    if folders and not (reads_folders and is_in_folders):
        return "it has partition columns"
    if any(file.deleted is not None for file in snapshot.files):
        return "it has deletion vectors"
    return ""


def spellings(present: Iterable[str]) -> dict[str, list[str]]:
    """The names a file has, by their form in lower case."""
    result: dict[str, list[str]] = {}
    for name in present:
        result.setdefault(name.lower(), []).append(name)
    return result


# Columns that deltalake misreads, and so copies incorrectly, while Spark and `tables.rows` read
# them correctly. Law: these are INT96, wrong outside 1677 to 2262; the hybrid calendar, whose mark
# is lost in the copy; and names in other letters, which deltalake reads as NULL. Cost: one small
# read per file.


class Miscopied(Struct, frozen=True):
    """The columns that deltalake would copy wrongly, by reason."""

    as_int96: frozenset[ColumnName] = frozenset()
    respelled: frozenset[ColumnName] = frozenset()
    in_old_calendar: frozenset[ColumnName] = frozenset()

    @property
    def columns(self) -> frozenset[ColumnName]:
        return self.as_int96 | self.respelled | self.in_old_calendar

    def __or__(self, other: Miscopied) -> Miscopied:
        return Miscopied(*map(or_, astuple(self), astuple(other)))


def miscopied_columns(snapshot: Snapshot, files: Sequence[DataFile] | None = None) -> Miscopied:
    """The columns that deltalake would copy wrongly from these files (default: all). Raises
    HistoryGoneError for a missing file."""
    chosen, expected = snapshot.files if files is None else files, ExpectedNames.of(snapshot)
    opened, result = DataFiles(snapshot, chosen), Miscopied()
    for file in chosen:
        try:
            footer = opened.footer(file)
        except READ_FAILURES as error:
            raise read_failure(snapshot, file, error) from error
        result |= expected.miscopied(footer)
    return result


class ExpectedNames(Struct, frozen=True):
    """The names that a table's data files should use."""

    columns: Mapping[str, ColumnName]
    """The table's column by its physical name in lower case."""
    exact: frozenset[str]
    """The physical names."""
    fields: Mapping[ColumnName, Mapping[str, frozenset[str]]]
    """The spelling of the fields nested in a column, by their names in lower case."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> ExpectedNames:
        physical = snapshot.columns.physical
        fields: dict[ColumnName, dict[str, frozenset[str]]] = {}
        for column in json.loads(snapshot.schema_json)["fields"]:
            spelled = fields.setdefault(column["name"], {})
            for name in _field_names(column["type"]):
                key = name.lower()
                spelled[key] = spelled.get(key, frozenset()) | {name}
        columns = {stored.lower(): column for column, stored in physical.items()}
        return cls(columns, frozenset(physical.values()), fields)

    def miscopied(self, file: pq.FileMetaData) -> Miscopied:
        """The columns that deltalake would copy wrongly from this file; it may have others."""
        leaves = [file.schema.column(index) for index in range(len(file.schema))]
        old = hybrid_columns(file, [leaf.path for leaf in leaves])
        as_int96: set[ColumnName] = set()
        respelled: set[ColumnName] = set()
        in_old_calendar: set[ColumnName] = set()
        for index, leaf in enumerate(leaves):
            match = self._column(leaf.path)
            if match is None:
                continue
            column, is_exact = match
            if leaf.physical_type == "INT96":
                as_int96.add(column)
            if not is_exact:
                respelled.add(column)
            if leaf.path in old and not is_surely_modern(file, index):
                in_old_calendar.add(column)
        return Miscopied(*map(frozenset, (as_int96, respelled, in_old_calendar)))

    def _column(self, path: str) -> tuple[ColumnName, bool] | None:
        """The table's column of a leaf, and whether all names on the path are spelled alike. A name
        with a dot looks nested. The levels that Parquet adds for lists and maps are no field
        names."""
        parts = path.split(".")
        tops = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        top = next((top for top in tops if top.lower() in self.columns), None)
        if top is None:
            return None
        column = self.columns[top.lower()]
        fields = self.fields.get(column, {})
        below = path[len(top) + 1 :].split(".")
        is_exact = all(name in fields.get(name.lower(), (name,)) for name in below)
        return column, is_exact and top in self.exact


def _field_names(kind: Any) -> Iterator[str]:
    """The names of all fields in a type of Delta's schema, nested and physical ones included."""
    if not isinstance(kind, dict):
        return
    for field in kind.get("fields", ()):
        yield field["name"]
        yield field["metadata"].get(PHYSICAL_NAME, field["name"])
        yield from _field_names(field["type"])
    for part in ("elementType", "keyType", "valueType"):
        yield from _field_names(kind.get(part))


# Columns by which Parquet's filters may lose rows. Law: in these files, a column that is not named
# has no value that its minimum and maximum hide from a comparison. FLOAT and DOUBLE may have three
# such values: NaN, which Spark orders above all numbers and most writers omit from statistics;
# zero, whose signs are equal in Spark but two entries of a dictionary; and both in a Bloom filter.
# Files from before a change of the column's type are not judged.

MAX_FOOTERS = 64
_READERS = 8
_COUNTS_NAN = re.compile(r"parquet-mr version (\d+)\.(\d+)")
_FIRST_COUNTING = (1, 10)
"""Since then NaN makes parquet-mr's statistics void; no other writer is known to report NaN."""
_PHYSICAL = {Kind.FLOAT: "FLOAT", Kind.DOUBLE: "DOUBLE"}


def hiding_columns(
    snapshot: Snapshot,
    columns: Iterable[ColumnName] | None = None,
    files: Sequence[DataFile] | None = None,
) -> frozenset[ColumnName]:
    """Those of `columns` by which a Parquet filter may lose rows in `files`. Both default to all. A
    file that cannot be read makes every column suspect; its reader reports it."""
    names = snapshot.schema.names if columns is None else columns
    partitions = set(snapshot.partition_columns)
    suspects = [
        column
        for column in map(snapshot.column, dict.fromkeys(names))
        if column.type.is_fractional and column.name not in partitions
    ]
    chosen = snapshot.files if files is None else tuple(files)
    every = frozenset(column.name for column in suspects)
    if not suspects or len(chosen) > MAX_FOOTERS:
        return every
    with ThreadPoolExecutor(_READERS) as readers:
        footers = list(readers.map(DataFiles(snapshot, chosen).try_footer, chosen))
    if None in footers:
        return every
    physical = snapshot.columns.physical
    return frozenset(
        column.name
        for column in suspects
        if any(_hides(footer, column, physical[column.name]) for footer in footers)
    )


def _hides(footer: pq.FileMetaData, column: Column, physical: str) -> bool:
    """Whether a filter on the column may skip a row of the file that it should keep."""
    leaves = [footer.schema.column(index) for index in range(len(footer.schema))]
    places = [index for index, leaf in enumerate(leaves) if leaf.path.lower() == physical.lower()]
    writer = _COUNTS_NAN.match(footer.created_by or "")
    counts_nan = writer is not None and (int(writer[1]), int(writer[2])) >= _FIRST_COUNTING
    return any(
        leaves[index].physical_type != _PHYSICAL[column.type.kind]
        or any(
            _chunk_hides(footer.row_group(group).column(index), counts_nan=counts_nan)
            for group in range(footer.num_row_groups)
        )
        for index in places
    )


def _chunk_hides(chunk: pq.ColumnChunkMetaData, *, counts_nan: bool) -> bool:
    stated = chunk.statistics
    if stated is not None and stated.has_null_count and stated.null_count == chunk.num_values:
        return False
    if not counts_nan:
        return True
    # Old releases of Arrow do not report Bloom filters: assume that there is one.
    if getattr(chunk, "bloom_filter_offset", 0) is not None:
        return True
    if not any("DICTIONARY" in encoding for encoding in chunk.encodings):
        return False
    if stated is None or not stated.has_min_max:
        return True
    return not (stated.min > 0 or stated.max < 0)
