"""Values of a column as places on a line of numbers, so that lengths can be compared.

Law: greater values never lie further left. Whole numbers, dates and times are a unit long each,
doubles next to nothing; of a text the characters count that follow what all texts begin with, a
unit being what cannot be told apart any more. Only estimates rest on it.
Out of scope: what lies where (`tables.overlap`, `tables.file_sample`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from os.path import commonprefix
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from impctl.data.vector import INT64_MAX, INT64_MIN, Vector
from impctl.sketch.partition import BoundaryValue
from impctl.tables.bounds import ColumnBounds, Values
from impctl.values import dataclass

Floats = npt.NDArray[np.float64]

_TOLD_APART = 6
"""Bytes of a text behind what all begin with: as many as a double holds exactly."""


@dataclass(frozen=True, slots=True)
class Line:
    """Where values lie, relative to the least one at hand."""

    least: Any
    unit: float
    prefix: int = 0

    @classmethod
    def of(cls, values: Sequence[BoundaryValue]) -> Self | None:
        """The line of values of one column; None where there are none, or one is infinite."""
        if not values:
            return None
        least: Any = min(values)
        greatest: Any = max(values)
        if isinstance(least, str):
            shared = len(commonprefix([least, greatest]).encode())
            return cls(_number(least, shared), 1.0, shared)
        if not math.isfinite(float(greatest) - float(least)):
            return None
        return cls(least, 1.0 if isinstance(least, int) else 0.0)

    def place(self, value: Any) -> float:
        """Where a value lies."""
        if isinstance(value, str):
            value = _number(value, self.prefix)
        return float(value - self.least)

    def places(self, values: Iterable[Any]) -> Floats:
        """Where each value lies."""
        return np.array([self.place(value) for value in values], dtype=np.float64)

    def places_of(self, vector: Vector) -> Floats:
        """Where each value of a column lies; NaN for NULL."""
        if vector.is_textual:
            coded = vector.values.dictionary_encode()
            # NULL takes the last place, which is there where no text is.
            known = np.append(self.places(coded.dictionary.to_pylist()), np.nan)
            result = known[coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
        else:
            # As doubles first: whole numbers far apart have a difference beyond 64 bits.
            result = np.asarray(vector.values, dtype=np.float64) - float(self.least)
        return np.where(vector.validity(), result, np.nan)

    def spans(self, bounds: ColumnBounds) -> tuple[Floats, Floats]:
        """Where each span of values, of which both ends are known, starts and where it ends, which
        is beyond."""
        lows = self._places(bounds.lows)
        ends = self._places(bounds.highs) + self.unit
        return lows, np.maximum(ends, np.nextafter(lows, np.inf))

    def _places(self, values: Values) -> Floats:
        """Where values lie, none of them less than the least one."""
        if values.dtype == np.float64:
            return np.asarray(values - self.least)
        if values.dtype == np.int64 and INT64_MIN <= self.least <= INT64_MAX:
            # What is beyond 63 bits comes out below zero, and is right without a sign.
            with np.errstate(over="ignore"):
                return (values - np.int64(self.least)).view(np.uint64).astype(np.float64)
        if len(values) and isinstance(values[0], str):
            return _numbers(values, self.prefix) - float(self.least)
        return self.places(values.tolist())


def _number(text: str, prefix: int) -> int:
    """A text as a number, by the bytes behind a prefix."""
    return int.from_bytes(text.encode()[prefix : prefix + _TOLD_APART].ljust(_TOLD_APART, b"\0"))


def _numbers(texts: Values, prefix: int) -> Floats:
    """`_number` of each text."""
    stored = pa.array(texts.tolist(), pa.large_string()).buffers()
    offsets = np.frombuffer(stored[1], np.int64)[: len(texts) + 1]
    content = np.frombuffer(stored[2] or b"", np.uint8)
    starts, ends = offsets[:-1] + prefix, offsets[1:]
    result = np.zeros(len(texts), dtype=np.int64)
    for at in range(_TOLD_APART):
        held = np.flatnonzero(starts + at < ends)
        result *= 256
        result[held] += content[starts[held] + at]
    return result.astype(np.float64)
