"""A table at one version: its columns, its files, and what the log promises about rows.

Law: a snapshot never changes; everything is read from the log of that version, nothing from the
names of directories. An empty partition value is NULL, as the Delta protocol says.
Out of scope: reading rows (`tables.rows`), file statistics (`tables.statistics`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from deltalake import DeltaTable

from impctl.data.schema import Column, Kind, Schema
from impctl.errors import (
    ImpctlError,
    SchemaChangedError,
    StorageError,
    TableError,
    UnsupportedError,
)
from impctl.tables.bounds import ColumnBounds, Flags
from impctl.tables.deletion_vectors import check_vectors, vector_files
from impctl.tables.escapes import is_unsure
from impctl.tables.failures import READ_FAILURES, failure_text
from impctl.tables.features import (
    check_column_mapping,
    check_reader_features,
    feature_named_in,
    unknown_feature,
)
from impctl.tables.schema import TableSchema, read_schema
from impctl.tables.storage import below_root, file_uri, local_path
from impctl.types import ColumnName, TableName, TableVersion
from impctl.values import dataclass

Positions = npt.NDArray[np.int64]

_ROW_BYTES = 32
"""What a row of a few columns takes in Parquet, where no file of the table tells its own."""

_ZONE = re.compile(r"(Z|[-+]\d\d:?\d\d)$")
"""The end of a time that names its zone; a date's end has one hyphen more."""

CHANGE_FEED = "delta.enableChangeDataFeed"
_CONSTRAINT = "delta.constraints."


@dataclass(frozen=True, slots=True)
class DataFile:
    """One data file of a snapshot."""

    uri: str
    """Local path, or URI, as the file is really called (percent-decoded)."""
    size: int
    rows: int | None
    """Rows in the file, deleted ones included; None where the log does not say."""
    partition_values: Mapping[ColumnName, str | None]
    """Text per partition column (logical name) that casts to the value; None is NULL."""
    deleted: Positions | None = field(default=None, compare=False)
    """Positions that the deletion vector removes, ascending; None without one."""


def bytes_of(files: Iterable[DataFile]) -> int:
    """What the files take together."""
    return sum(file.size for file in files)


@dataclass(frozen=True)
class Snapshot:
    """A table at one version."""

    table: TableName
    path: str
    """Absolute path of the table's folder, or its URI where it is not on the local disk."""
    version: TableVersion
    table_id: str
    schema_json: str
    columns: TableSchema
    partition_columns: tuple[ColumnName, ...]
    configuration: Mapping[str, str]
    reader_features: frozenset[str]
    writer_features: frozenset[str]
    storage_options: Mapping[str, str] | None = field(repr=False)
    clone_of: tuple[str, ...]
    """Folders of other tables whose files this one may name: it is a shallow clone of them."""
    actions: pa.Table = field(repr=False, compare=False)
    """deltalake's add actions, one row a file, statistics as nested columns."""
    uris: tuple[str, ...] = field(repr=False, compare=False)
    """What each file is called, in the order of `actions`."""
    deletions: Mapping[str, Positions] = field(repr=False, compare=False)
    bounds: dict[ColumnName, ColumnBounds] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """What `tables.statistics` has read of the actions so far, by column."""

    @property
    def roots(self) -> tuple[str, ...]:
        """The folders that files may lie below, the table's own first."""
        return (self.path, *self.clone_of)

    @property
    def schema(self) -> Schema:
        return self.columns.schema

    @property
    def not_null(self) -> frozenset[ColumnName]:
        """Columns declared NOT NULL: no writer may put NULL in, older files may lack them."""
        return self.columns.not_null

    @property
    def constraints(self) -> tuple[str, ...]:
        """SQL conditions that rows should meet: CHECK constraints and column invariants.

        Whether they do depends on the protocols that the table has had, and on its writers.
        """
        checks = (
            text for key, text in sorted(self.configuration.items()) if key.startswith(_CONSTRAINT)
        )
        return (*checks, *self.columns.invariants)

    @property
    def column_mapping(self) -> Mapping[ColumnName, str] | None:
        """Physical name per column, or None where the table does not map names."""
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
        # One for all files: an object more for each is what takes the time.
        nothing: Mapping[ColumnName, str | None] = {}
        return tuple(
            DataFile(
                uri,
                sizes[at],
                rows[at],
                partitions[at] if partitions else nothing,
                deletions.get(uri),
            )
            for at, uri in enumerate(self.uris)
        )

    def files_at(self, places: Flags | Positions) -> tuple[DataFile, ...]:
        """The data files at these positions, or where a mask of one flag a file is set."""
        at = np.flatnonzero(places) if places.dtype == np.bool_ else places
        return tuple(self.files[place] for place in at.tolist())

    @cached_property
    def rows(self) -> int | None:
        """Rows of the snapshot, or None where the log does not say."""
        counts = self.actions.column("num_records")
        if counts.null_count:
            return None
        total = int(np.sum(counts.to_numpy())) if len(counts) else 0
        return total - sum(len(positions) for positions in self.deletions.values())

    @cached_property
    def likely_rows(self) -> int:
        """Rows, or how many the files' bytes suggest where the log does not say: never 0 then."""
        if self.rows is not None:
            return self.rows
        counted = [file for file in self.files if file.rows is not None]
        rows, size = sum(file.rows or 0 for file in counted), sum(file.size for file in counted)
        row_bytes = size / rows if rows and size else _ROW_BYTES
        return rows + math.ceil((self.bytes - size) / row_bytes)

    @cached_property
    def bytes(self) -> int:
        """Bytes of the data files."""
        sizes = self.actions.column("size_bytes")
        return int(np.sum(sizes.to_numpy())) if len(sizes) else 0

    def column(self, name: ColumnName) -> Column:
        """The column, found without regard to case; SchemaChangedError without it."""
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


def rows_in(snapshot: Snapshot, files: Sequence[DataFile]) -> int | None:
    """Rows of some of a snapshot's files, or None where the log does not say."""
    if len(files) == len(snapshot.files):
        return snapshot.rows
    total = 0
    for file in files:
        if file.rows is None:
            return None
        total += file.rows - (0 if file.deleted is None else len(file.deleted))
    return total


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
        _check_places(table, uris, (path, *clone_of))
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
        storage_options=storage_options,
        clone_of=clone_of,
        actions=actions,
        uris=uris,
        deletions=deletions,
    )


def _check_places(table: TableName, uris: Iterable[str], roots: Sequence[str]) -> None:
    for uri in uris:
        if all(below_root(root, uri) is None for root in roots):
            raise outside_table(table, uri)


def outside_table(table: TableName, uri: str) -> UnsupportedError:
    """The error for a file that the log names and that lies outside the table's folder."""
    return UnsupportedError(
        f"The log of table `{table}` lists a file outside the table's folder: {uri}",
        hint="if the table is a shallow clone, add the cloned table's folder under "
        f"`tables.{table}.clone_of`; otherwise do not read the table",
        code="file_outside_table",
    )


def _log_failure(table: TableName, path: str, error: Exception) -> ImpctlError:
    text = failure_text(error)
    # deltalake reads vectors by a part of its own, which knows fewer features than the rest.
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
    """Partition values must be texts of the log that every reader takes for the same value."""
    kinds = {column.name: column.type.kind for column in columns.schema}
    refused = {
        name: "it is a binary partition column" for name in partitions if kinds[name] is Kind.BINARY
    }
    moments = [name for name in partitions if kinds[name] is Kind.TIMESTAMP]
    if moments:
        texts = delta.partitions()
        for name in moments:
            if any(_lacks_zone(text[name]) for text in texts):
                refused[name] = (
                    "it is a partition column whose times have no time zone, so each Spark "
                    "session reads them in its session time zone"
                )
    return replace(columns, opaque={**columns.opaque, **refused}) if refused else columns


def _lacks_zone(text: str | None) -> bool:
    """Whether a time of the log has neither `Z` nor an offset at its end; NULL lacks nothing."""
    return text is not None and text != "" and _ZONE.search(text) is None


def _deletions(vectors: pa.Table, uris: tuple[str, ...]) -> dict[str, Positions] | None:
    """Deleted positions per file; None when a vector belongs to no file of the snapshot."""
    known = set(uris)
    result: dict[str, Positions] = {}
    # Bounded by the number of files that have a deletion vector.
    for name, kept in zip(vectors.column(0).to_pylist(), vectors.column(1), strict=True):
        uri = next((form for form in _uri_forms(name) if form in known), None)
        if uri is None:
            return None
        mask = kept.values.to_numpy(zero_copy_only=False)
        result[uri] = np.flatnonzero(~mask)
    return result


def logged_file(path: str, logged: str, size: object = None) -> DataFile:
    """A file by its name in the log, for readers that need its place alone; size 0 if not told."""
    told = size if isinstance(size, int) else 0
    return DataFile(file_uri(path, logged), told, None, {})


def _uri_forms(name: str) -> tuple[str, ...]:
    """How the log may spell a file that the deletion vectors call by its URL."""
    if name.startswith("file:"):
        return (unquote(urlsplit(name).path), urlsplit(name).path)
    return (unquote(name), name)


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
    """TableError for a value that may be another one; a folder that says the same is believed."""
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
