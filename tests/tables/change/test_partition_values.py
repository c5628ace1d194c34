"""Changes of partitioned tables: values come from the log, whatever the folders are called."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.changes import read_changes
from impctl.tables.rows import read_rows
from impctl.tables.source import open_source
from tests.tables.bags import bag, check
from tests.tables.change.test_changes import FEED, make

PLAIN_KEYS = ["001", None, "", "1e3"]
ODD_KEYS = ["A/A", None, "x y", "é%", "x=y"]


@pytest.mark.parametrize(
    ("keys", "configuration", "method"),
    [
        (PLAIN_KEYS, FEED, "change_feed"),
        (PLAIN_KEYS, None, "file_diff"),
        # deltalake 1.6.6 does not decode the paths of its change feed; the files still answer.
        (ODD_KEYS, FEED, "file_diff"),
        (ODD_KEYS, None, "file_diff"),
    ],
)
def test_partition_values_come_from_the_log(
    tmp_path: Path, keys: list[str | None], configuration: dict[str, str] | None, method: str
) -> None:
    data = pa.table({"k": keys, "v": list(range(len(keys)))})
    path = make(tmp_path / "t", data, partition_by=["k"], configuration=configuration)
    write_deltalake(path, data, mode="append")
    DeltaTable(path).delete("v > 1")
    source = open_source("t", path)
    for since in range(2):
        check(source, since, 2, method)
    # The protocol reads an empty partition value as NULL, whichever way it is read.
    wanted = {key or None for key in keys}
    changes = read_changes(source, 0, 1, ["k", "v"])
    assert set(changes.table.column("k").to_pylist()) == wanted
    assert set(read_rows(source.snapshot(1), ["k"]).column("k").to_pylist()) == wanted


@pytest.mark.parametrize("ways", [(["g"], []), ([], ["g"]), ([], ["g"], [])])
def test_a_column_that_was_or_became_a_partition(
    tmp_path: Path, ways: tuple[list[str], ...]
) -> None:
    """Its values stand in the log for some files of the range, and in others in the files."""
    data = pa.table({"g": ["a", "b"], "v": [1, 2]})
    path = make(tmp_path / "t", data, partition_by=ways[0], configuration=FEED)
    for by in ways[1:]:
        write_deltalake(
            path, data.slice(1), mode="overwrite", partition_by=by, schema_mode="overwrite"
        )
    source = open_source("t", path)
    assert list(source.snapshot().partition_columns) == ways[-1]
    check(source, 0, len(ways) - 1, "file_diff")


def test_typed_partition_values(tmp_path: Path) -> None:
    data = pa.table(
        {
            "d": pa.array([0, 19000], pa.int32()).cast(pa.date32()),
            "t": pa.array([1, -1_000_001], pa.timestamp("us")),
            "m": pa.array(["1.50", "7.25"]).cast(pa.decimal128(10, 2)),
            "b": [True, False],
            "f": [1.5, float("nan")],
            "v": [1, 2],
        }
    )
    path = make(tmp_path / "t", data, partition_by=["d", "t", "m", "b", "f"], configuration=FEED)
    write_deltalake(path, data, mode="append")
    source = open_source("t", path)
    assert bag(read_rows(source.snapshot(0), data.column_names)) == bag(data)
    check(source, 0, 1, "file_diff")  # colons of times are encoded in paths, see ODD_KEYS
