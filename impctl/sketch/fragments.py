"""Sets of fragment ids as bits.

Law: a `FragmentSet` belongs to a partition of `size` fragments and never changes.
Out of scope: what the fragments mean (`sketch.partition`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Self

import numpy as np
import numpy.typing as npt
from bitarray import bitarray, frozenbitarray

from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class FragmentSet:
    """A subset of fragments 0 .. size-1."""

    bits: frozenbitarray

    @classmethod
    def of(cls, ids: Iterable[int], size: int) -> Self:
        """The set of these ids among `size` fragments; IndexError for an id outside."""
        bits = bitarray(size, endian="little")
        for fragment in ids:
            bits[fragment] = 1
        return cls(frozenbitarray(bits))

    @classmethod
    def from_mask(cls, mask: npt.NDArray[np.bool_]) -> Self:
        """The set of positions where `mask` is set."""
        bits = bitarray(endian="little")
        bits.frombytes(np.packbits(mask, bitorder="little").tobytes())
        return cls(frozenbitarray(bits[: len(mask)]))

    @classmethod
    def from_bytes(cls, data: bytes, size: int) -> Self:
        """The inverse of `to_bytes`."""
        bits = bitarray(endian="little")
        bits.frombytes(data)
        return cls(frozenbitarray(bits[:size]))

    def to_mask(self) -> npt.NDArray[np.bool_]:
        """The inverse of `from_mask`; shape (size,)."""
        result = np.frombuffer(self.to_bytes(), dtype=np.uint8)
        return np.unpackbits(result, count=self.size, bitorder="little").astype(np.bool_)

    def to_bytes(self) -> bytes:
        """Bit k in byte k // 8 at position k % 8, padded with zeros."""
        return bitarray(self.bits, endian="little").tobytes()

    @property
    def size(self) -> int:
        return len(self.bits)

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids, ascending."""
        return tuple(self.bits.search(1))

    def __len__(self) -> int:
        return self.bits.count(1)

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids)

    def __contains__(self, fragment: int) -> bool:
        return 0 <= fragment < len(self.bits) and bool(self.bits[fragment])

    def union(self, other: FragmentSet) -> FragmentSet:
        return FragmentSet(frozenbitarray(self.bits | other.bits))

    def minus(self, other: FragmentSet) -> FragmentSet:
        return FragmentSet(frozenbitarray(self.bits & ~other.bits))
