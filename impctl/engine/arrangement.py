"""Keyed state as a few sorted runs, looked up by code and grown by what changed.

Law: `find` answers as if there were one table of the newest row per key. Writing costs the rows
written, plus the merging of small runs, which each row takes part in a logarithmic number of
times: when four of the newest runs are of one size class, they become one (tiered merging).
State is never scanned to look a key up.
Out of scope: what the values mean (`engine.operators`), how runs are kept (`store`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, Self

import numpy as np
import pyarrow as pa

from impctl.data.keys import ends_of
from impctl.data.memory import reserve
from impctl.data.pages import StoredTable, check_each, checked_places, search
from impctl.data.schema import SqlType
from impctl.data.vector import Ints, Vector, slice_positions
from impctl.engine.run_log import RunChange, RunLog
from impctl.engine.runs import Run, from_table, hits_in, merge_at_once, merge_runs
from impctl.values import dataclass

_MANY = 1 << 14
"""Rows of runs that may be worth weighing before they are merged."""


@dataclass(frozen=True, slots=True)
class Located:
    """Where keys were found, run by run: (the run, rows asked for, their positions in it).

    A row that is in no part was not found; `length` is the number of rows asked for.
    """

    parts: tuple[tuple[Run, Ints, Ints], ...]
    length: int


class Arrangement:
    """Keyed rows of state; `alive` names the value column that is zero for a key that is gone."""

    def __init__(
        self,
        name: str,
        key_types: Sequence[SqlType],
        alive: str,
        columns: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        """`columns` gives the value columns and their NumPy types; by default `alive` alone."""
        self.name = name
        self.key_types = tuple(key_types)
        self.alive = alive
        self._columns = columns
        self._log: RunLog[Run] = RunLog(partial(_folded, self.key_types, alive), Run.to_arrow)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs, oldest first; the tuple never changes, so a reader may keep it."""
        return self._log.runs

    @property
    def rows(self) -> int:
        """Rows over all runs, replaced ones included."""
        return self._log.rows

    @property
    def bytes_held(self) -> int:
        return sum(_bytes(run) for run in self.runs)

    def load(self, tables: Iterable[tuple[int, StoredTable]]) -> None:
        """Take over stored runs; they count as saved. Fails on columns that are not its own."""
        kinds = {self.alive: np.int64} if self._columns is None else self._columns()
        self._log.load(
            from_table(sequence, table, self.key_types, kinds) for sequence, table in tables
        )

    def find(self, codes: Ints, keys: Sequence[Vector]) -> Located:
        """The newest row of each key; `codes` of shape (n,)."""
        parts = []
        length = left = len(codes)
        rows = np.arange(length, dtype=np.int64)
        taken = np.zeros(length, dtype=np.bool_)
        for run in reversed(self.runs) if length else ():
            hits, places = hits_in(run, self.key_types, codes, keys)
            if left < len(codes):
                free = ~taken[hits]
                hits, places = hits[free], places[free]
            if not len(hits):
                continue
            parts.append((run, rows[hits], places))
            left -= len(hits)
            if not left:
                break
            taken[hits] = True
            if 2 * left < len(codes):
                # Asking for what is found already costs less than picking out the rest of many.
                rest = (~taken).nonzero()[0]
                rows, codes, taken = rows[rest], codes[rest], taken[rest]
                keys = [key.take(rest) for key in keys]
        return Located(tuple(parts), length)

    def gather(self, located: Located, name: str, dtype: Any = np.int64) -> Any:
        """Values of one column for located keys; zero where absent; shape (n,)."""
        if len(located.parts) == 1 and len(located.parts[0][1]) == located.length:
            # All in one run, as after its merge: in the order asked for.
            run, _, positions = located.parts[0]
            match = run.checked_values(name, positions)
            if match is not None:
                return match.astype(dtype, copy=False)
        result = np.zeros(located.length, dtype=dtype)
        for run, rows, positions in located.parts:
            match = run.checked_values(name, positions)
            if match is not None:
                result[rows] = match
        return result

    def put(self, codes: Ints, keys: Sequence[Vector], values: Mapping[str, Any]) -> None:
        """Replace the rows of these keys; `codes` ascending, one row per key."""
        if len(codes) == 0:
            return
        # Most sums never see a NaN: columns that are all zero are not even kept in memory.
        kept = {name: array for name, array in values.items() if array.any()}
        arrays = tuple(key.to_arrow() for key in keys)
        self._log.append(Run(self._log.next_sequence, codes, arrays, kept))

    def clear(self) -> None:
        """Forget all rows, and with them what columns they had."""
        self._log.clear()

    def whole(self) -> Run | None:
        """All living rows as one run, which this does not change; None without any."""
        if not self.runs:
            return None
        run = _folded(self.key_types, self.alive, self.runs, True)
        alive = run.values.get(self.alive)
        if alive is None:
            return None
        living = np.flatnonzero(alive != 0)
        if len(living) == 0:
            return None
        if len(living) == len(run):
            return run
        keys = tuple(part.take(pa.array(living)) for part in run.keys)
        values = {name: column[living] for name, column in run.values.items()}
        return Run(run.sequence, run.codes[living], keys, values)

    def as_it_stands(self) -> Self:
        """The same state, to be read while this one goes on. Cost: its runs, not their rows."""
        result = copy(self)
        result._log = self._log.as_it_stands()
        return result

    def compact(self) -> None:
        """Bring all runs into one if that is likely to make the state much smaller."""
        self._log.compact()

    def changes(self) -> RunChange:
        """What changed since the last `saved`, for the checkpoint to write."""
        return self._log.changes()

    def saved(self) -> None:
        """The last changes are safe now."""
        self._log.saved()


def slices(runs: Sequence[Run], low: Ints, high: Ints, name: str) -> tuple[Ints, Ints, Ints]:
    """All living rows with `low[i] <= code < high[i]`: (index i, code, value of column `name`).

    The newest row of a code counts; rows are sorted by index, then by code. Only for arrangements
    whose code is the whole key.
    Cost: the rows in the slices, and a binary search per slice and run.
    """
    order = None
    if not bool((low[1:] >= low[:-1]).all()):
        order = np.argsort(low, kind="stable")
        low, high = low[order], high[order]
    parts = []
    for run in runs if len(low) else ():
        first = search(run.pages, run.codes, low)
        last = ends_of(run.codes, first, high, "left")
        last = checked_places(run.pages, run.codes, high, last)
        positions, owner = slice_positions(first, last)
        if len(owner):
            value = run.checked_values(name, positions)
            value = np.zeros(len(owner), np.int64) if value is None else value
            parts.append((owner, run.checked_codes(positions), value))
    if not parts:
        nothing = np.zeros(0, dtype=np.int64)
        return nothing, nothing, nothing
    owner, code, value = (np.concatenate(part) for part in zip(*parts, strict=True))
    if len(parts) > 1:
        is_one_each = bool((high[:-1] <= low[1:]).all())
        owner, code, value = _newest(owner, code, value, is_one_each=is_one_each)
    if order is not None:
        owner = order[owner]
        back = np.argsort(owner, kind="stable")
        owner, code, value = owner[back], code[back], value[back]
    alive = value != 0
    return owner[alive], code[alive], value[alive]


def _newest(owner: Ints, code: Ints, value: Ints, *, is_one_each: bool) -> tuple[Ints, Ints, Ints]:
    """The last row of each code, by index and code; no code is in two slices if `is_one_each`."""
    # By code alone sorted runs only have to be merged.
    order = np.argsort(code, kind="stable") if is_one_each else np.lexsort((code, owner))
    owner, code, value = owner[order], code[order], value[order]
    newest = np.ones(len(owner), dtype=np.bool_)
    newest[:-1] = (code[1:] != code[:-1]) | (owner[1:] != owner[:-1])
    return owner[newest], code[newest], value[newest]


def _bytes(run: Run) -> int:
    keys = sum(int(part.nbytes) for part in run.keys)
    return keys + int(run.codes.nbytes) + sum(int(v.nbytes) for v in run.values.values())


def _folded(key_types: Sequence[SqlType], alive: str, runs: Sequence[Run], is_oldest: bool) -> Run:
    """One run that means all of these."""
    check_each(runs)
    if sum(map(len, runs)) >= _MANY:
        # What comes out, a copy of the keys, and what sorts all of it.
        keys = sum(int(part.nbytes) for run in runs for part in run.keys)
        words = sum(int(run.codes.nbytes) for run in runs)
        reserve(sum(map(_bytes, runs)) + keys + 2 * words)
    if len(runs) > 1:
        at_once = merge_at_once(runs, key_types, alive, is_oldest=is_oldest)
        if at_once is not None:
            return at_once
    merged = runs[-1]
    for index in range(len(runs) - 2, -1, -1):
        is_last = is_oldest and index == 0
        merged = merge_runs(runs[index], merged, key_types, alive, is_oldest=is_last)
    return merged
