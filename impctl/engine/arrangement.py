"""Keyed state as a few sorted runs, looked up by code and grown by what changed.

Law: `find` answers as if there were one table of the newest row per key. Writing costs the rows
written, plus the merging of small runs, which each row takes part in a logarithmic number of
times: when four of the newest runs are of one size class, they become one (tiered merging).
State is never scanned to look a key up.
Out of scope: what the values mean (`engine.operators`), how runs are kept (`store`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from impctl.data.ragged import slice_positions
from impctl.data.schema import SqlType
from impctl.data.vector import Ints, Vector
from impctl.engine.runs import Run, find_in, from_table, merge_runs

RUNS_PER_TIER = 4
"""Runs of one size class before they are merged; also how much larger the next class is."""
_SMALLEST_TIER = 64
"""Rows below which all runs count as equally small: less than a page is not worth ordering."""


@dataclass(frozen=True, slots=True)
class Located:
    """Where keys were found, run by run: (the run, rows asked for, their positions in it).

    A row that is in no part was not found; `length` is the number of rows asked for.
    """

    parts: tuple[tuple[Run, Ints, Ints], ...]
    length: int


@dataclass(frozen=True, slots=True)
class RunChange:
    """What a checkpoint has to write: runs to keep under their sequence, sequences to drop."""

    put: tuple[tuple[int, pa.Table], ...]
    drop: tuple[int, ...]


class Arrangement:
    """Keyed rows of state; `alive` names the value column that is zero for a key that is gone."""

    def __init__(self, name: str, key_types: Sequence[SqlType], alive: str) -> None:
        self.name = name
        self.key_types = tuple(key_types)
        self.alive = alive
        self._runs: tuple[Run, ...] = ()
        self._saved: frozenset[int] = frozenset()
        self._fresh: frozenset[int] = frozenset()

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs, oldest first; the tuple never changes, so a reader may keep it."""
        return self._runs

    @property
    def rows(self) -> int:
        """Rows over all runs, replaced ones included."""
        return sum(len(run) for run in self._runs)

    @property
    def bytes_held(self) -> int:
        return sum(_bytes(run) for run in self._runs)

    def load(self, tables: Iterable[tuple[int, pa.Table]]) -> None:
        """Take over stored runs; they count as saved."""
        runs = (from_table(sequence, table, len(self.key_types)) for sequence, table in tables)
        self._runs = tuple(sorted(runs, key=lambda run: run.sequence))
        self._saved = frozenset(run.sequence for run in self._runs)
        self._fresh = frozenset()

    def find(self, codes: Ints, keys: Sequence[Vector]) -> Located:
        """The newest row of each key; `codes` of shape (n,)."""
        parts = []
        length = len(codes)
        rows = np.arange(length, dtype=np.int64)
        for run in reversed(self._runs):
            places = find_in(run, self.key_types, codes, keys)
            is_hit = places >= 0
            if not is_hit.any():
                continue
            hits = is_hit.nonzero()[0]
            parts.append((run, rows[hits], places[hits]))
            if len(hits) == len(codes):
                break
            rest = (~is_hit).nonzero()[0]
            rows, codes = rows[rest], codes[rest]
            keys = [key.take(rest) for key in keys]
        return Located(tuple(parts), length)

    def gather(self, located: Located, name: str, dtype: Any = np.int64) -> Any:
        """Values of one column for located keys; zero where absent; shape (n,)."""
        result = np.zeros(located.length, dtype=dtype)
        for run, rows, positions in located.parts:
            column = run.values.get(name)
            if column is not None:
                result[rows] = column[positions]
        return result

    def put(self, codes: Ints, keys: Sequence[Vector], values: Mapping[str, Any]) -> None:
        """Replace the rows of these keys; `codes` ascending, one row per key."""
        if len(codes) == 0:
            return
        sequence = self._runs[-1].sequence + 1 if self._runs else 1
        # Most sums never see a NaN: columns that are all zero are not even kept in memory.
        kept = {name: array for name, array in values.items() if array.any()}
        run = Run(sequence, codes, tuple(key.to_arrow() for key in keys), kept)
        self._runs = _merged((*self._runs, run), self.key_types, self.alive)
        self._fresh = frozenset(
            r.sequence for r in self._runs if r.sequence in self._fresh or r.sequence >= sequence
        )

    def compact(self) -> None:
        """Bring all runs into one if that is likely to make the state much smaller."""
        if not self._runs or self.rows <= 2 * max(len(run) for run in self._runs):
            return
        merged = _fold(self._runs, self.key_types, self.alive, is_oldest=True)
        self._runs = (merged,)
        self._fresh = frozenset({merged.sequence})

    def changes(self) -> RunChange:
        """What changed since the last `saved`, for the checkpoint to write."""
        present = {run.sequence for run in self._runs}
        put = tuple(
            (run.sequence, run.to_arrow()) for run in self._runs if run.sequence in self._fresh
        )
        return RunChange(put, tuple(sorted(self._saved - present)))

    def saved(self) -> None:
        """The last changes are safe now."""
        self._saved = frozenset(run.sequence for run in self._runs)
        self._fresh = frozenset()


def slices(runs: Sequence[Run], low: Ints, high: Ints, name: str) -> tuple[Ints, Ints, Ints]:
    """All living rows with `low[i] <= code < high[i]`: (index i, code, value of column `name`).

    The newest row of a code counts. Only for arrangements whose code is the whole key.
    Cost: the rows in the slices, and a binary search per slice and run.
    """
    owners, codes, values, ranks = [], [], [], []
    for rank, run in enumerate(runs):
        first = np.searchsorted(run.codes, low)
        last = np.searchsorted(run.codes, high)
        positions, owner = slice_positions(first, last)
        column = run.values.get(name)
        owners.append(owner)
        codes.append(run.codes[positions])
        values.append(np.zeros(len(owner), np.int64) if column is None else column[positions])
        ranks.append(np.full(len(owner), rank, dtype=np.int64))
    if not owners:
        nothing = np.zeros(0, dtype=np.int64)
        return nothing, nothing, nothing
    owner, code = np.concatenate(owners), np.concatenate(codes)
    value, rank_of = np.concatenate(values), np.concatenate(ranks)
    if len(runs) > 1:
        order = np.lexsort((rank_of, code, owner))
        owner, code, value = owner[order], code[order], value[order]
        newest = np.ones(len(owner), dtype=np.bool_)
        newest[:-1] = (code[1:] != code[:-1]) | (owner[1:] != owner[:-1])
        owner, code, value = owner[newest], code[newest], value[newest]
    alive = value != 0
    return owner[alive], code[alive], value[alive]


def tier_of(rows: int) -> int:
    """The size class of a run: 64 rows, and four times more for each further class."""
    tier, size = 0, _SMALLEST_TIER
    while rows > size:
        tier, size = tier + 1, size * RUNS_PER_TIER
    return tier


def _merged(runs: tuple[Run, ...], types: Sequence[SqlType], alive: str) -> tuple[Run, ...]:
    """The runs with the newest ones merged as long as four are of one size class."""
    while True:
        tier = tier_of(len(runs[-1]))
        start = len(runs)
        while start > 0 and tier_of(len(runs[start - 1])) <= tier:
            start -= 1
        if len(runs) - start < RUNS_PER_TIER:
            return runs
        merged = _fold(runs[start:], types, alive, is_oldest=start == 0)
        runs = (*runs[:start], merged)


def _fold(runs: Sequence[Run], types: Sequence[SqlType], alive: str, *, is_oldest: bool) -> Run:
    """One run that means all of these; `is_oldest` where no run lies below them."""
    merged = runs[-1]
    for index in range(len(runs) - 2, -1, -1):
        merged = merge_runs(runs[index], merged, types, alive, is_oldest=is_oldest and index == 0)
    return merged


def _bytes(run: Run) -> int:
    keys = sum(int(part.nbytes) for part in run.keys)
    return keys + int(run.codes.nbytes) + sum(int(v.nbytes) for v in run.values.values())
