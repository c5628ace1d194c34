"""Tables that a program's calls have open from one to the next.

Law: each call works on the newest versions all the same; what is kept only spares reading a whole
log again. From time to time all are opened anew, whatever a look at their logs says.
Out of scope: whether a log is still the one that was read (`tables.log`).
"""

from __future__ import annotations

import time

from impctl.app.workbench.workbench import Workbench
from impctl.tables.log import Seen
from impctl.types import TableName

_LONGEST = 600.0
"""Seconds after which tables are opened anew."""


class OpenTables:
    """What the calls on one workload have open; of one call after the other."""

    def __init__(self) -> None:
        self._seen: dict[TableName, Seen] = {}
        self._since = time.monotonic()

    def lend(self, desk: Workbench) -> None:
        """Give a run what is open; until it hands it back nobody else has it."""
        if time.monotonic() - self._since < _LONGEST:
            desk.tables.recall(self._seen)
        else:
            self._since = time.monotonic()
        self._seen = {}

    def take_back(self, desk: Workbench) -> None:
        """Keep what a run has used, and what it left alone."""
        self._seen = {**desk.tables.unused, **desk.tables.seen}
