"""Values that rows are looked for by, and which rows of a column have one of them.

Law: a row whose value equals one that is wanted, as join keys are equal (NaN to NaN, -0.0 to 0.0,
NULL to NULL where NULL is wanted), is always found; of doubles and wide decimals, which are found
by the codes of their keys, another may be found too, one in 2^64.
Cost: some nanoseconds a row of the column.
Out of scope: reading the column (`tables.lookup.rows_with`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from impctl.data.keys import key_codes, normalise
from impctl.data.vector import Bools, Vector
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class WantedValues:
    """The distinct values of `values`, in a form in which many rows are held against them."""

    values: Vector
    distinct: pa.Array
    has_null: bool

    @classmethod
    def of(cls, values: Vector) -> WantedValues:
        """All of these, each once."""
        valid = values.validity()
        known = values if bool(valid.all()) else values.take(np.flatnonzero(valid))
        return cls(values, pc.unique(_comparable(known)), not bool(valid.all()))

    def may_lie(self, low: int, high: int, *, has_null: bool) -> bool:
        """Whether one lies between two whole numbers, or is NULL where there are NULLs; integers
        and dates alone are asked this."""
        if self.has_null and has_null:
            return True
        mine = self.distinct.to_numpy(zero_copy_only=False)
        return bool(((mine >= low) & (mine <= high)).any())

    def held_by(self, column: Vector) -> Bools:
        """Which rows have one of the values; shape (n,). The column is of the values' type."""
        mine = _comparable(column)
        result = _mask(pc.is_in(mine, value_set=self.distinct.cast(mine.type)))
        if column.valid is None:
            return result
        return result | ~column.valid if self.has_null else result & column.valid


def _comparable(column: Vector) -> Any:
    """The column as Arrow compares it right: as it is, or by the codes of its keys."""
    if column.is_textual:
        return column.values
    if column.values.dtype.kind in "iub":
        return pa.array(column.values)
    return pa.array(key_codes([normalise(column)], len(column)))


def _mask(result: Any) -> Bools:
    array = result.combine_chunks() if isinstance(result, pa.ChunkedArray) else result
    mask: Bools = array.to_numpy(zero_copy_only=False).astype(np.bool_, copy=False)
    return mask
