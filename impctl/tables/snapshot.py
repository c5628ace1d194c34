"""A table at one version: its files, their deletion vectors and the bounds of their columns.

Law: a snapshot never changes; everything is read from the log of that version, nothing from the
names of directories. An empty partition value is NULL, as the Delta protocol says.

Law: every value of a file that is neither NULL nor NaN lies between its `lows` and `highs` where
`has_low` and `has_high` are set; other slots hold arbitrary values that must not be read. The
`ValueBounds` of one file cost an object: code over all files uses the arrays.

Law: a vector lies below one of the table's folders, and no position in it is 2^32 or more.
deltalake makes a mask as long as the greatest position, and ends the process if memory does not
suffice. It would fetch a vector from wherever the log places it.
Cost: the log's entries after its last checkpoint, two columns of that, 20 bytes of each vector."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import astuple, replace

from impctl.data.schema import Column, Kind, Schema, SqlType, from_delta, other, quoted
from impctl.data.vector import Ints
from impctl.errors import (
    ImpctlError,
    SchemaChangedError,
    StorageError,
    TableError,
    UnsupportedError,
)
from impctl.tables.storage import (
    READ_FAILURES,
    below_root,
    check_column_mapping,
    check_reader_features,
    failure_text,
    feature_named_in,
    file_uri,
    first_outside,
    is_unsure,
    list_names,
    local_path,
    object_store,
    read_range,
    read_text,
    unknown_feature,
)
from impctl.types import Secrets

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from impctl.sketch.sketch import BoundaryValue
    from impctl.types import ColumnName, TableName, TableVersion


Flags = npt.NDArray[np.bool_]
Values = npt.NDArray[Any]
"""Canonical values: int64, float64 or bool; objects for texts and integers beyond 64 bits."""

UNKNOWN = -1
"""A count that the log does not state."""
_EXACT: dict[type, type[np.generic]] = {bool: np.bool_, int: np.int64, float: np.float64}


class ValueBounds(Struct, frozen=True):
    """What a file, or a part or several of them, may hold in one column. The values are bounds, not
    necessarily reached."""

    minimum: BoundaryValue | None
    maximum: BoundaryValue | None
    null_count: int | None
    """Never less than the true number, because rows deleted by a vector count; None if unknown."""
    rows: int | None
    may_be_nan: bool = False

    @property
    def may_hold_null(self) -> bool:
        return self.null_count is None or self.null_count > 0

    @property
    def is_all_null(self) -> bool:
        return (
            self.rows is not None and self.null_count is not None and self.null_count >= self.rows
        )


# Without slots: derived values are cached beside the arrays.
class ColumnBounds(Struct, frozen=True, eq=False, dict=True):
    """The bounds of one column in each file; all arrays of shape (files,)."""

    lows: Values
    has_low: Flags
    highs: Values
    has_high: Flags
    null_counts: Ints
    """`UNKNOWN` if the log does not say."""
    rows: Ints
    """`UNKNOWN` likewise."""
    may_be_nan: Flags

    @cached_property
    def may_hold_null(self) -> Flags:
        return np.asarray(self.null_counts != 0)

    @cached_property
    def is_all_null(self) -> Flags:
        is_counted = (self.rows >= 0) & (self.null_counts >= 0)
        return np.asarray(is_counted & (self.null_counts >= self.rows))

    @cached_property
    def filled(self) -> ColumnBounds:
        """The bounds of files that hold more than NULL."""
        return self.keep(~self.is_all_null)

    @property
    def is_known(self) -> bool:
        """Whether both ends of every file are known."""
        return bool(self.has_low.all() and self.has_high.all())

    @property
    def minima(self) -> list[BoundaryValue | None]:
        """The least value of each file."""
        return _known(self.lows, self.has_low)

    @property
    def maxima(self) -> list[BoundaryValue | None]:
        """The greatest value of each file."""
        return _known(self.highs, self.has_high)

    def keep(self, mask: Flags) -> ColumnBounds:
        """The bounds of the files where `mask` is set."""
        return self.take(np.flatnonzero(mask))

    def take(self, positions: Ints) -> ColumnBounds:
        """The bounds of the files at these positions, in that order."""
        return ColumnBounds(*(values[positions] for values in astuple(self)))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[ValueBounds]:
        nulls = _known(self.null_counts, self.null_counts >= 0)
        rows = _known(self.rows, self.rows >= 0)
        may_be_nan = self.may_be_nan.tolist()
        return map(ValueBounds, self.minima, self.maxima, nulls, rows, may_be_nan)


def _known(values: Values, is_known: Flags) -> list[Any]:
    return [
        value if ok else None for value, ok in zip(values.tolist(), is_known.tolist(), strict=True)
    ]


def as_array(values: Sequence[BoundaryValue]) -> Values:
    """Values of one column as an array that holds them exactly."""
    dtype = _EXACT.get(type(values[0])) if values else None
    if dtype is not None:
        # Integers beyond 64 bits result in another type than int64.
        result = np.array(values)
        if result.dtype == dtype:
            return result
    return as_objects(values)


def as_objects(values: Sequence[Any]) -> Values:
    """Values unchanged, in an array of objects."""
    result = np.empty(len(values), dtype=np.object_)
    result[:] = values
    return result


def places_in(
    ordered: Sequence[BoundaryValue], values: Values, side: Literal["left", "right"]
) -> Ints:
    """The insertion index of each value in an ascending array: `bisect_left` or `bisect_right`."""
    keys = as_array(ordered)
    if keys.dtype != values.dtype:
        keys, values = keys.astype(np.object_), values.astype(np.object_)
    return np.searchsorted(keys, values, side=side).astype(np.int64, copy=False)


_LOG = "_delta_log"
_ENTRY = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.[0-9a-fA-F-]{36})?\.(?:parquet|json)"
)
"""One file, one of several parts, or the top of one with side files (V2, named by a UUID)."""
_SIDE_FILES = f"{_LOG}/_sidecars"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
"""Digits of Z85: five for four bytes."""
_UUID_LENGTH = 20
_MARK = 1_681_511_377
_HEAD = struct.Struct("<IqI")
"""The start of a vector's bitmaps: magic number, count, and upper half of the first positions."""


def vector_files(
    path: str, version: TableVersion, options: Mapping[str, str] | None
) -> Iterator[Mapping[str, Any]]:
    """The deletion vectors of a version, as its log describes them."""
    names = list_names(path, options, _LOG)
    start, parts = _last_checkpoint(names, version)
    result: dict[str, Any] = {}
    for name in parts:
        result.update(_of_checkpoint(path, options, f"{_LOG}/{name}"))
    entries = (match for match in map(_ENTRY.fullmatch, sorted(names)) if match is not None)
    for entry in entries:
        if start < int(entry[1]) <= version:
            result.update(_of_entry(read_text(path, options, f"{_LOG}/{entry[0]}")))
    return (vector for vector in result.values() if vector is not None)


def check_vectors(
    table: TableName,
    roots: Sequence[str],
    vectors: Iterable[Mapping[str, Any]],
    options: Mapping[str, str] | None,
) -> None:
    """TableError if deltalake must not open one of these; `roots` as in `Snapshot`."""
    for vector in vectors:
        kind, where = vector.get("storageType"), str(vector.get("pathOrInlineDv"))
        if kind == "i":
            head = _bytes(where[: _HEAD.size // 4 * 5])
        else:
            places = ((root, below_root(root, file_uri(root, where))) for root in roots)
            inside = [(root, name) for root, name in places if name is not None]
            if kind != "p":
                inside = [(roots[0], _name(where))]
            if not inside:
                raise TableError(
                    f"The log of table `{table}` lists a deletion vector outside the table's "
                    f"folder: {where}",
                    hint="check who writes to the table; purge its deletion vectors with Spark"
                    " (`REORG TABLE ... APPLY (PURGE)`)",
                    code="file_outside_table",
                )
            # Before the bitmaps of a file lies their length.
            start = int(vector.get("offset") or 0) + 4
            head = read_range(inside[0][0], options, inside[0][1], start, _HEAD.size)
        if len(head) < _HEAD.size:
            continue  # no vector with a position, or none at all, which deltalake says
        mark, count, upper = _HEAD.unpack(head[: _HEAD.size])
        if mark == _MARK and (count > 1 or (count == 1 and upper)):
            raise unmatched_vector(table)


def unmatched_vector(table: TableName) -> TableError:
    return TableError(
        f"A deletion vector of table `{table}` deletes rows that are not in its file",
        hint="the table is damaged: restore an earlier version (RESTORE in Spark)",
        code="deletion_vectors_unmatched",
    )


def _last_checkpoint(names: Sequence[str], version: TableVersion) -> tuple[TableVersion, list[str]]:
    """The version of the newest complete checkpoint up to this version, and its files."""
    result: dict[tuple[int, int], list[str]] = {}
    for match in filter(None, map(_CHECKPOINT.fullmatch, names)):
        if int(match[1]) <= version:
            result.setdefault((int(match[1]), int(match[2] or 1)), []).append(match[0])
    # Several checkpoints of one version, each in one file, are equal.
    complete = {key: files[: key[1]] for key, files in result.items() if len(files) >= key[1]}
    return (max(complete)[0], complete[max(complete)]) if complete else (-1, [])


def _of_checkpoint(
    path: str, options: Mapping[str, str] | None, name: str
) -> Iterator[tuple[str, Any]]:
    """The vectors in a file of a checkpoint, by the path of their data file."""
    if name.endswith(".json"):
        text = read_text(path, options, name)
        yield from _of_entry(text)
        side_files = [action["sidecar"]["path"] for action in _actions(text, "sidecar")]
    else:
        columns = ("add.path", "add.deletionVector", "sidecar.path")
        actions = read_checkpoint(path, options, name, columns)
        side_files = [action["path"] for action in actions["sidecar"] if action.get("path")]
        for add in actions["add"]:
            vector = add.get("deletionVector")
            if add.get("path") and vector is not None and vector.get("storageType"):
                yield add["path"], vector
    for side_file in side_files:
        if "/" in side_file:
            raise TableError(
                f"A checkpoint of the table at {path} refers to a sidecar file outside its folder: "
                f"{side_file}",
                hint="check who writes to the table; a new checkpoint refers to new sidecar files",
                code="file_outside_table",
            )
        yield from _of_checkpoint(path, options, f"{_SIDE_FILES}/{side_file}")


def read_checkpoint(
    path: str, options: Mapping[str, str] | None, name: str, columns: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """The actions in a Parquet checkpoint by their kinds, with some columns, such as `add.path`."""
    import pyarrow.parquet as pq

    folder = local_path(path)
    store = object_store(path, options) if folder is None else None
    location = name if folder is None else os.path.join(folder, name)
    kinds = {column: column.partition(".")[0] for column in columns}
    with pq.ParquetFile(location, filesystem=store) as file:
        present = set(file.schema_arrow.names)
        table = file.read(columns=[name for name, kind in kinds.items() if kind in present])
    return {
        kind: table.column(kind).drop_null().to_pylist() if kind in present else []
        for kind in kinds.values()
    }


def _of_entry(text: str) -> Iterator[tuple[str, Any]]:
    """The vectors that an entry adds; None for a file that it removes. The order of its actions
    says nothing: a file with a new vector may come before its removal."""
    actions = list(_actions(text, "remove", "add"))
    for kind in ("remove", "add"):
        for body in (action[kind] for action in actions if isinstance(action.get(kind), dict)):
            vector = body.get("deletionVector") if kind == "add" else None
            yield str(body.get("path")), vector if isinstance(vector, dict) else None


def _actions(text: str, *kinds: str) -> Iterator[Mapping[str, Any]]:
    for line in text.split("\n"):
        if any(f'"{kind}"' in line for kind in kinds):
            action = json.loads(line)
            if isinstance(action, dict) and any(kind in action for kind in kinds):
                yield action


def _bytes(digits: str) -> bytes:
    """Decode Z85."""
    result = b""
    for start in range(0, len(digits) - 4, 5):
        value = 0
        for digit in digits[start : start + 5]:
            value = value * 85 + _DIGITS.index(digit)
        result += value.to_bytes(4, "big")
    return result


def _name(where: str) -> str:
    """The path below the table's root of a file that is named by a prefix and an identifier."""
    prefix, identifier = where[:-_UUID_LENGTH], uuid.UUID(bytes=_bytes(where[-_UUID_LENGTH:]))
    return f"{prefix}/deletion_vector_{identifier}.bin".lstrip("/")


Positions = npt.NDArray[np.int64]

_ROW_BYTES = 32
"""Size of a row of a few columns in Parquet, if no file of the table gives its own."""

_ZONE = re.compile(r"(Z|[-+]\d\d:?\d\d)$")
"""A time zone at the end of a time; the end of a date has one hyphen more."""

CHANGE_FEED = "delta.enableChangeDataFeed"
_CONSTRAINT = "delta.constraints."


class DataFile(Struct, frozen=True):
    """One data file of a snapshot."""

    uri: str
    """Local path, or URI, percent-decoded."""
    size: int
    rows: int | None
    """Rows in the file, including deleted ones; None if the log does not say."""
    partition_values: Mapping[ColumnName, str | None]
    """Text per partition column (logical name) that casts to the value; None is NULL."""
    deleted: Positions | None = None
    """Positions that the deletion vector removes, ascending; None without one."""


def bytes_of(files: Iterable[DataFile]) -> int:
    return sum(file.size for file in files)


class Snapshot(Struct, frozen=True, eq=False, dict=True):
    """A table at one version."""

    table: TableName
    path: str
    """Absolute path of the table's folder, or its URI if it is not on the local disk."""
    version: TableVersion
    table_id: str
    schema_json: str
    columns: TableSchema
    partition_columns: tuple[ColumnName, ...]
    configuration: Mapping[str, str]
    reader_features: frozenset[str]
    writer_features: frozenset[str]
    storage_options: Secrets | None
    clone_of: tuple[str, ...]
    """Folders of other tables whose files this shallow clone may name."""
    actions: pa.Table
    """deltalake's add actions, one row a file, statistics as nested columns."""
    uris: tuple[str, ...]
    """The files' paths, in the order of `actions`."""
    deletions: Mapping[str, Positions]

    @cached_property
    def bounds(self) -> dict[ColumnName, ColumnBounds]:
        """A cache of `tables.statistics`, by column."""
        return {}

    @property
    def roots(self) -> tuple[str, ...]:
        """The folders that files may lie below, the table's own first."""
        return (self.path, *self.clone_of)

    @property
    def schema(self) -> Schema:
        return self.columns.schema

    @property
    def not_null(self) -> frozenset[ColumnName]:
        """Columns declared NOT NULL: no writer may insert NULL, older files may lack them."""
        return self.columns.not_null

    @property
    def constraints(self) -> tuple[str, ...]:
        """SQL conditions that rows should satisfy: CHECK constraints and column invariants. Whether
        they do depends on the table's past protocols and on its writers."""
        checks = (
            text for key, text in sorted(self.configuration.items()) if key.startswith(_CONSTRAINT)
        )
        return (*checks, *self.columns.invariants)

    @property
    def column_mapping(self) -> Mapping[ColumnName, str] | None:
        """Physical name per column, or None if the table does not map names."""
        mode = self.configuration.get("delta.columnMapping.mode", "none").lower()
        return None if mode == "none" else self.columns.physical

    @property
    def has_change_feed(self) -> bool:
        """Whether commits of this version's configuration write a change feed."""
        return self.configuration.get(CHANGE_FEED, "false").lower() == "true"

    @cached_property
    def files(self) -> tuple[DataFile, ...]:
        """The data files, in the log's order."""
        rows = self.actions.column("num_records").to_pylist()
        sizes = self.actions.column("size_bytes").to_pylist()
        partitions = _partition_texts(self.actions, self.partition_columns)
        deletions = self.deletions
        # One mapping for all files: an object per file would take most of the time.
        nothing: Mapping[ColumnName, str | None] = {}
        values: Sequence[Mapping[ColumnName, str | None]] = partitions or [nothing] * len(rows)
        return tuple(
            DataFile(uri, sizes[index], rows[index], values[index], deletions.get(uri))
            for index, uri in enumerate(self.uris)
        )

    def files_at(self, places: Flags | Positions) -> tuple[DataFile, ...]:
        """The data files at these positions, or selected by a mask over the files."""
        indexes = np.flatnonzero(places) if places.dtype == np.bool_ else places
        return tuple(self.files[index] for index in indexes.tolist())

    @cached_property
    def rows(self) -> int | None:
        """Rows of the snapshot, or None if the log does not say."""
        counts = self.actions.column("num_records")
        if counts.null_count:
            return None
        total = int(np.sum(counts.to_numpy())) if len(counts) else 0
        return total - sum(len(positions) for positions in self.deletions.values())

    @cached_property
    def mark(self) -> FilesMark:
        """The mark of its files, which must have been read completely."""
        deleted = np.zeros(len(self.uris), np.int64)
        if self.deletions:
            deleted[:] = [len(self.deletions.get(uri, ())) for uri in self.uris]
        sizes = self.actions.column("size_bytes").to_numpy()
        total = sum_of_files(self.path, self.uris, sizes, deleted)
        return FilesMark(total.tobytes().hex(), self.rows)

    @cached_property
    def likely_rows(self) -> int:
        """Rows, or an estimate by bytes if the log does not say: then never 0."""
        if self.rows is not None:
            return self.rows
        counted = [file for file in self.files if file.rows is not None]
        rows, size = sum(file.rows or 0 for file in counted), sum(file.size for file in counted)
        row_bytes = size / rows if rows and size else _ROW_BYTES
        return rows + math.ceil((self.bytes - size) / row_bytes)

    @cached_property
    def bytes(self) -> int:
        sizes = self.actions.column("size_bytes")
        return int(np.sum(sizes.to_numpy())) if len(sizes) else 0

    def column(self, name: ColumnName) -> Column:
        """The column, matched case-insensitively; SchemaChangedError without it."""
        result = self.schema.find(name)
        if result is None:
            raise SchemaChangedError(
                f"Table `{self.table}` has no column `{name}` at version {self.version}",
                hint="correct the query, then run `impctl capture`",
            )
        return result

    def readable(self, name: ColumnName) -> Column:
        """The column, if it can be read without the Delta JAR; TableError otherwise."""
        result = self.column(name)
        reason = self.columns.opaque.get(result.name)
        if reason is not None:
            raise TableError(
                f"Column `{result.name}` of table `{self.table}` cannot be read: {reason}",
                hint="remove the column from the query, or use the Delta JAR",
                code="column_unreadable",
            )
        return result


# A mark of a table's files, by which its history is recognized after its log was cleaned up. Law:
# equal marks mean the same files (path, size, number of deleted rows) in any order. The mark of a
# version plus the files that commits add minus those they remove is the mark of the later version.
# Like a checksum, it detects accidents, not forgery. Cost: one columnar pass over the add actions.

Words = npt.NDArray[np.uint64]

_LANES = 2
"""Sums of 64 bits each: 20,000 files in a million tables do not collide by chance."""
_PIECE = 4096
"""Files hashed at once, which bounds the memory for long names."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class FilesMark(Struct, frozen=True, forbid_unknown_fields=True):
    """A digest of a table's files at one version; `rows` by statistics, None if one is missing."""

    digest: str
    rows: int | None


def sum_of_files(path: str, uris: Sequence[str], sizes: Ints, deleted: Ints) -> Words:
    """The sum of these files of the table at `path`, as it is in a mark."""
    # Names relative to the root where possible: these survive moving the table.
    root = path.rstrip("/") + "/"
    names = [uri.removeprefix(root).encode() for uri in uris]
    total = np.zeros(_LANES, np.uint64)
    for start in range(0, len(names), _PIECE):
        piece = slice(start, start + _PIECE)
        words = _words(names[piece], sizes[piece], deleted[piece])
        # An odd factor per word and lane, independent of the number of words.
        lanes = np.arange(words.shape[1] * _LANES, dtype=np.uint64).reshape(-1, _LANES)
        factors = _mixed(lanes) | np.uint64(1)
        # A sum over files distinguishes sets only if the summands are not linear.
        total += _mixed(words @ factors).sum(axis=0, dtype=np.uint64)
    return total


def _words(names: list[bytes], sizes: Ints, deleted: Ints) -> Words:
    """A row of words per file: size, deleted rows, the bytes of its name."""
    # NumPy fills up with zeros, which no name ends with.
    wide = -(-max(map(len, names)) // 8)
    content = np.array(names, f"S{wide * 8}").view(np.uint64).reshape(len(names), wide)
    numbers = np.stack([sizes, deleted], axis=1).astype(np.uint64)
    return np.concatenate([numbers, content], axis=1)


def _mixed(words: Words) -> Words:
    """Mix the bits of each word (the finalizer of splitmix64)."""
    words = words + _GOLDEN
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def rows_in(snapshot: Snapshot, files: Sequence[DataFile]) -> int | None:
    """Rows of some of a snapshot's files, or None if the log does not say."""
    if len(files) == len(snapshot.files):
        return snapshot.rows
    counts = [file.rows for file in files if file.rows is not None]
    deleted = sum(len(file.deleted) for file in files if file.deleted is not None)
    return sum(counts) - deleted if len(counts) == len(files) else None


def take_snapshot(
    delta: DeltaTable,
    table: TableName,
    storage_options: Mapping[str, str] | None,
    clone_of: tuple[str, ...] = (),
) -> Snapshot:
    """The snapshot of the version that `delta` is at; TableError for what cannot be read."""
    metadata = delta.metadata()
    protocol = delta.protocol()
    configuration = dict(metadata.configuration)
    reader_features = frozenset(protocol.reader_features or ())
    check_reader_features(table, reader_features)
    is_mapped = check_column_mapping(
        table, configuration, protocol.min_reader_version, reader_features
    )
    schema_json = delta.schema().to_json()
    columns = read_schema(schema_json, is_mapped=is_mapped)
    partition_columns = tuple(metadata.partition_columns)
    local = local_path(delta.table_uri)
    path = (delta.table_uri if local is None else local).rstrip("/")
    try:
        actions = pa.table(delta.get_add_actions(flatten=False))
        uris = tuple(file_uri(path, logged) for logged in actions.column("path").to_pylist())
        if (outside := first_outside((path, *clone_of), uris)) is not None:
            raise outside_table(table, outside)
        has_vectors = "deletionVectors" in reader_features
        columns = _readable_partitions(columns, partition_columns, delta)
        if has_vectors:
            vectors = vector_files(path, delta.version(), storage_options)
            check_vectors(table, (path, *clone_of), vectors, storage_options)
        deletions = _deletions(pa.table(delta.deletion_vectors()), uris) if has_vectors else {}
    except READ_FAILURES as error:
        raise _log_failure(table, path, error) from error
    if deletions is None:
        raise TableError(
            f"Deletion vectors of table `{table}` refer to files that its log does not list",
            hint="read the table with the Delta JAR",
            code="deletion_vectors_unmatched",
        )
    return Snapshot(
        table=table,
        path=path,
        version=delta.version(),
        table_id=str(metadata.id),
        schema_json=schema_json,
        columns=columns,
        partition_columns=partition_columns,
        configuration=configuration,
        reader_features=reader_features,
        writer_features=frozenset(protocol.writer_features or ()),
        storage_options=None if storage_options is None else Secrets(storage_options),
        clone_of=clone_of,
        actions=actions,
        uris=uris,
        deletions=deletions,
    )


def outside_table(table: TableName, uri: str) -> UnsupportedError:
    """The error for a file that the log names outside the table's folder."""
    return UnsupportedError(
        f"The log of table `{table}` lists a file outside the table's folder: {uri}",
        hint="if the table is a shallow clone, add the cloned table's folder under "
        f"`tables.{table}.clone_of`; otherwise do not read the table",
        code="file_outside_table",
    )


def _log_failure(table: TableName, path: str, error: Exception) -> ImpctlError:
    text = failure_text(error)
    # deltalake reads vectors with a separate module, which supports fewer features.
    feature = feature_named_in(text)
    if feature is not None:
        return unknown_feature(table, feature)
    return StorageError(
        f"Reading the log of table `{table}` failed: {text}",
        hint=f"check that `{path}` can be read, then run the command again",
    )


def _readable_partitions(
    columns: TableSchema, partitions: tuple[ColumnName, ...], delta: DeltaTable
) -> TableSchema:
    """Partition values must be texts that every reader interprets alike."""
    kinds = {column.name: column.type.kind for column in columns.schema}
    refused = {
        name: "it is a binary partition column" for name in partitions if kinds[name] is Kind.BINARY
    }
    moments = [name for name in partitions if kinds[name] is Kind.TIMESTAMP]
    if moments:
        texts = delta.partitions()
        for name in moments:
            # NULL and the empty text have no time; others need `Z` or an offset at the end.
            if any(text[name] and not _ZONE.search(text[name]) for text in texts):
                refused[name] = (
                    "it is a partition column whose times have no time zone, so each Spark "
                    "session reads them in its session time zone"
                )
    return replace(columns, opaque={**columns.opaque, **refused}) if refused else columns


def _deletions(vectors: pa.Table, uris: tuple[str, ...]) -> dict[str, Positions] | None:
    """Deleted positions per file; None if a vector belongs to no file of the snapshot."""
    known = set(uris)
    result: dict[str, Positions] = {}
    # Bounded by the number of files that have a deletion vector.
    for name, kept in zip(vectors.column(0).to_pylist(), vectors.column(1), strict=True):
        # deltalake names the files by URL, which the log may spell decoded or not.
        path = urlsplit(name).path if name.startswith("file:") else name
        uri = next((form for form in (unquote(path), path) if form in known), None)
        if uri is None:
            return None
        mask = kept.values.to_numpy(zero_copy_only=False)
        result[uri] = np.flatnonzero(~mask)
    return result


def logged_file(path: str, logged: str, size: object = None) -> DataFile:
    """A file by its name in the log, for readers that need only its location; size 0 if unknown."""
    return DataFile(file_uri(path, logged), size if isinstance(size, int) else 0, None, {})


def _partition_texts(
    actions: pa.Table, columns: tuple[ColumnName, ...]
) -> list[dict[ColumnName, str | None]]:
    if not columns:
        return []
    texts: list[list[Any]] = []
    for name in columns:
        values = partition_array(actions, name)
        if pa.types.is_binary(values.type):
            texts.append([None] * len(values))
            continue
        texts.append(values.cast(pa.large_string()).to_pylist())
        _check_partition(name, texts[-1], actions)
    return [dict(zip(columns, row, strict=True)) for row in zip(*texts, strict=True)]


def _check_partition(name: ColumnName, texts: list[str | None], actions: pa.Table) -> None:
    """TableError for an ambiguous value; a folder that says the same confirms it."""
    for text, path in zip(texts, actions.column("path").to_pylist(), strict=True):
        if text is not None and is_unsure(text) and text not in unquote(unquote(path)):
            raise TableError(
                f"The value {text!r} of partition column `{name}` may differ from the one in the "
                "log: characters beyond U+FFFF are misread if they are written as escapes",
                hint="do not use such characters in partition values",
                code="partition_value_unsure",
            )


def partition_array(actions: pa.Table, name: ColumnName) -> pa.Array:
    """The typed values of a partition column, one per file; an empty string is NULL."""
    column = actions.column("partition").combine_chunks()
    values = column.field(column.type.get_field_index(name))
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return null_when_empty(values)
    return values


def null_when_empty(values: Any) -> Any:
    """A string column with NULL for the empty string, as the protocol reads partition values."""
    import pyarrow.compute as pc

    return pc.if_else(pc.equal(values, ""), pa.scalar(None, values.type), values)


# The Arrow type of each SQL type in this package. Law: readers differ (string views, milliseconds,
# dictionary codes), but every column that leaves this package has this type. A cast that would lose
# anything raises.

_SIMPLE = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.BYTE: pa.int8(),
    Kind.SHORT: pa.int16(),
    Kind.INTEGER: pa.int32(),
    Kind.LONG: pa.int64(),
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.STRING: pa.large_string(),
    Kind.BINARY: pa.large_binary(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    Kind.TIMESTAMP_NTZ: pa.timestamp("us"),
}


def arrow_type(kind: SqlType) -> pa.DataType:
    """The Arrow type for a SQL type; TableError if impctl never reads values of it."""
    if kind.kind is Kind.DECIMAL:
        return pa.decimal128(kind.precision, kind.scale)
    result = _SIMPLE.get(kind.kind)
    if result is None:
        raise TableError(
            f"impctl itself cannot read a column of type `{kind}`",
            hint="remove the column from the query, or use it only in parts that Spark evaluates",
            code="column_type_unsupported",
        )
    return result


def to_arrow_type(column: pa.ChunkedArray, kind: SqlType) -> pa.ChunkedArray:
    """The column in the type of `arrow_type`."""
    target = arrow_type(kind)
    if column.type == target:
        return column
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.string())
    elif pa.types.is_binary_view(column.type):
        column = column.cast(pa.binary())
    return column.cast(target)


# The schema of one version. Law: a column that impctl cannot compute with has kind OTHER. A column
# that cannot be read without the Delta JAR is in `opaque` with the reason. Neither is fatal while
# unused. Every column may hold NULL: NOT NULL binds writers only, and a file older than a column
# lacks it.

PHYSICAL_NAME = "delta.columnMapping.physicalName"
_CHAR_TYPES = "__CHAR_VARCHAR_TYPE_STRING"
_CHAR = re.compile(r"(?<!var)char\(", re.IGNORECASE)
_VARCHAR = re.compile(r"varchar\((\d+)\)", re.IGNORECASE)
_COLLATIONS = "__COLLATIONS"
_TYPE_CHANGES = "delta.typeChanges"
_PLAIN_COLLATIONS = frozenset({"UTF8_BINARY", "spark.UTF8_BINARY"})
_READABLE_CHANGES = frozenset(
    {
        ("byte", "short"),
        ("byte", "integer"),
        ("byte", "long"),
        ("short", "integer"),
        ("short", "long"),
        ("integer", "long"),
        ("float", "double"),
        ("integer", "double"),
    }
)
"""Type changes for which both readers were verified on older files."""
_FROM_FLOAT = ("float", "double")


class TableSchema(Struct, frozen=True):
    """Columns in Delta order, with physical names and facts from the log."""

    schema: Schema
    physical: Mapping[ColumnName, str]
    """Name in the data files and in the statistics, for every column."""
    opaque: Mapping[ColumnName, str]
    """Columns that cannot be read without the Delta JAR, with the reason."""
    not_null: frozenset[ColumnName]
    """Columns declared NOT NULL, which says nothing about existing rows."""
    invariants: tuple[str, ...]
    """SQL conditions that every row satisfies, from column metadata."""
    longest: Mapping[ColumnName, int]
    """Maximum length of a VARCHAR(n) column; Delta itself calls it a string."""
    once_float: frozenset[ColumnName] = frozenset()
    """Columns of DOUBLE that were FLOAT: older files' statistics are texts of floats."""


def read_schema(schema_json: str, *, is_mapped: bool) -> TableSchema:
    """Parse the schema text of the log, with mapped names if the table maps them."""
    fields = json.loads(schema_json)["fields"]
    columns: list[Column] = []
    physical: dict[ColumnName, str] = {}
    opaque: dict[ColumnName, str] = {}
    for field in fields:
        name = field["name"]
        kind = _column_type(field)
        columns.append(Column(name, kind))
        physical[name] = field["metadata"].get(PHYSICAL_NAME, name) if is_mapped else name
        reason = _opaque_reason(field, kind, is_mapped=is_mapped)
        if reason is not None:
            opaque[name] = reason
    return TableSchema(
        Schema(tuple(columns)),
        physical,
        opaque,
        frozenset(field["name"] for field in fields if not field["nullable"]),
        tuple(_invariants(fields)),
        dict(_limits(fields)),
        frozenset(field["name"] for field in fields if _FROM_FLOAT in _type_changes(field)),
    )


def schema_mark(schema_json: str) -> str:
    """A digest of the schema, including the columns' names in the files."""
    return hashlib.sha256(schema_json.encode()).hexdigest()[:16]


def _limits(fields: list[Mapping[str, Any]]) -> Iterator[tuple[ColumnName, int]]:
    for field in fields:
        match = _VARCHAR.fullmatch(str(field["metadata"].get(_CHAR_TYPES, "")))
        if match is not None:
            yield field["name"], int(match.group(1))


def _column_type(field: Mapping[str, Any]) -> SqlType:
    delta_type = field["type"]
    is_plain = _collation(field) is None and _unreadable_change(field) is None
    if isinstance(delta_type, str) and is_plain and not _is_padded(field):
        return from_delta(delta_type)
    return other(_ddl(delta_type))


def _opaque_reason(field: Mapping[str, Any], kind: SqlType, *, is_mapped: bool) -> str | None:
    collation = _collation(field)
    if collation is not None:
        return f"its strings use the collation `{collation}`"
    change = _unreadable_change(field)
    if change is not None:
        return f"its type was changed from {change[0]} to {change[1]}"
    if _is_padded(field):
        return "it has type char(n), which Spark pads with spaces in comparisons"
    if _mentions(field["type"], "variant"):
        return "it contains variant values"
    if is_mapped and kind.kind is Kind.OTHER:
        return "it is nested, and the table uses column mapping"
    return None


def _collation(field: Mapping[str, Any]) -> str | None:
    """A collation other than byte order, anywhere in the column."""
    names = map(str, field["metadata"].get(_COLLATIONS, {}).values())
    return next((name for name in names if name not in _PLAIN_COLLATIONS), None)


def _is_padded(field: Mapping[str, Any]) -> bool:
    """Whether the type is or contains CHAR(n), a string to Delta; VARCHAR(n) compares as one."""
    return _CHAR.search(str(field["metadata"].get(_CHAR_TYPES, ""))) is not None


def _unreadable_change(field: Mapping[str, Any]) -> tuple[str, str] | None:
    return next((pair for pair in _type_changes(field) if pair not in _READABLE_CHANGES), None)


def _type_changes(field: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The column's type changes, oldest first."""
    changes = field["metadata"].get(_TYPE_CHANGES, ())
    return [(str(change.get("fromType")), str(change.get("toType"))) for change in changes]


def _mentions(delta_type: Any, name: str) -> bool:
    if isinstance(delta_type, str):
        return delta_type == name
    match delta_type["type"]:
        case "struct":
            return any(_mentions(field["type"], name) for field in delta_type["fields"])
        case "array":
            return _mentions(delta_type["elementType"], name)
        case _:
            return _mentions(delta_type["keyType"], name) or _mentions(
                delta_type["valueType"], name
            )


def _ddl(delta_type: Any) -> str:
    """The type in Spark's DDL, for an explicit schema."""
    if isinstance(delta_type, str):
        return from_delta(delta_type).spark_name
    match delta_type["type"]:
        case "struct":
            inner = ", ".join(
                f"{quoted(field['name'])}: {_ddl(field['type'])}" for field in delta_type["fields"]
            )
            return f"struct<{inner}>"
        case "array":
            return f"array<{_ddl(delta_type['elementType'])}>"
        case _:
            return f"map<{_ddl(delta_type['keyType'])}, {_ddl(delta_type['valueType'])}>"


def _invariants(fields: list[Mapping[str, Any]]) -> Iterator[str]:
    for field in fields:
        text = field["metadata"].get("delta.invariants")
        if text is not None:
            yield str(json.loads(text)["expression"]["expression"])
