"""What is pending for a query: the commits that its sketch does not have, with their times.

Law: told by what is stored and by the tables' logs, without reading SQL or data. Times never go
back and never lie in the future: a commit that says so came with the one before it, or counts as
one without a time. It may not count as of now, since there is a new now at each look, and a bound
from there on would never end. What the logs do not tell (another table at the path, a definition
that changed) is `unsure`, and who is unsure maintains.
Out of scope: what a trigger makes of it (`app.maintaining.due.when`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from datetime import UTC, date, datetime, time, timedelta

from impctl.app.capturing.definition import is_captured_alike
from impctl.app.capturing.moments import expires, moved_moments
from impctl.app.capturing.pins import catch_up, is_current
from impctl.app.workbench.workbench import Workbench
from impctl.errors import ImpctlError
from impctl.sql.parameters import NEVER, RUN, read_moment, zone_of
from impctl.store.records import StoredQuery, TablePin
from impctl.tables.log import Committed, committed_since
from impctl.tables.source import DeltaSource
from impctl.types import TableName, TableVersion
from impctl.values import dataclass
from impctl.workload.models import QuerySpec

_TOLERATED = 5.0
"""Seconds by which clocks of two machines may well differ: so much ahead is now."""


@dataclass(frozen=True, slots=True)
class Change:
    """A commit, or the clock that moved: seconds since 1970, rows (None: not told) and bytes."""

    at: float
    rows: int | None
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Pending:
    """Changes by their times; `unsure` says why they may not be all, None where they are.

    `moved_at` is when the first version came that the sketch does not have, be it one that changes
    no row. `mark` is equal for equal things pending. `moved` are the tables that went on.
    """

    changes: tuple[Change, ...] = ()
    unsure: str | None = None
    moved_at: float | None = None
    mark: object = None
    moved: tuple[TableName, ...] = ()

    @property
    def oldest(self) -> float | None:
        """When the first of the changes came."""
        return self.changes[0].at if self.changes else None

    @property
    def is_some(self) -> bool:
        """Whether a sketch may lack rows."""
        return bool(self.changes) or self.unsure is not None

    @property
    def rows(self) -> int | None:
        """Rows of all changes; None where one is not told."""
        rows = [change.rows for change in self.changes if change.rows is not None]
        return sum(rows) if len(rows) == len(self.changes) else None

    @property
    def bytes(self) -> int:
        """Bytes of all changes."""
        return sum(change.bytes for change in self.changes)


@dataclass(slots=True)
class CommitLog:
    """Commits that were read, so that none is read twice by a process that follows."""

    _known: dict[tuple[TableName, str], dict[TableVersion, Committed]] = field(default_factory=dict)

    def since(self, source: DeltaSource, version: TableVersion) -> tuple[Committed, ...] | None:
        """The commits after `version`, as of `committed_since`."""
        known = self._known.setdefault((source.name, source.table_id), {})
        result = committed_since(source, version, known)
        known.update({one.version: one for one in result or ()})
        return result

    def __len__(self) -> int:
        """How many are held."""
        return sum(len(known) for known in self._known.values())

    def keep(self, pins: Iterable[TablePin]) -> None:
        """Forget all but what comes after one of these versions."""
        least: dict[TableName, TableVersion] = {}
        for pin in pins:
            least[pin.table] = min(pin.version, least.get(pin.table, pin.version))
        for (table, _), known in self._known.items():
            for version in [v for v in known if table not in least or v <= least[table]]:
                del known[version]


def pending_of(
    desk: Workbench, spec: QuerySpec, stored: StoredQuery | None, now: float, log: CommitLog
) -> Pending:
    """What the sketch of this query does not have at the pinned versions."""
    if stored is None:
        return Pending(unsure="it was never captured", mark="not captured")
    try:
        return _pending(desk, spec, stored, now, log)
    except ImpctlError as error:
        return Pending(unsure=error.message, mark=error.message)


def _pending(
    desk: Workbench, spec: QuerySpec, stored: StoredQuery, now: float, log: CommitLog
) -> Pending:
    catch_up(desk.tables, stored)
    moved = moved_moments(desk, stored)
    # Of expiry there is a new instant at each look, though nothing else need be pending.
    told = {name: values for name, values in moved.items() if name != RUN} | dict.fromkeys(
        moved.keys() & {RUN}
    )
    mark = (stored.generation, tuple(desk.tables.versions_of(stored.versions).items()), str(told))
    if not is_captured_alike(desk, spec, stored):
        return Pending(unsure="the query or impctl changed since the capture", mark=mark)
    if is_current(stored, desk.tables) and not moved:
        return Pending(mark=mark)
    changes: list[Change] = []
    tables: list[TableName] = []
    moved_at: list[float] = []
    for pin in stored.pins:
        commits = _commits(desk.tables.source(pin.table), pin, log)
        if commits is None:
            return Pending(unsure=f"the log of table `{pin.table}` does not show it", mark=mark)
        said = [one.at for one in commits]
        if stored.maintained_at > now and any(not _is_told(at, now) for at in said[:1]):
            # The clock was put back, so the sketch says no more than the commit.
            why = f"the times of the changes of table `{pin.table}` are unknown"
            return Pending(unsure=why, mark=mark)
        times = in_order(said, stored.maintained_at, now)
        moved_at += times[:1]
        tables += [pin.table] if commits else []
        changes += [
            Change(at, one.rows, one.bytes)
            for at, one in zip(times, commits, strict=True)
            if not one.only_moves
        ]
    if moved:
        turned = min(
            _expired(stored, now) if name == RUN else _turned(before, to, desk.session_zone)
            for name, (before, to) in moved.items()
        )
        changes.append(Change(min(turned, now), None))
        moved_at.append(min(turned, now))
    if not moved_at:
        # Versions are the stored ones, and yet it is not current: another log stands there.
        return Pending(unsure="a table is not the one the sketch was captured from", mark=mark)
    ordered = tuple(sorted(changes, key=lambda change: change.at))
    return Pending(ordered, None, min(moved_at), mark, tuple(sorted(tables)))


def _commits(source: DeltaSource, pin: TablePin, log: CommitLog) -> tuple[Committed, ...] | None:
    """The table's commits since its pin; None where they are not to be had."""
    if source.table_id != pin.table_id or source.version < pin.version:
        return None
    return log.since(source, pin.version)


def in_order(times: Iterable[float | None], since: float, now: float) -> list[float]:
    """Times of commits, one after the other: none before the one before it, none after `now`.

    Of a commit without a time, or with one in the future, the one before it tells; of the first
    one, when the sketch was last brought up to date (`since`), which is the longest ago that it
    can be.
    """
    result: list[float] = []
    for at in times:
        known = [*result[-1:], *([at] if at is not None and _is_told(at, now) else [])]
        result.append(min(max(known, default=since), now))
    return result


def _is_told(at: float | None, now: float) -> bool:
    """Whether a commit says a time that can be."""
    return at is not None and at <= now + _TOLERATED


def _expired(stored: StoredQuery, now: float) -> float:
    """When the first row expired that the sketch still has, as far as anybody looked."""
    until = expires(stored)
    return now if until in ("", NEVER) else datetime.fromisoformat(until).timestamp()


def _turned(before: str, to: str, zone: str) -> float:
    """When the clock went on from one value of a moment, as far as its values tell."""
    was, now = read_moment(before), read_moment(to)
    if isinstance(was, datetime) or isinstance(now, datetime):
        assert isinstance(now, datetime)
        return now.astimezone(UTC).timestamp()
    following: date = was + timedelta(days=1)
    return datetime.combine(following, time(), zone_of(zone)).timestamp()
