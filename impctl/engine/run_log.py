"""The runs of one piece of keyed state: which there are, when they merge, what a checkpoint writes.

Law: runs have ascending sequences, newer ones last. When four of the newest are of one size class
(64 rows, times four per class) or smaller, they become one, so a row takes part in a logarithmic
number of merges. A checkpoint writes the runs that are new since the last one and names those that
went; a run that merged to nothing is gone.
Out of scope: what a run holds and how two become one (whoever owns the log).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Generic, Protocol, Self, TypeVar

import pyarrow as pa

from impctl.values import dataclass

_RUNS_PER_TIER = 4
"""Runs of one size class before they are merged; also how much larger the next class is."""
_SMALLEST_TIER = 64
"""Rows below which all runs count as equally small: less than a page is not worth ordering."""


@dataclass(frozen=True, slots=True)
class RunChange:
    """What a checkpoint has to write: runs to keep under their sequence, sequences to drop."""

    put: tuple[tuple[int, pa.Table], ...]
    drop: tuple[int, ...]


class AnyRun(Protocol):
    """What the log asks of a run."""

    @property
    def sequence(self) -> int: ...

    def __len__(self) -> int: ...


R = TypeVar("R", bound=AnyRun)


class RunLog(Generic[R]):
    """Runs of one kind; `merge` makes one of several, told whether no older run lies below."""

    def __init__(
        self, merge: Callable[[Sequence[R], bool], R], to_arrow: Callable[[R], pa.Table]
    ) -> None:
        self._merge = merge
        self._to_arrow = to_arrow
        self._runs: tuple[R, ...] = ()
        self._saved: frozenset[int] = frozenset()
        self._fresh: frozenset[int] = frozenset()

    @property
    def runs(self) -> tuple[R, ...]:
        """The runs, oldest first; the tuple never changes, so a reader may keep it."""
        return self._runs

    @property
    def rows(self) -> int:
        """Rows over all runs, replaced and cancelled ones included."""
        return sum(len(run) for run in self._runs)

    @property
    def next_sequence(self) -> int:
        """The sequence that a run to append must have."""
        return self._runs[-1].sequence + 1 if self._runs else 1

    def append(self, run: R) -> None:
        """Take up a run, and merge the newest ones where there are enough of a size."""
        runs = [*self._runs, run]
        while (start := _crowded(runs)) is not None:
            merged = self._merge(runs[start:], start == 0)
            runs = [*runs[:start], merged] if len(merged) else runs[:start]
        self._runs = tuple(runs)
        self._fresh = frozenset(
            r.sequence for r in runs if r.sequence in self._fresh or r.sequence >= run.sequence
        )

    def clear(self) -> None:
        """Forget all runs; what is appended then may have their sequences, and replaces them."""
        self._runs, self._fresh = (), frozenset()

    def as_it_stands(self) -> Self:
        """The same runs in a log of their own."""
        return copy(self)

    def compact(self) -> None:
        """Bring all runs into one if that is likely to make the state much smaller."""
        if not self._runs or self.rows <= 2 * max(len(run) for run in self._runs):
            return
        merged = self._merge(self._runs, True)
        self._runs = (merged,) if len(merged) else ()
        self._fresh = frozenset(run.sequence for run in self._runs)

    def load(self, runs: Iterable[R]) -> None:
        """Take over stored runs; they count as saved."""
        self._runs = tuple(sorted(runs, key=lambda run: run.sequence))
        self._saved = frozenset(run.sequence for run in self._runs)
        self._fresh = frozenset()

    def changes(self) -> RunChange:
        """What changed since the last `saved`, for the checkpoint to write."""
        present = {run.sequence for run in self._runs}
        put = tuple(
            (run.sequence, self._to_arrow(run)) for run in self._runs if run.sequence in self._fresh
        )
        return RunChange(put, tuple(sorted(self._saved - present)))

    def saved(self) -> None:
        """The last changes are safe now."""
        self._saved = frozenset(run.sequence for run in self._runs)
        self._fresh = frozenset()


def _tier_of(rows: int) -> int:
    """The least class of that size: each is 4 times the one before, two bits more."""
    return ((max(rows, 1) - 1) // _SMALLEST_TIER).bit_length() + 1 >> 1


def _crowded(runs: Sequence[AnyRun]) -> int | None:
    """Where the newest runs of one size class begin, if there are enough of them to merge."""
    if len(runs) < _RUNS_PER_TIER:
        return None
    most = _SMALLEST_TIER * _RUNS_PER_TIER ** _tier_of(len(runs[-1]))
    start = len(runs) - 1
    while start > 0 and len(runs[start - 1]) <= most:
        start -= 1
    return start if len(runs) - start >= _RUNS_PER_TIER else None
