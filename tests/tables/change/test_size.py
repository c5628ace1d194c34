"""How large a change is by the log, held against the change that is really read."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.changes import read_changes
from impctl.tables.log import ChangeSize, Commits, change_size, is_of_spark, read_commits
from impctl.tables.source import open_source


@pytest.mark.slow
@pytest.mark.parametrize("feed", ["true", "false"])
def test_rows_by_the_log_are_the_rows_read(tmp_path: Path, feed: str) -> None:
    path = str(tmp_path / "t")
    rows = pa.table({"a": [1, 2, 3], "b": [1, 1, 1]})
    write_deltalake(path, rows, configuration={"delta.enableChangeDataFeed": feed})
    write_deltalake(path, rows, mode="append")
    DeltaTable(path).update(updates={"b": "2"}, predicate="a = 1")
    DeltaTable(path).delete("a = 2")
    DeltaTable(path).optimize.compact()
    source = open_source("t", path)
    for since in range(source.version):
        for until in range(since + 1, source.version + 1):
            at = open_source("t", path)
            commits = read_commits(at, since, until)
            assert commits is not None
            size = change_size(commits)
            assert size.files == 0 or size.bytes > 0
            if until == since + 1:
                read = read_changes(
                    at, since, until, ("a", "b"), table_id=at.table_id,
                    with_versions=False, commits=commits, net_by=("a", "b"),
                )  # fmt: skip
                known = size.rows is not None
                assert size.rows == (read.rows if known else None), (since, until)
                # deltalake does not say how many rows a file had that it replaced.
                assert known or feed == "false"


def commit(*actions: dict[str, object]) -> Commits:
    return Commits(("\n".join(json.dumps(action) for action in actions),), "t", 0)


def file(path: str, rows: int | None, deleted: int = 0, **more: object) -> dict[str, object]:
    stats = None if rows is None else json.dumps({"numRecords": rows})
    vector = {"cardinality": deleted} if deleted else None
    entry = {"path": path, "size": 5, "stats": stats, "deletionVector": vector}
    return {**entry, "dataChange": True, **more}


@pytest.mark.parametrize(
    ("actions", "size"),
    [
        ([{"add": file("a", 7)}], ChangeSize(7, 1, 5)),
        ([{"add": file("a", 7, deleted=3)}, {"remove": file("a", 7)}], ChangeSize(3, 2, 10)),
        ([{"add": file("a", 7)}, {"remove": file("b", None)}], ChangeSize(None, 2, 10)),
        ([{"add": file("a", 7, dataChange=False)}], ChangeSize(0, 0, 0)),
        ([{"cdc": {"path": "c", "size": 9}}, {"add": file("a", 7)}], ChangeSize(None, 1, 9)),
        (
            [
                {"commitInfo": {"operationMetrics": {"numUpdatedRows": "2"}}},
                {"cdc": {"path": "c", "size": 9}},
            ],
            ChangeSize(4, 1, 9),
        ),
        ([{"commitInfo": {"operationMetrics": "?"}}, {"add": file("a", 1)}], ChangeSize(1, 1, 5)),
        ([{"add": {"path": "a", "stats": "no json", "size": None}}], ChangeSize(None, 1, 0)),
    ],
)
def test_what_the_log_tells(actions: list[dict[str, object]], size: ChangeSize) -> None:
    assert change_size(commit(*actions)) == size


@pytest.mark.parametrize(
    ("actions", "only_move_rows"),
    [
        (
            [{"add": file("a", 7, dataChange=False)}, {"remove": file("b", 7, dataChange=False)}],
            True,
        ),
        ([{"add": file("a", 7)}], False),
        ([{"add": {"path": "a", "size": 5}}], False),
        (
            [
                {"cdc": {"path": "c", "size": 9, "dataChange": False}},
                {"add": file("a", 7, dataChange=False)},
            ],
            False,
        ),
        ([{"metaData": {}}, {"add": file("a", 7, dataChange=False)}], False),
    ],
)
def test_only_what_says_so_moves_rows(
    actions: list[dict[str, object]], only_move_rows: bool
) -> None:
    assert commit(*actions).only_move_rows is only_move_rows


def test_a_protocol_alone_may_change_how_a_table_is_read() -> None:
    assert commit({"protocol": {"minReaderVersion": 3}}).may_change_metadata
    assert commit({"metaData": {}}).may_change_metadata
    assert not commit({"add": file("a", 7)}).may_change_metadata


def test_a_commit_is_of_spark_where_all_that_is_said_of_it_says_so() -> None:
    spark, other = (("commitInfo", {"engineInfo": name}) for name in ("Apache-Spark/4", "delta-rs"))
    assert is_of_spark([spark, ("add", {})])
    assert not is_of_spark([spark, other])
    assert not is_of_spark([("add", {})])
