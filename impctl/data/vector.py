"""One column of values in the form the engine computes with."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from impctl.data.memory import reserve
from impctl.data.schema import Kind, SqlType
from impctl.errors import TableError

# Law: `values` is a NumPy array, but an Arrow array for strings and binary; `valid` is None when no
# value is NULL; the slot of a NULL has an arbitrary value. Canonical values: integers, dates (days)
# and timestamps (microseconds) as int64; booleans as bool; decimals as unscaled integers (int64, or
# Python ints in an object array where they do not fit); FLOAT and DOUBLE as float64. `error` bounds
# the distance of a float value from Spark's; None means exact.

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_INT_LIKE = frozenset(
    {Kind.BYTE, Kind.SHORT, Kind.INTEGER, Kind.LONG, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ}
)
_TEXTUAL = frozenset({Kind.STRING, Kind.BINARY})
_MANY = 1 << 10  # Values from which the size is reserved before they are made
_WORD = 8  # Bytes of a value, or of a text's offset
_NARROW_DIGITS = 18  # Decimals of at most this precision always fit int64


class Vector(Struct, frozen=True):
    """A typed column of n values; see the module for the canonical forms."""

    type: SqlType
    values: Any  # np.ndarray, or pa.Array for STRING and BINARY
    valid: Bools | None = None
    error: Floats | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_textual(self) -> bool:
        return self.type.kind in _TEXTUAL

    @property
    def size(self) -> int:
        """Bytes of the values; of Python numbers those of the pointers to them."""
        size = int(self.values.nbytes)
        size += 0 if self.valid is None else self.valid.nbytes
        return size if self.error is None else size + self.error.nbytes

    def take(self, positions: npt.NDArray[Any]) -> Vector:
        """The values at these positions, in that order; shape (len(positions),)."""
        if len(positions) >= _MANY:
            reserve(self.size * len(positions) // len(self))
        if self.is_textual:
            values: Any = self.values.take(pa.array(positions))
        else:
            values = self.values[positions]
        return Vector(
            self.type,
            values,
            None if self.valid is None else self.valid[positions],
            None if self.error is None else self.error[positions],
        )

    def between(self, start: int, end: int) -> Vector:
        """The values from one position to before another; nothing is copied."""
        part = slice(start, end)
        values = self.values.slice(start, end - start) if self.is_textual else self.values[part]
        return Vector(
            self.type,
            values,
            None if self.valid is None else self.valid[part],
            None if self.error is None else self.error[part],
        )

    def keep(self, mask: Bools) -> Vector:
        return self.take(np.flatnonzero(mask))

    def validity(self) -> Bools:
        return np.ones(len(self), dtype=np.bool_) if self.valid is None else self.valid

    def filled(self) -> Any:
        """The values, 0 for NULL; not for text."""
        return self.values if self.valid is None else np.where(self.valid, self.values, 0)

    def to_arrow(self) -> pa.Array:
        """An Arrow array that `from_stored` turns back into an equal vector (errors are
        dropped)."""
        mask = None if self.valid is None else ~self.valid
        if self.is_textual:
            return self.values if mask is None else _with_nulls(self.values, mask)
        if self.type.kind is Kind.DECIMAL and self.type.precision > _NARROW_DIGITS:
            # One Arrow type per column, whether or not today's values are small.
            pairs = zip(self.values, self.validity(), strict=True)
            texts = [str(value) if is_valid else None for value, is_valid in pairs]
            return pa.array(texts, pa.string()).cast(pa.decimal128(38, 0))
        return pa.array(self.values, mask=mask)


def typed_arrow(vector: Vector, target: pa.DataType) -> pa.Array:
    """The values in the Arrow type of the vector's SQL type (errors are dropped)."""
    array = vector.to_arrow()
    if pa.types.is_decimal(target):
        if not pa.types.is_decimal(array.type):
            array = array.cast(pa.decimal128(19, 0))
        wide = array.cast(pa.decimal128(38, 0))
        return pa.Array.from_buffers(target, len(wide), wide.buffers(), offset=wide.offset)
    if array.type == target:
        return array
    if pa.types.is_null(target):
        return pa.nulls(len(array))
    if pa.types.is_date(target):
        return array.cast(pa.int32()).view(target)
    if pa.types.is_timestamp(target):
        return array.view(target)
    return array.cast(target, safe=not pa.types.is_floating(target))


def from_stored(array: pa.Array, kind: SqlType) -> Vector:
    if kind.kind is Kind.DECIMAL and pa.types.is_decimal(array.type):
        unscaled = from_arrow(array, SqlType(Kind.DECIMAL, 38, 0))
        return Vector(kind, unscaled.values, unscaled.valid)
    return from_arrow(array, kind)


def check_stored(data_type: pa.DataType, kind: SqlType) -> None:
    """Raise TypeError unless `Vector.to_arrow` makes such an array of that SQL type."""
    if data_type != all_null(kind, 0).to_arrow().type:
        raise TypeError(f"a column of {kind} has type {data_type}")


def _with_nulls(texts: pa.Array, is_null: Bools) -> pa.Array:
    """The texts with NULL where `valid` is unset, whatever is there."""
    if texts.null_count == np.count_nonzero(is_null):
        # Nothing but `valid` makes a text NULL, so these are the same ones.
        return texts
    import pyarrow.compute as pc  # takes longer to load than a run with nothing to do may last

    return pc.if_else(pa.array(is_null), pa.scalar(None, texts.type), texts)


def from_arrow(array: pa.Array | pa.ChunkedArray, kind: SqlType) -> Vector:
    """A vector of that SQL type from what deltalake, Spark or our own files deliver. Raises
    TableError for a type impctl never computes with."""
    if isinstance(array, pa.ChunkedArray):
        if array.num_chunks == 1:
            array = array.chunk(0)
        else:
            reserve(array.nbytes)
            array = array.combine_chunks()
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    reserve(len(array) * _WORD)
    valid = None if array.null_count == 0 else array.is_valid().to_numpy(zero_copy_only=False)
    if kind.kind in _TEXTUAL:
        return Vector(kind, _textual(array, kind), valid)
    if kind.kind is Kind.NULL or pa.types.is_null(array.type):
        return all_null(kind, len(array))
    if kind.kind in _INT_LIKE:
        return Vector(kind, _integers(array), valid)
    if kind.kind is Kind.BOOLEAN:
        filled = array if valid is None else array.fill_null(False)
        return Vector(kind, filled.to_numpy(zero_copy_only=False), valid)
    if kind.is_fractional:
        return Vector(
            kind, _numpy(array, valid, pa.float64()).astype(np.float64, copy=False), valid
        )
    if kind.kind is Kind.DECIMAL:
        return Vector(kind, _unscaled(array, kind), valid)
    raise TableError(
        f"The engine cannot compute with a column of type `{kind}`",
        hint="use the column only in parts that Spark evaluates, or remove it from the query",
    )


def _textual(array: pa.Array, kind: SqlType) -> pa.Array:
    target = pa.large_string() if kind.kind is Kind.STRING else pa.large_binary()
    return array if array.type == target else array.cast(target)


def _numpy(array: pa.Array, valid: Bools | None, target: pa.DataType) -> Any:
    if array.type != target:
        array = array.cast(target)
    if valid is not None:
        array = array.fill_null(0)
    return array.to_numpy(zero_copy_only=False)


def _integers(array: pa.Array) -> Ints:
    """Integers, days or microseconds as int64, whatever unit the reader chose."""
    if pa.types.is_timestamp(array.type):
        if array.type.unit != "us":
            array = array.cast(pa.timestamp("us", tz=array.type.tz))
        array = array.view(pa.int64()) if array.offset == 0 else array.cast(pa.int64())
    elif pa.types.is_date32(array.type):
        array = array.cast(pa.int32())
    elif pa.types.is_date64(array.type):
        array = array.cast(pa.date32()).cast(pa.int32())
    valid = None if array.null_count == 0 else array.is_valid().to_numpy(zero_copy_only=False)
    return _numpy(array, valid, pa.int64())  # type: ignore[no-any-return]  # Arrow is untyped here


def _unscaled(array: pa.Array, kind: SqlType) -> Any:
    """Unscaled integers at the type's scale: int64 where all fit, else Python ints."""
    if pa.types.is_integer(array.type):
        valid = None if array.null_count == 0 else array.is_valid().to_numpy(zero_copy_only=False)
        return _numpy(array, valid, pa.int64())
    if not pa.types.is_decimal128(array.type) or array.type.scale != kind.scale:
        # All of one scale have the same words, whatever their precision.
        array = array.cast(pa.decimal128(38, kind.scale))
    words = np.frombuffer(array.buffers()[1], dtype=np.int64)
    words = words[2 * array.offset : 2 * (array.offset + len(array))].reshape(-1, 2)
    low, high = words[:, 0].copy(), words[:, 1]
    if array.null_count:
        dead = ~array.is_valid().to_numpy(zero_copy_only=False)
        low[dead] = 0
        high = np.where(dead, 0, high)
    if bool(np.all(high == (low >> 63))):
        return low
    return np.array(
        [(int(h) << 64) | (int(lo) & (2**64 - 1)) for lo, h in zip(low, high, strict=True)],
        dtype=object,
    )


def all_null(kind: SqlType, length: int) -> Vector:
    nothing = np.zeros(length, dtype=np.bool_)
    if kind.kind in _TEXTUAL:
        arrow = pa.large_string() if kind.kind is Kind.STRING else pa.large_binary()
        return Vector(kind, pa.nulls(length, arrow), nothing)
    if kind.is_fractional:
        return Vector(kind, np.zeros(length), nothing)
    dtype = np.bool_ if kind.kind is Kind.BOOLEAN else np.int64
    return Vector(kind, np.zeros(length, dtype=dtype), nothing)


def concat(vectors: list[Vector]) -> Vector:
    """One vector after the other; all of one type, at least one."""
    first = vectors[0]
    if len(vectors) == 1:
        return first
    if sum(map(len, vectors)) >= _MANY:
        reserve(sum(vector.size for vector in vectors))
    valid = None
    if any(vector.valid is not None for vector in vectors):
        valid = np.concatenate([vector.validity() for vector in vectors])
    error = None
    if any(vector.error is not None for vector in vectors):
        error = np.concatenate([np.zeros(len(v)) if v.error is None else v.error for v in vectors])
    if first.is_textual:
        values: Any = pa.concat_arrays([vector.values for vector in vectors])
    else:
        values = np.concatenate([vector.values for vector in vectors])
    return Vector(first.type, values, valid, error)


# Many slices of one array, in the requested order. Cost: their total length.


def slice_positions(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Positions of all slices `starts[i]:ends[i]`, and for each position its slice `i`."""
    sizes = ends - starts
    total = int(sizes.sum())
    # Both results, and what is picked for all positions.
    reserve(3 * total * sizes.itemsize)
    owners = np.repeat(np.arange(len(starts), dtype=np.int64), sizes)
    before = np.cumsum(sizes) - sizes
    positions = np.arange(total, dtype=np.int64)
    positions += (starts - before)[owners]
    return positions, owners


# Cached results of an immutable subject. Law: a cached result is the one that computing it gives,
# and nobody changes it. Only the latest few are kept, and no longer than the subject.

T = TypeVar("T")

_HELD = 8  # Results held at once; each may be as large as its input


class Once:
    """Cached results by key; a key names everything that its result depends on besides the
    subject."""

    __slots__ = ("_results",)

    def __init__(self) -> None:
        self._results: dict[Hashable, Any] = {}

    def of(self, question: Hashable, make: Callable[[], T]) -> T:
        if question in self._results:
            known: T = self._results[question]
            return known
        result = make()
        while len(self._results) >= _HELD:
            del self._results[next(iter(self._results))]
        self._results[question] = result
        return result


def once(shared: Once | None, question: Hashable, make: Callable[[], T]) -> T:
    """The shared result, or computed directly without a cache."""
    return make() if shared is None else shared.of(question, make)
