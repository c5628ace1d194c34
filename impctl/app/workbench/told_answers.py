"""Answers from kept rows that a program has told, on their way into the ledger.

Law: each is counted once; a write that fails is tried again with the next answers. A program that
is killed, or never closes its workload, may lose those of its last second.
Out of scope: the ledger (`store.ledger`), who is told what (`app.using`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from impctl.store.ledger import Ledger
from impctl.types import QueryName

_APART = 1.0
"""Seconds between two writes: one waits for the disk, longer than telling an answer takes."""


class ToldAnswers:
    """Counts by query of one store after the other; of one run at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._store: Path | None = None
        self._counts: Counter[QueryName] = Counter()
        self._written = float("-inf")

    def add(self, store: Path, query: QueryName) -> bool:
        """Count an answer; false where the ledger could not be written now that it was time."""
        if store != self._store:
            self.write()
            self._store, self._counts = store, Counter()
        self._counts[query] += 1
        return self._clock() - self._written < _APART or self.write()

    def write(self) -> bool:
        """Bring what was counted into the ledger; false where that could not be done at once."""
        if self._store is None or not self._counts:
            return True
        self._written = self._clock()
        if not Ledger(self._store).record_answers(self._counts, time.time()):
            return False
        self._counts = Counter()
        return True
