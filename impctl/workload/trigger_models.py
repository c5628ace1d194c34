"""When a query is to be maintained, as its file says it: frozen values.

Law: a trigger here is complete and can come true; `commit` and `use` stand alone, and what goes
with something else stands beside it. Durations are seconds.
Out of scope: reading it from a file (`workload.triggers`), when that is (`app.maintaining.due`).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, tzinfo
from enum import StrEnum

from impctl.values import dataclass
from impctl.workload.cron import Cron
from impctl.workload.durations import written


class Alone(StrEnum):
    """A trigger that stands alone: after each commit, or when the sketch is used."""

    COMMIT = "commit"
    USE = "use"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """When to maintain: the first that comes of what is not None.

    So many `rows` pending, a multiple of `every` since midnight, a time of `cron`, `fresh_within`
    after a commit at the latest, or when the `point` is named. `cheap`: earlier, if nothing else is
    due. `ready_within` bounds what is left to do at the moment itself.
    """

    alone: Alone | None = None
    rows: int | None = None
    every: float | None = None
    cron: Cron | None = None
    timezone: str | None = None
    fresh_within: float | None = None
    point: str | None = None
    ready_within: float | None = None
    cheap: bool = False

    @property
    def is_on_commit(self) -> bool:
        return self.alone is Alone.COMMIT

    @property
    def zone(self) -> tzinfo:
        """The time zone in which moments of `every` and `cron` are."""
        result = zone_named(self.timezone or "UTC")
        assert result is not None, "a trigger with an unknown time zone is refused when it is read"
        return result

    @property
    def text(self) -> str:
        """As the file says it, for people."""
        return ", ".join(self._words())

    def _words(self) -> Iterator[str]:
        if self.alone is not None:
            yield str(self.alone)
        if self.fresh_within is not None:
            yield f"fresh_within {written(self.fresh_within)}"
        if self.rows is not None:
            yield f"rows {self.rows}"
        where = "" if self.timezone is None else f" {self.timezone}"
        if self.every is not None:
            yield f"every {written(self.every)}{where}"
        if self.cron is not None:
            yield f"cron {self.cron.written}{where}"
        if self.point is not None:
            yield f"point {self.point}"
        if self.ready_within is not None:
            yield f"ready_within {written(self.ready_within)}"
        if self.cheap:
            yield "cheap"


ON_COMMIT = Trigger(alone=Alone.COMMIT)
"""What holds where a file says nothing."""


def zone_named(name: str) -> tzinfo | None:
    """The time zone; None where this machine does not know it. `UTC` needs no table of zones."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None
