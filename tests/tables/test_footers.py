"""Columns that deltalake would copy wrongly are found in footers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.errors import HistoryGoneError
from impctl.tables.footers import miscopied_columns
from impctl.tables.source import open_source
from tests.tables import handmade
from tests.tables.bags import fixture_table


def test_int96_columns_are_named() -> None:
    snapshot = open_source("t", str(fixture_table("table_with_edge_timestamps"))).snapshot()
    assert miscopied_columns(snapshot).as_int96 == {"BIG_DATE", "NORMAL_DATE"}


def test_a_file_may_spell_the_column_otherwise(tmp_path: Path) -> None:
    data = pa.table({"AT": pa.array([1], pa.timestamp("us", tz="UTC"))})
    name = handmade.write_file(tmp_path, "a.parquet", data, use_deprecated_int96_timestamps=True)
    about = handmade.metadata([handmade.field("at", "timestamp")])
    handmade.commit(tmp_path, 0, handmade.protocol(), about, handmade.add(name, 1))
    found = miscopied_columns(open_source("t", str(tmp_path)).snapshot())
    assert (found.as_int96, found.respelled) == ({"at"}, {"at"})


def test_timestamps_of_today_are_not_int96(tmp_path: Path) -> None:
    data = pa.table({"t": pa.array([1], pa.timestamp("us", tz="UTC"))})
    write_deltalake(str(tmp_path), data)
    snapshot = open_source("t", str(tmp_path)).snapshot()
    assert miscopied_columns(snapshot).as_int96 == frozenset()
    Path(snapshot.files[0].uri).unlink()
    with pytest.raises(HistoryGoneError, match="can no longer be read"):
        miscopied_columns(snapshot)
