"""Rows that others copied from file to file, and whether they are still the same rows."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.changes import read_changes
from impctl.tables.log import has_faithful_copies, read_commits
from impctl.tables.snapshot import CHANGE_FEED
from impctl.tables.source import open_source
from tests.tables import handmade

FEED = {CHANGE_FEED: "true"}
OF_SPARK = {"commitInfo": {"engineInfo": "Apache-Spark/3.5.0 Delta-Lake/3.1.0"}}
OF_OTHERS = {"commitInfo": {"engineInfo": "delta-rs:py-1.6.6"}}
NESTED = {"type": "struct", "fields": [handmade.field("a", "long")]}
FAR = pa.array([datetime(9999, 12, 31, tzinfo=UTC)], pa.timestamp("us", tz="UTC"))
OLD = {"org.apache.spark.version": "2.4.8"}


def put(table: Path, kind: Any, data: pa.Table, **options: Any) -> None:
    """A table with the columns `id` and `v` of one file, which is `data`."""
    handmade.create(table, {"id": "long", "v": kind}, configuration=FEED)
    handmade.commit(table, 1, handmade.added(table, "a.parquet", data, **options))


def rewrite(table: Path, who: dict[str, Any], *, moves: bool, is_gone: bool = False) -> None:
    """The file replaced by a copy, in which another reader's `v` stands."""
    data_change = {"dataChange": not moves}
    added = handmade.added(table, "b.parquet", pa.table({"id": [1]}), data_change)
    if is_gone:
        (table / "a.parquet").unlink()
    handmade.commit(table, 2, who, handmade.remove("a.parquet", **data_change), added)


def misread(table: Path, case: str) -> None:
    ids = {"id": pa.array([1])}
    match case:
        case "INT96":
            data = pa.table({**ids, "v": FAR})
            put(table, "timestamp", data, use_deprecated_int96_timestamps=True)
        case "old calendar":
            data = pa.table({**ids, "v": pa.array([date(1, 1, 1)])}).replace_schema_metadata(OLD)
            put(table, "date", data)
        case "other letters":
            put(table, "long", pa.table({**ids, "V": [7]}))
        case "nested in other letters":
            put(table, NESTED, pa.table({**ids, "v": [{"A": 7}]}))
        case _:
            put(table, "long", pa.table({**ids, "v": [7]}))


MISREAD = ["INT96", "old calendar", "other letters", "nested in other letters"]


def is_believed(table: Path) -> bool:
    source = open_source("t", str(table))
    commits = read_commits(source, 1, 2)
    assert commits is not None
    return has_faithful_copies(commits, source.snapshot())


@pytest.mark.parametrize("case", MISREAD)
def test_copies_of_what_others_misread_are_not_believed(tmp_path: Path, case: str) -> None:
    misread(tmp_path, case)
    rewrite(tmp_path, OF_OTHERS, moves=True)
    assert not is_believed(tmp_path)
    rewrite(tmp_path, {"commitInfo": {}}, moves=False)
    assert not is_believed(tmp_path)
    rewrite(tmp_path, OF_SPARK, moves=True)
    assert is_believed(tmp_path)


def test_other_copies_are_while_the_original_is_there(tmp_path: Path) -> None:
    misread(tmp_path, "nothing")
    rewrite(tmp_path, OF_OTHERS, moves=True)
    assert is_believed(tmp_path)
    rewrite(tmp_path, OF_OTHERS, moves=True, is_gone=True)
    assert not is_believed(tmp_path)


@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("column", ["id", "v"])
def test_their_rows_are_then_compared_file_by_file(
    tmp_path: Path, column: str, moves: bool
) -> None:
    """In every column: a sketch kept by touch reads its own alone."""
    misread(tmp_path, "other letters")
    rewrite(tmp_path, OF_OTHERS, moves=moves)
    changes = read_changes(open_source("t", str(tmp_path)), 1, 2, [column])
    assert (changes.method, changes.weights.tolist()) == ("file_diff", [-1, 1])
    assert changes.table.column(column).to_pylist() == {"id": [1, 1], "v": [7, None]}[column]


def test_rows_copied_into_the_feed_alone_are_not_believed(tmp_path: Path) -> None:
    """All rows of a file deleted, so that no data file takes its place."""
    misread(tmp_path, "other letters")
    told = pa.table({"id": [1], "v": pa.nulls(1, pa.int64()), "_change_type": ["delete"]})
    name = handmade.write_file(tmp_path, "_change_data/c.parquet", told)
    change = {"cdc": {"path": name, "partitionValues": {}, "size": 1, "dataChange": False}}
    handmade.commit(tmp_path, 2, OF_OTHERS, handmade.remove("a.parquet"), change)
    changes = read_changes(open_source("t", str(tmp_path)), 1, 2, ["v"])
    assert (changes.table.column("v").to_pylist(), changes.weights.tolist()) == ([7], [-1])


def test_copies_in_tables_with_deletion_vectors_are_not_believed(tmp_path: Path) -> None:
    misread(tmp_path, "nothing")
    rewrite(tmp_path, OF_OTHERS, moves=True)
    assert is_believed(tmp_path)
    handmade.commit(tmp_path, 3, handmade.protocol("deletionVectors"))
    assert not is_believed(tmp_path)


def test_one_commit_of_several_is_enough(tmp_path: Path) -> None:
    misread(tmp_path, "INT96")
    rewrite(tmp_path, OF_OTHERS, moves=True)
    handmade.commit(tmp_path, 3, OF_SPARK, handmade.add("a.parquet", 1))
    source = open_source("t", str(tmp_path))
    commits = read_commits(source, 1, 3)
    assert commits is not None
    assert not has_faithful_copies(commits, source.snapshot())


def test_what_deltalake_makes_of_respelled_columns(tmp_path: Path) -> None:
    """Why its copies are not believed."""
    misread(tmp_path, "other letters")
    table = DeltaTable(str(tmp_path))
    write_deltalake(table, pa.table({"id": [2], "v": [8]}), mode="append")
    DeltaTable(str(tmp_path)).optimize.compact()
    source = open_source("t", str(tmp_path))
    assert source.version == 3
    changes = read_changes(source, 2, 3, ["v"])
    assert changes.method == "file_diff"
    signed = list(zip(changes.table.column("v").to_pylist(), changes.weights.tolist(), strict=True))
    assert sorted(signed, key=str) == [(7, -1), (8, -1), (8, 1), (None, 1)]


def test_a_commit_may_hold_line_separators_of_unicode(tmp_path: Path) -> None:
    misread(tmp_path, "nothing")
    rewrite(tmp_path, {"commitInfo": {"operation": "a\u2028b\u0085c"}}, moves=False)
    log, lines = handmade.entry(tmp_path, 2), handmade.actions_of(tmp_path, 2)
    log.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    assert "\u2028" in log.read_text(encoding="utf-8")
    changes = read_changes(open_source("t", str(tmp_path)), 1, 2, ["v"])
    assert changes.weights.tolist() == [-1, 1]
