"""Results for people and programs: quantities, Arrow, file formats, atomic writes, failures."""

from __future__ import annotations

import csv
import errno
import importlib.util
import io
import json
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import asdict, replace

from impctl import errors
from impctl.service import formats as writing
from impctl.service.formats import (
    check_goal,
    csv_text,
    json_column,
    json_lines,
    json_rows,
    json_text,
    markdown_text,
    text_of,
    unique_names,
    write_answer,
)
from impctl.service.output import write_whole
from impctl.service.results import Failure, Outcome, QueryResult, for_report
from impctl.service.text import (
    RowsFormat,
    duration_text,
    named_before,
    number_text,
    size_text,
    span_text,
)
from tests.support.run_cli import MonkeyPatch, refused

SECOND, HOUR = 1000.0, 3_600_000.0


QUANTITY_TEXTS: dict[str, tuple[Callable[[Any], str], list[tuple[float, str]]]] = {
    "duration": (
        duration_text,
        [
            *((0.0, "0 ms"), (0.1234, "0.123 ms"), (0.00001234, "0.0000123 ms")),
            *((999.4, "999 ms"), (999.9, "1 s"), (1234, "1.23 s")),
            *((99.9 * SECOND, "99.9 s"), (600 * SECOND, "10 min")),
            *((16.65 * HOUR, "999 min"), (16.66 * HOUR, "16.7 h"), (2345.6 * HOUR, "2,346 h")),
        ],
    ),
    "size": (
        size_text,
        [
            *((0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (999_499, "999 kB"), (999_700, "1 MB")),
            *((2_000_000, "2 MB"), (999_700_000, "1 GB"), (1_800_000_000_000, "1.8 TB")),
            (1_234_500_000_000_000, "1,234 TB"),
        ],
    ),
    "span": (
        span_text,
        [
            *((0.0, "0 s"), (59.4, "59 s"), (59.6, "1 min"), (3569.0, "59 min"), (3571.0, "1 h")),
            *((3899.0, "1 h 05"), (172_000.0, "47 h 47"), (172_800.0, "2 days")),
            (1e9, "11,574 days"),
        ],
    ),
    "number": (
        number_text,
        [(0.5, "0.5"), (386.7, "387"), (999.6, "1,000"), (2000, "2,000"), (2345.6, "2,346")],
    ),
}


@pytest.mark.parametrize(
    ("to_text", "value", "text"),
    [
        pytest.param(to_text, value, text, id=f"{kind} {text}")
        for kind, (to_text, cases) in QUANTITY_TEXTS.items()
        for value, text in cases
    ],
)
def test_quantities_as_text(to_text: Callable[[Any], str], value: float, text: str) -> None:
    assert to_text(value) == text


SAFE = "A sketch of `t.a` is not safe for "


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Query `q` uses UNPIVOT", "it uses UNPIVOT"),
        ("The SQL of query `q` cannot be read", "its SQL cannot be read"),
        (f"{SAFE}query `q`: x", f"{SAFE}the query: x"),
        *((text, text) for text in ("Query `q.r` uses UNPIVOT", "Query `qr` uses UNPIVOT")),
        ("Table `q` is gone", "Table `q` is gone"),
    ],
)
def test_the_query_is_named_once(message: str, expected: str) -> None:
    assert named_before("q", message) == expected


TABLE = pa.table([[1, 2], ["a", None], [0.5, 1.5]], ["n", "s", "n"])


def result(table: pa.Table = TABLE) -> QueryResult:
    rest = {"versions": {"t": 0}, "files_kept": 1, "files_total": 1, "elapsed_ms": 1.0}
    return QueryResult(query="q", answer=table, **rest)


def test_columns_may_share_a_name() -> None:
    answer = result()
    assert (answer.columns, answer.rows) == (("n", "s", "n"), ((1, "a", 0.5), (2, None, 1.5)))
    assert answer.row_count == 2
    assert answer.to_arrow() is TABLE
    assert answer == result(pa.table([[1, 2], ["a", None], [0.5, 1.5]], ["n", "s", "n"]))
    assert answer != result(TABLE.slice(1))
    assert "0.5" not in repr(answer)
    assert asdict(answer)["answer"].equals(TABLE)


def test_limit_applies_only_to_shown_rows() -> None:
    limited = replace(result(), limit=1)
    assert limited.shown.num_rows == 1
    assert (limited.row_count, len(limited.rows), limited.to_arrow().num_rows) == (2, 2, 2)


def test_pyarrow_reads_the_stream() -> None:
    reader = pa.RecordBatchReader.from_stream(result())
    assert reader.read_all().equals(TABLE)
    expected = pa.schema([("n", pa.int32()), ("s", pa.string()), ("n", pa.float64())])
    assert pa.table(result(), schema=expected).schema == expected


def test_duckdb_reads_it_by_name() -> None:
    duckdb = pytest.importorskip("duckdb")
    answer = result(TABLE.select([0, 1]))
    assert answer is not None
    assert duckdb.sql("SELECT n + 1 FROM answer WHERE s IS NULL").fetchall() == [(3,)]


@pytest.mark.slow
def test_polars_reads_it() -> None:
    polars = pytest.importorskip("polars")
    assert polars.DataFrame(result(TABLE.select([0, 1]))).rows() == [(1, "a"), (2, None)]


def test_pandas_reads_it() -> None:
    pytest.importorskip("pandas")
    frame = result().to_pandas()
    assert list(frame.columns) == ["n", "s", "n"]
    assert frame.iloc[:, 0].tolist() == [1, 2]


def test_missing_pandas_is_reported(monkeypatch: MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def missing(name: str, *rest: Any) -> Any:
        return None if name == "pandas" else find(name, *rest)

    monkeypatch.setattr("impctl.service.results.find_spec", missing)
    with refused(errors.UsageError, "pandas_missing", "pandas") as error:
        result().to_pandas()
    assert "pip install pandas" in str(error.value.hint)


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")])
def test_years_beyond_python_are_refused(kind: pa.DataType) -> None:
    number = 3_672_178 if kind == pa.date32() else 317_276_222_400_000_000
    days = pa.array([number], pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
    answer = result(pa.table({"d": days}))
    with refused(errors.EvaluationError, "beyond_python"):
        _ = answer.rows
    assert answer.to_arrow().column("d").chunk(0).equals(days)
    assert answer.row_count == 1


def caused_by(error: errors.ImpctlError, cause: BaseException) -> errors.ImpctlError:
    error.__cause__ = cause
    return error


EMFILE = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
UNCHANGED = "kept"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.unexpected(EMFILE), "too_many_open_files"),
        (errors.unexpected(OSError(errno.ENFILE, "Too many")), "too_many_open_files"),
        (errors.unexpected(RuntimeError('Os { code: 24, message: "Too many open files" }')), None),
        (caused_by(errors.TableError("t", code=UNCHANGED), EMFILE), "too_many_open_files"),
        (
            errors.TableError("Unable to open: Too many open files (os error 24)", code=UNCHANGED),
            None,
        ),
        (
            caused_by(errors.StateCorruptError("s", code=UNCHANGED), OSError(errno.EIO, "no")),
            UNCHANGED,
        ),
        (errors.TableError("t", code=UNCHANGED), UNCHANGED),
    ],
    ids=str,
)
def test_the_limit_on_open_files_is_reported(error: errors.ImpctlError, code: str | None) -> None:
    location = errors.Location("w.yaml", 1, 2)
    (failure,) = for_report(Outcome(failures=(Failure("q", error.at(location)),))).failures
    assert failure.error.code == (code or "too_many_open_files")
    assert (failure.query, failure.error.location) == ("q", location)
    if code != UNCHANGED:
        assert failure.error.exit_code == 6
        assert "ulimit -n" in (failure.error.hint or "")
        assert error.message in failure.error.message


NOON = datetime(2024, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC)
MICROS_IN_YEAR_12024 = 317_276_222_400_000_000
FAR_DAY = 3_672_178


ALL_TYPES: dict[str, tuple[pa.Array, Any, Any]] = {
    "n": (pa.array([1, -(2**63), None], pa.int64()), 1, -(2**63)),
    "x": (pa.array([0.1, float("nan"), None], pa.float64()), 0.1, "NaN"),
    "f": (pa.array([0.1, float("-inf"), None], pa.float32()), 0.10000000149011612, "-Infinity"),
    "dec": (
        pa.array([Decimal("0E-18"), Decimal("12345678901234567890.5"), None]).cast(
            pa.decimal128(38, 18)
        ),
        *("0.000000000000000000", "12345678901234567890.500000000000000000"),
    ),
    "s": (pa.array(["", 'a,"b\nc', None]), "", 'a,"b\nc'),
    "t": (pa.array([True, False, None]), True, False),
    "d": (
        pa.array([date(2024, 1, 31), date(1, 1, 1), None], pa.date32()),
        *("2024-01-31", "0001-01-01"),
    ),
    "far": (
        pa.array([0, FAR_DAY, None], pa.int32()).cast(pa.date32()),
        *("1970-01-01", "+12024-01-31"),
    ),
    "at": (
        pa.array([NOON, NOON.replace(microsecond=0), None], pa.timestamp("us", "UTC")),
        *("2024-01-31T12:00:00.500000+00:00", "2024-01-31T12:00:00+00:00"),
    ),
    "far_at": (
        pa.array([0, MICROS_IN_YEAR_12024, None]).cast(pa.timestamp("us", "UTC")),
        *("1970-01-01T00:00:00+00:00", "+12024-01-31T12:00:00+00:00"),
    ),
    "local": (
        pa.array([datetime(2024, 1, 31, 12), datetime(1, 1, 1), None], pa.timestamp("us")),
        *("2024-01-31T12:00:00", "0001-01-01T00:00:00"),
    ),
    "clock": (
        pa.array([time(1, 2, 3), time(1, 2, 3, 4), None], pa.time64("us")),
        *("01:02:03", "01:02:03.000004"),
    ),
    "took": (
        pa.array(
            [timedelta(days=1, seconds=7384, microseconds=500_000), timedelta(seconds=-1), None],
            pa.duration("us"),
        ),
        *("P1DT7384.5S", "-P0DT1S"),
    ),
    "bin": (pa.array([b"", b"\x00\xff", None], pa.binary()), "", "00ff"),
    "list": (
        pa.array([[1.5, None], [float("inf")], None], pa.list_(pa.float64())),
        *([1.5, None], ["Infinity"]),
    ),
    "struct": (
        pa.array(
            [{"k": Decimal("1.50"), "v": [b"x"]}, {"k": None, "v": None}, None],
            pa.struct([("k", pa.decimal128(5, 2)), ("v", pa.list_(pa.binary()))]),
        ),
        *({"k": "1.50", "v": ["78"]}, {"k": None, "v": None}),
    ),
    "map": (pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int64())), [["a", 1]], []),
    "nothing": (pa.nulls(3), None, None),
}
"""Three values per type, the last one NULL, and the first two values in JSON."""
JSON_ROWS = [{name: column[index] for name, column in ALL_TYPES.items()} for index in (1, 2)]
JSON_ROWS.append(dict.fromkeys(ALL_TYPES))


def every_type() -> pa.Table:
    return pa.table({name: column[0] for name, column in ALL_TYPES.items()})


TEXT_FORMATS = [one for one in RowsFormat if one is not RowsFormat.TABLE]


def refuse_constant(name: str) -> object:
    raise AssertionError(f"`{name}` is no JSON")


def load_strictly(text: str) -> object:
    return json.loads(text, parse_constant=refuse_constant)


def test_json_of_all_types_is_strict() -> None:
    table = every_type()
    assert load_strictly("".join(json_text(table))) == JSON_ROWS
    assert [load_strictly(line) for line in "".join(json_lines(table)).splitlines()] == JSON_ROWS


def test_slices_have_only_their_rows() -> None:
    """A slice shares the arrays of nested values with the whole table."""
    table = every_type()
    for start in range(3):
        for length in range(4 - start):
            part = table.slice(start, length)
            assert load_strictly("".join(json_text(part))) == JSON_ROWS[start : start + length]
    for name in ("list", "struct", "map"):
        batched = table.column(name).combine_chunks().slice(1)
        assert json_column(pa.chunked_array([batched])) == [row[name] for row in JSON_ROWS[1:]]


def test_chunks_make_the_same_text(monkeypatch: MonkeyPatch) -> None:
    whole = {one: "".join(text_of(every_type(), one)) for one in TEXT_FORMATS}
    monkeypatch.setattr("impctl.service.formats._ROWS", 1)
    for one in TEXT_FORMATS:
        chunks = list(text_of(every_type(), one))
        assert "".join(chunks) == whole[one]
        assert len(chunks) >= 3


def test_csv_has_the_values_of_json() -> None:
    records = list(csv.DictReader(io.StringIO("".join(csv_text(every_type())), newline="")))
    for record, row in zip(records, JSON_ROWS, strict=True):
        for name, value in row.items():
            text = record[name]
            if isinstance(value, list | dict):
                assert json.loads(text) == value
            elif name == "f" and value == 0.10000000149011612:
                assert text == "0.1"
            elif isinstance(value, bool):
                assert text == str(value).lower()
            else:
                assert text == ("" if value is None else str(value))


def test_csv_distinguishes_null_from_empty_text() -> None:
    columns = {
        "x": ["", None, "NULL", " x", "a;b", "it's", "\r", "ü"],
        "a,b": [b"", None, b"x", *[b""] * 5],
    }
    expected = 'x,"a,b"\n"",""\n,\nNULL,78\n" x",""\na;b,""\nit\'s,""\n"\r",""\nü,""\n'
    assert "".join(csv_text(pa.table(columns))) == expected


def test_formats_with_duplicate_column_names() -> None:
    table = pa.table([[1], ["y"], [3]], ["x", "x", "x_2"])
    assert "".join(csv_text(table)) == "x,x,x_2\n1,y,3\n"
    assert load_strictly("".join(json_text(table))) == [{"x": 1, "x_3": "y", "x_2": 3}]
    assert "".join(markdown_text(table)).splitlines()[0] == "| x | x | x_2 |"
    assert unique_names(["a", "a", "a_2", "a", "A"]) == ["a", "a_3", "a_2", "a_4", "A"]


@pytest.mark.parametrize("one", TEXT_FORMATS)
def test_no_rows(one: RowsFormat) -> None:
    expected = {
        RowsFormat.CSV: "a,b\n",
        RowsFormat.JSON: "[]\n",
        RowsFormat.JSONL: "",
        RowsFormat.MARKDOWN: "| a | b |\n| ---: | --- |\n",
    }
    table = pa.table({"a": pa.array([], pa.int32()), "b": pa.array([], pa.string())})
    for empty in (table, table.schema.empty_table()):
        assert "".join(text_of(empty, one)) == expected[one]


def test_markdown_escapes_values() -> None:
    table = pa.table({"n": [1, None], "a|b": ["x|y\nz\\", None]})
    expected = "| n | a\\|b |\n| ---: | --- |\n| 1 | x\\|y<br>z\\\\ |\n| NULL | NULL |\n"
    assert "".join(markdown_text(table)) == expected


def test_markdown_escapes_control_characters() -> None:
    table = pa.table({"a\x1b": ["\x1b[2J", "a\u202eb", "a\r\nb\tc", "\u2028"]})
    assert "".join(markdown_text(table)) == (
        "| a\\\\x1b |\n| --- |\n| \\\\x1b[2J |\n| a\\\\u202eb |\n| a<br>b\tc |\n| \\\\u2028 |\n"
    )


def test_spreadsheet_formulas_are_escaped(tmp_path: Path) -> None:
    texts = ["=1+2", "+1", "-1", "@a", "\tx", "\rx", "a=1", "", "'=1", None]
    table = pa.table({"@n": pa.array([-1] * len(texts)), "s": texts})
    plain, escaped = (
        list(csv.reader(io.StringIO("".join(csv_text(table, escape_formulas=escapes)), newline="")))
        for escapes in (False, True)
    )
    assert plain == [["@n", "s"], *(["-1", text or ""] for text in texts)]
    assert escaped[0] == ["'@n", "s"]
    result = [text for _, text in escaped[1:]]
    assert result == ["'=1+2", "'+1", "'-1", "'@a", "'\tx", "'\rx", "a=1", "", "'=1", ""]
    assert {number for number, _ in escaped[1:]} == {"-1"}
    write_answer(table, tmp_path / "a.csv", escape_formulas=True)
    written = (tmp_path / "a.csv").read_bytes()
    assert written == "".join(csv_text(table, escape_formulas=True)).encode()


def test_time_zone_is_written_with_the_time() -> None:
    zoned = every_type().column("at").cast(pa.timestamp("us", "Europe/Berlin"))
    assert json_column(zoned)[0] == "2024-01-31T13:00:00.500000+01:00"
    far = every_type().column("far_at").cast(pa.timestamp("us", "Europe/Berlin"))
    assert json_column(far) == ["1970-01-01T01:00:00+01:00", "+12024-01-31T12:00:00+00:00", None]
    old = pa.chunked_array([pa.array([-(10**16)], pa.timestamp("us", "Europe/Berlin"))])
    assert json_column(old) == ["1653-02-10T07:06:48+00:53:28"]


@pytest.mark.parametrize("reader", ["duckdb", pytest.param("polars", marks=pytest.mark.slow)])
def test_other_libraries_read_the_csv(tmp_path: Path, reader: str) -> None:
    library = pytest.importorskip(reader)
    file = tmp_path / "a.csv"
    table = pa.table({"n": [1, 2, None], "s": ["", None, 'a,"b\nc']})
    file.write_text("".join(csv_text(table)), encoding="utf-8", newline="")
    # By default DuckDB also reads a quoted empty text as NULL.
    options = {"allow_quoted_nulls": False} if reader == "duckdb" else {}
    read = library.read_csv(str(file), **options)
    rows = read.fetchall() if reader == "duckdb" else read.rows()
    assert rows == [(1, ""), (2, None), (None, 'a,"b\nc')]


def test_file_ending_selects_the_format(tmp_path: Path) -> None:
    table = every_type().drop_columns(["nothing"])
    for ending in (".parquet", ".csv", ".jsonl", ".CSV"):
        write_answer(table, tmp_path / f"a{ending}")
    read = pq.read_table(tmp_path / "a.parquet")
    assert read.schema.equals(table.schema)
    # Compare as JSON, since NaN is not equal to itself.
    assert json_rows(read) == json_rows(table)
    for one in (RowsFormat.CSV, RowsFormat.JSONL):
        written = (tmp_path / f"a.{one}").read_bytes()
        assert written == "".join(text_of(table, one)).encode()
    assert (tmp_path / "a.CSV").read_bytes() == (tmp_path / "a.csv").read_bytes()


def test_parquet_column_names_are_unique(tmp_path: Path) -> None:
    write_answer(pa.table([[1], [2]], ["x", "x"]), tmp_path / "a.parquet")
    assert pq.read_table(tmp_path / "a.parquet").to_pydict() == {"x": [1], "x_2": [2]}


@pytest.mark.parametrize("name", ["a", "a.json", "a.parquet.gz", ".csv", "-"])
def test_unknown_ending_is_refused(tmp_path: Path, name: str) -> None:
    with refused(errors.UsageError, "answer_ending") as error:
        check_goal(tmp_path / name, {})
    assert all(ending in str(error.value.hint) for ending in (".parquet", ".csv", ".jsonl"))


def test_unwritable_path_is_refused_early(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for path, message in (("no/a.csv", "does not exist"), ("folder.csv", "it is a folder")):
        with refused(errors.StorageError, "answer_not_written", message):
            check_goal(tmp_path / path, {})
    check_goal(tmp_path / "a.csv", {})
    assert not (tmp_path / "no").exists()


def fail_after_half(error: BaseException) -> Callable[..., Iterator[str]]:
    def chunks(*_: object, **__: object) -> Iterator[str]:
        yield "half"
        raise error

    return chunks


def test_full_disk_keeps_the_old_file(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    path = tmp_path / "a.csv"
    path.write_text("old")
    disk_full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(writing, "text_of", fail_after_half(disk_full))
    with pytest.raises(errors.StorageError, match="No space left") as error:
        write_answer(every_type(), path)
    assert error.value.exit_code == 6
    monkeypatch.setattr(writing, "text_of", fail_after_half(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        write_answer(every_type(), path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.csv"]


def test_write_keeps_file_mode_and_symlink(tmp_path: Path) -> None:
    target, link = tmp_path / "kept" / "a.csv", tmp_path / "b.csv"
    target.parent.mkdir()
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    write_answer(pa.table({"a": [1]}), link)
    assert link.is_symlink()
    assert target.read_text() == "a\n1\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    before = os.umask(0o027)
    try:
        write_answer(pa.table({"a": [1]}), tmp_path / "new.csv")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new.csv").stat().st_mode) == 0o640


def test_type_unsupported_by_parquet_is_refused(tmp_path: Path) -> None:
    table = pa.table({"i": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    with refused(errors.UnsupportedError, "answer_type"):
        write_answer(table, tmp_path / "a.parquet")
    assert os.listdir(tmp_path) == []


def test_readers_never_see_a_partial_file(tmp_path: Path) -> None:
    path, texts = tmp_path / "a.prom", ["a" * 200_000, "b" * 10]
    write_whole(path, texts[0])

    def write(text: str) -> None:
        for _ in range(60):
            write_whole(path, text)

    def read() -> set[str]:
        return {path.read_text() for _ in range(600)}

    with ThreadPoolExecutor(3) as pool:
        contents = pool.submit(read)
        list(pool.map(write, texts))
        assert contents.result() <= set(texts)
    assert [file.name for file in tmp_path.iterdir()] == ["a.prom"]
