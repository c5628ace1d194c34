"""Slots for keys that one step meets: numbers from 0 on, in the order in which they come.

Law: equal keys, as GROUP BY has it, have one slot; codes are those of `data.keys`. Cost: the keys
asked for, by binary search; a merge of the codes where some are new.
Out of scope: what is remembered of a key (`engine.fixpoint.touched_groups`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.data.keys import are_told_by_codes, same_keys
from impctl.data.vector import Ints, Vector, concat

_NONE = np.zeros(0, dtype=np.int64)


class Slots:
    """The keys met so far."""

    def __init__(self) -> None:
        self._count = 0
        self._parts: list[Sequence[Vector]] = []
        self._codes, self._by_code = _NONE, _NONE
        """Codes of all keys, ascending, and their slots."""
        self._are_told = True
        """Whether equal codes mean equal keys, as far as those here tell."""

    def __len__(self) -> int:
        return self._count

    def find(self, codes: Ints, keys: Sequence[Vector]) -> Ints:
        """The slots of keys, each given once; -1 for those that have none."""
        if not self._count:
            return np.full(len(codes), -1, dtype=np.int64)
        places = self._codes.searchsorted(codes)
        slots = self._by_code.take(places, mode="clip")
        slots[self._codes.take(places, mode="clip") != codes] = -1
        if self._are_told and are_told_by_codes(keys, keys):
            return slots
        rows = (slots >= 0).nonzero()[0]
        while len(rows):
            same = same_keys(
                [key.take(slots[rows]) for key in self.columns()], [key.take(rows) for key in keys]
            )
            # Another key may have the code, and stand before it; as good as never.
            rows = _NONE if same is None else rows[~same]
            places[rows] += 1
            slots[rows] = self._by_code.take(places[rows], mode="clip")
            is_past = (places[rows] >= self._count) | (
                self._codes.take(places[rows], mode="clip") != codes[rows]
            )
            slots[rows[is_past]] = -1
            rows = rows[~is_past]
        return slots

    def add(self, codes: Ints, keys: Sequence[Vector]) -> Ints:
        """Slots for keys, each given once, that have none; `codes` ascending."""
        slots = np.arange(self._count, self._count + len(codes), dtype=np.int64)
        if not len(codes):
            return slots
        self._are_told = self._are_told and are_told_by_codes(keys, keys)
        self._parts.append(keys)
        if self._count:
            # Two sorted parts: NumPy merges them.
            codes = np.concatenate([self._codes, codes])
            order = np.argsort(codes, kind="stable")
            self._codes = codes[order]
            self._by_code = np.concatenate([self._by_code, slots])[order]
        else:
            self._codes, self._by_code = codes, slots
        self._count += len(slots)
        return slots

    def columns(self) -> Sequence[Vector]:
        """The columns of all keys, by slot; at least one key is there."""
        if len(self._parts) > 1:
            self._parts = [[concat(list(parts)) for parts in zip(*self._parts, strict=True)]]
        return self._parts[0]

    def ordered(self, slots: Ints) -> tuple[Ints, Ints]:
        """Of these slots, each given once, the codes, ascending, and the slots in that order."""
        is_asked = np.zeros(self._count, dtype=np.bool_)
        is_asked[slots] = True
        result = is_asked[self._by_code]
        return self._codes[result], self._by_code[result]
