"""Rows that are not kept: read by key, refills of bounded buffers, and key filters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from impctl.data.keys import distinct_values, group_rows, normalise, start_of, starts_in
from impctl.data.pages import StoredTable, table_of
from impctl.data.vector import INT64_MAX, Bools, Ints, Vector, concat
from impctl.engine.batch import Batch, disagreement, empty_batch
from impctl.engine.trace import Found, RowIndex, Trace, single_chunk
from impctl.errors import CountBelowZeroError, RecaptureNeededError

if TYPE_CHECKING:
    from impctl.data.schema import SqlType
    from impctl.expr.nodes import Expr
    from impctl.types import AttributeId


# Rows of a join side, or below a grouping, that are not stored but read by key. Law: `find` answers
# as `RowIndex` does, as of the rows added so far, for every key that may exist. Reads are as after
# the step, so this step's rows that are not added yet (`expect`) are subtracted. A key that was
# never added is never read, so the first rows of a key read nothing. Cost: the reading, once per
# step with a key to read; the state is the key filter. Rows held while the circuit is filled stay
# held when nothing reads them any more, up to `room` bytes: they may be kept after all.


class RowReader(Protocol):
    """Reads rows of one side."""

    def rows(self, side: str, keys: Sequence[Vector]) -> Batch:
        """All rows of the side as after the step, with their tags, whose keys are among these. Rows
        of other keys may be included. `keys` are the side's key columns, each key once."""
        ...

    def whole(self, side: str) -> Iterator[Batch]:
        """All rows of the side as after the step, with their tags; in parts."""
        ...

    def moved(self, side: str, before: Expr, after: Expr) -> Iterator[Batch]:
        """The rows of the side as after the step that meet the one condition and not the other.
        Other rows may be included. Only of a side over one table; in parts."""
        ...


_WORTH_KEEPING = 2  # Times `room` that rows may take once all have arrived


class DistantRows:
    """Rows of `columns` by the key columns `keys`, with tags for this many accesses."""

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        keys: Sequence[AttributeId],
        accesses: int,
        *,
        has_filter: bool = True,
        is_held: bool = False,
        room: int = 0,
    ) -> None:
        """With `is_held` the rows are at hand while the circuit is filled; `room` is in bytes."""
        self.name = name
        self.columns = tuple(columns)
        self.keys = tuple(keys)
        self.reader: RowReader | None = None
        self._accesses = accesses
        self._is_at_hand = is_held
        self._filled: RowIndex | None = None
        self._room = room
        self._bytes = 0
        self._is_needed = False
        self.filled_rows = 0  # Rows that came while the circuit was filled
        self._is_filling = False
        self._coming: list[tuple[Batch, Ints]] = []
        self._filter = KeyFilter(f"{name}.filter") if has_filter else None

    def codes_of(self, batch: Batch) -> Ints:
        return batch.codes_of(self.keys)

    def fill(self, is_filling: bool) -> None:
        self._is_filling = is_filling
        self._filled = self._index() if is_filling and self._is_at_hand else None
        self._bytes, self._is_needed = 0, is_filling

    def let_go(self) -> None:
        """Release the held rows while the circuit is filled: nothing will request them."""
        self._is_needed = False
        self._make_room(0)

    def _make_room(self, coming: int) -> None:
        """Release rows that nothing requests, if `coming` new bytes make them too large."""
        self._bytes += coming
        if not self._is_needed and self._bytes > self._room:
            self._filled = None

    @property
    def at_hand(self) -> RowIndex | None:
        """While the circuit is filled: all rows, where they are few enough to be kept. Rows that
        had to be held to the end were paid for, and may be larger."""
        largest = _WORTH_KEEPING * self._room if self._is_needed else self._room
        return self._filled if self._bytes <= largest else None

    def _index(self) -> RowIndex:
        return RowIndex(self.name, self.columns, self.keys, self._accesses)

    def expect(self, batch: Batch, codes: Ints) -> None:
        """Announce the side's change in this step; reads already include it, and `add` will
        follow."""
        self._coming.append((batch.negated(), codes))

    def add(self, batch: Batch, codes: Ints) -> None:
        """Record that the keys of these rows may exist; those of a deletion already did."""
        self._coming.clear()
        self.filled_rows += len(batch) if self._is_filling else 0
        if self._filled is not None:
            self._make_room(_bytes_of(batch))
        if self._filled is not None:
            self._filled.add(batch, codes)
        if self._filter is not None:
            self._filter.add(codes[batch.weights > 0])

    def know(self, codes: Ints) -> None:
        """Record that keys of these codes may exist."""
        if self._filter is not None:
            self._filter.add(codes)

    def find(self, codes: Ints, keys: Sequence[Vector]) -> Found:
        """All rows with these keys; each key has none, one or many."""
        if self._filled is not None:
            return self._filled.find(codes, keys)
        requested = np.arange(len(codes), dtype=np.int64)
        if self._filter is not None:
            requested = np.flatnonzero(self._filter.may_hold(codes))
        if not len(requested):
            return Found(requested, empty_batch(self._accesses))
        assert self.reader is not None, "a session with distant sides is given a reader"
        requested_keys = [key.take(requested) for key in keys]
        grouping = group_rows(requested_keys, len(requested))
        rows = self.reader.rows(self.name, [key.take(grouping.first) for key in requested_keys])
        index = self._index()
        if len(rows):
            # Only requested rows are worth sorting.
            row_codes = index.codes_of(rows)
            is_requested = _among(row_codes, np.sort(codes[requested]))
            index.add(rows.keep(is_requested), row_codes[is_requested])
        for part, of_part in self._coming:
            index.add(part, of_part)
        result = index.find(codes[requested], requested_keys)
        return Found(requested[result.owners], result.rows)

    def whole(self) -> Iterator[Batch]:
        assert self.reader is not None, "a session with distant sides is given a reader"
        return self.reader.whole(self.name)

    def moved(self, before: Expr, after: Expr) -> Iterator[Batch]:
        """The rows as after the step that meet the one condition and not the other, and perhaps
        more; in parts."""
        assert self.reader is not None, "a session with distant sides is given a reader"
        return self.reader.moved(self.name, before, after)

    def arrangements(self) -> tuple[KeyFilter, ...]:
        return () if self._filter is None else (self._filter,)


def _among(codes: Ints, ordered: Ints) -> Bools:
    positions = np.minimum(ordered.searchsorted(codes), len(ordered) - 1)
    result: Bools = ordered[positions] == codes
    return result


def _bytes_of(batch: Batch) -> int:
    """Approximate bytes of the rows in an index, with codes, weights and ranges."""
    beside = 16 + 4 * len(batch.tags)
    return sum(int(value.values.nbytes) for value in batch.columns.values()) + beside * len(batch)


# Refills of bounded buffers. Law: an operator that keeps only its best rows or values per group
# never guesses: where too few are left and there may be more, it requests all input rows of that
# group as after the change, and continues from these. The engine does not know their source.


class Refill(Protocol):
    """Gives an operator its input again, for some groups."""

    def __call__(self, keys: Sequence[Vector]) -> Batch:
        """All input rows after the change whose keys are among these; others may be included. One
        vector per key column, all of one length; no column requests every row."""
        ...


def no_refill(keys: Sequence[Vector]) -> Batch:
    """RecaptureNeededError: no source of rows was set."""
    raise RecaptureNeededError(
        "Deletions exhausted a buffer, and the table cannot be read here",
        code="buffer_exhausted",
        hint="run `impctl capture`",
    )


def owners_of(
    requested: Sequence[Vector], groups: int, rows: Batch, keys: Sequence[str]
) -> tuple[Ints, Batch]:
    """The requested group of each row, and the rows without those of other groups."""
    if not requested:
        return np.zeros(len(rows), dtype=np.int64), rows
    if len(rows) == 0:
        return np.zeros(0, dtype=np.int64), rows
    key_columns = [normalise(rows.columns[name]) for name in keys]
    both = [concat([left, right]) for left, right in zip(requested, key_columns, strict=True)]
    result = group_rows(both, groups + len(rows))
    index = result.index()
    owner = np.full(result.groups, -1, dtype=np.int64)
    owner[index[:groups]] = np.arange(groups)
    owners = owner[index[groups:]]
    kept = np.flatnonzero(owners >= 0)
    return owners[kept], rows.take(kept)


def refill_differs() -> CountBelowZeroError:
    return disagreement("A buffer was refilled with rows that do not match the stored state")


COMPLETE = INT64_MAX
"""The edge of a buffer that holds everything. Edges are stored reversed, so that 0 says this."""


def stored_edges(edges: Ints) -> Ints:
    """Edges as state keeps them, or state's as edges: the mapping is its own inverse."""
    return edges ^ np.int64(COMPLETE)


def edge_after(
    owners: Ints, codes: Ints, counts: Ints, needed: int, edges: Ints, beyond: int
) -> Ints:
    """Lower edges for groups that hold more than `beyond`: the code at which `needed` are reached.
    `owners` and `codes` are sorted, by owner first; counts are not negative."""
    if not len(owners):
        return edges
    sums = np.cumsum(counts)
    before = (sums - counts)[start_of(starts_in(owners))]
    reached = sums - before
    totals = np.zeros(len(edges), dtype=np.int64)
    np.maximum.at(totals, owners, reached)
    is_enough = (reached >= needed) & (totals[owners] > beyond)
    result = edges.copy()
    np.minimum.at(result, owners[is_enough], codes[is_enough])
    return result


# A Bloom filter of the keys of a side. Law: an added key is always reported; another one in about
# one of a thousand cases, up to twice the keys that its words were sized for (`compact`). Deleted
# keys stay: "perhaps" may be too often, "no" is never wrong. Cost of a change: its keys; the words
# are written again only when the keys added since reach an eighth of those in it. Source: B. Bloom,
# "Space/time trade-offs in hash coding with allowable errors" (CACM 1970); all bits of a key in one
# block after F. Putze et al., "Cache-, hash- and space-efficient Bloom filters" (WEA 2007).

_WORDS_PER_BLOCK = 4
_BITS_PER_KEY = 12
_HEADROOM = 2  # The ratio of a new filter's capacity to its keys
_SMALLEST = 1024
_FOLDED_SHARE = 8  # Share of the filter's keys from which added keys are folded into its words
_MOST_RUNS = 16  # Runs of keys that a lookup may have to search
_WORDS_PER_KEY = 8  # Words of a filter, per key to fold in, up to which all bits are expanded
_WORD, _CODE, _COUNT = "word", "code", b"count"
_SPREAD = np.array(
    [0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93],
    dtype=np.uint64,
)
"""One odd multiplier per word of a block: the top bits of the product choose the bit."""

_Words = npt.NDArray[np.uint64]
_NO_WORDS: _Words = np.zeros(0, np.uint64)


class _FilterRun(Struct, frozen=True):
    """The words of a filter with the number of keys in them; or, where that is None, keys added
    since, ascending."""

    sequence: int
    values: Any
    counted: int | None = None

    def __len__(self) -> int:
        return len(self.values)


class KeyFilter(Trace[_FilterRun]):
    """A set of key codes (`data.keys`) without deletion; it may report keys that were never
    added."""

    @property
    def bytes_held(self) -> int:
        return sum(int(run.values.nbytes) for run in self._runs)

    @property
    def _is_folded(self) -> bool:
        """Whether the oldest run is words; all others are keys."""
        return bool(self._runs) and self._runs[0].counted is not None

    @property
    def _words(self) -> _Words:
        words: _Words = self._runs[0].values if self._is_folded else _NO_WORDS
        return words

    @property
    def _added(self) -> tuple[_FilterRun, ...]:
        return self._runs[1:] if self._is_folded else self._runs

    def add(self, codes: Ints) -> None:
        fresh = distinct_values(codes[~self._in_words(codes)])
        if not len(fresh):
            return
        self._replace([*self._runs, _FilterRun(self.next_sequence, fresh)])
        added = self._added
        counted = self._runs[0].counted
        if counted is not None and sum(map(len, added)) > max(_SMALLEST, counted // _FOLDED_SHARE):
            self._fold()
        elif len(added) > _MOST_RUNS:
            merged = self._merge(added, is_oldest=False)
            self._replace([*self._runs[: -len(added)], merged])

    def may_hold(self, codes: Ints) -> Bools:
        """For each key whether it may have been added; shape (n,)."""
        result = self._in_words(codes)
        for run in self._added:
            result |= _among(codes, run.values)
        return result

    def _in_words(self, codes: Ints) -> Bools:
        words = self._words
        if not len(words):
            return np.zeros(len(codes), dtype=np.bool_)
        mixed = _mixed(codes)
        first = _first_words(mixed, len(words))
        result = np.ones(len(codes), dtype=np.bool_)
        for index in range(_WORDS_PER_BLOCK):
            result &= (words[first + index] & _bits(mixed, index)) != 0
        return result

    def _merge(self, runs: Sequence[_FilterRun], *, is_oldest: bool) -> _FilterRun:
        """One run of keys, under a new sequence."""
        codes = distinct_values(np.concatenate([run.values for run in runs]))
        return _FilterRun(self.next_sequence, codes)

    def _fold(self) -> None:
        """Fold all keys into the words, sized for the present keys. Words cannot be read back, so a
        filter that outgrows its words keeps them, only fuller."""
        added = self._merge(self._added, is_oldest=False)
        codes, counted = added.values, self._runs[0].counted or 0
        if len(self._words):
            words = self._words.copy()
        else:
            # With headroom: a power of two, so that a mask finds a block.
            bits = max(len(codes), _SMALLEST) * _HEADROOM * _BITS_PER_KEY
            blocks = -(-bits // (64 * _WORDS_PER_BLOCK))
            words = np.zeros(_WORDS_PER_BLOCK << (blocks - 1).bit_length(), np.uint64)
        _set_bits(words, _mixed(codes))
        self._replace([_FilterRun(added.sequence, words, counted + len(codes))])

    def compact(self) -> None:
        if self._added:
            self._fold()

    def _to_arrow(self, run: _FilterRun) -> pa.Table:
        if run.counted is None:
            return pa.table({_CODE: run.values})
        return pa.table({_WORD: run.values}, metadata={_COUNT: str(run.counted).encode()})

    def _from_arrow(self, sequence: int, stored: StoredTable) -> _FilterRun:
        table, pages = table_of(stored)
        if pages is not None:
            # A filter has a few bytes a key, and a key's bits lie anywhere in it.
            pages.check_all()
        if _WORD not in table.column_names:
            return _FilterRun(sequence, _flat(table, _CODE))
        counted = int((table.schema.metadata or {})[_COUNT])
        return _FilterRun(sequence, _flat(table, _WORD).view(np.uint64), counted)


def _mixed(codes: Ints) -> _Words:
    """Codes of small integers are these integers: spread them over all bits."""
    words = codes.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return words ^ (words >> np.uint64(29))


def _first_words(mixed: _Words, words: int) -> Ints:
    blocks = np.uint64(words // _WORDS_PER_BLOCK - 1)
    return (mixed & blocks).astype(np.int64) * _WORDS_PER_BLOCK


def _bits(mixed: _Words, index: int) -> _Words:
    shifts: _Words = (mixed * _SPREAD[index]) >> np.uint64(58)
    return np.left_shift(np.uint64(1), shifts)


def _set_bits(words: _Words, mixed: _Words) -> None:
    first = _first_words(mixed, len(words))
    if _WORDS_PER_KEY * len(mixed) < len(words):
        for index in range(_WORDS_PER_BLOCK):
            np.bitwise_or.at(words, first + index, _bits(mixed, index))
        return
    # For many keys all bits are expanded: setting them one by one is slow.
    is_set = np.zeros(64 * len(words), dtype=np.bool_)
    for index in range(_WORDS_PER_BLOCK):
        shifts = ((mixed * _SPREAD[index]) >> np.uint64(58)).astype(np.int64)
        is_set[64 * (first + index) + shifts] = True
    words |= np.packbits(is_set, bitorder="little").view("<u8")


def _flat(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    return np.asarray(single_chunk(table.column(name)).to_numpy(zero_copy_only=False))
