"""A table's log: its commits, their times and changed rows, and how long it is kept."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from impctl.errors import HistoryGoneError, ImpctlError, TableError
from impctl.forecast import KEPT, Commit, History
from impctl.tables.snapshot import FilesMark, Snapshot, Words, logged_file, sum_of_files
from impctl.tables.source import DeltaSource, LogEntry, advance, refresh
from impctl.tables.storage import READ_FAILURES, file_uri, local_path

if TYPE_CHECKING:
    from impctl.types import TableVersion


# Marks of commits, by which a table's history is recognized. Law: equal marks mean equal log
# entries. An entry that is cleaned up or remote has no mark, which proves nothing.


def commit_mark(source: DeltaSource, version: TableVersion) -> str | None:
    """Hash of the log entry of `version`; None if it cannot be read from the local disk."""
    path = _entry_path(source, version)
    if path is None:
        return None
    try:
        with open(path, "rb") as entry:
            return hashlib.file_digest(entry, "sha256").hexdigest()[:16]
    except OSError:
        return None


def _entry_path(source: DeltaSource, version: TableVersion) -> str | None:
    """The file of a log entry; None if the table is not on the local disk."""
    folder = local_path(source.path)
    return None if folder is None else os.path.join(folder, f"_delta_log/{version:020}.json")


# The time of a commit: its own statement, else that of the entry's file. Law: times are seconds
# since 1970, finite and not negative. A statement that cannot be a time (text, NaN, more than some
# thousand years) is ignored. Times may lie in the future or go back; `forecast` and
# `service.schedule.due` correct that.

_TIMES = ("inCommitTimestamp", "timestamp")
"""Milliseconds since 1970; the first is monotonic, by its writer, the second a machine's clock."""
_LATEST_MS = 1e14


def _time_of(source: DeltaSource, entry: LogEntry) -> float | None:
    for body in entry.bodies("commitInfo"):
        for key in _TIMES if isinstance(body, Mapping) else ():
            seconds = _seconds(body.get(key))
            if seconds is not None:
                return seconds
    path = _entry_path(source, entry.version)
    try:
        return None if path is None else os.stat(path).st_mtime
    except OSError:
        return None


def _seconds(milliseconds: Any) -> float | None:
    # Compared before the conversion: an integer in JSON may be larger than any float.
    is_time = type(milliseconds) in (int, float) and 0 <= milliseconds < _LATEST_MS
    return float(milliseconds) / 1000 if is_time else None


# Whether a table's log has grown or is another one, without opening the table again. Law: a local
# log that was replaced, cleaned up or shortened never looks unchanged. Of a remote log only a newer
# version shows, so a watcher opens the table again from time to time.

_Stat = tuple[int, int, int]


class PinnedTable(Struct, frozen=True):
    """A table as pinned by a run: its source, and the log entry of that version. `mark` and `entry`
    are None if there is no readable entry, and then prove nothing."""

    source: DeltaSource
    mark: str | None
    entry: _Stat | None


def pin_table(source: DeltaSource) -> PinnedTable:
    """Capture the table's log entry; to be called when it is pinned. Later another log may replace
    it, whose mark would vouch for the table opened before."""
    mark = commit_mark(source, source.version)
    # Read last: an entry written in between counts as known, its mark as another one.
    return PinnedTable(source.for_next_run(), mark, _entry(source, source.version))


def has_new_log(pinned: PinnedTable) -> bool:
    """Whether the table has a newer version, or another log, than when it was pinned. Afterwards
    use the source only with functions of this module."""
    return newest_version(pinned) != pinned.source.version


def newest_version(pinned: PinnedTable) -> TableVersion | None:
    """The newest version after the pinned one; None if another log replaced it."""
    source, version = pinned.source, pinned.source.version
    if local_path(source.path) is None:
        return advance(source).version
    if _entry(source, version) != pinned.entry:
        return None
    while _entry(source, version + 1) is not None:
        version += 1
    return version


def log_end(pinned: PinnedTable) -> object:
    """A value that changes when the log grows or is replaced. For versions other than the pinned
    one it covers only the folder, which changes with every new entry."""
    source, newest = pinned.source, newest_version(pinned)
    folder = local_path(source.path)
    if folder is None:
        return newest
    last = source.version if newest is None else newest
    return newest, _entry(source, last), _stat(os.path.join(folder, "_delta_log"))


def open_newest(pinned: PinnedTable) -> DeltaSource:
    """The table at its newest version, by reading only new log entries if that is safe. The old
    source must not be used afterwards."""
    source = pinned.source
    if pinned.mark is None:
        return refresh(source)
    moved = advance(source)
    # Looked at afterwards: a table put in its place before or during the reading shows.
    is_same = commit_mark(source, source.version) == pinned.mark
    return moved if is_same and moved.version >= source.version else refresh(source)


def _entry(source: DeltaSource, version: TableVersion) -> _Stat | None:
    """The disk's metadata of the log entry of `version`; None if it is missing or remote."""
    path = _entry_path(source, version)
    return None if path is None else _stat(path)


def _stat(path: str) -> _Stat | None:
    try:
        result = os.stat(path)
    except OSError:
        return None
    return result.st_ino, result.st_mtime_ns, result.st_size


# Commits as numbers, by the log alone. Law: no data file is opened, and what the log does not state
# is None. Rows are those that the change feed gives, or more if a writer does not count what it
# deleted and updated. A writer's count is trusted, because the number is only shown or used in an
# estimate.

_MOST = 1 << 62
"""Limit of counts, so that small sums stay within 64 bits."""
_INSERTED, _DELETED, _UPDATED = (1, 0), (0, 1), (1, 1)
_SIGNS_OF_METRIC = {
    "num_deleted_rows": _DELETED,
    "num_updated_rows": _UPDATED,
    "num_target_rows_inserted": _INSERTED,
    "num_target_rows_deleted": _DELETED,
    "num_target_rows_updated": _UPDATED,
    "numDeletedRows": _DELETED,
    "numUpdatedRows": _UPDATED,
    "numTargetRowsInserted": _INSERTED,
    "numTargetRowsDeleted": _DELETED,
    "numTargetRowsUpdated": _UPDATED,
}
"""Metrics of deltalake and Spark, with the rows each inserts and deletes; an update does both."""


class ChangeSize(Struct, frozen=True):
    """Changed rows (None if unknown), and the bytes and number of the files that hold them; an
    estimate does not count files."""

    rows: int | None
    bytes: int
    files: int = 0


def size_of(commits: Sequence[Commit]) -> ChangeSize:
    """The size of the change that these commits make together."""
    rows = [commit.rows for commit in commits if commit.rows is not None]
    return ChangeSize(
        sum(rows) if len(rows) == len(commits) else None,
        sum(commit.bytes for commit in commits),
        sum(commit.files for commit in commits),
    )


def commits_since(
    source: DeltaSource,
    since: TableVersion,
    known: Mapping[TableVersion, Commit] = MappingProxyType({}),
) -> tuple[Commit, ...] | None:
    """The commits after `since` up to the pinned version; None if one cannot be read. `known` ones
    are not read again. Raises TableError for a damaged entry."""
    result: list[Commit] = []
    for version in range(since + 1, source.version + 1):
        if version not in known:
            entries = source.entries(version - 1, source.version)
            return None if entries is None else (*result, *commits_of(source, entries))
        result.append(known[version])
    return tuple(result)


def pending_size(source: DeltaSource, since: TableVersion) -> ChangeSize | None:
    """The size of everything committed after `since` up to the pinned version; None if an entry
    cannot be read."""
    if source.version <= since:
        return ChangeSize(0, 0)
    entries = source.entries(since, source.version)
    if entries is None:
        return None
    size = size_of(commits_of(source, entries))
    if size.rows is None:
        # Files from before the range were removed, and the log did not repeat their statistics.
        size = size_of(commits_of(source, entries, _rows_at(source, since)))
    return size


def commits_of(
    source: DeltaSource, entries: Sequence[LogEntry], rows_before: Mapping[str, int] | None = None
) -> tuple[Commit, ...]:
    """The commits of consecutive entries; `rows_before` are rows by the path of earlier files."""
    rows = dict(rows_before or {})
    result = []
    for entry in entries:
        # Of each added file, including deleted rows.
        records = ((body["path"], _records_of(body)) for body in entry.bodies("add"))
        rows.update((path, count) for path, count in records if count is not None)
        inserted, deleted = _signed_rows(entry, rows)
        sizes = [body.get("size") for _, body in entry.fed]
        commit = Commit(
            entry.version,
            _time_of(source, entry),
            _limited(inserted),
            _limited(deleted),
            len(sizes),
            _limited(sum(size for size in sizes if isinstance(size, int))) or 0,
            _operation(entry),
            only_moves=entry.only_moves,
        )
        result.append(commit)
    return tuple(result)


def _limited(number: int | None) -> int | None:
    return None if number is None else min(max(number, 0), _MOST)


def _signed_rows(entry: LogEntry, known: Mapping[str, int]) -> tuple[int | None, int | None]:
    """Rows inserted and rows deleted, each None if the log does not say."""
    fed = entry.fed
    if not fed:
        return 0, 0
    counted = _counted_by_the_writer(entry)
    if counted is not None:
        return counted
    if any(name == "cdc" for name, _ in fed):
        return None, None
    # Rows copied from file to file count; the files are not compared.
    live: dict[str, int] = {}
    unknown = set()
    for name, body in fed:
        rows = _live_rows(body, known)
        if rows is None:
            unknown.add(name)
            continue
        # The same file twice is a file whose deletion vector changed.
        path = body["path"]
        live[path] = live.get(path, 0) + (rows if name == "add" else -rows)
    inserted = sum(rows for rows in live.values() if rows > 0)
    deleted = -sum(rows for rows in live.values() if rows < 0)
    return None if "add" in unknown else inserted, None if "remove" in unknown else deleted


def _counted_by_the_writer(entry: LogEntry) -> tuple[int, int] | None:
    for body in entry.bodies("commitInfo"):
        metrics = body.get("operationMetrics")
        if isinstance(metrics, Mapping):
            known = [key for key in metrics if key in _SIGNS_OF_METRIC]
            try:
                counts = [(int(metrics[key]), _SIGNS_OF_METRIC[key]) for key in known]
            except (TypeError, ValueError):
                return None
            if not counts:
                return None
            inserted = sum(count * signs[0] for count, signs in counts)
            return inserted, sum(count * signs[1] for count, signs in counts)
    return None


def _live_rows(body: Mapping[str, Any], known: Mapping[str, int]) -> int | None:
    records = _records_of(body)
    rows = known.get(body["path"]) if records is None else records
    if rows is None:
        return None
    return max(0, rows - int((body.get("deletionVector") or {}).get("cardinality") or 0))


def _records_of(body: Mapping[str, Any]) -> int | None:
    try:
        rows = json.loads(body.get("stats") or "{}").get("numRecords")
    except (ValueError, AttributeError):
        return None
    return rows if isinstance(rows, int) else None


def _rows_at(source: DeltaSource, version: TableVersion) -> dict[str, int]:
    """Rows of each file of a version, by its path in the log; empty if the version is gone."""
    try:
        actions = source.snapshot(version).actions
    except ImpctlError:
        return {}
    named = zip(
        actions.column("path").to_pylist(), actions.column("num_records").to_pylist(), strict=True
    )
    return {path: rows for path, rows in named if rows is not None}


def _operation(entry: LogEntry) -> str:
    """The operation in `commitInfo`; empty without one."""
    infos = [body for body in entry.bodies("commitInfo") if isinstance(body, dict)]
    text = next((info["operation"] for info in infos if "operation" in info), None)
    return text[:40].encode("utf-8", "replace").decode() if isinstance(text, str) else ""


# The history of a table, extended by new entries of its log. Law: only entries that were not read
# before are read, at most `KEPT` at once. Commits that only move rows or change none are no
# arrivals, nor is the commit that created the table. A missing or damaged entry leaves a gap, which
# is marked.

_ELSEWHERE = 40
"""Entries read concurrently where each is a request to an object store."""
_DAMAGED = (ImpctlError, AttributeError, KeyError, TypeError, ValueError)
"""What entries raise that are not JSON, or whose parts have other types than Delta's."""


def commit_history(source: DeltaSource, previous: History | None) -> History:
    """The history up to the pinned version. If the log now ends earlier, only what is before its
    end is kept. A history of another table is discarded."""
    known = _still_there(source, previous)
    if known is None:
        known = History(source.table_id, -1, None)
    elif known.until == source.version:
        return known
    commits = _newest_commits(source, known.until)
    has_missed = known.has_missed or len(commits) < source.version - known.until
    new = [commit for commit in commits if commit.version and commit.rows != 0]
    if new:
        new[0] = replace(new[0], is_after_gap=has_missed)
    all_known = (*known.arrivals, *new)
    kept, since = all_known[-KEPT:], known.since
    if len(all_known) > KEPT:
        since = kept[0].at
    elif since is None:
        since = next((commit.at for commit in commits if commit.at is not None), None)
    return History(source.table_id, source.version, since, kept, has_missed and not new)


def _still_there(source: DeltaSource, previous: History | None) -> History | None:
    """The known history of this very table, up to the end of its log."""
    if previous is None or previous.table_id != source.table_id:
        return None
    if previous.until <= source.version:
        return previous
    kept = tuple(arrival for arrival in previous.arrivals if arrival.version <= source.version)
    return replace(previous, until=source.version, arrivals=kept)


def _newest_commits(source: DeltaSource, since: TableVersion) -> tuple[Commit, ...]:
    """The commits after `since`, from the newest back to the first that cannot be read; none if one
    is damaged."""
    most = _ELSEWHERE if local_path(source.path) is None else KEPT
    entries: list[LogEntry] = []
    for version in range(source.version, max(since, source.version - most), -1):
        try:
            entries.insert(0, source.entry(version))
        except (OSError, ImpctlError):
            break
    try:
        return commits_of(source, entries)
    except _DAMAGED:
        # A run that needs the entry reports it; one before a checkpoint may never be needed.
        return ()


# Whether the change since a version can still be read. Law: no data is read. A change is gone only
# if neither the change feed nor a comparison of snapshots can give it. Only local files are checked
# for existence.


def why_gone(source: DeltaSource, since: TableVersion) -> str | None:
    """Why the change from `since` to the pinned version cannot be read; None if it can."""
    entries = source.entries(since, source.version)
    folder = local_path(source.path)
    if entries is not None:
        fed = (body["path"] for entry in entries for _, body in entry.fed)
        needed = [*fed, *copied_by_others(entries)]
        lost = _missing(file_uri(source.path, name) for name in needed) if folder else None
        if lost is None:
            return None
    try:
        before = source.snapshot(since)
    except HistoryGoneError as error:
        return error.message
    if folder is None:
        return None
    after = source.snapshot()
    old, new = {file.uri for file in before.files}, {file.uri for file in after.files}
    lost = _missing(sorted(old ^ new))
    return None if lost is None else f"the file `{lost}` no longer exists (vacuumed?)"


def _missing(uris: Iterable[str]) -> str | None:
    return next((uri for uri in uris if not os.path.exists(uri)), None)


# How long commits and deleted files are kept. Law: durations are read as Delta writes them
# (`interval 1 week 2 days`). A text that is not understood is None, never a default. Without a
# setting Delta's defaults apply.

LOG_RETENTION = "delta.logRetentionDuration"
FILE_RETENTION = "delta.deletedFileRetentionDuration"
_UNREAD: tuple[type[Exception], ...] = (*READ_FAILURES, TableError)
_DEFAULTS = {LOG_RETENTION: "interval 30 days", FILE_RETENTION: "interval 1 week"}
_PART = re.compile(r"\s*(\d+)\s*([a-z]+)\s*")
_UNITS = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
    "microsecond": timedelta(microseconds=1),
    "millisecond": timedelta(milliseconds=1),
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(weeks=1),
}


class Retention(Struct, frozen=True):
    """A retention duration: the setting, its text, and its meaning, None if unknown."""

    setting: str
    text: str
    kept: timedelta | None


def retention_of(configuration: Mapping[str, str]) -> tuple[Retention, Retention]:
    """How long log entries and deleted files are kept."""
    texts = {name: configuration.get(name, default) for name, default in _DEFAULTS.items()}
    log, files = (Retention(name, text, duration_of(text)) for name, text in texts.items())
    return log, files


def duration_of(text: str) -> timedelta | None:
    """The duration `interval 1 week 2 days`, or `9d` for short; None for anything else."""
    rest = text.strip().lower().removeprefix("interval ")
    total, position = timedelta(0), 0
    while position < len(rest):
        part = _PART.match(rest, position)
        unit = None if part is None else _UNITS.get(part[2]) or _UNITS.get(part[2].rstrip("s"))
        if part is None or unit is None:
            return None
        try:
            total += int(part[1]) * unit
        except OverflowError:
            return timedelta.max
        position = part.end()
    return total if rest else None


def committed_at(source: DeltaSource, version: TableVersion) -> float | None:
    """When a version was committed, in seconds since 1970; None if its log entry is gone."""
    try:
        return _time_of(source, source.entry(version))
    except _UNREAD:
        return None


# Whether the rows that a commit copied are the same rows to Spark. Law: a copy is trusted if Spark
# made it, or if the copied file exists and has no column that deltalake misreads (`tables.files`).
# For the change feed omits copied rows, and an OPTIMIZE has none. In tables with deletion vectors,
# which some writers ignore, no other writer's copy is trusted. Cost: one small read per file that a
# writer other than Spark removed.

_VECTORS = "deletionVectors"
_AT_ONCE = 8
"""Footers read concurrently: in an object store each is a round trip."""


def has_faithful_copies(entries: Sequence[LogEntry], after: Snapshot) -> bool:
    """Whether these commits' copies are surely right; `after` has the columns."""
    from impctl.tables.files import DataFiles, ExpectedNames

    paths = copied_by_others(entries)
    if not paths:
        return True
    if _VECTORS in after.reader_features:
        return False
    expected = ExpectedNames.of(after)
    opened = DataFiles(after)

    def is_well_read(path: str) -> bool:
        footer = opened.try_footer(logged_file(after.path, path))
        return footer is not None and not expected.miscopied(footer).columns

    if len(paths) == 1:
        return is_well_read(paths[0])
    with ThreadPoolExecutor(_AT_ONCE) as readers:
        return all(readers.map(is_well_read, paths))


def copied_by_others(entries: Sequence[LogEntry]) -> list[str]:
    """Log paths of files whose rows a writer other than Spark may have copied."""
    return [
        body["path"]
        for entry in entries
        if '"remove"' in entry.text and not entry.is_of_spark and entry.bodies("add", "cdc")
        for body in entry.bodies("remove")
    ]


# Whether entries of the log lead from the files of one version to those of another, by their marks.


def leads_to(before: FilesMark, entries: Sequence[LogEntry], after: Snapshot) -> bool | None:
    """Whether the entries lead from the files of `before` to those of `after`. None if they omit
    the size of a removed file. An entry that only replaces an older entry of its file does not
    count."""
    sums = np.frombuffer(bytes.fromhex(before.digest), np.uint64).copy()
    for entry in entries:
        added, removed = (_sum_of_files(after.path, entry.bodies(n)) for n in ("add", "remove"))
        if added is None or removed is None:
            return None
        sums += added
        sums -= removed
    return sums.tobytes().hex() == after.mark.digest


def _sum_of_files(path: str, bodies: Sequence[Mapping[str, Any]]) -> Words | None:
    sizes = [body.get("size") for body in bodies]
    if any(not isinstance(size, int) for size in sizes):
        return None
    uris = [file_uri(path, body["path"]) for body in bodies]
    deleted = [int((body.get("deletionVector") or {}).get("cardinality") or 0) for body in bodies]
    return sum_of_files(path, uris, np.array(sizes, np.int64), np.array(deleted, np.int64))
