"""Statistics of files, which bound all rows; footers; samples and weights of values."""

from __future__ import annotations

import json
import random
from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from impctl.data.schema import LONG
from impctl.data.vector import from_arrow
from impctl.errors import HistoryGoneError
from impctl.sketch.boundaries import Mixture, aligned_boundaries
from impctl.sketch.sketch import RangePartition
from impctl.tables import sample
from impctl.tables.files import Miscopied, miscopied_columns
from impctl.tables.rows import read_rows
from impctl.tables.sample import (
    FileSample,
    clustered_columns,
    file_sample,
    overlap,
    sample_values,
    starts_of,
    value_weights,
    with_overlaps,
)
from impctl.tables.snapshot import ColumnBounds, Snapshot, ValueBounds
from impctl.tables.source import open_source
from impctl.tables.statistics import (
    column_statistics,
    file_bounds,
    file_spans,
    line_of,
    rows_by_range,
)
from impctl.tables.write.maintenance import create_laid_out_table
from tests.support.random_cases import FEW
from tests.tables import handmade
from tests.tables.handmade import LONG as DELTA_LONG
from tests.tables.handmade import add, column_bounds, create, fixture_table, of_file, write_table

LONG_TEXT = "é" * 40


def write(path: Path, **columns: pa.Array) -> Snapshot:
    """One file per row."""
    data = pa.table(columns)
    data = data.append_column("file", pa.array(range(len(data)), pa.int32()))
    return write_table(path, data, partition_by=["file"])


def check_sound(snapshot: Snapshot, column: str) -> None:
    """Check that bounds cover each value, NULL and NaN of their file."""
    kind = snapshot.column(column).type
    for file, bounds in zip(snapshot.files, file_bounds(snapshot, column), strict=True):
        vector = from_arrow(read_rows(snapshot, [column], [file]).column(0), kind)
        for row, is_valid in enumerate(vector.validity()):
            value: Any = vector.values[row].as_py() if vector.is_textual else vector.values[row]
            if not is_valid:
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
def test_bounds_cover_each_value(tmp_path: Path, values: pa.Array) -> None:
    check_sound(write(tmp_path / "t", v=values), "v")


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "scale"), [(5, 2), (18, 0), (22, 2), (38, 0), (38, 10)])
def test_bounds_cover_each_decimal(tmp_path: Path, precision: int, scale: int) -> None:
    random = np.random.default_rng(precision * 100 + scale)
    digits = [int(random.integers(1, precision + 1)) for _ in range(60)]
    texts = ["".join(str(random.integers(1, 10)) for _ in range(count)) for count in digits]
    signs = random.choice([-1, 1], len(texts)).tolist()
    values = [sign * Decimal(text).scaleb(-scale) for text, sign in zip(texts, signs, strict=True)]
    kind = pa.decimal128(precision, scale)
    snapshot = write(tmp_path / "t", v=pa.array([Decimal(0), *values], kind))
    check_sound(snapshot, "v")
    # Facts about signs rely on the sign of the minimum.
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
    write_table(tmp_path, pa.table({"v": [1]}))
    snapshot = write_table(tmp_path, pa.table({"v": [5], "w": [1]}), schema_mode="merge")
    assert column_statistics(snapshot, "v").maximum == 5
    result = column_statistics(snapshot, "w")
    assert (result.minimum, result.null_count) == (None, None)


@pytest.mark.parametrize(
    ("table", "column", "expected"),
    [
        ("delta-0.8.0-partitioned", "value", (None, None, None)),
        ("delta-0.8.0-partitioned", "year", ("2020", "2021", 0)),
        ("delta-0.8.0-null-partition", "k", ("A", "A", 1)),
        ("table-with-dv-small", "value", (0, 9, 0)),
        ("table_with_column_mapping", "Super Name", ("Anthony Johnson", "Timothy Lamb", 0)),
        ("table_with_column_mapping", "Company Very Short", ("BME", "BMS", 0)),
    ],
)
def test_statistics_of_fixture_tables(table: str, column: str, expected: tuple[Any, ...]) -> None:
    result = column_statistics(open_source("t", str(fixture_table(table))).snapshot(), column)
    assert (result.minimum, result.maximum, result.null_count) == expected


def test_empty_table_has_no_bounds(tmp_path: Path) -> None:
    write_table(tmp_path, pa.table({"v": [1]}))
    DeltaTable(str(tmp_path)).delete()
    result = column_statistics(handmade.open_table(tmp_path).snapshot(), "v")
    assert (result.minimum, result.maximum, result.null_count) == (None, None, 0)


def one_file(path: Path, kind: str, value: pa.Array, low: Any, high: Any, **more: Any) -> Snapshot:
    """A table of one file with these values and handwritten statistics."""
    stats = {"stats": handmade.stats(len(value), {"v": 0}, v=(low, high))}
    return of_file(path, [handmade.field("v", kind, **more)], pa.table({"v": value}), stats)


@pytest.mark.parametrize(
    "value",
    [
        *map(np.float32, (0.1, -0.1, 16777217.3, 1e38, 1e-45)),
        *(1e300, -1e300, 1e-300, -1e-300, 0.0, 0.1),
    ],
    ids=lambda value: f"{type(value).__name__} {value}",
)
def test_bounds_of_widened_floats_are_sound(tmp_path: Path, value: float | np.float32) -> None:
    """Widened floats have bounds in float precision; later rows are doubles."""
    changes = {"delta.typeChanges": [{"fromType": "float", "toType": "double"}]}
    kind = pa.float32() if isinstance(value, np.float32) else pa.float64()
    text = float(str(value))
    snapshot = one_file(tmp_path, "double", pa.array([value], kind), text, text, **changes)
    check_sound(snapshot, "v")
    (bounds,) = file_bounds(snapshot, "v")
    assert isinstance(bounds.minimum, float)
    assert (bounds.minimum < 0) == (value < 0)


@pytest.mark.parametrize(
    ("text", "maximum"),
    [
        # Older Delta writers truncate to 32 UTF-16 units and append the greatest one.
        ("\U0001f600" * 20, "\U0001f600" * 16 + "\ufffd"),
        ("\U0001f600" * 16, "\U0001f600" * 15 + "~~"),
        ("\U0001f600", "\ufffd"),
    ],
    ids=["tie breaker", "32 units", "tie breaker alone"],
)
def test_texts_truncated_in_utf_16_order(tmp_path: Path, text: str, maximum: str) -> None:
    check_sound(one_file(tmp_path, "string", pa.array([text]), text[:8], maximum), "v")


@pytest.mark.parametrize(
    ("time", "text"),
    [
        # New York's offset was -04:56:02, Liberia's -00:44:30; Java prints hours and minutes.
        (datetime(1880, 1, 1, 4, 56, 2, tzinfo=UTC), "1880-01-01T00:00:00.000-04:56"),
        (datetime(1972, 1, 6, 0, 44, 30, tzinfo=UTC), "1972-01-06T00:00:00.000-00:44"),
        (datetime(1930, 1, 1, 0, 0, 28, tzinfo=UTC), "1930-01-01T00:20:00.000+00:19"),
    ],
)
def test_bounds_of_offsets_with_seconds_are_sound(
    tmp_path: Path, time: datetime, text: str
) -> None:
    values = pa.array([time], pa.timestamp("us", tz="UTC"))
    check_sound(one_file(tmp_path, "timestamp", values, text, text), "v")


def miscopied(path: Path, columns: dict[str, Any], data: pa.Table, **options: Any) -> Miscopied:
    """The miscopied columns of a table of one file."""
    return miscopied_columns(of_file(path, columns, data, **options))


def test_int96_columns_are_named() -> None:
    snapshot = open_source("t", str(fixture_table("table_with_edge_timestamps"))).snapshot()
    assert miscopied_columns(snapshot).as_int96 == {"BIG_DATE", "NORMAL_DATE"}


def test_int96_column_in_other_case(tmp_path: Path) -> None:
    data = pa.table({"AT": pa.array([1], pa.timestamp("us", tz="UTC"))})
    result = miscopied(tmp_path, {"at": "timestamp"}, data, use_deprecated_int96_timestamps=True)
    assert (result.as_int96, result.respelled) == ({"at"}, {"at"})


def struct_of(name: str) -> dict[str, Any]:
    return {"type": "struct", "fields": [handmade.field(name, "long")]}


ARRAY = {"type": "array", "elementType": struct_of("a"), "containsNull": True}
MAP = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}
MAPPED = pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))


@pytest.mark.parametrize(
    ("columns", "data", "respelled"),
    [
        (
            {"s": struct_of("a"), "l": ARRAY, "x.Y": "long", "x.z": struct_of("a")},
            {"s": [{"A": 1}], "l": [[{"a": 1}]], "x.Y": [1], "x.z": [{"A": 1}]},
            {"s", "x.z"},
        ),
        (
            {"Id": "long", "s": struct_of("id"), "Key": "long", "m": MAP},
            {"id": [1], "s": [{"id": 1}], "Key": [1], "m": MAPPED},
            {"Id"},
        ),
    ],
    ids=["nested fields", "same name in another level"],
)
def test_respelled_columns_are_named(
    tmp_path: Path, columns: dict[str, Any], data: dict[str, Any], respelled: set[str]
) -> None:
    result = miscopied(tmp_path, columns, pa.table(data))
    assert result.columns == result.respelled == respelled


OLD = {"org.apache.spark.version": "2.4.8"}
BEFORE_1900, SINCE_1900 = -2208988800000001, -2208988800000000


@pytest.mark.parametrize(
    ("values", "unit", "options", "is_named"),
    [
        ([SINCE_1900, None], "us", {}, False),
        ([SINCE_1900, BEFORE_1900], "us", {"row_group_size": 1}, True),
        ([SINCE_1900], "us", {"write_statistics": False}, True),
        ([SINCE_1900 // 1000], "ms", {}, True),
        ([None, None], "us", {}, False),
    ],
    ids=["since 1900", "in the second group", "no statistics", "milliseconds", "all NULL"],
)
def test_old_times_by_statistics(
    tmp_path: Path, values: list[int | None], unit: str, options: dict[str, Any], is_named: bool
) -> None:
    kind = pa.timestamp(unit, tz="UTC")
    data = pa.table({"t": pa.array(values, kind)}).replace_schema_metadata(OLD)
    result = miscopied(tmp_path, {"t": "timestamp"}, data, **options)
    assert result.in_old_calendar == ({"t"} if is_named else set())


def test_timestamps_of_today_are_not_int96(tmp_path: Path) -> None:
    snapshot = write_table(tmp_path, pa.table({"t": pa.array([1], pa.timestamp("us", tz="UTC"))}))
    assert miscopied_columns(snapshot).as_int96 == frozenset()
    Path(snapshot.files[0].uri).unlink()
    with pytest.raises(HistoryGoneError, match="can no longer be read"):
        miscopied_columns(snapshot)


FILES, EACH = 200, 1000


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """`up` increases every ten rows, also across files; `any` is random; `text` is like `up`."""
    folder = tmp_path_factory.mktemp("tables") / "t"
    row = np.arange(FILES * EACH)
    scattered = np.random.default_rng(3).integers(0, 500, len(row))
    columns = {"up": row // 10, "any": scattered, "text": [f"{value // 10:07}" for value in row]}
    columns["empty"] = pa.nulls(len(row), pa.int64())
    rows = pa.table(columns)
    parts = (rows.slice(start, EACH) for start in range(0, len(row), EACH))
    create_laid_out_table(str(folder), parts)
    return open_source("t", str(folder)).snapshot()


@pytest.fixture(scope="module")
def bounds(snapshot: Snapshot) -> dict[str, ColumnBounds]:
    return {name: file_bounds(snapshot, name) for name in snapshot.schema.names}


@pytest.fixture(scope="module")
def sampled_files(snapshot: Snapshot, bounds: dict[str, ColumnBounds]) -> FileSample:
    return file_sample(snapshot, snapshot.files, ["up", "any", "text"], bounds["up"])


def test_overlap_detects_clustered_columns(snapshot: Snapshot) -> None:
    assert overlap(snapshot, "up") == pytest.approx(1 / FILES)
    assert overlap(snapshot, "text") < 0.01
    assert overlap(snapshot, "any") > 0.9
    assert set(clustered_columns(snapshot, ["any", "empty", "text", "up"], 0.25)) == {"up", "text"}


def test_sample_is_deterministic_and_spread(
    snapshot: Snapshot, bounds: dict[str, ColumnBounds], sampled_files: FileSample
) -> None:
    again = file_sample(snapshot, snapshot.files, ["up", "any", "text"], bounds["up"])
    assert again.rows.equals(sampled_files.rows)
    assert len(sampled_files.windows) == 48
    assert sum(size for parts in sampled_files.windows for size in parts) == len(sampled_files.rows)
    drawn = np.unique(np.array(sampled_files.rows.column("up")) * 10 // EACH)
    assert np.diff(drawn).max() < 12, "windows cover all stretches of files"


@pytest.mark.slow
def test_weights_of_sampled_rows(
    bounds: dict[str, ColumnBounds], sampled_files: FileSample
) -> None:
    each = FILES * EACH / len(sampled_files.rows)
    up, scattered = {"up": bounds["up"]}, {"any": bounds["any"]}
    assert (sampled_files.weights(up) == 1).all()
    assert sampled_files.weights(scattered) == pytest.approx(each, rel=0.3)
    assert sampled_files.weights({}) == pytest.approx(each)
    assert (sampled_files.weights({**scattered, **up}) == 1).all()
    assert (sampled_files.weights({"text": bounds["text"]}) < 1.2).mean() > 0.9


def test_rows_and_files_per_value(
    bounds: dict[str, ColumnBounds], sampled_files: FileSample
) -> None:
    rows, files = sampled_files.held("up", bounds["up"]) or ([], [])
    assert (rows, files) == (pytest.approx(10, rel=0.05), pytest.approx(1))
    rows, files = sampled_files.held("any", bounds["any"]) or ([], [])
    assert rows == pytest.approx(FILES * EACH / 500, rel=0.05)
    assert min(files) > 0.5 * FILES
    unknown = column_bounds([ValueBounds(None, None, None, None)] * FILES, LONG)
    assert sampled_files.held("up", unknown) is None


def test_spans_of_files(snapshot: Snapshot, bounds: dict[str, ColumnBounds]) -> None:
    each = EACH // 10
    partition = RangePartition("t", "up", LONG, tuple(range(each, each * FILES, each)))
    spans = file_spans(partition, bounds["up"])
    assert spans.first.tolist() == spans.last.tolist() == list(range(FILES))
    rows = rows_by_range(partition, snapshot.files, bounds["up"])
    assert rows == pytest.approx([EACH] * FILES + [0])
    chances = np.zeros(FILES + 1)
    chances[[3, 7]] = 1.0, 0.25
    chances_left = spans.chances(chances)
    assert np.flatnonzero(chances_left).tolist() == [3, 7]
    assert chances_left[[3, 7]].tolist() == pytest.approx([1, 0.25])
    merged = spans.merged(3)
    assert merged.first.tolist() == merged.last.tolist() == [number // 3 for number in range(FILES)]
    wide = file_spans(RangePartition("t", "any", LONG, (250,)), bounds["any"])
    assert wide.chances(np.array([0.5, 0.5, 0])) == pytest.approx(0.75)


def test_file_of_nulls_is_in_null_range_only(
    snapshot: Snapshot, bounds: dict[str, ColumnBounds]
) -> None:
    partition = RangePartition("t", "empty", LONG, (1,))
    spans = file_spans(partition, bounds["empty"])
    assert spans.chances(np.array([1.0, 1.0, 0.0])).tolist() == [0] * FILES
    assert spans.chances(np.array([0.0, 0.0, 0.5])) == pytest.approx(0.5)
    assert rows_by_range(partition, snapshot.files, bounds["empty"])[-1] == FILES * EACH
    assert spans.merged(2).chances(np.array([1.0, 0.5])) == pytest.approx(0.5)


def test_correlated_ranges_are_not_multiplied() -> None:
    """Two files of ten ranges each. In one case all ranges are hit, in the other none."""
    bounds = column_bounds([ValueBounds(0, 9, 0, 10), ValueBounds(10, 19, 0, 10)], LONG)
    spans = file_spans(RangePartition("t", "up", LONG, tuple(range(1, 20))), bounds)
    sizes = (1, 21)
    cases = np.concatenate([np.full(sizes, 0.9), np.full(sizes, 0.0)])
    weights = np.concatenate([np.full(sizes, 0.25), np.full(sizes, 0.75)])
    assert spans.left(Mixture(weights, cases)) == pytest.approx(0.25)
    assert spans.chances((weights * cases).sum(axis=0)) == pytest.approx(1 - 0.775**10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["up", "text", "any"])
def test_line_is_monotonic_in_values(
    name: str, snapshot: Snapshot, bounds: dict[str, ColumnBounds], sampled_files: FileSample
) -> None:
    line = line_of(bounds[name])
    column = sampled_files.rows.column(name)
    positions = line.places_of(from_arrow(column, snapshot.readable(name).type))
    assert (np.diff(positions[np.argsort(np.array(column.to_pylist()), kind="stable")]) >= 0).all()
    assert positions[0] == line.place(column[0].as_py())


def test_small_columns_are_sampled_completely(tmp_path: Path) -> None:
    data = pa.table({"f": [1.5, None, float("nan"), 2.5], "k": ["a", "a", None, "b"]})
    snapshot = write_table(tmp_path, data, partition_by=["k"])
    assert sorted(sample_values(snapshot, "F", 100, 1)) == [1.5, 2.5]
    assert sorted(sample_values(snapshot, "k", 100, 1)) == ["a", "a", "b"]


def test_canonical_values(tmp_path: Path) -> None:
    columns = {
        "d": pa.array([19000], pa.int32()).cast(pa.date32()),
        "m": pa.array(["1.50"]).cast(pa.decimal128(10, 2)),
        "t": pa.array([7], pa.timestamp("us", tz="UTC")),
    }
    snapshot = write_table(tmp_path, pa.table(columns))
    assert [sample_values(snapshot, name, 10, 1) for name in "dmt"] == [[19000], [150], [7]]


def test_large_tables_are_sampled_evenly_and_repeatably(tmp_path: Path) -> None:
    starts = range(0, 40_000, 10_000)
    files = [pa.table({"v": list(range(start, start + 10_000))}) for start in starts]
    snapshot = write_table(tmp_path, *files)
    result = sample_values(snapshot, "v", 400, 7)
    assert len(result) == 400
    assert result == sample_values(snapshot, "v", 400, 7)
    assert result != sample_values(snapshot, "v", 400, 8)
    assert [sum(int(v) // 10_000 == file for v in result) for file in range(4)] == [100] * 4


def test_many_files_are_not_all_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "MAX_FILES", 3)
    data = pa.table({"v": list(range(8)), "k": list(range(8))})
    assert (
        len(set(sample_values(write_table(tmp_path, data, partition_by=["k"]), "v", 100, 1))) == 3
    )


def test_mapped_table_is_sampled() -> None:
    snapshot = open_source("t", str(fixture_table("table_with_column_mapping"))).snapshot()
    assert "Anthony Johnson" in sample_values(snapshot, "Super Name", 10, 1)


Stated = tuple[int | None, int | None, int]
"""Minimum, maximum and row count of a file, as in the log."""


def table(folder: Path, files: Sequence[Stated]) -> Snapshot:
    """A table with a log only."""
    adds = []
    for number, (low, high, rows) in enumerate(files):
        stats: dict[str, Any] = {"numRecords": rows, "nullCount": {"v": 0}}
        stats |= {"minValues": {"v": low}} if low is not None else {}
        stats |= {"maxValues": {"v": high}} if high is not None else {}
        adds.append(add(f"{number}.parquet", rows, stats=json.dumps(stats)))
    return open_source("t", create(folder, {"v": DELTA_LONG}, *adds)).snapshot()


def spanned(low: int, high: int, boundaries: Sequence[Any]) -> int:
    """The number of ranges of the values from `low` to `high`."""
    return bisect_right(boundaries, high) - bisect_right(boundaries, low) + 1


def test_files_that_were_not_sampled_count(tmp_path: Path) -> None:
    files = [(number * 100, number * 100 + 99, 100) for number in range(50)]
    bounds = file_bounds(table(tmp_path, files), "v")
    weights, depth = value_weights(bounds, [7, 9])
    assert round(weights.total) == 5000
    assert 0.9 < depth < 1.3
    boundaries = aligned_boundaries(weights, 50, starts_of(bounds))
    assert boundaries == tuple(number * 100 for number in range(1, 50))


def test_sample_locates_rows_within_wide_bounds(tmp_path: Path) -> None:
    files = [(0, 1_000_000, 1000)] * 10
    sample = [*range(1000), *range(999_000, 1_000_000, 10)]
    bounds = file_bounds(table(tmp_path, files), "v")
    weights, depth = value_weights(bounds, sample)
    assert depth > 9
    assert weights.rows_before(1000) > 0.85 * weights.total


def test_boundary_value_of_two_files_has_own_range(tmp_path: Path) -> None:
    files = [(number * 10, number * 10 + 10, 1000) for number in range(20)]
    bounds = file_bounds(table(tmp_path, files), "v")
    even = aligned_boundaries(value_weights(bounds, [])[0], 20, starts_of(bounds))
    boundaries = with_overlaps(even, bounds)
    assert {(10, 11), (20, 21)} <= set(zip(boundaries, boundaries[1:], strict=False))
    for low, high, _ in files:
        inside = spanned(low + 1, high - 1, boundaries)
        assert inside == 1, "values of one file only are in one range"


def test_overlaps_are_unknown_without_bounds(tmp_path: Path) -> None:
    files = [(0, 10, 100), (None, None, 100), (10, 20, 100)]
    bounds = file_bounds(table(tmp_path / "t", files), "v")
    assert with_overlaps((10,), bounds) == (10,)
    assert round(value_weights(bounds, list(range(20)))[0].total) == 300
    none = file_bounds(table(tmp_path / "empty", []), "v")
    assert aligned_boundaries(value_weights(none, [])[0], 1000, starts_of(none)) == ()


@settings(FEW, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6))
def test_overlaps_keep_boundaries_ascending(tmp_path_factory: Any, seed: int) -> None:
    rng = random.Random(seed)
    files: list[Stated] = []
    for _ in range(rng.randint(1, 12)):
        low = rng.randint(-20, 20)
        bounds = (low, low + rng.choice((0, 1, 5, 30)))
        one_file = bounds if rng.random() < 0.95 else (None, None)
        files.append((*one_file, rng.choice((1, 10, 100))))
    known = file_bounds(table(tmp_path_factory.mktemp("t"), files), "v")
    weights, _ = value_weights(known, [rng.randint(-20, 50) for _ in range(rng.randint(0, 30))])
    ranges = rng.choice((1, 3, 10))
    boundaries: Sequence[Any] = aligned_boundaries(weights, ranges, starts_of(known))
    more: Sequence[Any] = with_overlaps(boundaries, known)
    assert set(boundaries) <= set(more)
    assert all(low < high for low, high in zip(more, more[1:], strict=False))
    assert len(more) <= 2 * len(boundaries)


def test_rows_without_bounds_follow_the_sample(tmp_path: Path) -> None:
    bounds = file_bounds(table(tmp_path, [(None, None, 10)]), "v")
    weights, _ = value_weights(bounds, [3, 1])
    assert (weights.values, weights.weights) == ((1, 3), (5.0, 5.0))
