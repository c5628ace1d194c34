"""The change feed read from the files that commits name."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.changes import FeedRows, read_feed_files
from impctl.tables.log import Commits, read_commits
from impctl.tables.snapshot import CHANGE_FEED
from impctl.tables.source import DeltaSource, open_source
from tests.tables.bags import weighted_bag

ROWS = pa.table({"id": [1, 2, 3], "p": ["x", "y", "y"], "price": [1.5, None, float("nan")]})


def history(path: Path, **options: object) -> DeltaSource:
    write_deltalake(  # type: ignore[call-overload]  # passed through
        str(path), ROWS, configuration={CHANGE_FEED: "true"}, **options
    )
    write_deltalake(str(path), ROWS, mode="append")
    DeltaTable(str(path)).update(updates={"price": "9.0"}, predicate="id = 1")
    DeltaTable(str(path)).delete("id = 2")
    DeltaTable(str(path)).optimize.compact()
    DeltaTable(str(path)).restore(1)
    write_deltalake(str(path), ROWS.slice(1), mode="overwrite")
    return open_source("t", str(path))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> DeltaSource:
    """That history, for tests that only read."""
    return history(tmp_path_factory.mktemp("fed") / "t")


def read(source: DeltaSource, since: int, until: int, columns: list[str]) -> FeedRows | None:
    commits = read_commits(source, since, until)
    assert commits is not None
    return read_feed_files(commits, since, source.snapshot(until), columns)


@pytest.mark.slow
def test_same_rows_as_the_reader_of_deltalake(source: DeltaSource) -> None:
    for since in range(source.version):
        for until in range(since + 1, source.version + 1):
            result = read(source, since, until, ["id", "price"])
            feed = pa.table(source.delta.load_cdf(starting_version=since + 1, ending_version=until))
            came = pc.is_in(
                feed.column("_change_type").cast(pa.string()),
                value_set=pa.array(["insert", "update_postimage"]),
            )
            weights = came.to_numpy().astype(np.int64) * 2 - 1
            expected = weighted_bag(feed.select(["id", "price"]), weights)
            assert weighted_bag(result.table, result.weights) == expected
            assert result.versions is not None
            mine, theirs = result.versions, feed.column("_commit_version").to_numpy()
            assert sorted(mine.tolist()) == sorted(theirs.tolist())


def test_rows_without_columns_are_counted(source: DeltaSource) -> None:
    result = read(source, 0, 1, [])
    assert (result.table.num_rows, result.weights.tolist()) == (3, [1, 1, 1])


@pytest.mark.slow
def test_partition_columns_are_left_to_deltalake(tmp_path: Path) -> None:
    source = history(tmp_path / "t", partition_by=["p"])
    assert read(source, 0, 1, ["id", "p"]) is None
    assert read(source, 0, 1, ["id"]) is not None


def test_a_file_that_is_gone_is_left_to_others(source: DeltaSource, tmp_path: Path) -> None:
    source = open_source("t", str(shutil.copytree(source.path, tmp_path / "t")))
    for file in (tmp_path / "t").rglob("*.parquet"):
        file.unlink()
    assert read(source, 0, 1, ["id"]) is None


@pytest.mark.parametrize("name", ["add", "remove"])
def test_deletion_vectors_without_change_data_are_left_to_others(
    source: DeltaSource, name: str
) -> None:
    path = next(Path(source.path).glob("*.parquet")).name
    text = f'{{"{name}": {{"path": "{path}", "dataChange": true, "deletionVector": {{}}}}}}'
    assert read_feed_files(Commits((text,), "t", 0), 0, source.snapshot(), ["id"]) is None


def test_an_unknown_kind_of_change_is_left_to_others(source: DeltaSource, tmp_path: Path) -> None:
    source = open_source("t", str(shutil.copytree(source.path, tmp_path / "t")))
    pq.write_table(
        ROWS.append_column("_change_type", pa.array(["insert", "upsert", "insert"])),
        tmp_path / "t" / "change.parquet",
    )
    text = '{"cdc": {"path": "change.parquet", "dataChange": false}}'
    assert read_feed_files(Commits((text,), "t", 0), 0, source.snapshot(), ["id"]) is None
