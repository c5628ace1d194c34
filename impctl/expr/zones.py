"""Time zones of a session that are a fixed offset from UTC, and times moved between the two.

Law: a name is read exactly as Spark reads it, or not at all. Regions such as `Europe/Berlin` are
not: what they mean depends on tables of zones that change from release to release. A time that
leaves the range of timestamps by the move is left to Spark.
Out of scope: functions of local times (`expr.date_functions`).
"""

from __future__ import annotations

import re

from impctl.data.vector import INT64_MAX, INT64_MIN, Vector
from impctl.errors import NotExactError

_NAMES = frozenset({"Z", "UTC", "GMT", "UT", "Etc/UTC"})
_OFFSET = re.compile(
    r"(?:UTC|GMT|UT)?([+-])(?:([0-9]{1,2})(?::([0-9]{1,2}))?|([0-9]{2})([0-9]{2}))"
)
_MINUTE = 60_000_000
WIDEST_OFFSET = 18 * 60 * _MINUTE
"""Microseconds by which Java lets a time zone differ from UTC, either way."""


def fixed_offset(zone: str) -> int | None:
    """Microseconds that local time is ahead of UTC; None for a zone that is no fixed offset."""
    if zone in _NAMES:
        return 0
    match = _OFFSET.fullmatch(zone)
    if match is None:
        return None
    sign, *parts = match.groups()
    hours, minutes = (int(part or 0) for part in (parts[:2] if parts[2] is None else parts[2:]))
    offset = (hours * 60 + minutes) * _MINUTE
    if minutes > 59 or offset > WIDEST_OFFSET:
        return None
    return -offset if sign == "-" else offset


def offset_of(zone: str) -> int:
    """Its fixed offset, or 0 where there is none, for what a time zone has no part in."""
    offset = fixed_offset(zone)
    return 0 if offset is None else offset


def moved_by(times: Vector, offset: int) -> Vector:
    """Timestamps so many microseconds later; NotExactError where one leaves their range."""
    if offset == 0:
        return times
    values = times.filled()
    if len(values):
        first, last = int(values.min()), int(values.max())
        if first + offset < INT64_MIN or last + offset > INT64_MAX:
            raise NotExactError(
                "A timestamp in the query is too close to the limit of timestamps to be converted "
                "to the session time zone",
                hint="recapture with `impctl capture`, or filter out such rows",
            )
    return Vector(times.type, values + offset, times.valid)
