"""Changes read from files that another reader would misread: old times, other letters, no zone."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.errors import TableError
from impctl.tables.changes import read_changes
from impctl.tables.rows import read_rows
from impctl.tables.snapshot import CHANGE_FEED
from impctl.tables.source import DeltaSource, open_source
from impctl.tables.write.maintenance import create_laid_out_table
from tests.tables import handmade
from tests.tables.bags import check, written

FEED = {CHANGE_FEED: "true"}
INT96 = {"use_deprecated_int96_timestamps": True}


def fed(path: Path, columns: dict[str, str], data: pa.Table, **options: bool) -> DeltaSource:
    """A table with a feed, of which version 1 added these rows."""
    handmade.create(path, columns, configuration=FEED)
    handmade.commit(path, 1, handmade.added(path, "a.parquet", data, **options))
    return open_source("t", str(path))


def test_partitions_of_times_are_read_while_every_one_tells_its_zone(tmp_path: Path) -> None:
    columns = {"v": "long", "at": "timestamp"}
    handmade.create(tmp_path, columns, partition_columns=["at"], configuration=FEED)
    written = ["2024-01-01T02:00:00+02:00", "2024-01-01T00:00:00.000000Z", None]
    for version, text in enumerate([*written, "2024-01-01 00:00:00"], start=1):
        rows, values = pa.table({"v": [version]}), {"partitionValues": {"at": text}}
        file = handmade.added(tmp_path, f"{version}.parquet", rows, values)
        handmade.commit(tmp_path, version, file)
    source = open_source("t", str(tmp_path))
    before = source.snapshot(3)
    at = datetime(2024, 1, 1, tzinfo=UTC)
    assert set(read_rows(before, ["at"]).column("at").to_pylist()) == {at, None}
    assert read_changes(source, 0, 3, ["at", "v"], known=source.snapshot(0)).rows == 3
    with pytest.raises(TableError, match="`at` of table `t` cannot be read: .* have no time zone"):
        read_changes(source, 3, 4, ["at"], known=before)
    assert read_changes(source, 3, 4, ["v"], known=before).rows == 1


def test_int96_timestamps_are_not_read_through_the_feed(tmp_path: Path) -> None:
    far = datetime(9999, 12, 31, tzinfo=UTC)
    data = pa.table({"id": [1], "at": pa.array([far], pa.timestamp("us", tz="UTC"))})
    source = fed(tmp_path, {"id": "long", "at": "timestamp"}, data, **INT96)
    changes = read_changes(source, 0, 1, ["at"])
    assert (changes.method, changes.table.column("at").to_pylist()) == ("file_diff", [far])
    assert read_changes(source, 0, 1, ["id"]).method == "change_feed"


@pytest.mark.parametrize(("day", "is_read"), [("1582-10-15", True), ("1582-10-14", False)])
def test_old_dates_of_spark_2_are_refused(tmp_path: Path, day: str, is_read: bool) -> None:
    mark = {"org.apache.spark.version": "2.4.8"}
    data = pa.table({"d": pa.array([day]).cast(pa.date32())}).replace_schema_metadata(mark)
    source = fed(tmp_path, {"d": "date"}, data)
    if is_read:
        check(source, 0, 1, "file_diff")
    else:
        with pytest.raises(TableError, match="`d` has old dates"):
            read_changes(source, 0, 1, ["d"])


@pytest.mark.parametrize(
    ("version", "as_int96", "is_read"),
    [
        ("2.4.8", False, False),
        ("3.0.3", True, False),
        ("3.0.3", False, True),
        ("3.1.0", True, True),
    ],
)
def test_old_times_of_spark_3_0_are_refused_where_they_are_int96(
    tmp_path: Path, version: str, as_int96: bool, is_read: bool
) -> None:
    at = datetime(1899, 12, 31, tzinfo=UTC)
    mark = {"org.apache.spark.version": version}
    data = pa.table({"at": pa.array([at], pa.timestamp("us", tz="UTC"))})
    data = data.replace_schema_metadata(mark)
    source = fed(tmp_path, {"at": "timestamp"}, data, **(INT96 if as_int96 else {}))
    if is_read:
        assert read_changes(source, 0, 1, ["at"]).table.column("at").to_pylist() == [at]
    else:
        with pytest.raises(TableError, match="`at` has old dates"):
            read_changes(source, 0, 1, ["at"])


@pytest.mark.parametrize("partitions", [[], ["p"]])
def test_column_in_other_letters_is_read(tmp_path: Path, partitions: list[str]) -> None:
    columns = {"Id": "long", "p": "string"}
    handmade.create(tmp_path, columns, partition_columns=partitions, configuration=FEED)
    held = {"id": [1, 2]} if partitions else {"id": [1, 2], "P": ["a", "a"]}
    values = {"partitionValues": {"p": "a"} if partitions else {}}
    handmade.commit(tmp_path, 1, handmade.added(tmp_path, "a.parquet", pa.table(held), values))
    source = open_source("t", str(tmp_path))
    result = check(source, 0, 1, "file_diff" if partitions else "change_feed")
    assert result.table.column("Id").to_pylist() == [1, 2]
    assert result.table.column("p").to_pylist() == ["a", "a"]


def test_a_partition_beyond_year_9999_is_refused_in_words(tmp_path: Path) -> None:
    days = pa.array([2_932_897 + 5, 3], pa.date32())
    snapshot = written(tmp_path / "t", pa.table({"d": days, "x": [1, 2]}), partition_by=["d"])
    with pytest.raises(
        TableError, match="`d` has a value that impctl cannot read as `date`: 10000-01-06"
    ):
        read_rows(snapshot, ["d"])
    assert read_rows(snapshot, ["x"]).num_rows == 2


@pytest.mark.parametrize("number", [pa.float64(), pa.float32()])
def test_a_double_that_was_written_for_nan_is_not_read(tmp_path: Path, number: pa.DataType) -> None:
    """Footers leave NaN out, and deltalake takes the one value that they tell for all rows."""
    rows = pa.table({"x": [1, 2, 3], "d": pa.array([3.0, math.nan, 3.0], number)})
    create_laid_out_table(str(tmp_path / "t"), [rows, rows.slice(0, 1)])
    DeltaTable(str(tmp_path / "t")).delete("d > 2 AND x >= 2")
    source = open_source("t", str(tmp_path / "t"))
    changes = read_changes(source, 0, 1, ["x", "d"])
    assert changes.method == "file_diff"
    columns = (changes.table.column(name).to_pylist() for name in ("x", "d"))
    gone = [(x, d) for x, d in zip(*columns, strict=True) if math.isnan(d)]
    assert len(gone) == 1
    assert int(changes.weights.sum()) == -2
    assert read_changes(source, 0, 1, ["x"]).method == "change_feed"


def test_a_feed_beside_partitions_takes_no_double_for_nan(tmp_path: Path) -> None:
    rows = pa.table({"p": [1, 1, 1], "d": [3.0, math.nan, 3.0]})
    write_deltalake(tmp_path / "t", rows, partition_by=["p"], configuration=FEED)
    write_deltalake(tmp_path / "t", rows, mode="append")
    changes = read_changes(open_source("t", str(tmp_path / "t")), 0, 1, ["p", "d"])
    assert sorted(map(repr, changes.table.column("d").to_pylist())) == ["3.0", "3.0", "nan"]
