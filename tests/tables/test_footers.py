"""Columns that deltalake would copy wrongly are found in footers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from impctl.errors import HistoryGoneError
from impctl.tables.footers import Miscopied, miscopied_columns
from impctl.tables.source import open_source
from tests.tables import handmade
from tests.tables.bags import fixture_table, written


def miscopied(path: Path, columns: dict[str, Any], data: pa.Table, **options: Any) -> Miscopied:
    """Of a table of one file."""
    file = handmade.added(path, "a.parquet", data, **options)
    return miscopied_columns(open_source("t", handmade.create(path, columns, file)).snapshot())


def test_int96_columns_are_named() -> None:
    snapshot = open_source("t", str(fixture_table("table_with_edge_timestamps"))).snapshot()
    assert miscopied_columns(snapshot).as_int96 == {"BIG_DATE", "NORMAL_DATE"}


def test_a_file_may_spell_the_column_otherwise(tmp_path: Path) -> None:
    data = pa.table({"AT": pa.array([1], pa.timestamp("us", tz="UTC"))})
    result = miscopied(tmp_path, {"at": "timestamp"}, data, use_deprecated_int96_timestamps=True)
    assert (result.as_int96, result.respelled) == ({"at"}, {"at"})


def test_fields_in_columns_may_be_spelled_otherwise(tmp_path: Path) -> None:
    within = {"type": "struct", "fields": [handmade.field("a", "long")]}
    several = {"type": "array", "elementType": within, "containsNull": True}
    columns = {"s": within, "l": several, "x.Y": "long", "x.z": within}
    data = pa.table({"s": [{"A": 1}], "l": [[{"a": 1}]], "x.Y": [1], "x.z": [{"A": 1}]})
    result = miscopied(tmp_path, columns, data)
    assert result.columns == result.respelled == {"s", "x.z"}


def test_names_of_one_level_say_nothing_of_another(tmp_path: Path) -> None:
    within = {"type": "struct", "fields": [handmade.field("id", "long")]}
    counts = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}
    columns = {"Id": "long", "s": within, "Key": "long", "m": counts}
    kind = pa.map_(pa.string(), pa.int64())
    data = pa.table({"id": [1], "s": [{"id": 1}], "Key": [1], "m": pa.array([[("a", 1)]], kind)})
    result = miscopied(tmp_path, columns, data)
    assert result.columns == result.respelled == {"Id"}


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
def test_old_times_are_told_from_statistics(
    tmp_path: Path, values: list[int | None], unit: str, options: dict[str, Any], is_named: bool
) -> None:
    kind = pa.timestamp(unit, tz="UTC")
    data = pa.table({"t": pa.array(values, kind)}).replace_schema_metadata(OLD)
    result = miscopied(tmp_path, {"t": "timestamp"}, data, **options)
    assert result.in_old_calendar == ({"t"} if is_named else set())


def test_timestamps_of_today_are_not_int96(tmp_path: Path) -> None:
    data = pa.table({"t": pa.array([1], pa.timestamp("us", tz="UTC"))})
    snapshot = written(tmp_path, data)
    assert miscopied_columns(snapshot).as_int96 == frozenset()
    Path(snapshot.files[0].uri).unlink()
    with pytest.raises(HistoryGoneError, match="can no longer be read"):
        miscopied_columns(snapshot)
