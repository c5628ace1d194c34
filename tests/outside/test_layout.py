"""Deletion vectors, mapped columns and partition columns, changed by others.

deltalake writes neither vectors nor mappings: those tables come from Spark (`IMPCTL_FIXTURES`), cut
back to an earlier version for the capture, or their logs are written by hand.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.outside.conftest import FEED
from tests.outside.place import Place, expect_carried, expect_recapture, expect_refused, make_place
from tests.outside.rows import ROWS
from tests.tables import handmade
from tests.tables.bags import fixture_table

pytestmark = pytest.mark.slow

DELETIONS = "SELECT id, COUNT(*) AS n FROM t GROUP BY id HAVING COUNT(*) > 0"
FIXTURES = [
    ("cdf-table-with-cdc-and-dvs", DELETIONS, "id", "{boundaries: [2, 4, 8]}", 0),
    ("cdf-table-with-cdc-and-dvs", DELETIONS, "id", "{boundaries: [2, 4, 8]}", 7),
    ("cdf-table-with-cdc-and-dvs", DELETIONS, "id", "{boundaries: [2, 4, 8]}", 24),
    (
        "table-with-dv-small",
        "SELECT value, COUNT(*) AS n FROM t GROUP BY value HAVING COUNT(*) > 0",
        "value",
        "{boundaries: [1, 5, 9]}",
        0,
    ),
    (
        "table_with_partitioning_mapping",
        "SELECT newid, COUNT(*) AS n FROM t GROUP BY newid HAVING COUNT(*) > 0",
        "newid",
        "{boundaries: [1, 2, 3]}",
        3,
    ),
]


@pytest.mark.parametrize(("name", "sql", "attribute", "ranges", "captured_at"), FIXTURES)
def test_tables_that_spark_wrote(
    name: str,
    sql: str,
    attribute: str,
    ranges: str,
    captured_at: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(fixture_table(name), tmp_path / "t")
    later = tmp_path / "later"
    later.mkdir()
    for entry in (tmp_path / "t" / "_delta_log").iterdir():
        # Commits, checksums and checkpoints of later versions, and the pointer to the last one.
        if entry.name.startswith("_") or int(entry.name[:20]) > captured_at:
            shutil.move(entry, later)
    place = make_place(
        tmp_path, capsys, sql=sql, sketch=attribute, ranges=f"{attribute}: {ranges}"
    ).captured()
    assert place.stored().versions == {"t": captured_at}
    for entry in later.iterdir():
        shutil.move(entry, tmp_path / "t" / "_delta_log")
    assert place.delta.version() > captured_at
    expect_carried(place)


ODD = ["001", "1", "1e3", "A/A", "x y", "é%", "x=y", "", None]


@pytest.mark.parametrize("configuration", [FEED, None], ids=["feed", "files"])
def test_partition_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], configuration: dict[str, str] | None
) -> None:
    """Texts that look like numbers, need escapes in paths, or are NULL (as an empty one is)."""
    path = str(tmp_path / "t")
    rows = pa.table({"k": pa.array(ODD), "v": pa.array(range(len(ODD)))})
    write_deltalake(path, rows, partition_by=["k"], configuration=configuration)
    sql = "SELECT k, COUNT(*) AS n FROM t GROUP BY k HAVING COUNT(*) > 1"
    ranges = 'k: {boundaries: ["1", "2", "x", "y"]}'
    place = make_place(tmp_path, capsys, sql=sql, sketch="k", ranges=ranges).captured()
    for step in (
        lambda: write_deltalake(path, rows.slice(0, 4), mode="append"),
        lambda: write_deltalake(path, rows.slice(4), mode="append"),
        lambda: DeltaTable(path).delete("k = 'A/A' AND v = 3"),
        lambda: DeltaTable(path).delete("k IS NULL"),
        lambda: DeltaTable(path).update(updates={"k": "'001'"}, predicate="k = '1'"),
    ):
        step()
        expect_carried(place)


@pytest.mark.parametrize("configuration", [FEED, None], ids=["feed", "files"])
def test_one_partition_is_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], configuration: dict[str, str] | None
) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, ROWS, partition_by=["g"], configuration=configuration)
    place = make_place(tmp_path, capsys).captured()
    new = ROWS.filter(pa.compute.equal(ROWS["g"], 5))
    new = pa.concat_tables([new, new])
    write_deltalake(path, new, mode="overwrite", predicate="g = 5")
    assert DeltaTable(path).to_pyarrow_table().num_rows == ROWS.num_rows + 2
    expect_carried(place)
    assert place.stored().sketches[0].fragments.ids == (0, 1, 2)


MAPPED = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "9"}
_TYPES = {"g": "integer", "x": "integer", "note": "string", "label": "string"}


def mapped_fields(**physical: str) -> list[dict[str, Any]]:
    """Columns by logical name, each with what it is called in the files."""
    return [
        handmade.field(
            name,
            _TYPES.get(name, "integer"),
            **{
                "delta.columnMapping.physicalName": stored,
                "delta.columnMapping.id": int(stored[-1]),
            },
        )
        for name, stored in physical.items()
    ]


def commit(table: Path, version: int, mode: str = "name", **physical: str) -> None:
    """New columns for the table."""
    settings = {**MAPPED, "delta.columnMapping.mode": mode}
    action = handmade.metadata(mapped_fields(**physical), configuration=settings)
    handmade.commit(table, version, action)


@pytest.fixture
def mapped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    table = tmp_path / "t"
    names = {"g": "col-1", "x": "col-2", "note": "col-3"}
    first = handmade.metadata(mapped_fields(**names), configuration=MAPPED)
    handmade.commit(table, 0, handmade.protocol("columnMapping"), first)
    add_rows(table, 1, ROWS.rename_columns(list(names.values())))
    return make_place(tmp_path, capsys).captured()


def add_rows(table: Path, version: int, rows: pa.Table) -> None:
    name = handmade.write_file(table, f"part-{version}.parquet", rows)
    size = (table / name).stat().st_size
    handmade.commit(table, version, handmade.add(name, rows.num_rows, size))


def test_rows_of_a_mapped_table(mapped: Place) -> None:
    add_rows(mapped.table, 2, ROWS.slice(6, 3).rename_columns(["col-1", "col-2", "col-3"]))
    expect_carried(mapped)


@pytest.mark.parametrize(
    "columns",
    [
        {"g": "col-1", "x": "col-2", "label": "col-3"},
        {"g": "col-1", "x": "col-2"},
        {"g": "col-1", "x": "col-2", "note": "col-4"},
        {"note": "col-3", "extra": "col-5", "g": "col-1", "x": "col-2"},
    ],
    ids=["renamed", "dropped", "replaced", "moved and added"],
)
def test_an_unused_mapped_column(mapped: Place, columns: dict[str, str]) -> None:
    commit(mapped.table, 2, **columns)
    rows = ROWS.slice(7, 2).select(["g", "x"]).rename_columns(["col-1", "col-2"])
    add_rows(mapped.table, 3, rows)
    expect_carried(mapped)


@pytest.mark.parametrize(
    "columns",
    [{"g": "col-1", "y": "col-2", "note": "col-3"}, {"g": "col-1", "note": "col-3"}],
    ids=["renamed", "dropped"],
)
def test_a_used_mapped_column(mapped: Place, columns: dict[str, str]) -> None:
    commit(mapped.table, 2, **columns)
    expect_refused(mapped, 3, "column_unknown", "`x`")


def test_a_used_mapped_column_is_replaced(mapped: Place) -> None:
    """Dropped and added again under its name: the old rows have no value in it."""
    commit(mapped.table, 2, g="col-1", x="col-4", note="col-3")
    expect_recapture(mapped, "schema_changed", "`x`", "was replaced")
    assert mapped.stored().sketches[0].fragments.ids == ()


def test_two_mapped_columns_changed_names(mapped: Place) -> None:
    commit(mapped.table, 2, g="col-2", x="col-1", note="col-3")
    expect_recapture(mapped, "schema_changed", "was replaced")


def test_used_columns_changed_places(mapped: Place) -> None:
    """The state numbers columns in the table's order."""
    commit(mapped.table, 2, x="col-2", g="col-1", note="col-3")
    expect_recapture(mapped, "schema_changed", "`t`", "order of columns")


def test_columns_are_mapped_by_id_from_now_on(mapped: Place) -> None:
    commit(mapped.table, 2, mode="id", g="col-1", x="col-2", note="col-3")
    expect_refused(mapped, 3, "column_mapping_mode", "`t`", "`id`")


def test_names_are_mapped_from_now_on(place: Place) -> None:
    """Files written before keep their names, which are the physical ones."""
    table_id = str(place.delta.metadata().id)
    names = {"g": "g", "x": "x", "note": "note"}
    fields = [
        handmade.field(
            name, _TYPES[name], **{"delta.columnMapping.physicalName": stored,
                                   "delta.columnMapping.id": at}
        )
        for at, (name, stored) in enumerate(names.items(), 1)
    ]  # fmt: skip
    settings = {**MAPPED, **FEED}
    handmade.commit(
        place.table,
        1,
        handmade.protocol("columnMapping", writer=["changeDataFeed"]),
        handmade.metadata(fields, configuration=settings, table_id=table_id),
    )
    add_rows(place.table, 2, ROWS.slice(7, 2))
    expect_carried(place)


def test_a_feature_nobody_knows_is_needed_from_now_on(place: Place) -> None:
    handmade.commit(place.table, 1, handmade.protocol("timeTravelling"))
    expect_refused(place, 3, "reader_feature_unknown", "`timeTravelling`")
