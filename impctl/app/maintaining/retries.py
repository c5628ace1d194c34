"""Queries that failed for a reason that may pass, in the order in which they are tried again.

Law: each query has a due time of its own, and its pauses grow from one failure to the next until a
try goes well; queries that failed in one run are due together where they failed as often. What is
put off holds up no other query.
Out of scope: what a failure is, and what is run then (`app.follow`).
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from sortedcontainers import SortedKeyList

from impctl.types import QueryName
from impctl.values import dataclass

_LONGEST_PAUSE = 60.0
"""Seconds between two tries at most, unless the first pause is longer."""
_MOST_DOUBLINGS = 64


@dataclass(frozen=True, slots=True)
class _PutOff:
    """A query, when it is tried again, and how often in a row it has failed."""

    query: QueryName
    due: float
    tries: int


class Retries:
    """The queries put off; times are seconds of a clock that never goes back."""

    def __init__(self, first_pause: float) -> None:
        self._first = first_pause
        self._longest = max(_LONGEST_PAUSE, first_pause)
        self._of: dict[QueryName, _PutOff] = {}
        self._by_due = SortedKeyList(key=lambda held: held.due)

    def next_due(self) -> float | None:
        """When the first of them is tried again; None where all is well."""
        return self._by_due[0].due if self._by_due else None

    def waiting(self, now: float) -> frozenset[QueryName]:
        """Those whose time has not come."""
        later = self._by_due.irange_key(min_key=now, inclusive=(False, True))
        return frozenset(held.query for held in later)

    def went_well(self, query: QueryName) -> None:
        """The query is not put off any more."""
        held = self._of.pop(query, None)
        if held is not None:
            self._by_due.remove(held)

    def failed(self, queries: Iterable[QueryName], now: float) -> float | None:
        """Put these off; seconds until the first of them is tried again."""
        # Processes that failed at the same moment do not come back at the same moment.
        share = random.uniform(0.5, 1.0)
        pauses = []
        for query in queries:
            before = self._of.get(query)
            tries = 0 if before is None else min(before.tries, _MOST_DOUBLINGS)
            pauses.append(share * min(self._longest, self._first * 2.0**tries))
            self.went_well(query)
            self._of[query] = _PutOff(query, now + pauses[-1], tries + 1)
            self._by_due.add(self._of[query])
        return min(pauses, default=None)
