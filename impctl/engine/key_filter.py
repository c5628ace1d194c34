"""Which join keys the other side may hold: a Bloom filter that grows by what was added.

Law: a key that was added is always found; another one is found in about one of a thousand cases
while there are at most twice the keys there were when its words were made (`compact`). What is
deleted stays: the answer may be "perhaps" too often, never "no" wrongly. Cost of a change: its
keys; the filter's own words are written again only when the keys added since come to an eighth of
those in it.
Source: B. Bloom, "Space/time trade-offs in hash coding with allowable errors" (CACM 1970); all bits
of a key in one block after F. Putze et al., "Cache-, hash- and space-efficient Bloom
filters" (WEA 2007).
Out of scope: rows (`engine.distant_rows`), where filters are stored (`store`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from impctl.data.keys import distinct_values
from impctl.data.pages import StoredTable, table_of
from impctl.data.vector import Bools, Ints
from impctl.engine.run_log import RunChange

_WORDS_PER_BLOCK = 4
_BITS_PER_KEY = 12
_HEADROOM = 2
"""How many times the keys at its making a filter is sized for."""
_SMALLEST = 1024
_FOLDED_SHARE = 8
"""Keys added since that come to this part of the filter's own go into its words."""
_MOST_RUNS = 16
"""Runs of keys that a look-up may have to search."""
_WORDS_PER_KEY = 8
"""Words of a filter, per key that goes into them, up to which all bits are spelled out."""
_WORD, _CODE, _COUNT = "word", "code", b"count"
_SPREAD = np.array(
    [
        0x9E3779B97F4A7C15,
        0xBF58476D1CE4E5B9,
        0x94D049BB133111EB,
        0xD6E8FEB86659FD93,
    ],
    dtype=np.uint64,
)
"""One odd multiplier per word of a block: the top bits of the product choose the bit."""

_Words = npt.NDArray[np.uint64]


class KeyFilter:
    """Codes of keys (`data.keys`) that were ever added."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._words: _Words = np.zeros(0, np.uint64)
        self._counted = 0
        """Keys in the words."""
        self._added: list[tuple[int, Ints]] = []
        """Keys since, as runs under their sequences, each sorted."""
        self._base = 0
        """The words' sequence; 0 while there are none."""
        self._saved: frozenset[int] = frozenset()
        self._fresh: frozenset[int] = frozenset()

    @property
    def bytes_held(self) -> int:
        return int(self._words.nbytes) + sum(int(codes.nbytes) for _, codes in self._added)

    def add(self, codes: Ints) -> None:
        """From now on these keys may be there."""
        fresh = distinct_values(codes[~self._in_words(codes)])
        if not len(fresh):
            return
        sequence = self._next_sequence
        self._added.append((sequence, fresh))
        self._fresh |= {sequence}
        added = sum(len(codes) for _, codes in self._added)
        if len(self._words) and added > max(_SMALLEST, self._counted // _FOLDED_SHARE):
            self._fold()
        elif len(self._added) > _MOST_RUNS:
            self._merge()

    def may_hold(self, codes: Ints) -> Bools:
        """For each key whether it may have been added; shape (n,)."""
        result = self._in_words(codes)
        for _, added in self._added:
            places = np.minimum(added.searchsorted(codes), len(added) - 1)
            result |= added[places] == codes
        return result

    @property
    def _next_sequence(self) -> int:
        return max([self._base, *(sequence for sequence, _ in self._added)]) + 1

    def _in_words(self, codes: Ints) -> Bools:
        if not len(self._words):
            return np.zeros(len(codes), dtype=np.bool_)
        mixed = _mixed(codes)
        first = _first_words(mixed, len(self._words))
        result = np.ones(len(codes), dtype=np.bool_)
        for at in range(_WORDS_PER_BLOCK):
            result &= (self._words[first + at] & _bits(mixed, at)) != 0
        return result

    def _merge(self) -> None:
        """Bring all keys that are not in the words into one run."""
        sequence = self._next_sequence
        codes = distinct_values(np.concatenate([added for _, added in self._added]))
        self._added = [(sequence, codes)]
        self._fresh = frozenset((sequence,)) | (self._fresh & {self._base})

    def _fold(self) -> None:
        """Bring all keys into the words, which are made to fit the keys there are.

        Words cannot be read back, so a filter that outgrows its words keeps them, only fuller.
        """
        codes = distinct_values(np.concatenate([added for _, added in self._added]))
        sequence = self._next_sequence
        if len(self._words):
            words = self._words.copy()
        else:
            words = np.zeros(_size_for(len(codes)), np.uint64)
        _set_bits(words, _mixed(codes))
        self._words, self._base, self._added = words, sequence, []
        self._counted += len(codes)
        self._fresh = frozenset((sequence,))

    def clear(self) -> None:
        """Forget all keys."""
        self._words, self._counted, self._base = np.zeros(0, np.uint64), 0, 0
        self._added, self._fresh = [], frozenset()

    def compact(self) -> None:
        """Bring all keys into words."""
        if self._added:
            self._fold()

    def load(self, tables: Sequence[tuple[int, StoredTable]]) -> None:
        """Take over what a checkpoint wrote; it counts as saved."""
        self._added = []
        for sequence, stored in sorted(tables, key=lambda result: result[0]):
            table, pages = table_of(stored)
            if pages is not None:
                # A filter has a few bytes a key, and a key's bits lie anywhere in it.
                pages.check_all()
            if _WORD in table.column_names:
                self._words = _flat(table, _WORD).view(np.uint64)
                self._counted = int((table.schema.metadata or {})[_COUNT])
                self._base = sequence
            else:
                self._added.append((sequence, _flat(table, _CODE)))
        self._saved = frozenset(sequence for sequence, _ in tables)
        self._fresh = frozenset()

    def changes(self) -> RunChange:
        """What changed since the last `saved`, for the checkpoint to write."""
        put = [(at, pa.table({_CODE: codes})) for at, codes in self._added if at in self._fresh]
        if self._base in self._fresh:
            metadata = {_COUNT: str(self._counted).encode()}
            put.append((self._base, pa.table({_WORD: self._words}, metadata=metadata)))
        return RunChange(tuple(put), tuple(sorted(self._saved - self._present)))

    def saved(self) -> None:
        """The last changes are safe now."""
        self._saved = self._present
        self._fresh = frozenset()

    @property
    def _present(self) -> frozenset[int]:
        base = [self._base] if self._base else []
        return frozenset([*base, *(sequence for sequence, _ in self._added)])


def _size_for(keys: int) -> int:
    """Words for so many keys and their headroom: a power of two, so that a mask finds a block."""
    bits = max(keys, _SMALLEST) * _HEADROOM * _BITS_PER_KEY
    blocks = -(-bits // (64 * _WORDS_PER_BLOCK))
    return _WORDS_PER_BLOCK * (1 << (blocks - 1).bit_length())


def _mixed(codes: Ints) -> _Words:
    """Codes of small integers are these integers: spread them over all bits."""
    words = codes.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return words ^ (words >> np.uint64(29))


def _first_words(mixed: _Words, words: int) -> Ints:
    blocks = np.uint64(words // _WORDS_PER_BLOCK - 1)
    return (mixed & blocks).astype(np.int64) * _WORDS_PER_BLOCK


def _bits(mixed: _Words, at: int) -> _Words:
    """The bit of each key in the word at that place of its block."""
    shifts: _Words = (mixed * _SPREAD[at]) >> np.uint64(58)
    return np.left_shift(np.uint64(1), shifts)


def _set_bits(words: _Words, mixed: _Words) -> None:
    """Set the bits of these keys, in place."""
    first = _first_words(mixed, len(words))
    if _WORDS_PER_KEY * len(mixed) < len(words):
        for at in range(_WORDS_PER_BLOCK):
            np.bitwise_or.at(words, first + at, _bits(mixed, at))
        return
    # Of many keys all bits are spelled out: setting them one by one is what takes long.
    is_set = np.zeros(64 * len(words), dtype=np.bool_)
    for at in range(_WORDS_PER_BLOCK):
        shifts = ((mixed * _SPREAD[at]) >> np.uint64(58)).astype(np.int64)
        is_set[64 * (first + at) + shifts] = True
    words |= np.packbits(is_set, bitorder="little").view("<u8")


def _flat(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    column = table.column(name)
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return np.asarray(array.to_numpy(zero_copy_only=False))
