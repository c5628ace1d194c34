"""Each format says every value, and readers of the format find it again."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pytest

from impctl.app.writing.formats import RowsFormat
from impctl.app.writing.json_values import json_column, unique_names
from impctl.app.writing.lines import csv_text, json_lines, json_text, markdown_text, text_of
from tests.app.writing.every_type import ROWS, every_type

TEXT = [one for one in RowsFormat if one is not RowsFormat.TABLE]


def refused(name: str) -> object:
    raise AssertionError(f"`{name}` is no JSON")


def loaded(text: str) -> object:
    return json.loads(text, parse_constant=refused)


def test_json_says_every_value_strictly() -> None:
    table = every_type()
    assert loaded("".join(json_text(table))) == ROWS
    assert [loaded(line) for line in "".join(json_lines(table)).splitlines()] == ROWS


def test_a_slice_is_read_as_its_own_rows() -> None:
    """Nested values lie in arrays that a slice shares with the whole."""
    table = every_type()
    for start in range(3):
        for length in range(4 - start):
            part = table.slice(start, length)
            assert loaded("".join(json_text(part))) == ROWS[start : start + length]
    for name in ("list", "struct", "map"):
        batched = table.column(name).combine_chunks().slice(1)
        assert json_column(pa.chunked_array([batched])) == [row[name] for row in ROWS[1:]]


def test_pieces_make_one_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {one: "".join(text_of(every_type(), one)) for one in TEXT}
    monkeypatch.setattr("impctl.app.writing.lines._ROWS", 1)
    for one in TEXT:
        pieces = list(text_of(every_type(), one))
        assert "".join(pieces) == whole[one]
        assert len(pieces) >= 3


def test_csv_says_every_value_as_json_does() -> None:
    read = list(csv.DictReader(io.StringIO("".join(csv_text(every_type())), newline="")))
    for found, row in zip(read, ROWS, strict=True):
        for name, value in row.items():
            text = found[name]
            if isinstance(value, list | dict):
                assert json.loads(text) == value
            elif name == "f" and value == 0.10000000149011612:
                assert text == "0.1"
            elif isinstance(value, bool):
                assert text == str(value).lower()
            else:
                assert text == ("" if value is None else str(value))


def test_csv_tells_null_from_an_empty_text_and_quotes_what_must_be() -> None:
    table = pa.table(
        [
            ["", None, "NULL", " x", "a;b", "it's", "\r", "ü"],
            [b"", None, b"x", b"", b"", b"", b"", b""],
        ],
        ["x", "a,b"],
    )
    assert "".join(csv_text(table)) == (
        'x,"a,b"\n"",""\n,\nNULL,78\n" x",""\na;b,""\nit\'s,""\n"\r",""\nü,""\n'
    )


def test_two_columns_of_one_name() -> None:
    table = pa.table([[1], ["y"], [3]], ["x", "x", "x_2"])
    assert "".join(csv_text(table)) == "x,x,x_2\n1,y,3\n"
    assert loaded("".join(json_text(table))) == [{"x": 1, "x_3": "y", "x_2": 3}]
    assert "".join(markdown_text(table)).splitlines()[0] == "| x | x | x_2 |"
    assert unique_names(["a", "a", "a_2", "a", "A"]) == ["a", "a_3", "a_2", "a_4", "A"]


@pytest.mark.parametrize("one", TEXT)
def test_no_rows(one: RowsFormat) -> None:
    expected = {
        RowsFormat.CSV: "a,b\n",
        RowsFormat.JSON: "[]\n",
        RowsFormat.JSONL: "",
        RowsFormat.MARKDOWN: "| a | b |\n| ---: | --- |\n",
    }
    table = pa.table({"a": pa.array([], pa.int32()), "b": pa.array([], pa.string())})
    assert "".join(text_of(table, one)) == expected[one]
    assert "".join(text_of(table.schema.empty_table(), one)) == expected[one]


def test_markdown_keeps_a_value_in_its_cell() -> None:
    table = pa.table({"n": [1, None], "a|b": ["x|y\nz\\", None]})
    assert "".join(markdown_text(table)) == (
        "| n | a\\|b |\n| ---: | --- |\n| 1 | x\\|y<br>z\\\\ |\n| NULL | NULL |\n"
    )


def test_a_zone_is_told_with_the_time() -> None:
    zoned = every_type().column("at").cast(pa.timestamp("us", "Europe/Berlin"))
    assert json_column(zoned)[0] == "2024-01-31T13:00:00.500000+01:00"
    far = every_type().column("far_at").cast(pa.timestamp("us", "Europe/Berlin"))
    assert json_column(far) == ["1970-01-01T01:00:00+01:00", "+12024-01-31T12:00:00+00:00", None]
    old = pa.chunked_array([pa.array([-(10**16)], pa.timestamp("us", "Europe/Berlin"))])
    assert json_column(old) == ["1653-02-10T07:06:48+00:53:28"]


@pytest.mark.parametrize("reader", ["duckdb", "polars"])
def test_others_read_the_csv_back(tmp_path: Path, reader: str) -> None:
    library = pytest.importorskip(reader)
    file = tmp_path / "a.csv"
    table = pa.table({"n": [1, 2, None], "s": ["", None, 'a,"b\nc']})
    file.write_text("".join(csv_text(table)), encoding="utf-8", newline="")
    # DuckDB takes quoted texts for NULL, too, unless it is told not to.
    told = {"allow_quoted_nulls": False} if reader == "duckdb" else {}
    read = library.read_csv(str(file), **told)
    rows = read.fetchall() if reader == "duckdb" else read.rows()
    assert rows == [(1, ""), (2, None), (None, 'a,"b\nc')]
