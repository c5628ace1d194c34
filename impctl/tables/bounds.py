"""What the files of a snapshot may hold in one column, as arrays over files.

Law: every value of a file that is neither NULL nor NaN lies between its `lows` and `highs`, where
`has_low` and `has_high` say that these are known; a slot that is not known holds an arbitrary value
that nobody may look at. One file of them is a `FileBounds`, which costs an object: whoever looks at
all files takes the arrays.
Out of scope: where bounds come from (`tables.statistics`), which files to read (`tables.prune`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from impctl.data.vector import Ints
from impctl.sketch.partition import BoundaryValue
from impctl.values import dataclass

Flags = npt.NDArray[np.bool_]
Values = npt.NDArray[Any]
"""Canonical values: int64, float64 or bool; objects for texts and integers beyond 64 bits."""

UNKNOWN = -1
"""A count that the log does not tell."""
_EXACT: dict[type, type[np.generic]] = {bool: np.bool_, int: np.int64, float: np.float64}


@dataclass(frozen=True, slots=True)
class FileBounds:
    """What one file may hold in one column."""

    minimum: BoundaryValue | None
    maximum: BoundaryValue | None
    null_count: int | None
    """NULLs, rows deleted by a vector included; None when unknown."""
    rows: int | None
    may_be_nan: bool = False

    @property
    def may_hold_null(self) -> bool:
        return self.null_count is None or self.null_count > 0

    @property
    def is_all_null(self) -> bool:
        return (
            self.rows is not None and self.null_count is not None and self.null_count >= self.rows
        )


# Without slots: what is asked again and again is kept beside the arrays.
@dataclass(frozen=True, eq=False)
class ColumnBounds(Sequence[FileBounds]):
    """The bounds of one column in each file; all arrays of shape (files,)."""

    lows: Values
    has_low: Flags
    highs: Values
    has_high: Flags
    null_counts: Ints
    """`UNKNOWN` where the log does not say."""
    rows: Ints
    """`UNKNOWN` likewise."""
    may_be_nan: Flags

    @cached_property
    def may_hold_null(self) -> Flags:
        return np.asarray(self.null_counts != 0)

    @cached_property
    def is_all_null(self) -> Flags:
        is_counted = (self.rows >= 0) & (self.null_counts >= 0)
        return np.asarray(is_counted & (self.null_counts >= self.rows))

    @cached_property
    def filled(self) -> ColumnBounds:
        """Those of files that hold more than NULL."""
        return self.keep(~self.is_all_null)

    @property
    def is_known(self) -> bool:
        """Whether both ends of every file are."""
        return bool(self.has_low.all() and self.has_high.all())

    @property
    def minima(self) -> list[BoundaryValue | None]:
        """The least value of each file, one by one."""
        return _known(self.lows, self.has_low)

    @property
    def maxima(self) -> list[BoundaryValue | None]:
        """The greatest value of each file, one by one."""
        return _known(self.highs, self.has_high)

    def keep(self, mask: Flags) -> ColumnBounds:
        """Those of the files where `mask` is set."""
        return self.take(np.flatnonzero(mask))

    def take(self, positions: Ints) -> ColumnBounds:
        """Those of the files at these positions, in that order."""
        return ColumnBounds(
            self.lows[positions],
            self.has_low[positions],
            self.highs[positions],
            self.has_high[positions],
            self.null_counts[positions],
            self.rows[positions],
            self.may_be_nan[positions],
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[FileBounds]:
        return iter(self._each)

    @overload
    def __getitem__(self, at: int) -> FileBounds: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[FileBounds]: ...
    def __getitem__(self, at: int | slice) -> FileBounds | Sequence[FileBounds]:
        return self._each[at]

    @cached_property
    def _each(self) -> tuple[FileBounds, ...]:
        ends = zip(self.minima, self.maxima, strict=True)
        counts = zip(
            _known(self.null_counts, self.null_counts >= 0),
            _known(self.rows, self.rows >= 0),
            self.may_be_nan.tolist(),
            strict=True,
        )
        return tuple(FileBounds(*pair, *rest) for pair, rest in zip(ends, counts, strict=True))


def _known(values: Values, is_known: Flags) -> list[Any]:
    return [
        value if ok else None for value, ok in zip(values.tolist(), is_known.tolist(), strict=True)
    ]


def as_array(values: Sequence[BoundaryValue]) -> Values:
    """Values of one column as an array that holds them exactly."""
    wanted = _EXACT.get(type(values[0])) if values else None
    if wanted is not None:
        # Whole numbers of which some need more than 64 bits come out as anything but int64.
        result = np.array(values)
        if result.dtype == wanted:
            return result
    return as_objects(values)


def as_objects(values: Sequence[Any]) -> Values:
    """Values as they are, one by one."""
    result = np.empty(len(values), dtype=np.object_)
    result[:] = values
    return result


def places_in(
    ordered: Sequence[BoundaryValue], values: Values, side: Literal["left", "right"]
) -> Ints:
    """Where each value would stand among ascending ones: `bisect_left` or `bisect_right` of all."""
    own = as_array(ordered)
    if own.dtype != values.dtype:
        own, values = own.astype(np.object_), values.astype(np.object_)
    return np.searchsorted(own, values, side=side).astype(np.int64, copy=False)
