"""Tables whose rows expire: which are live at an instant, and when the next one expires.

Law: a row is live at `now` iff its time is strictly later than `now - after`; a DATE counts as its
midnight in the session's zone. The next expiry is never too late: until then no row of that version
expires, so a result stays valid.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from impctl.data.schema import DATE, TIMESTAMP
from impctl.errors import RecaptureNeededError, TableError, UsageError
from impctl.expr.nodes import Literal
from impctl.plan.nodes import LiveRows
from impctl.sql.parameters import NEVER, zone_of
from impctl.types import ColumnName

if TYPE_CHECKING:
    from impctl.service.context import Context, Versions
    from impctl.tables.snapshot import Snapshot
    from impctl.workload.models import ExpirySpec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SECOND = 1_000_000


def live_rows(expiry: ExpirySpec, snapshot: Snapshot, now: datetime, zone: str) -> LiveRows:
    """The rows of a table that are live at this instant; UsageError if the column is missing or is
    not a time."""
    column = snapshot.schema.find(expiry.column)
    if column is None or column.type not in (DATE, TIMESTAMP):
        problem = "has no such column" if column is None else f"it is of type `{column.type}`"
        raise UsageError(
            f"Rows of table `{snapshot.table}` cannot expire by `{expiry.column}`: {problem}",
            hint="name a column of type TIMESTAMP or DATE under `expiry`",
            code="expiry_column",
            location=expiry.location,
        )
    try:
        edge = now - timedelta(microseconds=expiry.after)
        local = edge.astimezone(zone_of(zone))
    except OverflowError:
        raise UsageError(
            f"Rows of `{snapshot.table}` would expire before the earliest possible time at "
            f"{now.isoformat()}",
            hint="set `--now` or IMPCTL_NOW to a later time",
            code="now_range",
        ) from None
    if column.type == DATE:
        return LiveRows(column.name, Literal((local.date() - _EPOCH.date()).days, DATE))
    return LiveRows(column.name, Literal((edge - _EPOCH) // _MICROSECOND, TIMESTAMP))


def next_expiry(ctx: Context, versions: Versions, now: str) -> str:
    """The next instant at which a row live at `now` expires, or `NEVER`. In whole seconds, as
    instants of runs are; no row expires before it. Reads the column in files that may hold both
    live and expired rows. Empty if they cannot be read without Spark, so that every later run has
    to check."""
    try:
        return _next_expiry(ctx, versions, now)
    except (RecaptureNeededError, TableError):
        return ""


def _next_expiry(ctx: Context, versions: Versions, now: str) -> str:
    instant, zone = datetime.fromisoformat(now), ctx.session_zone
    datetimes: list[datetime] = []
    for table, version in versions.items():
        expiry = ctx.workload.tables[table].expiry
        if expiry is None:
            continue
        snapshot = ctx.tables.snapshot(table, version)
        live = live_rows(expiry, snapshot, instant, zone)
        edge = live.later_than.value
        assert isinstance(edge, int)
        about = ("least above", version, live.column, edge)
        least = ctx.tables.fact(table, about, partial(least_above, snapshot, live.column, edge))
        if least is not None:
            after = timedelta(microseconds=expiry.after)
            # A row that expires after the last representable year never does.
            with suppress(OverflowError):
                next_at = _instant(least, is_day=live.later_than.type == DATE, zone=zone)
                datetimes.append(next_at + after)
    if not datetimes:
        return NEVER
    micros = (min(datetimes) - _EPOCH) // _MICROSECOND
    try:
        return (_EPOCH + timedelta(seconds=-(-micros // _SECOND))).isoformat()
    except OverflowError:
        return NEVER


def _instant(value: int, *, is_day: bool, zone: str) -> datetime:
    if is_day:
        day = date(1970, 1, 1) + timedelta(days=value)
        return datetime.combine(day, time(), zone_of(zone)).astimezone(UTC)
    return _EPOCH + timedelta(microseconds=value)


def least_above(snapshot: Snapshot, column: ColumnName, edge: int) -> int | None:
    """A value above `edge` with no such value of the column below it; None if none is."""
    from impctl.data.vector import from_arrow
    from impctl.tables.rows import read_batches
    from impctl.tables.statistics import file_bounds

    bounds = file_bounds(snapshot, column)
    dead = bounds.is_all_null | (bounds.has_high & (np.asarray(bounds.highs) <= edge))
    is_whole = ~dead & bounds.has_low & (np.asarray(bounds.lows) > edge)
    result = [int(low) for low in bounds.lows[is_whole]]
    torn = [file for file, read in zip(snapshot.files, ~dead & ~is_whole, strict=True) if read]
    for rows in read_batches(snapshot, [column], torn) if torn else ():
        values = from_arrow(rows.column(0), snapshot.readable(column).type)
        later = values.values[values.validity() & (values.values > edge)]
        if len(later):
            result.append(int(later.min()))
    return min(result, default=None)
