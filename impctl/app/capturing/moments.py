"""The constants of the clock that a stored sketch stands for, and whether the clock moved on.

Law: told from what is stored beside the sketch, without reading SQL; a sketch is only used with
the values it stands for.
Out of scope: the constants themselves (`plan.sql.clock`), moving a sketch on
(`app.maintaining.move`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from impctl.app.workbench.workbench import Workbench
from impctl.plan.sql.clock import CURRENT_DATE, HOUR, read_moment
from impctl.store.records import StoredQuery


def stored_moments(stored: StoredQuery) -> Mapping[str, str]:
    """The values by name; none for a query that does not ask the clock."""
    found: Mapping[str, str] = stored.state_meta.get("moments", {})
    return found


def moved_moments(desk: Workbench, stored: StoredQuery) -> Mapping[str, tuple[str, str]]:
    """Those that have another value now, with that of the sketch and that of now."""
    held = stored_moments(stored)
    return {
        name: (before, now)
        for name, before in held.items()
        if (now := desk.clock.text(name, _followed(name, before))) != before
    }


def _followed(name: str, before: str) -> str | None:
    """What a parameter is unless given, by the value that it had."""
    if not name.startswith(":"):
        return None
    return HOUR if isinstance(read_moment(before), datetime) else CURRENT_DATE


def moved_text(moved: Mapping[str, tuple[str, str]]) -> str:
    """What moved, from which value to which."""
    return " and ".join(f"{name} moved from {old} to {new}" for name, (old, new) in moved.items())
