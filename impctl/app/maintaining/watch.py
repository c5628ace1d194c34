"""What a following process saw at its last run, and whether there is anything new.

Law: a look costs a few questions to the file system per table; it opens no table and no store. In
doubt, a log that cannot be read included, there is something new: the run itself then says what.
Out of scope: when to look and what to do then (`app.follow`).
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

from impctl.app.capturing.moments import expires
from impctl.app.workbench.workbench import Workbench
from impctl.errors import ImpctlError
from impctl.sql.parameters import HOUR, NEVER, RUN
from impctl.store.catalog import catalog_mark
from impctl.tables.log import Seen, has_new_log, log_end, pinned_anew
from impctl.tables.source import DeltaSource
from impctl.types import TableName

_LONGEST_QUIET = 600.0
"""Seconds after which a run opens everything anew, whatever a look says: for tables in object
stores that were replaced, and for queries that failed and were mended from outside."""


class Watch:
    """Tables and store as the last run left them."""

    def __init__(self) -> None:
        self._seen: dict[TableName, Seen] = {}
        self._stuck: dict[TableName, object] = {}
        """How the logs end that the last run could not open; None of one that cannot be read."""
        self._ends: dict[TableName, object] = {}
        """How those end that could not be opened right before a run: the run may find others."""
        self._store: object = None
        self._hour = ""
        self._expires: str | None = None
        self._looked_anew: float | None = None

    def pinned(self) -> list[DeltaSource]:
        """The tables at their newest versions, for a run; one that cannot be read is left out.

        From time to time none, so that all are opened anew.
        """
        now, self._ends = time.monotonic(), {}
        if self._looked_anew is None or now - self._looked_anew >= _LONGEST_QUIET:
            self._looked_anew = now
            return []
        result = []
        for name, known in self._seen.items():
            try:
                result.append(pinned_anew(known))
            except ImpctlError:
                # The run opens it anew, and tells for the queries that read it what is wrong. What
                # was read of it here may be part of another log: nothing is added to that.
                self._seen[name] = replace(known, mark=None)
                self._ends[name] = _end(known)
        return result

    def saw(self, desk: Workbench) -> None:
        """Remember what a run worked on, once it is over, as it was when the run pinned it.

        Another log may have taken its place since; what is seen of that must not pass for it.
        """
        self._seen.update(desk.tables.seen)
        self._stuck = {
            name: end for name, end in self._ends.items() if name not in desk.tables.seen
        }
        self._hour = desk.clock.text(HOUR)
        # To read the store may change how its files lie there.
        self._expires = _next_expiry(desk)
        self._store = catalog_mark(desk.store_path)

    def is_due(self, desk: Workbench) -> bool:
        """Whether a run may have something to do."""
        now = time.monotonic()
        if self._looked_anew is None or now - self._looked_anew >= _LONGEST_QUIET:
            return True
        if self._store != catalog_mark(desk.store_path) or self._hour != desk.time().text(HOUR):
            return True
        if self._expires is not None and desk.time().text(RUN) >= self._expires:
            return True
        try:
            return any(self._has_moved(known) for known in self._seen.values())
        except ImpctlError:
            return True

    def _has_moved(self, known: Seen) -> bool:
        """Whether the table is another one than the last run worked on, or could not open."""
        name = known.source.name
        if name in self._stuck and self._stuck[name] == _end(known):
            return False
        return has_new_log(known)


def _next_expiry(desk: Workbench) -> str | None:
    """When the first row expires after the run's instant, as its queries have it; None for never.

    What is past that expired for a query that failed, and waits as other failures do.
    """
    if all(table.expiry is None for table in desk.workload.tables.values()):
        return None
    # That of the run may be closed.
    own, result = desk.next_run(()), []
    try:
        for spec in desk.sketched(None):
            # What cannot be read its own run tells.
            with suppress(ImpctlError):
                store = own.reading_store()
                stored = None if store is None else store.load(spec.name)
                result += [] if stored is None else [expires(stored)]
    finally:
        own.close()
    # Texts in one form and zone: in their order.
    later = [at for at in result if at not in ("", NEVER) and at > desk.clock.text(RUN)]
    return min(later, default=None)


def _end(known: Seen) -> object:
    try:
        return log_end(known)
    except ImpctlError:
        return None
