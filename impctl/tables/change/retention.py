"""How long a table keeps what maintaining needs: the commits of its log, and deleted files.

Law: durations are read as Delta writes them (`interval 1 week 2 days`); a text that is not
understood is None, never a default. Without a setting Delta's own defaults hold.
Out of scope: what is gone already (`tables.source`, `tables.change.changes`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta

from impctl.errors import TableError
from impctl.tables.change.commit_time import commit_time
from impctl.tables.commits import Commits, read_entry
from impctl.tables.failures import READ_FAILURES
from impctl.tables.source import DeltaSource
from impctl.types import TableVersion
from impctl.values import dataclass

LOG_RETENTION = "delta.logRetentionDuration"
FILE_RETENTION = "delta.deletedFileRetentionDuration"
_DEFAULTS = {LOG_RETENTION: "interval 30 days", FILE_RETENTION: "interval 1 week"}
_UNREAD: tuple[type[Exception], ...] = (*READ_FAILURES, TableError)
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


@dataclass(frozen=True, slots=True)
class Retention:
    """One of the two durations: the setting, its text, and what it means, None if not known."""

    setting: str
    text: str
    kept: timedelta | None


def retention_of(configuration: Mapping[str, str]) -> tuple[Retention, Retention]:
    """How long log entries and deleted files are kept."""
    texts = {name: configuration.get(name, default) for name, default in _DEFAULTS.items()}
    log, files = (Retention(name, text, duration_of(text)) for name, text in texts.items())
    return log, files


def duration_of(text: str) -> timedelta | None:
    """What `interval 1 week 2 days`, or `9d` for short, means; None for anything else."""
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
    """When a version was committed, in seconds since 1970; None where its log entry is gone."""
    try:
        entry = Commits((read_entry(source, version),), source.name, version - 1)
        return commit_time(source, version, entry.by_commit()[0])
    except _UNREAD:
        return None
