"""Rows of the change feed with weights.

Law: +1 for an insertion and the image after an update, -1 for a deletion and the image before;
every range is closed at a pinned version, because the reader cuts longer ones short in silence.
Out of scope: whether the feed may be used for a range (`tables.change.changes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from impctl.data.schema import Kind, SqlType
from impctl.errors import StorageError, TableError
from impctl.tables.arrow_types import to_arrow_type
from impctl.tables.calendars import is_hybrid
from impctl.tables.change.feed_files import CHANGE_TYPE, FeedRows, read_feed_files
from impctl.tables.change.lone_doubles import doubles_of, has_lone_doubles
from impctl.tables.commits import Commits
from impctl.tables.data_files import DataFiles, read_failure
from impctl.tables.failures import READ_FAILURES, failure_text, is_missing
from impctl.tables.rows import bare_rows, spellings
from impctl.tables.snapshot import Snapshot, logged_file, null_when_empty
from impctl.tables.source import DeltaSource
from impctl.types import ColumnName, TableName, TableVersion

_VERSION = "_commit_version"
OWN_COLUMNS = frozenset({CHANGE_TYPE, _VERSION, "_commit_timestamp"})
"""Columns the feed adds; a table with a column of such a name cannot be read through it."""
_FILES_MAY_SERVE = (
    "Invalid table version",
    "not enabled",
    "missing required field",
    # Of a feature that impctl reads past, as `tables.features` has it.
    "Unsupported table features required",
)
"""What deltalake says where comparing files may serve instead."""
_INSERTED = pa.array(["insert", "update_postimage"])


def read_change_feed(
    source: DeltaSource,
    since: TableVersion,
    after: Snapshot,
    commits: Commits,
    columns: tuple[ColumnName, ...],
    *,
    with_versions: bool,
) -> FeedRows | None:
    """The feed of `commits`, those after `since`.

    None when files or commits it needs are gone, where deltalake would not find a column, and for
    removed files of which the log tells less than deltalake asks for.
    """
    direct = read_feed_files(commits, since, after, columns)
    if direct is not None:
        return direct if with_versions else replace(direct, versions=None)
    if not _is_told_in_full(commits):
        return None
    footers, doubles = list(_footers(after, commits)), doubles_of(after, columns)
    if _is_spelled_otherwise(footers, columns):
        return None
    if doubles and any(has_lone_doubles(footer, doubles) for footer in footers):
        return None
    extra = [CHANGE_TYPE, _VERSION] if with_versions else [CHANGE_TYPE]
    DataFiles(after).check(logged_file(after.path, path) for path in commits.files())
    result = _loaded(source, since + 1, after.version, columns, extra)
    if result is None:
        return None
    inserted = pc.is_in(result.column(CHANGE_TYPE).cast(pa.string()), value_set=_INSERTED)
    weights = inserted.to_numpy().astype(np.int64) * 2 - 1
    arrays = []
    for name in columns:
        kind = after.column(name).type
        column = _typed(result.column(name), kind, source.name, name)
        if kind.kind is Kind.STRING and name in after.partition_columns:
            column = null_when_empty(column)
        arrays.append(column)
    versions = result.column(_VERSION).to_numpy().astype(np.int64) if with_versions else None
    table = (
        pa.Table.from_arrays(arrays, names=list(columns)) if columns else bare_rows(len(weights))
    )
    return FeedRows(table, weights, versions)


def _loaded(
    source: DeltaSource,
    starting: TableVersion,
    ending: TableVersion,
    columns: tuple[ColumnName, ...],
    extra: list[ColumnName],
) -> pa.Table | None:
    """What deltalake's reader of the feed gives; None where comparing files may serve."""
    # deltalake reads these as SQL: a name that is not quoted would be folded to lower case.
    quoted = ['"' + name.replace('"', '""') + '"' for name in columns]
    try:
        return pa.table(
            source.delta.load_cdf(
                starting_version=starting, ending_version=ending, columns=[*quoted, *extra]
            )
        )
    except BaseException as error:
        # A panic of deltalake is no Exception; what else is none passes below.
        if _may_serve_otherwise(error):
            return None
        if not isinstance(error, READ_FAILURES):
            raise
        raise StorageError(
            f"Reading the change feed of table `{source.name}` failed: {failure_text(error)}",
            hint=f"check that `{source.path}` can be read, then run the command again",
        ) from error


def _typed(column: pa.ChunkedArray, kind: SqlType, table: TableName, name: ColumnName) -> Any:
    try:
        return to_arrow_type(column, kind)
    except pa.ArrowException as error:
        raise TableError(
            f"Column `{name}` in the change feed of table `{table}` is not of type `{kind}`: "
            f"{failure_text(error)}",
            hint="run `impctl capture`",
            code="change_feed_type_differs",
        ) from error


def is_misread(after: Snapshot, commits: Commits) -> bool:
    """Whether a file the feed may read holds times that deltalake reads wrongly.

    These are INT96 timestamps and files in Spark 2's calendar.
    """
    return any(
        is_hybrid(footer.metadata)
        or any(
            footer.schema.column(at).physical_type == "INT96" for at in range(len(footer.schema))
        )
        for footer in _footers(after, commits)
    )


def _is_spelled_otherwise(
    footers: Sequence[pq.FileMetaData], columns: tuple[ColumnName, ...]
) -> bool:
    """Whether a file the feed may read has one of the columns in other letters.

    deltalake reads such a column as NULL, where Spark finds it.
    """
    for footer in footers:
        present = spellings(_names_in(footer.schema))
        if any(present.get(name.lower(), [name]) != [name] for name in columns):
            return True
    return False


def _is_told_in_full(commits: Commits) -> bool:
    """Whether entries that remove files tell size and partition, which the protocol leaves open.

    deltalake reads no feed without, and says so or panics.
    """
    removed = [body for actions in commits.fed() for name, body in actions if name == "remove"]
    return all(
        body.get("size") is not None and body.get("partitionValues") is not None for body in removed
    )


def _names_in(schema: pq.ParquetSchema) -> frozenset[ColumnName]:
    """The names of a file's columns, whatever their types, and with them those of nested ones.

    A name may hold a dot, and then looks like that of a nested column.
    """
    paths = [schema.column(at).path for at in range(len(schema))]
    return frozenset([*paths, *(path.split(".")[0] for path in paths)])


def _footers(after: Snapshot, commits: Commits) -> Iterator[pq.FileMetaData]:
    """Footers of the files the feed may read.

    A file that is gone is left out: the feed then fails by itself if it needs it.
    """
    opened = DataFiles(after)
    for path in commits.files():
        file = logged_file(after.path, path)
        try:
            yield opened.footer(file)
        except READ_FAILURES as error:
            if not is_missing(error):
                raise read_failure(after, file, error) from error


def _may_serve_otherwise(error: BaseException) -> bool:
    """Whether comparing files may still answer: something the feed needs is not there."""
    if isinstance(error, READ_FAILURES):
        text = failure_text(error)
        return is_missing(error) or any(phrase in text for phrase in _FILES_MAY_SERVE)
    return type(error).__name__ == "PanicException"
