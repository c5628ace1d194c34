"""Keyed state as a few sorted runs, looked up by key and extended by each change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa
from msgspec import Struct

from impctl.data.keys import (
    MANY,
    are_codes,
    ascending,
    ends_of,
    group_rows,
    have_injective_codes,
    is_determined_by_code,
    perhaps_in,
    same_keys,
    when_many,
)
from impctl.data.memory import reserve
from impctl.data.pages import (
    CheckedPages,
    StoredTable,
    check_each,
    checked_places,
    rows_of_code,
    search,
    table_of,
    whole,
)
from impctl.data.schema import LONG, SqlType
from impctl.data.vector import (
    INT64_MAX,
    Bools,
    Ints,
    Vector,
    check_stored,
    concat,
    from_stored,
    slice_positions,
)
from impctl.engine.batch import (
    Batch,
    empty_batch,
    packed,
    repeating,
    stacked_batches,
    summed,
    united_neighbours,
    unpacked,
)
from impctl.engine.tags import RowTags, Tags, apart, stacked
from impctl.errors import JoinTooLargeError

if TYPE_CHECKING:
    from impctl.types import AttributeId

# Sorted immutable runs of keyed state. Law: a run has at most one row per key, sorted by code; a
# later run's row replaces an earlier one's; a row whose `alive` column is zero deletes the key.
# Merging runs does not change their meaning. An absent value column is all zero. Cost of a merge:
# the rows merged. No row of a run in pages (`data.pages`) is used before its pages were verified.

CODE = "code"
_KEY = "key"


class Run(Struct, frozen=True, dict=True):
    """Rows of state: `codes` ascending, key columns as Arrow arrays, values as NumPy arrays. Codes
    are those of `data.keys`; `keys` is empty where the code is the whole key. `sequence` orders
    runs: higher is newer. `pages` locates the run, if some of it is not verified yet."""

    sequence: int
    codes: Ints
    keys: tuple[pa.Array, ...]
    values: Mapping[str, Any]
    pages: CheckedPages | None = None

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def views(self) -> dict[tuple[str, ...], Any]:
        """Views by the names of their columns, made by who reads the run; they go with it."""
        return {}

    def to_arrow(self) -> pa.Table:
        columns: dict[str, Any] = {CODE: self.codes}
        for index, key in enumerate(self.keys):
            columns[f"{_KEY}{index}"] = key
        columns.update(self.values)
        return pa.table(columns)

    def checked_codes(self, rows: Ints) -> Ints:
        if self.pages is not None:
            self.pages.check_rows(self.codes, rows)
        return self.codes[rows]

    def checked_values(self, name: str, rows: Ints) -> Any:
        """A value column at these rows; None for one that is absent."""
        column = self.values.get(name)
        if column is None:
            return None
        if self.pages is not None:
            self.pages.check_rows(column, rows)
        return column[rows]


def from_table(
    sequence: int, stored: StoredTable, key_types: Sequence[SqlType], kinds: Mapping[str, Any]
) -> Run:
    """The run that `to_arrow` wrote; arrays stay in the table's memory. LookupError, TypeError or
    ValueError for other keys or value columns: an absent column is all zero, so one of another name
    would be lost without a trace."""
    table, pages = table_of(stored)
    arrays = {name: single_chunk(table.column(name)) for name in table.column_names}
    parts = tuple(arrays.pop(f"{_KEY}{index}") for index in range(len(key_types)))
    for part, kind in zip(parts, key_types, strict=True):
        check_stored(part.type, kind)
    values = {name: array.to_numpy(zero_copy_only=True) for name, array in arrays.items()}
    codes = values.pop(CODE)
    for name, column in ((CODE, codes), *values.items()):
        if column.dtype != (np.int64 if name == CODE else kinds.get(name)):
            raise TypeError(f"column `{name}` of type {column.dtype} is unknown")
    return Run(sequence, codes, parts, values, pages)


def single_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def find_in(run: Run, types: Sequence[SqlType], codes: Ints, keys: Sequence[Vector]) -> Ints:
    """Position of each key in the run, -1 where absent; shape (len(codes),). Cost: len(codes)
    log(len(run))."""
    result = np.full(len(codes), -1, dtype=np.int64)
    hits, places = hits_in(run, types, codes, keys)
    result[hits] = places
    return result


def hits_in(
    run: Run, types: Sequence[SqlType], codes: Ints, keys: Sequence[Vector]
) -> tuple[Ints, Ints]:
    """Which of the keys are in the run, ascending, and their positions in it. Cost: len(codes)
    log(len(run))."""
    if len(run) == 0:
        return codes[:0], codes[:0]
    inside = search(run.pages, run.codes, codes)
    # Clipping repeats the last code beyond the end, where it differs from the one searched.
    hits = (run.codes.take(inside, mode="clip") == codes).nonzero()[0]
    positions = inside[hits]
    if not len(hits) or not run.keys or is_determined_by_code(run.keys, keys):
        return hits, positions
    same = _same(run, types, positions, keys, hits)
    if bool(same.all()):
        return hits, positions
    more = _further(run, types, codes, keys, hits[~same], positions[~same])
    hits = np.concatenate([hits[same], more[0]])
    order = np.argsort(hits)
    return hits[order], np.concatenate([positions[same], more[1]])[order]


def _further(
    run: Run,
    types: Sequence[SqlType],
    codes: Ints,
    keys: Sequence[Vector],
    rows: Ints,
    positions: Ints,
) -> tuple[Ints, Ints]:
    """The matches of keys that share their code with an earlier key of the run."""
    hits, result = [], []
    # Another key with this code may come next; this practically never happens.
    for row, first in zip(rows, positions, strict=True):
        position = int(first) + 1
        while position < len(run) and run.checked_codes(np.array([position]))[0] == codes[row]:
            if _same(run, types, np.array([position]), keys, np.array([row]))[0]:
                hits.append(row)
                result.append(position)
                break
            position += 1
    return np.array(hits, dtype=np.int64), np.array(result, dtype=np.int64)


def _same(
    run: Run, types: Sequence[SqlType], positions: Ints, keys: Sequence[Vector], rows: Ints
) -> Any:
    if run.pages is not None:
        for part in run.keys:
            run.pages.check_rows(part, positions)
    return same_keys(_at(run.keys, types, positions), [key.take(rows) for key in keys])


def _at(keys: Sequence[pa.Array], types: Sequence[SqlType], positions: Ints) -> list[Vector]:
    return [_column_at(part, kind, positions) for part, kind in zip(keys, types, strict=True)]


def _column_at(part: pa.Array, kind: SqlType, positions: Ints) -> Vector:
    if are_codes(part):
        # Most keys are whole numbers, and NumPy picks a few of these in a third of the time.
        return Vector(kind, part.to_numpy()[positions])
    return from_stored(part.take(pa.array(positions)), kind)


def are_determined_by_code(runs: Sequence[Run]) -> bool:
    """Whether equal codes mean equal keys in all of these runs."""
    return all(not run.keys or (len(run.keys) == 1 and are_codes(run.keys[0])) for run in runs)


def merge_runs(
    runs: Sequence[Run], types: Sequence[SqlType], alive: str, *, is_oldest: bool
) -> Run:
    """One run that means all of these, the oldest first; deleted keys are dropped where no older
    run is left."""
    codes = np.concatenate([run.codes for run in runs])
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    is_newest = np.ones(len(codes), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_newest[:-1])
    is_determined = are_determined_by_code(runs)
    columns = zip(*(run.keys for run in runs), strict=True)
    keys = [] if is_determined else [pa.concat_arrays(parts) for parts in columns]
    if not is_determined and not _are_alike(keys, types, order, (~is_newest).nonzero()[0]):
        # Different keys share a code; this practically never happens.
        vectors = list(map(from_stored, keys, types))
        groups = group_rows(vectors, len(codes)).index()
        order = np.lexsort((groups, codes))
        ordered = groups[order]
        np.not_equal(ordered[1:], ordered[:-1], out=is_newest[:-1])
    kept = order[is_newest]
    names = sorted(set().union(*(run.values for run in runs)))
    values = {name: _column(runs, name)[kept] for name in names}
    if is_oldest:
        living = (values[alive] if alive in values else np.zeros(len(kept))) != 0
        if not bool(living.all()):
            kept = kept[living]
            values = {name: column[living] for name, column in values.items()}
    result = codes[kept]
    if is_determined:
        keys = [pa.array(result) for _ in runs[-1].keys]
    else:
        keys = [part.take(pa.array(kept)) for part in keys]
    return Run(runs[-1].sequence, result, tuple(keys), values)


def _are_alike(
    keys: Sequence[pa.Array], types: Sequence[SqlType], order: Ints, positions: Ints
) -> bool:
    """Whether the rows at these places of the order have the keys of those that come next."""
    same = same_keys(*(_at(keys, types, rows) for rows in (order[positions], order[positions + 1])))
    return same is None or bool(same.all())


def _column(runs: Sequence[Run], name: str) -> Any:
    kind = next(run.values[name].dtype for run in runs if name in run.values)
    return np.concatenate([run.values.get(name, np.zeros(len(run), dtype=kind)) for run in runs])


# The runs of one piece of keyed state. Law: runs have ascending sequences, newer ones last. When
# four of the newest are of one size class (64 rows, times four per class) or smaller, they become
# one, so a row takes part in a logarithmic number of merges. A checkpoint writes the runs that are
# new since the last one and lists those to drop; a run that merged to nothing is dropped.

_RUNS_PER_TIER = 4
"""Runs of one size class before they are merged; also how much larger the next class is."""
_SMALLEST_TIER = 64
"""Rows below which all runs count as equally small: less than a page is not worth ordering."""


class RunChange(Struct, frozen=True):
    """What a checkpoint has to write: runs to keep under their sequence, sequences to drop."""

    put: tuple[tuple[int, pa.Table], ...]
    drop: tuple[int, ...]


class AnyRun(Protocol):
    @property
    def sequence(self) -> int: ...

    def __len__(self) -> int: ...


R = TypeVar("R", bound=AnyRun)


class Trace(ABC, Generic[R]):
    """Keyed state as runs of one kind; how these are merged and stored is the subclass's."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._runs: tuple[R, ...] = ()
        self._saved: frozenset[int] = frozenset()
        self._fresh: frozenset[int] = frozenset()

    @abstractmethod
    def _merge(self, runs: Sequence[R], *, is_oldest: bool) -> R:
        """One run that means all of these, under the sequence of the newest; `is_oldest`: they
        include the oldest."""

    @abstractmethod
    def _to_arrow(self, run: R) -> pa.Table: ...

    @abstractmethod
    def _from_arrow(self, sequence: int, stored: StoredTable) -> R:
        """The run that `_to_arrow` wrote. Fails on unknown columns."""

    @property
    @abstractmethod
    def bytes_held(self) -> int: ...

    @property
    def rows(self) -> int:
        """Rows over all runs, replaced and cancelled ones included."""
        return sum(len(run) for run in self._runs)

    @property
    def next_sequence(self) -> int:
        return self._runs[-1].sequence + 1 if self._runs else 1

    def append(self, run: R) -> None:
        """Add a run, and merge the newest ones where there are enough of a size."""
        runs = [*self._runs, run]
        while (start := _crowded(runs)) is not None:
            merged = self._merge(runs[start:], is_oldest=start == 0)
            runs = [*runs[:start], merged] if len(merged) else runs[:start]
        self._replace(runs)

    def _replace(self, runs: Sequence[R]) -> None:
        """Hold these runs, of which others than so far are to be written."""
        known = {run.sequence for run in self._runs} - self._fresh
        self._runs = tuple(runs)
        self._fresh = frozenset(run.sequence for run in runs if run.sequence not in known)

    def clear(self) -> None:
        """Remove all runs; runs appended later may reuse their sequences, and replace them."""
        self._runs, self._fresh = (), frozenset()

    def snapshot_copy(self) -> Self:
        """A snapshot of the state. Cost: its runs, not their rows."""
        return copy(self)

    def compact(self) -> None:
        """Merge all runs into one if that is likely to make the state much smaller."""
        if not self._runs or self.rows <= 2 * max(len(run) for run in self._runs):
            return
        merged = self._merge(self._runs, is_oldest=True)
        self._runs = (merged,) if len(merged) else ()
        self._fresh = frozenset(run.sequence for run in self._runs)

    def load(self, tables: Iterable[tuple[int, StoredTable]]) -> None:
        """Load stored runs; they count as saved."""
        runs = [self._from_arrow(sequence, table) for sequence, table in tables]
        self._runs = tuple(sorted(runs, key=lambda run: run.sequence))
        self.saved()

    def changes(self) -> RunChange:
        """What changed since the last `saved`, for the checkpoint to write."""
        present = {run.sequence for run in self._runs}
        put = tuple(
            (run.sequence, self._to_arrow(run)) for run in self._runs if run.sequence in self._fresh
        )
        return RunChange(put, tuple(sorted(self._saved - present)))

    def saved(self) -> None:
        """Mark the last changes as safely written."""
        self._saved = frozenset(run.sequence for run in self._runs)
        self._fresh = frozenset()


def _crowded(runs: Sequence[AnyRun]) -> int | None:
    """The start of the newest runs of one size class, if there are enough of them to merge."""
    if len(runs) < _RUNS_PER_TIER:
        return None
    # Each class is 4 times the one before: two bits more.
    tier = ((max(len(runs[-1]), 1) - 1) // _SMALLEST_TIER).bit_length() + 1 >> 1
    most = _SMALLEST_TIER * _RUNS_PER_TIER**tier
    start = len(runs) - 1
    while start > 0 and len(runs[start - 1]) <= most:
        start -= 1
    return start if len(runs) - start >= _RUNS_PER_TIER else None


# Keyed state looked up by code. Law: `find` answers as if there were one table of the newest row
# per key. Writing costs the rows written, plus tiered merging. A lookup never scans the state.

_MANY = 1 << 14  # Rows of runs from which memory is reserved before a merge


class Located(Struct, frozen=True):
    """Positions of keys, run by run: (the run, requested rows, their positions in it). A row in no
    part was not found; `length` is the number of requested rows."""

    parts: tuple[tuple[Run, Ints, Ints], ...]
    length: int


class Arrangement(Trace[Run]):
    """Keyed rows of state; `alive` names the value column that is zero for a deleted key."""

    def __init__(
        self,
        name: str,
        key_types: Sequence[SqlType],
        alive: str,
        columns: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        """`columns` gives the value columns and their NumPy types; by default `alive` alone."""
        super().__init__(name)
        self.key_types = tuple(key_types)
        self.alive = alive
        self._columns = columns

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs, oldest first; the tuple never changes, so a reader may keep it."""
        return self._runs

    @property
    def bytes_held(self) -> int:
        return sum(_bytes(run) for run in self.runs)

    def _to_arrow(self, run: Run) -> pa.Table:
        return run.to_arrow()

    def _from_arrow(self, sequence: int, stored: StoredTable) -> Run:
        kinds = {self.alive: np.int64} if self._columns is None else self._columns()
        return from_table(sequence, stored, self.key_types, kinds)

    def _merge(self, runs: Sequence[Run], *, is_oldest: bool) -> Run:
        check_each(runs)
        if sum(map(len, runs)) >= _MANY:
            # The result, a copy of the keys, and the codes with their order.
            keys = sum(int(part.nbytes) for run in runs for part in run.keys)
            words = sum(int(run.codes.nbytes) for run in runs)
            reserve(sum(map(_bytes, runs)) + keys + 2 * words)
        if len(runs) == 1:
            return runs[0]
        return merge_runs(runs, self.key_types, self.alive, is_oldest=is_oldest)

    def find(self, codes: Ints, keys: Sequence[Vector]) -> Located:
        """The newest row of each key; `codes` of shape (n,)."""
        parts = []
        length = left = len(codes)
        rows = np.arange(length, dtype=np.int64)
        result = np.zeros(length, dtype=np.bool_)
        for run in reversed(self.runs) if length else ():
            hits, places = hits_in(run, self.key_types, codes, keys)
            if left < len(codes):
                free = ~result[hits]
                hits, places = hits[free], places[free]
            if not len(hits):
                continue
            parts.append((run, rows[hits], places))
            left -= len(hits)
            if not left:
                break
            result[hits] = True
            if 2 * left < len(codes):
                # Looking matches up again costs less than selecting the rest, unless most matched.
                rest = (~result).nonzero()[0]
                rows, codes, result = rows[rest], codes[rest], result[rest]
                keys = [key.take(rest) for key in keys]
        return Located(tuple(parts), length)

    def gather(self, located: Located, name: str, dtype: Any = np.int64) -> Any:
        """Values of one column for located keys; zero where absent; shape (n,)."""
        if len(located.parts) == 1 and len(located.parts[0][1]) == located.length:
            # All in one run, as after a merge: in the requested order.
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
        self.append(Run(self.next_sequence, codes, arrays, kept))

    def whole(self) -> Run | None:
        """All living rows as one run, without changing the state; None without any."""
        if not self.runs:
            return None
        run = self._merge(self.runs, is_oldest=True)
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


def slices(runs: Sequence[Run], low: Ints, high: Ints, name: str) -> tuple[Ints, Ints, Ints]:
    """All living rows with `low[i] <= code < high[i]`: (index i, code, value of column `name`). The
    newest row of a code counts; rows are sorted by index, then by code. Only for arrangements whose
    code is the whole key. Cost: the rows in the slices, and a binary search per slice and run."""
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


# Rows by key, in which an operator looks up partners. Law: the index means the sum of all rows ever
# added, with weights and tags; a row and its negative cancel when their runs merge, and until then
# both are returned. A run may contain equal rows more than once. Added rows wait for the first
# lookup, a million or 64 batches at most: a side that only fills is sorted rarely. Adding costs the
# rows added, plus tiered merging; a lookup costs its matches, plus a binary search per run. Rows
# are equal when all columns and all tags are.

_WEIGHT, _NONE = "weight", np.zeros(0, dtype=np.int64)
MOST_PAIRS = 100_000_000  # Rows that one lookup may find: some gigabytes
_PLAIN = (pa.int64(), pa.float64(), pa.large_string(), pa.large_binary())
"""Stored types whose values are used in place, if none is NULL."""
_MOST_WAITING = 1 << 20
"""Rows that wait to be sorted: with more, rows that cancel or repeat would take memory."""
_MOST_BATCHES = 64  # Batches that wait: they may not be read for long, and each takes memory
_FEW_RUNS = 2  # Runs up to which each is looked up separately
_MANY_ROWS = 1 << 16  # Rows from which merging skips the search for equal rows, where few repeat
_HARDLY, _LOOKED_AT = 0.1, 4_096
"""Share of repeated rows that takes little memory, and the sample's size."""
_FEWER = 4  # Codes looked up, per code held, from which absent ones are mostly filtered out first


class Found(Struct, frozen=True):
    """Matching rows of the index: `owners[i]` is the requesting row of the i-th one."""

    owners: Ints
    rows: Batch


class Leading(Struct, frozen=True):
    """First rows per key, each once with its sum, sorted by key and then by the order. For the i-th
    key they are complete for ranks below `limits[i]`, and the whole key if `is_whole[i]`; of the
    rank `limits[i]` some may be missing."""

    found: Found
    limits: Ints
    is_whole: Bools


class IndexRun(Struct, frozen=True, dict=True):
    """One run: a batch sorted by the codes of its keys."""

    sequence: int
    codes: Ints
    batch: Batch
    pages: CheckedPages | None = None

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def views(self) -> dict[tuple[str, ...], Any]:
        """As those of `Run`."""
        return {}

    def slices(self, codes: Ints) -> tuple[Ints, Ints]:
        first = search(self.pages, self.codes, codes)
        last = ends_of(self.codes, first, codes, "right")
        return first, checked_places(self.pages, self.codes, codes, last, "right")

    def slices_of_known(self, codes: Ints) -> tuple[Ints, Ints, Ints]:
        """Which of these codes have rows, by position; start and end of the rows of each."""
        first = search(self.pages, self.codes, codes)
        known = (self.codes.take(first, mode="clip") == codes).nonzero()[0]
        if not len(known):
            return known, known, known
        return known, first[known], search(self.pages, self.codes, codes[known], "right")

    def at(self, positions: Ints) -> Batch:
        """The batch, after verifying these of its rows."""
        if self.pages is not None and self.pages.is_open:
            for column in self.batch.columns.values():
                self.pages.check_rows(column.values, positions)
            self.pages.check_rows(self.batch.weights, positions)
            for tag in self.batch.tags:
                if isinstance(tag, RowTags):
                    self.pages.check_rows(tag.ranges, positions)
        return self.batch


class RowIndex(Trace[IndexRun]):
    """Rows of `columns` by the key columns `keys`, with tags for so many accesses. With `order`,
    one of the columns and of type LONG, rows of one key are kept in its order."""

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        keys: Sequence[AttributeId],
        accesses: int,
        *,
        order: AttributeId | None = None,
    ) -> None:
        super().__init__(name)
        self.columns = tuple(columns)
        self.keys = tuple(keys)
        self._accesses = accesses
        self._order = order
        self._waiting: list[IndexRun] = []
        self._waiting_rows = 0

    @property
    def rows(self) -> int:
        """Rows over all runs, cancelled ones included."""
        return super().rows + self._waiting_rows

    @property
    def bytes_held(self) -> int:
        return sum(int(self._to_arrow(run).nbytes) for run in self.runs())

    def codes_of(self, batch: Batch) -> Ints:
        """The codes of the batch's keys, for `add` and `find`."""
        return batch.codes_of(self.keys)

    def add(self, batch: Batch, codes: Ints) -> None:
        if len(batch) == 0:
            return
        order = ascending(codes)
        if self._order is not None:
            order = np.lexsort((self._ranks(batch), codes))
        columns = {name: batch.columns[name].take(order) for name, _ in self.columns}
        tags = tuple(apart(tag.take(order)) for tag in batch.tags)
        stored = Batch(columns, batch.weights[order], tags)
        self._waiting.append(IndexRun(self.next_sequence, codes[order], stored))
        self._waiting_rows += len(batch)
        count = len(self._waiting)
        if count > _MOST_BATCHES or (count > 1 and self._waiting_rows > _MOST_WAITING):
            self.runs()

    def clear(self) -> None:
        self._waiting, self._waiting_rows = [], 0
        super().clear()

    def runs(self) -> tuple[IndexRun, ...]:
        """All runs; waiting rows are sorted into one first."""
        if self._waiting:
            waiting, self._waiting, self._waiting_rows = self._waiting, [], 0
            run = waiting[0] if len(waiting) == 1 else self._merge(waiting, is_oldest=False)
            if len(run):
                self.append(run)
        return self._runs

    def _ranks(self, batch: Batch) -> Ints:
        assert self._order is not None
        ranks: Ints = batch.columns[self._order].values
        return ranks

    def _merge(self, runs: Sequence[IndexRun], *, is_oldest: bool) -> IndexRun:
        """Merge runs. Of many inserted rows, only neighbors are united unless more repeat:
        searching for these takes longer than sorting."""
        if sum(map(len, runs)) < _MANY_ROWS or any((run.batch.weights < 0).any() for run in runs):
            return self._summed(runs)
        check_each(runs)
        codes, batch = united_neighbours(*self._in_turn(runs))
        index_run = IndexRun(runs[-1].sequence, codes, batch)
        # The first rows have their codes: those that are alike are among them.
        some = batch.take(np.arange(min(len(index_run), _LOOKED_AT)))
        return index_run if repeating(some) <= _HARDLY else self._summed([index_run])

    def _in_turn(self, runs: Sequence[IndexRun]) -> tuple[Ints, Batch]:
        """All rows sorted, column by column: no second copy of all of them is held."""
        parts = [run.batch for run in runs]
        codes = np.concatenate([run.codes for run in runs])
        ranks = [] if self._order is None else [self._ranks(part) for part in parts]
        order = np.lexsort((np.concatenate(ranks), codes)) if ranks else ascending(codes)
        columns = {
            name: concat([part.columns[name] for part in parts]).take(order)
            for name, _ in self.columns
        }
        weights = np.concatenate([part.weights for part in parts])[order]
        tags = (
            stacked([part.tags[index] for part in parts]) for index in range(len(parts[0].tags))
        )
        return codes[order], Batch(columns, weights, tuple(tag.take(order) for tag in tags))

    def _summed(self, runs: Sequence[IndexRun]) -> IndexRun:
        check_each(runs)
        codes, batch = self._in_turn(runs)
        columns = [batch.columns[name] for name, _ in self.columns]
        kept, weights = summed(batch, [Vector(LONG, codes), *columns])
        if len(kept) < len(batch):
            codes, batch = codes[kept], batch.take(kept)
        return IndexRun(runs[-1].sequence, codes, Batch(batch.columns, weights, batch.tags))

    def find(self, codes: Ints, keys: Sequence[Vector]) -> Found:
        """All rows with these keys; each key has none, one or many."""
        owners, parts = [], []
        runs = self.runs() if len(codes) else ()
        # Few runs are searched for the codes they may hold, which may be far fewer to sort.
        ordered = when_many(codes) if len(runs) > _FEW_RUNS else None
        for run in runs:
            is_far_more = len(codes) >= max(_FEWER * len(run), MANY)
            requested = perhaps_in(whole(run.pages, run.codes), codes) if is_far_more else None
            if requested is not None or ordered is None:
                order, some = when_many(codes if requested is None else codes[requested])
            else:
                order, some = ordered
            first, last = run.slices(some)
            pairs = int((last - first).sum())
            if not pairs:
                continue
            check_size(pairs)
            positions, owner = slice_positions(first, last)
            owner = owner if order is None else order[owner]
            owner = owner if requested is None else requested[owner]
            batch = run.at(positions)
            key_columns = [batch.columns[key] for key in self.keys]
            if not have_injective_codes(key_columns, keys):
                of_stored = [column.take(positions) for column in key_columns]
                same = same_keys(of_stored, [key.take(owner) for key in keys])
                if same is not None and not bool(same.all()):
                    positions, owner = positions[same], owner[same]
            owners.append(owner)
            parts.append(batch.take(positions))
        if not parts:
            return Found(np.zeros(0, np.int64), empty_batch(self._accesses))
        result = stacked_batches(parts)
        reserve(result.weights.nbytes)
        return Found(np.concatenate(owners), result)

    def count(self, codes: Ints) -> Ints:
        """An upper bound on the rows of each of these codes; shape (n,)."""
        order, codes = when_many(codes)
        counts = np.zeros(len(codes), dtype=np.int64)
        for run in self.runs():
            first, last = run.slices(codes)
            counts += last - first
        result = np.empty_like(counts)
        result[slice(None) if order is None else order] = counts
        return result

    def codes(self) -> Ints:
        """The codes of all rows, of cancelled ones too."""
        return np.concatenate([_NONE, *(whole(run.pages, run.codes) for run in self.runs())])

    def whole(self) -> Batch:
        """All rows, each once with its sum. Cost: the rows, sorted."""
        runs = self.runs()
        return self._summed(runs).batch if runs else empty_batch(self._accesses)

    def leading(self, codes: Ints, keys: Sequence[Vector], window: int) -> Leading:
        """The rows of each key as far as the first `window` rows of every run determine them."""
        limits = np.full(len(codes), INT64_MAX)
        is_whole = np.ones(len(codes), dtype=np.bool_)
        ends = []
        for run in self.runs():
            low, high = run.slices(codes)
            if not bool((low < high).any()):
                continue
            cut = np.minimum(high, low + window)
            is_cut = cut < high
            lasts = cut[is_cut] - 1
            limits[is_cut] = np.minimum(limits[is_cut], self._ranks(run.at(lasts))[lasts])
            is_whole &= ~is_cut
            ends.append((run, low, cut))
        parts = []
        for run, low, cut in ends:
            check_size(int((cut - low).sum()))
            positions, owner = slice_positions(low, cut)
            batch = run.at(positions)
            # What lies beyond the limit is of no use: some of it may be missing.
            useful = self._ranks(batch)[positions] <= limits[owner]
            positions, owner = positions[useful], owner[useful]
            key_columns = [batch.columns[key].take(positions) for key in self.keys]
            same = same_keys(key_columns, [key.take(owner) for key in keys])
            if same is not None and not bool(same.all()):
                positions, owner = positions[same], owner[same]
            if len(positions):
                parts.append(IndexRun(run.sequence, owner, batch.take(positions)))
        if not parts:
            nothing = Found(np.zeros(0, np.int64), empty_batch(self._accesses))
            return Leading(nothing, limits, is_whole)
        merged = self._summed(parts)
        return Leading(Found(merged.codes, merged.batch), limits, is_whole)

    def snapshot_copy(self) -> Self:
        self.runs()
        result = super().snapshot_copy()
        result._waiting = []
        return result

    def compact(self) -> None:
        self.runs()
        super().compact()

    def load_some(self, tables: Sequence[tuple[int, StoredTable]], code: int) -> None:
        """Load only the rows of one code, for reading: nothing may be added to them."""
        self.load([(sequence, rows_of_code(table, CODE, code)) for sequence, table in tables])

    def changes(self) -> RunChange:
        self.runs()
        return super().changes()

    def _to_arrow(self, run: IndexRun) -> pa.Table:
        arrays = {CODE: pa.array(run.codes), _WEIGHT: pa.array(run.batch.weights)}
        for index, (name, _) in enumerate(self.columns):
            arrays[f"column{index}"] = run.batch.columns[name].to_arrow()
        for index, tag in enumerate(run.batch.tags):
            array = pa.array(tag.ranges) if isinstance(tag, RowTags) else packed(tag.sets())
            arrays[f"tag{index}"] = array
        return pa.table(arrays)

    def _from_arrow(self, sequence: int, stored: StoredTable) -> IndexRun:
        table, pages = table_of(stored)
        columns, accesses = self.columns, self._accesses

        def array(name: str, *plain: pa.DataType) -> pa.Array:
            column = table.column(name)
            if name in (CODE, _WEIGHT) and column.type not in plain:
                raise TypeError(f"column `{name}` has type {column.type}")
            result = single_chunk(column)
            if pages is not None and (result.type not in plain or result.null_count):
                # It is not used row by row where it lies, but read now.
                pages.check_whole(result)
            return result

        for index, (_, kind) in enumerate(columns):
            check_stored(table.column(f"column{index}").type, kind)
        vectors = {
            name: from_stored(array(f"column{index}", *_PLAIN), kind)
            for index, (name, kind) in enumerate(columns)
        }
        if table.num_columns != 2 + len(columns) + accesses:
            raise ValueError(f"its columns are {', '.join(table.column_names)}")
        tags: list[Tags] = []
        for index in range(accesses):
            tag = array(f"tag{index}", pa.int32())
            tags.append(RowTags(tag.to_numpy()) if pa.types.is_int32(tag.type) else unpacked(tag))
        weights, codes = (array(name, pa.int64()).to_numpy() for name in (_WEIGHT, CODE))
        return IndexRun(sequence, codes, Batch(vectors, weights, tuple(tags)), pages)


def check_size(pairs: int) -> None:
    if pairs > MOST_PAIRS:
        raise JoinTooLargeError(
            f"A change matches {pairs:,} rows in a join",
            hint="recapture with `impctl capture`, or restrict the join's condition",
        )
