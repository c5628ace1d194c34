"""Bounds from file statistics: never tighter than the rows."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.data.vector import from_arrow
from impctl.tables.rows import read_rows
from impctl.tables.snapshot import Snapshot
from impctl.tables.source import open_source
from impctl.tables.statistics import column_statistics, file_bounds
from tests.tables import handmade
from tests.tables.bags import fixture_table, written

LONG_TEXT = "é" * 40


def write(path: Path, **columns: pa.Array) -> Snapshot:
    """One file per row."""
    data = pa.table(columns)
    data = data.append_column("file", pa.array(range(len(data)), pa.int32()))
    return written(path, data, partition_by=["file"])


def check_sound(snapshot: Snapshot, column: str) -> None:
    """Every value lies within its file's bounds, every NULL and NaN is allowed for."""
    kind = snapshot.column(column).type
    for file, bounds in zip(snapshot.files, file_bounds(snapshot, column), strict=True):
        vector = from_arrow(read_rows(snapshot, [column], [file]).column(0), kind)
        for at, ok in enumerate(vector.validity()):
            value: Any = vector.values[at].as_py() if vector.is_textual else vector.values[at]
            if not ok:
                assert bounds.may_hold_null
                continue
            assert not bounds.is_all_null
            if value != value:
                assert bounds.may_be_nan
                continue
            assert bounds.minimum is None or bounds.minimum <= value
            assert bounds.maximum is None or value <= bounds.maximum


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, -(2**63), 2**63 - 1, None]),
        pa.array([1, -128, 127, None], pa.int8()),
        pa.array([True, False, None]),
        pa.array([0, -719162, 2932896, None], pa.int32()).cast(pa.date32()),
        pa.array([123456, -999, -1, 10413792000000001, None], pa.timestamp("us", tz="UTC")),
        pa.array([123456, -999, -1, None], pa.timestamp("us")),
        pa.array([0.1, -0.1, -0.0, float("nan"), float("inf"), -float("inf"), 5e-324, None]),
        pa.array([0.1, -3.3, 1e38, float("nan"), None], pa.float32()),
        pa.array(["a", "", LONG_TEXT, "x" * 31, "x" * 32, "\U0010ffff" * 70, None]),
        pa.array([b"a", b"\xff", None]),
    ],
    ids=str,
)
def test_bounds_hold_every_value(tmp_path: Path, values: pa.Array) -> None:
    check_sound(write(tmp_path / "t", v=values), "v")


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "scale"), [(5, 2), (18, 0), (22, 2), (38, 0), (38, 10)])
def test_bounds_hold_every_decimal(tmp_path: Path, precision: int, scale: int) -> None:
    random = np.random.default_rng(precision * 100 + scale)
    digits = [int(random.integers(1, precision + 1)) for _ in range(60)]
    texts = ["".join(str(random.integers(1, 10)) for _ in range(count)) for count in digits]
    signs = random.choice([-1, 1], len(texts)).tolist()
    values = [sign * Decimal(text).scaleb(-scale) for text, sign in zip(texts, signs, strict=True)]
    kind = pa.decimal128(precision, scale)
    snapshot = write(tmp_path / "t", v=pa.array([Decimal(0), *values], kind))
    check_sound(snapshot, "v")
    # Sign facts rest on a stated sign being the true one.
    for file, bounds in zip(snapshot.files, file_bounds(snapshot, "v"), strict=True):
        value = read_rows(snapshot, ["v"], [file]).column(0)[0].as_py()
        if bounds.minimum is not None and value >= 0:
            assert bounds.minimum >= 0  # type: ignore[operator]  # decimals are integers here


def test_statistics_of_a_whole_table(tmp_path: Path) -> None:
    snapshot = write(tmp_path / "t", v=pa.array([3, 1, None, 2]))
    result = column_statistics(snapshot, "V")
    assert (result.minimum, result.maximum, result.null_count) == (1, 3, 1)
    assert not result.may_be_nan
    assert column_statistics(snapshot, "file").maximum == 3


def test_a_file_without_statistics_makes_bounds_unknown(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, pa.table({"v": [1]}))
    write_deltalake(
        path,
        pa.table({"v": [5], "w": [1]}),
        mode="append",
        schema_mode="merge",
        configuration=None,
    )
    snapshot = open_source("t", path).snapshot()
    assert column_statistics(snapshot, "v").maximum == 5
    result = column_statistics(snapshot, "w")
    assert (result.minimum, result.null_count) == (None, None)


@pytest.mark.parametrize(
    ("table", "column", "told"),
    [
        ("delta-0.8.0-partitioned", "value", (None, None, None)),
        ("delta-0.8.0-partitioned", "year", ("2020", "2021", 0)),
        ("delta-0.8.0-null-partition", "k", ("A", "A", 1)),
        ("table-with-dv-small", "value", (0, 9, 0)),
        ("table_with_column_mapping", "Super Name", ("Anthony Johnson", "Timothy Lamb", 0)),
        ("table_with_column_mapping", "Company Very Short", ("BME", "BMS", 0)),
    ],
)
def test_statistics_of_tables_of_others(table: str, column: str, told: tuple[Any, ...]) -> None:
    snapshot = open_source("t", str(fixture_table(table))).snapshot()
    result = column_statistics(snapshot, column)
    assert (result.minimum, result.maximum, result.null_count) == told


def test_empty_table_has_no_bounds(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, pa.table({"v": [1]}))
    DeltaTable(path).delete()
    result = column_statistics(open_source("t", path).snapshot(), "v")
    assert (result.minimum, result.maximum, result.null_count) == (None, None, 0)


def test_timestamps_are_widened_by_a_millisecond(tmp_path: Path) -> None:
    at = datetime(2020, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
    snapshot = write(tmp_path / "t", v=pa.array([at], pa.timestamp("us", tz="UTC")))
    result = column_statistics(snapshot, "v")
    assert result.minimum is not None
    assert result.maximum is not None
    assert int(result.maximum) - int(result.minimum) == 2000


def stated(path: Path, field: dict[str, Any], value: pa.Array, low: Any, high: Any) -> Snapshot:
    """One file with this one value, whose statistics are written by hand."""
    stats = handmade.stats(len(value), {"v": 0}, v=(low, high))
    file = handmade.added(path, "a.parquet", pa.table({"v": value}), {"stats": stats})
    return open_source("t", handmade.create(path, [field], file)).snapshot()


@pytest.mark.parametrize("value", [0.1, -0.1, 16777217.3, 1e38, 1e-45])
def test_texts_of_floats_bound_the_doubles_they_became(tmp_path: Path, value: float) -> None:
    changes = [{"fromType": "float", "toType": "double"}]
    field = handmade.field("v", "double", **{"delta.typeChanges": changes})
    single = np.float32(value)
    text = float(str(single))
    snapshot = stated(tmp_path, field, pa.array([single], pa.float32()), text, text)
    check_sound(snapshot, "v")
    (bounds,) = file_bounds(snapshot, "v")
    assert isinstance(bounds.minimum, float)
    assert (bounds.minimum < 0) == (value < 0)


@pytest.mark.parametrize("value", [1e300, -1e300, 1e-300, -1e-300, 0.0, 0.1])
def test_doubles_written_after_floats_are_bounded_too(tmp_path: Path, value: float) -> None:
    changes = [{"fromType": "float", "toType": "double"}]
    field = handmade.field("v", "double", **{"delta.typeChanges": changes})
    check_sound(stated(tmp_path, field, pa.array([value]), value, value), "v")


@pytest.mark.parametrize(
    ("text", "maximum"),
    [
        # As older writers of Delta cut it: 32 units of UTF-16, and one that is the greatest there.
        ("\U0001f600" * 20, "\U0001f600" * 16 + "\ufffd"),
        ("\U0001f600" * 16, "\U0001f600" * 15 + "~~"),
        ("\U0001f600", "\ufffd"),
    ],
    ids=["tie breaker", "32 units", "tie breaker alone"],
)
def test_texts_cut_by_the_order_of_utf_16_bound_nothing(
    tmp_path: Path, text: str, maximum: str
) -> None:
    field = handmade.field("v", "string")
    check_sound(stated(tmp_path, field, pa.array([text]), text[:8], maximum), "v")


def test_a_text_of_32_units_whose_characters_are_sure_bounds_nothing_above(tmp_path: Path) -> None:
    """Written out, and of a plane that deltalake does not mistake for another."""
    field, text, maximum = handmade.field("v", "string"), "\U00020000", "\U00020000" * 15 + "~~"
    stated(tmp_path, field, pa.array([text * 16]), text, maximum)
    log, actions = handmade.entry(tmp_path, 0), handmade.actions_of(tmp_path, 0)
    for action in actions:
        if "add" in action:
            stats = json.loads(action["add"]["stats"])
            action["add"]["stats"] = json.dumps(stats, ensure_ascii=False)
    log.write_text("\n".join(json.dumps(one, ensure_ascii=False) for one in actions))
    snapshot = open_source("t", str(tmp_path)).snapshot()
    check_sound(snapshot, "v")
    (bounds,) = file_bounds(snapshot, "v")
    assert (bounds.minimum, bounds.maximum) == (text, None)


def test_texts_written_as_escapes_bound_nothing_above(tmp_path: Path) -> None:
    field = handmade.field("v", "string")
    text = "\U00020000" * 15
    (bounds,) = file_bounds(stated(tmp_path, field, pa.array([text]), text, text), "v")
    # The hand that wrote this log wrote escapes, of which deltalake reads a lesser text.
    assert bounds.minimum is not None
    assert bounds.minimum <= text
    assert bounds.maximum is None


@pytest.mark.parametrize(
    ("at", "text"),
    [
        # New York's offset was -04:56:02, Liberia's -00:44:30: Java tells hours and minutes.
        (datetime(1880, 1, 1, 4, 56, 2, tzinfo=UTC), "1880-01-01T00:00:00.000-04:56"),
        (datetime(1972, 1, 6, 0, 44, 30, tzinfo=UTC), "1972-01-06T00:00:00.000-00:44"),
        (datetime(1930, 1, 1, 0, 0, 28, tzinfo=UTC), "1930-01-01T00:20:00.000+00:19"),
    ],
)
def test_times_of_offsets_with_seconds_lie_within_bounds(
    tmp_path: Path, at: datetime, text: str
) -> None:
    field = handmade.field("v", "timestamp")
    values = pa.array([at], pa.timestamp("us", tz="UTC"))
    check_sound(stated(tmp_path, field, values, text, text), "v")
