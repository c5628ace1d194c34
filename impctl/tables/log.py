"""A table's log: its commits, when each came, how much it changed, and how long it is kept."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from impctl.errors import HistoryGoneError, ImpctlError, TableError
from impctl.forecast import KEPT, Arrival, History
from impctl.tables.snapshot import Snapshot, logged_file
from impctl.tables.source import DeltaSource, advance, refresh
from impctl.tables.storage import READ_FAILURES, file_uri, local_path, read_text

if TYPE_CHECKING:
    from impctl.types import TableName, TableVersion


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


# Commits between two versions. Law: `read_commits` answers only if it read every commit of the
# range.

Action = tuple[str, Any]

_OF_SPARK = ("Apache-Spark/", "Databricks-Runtime/")


class LogCommits(Struct, frozen=True, dict=True):
    """The texts of consecutive commits, oldest first; TableError for a damaged entry."""

    # Without slots: the parsed actions are kept beside the texts.
    texts: tuple[str, ...]
    table: TableName
    since: TableVersion

    @property
    def may_change_metadata(self) -> bool:
        """False only if no commit has new metadata or a new protocol."""
        return any('"metaData"' in text or '"protocol"' in text for text in self.texts)

    @property
    def only_move_rows(self) -> bool:
        """True only if files were changed by OPTIMIZE and its like alone. That the new files hold
        the same rows is its writer's claim (`tables.log`)."""
        if self.may_change_metadata or any('"dataChange":true' in text for text in self.texts):
            return False
        return not self._bodies("cdc") and all(
            body.get("dataChange") is False for body in self._bodies("add", "remove")
        )

    def by_commit(self) -> Sequence[Sequence[Action]]:
        """Name and body of every action, per commit, in the log's order."""
        return self._parsed

    @cached_property
    def _parsed(self) -> list[list[Action]]:
        # Not `splitlines`: JSON need not escape U+2028 and the like, which texts may hold.
        lines = ([line for line in text.split("\n") if line.strip()] for text in self.texts)
        return [
            [(name, body) for line in entry for name, body in self._entry(version, line) if body]
            for version, entry in enumerate(lines, start=self.since + 1)
        ]

    def _entry(self, version: TableVersion, line: str) -> Iterable[Action]:
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise _damaged(self.table, version, error) from error
        if not isinstance(entry, dict):
            raise _damaged(self.table, version, f"`{line[:40]}` is not a log entry")
        return entry.items()

    def metadata(self) -> list[dict[str, Any]]:
        """The metadata actions, oldest first."""
        return self._bodies("metaData")

    def files(self) -> list[str]:
        """Log paths of the files a change feed may read: added, removed, change data."""
        return [body["path"] for body in self._bodies("add", "remove", "cdc")]

    def fed(self) -> Iterator[list[Action]]:
        """The actions whose files a change feed reads, per commit: the change data alone if there
        is some; none of a commit that only moves rows."""
        for actions in self.by_commit():
            change_data = [(name, body) for name, body in actions if name == "cdc"]
            yield change_data or [action for action in actions if is_of_rows(action)]

    @property
    def changed_bytes(self) -> int:
        """Bytes of the files a change feed would read; a file of unknown size counts 0."""
        return sum(int(body.get("size") or 0) for actions in self.fed() for _, body in actions)

    def _bodies(self, *names: str) -> list[dict[str, Any]]:
        return [body for actions in self.by_commit() for name, body in actions if name in names]


def is_of_rows(action: Action) -> bool:
    """Whether the action adds or removes a file with its rows."""
    name, body = action
    return name in ("add", "remove") and body.get("dataChange") is not False


def is_of_spark(actions: Sequence[Action]) -> bool:
    """Whether Spark wrote the commit, by its own statement."""
    writers = [body.get("engineInfo") or "" for name, body in actions if name == "commitInfo"]
    return bool(writers) and all(writer.startswith(_OF_SPARK) for writer in writers)


def read_commits(
    source: DeltaSource,
    since: TableVersion,
    until: TableVersion,
    held: Mapping[TableVersion, str] | None = None,
) -> LogCommits | None:
    """The commits after `since` up to `until`; None if one is missing or the range is empty. `held`
    are texts of commits read before. Raises TableError for one that is no text."""
    if until < since:
        return None
    texts = []
    for version in range(since + 1, until + 1):
        try:
            known = None if held is None else held.get(version)
            texts.append(read_entry(source, version) if known is None else known)
        except OSError:
            return None
    return LogCommits(tuple(texts), source.name, since)


def read_entry(source: DeltaSource, version: TableVersion) -> str:
    """The text of one commit; OSError if it cannot be read, TableError if it is no text."""
    name = f"_delta_log/{version:020}.json"
    try:
        text = read_text(source.path, source.storage_options, name)
    except UnicodeDecodeError as error:
        raise _damaged(source.name, version, error) from error
    if not text.strip():
        # No writer makes one: a crash, or a store that returned nothing.
        raise _damaged(source.name, version, "it is empty")
    return text


def _damaged(table: TableName, version: TableVersion, what: object) -> TableError:
    """The error for a commit that cannot be read, maybe not even opened by deltalake."""
    return TableError(
        f"The log entry of version {version} of table `{table}` is damaged: {what}",
        hint=(
            "restore the entry, or write a checkpoint for a later version and run `impctl capture`"
        ),
        code="table_unreadable",
    )


# The time of a commit: its own statement, else that of the entry's file. Law: times are seconds
# since 1970, finite and not negative. A statement that cannot be a time (text, NaN, more than some
# thousand years) is ignored. Times may lie in the future or go back; `forecast` and
# `service.schedule.due` correct that.

_TIMES = ("inCommitTimestamp", "timestamp")
"""Milliseconds since 1970; the first is monotonic, by its writer, the second a machine's clock."""
_LATEST_MS = 1e14


def commit_time(
    source: DeltaSource, version: TableVersion, actions: Sequence[Action]
) -> float | None:
    """The time of this version, whose entry has these actions; None if unknown."""
    infos = [body for name, body in actions if name == "commitInfo" and isinstance(body, Mapping)]
    for body in infos:
        for key in _TIMES:
            seconds = _seconds(body.get(key))
            if seconds is not None:
                return seconds
    path = _entry_path(source, version)
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
    return PinnedTable(source, mark, _entry(source, source.version))


def has_new_log(result: PinnedTable) -> bool:
    """Whether the table has a newer version, or another log, than when it was pinned. Afterwards
    use the source only with functions of this module."""
    source = result.source
    if local_path(source.path) is None:
        return advance(source).version != source.version
    is_longer = _entry(source, source.version + 1) is not None
    return is_longer or _entry(source, source.version) != result.entry


def newest_version(result: PinnedTable) -> TableVersion | None:
    """The newest version after the pinned one; None if another log replaced it."""
    source, version = result.source, result.source.version
    if local_path(source.path) is None:
        return advance(source).version
    if _entry(source, version) != result.entry:
        return None
    while _entry(source, version + 1) is not None:
        version += 1
    return version


def log_end(result: PinnedTable) -> object:
    """A value that changes when the log grows or is replaced. For versions other than the pinned
    one it covers only the folder, which changes with every new entry."""
    source = result.source
    folder = local_path(source.path)
    newest = newest_version(result)
    if folder is None:
        return newest
    at = source.version if newest is None else newest
    return newest, _entry(source, at), _stat(os.path.join(folder, "_delta_log"))


def open_newest(result: PinnedTable) -> DeltaSource:
    """The table at its newest version, by reading only new log entries if that is safe. The old
    source must not be used afterwards."""
    source = result.source
    if result.mark is None:
        return refresh(source)
    moved = advance(source)
    # Looked at afterwards: a table put in its place before or during the reading shows.
    is_same = commit_mark(source, source.version) == result.mark
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


# The time and size of each commit. Law: no data file is opened. A size that the log does not state
# is None.


class Committed(Struct, frozen=True):
    version: TableVersion
    at: float | None
    rows: int | None
    bytes: int
    only_moves: bool


def committed_since(
    source: DeltaSource, since: TableVersion, known: Mapping[TableVersion, Committed]
) -> tuple[Committed, ...] | None:
    """The commits after `since` up to the pinned version; None if one cannot be read. `known` ones
    are not read again. Raises TableError for a damaged entry."""
    result = [known[v] for v in range(since + 1, source.version + 1) if v in known]
    first = since + 1
    while first in known and first <= source.version:
        first += 1
    if first > source.version:
        return tuple(result)
    commits = read_commits(source, first - 1, source.version)
    if commits is None:
        return None
    before = [commit for commit in result if commit.version < first]
    return (*before, *_sizes_of(source, commits))


def _sizes_of(source: DeltaSource, commits: LogCommits) -> list[Committed]:
    result = []
    held: dict[str, int] = {}
    for at, (text, actions) in enumerate(zip(commits.texts, commits.by_commit(), strict=True)):
        version = commits.since + 1 + at
        alone = LogCommits((text,), commits.table, version - 1)
        size = change_size(alone, held)
        held |= records_added(actions)
        when = commit_time(source, version, actions)
        result.append(Committed(version, when, size.rows, size.bytes, alone.only_move_rows))
    return result


# The history of a table, extended by new entries of its log. Law: only entries that were not read
# before are read, at most `KEPT` at once. Commits that only move rows or change none are no
# arrivals, nor is the commit that created the table. A missing or damaged entry leaves a gap, which
# is marked.

_ELSEWHERE = 40
"""Entries read concurrently where each is a request to an object store."""
_MOST = 1 << 62
"""Limit of counts, so that small sums stay within 64 bits."""
_DAMAGED = (ImpctlError, AttributeError, KeyError, TypeError, ValueError)
"""What entries raise that are not JSON, or whose parts have other types than Delta's."""


class _Entries(Struct, frozen=True):
    """The readable entries after `since`, oldest first, and whether more were expected."""

    commits: LogCommits
    times: tuple[float | None, ...]
    signed: Sequence[SignedRows]
    has_missed: bool


def commit_history(
    source: DeltaSource, held: History | None, texts: Mapping[TableVersion, str] | None = None
) -> History:
    """The history up to the pinned version; `texts` are entries read already. If the log now ends
    earlier, only what is before its end is kept. A history of another table is discarded."""
    known = _still_there(source, held)
    if known is not None and known.until == source.version:
        return known
    result = _read(source, known, texts or {})
    new = list(_arrivals(result, known is not None and known.has_missed))
    before = () if known is None else known.arrivals
    kept = (*before, *new)[-KEPT:]
    has_missed = result.has_missed or (known is not None and known.has_missed)
    return History(
        source.table_id,
        source.version,
        _since(known, result, kept, is_cut=len(before) + len(new) > KEPT),
        kept,
        has_missed and not new,
    )


def _still_there(source: DeltaSource, held: History | None) -> History | None:
    """The known history of this very table, up to the end of its log."""
    if held is None or held.table_id != source.table_id:
        return None
    if held.until <= source.version:
        return held
    kept = tuple(arrival for arrival in held.arrivals if arrival.version <= source.version)
    return replace(held, until=source.version, arrivals=kept)


def _since(
    known: History | None, entries: _Entries, kept: Sequence[Arrival], *, is_cut: bool
) -> float | None:
    if is_cut:
        return kept[0].at
    if known is not None and known.since is not None:
        return known.since
    return next((at for at in entries.times if at is not None), None)


def _read(
    source: DeltaSource, known: History | None, texts: Mapping[TableVersion, str]
) -> _Entries:
    """Read the entries after the known ones, from the newest back to the first missing one."""
    most = _ELSEWHERE if local_path(source.path) is None else KEPT
    start = -1 if known is None else known.until
    first = max(start + 1, source.version - most + 1)
    read: list[str] = []
    for version in range(source.version, first - 1, -1):
        text = texts.get(version)
        try:
            read.append(read_entry(source, version) if text is None else text)
        except (OSError, ImpctlError):
            break
    reached = source.version - len(read)
    commits = LogCommits(tuple(reversed(read)), source.name, reached)
    try:
        times = tuple(
            commit_time(source, version, actions)
            for version, actions in enumerate(commits.by_commit(), start=reached + 1)
        )
        return _Entries(commits, times, signed_rows(commits), reached > start)
    except _DAMAGED:
        # A run that needs the entry reports it; one before a checkpoint may never be needed.
        return _Entries(LogCommits((), source.name, source.version), (), (), True)


def _arrivals(entries: _Entries, has_missed: bool) -> Sequence[Arrival]:
    missed = has_missed or entries.has_missed
    arrivals = []
    commits = entries.commits
    rows = zip(commits.by_commit(), commits.fed(), entries.signed, entries.times, strict=True)
    for version, (actions, read, signed, at) in enumerate(rows, start=commits.since + 1):
        if not version or signed == SignedRows(0, 0):
            continue
        arrivals.append(
            Arrival(
                version,
                at,
                _count(signed.inserted),
                _count(signed.deleted),
                len(read),
                _count(sum(_size(body) for _, body in read)) or 0,
                _operation(actions),
                missed,
            )
        )
        missed = False
    return arrivals


def _count(number: int | None) -> int | None:
    return None if number is None else min(max(number, 0), _MOST)


def _size(body: Mapping[str, Any]) -> int:
    size = body.get("size")
    return size if isinstance(size, int) else 0


def _operation(actions: Sequence[Action]) -> str:
    """The operation in `commitInfo`; empty without one."""
    infos = [body for name, body in actions if name == "commitInfo" and isinstance(body, dict)]
    text = next((info["operation"] for info in infos if "operation" in info), None)
    return text[:40].encode("utf-8", "replace").decode() if isinstance(text, str) else ""


# Whether the change since a version can still be read. Law: no data is read. A change is gone only
# if neither the change feed nor a comparison of snapshots can give it. Only local files are checked
# for existence.


def why_gone(source: DeltaSource, since: TableVersion) -> str | None:
    """Why the change from `since` to the pinned version cannot be read; None if it can."""
    commits = read_commits(source, since, source.version)
    folder = local_path(source.path)
    if commits is not None:
        fed = (body["path"] for actions in commits.fed() for _, body in actions)
        needed = [*fed, *copied_by_others(commits)]
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


# The size of a change, by the log alone. Law: no data file is opened. `rows` counts the rows that
# the change feed gives, or more if a writer does not count what it deleted and updated; None if a
# commit does not say. A writer's count is trusted, because the number is only shown or used in an
# estimate.

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
    """Changed rows (None if the log does not say), and the files that hold them."""

    rows: int | None
    files: int
    bytes: int


class SignedRows(Struct, frozen=True):
    """Rows inserted and rows deleted; None if the log does not say."""

    inserted: int | None
    deleted: int | None

    @property
    def rows(self) -> int | None:
        """The sum of both."""
        if self.inserted is None or self.deleted is None:
            return None
        return self.inserted + self.deleted


_NO_ROWS, _UNKNOWN = SignedRows(0, 0), SignedRows(None, None)


def signed_rows(commits: LogCommits) -> list[SignedRows]:
    """What each of these commits inserted and deleted, in order."""
    known: dict[str, int] = {}
    result = []
    for actions, read in zip(commits.by_commit(), commits.fed(), strict=True):
        known |= records_added(actions)
        result.append(_rows(actions, read, known))
    return result


def change_size(commits: LogCommits, held: Mapping[str, int] | None = None) -> ChangeSize:
    """The size of the change that these commits make together. `held` are known row counts of
    earlier files by path: the entry of a removed file need not repeat them."""
    known = dict(held or {})
    rows: int | None = 0
    files = size = 0
    for actions, read in zip(commits.by_commit(), commits.fed(), strict=True):
        known |= records_added(actions)
        files += len(read)
        size += sum(int(body.get("size") or 0) for _, body in read)
        result = _rows(actions, read, known).rows
        rows = None if rows is None or result is None else rows + result
    return ChangeSize(rows, files, size)


def _rows(
    actions: Sequence[Action], read: Sequence[Action], known: Mapping[str, int]
) -> SignedRows:
    if not read:
        return _NO_ROWS
    counted = _counted_by_the_writer(actions)
    if counted is not None:
        return counted
    if any(name == "cdc" for name, _ in read):
        return _UNKNOWN
    # Rows copied from file to file count; the files are not compared.
    live: dict[str, int] = {}
    unknown = set()
    for name, body in read:
        held = _live_rows(body, known)
        if held is None:
            unknown.add(name)
            continue
        # The same file twice is a file whose deletion vector changed.
        path = body["path"]
        live[path] = live.get(path, 0) + (held if name == "add" else -held)
    inserted = sum(rows for rows in live.values() if rows > 0)
    deleted = -sum(rows for rows in live.values() if rows < 0)
    return SignedRows(
        None if "add" in unknown else inserted, None if "remove" in unknown else deleted
    )


def _counted_by_the_writer(actions: Sequence[Action]) -> SignedRows | None:
    for name, body in actions:
        metrics = body.get("operationMetrics") if name == "commitInfo" and body else None
        if isinstance(metrics, Mapping):
            known = [key for key in metrics if key in _SIGNS_OF_METRIC]
            try:
                counts = [(int(metrics[key]), _SIGNS_OF_METRIC[key]) for key in known]
            except (TypeError, ValueError):
                return None
            if not counts:
                return None
            inserted = sum(count * signs[0] for count, signs in counts)
            return SignedRows(inserted, sum(count * signs[1] for count, signs in counts))
    return None


def _live_rows(body: Mapping[str, Any], known: Mapping[str, int]) -> int | None:
    records = _records_of(body)
    rows = known.get(body["path"]) if records is None else records
    if rows is None:
        return None
    return max(0, rows - int((body.get("deletionVector") or {}).get("cardinality") or 0))


def records_added(actions: Sequence[Action]) -> dict[str, int]:
    """Rows by the path of each added file, including deleted ones."""
    added = [body for name, body in actions if name == "add"]
    return {body["path"]: rows for body in added if (rows := _records_of(body)) is not None}


def _records_of(body: Mapping[str, Any]) -> int | None:
    try:
        rows = json.loads(body.get("stats") or "{}").get("numRecords")
    except (ValueError, AttributeError):
        return None
    return rows if isinstance(rows, int) else None


class PendingCommits(Struct, frozen=True):
    """Commits since a version, and what they changed; None if the log does not say."""

    versions: int
    files: int | None
    rows: int | None
    bytes: int | None


def pending_changes(source: DeltaSource, since: TableVersion) -> PendingCommits:
    """Everything committed after `since` up to the pinned version."""
    versions = max(source.version - since, 0)
    if not versions:
        return PendingCommits(0, 0, 0, 0)
    commits = read_commits(source, since, source.version)
    if commits is None:
        return PendingCommits(versions, None, None, None)
    size = change_size(commits)
    if size.rows is None:
        # Files from before the range were removed, and the log did not repeat their statistics.
        size = change_size(commits, _rows_at(source, since))
    return PendingCommits(versions, size.files, size.rows, size.bytes)


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
    total, at = timedelta(0), 0
    while at < len(rest):
        part = _PART.match(rest, at)
        unit = None if part is None else _UNITS.get(part[2]) or _UNITS.get(part[2].rstrip("s"))
        if part is None or unit is None:
            return None
        try:
            total += int(part[1]) * unit
        except OverflowError:
            return timedelta.max
        at = part.end()
    return total if rest else None


def committed_at(source: DeltaSource, version: TableVersion) -> float | None:
    """When a version was committed, in seconds since 1970; None if its log entry is gone."""
    try:
        entry = LogCommits((read_entry(source, version),), source.name, version - 1)
        return commit_time(source, version, entry.by_commit()[0])
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


def has_faithful_copies(commits: LogCommits, after: Snapshot) -> bool:
    """Whether these commits' copies are surely right; `after` has the columns."""
    from impctl.tables.files import DataFiles, ExpectedNames

    paths = copied_by_others(commits)
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


def copied_by_others(commits: LogCommits) -> list[str]:
    """Log paths of files whose rows a writer other than Spark may have copied."""
    if not any('"remove"' in text for text in commits.texts):
        return []
    return [
        body["path"]
        for actions in commits.by_commit()
        if not is_of_spark(actions) and any(name in ("add", "cdc") for name, _ in actions)
        for name, body in actions
        if name == "remove"
    ]


# A mark of a table's files, by which its history is recognized after its log was cleaned up. Law:
# equal marks mean the same files (path, size, number of deleted rows) in any order. The mark of a
# version plus the files that commits add minus those they remove is the mark of the later version.
# Like a checksum, it detects accidents, not forgery. Cost: one columnar pass over the add actions.

_Words = npt.NDArray[np.uint64]
_Numbers = npt.NDArray[np.int64]

_LANES = 2
"""Sums of 64 bits each: 20,000 files in a million tables do not collide by chance."""
_PIECE = 4096
"""Files hashed at once, which bounds the memory for long names."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class FilesMark(Struct, frozen=True, forbid_unknown_fields=True):
    """A digest of a table's files at one version; `rows` by statistics, None if one is missing."""

    digest: str
    rows: int | None


def files_mark(snapshot: Snapshot) -> FilesMark:
    """The mark of a snapshot that was read completely."""
    return FilesMark(_sum_of(snapshot).tobytes().hex(), snapshot.rows)


def leads_to(before: FilesMark, commits: LogCommits, after: Snapshot) -> bool | None:
    """Whether the commits lead from the files of `before` to those of `after`. None if they omit
    the size of a removed file. An entry that only replaces an older entry of its file does not
    count."""
    sums = np.frombuffer(bytes.fromhex(before.digest), np.uint64).copy()
    for actions in commits.by_commit():
        added, removed = (_sum_of_actions(after.path, actions, n) for n in ("add", "remove"))
        if added is None or removed is None:
            return None
        sums += added
        sums -= removed
    return bool(np.array_equal(sums, _sum_of(after)))


def _sum_of(snapshot: Snapshot) -> _Words:
    deleted = np.zeros(len(snapshot.uris), np.int64)
    if snapshot.deletions:
        deletions = snapshot.deletions
        deleted[:] = [len(deletions[uri]) if uri in deletions else 0 for uri in snapshot.uris]
    sizes = snapshot.actions.column("size_bytes").to_numpy()
    return _sums(_names(snapshot.path, snapshot.uris), sizes, deleted)


def _sum_of_actions(path: str, actions: Sequence[Action], wanted: str) -> _Words | None:
    bodies = [body for name, body in actions if name == wanted]
    sizes = [body.get("size") for body in bodies]
    if any(not isinstance(size, int) for size in sizes):
        return None
    names = _names(path, [file_uri(path, body["path"]) for body in bodies])
    deleted = [int((body.get("deletionVector") or {}).get("cardinality") or 0) for body in bodies]
    return _sums(names, np.array(sizes, np.int64), np.array(deleted, np.int64))


def _names(path: str, uris: Sequence[str]) -> list[bytes]:
    """Names relative to the root where possible: these survive moving the table."""
    root = path.rstrip("/") + "/"
    return [uri.removeprefix(root).encode() for uri in uris]


def _sums(names: list[bytes], sizes: _Numbers, deleted: _Numbers) -> _Words:
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


def _words(names: list[bytes], sizes: _Numbers, deleted: _Numbers) -> _Words:
    """A row of words per file: size, deleted rows, the bytes of its name."""
    # NumPy fills up with zeros, which no name ends with.
    wide = -(-max(map(len, names)) // 8)
    content = np.array(names, f"S{wide * 8}").view(np.uint64).reshape(len(names), wide)
    numbers = np.stack([sizes, deleted], axis=1).astype(np.uint64)
    return np.concatenate([numbers, content], axis=1)


def _mixed(words: _Words) -> _Words:
    """Mix the bits of each word (the finalizer of splitmix64)."""
    words = words + _GOLDEN
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
