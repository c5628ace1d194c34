"""The constants of the clock that a stored sketch stands for, and whether the clock moved on.

Law: told from what is stored beside the sketch, without reading SQL; a sketch is only used with
the values it stands for. The instant at which rows are live never goes back, and it may go on
unnoticed as long as no row expires.
Out of scope: the constants themselves (`sql.parameters`), moving a sketch on
(`app.maintaining.move`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from impctl.app.capturing.pins import is_current
from impctl.app.workbench.workbench import Workbench
from impctl.errors import UnsupportedError
from impctl.sql.parameters import CURRENT_DATE, HOUR, NEVER, RUN, read_moment
from impctl.store.records import StoredQuery


def stored_moments(stored: StoredQuery) -> Mapping[str, str]:
    """The values by name; none for a query that does not ask the clock."""
    result: Mapping[str, str] = stored.state_meta.get("moments", {})
    return result


def moved_moments(desk: Workbench, stored: StoredQuery) -> Mapping[str, tuple[str, str]]:
    """Those that have another value now, with that of the sketch and that of now.

    The instant of the run itself only where a row may have expired since, or the clock went back:
    as with versions, a run goes on to what another process has reached meanwhile.
    """
    held = stored_moments(stored)
    if RUN in held and read_moment(held[RUN]) > desk.clock.value(RUN):
        desk.look_at_clock_again()
    moved = {
        name: (before, now)
        for name, before in held.items()
        if (now := desk.clock.text(name, _followed(name, before))) != before
    }
    if RUN in moved and _is_still(desk, stored, *moved[RUN]):
        del moved[RUN]
    return moved


def still(stored: StoredQuery) -> Mapping[str, str]:
    """The instant that a sketch stands for, to read its query with where it has not moved."""
    held = stored_moments(stored)
    return {RUN: held[RUN]} if RUN in held else {}


def expires(stored: StoredQuery) -> str:
    """The next instant at which a row expires, as of what is stored; `NEVER`, or empty where
    nobody looked or no row expires."""
    return str(stored.state_meta.get("expires", ""))


def check_clock(desk: Workbench, stored: StoredQuery) -> None:
    """UnsupportedError where a sketch knows of a later instant: what expired is not live again."""
    before = stored_moments(stored).get(RUN)
    if before is not None and read_moment(before) > desk.clock.value(RUN):
        raise UnsupportedError(
            f"The current time is {desk.clock.text(RUN)}, but the sketch of query "
            f"`{stored.query}` is already valid at {before}",
            code="clock_went_back",
            hint="correct the system clock, `--now` or IMPCTL_NOW; to start again at an earlier "
            "time, run `impctl capture`",
        )


def _is_still(desk: Workbench, stored: StoredQuery, before: str, now: str) -> bool:
    """Whether the same rows are live at both instants."""
    until = expires(stored)
    is_later = read_moment(before) <= read_moment(now)
    is_before = until == NEVER or (until != "" and read_moment(now) < read_moment(until))
    return is_later and is_before and is_current(stored, desk.tables)


def _followed(name: str, before: str) -> str | None:
    """What a parameter is unless given, by the value that it had."""
    if not name.startswith(":"):
        return None
    return HOUR if isinstance(read_moment(before), datetime) else CURRENT_DATE


def moved_text(moved: Mapping[str, tuple[str, str]]) -> str:
    """What moved, from which value to which."""
    return " and ".join(_moved_text(name, old, new) for name, (old, new) in moved.items())


def _moved_text(name: str, old: str, new: str) -> str:
    if name != RUN:
        return f"{name} changed from {old} to {new}"
    if read_moment(new) < read_moment(old):
        return f"the current time went back from {old} to {new}"
    return f"rows may have expired between {old} and {new}"
