"""Changes over log entries that a change feed's reader takes for something else."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from impctl.tables import change_feed
from impctl.tables.changes import read_changes
from impctl.tables.source import open_source
from tests.tables.bags import check
from tests.tables.vectored import VectoredTable

ROWS = pa.table({"p": ["a"] * 5 + ["b"] * 3, "x": pa.array(range(8), pa.int64())})


@pytest.mark.parametrize("by", [(), ("p",)])
def test_files_with_deletion_vectors_that_come_or_go(tmp_path: Path, by: tuple[str, ...]) -> None:
    table = VectoredTable(tmp_path / "t", ROWS, by=by, feed=True)
    table.delete(lambda rows: pc.less(rows["x"], 3))
    table.delete(lambda rows: pc.less(rows["x"], 4))
    table.delete(lambda rows: pc.equal(rows["p"], "a"))
    table.append(ROWS)
    source = open_source("t", str(table.path))
    for since in range(table.version):
        for until in range(since + 1, table.version + 1):
            is_append = (since, until) == (3, 4)
            check(source, since, until, "change_feed" if is_append else "file_diff")


def test_a_dropped_partition_with_a_deletion_vector(tmp_path: Path) -> None:
    table = VectoredTable(tmp_path / "t", ROWS, by=["p"], feed=True)
    table.delete(lambda rows: pc.less(rows["x"], 3))
    table.drop("p=a")
    found = check(open_source("t", str(table.path)), 1, 2, "file_diff")
    assert found.weights.tolist() == [-1, -1]


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"size": 700},
        {"partitionValues": {"p": "a"}},
        {"extendedFileMetadata": True, "partitionValues": {"p": "a"}},
    ],
)
@pytest.mark.parametrize("is_foreseen", [True, False])
def test_a_removed_file_of_which_the_log_tells_little(
    tmp_path: Path,
    told: dict[str, object],
    is_foreseen: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """deltalake's reader of the feed refuses such an entry, or panics."""
    table = VectoredTable(tmp_path / "t", ROWS, by=["p"], feed=True)
    table.remove_bare("p=a", **told)
    if not is_foreseen:
        monkeypatch.setattr(change_feed, "_is_told_in_full", lambda commits: True)
    check(open_source("t", str(table.path)), 0, 1, "file_diff")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_wish_to_stop_is_no_failure_of_the_feed(
    tmp_path: Path, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = VectoredTable(tmp_path / "t", ROWS, by=["p"], feed=True)
    table.append(ROWS)

    def stop(*_: object, **__: object) -> None:
        raise error

    source = open_source("t", str(table.path))
    monkeypatch.setattr(type(source.delta), "load_cdf", stop)
    with pytest.raises(error):
        read_changes(source, 0, 1, ["p"])
