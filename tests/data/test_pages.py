"""Pages are looked at before what they hold is used, and one that was altered is never used."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.data.pages import (
    PAGE,
    CheckedPages,
    PagedTable,
    checked_places,
    table_of,
    whole_table,
)
from tests.support.paged_tables import stream_of, sums_of, table_in

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
    """What the tests' pages raise."""


def paged(altered: int | None = None) -> tuple[PagedTable, bytes]:
    """The table, with a bit of one byte altered after it was written."""
    whole = stream_of(TABLE)
    held = bytearray(whole)
    if altered is not None:
        held[altered] ^= 4
    content = pa.py_buffer(bytes(held))
    sums = sums_of(whole, piece=1000)
    pages = CheckedPages(content, sums, lambda: AlteredError("altered"))
    return PagedTable(table_in(content), pages), whole


def array(held: PagedTable, name: str) -> pa.Array:
    return held.table.column(name).chunk(0)


def place(held: PagedTable, name: str, buffer: int, byte: int) -> int:
    """Where a byte of a column's buffer lies."""
    return int(array(held, name).buffers()[buffer].address - held.pages._start + byte)


def test_what_is_written_is_found_right_however_it_comes() -> None:
    held, whole = paged()
    assert whole_table(held).equals(TABLE)
    assert not held.pages.is_open
    assert table_of(held) == (held.table, None)
    assert len(whole) % PAGE


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
def test_an_altered_byte_is_found_when_its_row_is_looked_at(
    name: str, buffer: int, byte: int, row: int | None
) -> None:
    right, _ = paged()
    if row is None:
        ends = np.cumsum([0 if n % 7 == 3 else n % 40 for n in range(ROWS)])
        row = int(ends.searchsorted(byte, side="right"))
    held, _ = paged(place(right, name, buffer, byte))
    with pytest.raises(AlteredError):
        held.pages.check_rows(array(held, name), np.array([row]))
    with pytest.raises(AlteredError):
        held.pages.check_whole(array(held, name))
    other, _ = paged(place(right, name, buffer, byte))
    if name != "flag" and buffer:
        far = np.array([0 if row > ROWS // 2 else ROWS - 1])
        other.pages.check_rows(array(other, name), far)


def test_only_what_is_used_is_looked_at() -> None:
    held, whole = paged()
    code = array(held, "code").to_numpy()
    held.pages.check_rows(code, np.array([0, 4, 4, 600, 4999]))
    looked_at = np.count_nonzero(~held.pages._is_open)
    assert 3 <= looked_at <= 4 < len(whole) // PAGE
    held.pages.check_rows(np.zeros(3), np.array([0, 2]))
    assert np.count_nonzero(~held.pages._is_open) == looked_at


def test_rows_of_a_slice_are_those_behind_its_start() -> None:
    right, _ = paged()
    altered = place(right, "value", 1, 8 * 3333)
    held, _ = paged(altered)
    part = array(held, "value").slice(3000)
    held.pages.check_rows(part, np.array([1900]))
    with pytest.raises(AlteredError):
        held.pages.check_rows(part, np.array([333]))


@pytest.mark.slow
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("seed", range(20))
def test_a_search_that_altered_codes_mislead_is_found(seed: int, side: Any) -> None:
    random_ = Random(seed)
    right, _ = paged()
    held, _ = paged(place(right, "code", 1, random_.randrange(8 * ROWS)))
    code = array(held, "code").to_numpy()
    wanted = np.array(sorted(random_.sample(range(-3, 3 * ROWS + 3), 5)))
    truth = array(right, "code").to_numpy().searchsorted(wanted, side)
    try:
        result = checked_places(held.pages, code, wanted, code.searchsorted(wanted, side), side)
    except AlteredError:
        return
    assert result.tolist() == truth.tolist()


def test_checksums_of_other_bytes_are_refused() -> None:
    _, whole = paged()
    with pytest.raises(AlteredError):
        CheckedPages(pa.py_buffer(whole), b"\0" * 8, lambda: AlteredError("altered"))
