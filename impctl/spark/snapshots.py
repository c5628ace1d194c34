"""A version of a Delta table as a DataFrame, without the Delta JAR."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
from msgspec import Struct

from impctl.data.schema import Column as TableColumn
from impctl.data.schema import Kind, quoted
from impctl.errors import ImpctlError, TableError
from impctl.spark.run import plain_failures
from impctl.spark.session import few_listing_tasks, reader_options, spark_uri
from impctl.tables.files import DataFiles, hiding_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from impctl.tables.snapshot import DataFile, Snapshot
    from impctl.types import ColumnName


# Guarded columns: conditions on them are never pushed down to Parquet files, where NaN and the sign
# of zero are treated otherwise than in Spark (`tables.files`), so that rows would be lost.
# Conditions on other columns are. A setting would affect the whole session.


def guarded(frame: DataFrame, columns: Collection[ColumnName]) -> DataFrame:
    """The frame with these of its columns guarded."""
    from pyspark.sql import functions as F

    if not columns:
        return frame
    kept = [(name, F.col(quoted(name))) for name in frame.columns]
    return frame.select(
        # The value itself, in a form that Spark neither simplifies nor translates for Parquet.
        *(
            F.coalesce(value, value).alias(name) if name in columns else value
            for name, value in kept
        )
    )


# Where a catalog's table lies, as the session reports it now; no location is an error. SQL only, so
# any kind of session can be asked.

_DETAILS = "# Detailed Table Information"


def catalog_location(spark: SparkSession, parts: Sequence[str]) -> str:
    """The folder or URI of the table called so; TableError if the catalog has none."""
    name = ".".join(map(quoted, parts))
    try:
        with plain_failures():
            rows = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    except ImpctlError as error:
        raise _untold(".".join(parts), error.message) from error
    titles = [str(row[0]) for row in rows]
    # Above the details stand the columns, which may be called anything.
    details = rows[titles.index(_DETAILS) :] if _DETAILS in titles else []
    result = [str(row[1]) for row in details if row[0] == "Location" and row[1]]
    if not result:
        raise _untold(".".join(parts), "it has no location (it may be a view)")
    return result[0]


def _untold(name: str, reason: str) -> TableError:
    return TableError(
        f"Spark's catalog does not give the location of table `{name}`: {reason}",
        hint="add the catalog's settings under `spark.conf`, or set `path` to the table's folder",
        code="catalog_table_unknown",
    )


def rows_of_smallest_file(session: SparkSession, snapshot: Snapshot) -> int | None:
    """Its rows, in all readable columns; None where the snapshot has no file."""
    if not snapshot.files:
        return None
    smallest = min(snapshot.files, key=lambda file: file.size)
    names = [name for name in snapshot.schema.names if name not in snapshot.columns.opaque]
    frame = snapshot_frame(session, snapshot, names, [smallest], is_guarded=False)
    with plain_failures({snapshot.table: snapshot.version}):
        return int(frame.toArrow().num_rows)


# A version of a Delta table as a DataFrame, without the Delta JAR. The rows are those of the
# version, as a bag: files, schema, partition values and deletion vectors come from the log;
# directory names are used only if checked against it. A missing file is an error. No condition on
# the frame loses rows because of Parquet statistics.

MAX_BRANCHES = 16
"""Partition tuples read as a separate union; every branch costs planning and tasks."""

_STRICT = {
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}
"""As in every session of impctl; a frame may be computed as part of another session's."""

_HIDDEN = ("_", ".")
_GLOB = re.compile(r"([{}\[\]*?\\])")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]+")
_NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"
_DIRECTORY_KINDS = frozenset(
    {Kind.STRING, Kind.BYTE, Kind.SHORT, Kind.INTEGER, Kind.LONG, Kind.DATE}
)
"""Types whose text in a directory's name is the log's own text for the value."""


class FileGroup(Struct, frozen=True):
    """Files that are read alike: one partition tuple (or checked directories), deletions or not."""

    files: tuple[DataFile, ...]
    literals: Mapping[ColumnName, str | None]
    """Partition values the files share; the other partition columns come from directories."""


def snapshot_frame(
    spark: SparkSession,
    snapshot: Snapshot,
    columns: Sequence[ColumnName] | None = None,
    files: Sequence[DataFile] | None = None,
    *,
    is_guarded: bool = True,
) -> DataFrame:
    """The snapshot's rows in these columns (default: all, in Delta order). `files` restricts them
    to some of the snapshot's files. `is_guarded` is false only if the SQL over the frame has the
    guards itself (`spark.predicates`). Raises TableError for a column that cannot be read,
    HistoryGoneError for a missing file."""
    names = snapshot.schema.names if columns is None else columns
    requested = list(dict.fromkeys(snapshot.readable(name) for name in names))
    chosen = snapshot.files if files is None else tuple(files)
    for file in chosen:
        if os.path.basename(file.uri).startswith(_HIDDEN):
            raise TableError(
                f"Spark ignores a data file of table `{snapshot.table}` because its name looks "
                f"hidden: {file.uri}",
                hint="rewrite the table (for example with OPTIMIZE), or use the Delta JAR",
                code="data_file_hidden",
            )
    DataFiles(snapshot).check(chosen)
    with plain_failures({snapshot.table: snapshot.version}):
        if not chosen:
            return spark.createDataFrame([], _schema(requested, snapshot, physical=False))
        frames = [
            _branch_frame(spark, snapshot, branch, requested)
            for branch in _branches(snapshot, chosen)
        ]
        frame = reduce(lambda left, right: left.unionAll(right), frames)
        if not is_guarded:
            return frame
        return guarded(
            frame, hiding_columns(snapshot, [column.name for column in requested], chosen)
        )


def parted_frame(
    spark: SparkSession, snapshot: Snapshot, parts: Sequence[tuple[Sequence[DataFile], str | None]]
) -> DataFrame:
    """All columns of these files, each part with its condition, for SQL that has the guards itself.
    Errors as for `snapshot_frame`."""
    frames = []
    for files, condition in parts:
        frame = snapshot_frame(spark, snapshot, files=files, is_guarded=False)
        frames.append(frame if condition is None else frame.where(condition))
    if not frames:
        return snapshot_frame(spark, snapshot, files=(), is_guarded=False)
    return reduce(lambda left, right: left.unionAll(right), frames)


def _branches(snapshot: Snapshot, files: Sequence[DataFile]) -> list[FileGroup]:
    tuples = {tuple(sorted(file.partition_values.items())) for file in files}
    kinds = {snapshot.column(name).type.kind for name in snapshot.partition_columns}
    by_directory = (
        len(tuples) > MAX_BRANCHES
        and snapshot.column_mapping is None
        and kinds <= _DIRECTORY_KINDS
        and all(_directory_says_it(snapshot, file) for file in files)
    )
    # Whether files with deletions have unique names that every part spells the same.
    names = [os.path.basename(file.uri) for file in files if file.deleted is not None]
    is_joinable = len(set(names)) == len(names) and all(map(_PLAIN_NAME.fullmatch, names))
    groups: dict[tuple[object, ...], list[DataFile]] = {}
    for file in files:
        partition = () if by_directory else tuple(sorted(file.partition_values.items()))
        deletions: object = file.deleted is not None
        if file.deleted is not None and not is_joinable:
            deletions = file.uri
        groups.setdefault((partition, deletions), []).append(file)
    return [
        FileGroup(tuple(group), {} if by_directory else group[0].partition_values)
        for group in groups.values()
    ]


def _directory_says_it(snapshot: Snapshot, file: DataFile) -> bool:
    """Whether the file lies in `column=value` folders that mean what the log says."""
    root = _root(snapshot)
    if not file.uri.startswith(root):
        return False
    folders = file.uri[len(root) :].split("/")[:-1]
    if len(folders) != len(snapshot.partition_columns):
        return False
    for folder, name in zip(folders, snapshot.partition_columns, strict=True):
        value = file.partition_values[name]
        if value == _NULL_DIRECTORY:
            # The folder of NULL is called so too, and Spark takes this one for it.
            return False
        text = _NULL_DIRECTORY if value is None else value
        if "+" in folder or folder.partition("=")[0] != name:
            return False
        # Spark decodes the bytes of a folder's name one by one, which is right for ASCII alone.
        if not text.isascii() or unquote(folder.partition("=")[2]) != text:
            return False
    return True


def _root(snapshot: Snapshot) -> str:
    return snapshot.path.removeprefix("file://").rstrip("/") + "/"


def _branch_frame(
    spark: SparkSession, snapshot: Snapshot, branch: FileGroup, requested: Sequence[TableColumn]
) -> DataFrame:
    from pyspark.sql import functions as F

    read = [column for column in requested if column.name not in branch.literals]
    reader = spark.read.schema(_schema(read, snapshot, physical=True)).options(**_STRICT)
    reader = reader.options(**reader_options(snapshot.path, snapshot.storage_options))
    if not branch.literals and snapshot.partition_columns:
        reader = reader.option("basePath", spark_uri(_root(snapshot)))
    paths = [_GLOB.sub(r"\\\1", spark_uri(file.uri)) for file in branch.files]
    with few_listing_tasks(spark):
        frame = reader.parquet(*paths)
    if branch.files[0].deleted is not None:
        frame = _without_deleted(spark, frame, branch.files)
    elif not snapshot.partition_columns and all(
        snapshot.columns.physical[column.name] == column.name for column in requested
    ):
        # Already so; naming columns again costs calls into the JVM. Not for directories: Spark
        # reads their columns too, and puts them last.
        return frame
    columns = []
    for column in requested:
        name = column.name
        if name in branch.literals:
            value = F.lit(branch.literals[name]).cast(column.type.spark_name)
        else:
            value = F.col(quoted(snapshot.columns.physical[name]))
        columns.append(value.alias(name))
    return frame.select(*columns)


def _without_deleted(spark: SparkSession, frame: DataFrame, files: Sequence[DataFile]) -> DataFrame:
    """The rows at other positions than the files' deletion vectors name."""
    from pyspark.sql import functions as F

    metadata = frame.metadataColumn("_metadata")
    positions = [file.deleted for file in files if file.deleted is not None]
    deletions = {"position": pa.chunked_array([pa.array(p, pa.int64()) for p in positions])}
    condition = metadata["row_index"] == F.col("gone.position")
    if len(files) > 1:
        # The last part of the path is plain here, so that Spark spells it as the log does.
        names = [os.path.basename(file.uri) for file in files]
        repeated = [pa.repeat(name, len(p)) for name, p in zip(names, positions, strict=True)]
        deletions["file"] = pa.chunked_array(repeated, pa.string())
        condition &= metadata["file_name"] == F.col("gone.file")
    deleted = spark.createDataFrame(pa.table(deletions))
    return frame.join(F.broadcast(deleted.alias("gone")), condition, "left_anti")


def _schema(
    columns: Sequence[TableColumn], snapshot: Snapshot, *, physical: bool
) -> str | StructType:
    """The columns as Spark's DDL, under the names in the files or those of the table."""
    from pyspark.sql.types import StructType

    if not columns:
        return StructType()
    names = snapshot.columns.physical if physical else {c.name: c.name for c in columns}
    return ", ".join(f"{quoted(names[c.name])} {c.type.spark_name}" for c in columns)
