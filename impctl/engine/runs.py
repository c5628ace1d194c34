"""Sorted immutable runs of keyed state.

Law: a run holds at most one row per key, sorted by code; a later run's row replaces an earlier
one's; a row whose `alive` column is zero says the key is gone. Merging runs changes nothing that
can be seen. A value column that is absent is all zero. Cost of a merge: the rows merged. Of a run
that lies in pages (`data.pages`) no row is used before its pages were looked at.
Out of scope: which runs there are (`engine.arrangement`), files (`store`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from impctl.data.keys import are_codes, is_told_by_code, same_keys
from impctl.data.pages import CheckedPages, StoredTable, search, table_of
from impctl.data.schema import SqlType
from impctl.data.vector import Ints, Vector, check_stored, from_stored
from impctl.values import dataclass

CODE = "code"
_KEY = "key"


@dataclass(frozen=True, slots=True)
class Run:
    """Rows of state: `codes` ascending, key columns as Arrow arrays, values as NumPy arrays.

    A code is that of the row's keys, as `data.keys` has it; so some tell their keys.
    `keys` is empty where the code is the whole key. `sequence` orders runs: higher is newer.
    `pages` is where it lies, if some of that is yet to be looked at.
    """

    sequence: int
    codes: Ints
    keys: tuple[pa.Array, ...]
    values: Mapping[str, Any]
    pages: CheckedPages | None = None

    def __len__(self) -> int:
        return len(self.codes)

    def to_arrow(self) -> pa.Table:
        """The run as a plain table."""
        columns: dict[str, Any] = {CODE: self.codes}
        for index, key in enumerate(self.keys):
            columns[f"{_KEY}{index}"] = key
        columns.update(self.values)
        return pa.table(columns)

    def checked_codes(self, rows: Ints) -> Ints:
        """The codes of these rows."""
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
    """The run that `to_arrow` wrote; arrays stay in the table's memory.

    LookupError, TypeError or ValueError where it is none with these keys and value columns: an
    absent column is all zero, so one of another name would be lost without a trace.
    """
    table, pages = table_of(stored)
    arrays = {name: _single(table.column(name)) for name in table.column_names}
    parts = tuple(arrays.pop(f"{_KEY}{index}") for index in range(len(key_types)))
    for part, kind in zip(parts, key_types, strict=True):
        check_stored(part.type, kind)
    values = {name: array.to_numpy(zero_copy_only=True) for name, array in arrays.items()}
    codes = values.pop(CODE)
    for name, column in ((CODE, codes), *values.items()):
        if column.dtype != (np.int64 if name == CODE else kinds.get(name)):
            raise TypeError(f"column `{name}` of type {column.dtype} is unknown")
    return Run(sequence, codes, parts, values, pages)


def _single(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def find_in(run: Run, types: Sequence[SqlType], codes: Ints, keys: Sequence[Vector]) -> Ints:
    """Position of each key in the run, -1 where absent; shape (len(codes),).

    Cost: len(codes) log(len(run)).
    """
    result = np.full(len(codes), -1, dtype=np.int64)
    hits, places = hits_in(run, types, codes, keys)
    result[hits] = places
    return result


def hits_in(
    run: Run, types: Sequence[SqlType], codes: Ints, keys: Sequence[Vector]
) -> tuple[Ints, Ints]:
    """Which of the keys are in the run, ascending, and their positions in it.

    Cost: len(codes) log(len(run)).
    """
    if len(run) == 0:
        return codes[:0], codes[:0]
    inside = search(run.pages, run.codes, codes)
    # Beyond the last code stands that one again, which is another.
    hits = (run.codes.take(inside, mode="clip") == codes).nonzero()[0]
    places = inside[hits]
    if not len(hits) or not run.keys or is_told_by_code(run.keys, keys):
        return hits, places
    same = _same(run, types, places, keys, hits)
    if bool(same.all()):
        return hits, places
    more = _further(run, types, codes, keys, hits[~same], places[~same])
    hits = np.concatenate([hits[same], more[0]])
    order = np.argsort(hits)
    return hits[order], np.concatenate([places[same], more[1]])[order]


def _further(
    run: Run,
    types: Sequence[SqlType],
    codes: Ints,
    keys: Sequence[Vector],
    rows: Ints,
    places: Ints,
) -> tuple[Ints, Ints]:
    """The same of keys whose code another key has, which stands before them in the run."""
    hits, result = [], []
    # Another key with this code may stand next to the first one; as good as never.
    for row, first in zip(rows, places, strict=True):
        place = int(first) + 1
        while place < len(run) and run.checked_codes(np.array([place]))[0] == codes[row]:
            if _same(run, types, np.array([place]), keys, np.array([row]))[0]:
                hits.append(row)
                result.append(place)
                break
            place += 1
    return np.array(hits, dtype=np.int64), np.array(result, dtype=np.int64)


def _same(
    run: Run, types: Sequence[SqlType], places: Ints, keys: Sequence[Vector], rows: Ints
) -> Any:
    if run.pages is not None:
        for part in run.keys:
            run.pages.check_rows(part, places)
    return same_keys(_at(run.keys, types, places), [key.take(rows) for key in keys])


def _at(keys: Sequence[pa.Array], types: Sequence[SqlType], places: Ints) -> list[Vector]:
    """Key columns at these places."""
    return [_column_at(part, kind, places) for part, kind in zip(keys, types, strict=True)]


def _column_at(part: pa.Array, kind: SqlType, places: Ints) -> Vector:
    if are_codes(part):
        # Most keys are whole numbers, and NumPy picks a few of these in a third of the time.
        return Vector(kind, part.to_numpy()[places])
    return from_stored(part.take(pa.array(places)), kind)


def are_told_by_code(runs: Sequence[Run]) -> bool:
    """Whether equal codes mean equal keys in all of these runs."""
    return all(not run.keys or (len(run.keys) == 1 and are_codes(run.keys[0])) for run in runs)


def merge_at_once(
    runs: Sequence[Run], types: Sequence[SqlType], alive: str, *, is_oldest: bool
) -> Run | None:
    """As `merge_runs` of several at once, oldest first; None where different keys have one code."""
    codes = np.concatenate([run.codes for run in runs])
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    is_newest = np.ones(len(codes), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_newest[:-1])
    is_told = are_told_by_code(runs)
    keys = [] if is_told else _stacked_keys(runs)
    if not is_told and not _are_alike(keys, types, order, (~is_newest).nonzero()[0]):
        return None
    kept = order[is_newest]
    names = sorted(set().union(*(run.values for run in runs)))
    values = {name: _column(runs, name)[kept] for name in names}
    if is_oldest:
        living = (values[alive] if alive in values else np.zeros(len(kept))) != 0
        if not bool(living.all()):
            kept = kept[living]
            values = {name: column[living] for name, column in values.items()}
    result = codes[kept]
    held = [pa.array(result) for _ in runs[-1].keys] if is_told else _taken(keys, kept)
    return Run(runs[-1].sequence, result, tuple(held), values)


def _stacked_keys(runs: Sequence[Run]) -> list[pa.Array]:
    return [pa.concat_arrays(parts) for parts in zip(*(run.keys for run in runs), strict=True)]


def _are_alike(
    keys: Sequence[pa.Array], types: Sequence[SqlType], order: Ints, places: Ints
) -> bool:
    """Whether the rows at these places of the order have the keys of those that come next."""
    one, other = order[places], order[places + 1]
    same = same_keys(_at(keys, types, one), _at(keys, types, other))
    return same is None or bool(same.all())


def _taken(keys: Sequence[pa.Array], rows: Ints) -> list[pa.Array]:
    return [part.take(pa.array(rows)) for part in keys]


def _column(runs: Sequence[Run], name: str) -> Any:
    """A column of all runs, zero where one lacks it."""
    kind = next(run.values[name].dtype for run in runs if name in run.values)
    return np.concatenate([run.values.get(name, np.zeros(len(run), dtype=kind)) for run in runs])


def merge_runs(
    older: Run, newer: Run, types: Sequence[SqlType], alive: str, *, is_oldest: bool
) -> Run:
    """One run that means both; keys that are gone are dropped where no older run is left."""
    keys = [from_stored(part, kind) for part, kind in zip(newer.keys, types, strict=True)]
    replaced = find_in(older, types, newer.codes, keys)
    kept = np.ones(len(older), dtype=np.bool_)
    kept[replaced[replaced >= 0]] = False
    codes = np.concatenate([older.codes[kept], newer.codes])
    names = sorted(older.values.keys() | newer.values.keys())
    values = {name: _stacked(older, newer, name, kept) for name in names}
    order = np.argsort(codes, kind="stable")
    if is_oldest:
        living = values.get(alive, np.zeros(len(codes), dtype=np.int64))
        order = order[living[order] != 0]
    ordered_codes = codes[order]
    if len(older.keys) == 1 and are_codes(older.keys[0]) and are_codes(newer.keys[0]):
        parts: tuple[pa.Array, ...] = (pa.array(ordered_codes),)
    else:
        parts = tuple(
            pa.concat_arrays([old.filter(pa.array(kept)), new]).take(pa.array(order))
            for old, new in zip(older.keys, newer.keys, strict=True)
        )
    ordered = {name: array[order] for name, array in values.items()}
    return Run(newer.sequence, ordered_codes, parts, ordered)


def _stacked(older: Run, newer: Run, name: str, kept: Any) -> Any:
    """A column of both runs; the side that lacks it is zero in the other side's type."""
    old, new = older.values.get(name), newer.values.get(name)
    if old is None:
        old = np.zeros(len(older), dtype=new.dtype)  # type: ignore[union-attr]  # one side has it
    if new is None:
        new = np.zeros(len(newer), dtype=old.dtype)
    return np.concatenate([old[kept], new])
