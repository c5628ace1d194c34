"""Lossless conversion of Arrow arrays to vectors and back; pages checked before use."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Struct

from impctl.data import memory
from impctl.data.pages import PAGE, CheckedPages, PagedTable, checked_places, table_of, whole_table
from impctl.data.schema import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    NULL,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    SqlType,
    decimal,
    other,
)
from impctl.data.vector import Vector, concat, from_arrow, from_stored, slice_positions
from impctl.errors import TableError
from tests.support.paged_tables import stream_of, sums_of, table_in
from tests.support.random_cases import FEW

LONGEST = 10**38 - 1


class Sort(Struct, frozen=True):
    """A column as Arrow values, and its canonical values."""

    type: SqlType
    arrow: pa.DataType
    arrow_values: list[Any]
    canonical: list[Any]


def same(kind: SqlType, arrow: pa.DataType, values: list[Any]) -> Sort:
    return Sort(kind, arrow, values, values)


def unscaled(kind: SqlType, values: list[int | None]) -> Sort:
    decimals = [None if v is None else Decimal(f"{v}e-{kind.scale}") for v in values]
    return Sort(kind, pa.decimal128(kind.precision, kind.scale), decimals, list(values))


DAYS = [date(1970, 1, 2), None, date(1969, 12, 31), date(1, 1, 1)]
MOMENT = datetime(2022, 1, 17, 12, 30, 1, tzinfo=UTC)
MICROS = 1_642_422_601_000_000
MOMENTS = [MOMENT, None, datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), MOMENT]
CANONICAL_MOMENTS = [MICROS, None, -1_000_000, MICROS]

SORTS = [
    same(BOOLEAN, pa.bool_(), [True, None, False, True]),
    same(BYTE, pa.int8(), [1, None, -128, 127]),
    same(SHORT, pa.int16(), [1, None, -(2**15), 2**15 - 1]),
    same(INTEGER, pa.int32(), [1, None, -(2**31), 2**31 - 1]),
    same(LONG, pa.int64(), [1, None, -(2**63), 2**63 - 1]),
    same(FLOAT, pa.float32(), [0.5, None, float("-inf"), 2.0**100]),
    same(DOUBLE, pa.float64(), [0.1, None, 1e308, 5e-324]),
    same(STRING, pa.string(), ["", None, "é😀", "long enough to leave any inline buffer"]),
    same(STRING, pa.large_string(), ["a", None, "", "b"]),
    same(BINARY, pa.binary(), [b"", None, b"\x00\xff", b"ab"]),
    *(Sort(DATE, kind, DAYS, [1, None, -1, -719162]) for kind in (pa.date32(), pa.date64())),
    *(
        Sort(kind, pa.timestamp(unit, tz=zone), moments, CANONICAL_MOMENTS)
        for kind, zone, moments in (
            (TIMESTAMP, "UTC", MOMENTS),
            (TIMESTAMP_NTZ, None, [m and m.replace(tzinfo=None) for m in MOMENTS]),
        )
        for unit in ("s", "ms", "us", "ns")
    ),
    unscaled(decimal(5, 2), [1, None, -99999, 99999]),
    unscaled(decimal(18, 0), [1, None, -(10**18) + 1, 10**18 - 1]),
    unscaled(decimal(20, 4), [1, None, -5, 2**62]),
    unscaled(decimal(38, 10), [1, None, -LONGEST, LONGEST]),
    unscaled(decimal(38, 0), [2**63, None, -(2**63), -(2**63) - 1]),
]
every_sort = pytest.mark.parametrize("sort", SORTS, ids=lambda sort: f"{sort.type} as {sort.arrow}")


def array_of(sort: Sort) -> pa.Array:
    return pa.array(sort.arrow_values, sort.arrow)


def values_of(vector: Vector) -> list[Any]:
    """Canonical values, ignoring the slots of NULL."""
    if vector.is_textual:
        values = vector.values.to_pylist()
    else:
        values = [v.item() if isinstance(v, np.generic) else v for v in vector.values]
    return [v if ok else None for v, ok in zip(values, vector.validity(), strict=True)]


def check(array: Any, sort: Sort, expected: list[Any]) -> None:
    """Check the values of the vector, also after storing and loading it."""
    vector = from_arrow(array, sort.type)
    assert vector.type == sort.type
    assert len(vector) == len(expected)
    assert values_of(vector) == expected
    assert (vector.valid is None) == (None not in expected)
    stored = vector.to_arrow()
    assert values_of(from_stored(stored, sort.type)) == expected
    assert values_of(from_stored(stored[1:], sort.type)) == expected[1:]


def test_filled_replaces_only_null_by_zero() -> None:
    vector = Vector(DOUBLE, np.array([1.5, np.nan]), np.array([True, False]))
    assert vector.filled().tolist() == [1.5, 0.0]
    assert Vector(DOUBLE, np.array([2.5])).filled().tolist() == [2.5]


@every_sort
def test_round_trip(sort: Sort) -> None:
    """Complete, sliced, chunked, dictionary-encoded and all-NULL arrays."""
    array = array_of(sort)
    for start in range(len(array) + 1):
        for stop in range(start, len(array) + 1):
            check(array[start:stop], sort, sort.canonical[start:stop])
    check(pa.chunked_array([], sort.arrow), sort, [])
    check(pa.chunked_array([array[1:]]), sort, sort.canonical[1:])
    chunks = pa.chunked_array([array[2:], array[:0], array[:3]])
    check(chunks, sort, [*sort.canonical[2:], *sort.canonical[:3]])
    check(array.dictionary_encode(), sort, sort.canonical)
    check(pa.nulls(3, sort.arrow), sort, [None] * 3)
    assert values_of(from_arrow(pa.nulls(2), sort.type)) == [None] * 2


def test_decimals_are_narrow_with_one_stored_type() -> None:
    wide = decimal(38, 0)
    narrow = from_arrow(pa.array([Decimal(2**63 - 1), Decimal(-(2**63))], pa.decimal128(38)), wide)
    assert narrow.values.dtype == np.int64
    one_more = from_arrow(pa.array([Decimal(2**63)], pa.decimal128(38)), wide)
    assert one_more.values.dtype == object
    assert [type(value) for value in one_more.values] == [int]
    kind = decimal(38, 3)
    small = Vector(kind, np.array([1, 2]), np.array([True, False]))
    large = Vector(kind, np.array([10**30, 0], dtype=object), np.array([True, False]))
    assert small.to_arrow().type == large.to_arrow().type


def test_floats_keep_their_digits_nan_and_the_sign_of_zero() -> None:
    vector = from_arrow(pa.array([0.1], pa.float32()), FLOAT)
    assert vector.values.tolist() == [float(np.float32(0.1))]
    vector = from_stored(from_arrow(pa.array([float("nan"), -0.0]), DOUBLE).to_arrow(), DOUBLE)
    assert [str(value) for value in vector.values] == ["nan", "-0.0"]


def test_void() -> None:
    vector = from_arrow(pa.nulls(2), NULL)
    assert values_of(vector) == values_of(from_stored(vector.to_arrow(), NULL)) == [None, None]


def test_lossy_and_unsupported_types_are_refused() -> None:
    with pytest.raises(pa.ArrowInvalid, match="lose data"):
        from_arrow(pa.array([1], pa.timestamp("ns")), TIMESTAMP_NTZ)
    with pytest.raises(TableError, match="struct"):
        from_arrow(pa.array([{"x": 1}]), other("struct<x:bigint>"))


@every_sort
def test_take_keep_and_concat(sort: Sort) -> None:
    vector = from_arrow(array_of(sort), sort.type)
    assert values_of(vector.take(np.array([3, 1, 1]))) == [sort.canonical[i] for i in (3, 1, 1)]
    mask = np.array([True, False, False, True])
    assert values_of(vector.keep(mask)) == [sort.canonical[0], sort.canonical[3]]
    without_null = vector.keep(vector.validity())
    joined = concat([without_null, vector, from_arrow(pa.nulls(1, sort.arrow), sort.type)])
    known = [value for value in sort.canonical if value is not None]
    assert values_of(joined) == [*known, *sort.canonical, None]


def test_error_bounds_follow_rows() -> None:
    unsure = Vector(DOUBLE, np.array([1.0, 2.0]), None, np.array([0.5, 0.0]))
    sure = Vector(DOUBLE, np.array([3.0]))
    joined = concat([sure, unsure]).take(np.array([1, 0]))
    assert joined.error.tolist() == [0.5, 0.0]
    assert concat([sure, sure]).error is None


@pytest.mark.parametrize(("kind", "filler"), [(STRING, "held"), (BINARY, b"held")])
def test_null_text_is_stored_without_its_slots_value(kind: SqlType, filler: object) -> None:
    """MAX of text gives such a column if only some groups have a value."""
    arrow = pa.large_string() if kind == STRING else pa.large_binary()
    vector = Vector(kind, pa.array([filler, filler, None], arrow), np.array([True, False, False]))
    stored = vector.to_arrow()
    assert stored.to_pylist() == [filler, None, None]
    assert stored.type == arrow
    assert from_stored(stored, kind).validity().tolist() == [True, False, False]


SLICES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=20)


@FEW
@given(SLICES)
@example([])
@example([(7, 0), (3, 0)])
def test_slices_are_in_requested_order(slices: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in slices], dtype=np.int64)
    ends = starts + np.array([size for _, size in slices], dtype=np.int64)
    positions, owners = slice_positions(starts, ends)
    expected = [
        (position, owner)
        for owner, (start, size) in enumerate(slices)
        for position in range(start, start + size)
    ]
    assert list(zip(positions.tolist(), owners.tolist(), strict=True)) == expected
    assert positions.dtype == owners.dtype == np.int64


ROWS = 5000
TABLE = pa.table(
    {
        "code": np.arange(ROWS, dtype=np.int64) * 3,
        "value": np.arange(ROWS, dtype=np.float64),
        "text": pa.array([None if n % 7 == 3 else "x" * (n % 40) for n in range(ROWS)], "string"),
        "long": pa.array(["y" * (9000 if n == 17 else 2) for n in range(ROWS)], "large_string"),
        "flag": pa.array([n % 2 == 0 for n in range(ROWS)]),
        "wide": pa.array(range(ROWS), pa.decimal128(38, 0)),
    }
)


class AlteredError(Exception):
    """The error of pages in these tests."""


def paged(altered: int | None = None) -> tuple[PagedTable, bytes]:
    """The table, with one bit of this byte altered after writing."""
    stream = stream_of(TABLE)
    altered_stream = bytearray(stream)
    if altered is not None:
        altered_stream[altered] ^= 4
    content = pa.py_buffer(bytes(altered_stream))
    sums = sums_of(stream, piece=1000)
    pages = CheckedPages(content, sums, lambda: AlteredError("altered"))
    return PagedTable(table_in(content), pages), stream


def array(paged_table: PagedTable, name: str) -> pa.Array:
    return paged_table.table.column(name).chunk(0)


def byte_position(paged_table: PagedTable, name: str, buffer: int, byte: int) -> int:
    """The position in the stream of a byte of a column's buffer."""
    return int(array(paged_table, name).buffers()[buffer].address - paged_table.pages._start + byte)


def test_paged_table_round_trip() -> None:
    stored, stream = paged()
    assert whole_table(stored).equals(TABLE)
    assert not stored.pages.is_open
    assert table_of(stored) == (stored.table, None)
    assert len(stream) % PAGE


@pytest.mark.parametrize(
    ("name", "buffer", "byte", "row"),
    [
        ("code", 1, 8 * 1234, 1234),
        ("value", 1, 8 * 4321 + 7, 4321),
        ("text", 0, 700 // 8, 700),
        ("text", 1, 4 * 3000, 3000),
        ("text", 1, 4 * 3001 - 1, 3000),
        ("text", 2, 20_000, None),
        ("long", 2, 2 * 17 + 4500, 17),
        ("long", 2, 2 * 17 + 8999, 17),
        ("flag", 1, 40, 320),
        ("wide", 1, 16 * 999 + 15, 999),
    ],
)
def test_altered_byte_is_found_when_row_is_read(
    name: str, buffer: int, byte: int, row: int | None
) -> None:
    right, _ = paged()
    if row is None:
        ends = np.cumsum([0 if n % 7 == 3 else n % 40 for n in range(ROWS)])
        row = int(ends.searchsorted(byte, side="right"))
    altered = byte_position(right, name, buffer, byte)
    stored, _ = paged(altered)
    with pytest.raises(AlteredError):
        stored.pages.check_rows(array(stored, name), np.array([row]))
    with pytest.raises(AlteredError):
        stored.pages.check_whole(array(stored, name))
    other, _ = paged(altered)
    if name != "flag" and buffer:
        far = np.array([0 if row > ROWS // 2 else ROWS - 1])
        other.pages.check_rows(array(other, name), far)


def test_only_used_rows_are_checked() -> None:
    stored, stream = paged()
    code = array(stored, "code").to_numpy()
    stored.pages.check_rows(code, np.array([0, 4, 4, 600, 4999]))
    checked = np.count_nonzero(~stored.pages._is_open)
    assert 3 <= checked <= 4 < len(stream) // PAGE
    stored.pages.check_rows(np.zeros(3), np.array([0, 2]))
    assert np.count_nonzero(~stored.pages._is_open) == checked
    stored, _ = paged(byte_position(paged()[0], "value", 1, 8 * 3333))
    part = array(stored, "value").slice(3000)
    stored.pages.check_rows(part, np.array([1900]))
    with pytest.raises(AlteredError):
        stored.pages.check_rows(part, np.array([333]))


@pytest.mark.slow
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("seed", range(20))
def test_search_misled_by_altered_codes_fails(seed: int, side: Any) -> None:
    random_ = Random(seed)
    right, _ = paged()
    stored, _ = paged(byte_position(right, "code", 1, random_.randrange(8 * ROWS)))
    code = array(stored, "code").to_numpy()
    needles = np.array(sorted(random_.sample(range(-3, 3 * ROWS + 3), 5)))
    truth = array(right, "code").to_numpy().searchsorted(needles, side)
    try:
        result = checked_places(stored.pages, code, needles, code.searchsorted(needles, side), side)
    except AlteredError:
        return
    assert result.tolist() == truth.tolist()


def test_checksums_of_other_bytes_are_refused() -> None:
    _, stream = paged()
    with pytest.raises(AlteredError):
        CheckedPages(pa.py_buffer(stream), b"\0" * 8, lambda: AlteredError("altered"))


def test_memory_in_use_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    used = pa.array(range(100_000))
    memory.give_back()
    monkeypatch.setattr(memory, "_c_library", lambda: None)
    memory.give_back()
    assert used[99_999].as_py() == 99_999
