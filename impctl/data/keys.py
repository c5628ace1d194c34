"""Key columns as 64-bit codes; rows sorted and grouped by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from impctl.data.memory import reserve
from impctl.data.schema import Kind
from impctl.data.vector import INT64_MAX, INT64_MIN, Bools, Ints, Vector

# Law: equal keys have equal codes; unequal keys nearly always differ in code, and users of codes
# compare the keys on a hit (`same_keys`). Keys are equal as in GROUP BY: NULL is a key, NaN equals
# NaN, -0.0 equals 0.0. Codes do not depend on the process or the batch.

Positions = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

_NULL_CODE = np.int64(0x2545F4914F6CDD1D)
_TEXT_BASE = np.uint64(0x9E3779B97F4A7C15)
_LOW_WORD = (1 << 64) - 1
_SIGN = 1 << 63
_TEXT_LOT = 1 << 16
"""Bytes of text whose codes are computed at once: the temporaries then fit the caches, which halves
the time."""
_MANY = 1000  # Codes from which checking their spread pays
_AS_THEY_ARE = slice(None)  # The order of sorted rows: indexing with it copies nothing


def normalise(vector: Vector) -> Vector:
    """The column with one representative per key: -0.0 becomes 0.0, every NaN the same NaN."""
    if not vector.type.is_fractional:
        return vector
    values = vector.values + 0.0
    values[np.isnan(values)] = np.nan
    return Vector(vector.type, values, vector.valid)


def key_codes(columns: Sequence[Vector], length: int) -> Ints:
    """One code per row; shape (length,). A single integer-like column is its own code."""
    if not columns:
        return np.zeros(length, dtype=np.int64)
    # The codes, those of one column, and the temporaries of mixing.
    reserve(3 * length * _TEXT_BASE.itemsize)
    codes = _column_codes(columns[0])
    for column in columns[1:]:
        mixed = _mix(codes.view(np.uint64)) ^ _column_codes(column).view(np.uint64)
        codes = _mix(mixed).view(np.int64)
    return codes


def code_of(values: Sequence[int]) -> int:
    """The code that `key_codes` gives a single row of 64-bit integers, at least one."""
    first, *rest = values
    if not rest:
        return first
    word = first & _LOW_WORD
    for value in rest:
        word = _mixed(_mixed(word) ^ (value & _LOW_WORD))
    return word - ((word & _SIGN) << 1)


def _mixed(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _LOW_WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _LOW_WORD
    return word ^ (word >> 31)


def _column_codes(vector: Vector) -> Ints:
    if vector.is_textual:
        codes = _text_codes(vector.values)
    elif vector.values.dtype == object:
        codes = np.array([_wide_code(int(value)) for value in vector.values], dtype=np.int64)
    elif vector.type.is_fractional:
        codes = _mix(normalise(vector).values.view(np.uint64)).view(np.int64)
    else:
        codes = vector.values.astype(np.int64, copy=False)
    return codes if vector.valid is None else np.where(vector.valid, codes, _NULL_CODE)


def _wide_code(value: int) -> int:
    """The value itself where it fits 64 bits, as in a narrow column; else its words mixed."""
    if INT64_MIN <= value <= INT64_MAX:
        return value
    words = np.array([value & _LOW_WORD, (value >> 64) & _LOW_WORD], dtype=np.uint64)
    mixed = _mix(words)
    return int((mixed[:1] ^ _mix(mixed[1:])).view(np.int64)[0])


def _mix(words: _Words) -> _Words:
    """The finaliser of SplitMix64: a bijection on 64-bit words."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _text_codes(values: pa.Array) -> Ints:
    """A polynomial hash of the bytes, computed over the whole data buffer at once."""
    length = len(values)
    if length == 0:
        return np.zeros(0, dtype=np.int64)
    if values.null_count:
        values = pc.fill_null(values, b"" if pa.types.is_large_binary(values.type) else "")
    offsets = np.frombuffer(values.buffers()[1], dtype=np.int64)
    offsets = offsets[values.offset : values.offset + length + 1]
    sizes = np.diff(offsets)
    hashes = np.zeros(length, dtype=np.uint64)
    if offsets[-1] > offsets[0]:
        powers = np.cumprod(np.full(int(sizes.max()) + 1, _TEXT_BASE), dtype=np.uint64)
        data = np.frombuffer(values.buffers()[2], dtype=np.uint8)
        borders: Sequence[int] | Ints = (0, length)
        if offsets[-1] - offsets[0] > _TEXT_LOT:
            # Each byte takes several words, so a lot of texts has few bytes, or is one text.
            ends = np.arange(offsets[0], offsets[-1], _TEXT_LOT)[1:]
            borders = np.unique([0, *np.searchsorted(offsets, ends), length])
        for low, high in zip(borders[:-1], borders[1:], strict=True):
            hashes[low:high] = _text_sums(data, offsets[low : high + 1], powers)
    return _mix(hashes + sizes.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)).view(np.int64)


def _text_sums(data: npt.NDArray[np.uint8], offsets: Ints, powers: _Words) -> _Words:
    sizes, start = np.diff(offsets), offsets[0]
    sums = np.zeros(len(sizes), dtype=np.uint64)
    filled = np.flatnonzero(sizes)
    if len(filled):
        starts = offsets[:-1] - start
        total = int(offsets[-1] - start)
        reserve(5 * total * _TEXT_BASE.itemsize)
        positions = np.arange(total) - np.repeat(starts, sizes)
        terms = (data[start : offsets[-1]].astype(np.uint64) + np.uint64(1)) * powers[positions]
        sums[filled] = np.add.reduceat(terms, starts[filled])
    return sums


def same_keys(left: Sequence[Vector], right: Sequence[Vector]) -> Bools | None:
    """Whether two equally long lists of keys are equal, row by row; None without key columns."""
    result: Bools | None = None
    for first, second in zip(left, right, strict=True):
        same = _same_column(first, second)
        result = same if result is None else result & same
    return result


def _same_column(left: Vector, right: Vector) -> Bools:
    if left.is_textual:
        result = pc.fill_null(pc.equal(left.values, right.values), False)
        same = result.to_numpy(zero_copy_only=False)
    elif left.type.is_fractional:
        same = (left.values == right.values) | (np.isnan(left.values) & np.isnan(right.values))
    else:
        same = np.asarray(left.values == right.values, dtype=np.bool_)
    if left.valid is None and right.valid is None:
        return same  # type: ignore[no-any-return]  # Arrow is untyped here
    in_left, in_right = left.validity(), right.validity()
    return np.asarray((same & in_left & in_right) | (~in_left & ~in_right), dtype=np.bool_)


class Grouping(Struct, frozen=True):
    """Rows of a batch by key: `order` sorts rows so that groups are runs from `starts`. `codes` are
    the groups' codes, ascending; `first` a row of each group; shapes (rows,) for `order`, (groups,)
    for the rest. `order` is an index: a slice where the rows are already sorted."""

    rows: int
    order: Positions | slice
    starts: Positions
    codes: Ints
    first: Positions

    @property
    def groups(self) -> int:
        return len(self.codes)

    @property
    def is_each_alone(self) -> bool:
        """Whether every row is a group and the rows are already sorted."""
        return self.order is _AS_THEY_ARE and self.groups == self.rows

    def leaders(self, columns: Sequence[Vector]) -> list[Vector]:
        """The key columns, one row per group."""
        if self.is_each_alone:
            return list(columns)
        return [column.take(self.first) for column in columns]

    def index(self) -> Positions:
        """The group of each row, in row order; shape (rows,)."""
        if self.is_each_alone:
            return self.starts
        owners = np.repeat(np.arange(self.groups), self.sizes())
        if self.order is _AS_THEY_ARE:
            return owners
        index = np.empty(self.rows, dtype=np.int64)
        index[self.order] = owners
        return index

    def sizes(self) -> Ints:
        sizes = np.empty_like(self.starts)
        np.subtract(self.starts[1:], self.starts[:-1], out=sizes[:-1])
        sizes[-1:] = self.rows - self.starts[-1:]
        return sizes

    def sums(self, weights: Ints) -> Ints:
        """Total weight per group; shape (groups,)."""
        if bool((weights == 1).all()):
            return self.sizes()
        return np.add.reduceat(weights[self.order], self.starts)


def group_rows(columns: Sequence[Vector], length: int) -> Grouping:
    """Groups of equal keys, sorted by code. Cost: length log(length)."""
    codes = key_codes(columns, length)
    if length and bool((codes[1:] > codes[:-1]).all()):
        # As of what was grouped before: rows of different codes are different.
        every = np.arange(length)
        return Grouping(length, _AS_THEY_ARE, every, codes.copy(), every)
    order = _ordered(codes)
    grouping = _grouped(codes, order, None)
    if _has_collision(columns, grouping, length):
        return _split_collisions(columns, codes)
    return grouping


def group_normal(columns: Sequence[Vector], length: int) -> tuple[list[Vector], Grouping]:
    """The keys in canonical form, and the groups of equal ones."""
    keys = [normalise(column) for column in columns]
    return keys, group_rows(keys, length)


def _ordered(codes: Ints) -> Positions | slice:
    if len(codes) >= _MANY and _is_sorted(codes[:_MANY]) and _is_sorted(codes):
        return _AS_THEY_ARE
    return ascending(codes)


def _is_sorted(codes: Ints) -> bool:
    return bool((codes[1:] >= codes[:-1]).all())


def _grouped(codes: Ints, order: Positions | slice, also: Bools | None) -> Grouping:
    """The groups of sorted codes; a group starts where the code changes or `also` is set."""
    reserve(2 * codes.nbytes)
    ordered = codes[order]
    if len(ordered) == 0:
        nothing = np.zeros(0, dtype=np.int64)
        return Grouping(0, nothing, nothing, nothing, nothing)
    is_border = ordered[1:] != ordered[:-1]
    borders = np.flatnonzero(is_border if also is None else is_border | also) + 1
    starts = np.concatenate([np.zeros(1, dtype=np.int64), borders])
    first = starts if isinstance(order, slice) else order[starts]
    return Grouping(len(codes), order, starts, ordered[starts], first)


def _is_injective(columns: Sequence[Vector]) -> bool:
    """One integer-like column without NULL: the code is the key."""
    if len(columns) != 1:
        return not columns
    column = columns[0]
    plain = not column.is_textual and column.values.dtype != object
    return plain and column.valid is None and column.type.kind is not Kind.NULL


def is_determined_by_code(stored: Sequence[pa.Array], keys: Sequence[Vector]) -> bool:
    """Whether equal codes of stored keys and of these mean equal keys: one column of numbers
    without NULL on either side."""
    if len(stored) != 1 or not _is_injective(keys):
        return False
    return bool(pa.types.is_primitive(stored[0].type)) and stored[0].null_count == 0


def have_injective_codes(left: Sequence[Vector], right: Sequence[Vector]) -> bool:
    """Whether equal codes mean equal keys: one integer-like column without NULL on either side."""
    return _is_injective(left) and _is_injective(right)


def are_codes(stored: pa.Array) -> bool:
    """Whether a stored single key column is its own code: integers without NULL."""
    return bool(pa.types.is_int64(stored.type)) and stored.null_count == 0


def _has_collision(columns: Sequence[Vector], grouping: Grouping, length: int) -> bool:
    if grouping.groups == length or _is_injective(columns):
        return False
    # The first row of a group is what the others are compared with.
    is_other = np.ones(length, dtype=np.bool_)
    is_other[grouping.starts] = False
    others = np.arange(length)[grouping.order][is_other]
    leaders = np.repeat(grouping.first, grouping.sizes() - 1)
    pairs = ([column.take(rows) for column in columns] for rows in (others, leaders))
    same = same_keys(*pairs)
    return same is not None and not bool(same.all())


def _split_collisions(columns: Sequence[Vector], codes: Ints) -> Grouping:
    """Grouping when two keys share a code; a row loop, run about once in 2^64 / rows^2 batches."""
    names: dict[Any, int] = {}
    arrays = [column.to_arrow().to_pylist() for column in columns]
    ranks = np.empty(len(codes), dtype=np.int64)
    for row, key in enumerate(zip(*arrays, strict=True)):
        plain = tuple("NaN" if part != part else part for part in key)
        ranks[row] = names.setdefault(plain, len(names))
    order = np.lexsort((ranks, codes))
    ordered = ranks[order]
    return _grouped(codes, order, ordered[1:] != ordered[:-1])


# Sorting codes in fewer passes than comparisons take. Law: the positions of `np.argsort(codes,
# kind="stable")`. Codes that are close together are sorted by 16 bits at a time, which NumPy does
# by counting; few codes, and those with few descents, by merging. Cost: a pass per 16 bits of the
# range. Measured for a million codes: 32 ms instead of 98 with 23 bits; a quarter of a million 3 ms
# instead of 20; many codes spread over 64 bits take as long either way.

MANY = 1_000  # Lookups from which sorting their codes first pays
_DIGIT = 16
_FEW = 2_000  # Codes that are sorted in no time
_RUNS = 32  # Sorted runs up to which merging is faster than counting
_MOST_PASSES = 3
_CACHED = 1 << 19  # Codes that fit the caches; up to so many a fourth radix pass pays


def ascending(codes: Ints) -> Ints:
    """Positions that sort the codes stably; shape (n,)."""
    # The order, and the words or the temporaries of merging, with some digits.
    reserve(3 * codes.nbytes)
    if len(codes) <= _FEW or _has_few_runs(codes):
        return np.argsort(codes, kind="stable")
    lowest = codes.min()
    # The difference of two codes wraps to what it is without a sign.
    words = codes.view(np.uint64) - np.uint64(int(lowest) & ((1 << 64) - 1))
    bits = int(words.max()).bit_length()
    passes = max(1, -(-bits // _DIGIT))
    if passes > (_MOST_PASSES if len(codes) > _CACHED else _MOST_PASSES + 1):
        return np.argsort(codes, kind="stable")
    order: Ints = np.argsort(words.astype(np.uint16), kind="stable")
    for index in range(1, passes):
        digits = (words >> np.uint64(index * _DIGIT)).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
    return order


def _has_few_runs(codes: Ints) -> bool:
    """Whether the codes are nearly sorted; most that are not show it early."""
    if np.count_nonzero(codes[1:_FEW] < codes[: _FEW - 1]) > _RUNS:
        return False
    return bool(np.count_nonzero(codes[1:] < codes[:-1]) <= _RUNS)


def in_order(codes: Ints) -> Ints:
    if len(codes) <= _FEW:
        return np.sort(codes)
    return codes[ascending(codes)]


def when_many(codes: Ints) -> tuple[Ints | None, Ints]:
    """Lookup codes in ascending order, and what sorts them; None where they are few or sorted.
    Neighbors hit the same part of a run, which takes a quarter of the time."""
    if len(codes) < MANY or bool((codes[1:] >= codes[:-1]).all()):
        return None, codes
    order = ascending(codes)
    return order, codes[order]


# Sorted rows: where runs of equal rows begin, and where slices end. Cost: the rows, or at most a
# search per slice.

_DENSE, _MANY_RUNS = 16, 1_000
"""Places per value up to which marking many values is faster than sorting them."""
_BITS = 8  # Bits per code held: the share of false positives is one in so many
_SHORT = 3  # Rows of a slice up to which its end is searched row by row


def starts_in(*columns: Ints) -> Bools:
    """Whether each row differs from the one before it in some column; the first row does."""
    is_start = np.ones(len(columns[0]), dtype=np.bool_)
    np.not_equal(columns[0][1:], columns[0][:-1], out=is_start[1:])
    for column in columns[1:]:
        is_start[1:] |= column[1:] != column[:-1]
    return is_start


def ends_of(codes: Ints, first: Ints, high: Ints, side: Literal["left", "right"]) -> Ints:
    """Where slices that begin at `first` end, as `codes.searchsorted(high, side)`; shape (n,). Most
    slices are short: scanning forward is faster than a binary search in many codes."""
    if not len(codes):
        return first
    is_below = np.less if side == "left" else np.less_equal
    last = first.copy()
    is_in: Bools = is_below(codes.take(first, mode="clip"), high) & (first < len(codes))
    rows = is_in.nonzero()[0]
    for _ in range(_SHORT - 1):
        if not len(rows):
            return last
        following = last[rows] + 1
        last[rows] = following
        # Most slices have ended by now, many of them before they began.
        is_in = is_below(codes.take(following, mode="clip"), high[rows]) & (following < len(codes))
        rows = rows[is_in]
    last[rows] = codes.searchsorted(high[rows], side)
    return last


def start_of(is_start: Bools) -> Ints:
    """The position of the last start up to each row."""
    starts: Ints = np.flatnonzero(is_start)[np.cumsum(is_start) - 1]
    return starts


def distinct_values(values: Ints) -> Ints:
    """Each value once, ascending. Measured: `np.unique` takes ten to forty times as long."""
    if len(values) >= _MANY_RUNS:
        lowest = int(values.min())
        between = int(values.max()) - lowest
        if between < _DENSE * len(values):
            is_there = np.zeros(between + 1, dtype=np.bool_)
            is_there[values - lowest] = True
            result: Ints = is_there.nonzero()[0]
            return result + lowest
    ordered = in_order(values)
    return ordered[starts_in(ordered)]


def perhaps_in(present: Ints, requested: Ints) -> Ints:
    """Positions, ascending, of those codes that may be among far fewer `present`, judged by some of
    their bits."""
    mask = (1 << (_BITS * len(present)).bit_length()) - 1
    is_there = np.zeros(mask + 1, dtype=np.bool_)
    is_there[present & mask] = True
    some: Ints = is_there[requested & mask].nonzero()[0]
    return some
