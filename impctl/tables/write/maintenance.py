"""Creating, cloning, clustering and rewriting tables."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.transaction import AddAction, create_table_with_add_actions

from impctl.errors import ImpctlError, StorageError, TableError, UsageError
from impctl.tables.snapshot import CHANGE_FEED, Snapshot
from impctl.tables.source import DeltaSource, refresh
from impctl.tables.storage import READ_FAILURES, failure_text, local_path
from impctl.tables.write.apply import check_rewritable, check_writable, plain_failures

if TYPE_CHECKING:
    from impctl.types import ColumnName, TableVersion


# New tables, for demo, bench and tests only. Law: an existing table is never overwritten.


def create_table(
    path: str, data: pa.Table | pa.RecordBatchReader | pa.Schema, *, file_bytes: int | None = None
) -> None:
    """Write version 0 of a new table, with a change feed; a schema alone gives an empty one.
    `file_bytes` is the approximate size of a data file. UsageError if the path exists already."""
    rows = data.empty_table() if isinstance(data, pa.Schema) else data
    try:
        write_deltalake(
            path,
            rows,
            mode="error",
            configuration={CHANGE_FEED: "true"},
            target_file_size=file_bytes,
        )
    except READ_FAILURES as error:
        text = failure_text(error)
        if "already exists" in text.lower():
            raise UsageError(
                f"A table already exists at this path: {path}",
                hint="choose another path, or remove the folder first",
            ) from error
        raise StorageError(
            f"The table could not be written: {text}", hint=f"check that `{path}` can be written"
        ) from error


# A copy of a table that takes almost no space, for demo and bench runs. Law: the original is never
# changed. Data files are immutable and become hard links; the log is copied.

_LOG = "_delta_log"


def clone_table(path: str, target: str) -> None:
    """Clone the table at `path` to `target`; UsageError if that exists."""
    origin, goal = _local(path), _local(target)
    if not os.path.isdir(os.path.join(origin, _LOG)):
        raise TableError(
            f"There is no Delta table to clone: {path}",
            hint="the path must contain a `_delta_log` folder",
            code="table_not_delta",
        )
    if os.path.lexists(goal):
        raise UsageError(f"The path already exists: {target}", hint="choose another path")
    outer, inner = os.path.abspath(origin), os.path.abspath(goal)
    if os.path.commonpath([outer, inner]) == outer:
        raise UsageError(
            f"A table cannot be cloned into itself: {target}", hint="choose another path"
        )
    try:
        shutil.copytree(origin, goal, copy_function=_link_or_copy)
    except (OSError, shutil.Error) as error:
        raise StorageError(
            f"Cloning the table failed: {error}", hint=f"remove `{target}`, then try again"
        ) from error


def _local(path: str) -> str:
    result = local_path(path)
    if result is None:
        raise UsageError(
            f"Only tables on the local disk can be cloned: {path}", hint="copy the table instead"
        )
    return result


def _link_or_copy(source: str, target: str) -> None:
    if _LOG in os.path.dirname(source).split(os.sep):
        shutil.copy2(source, target)
        return
    try:
        os.link(source, target)
    except OSError:
        # Another device, or a file system without hard links.
        shutil.copy2(source, target)


# A new table of exactly the given data files, in one commit, for bench data. Law: statistics are
# those of other writers: row counts, and per column minimum, maximum and number of NULLs.

_LONGEST = 32
"""Length of a text from which other writers truncate it; its statistics are omitted here."""


def create_laid_out_table(path: str, files: Iterable[pa.Table]) -> int:
    """Write version 0 of a new table, one data file per table of rows; returns the rows."""
    folder = Path(path)
    folder.mkdir(parents=True)
    parts = iter(files)
    first = next(parts)
    added, rows = [], 0
    for number, part in enumerate(chain([first], parts)):
        file = folder / f"part-{number:05d}.parquet"
        pq.write_table(part, file, compression="snappy")
        stated = json.dumps(dict(_statistics(part)))
        now = int(datetime.now(UTC).timestamp() * 1000)
        added.append(AddAction(file.name, file.stat().st_size, {}, now, True, stated))
        rows += len(part)
    schema = Schema.from_arrow(first.schema)
    create_table_with_add_actions(path, schema, added, configuration={CHANGE_FEED: "true"})
    return rows


def _statistics(part: pa.Table) -> Iterator[tuple[str, Any]]:
    yield "numRecords", len(part)
    low, high = {}, {}
    for name in part.column_names:
        result = pc.min_max(part.column(name)).as_py()
        if result["min"] is not None and all(_is_exact(value) for value in result.values()):
            low[name], high[name] = (_plain(result[side]) for side in ("min", "max"))
    yield "minValues", low
    yield "maxValues", high
    yield "nullCount", {name: part.column(name).null_count for name in part.column_names}


def _is_exact(value: Any) -> bool:
    """Whether other writers log the value unchanged: JSON has no infinity, and long texts are
    cut."""
    return math.isfinite(value) if isinstance(value, float) else len(str(value)) < _LONGEST


def _plain(value: Any) -> Any:
    """The value as the log writes it."""
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value if isinstance(value, bool | int | float | str) else str(value)


# Changes of a scratch clone. Law: only for tables that impctl cloned. Each call is one commit;
# going back is a RESTORE, which is a deletion in the change feed.


def append_rows(path: str, rows: pa.Table) -> None:
    """Commit rows of the table's own columns."""
    with _failing("Appending to the clone"):
        write_deltalake(path, rows, mode="append")


def checkpoint(path: str) -> None:
    """Write a checkpoint of the log, as other writers do every few commits."""
    hint = "check that the folder of the table can be written"
    with _failing("Writing a checkpoint of the clone", hint):
        DeltaTable(path).create_checkpoint()


def rewind(path: str, version: TableVersion) -> None:
    """Restore the table to `version` by a commit."""
    with _failing("Restoring the clone"):
        DeltaTable(path).restore(version)


@contextmanager
def _failing(action: str, hint: str | None = None) -> Iterator[None]:
    """Translate what deltalake raises during this action on a clone."""
    try:
        yield
    except READ_FAILURES as error:
        raise StorageError(f"{action} failed: {failure_text(error)}", hint=hint) from error


# Clustering: files rewritten in the order of some columns, so that statistics separate them. Law:
# the rows stay the same, in one commit that says so (`dataChange` false). An older version stays
# readable until a VACUUM. What deltalake would copy incorrectly is refused, as in `apply`.

FILES = 200
"""Number of files of a clustered table: enough to read a hundredth of it."""
_LEAST_BYTES, _MOST_BYTES = 1 << 20, 128 << 20
"""Smaller files cost more to open than they save; larger ones are unusual."""

CLUSTERED_BY = "impctl.clusteredBy"
"""The key of the commit's note; deltalake itself does not record the columns."""


def bytes_per_file(snapshot: Snapshot) -> int:
    return min(_MOST_BYTES, max(_LEAST_BYTES, snapshot.bytes // FILES))


def check_clusterable(snapshot: Snapshot, columns: Sequence[ColumnName]) -> None:
    """Refuse columns that deltalake cannot order, or would change on the way; TableError."""
    check_writable(snapshot)
    check_rewritable(snapshot)
    reason = None
    if snapshot.deletions:
        reason = "it has deletion vectors, which deltalake may not apply when it copies rows"
    for name in columns:
        if name in snapshot.partition_columns:
            reason = f"it is partitioned by `{name}`, so its files are already separated by it"
    if reason is not None:
        raise TableError(
            f"impctl cannot cluster table `{snapshot.table}`: {reason}",
            hint="run OPTIMIZE with ZORDER BY in Spark with the Delta JAR, or give other columns "
            "with `--by`",
            code="table_not_clusterable",
        )


def cluster_table(source: DeltaSource, columns: Sequence[ColumnName]) -> TableVersion:
    """Rewrite the newest version: sorted by one column, along a Z-order curve by several. Returns
    the new version. Raises like `check_clusterable`; RetryableError, without a commit, if another
    writer was first."""
    newest = refresh(source)
    before = newest.snapshot()
    check_clusterable(before, columns)
    with plain_failures(newest):
        newest.delta.optimize.z_order(
            list(columns),
            target_size=bytes_per_file(before),
            commit_properties=CommitProperties({CLUSTERED_BY: json.dumps(list(columns))}),
        )
    done = refresh(source)
    after = done.snapshot()
    if done.version == newest.version + 1 and before.rows != after.rows:
        raise ImpctlError(
            f"Clustering changed the number of rows of table `{source.name}` from {before.rows} to "
            f"{after.rows}, in version {done.version}",
            hint=f"restore the table to version {newest.version}, and report this bug",
            code="rows_clustered_differ",
        )
    return done.version


def clustered_by(source: DeltaSource) -> tuple[ColumnName, ...]:
    """The columns by which the pinned version was clustered, if clustering made it."""
    try:
        latest = source.delta.history(1)
    except READ_FAILURES:
        return ()
    if not latest or latest[0].get("version") != source.version:
        return ()
    try:
        columns = json.loads(latest[0].get(CLUSTERED_BY))
    except (TypeError, ValueError):  # no note, or not in the expected form
        return ()
    return tuple(map(str, columns)) if isinstance(columns, list) else ()
