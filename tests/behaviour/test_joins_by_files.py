"""Joins whose sides are read from files, on real Delta tables: the same sketches as with an index.

Every type a join key may have is looked for in files and found; no command starts Spark.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from impctl.service.context import OwnSession
from tests.behaviour.typed_joins import QUERIES, change, write_workload
from tests.support.kept_workload import stored
from tests.support.run_cli import Capsys, Cli

TURNS = 2


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_spark(*_: object) -> None:
        raise AssertionError("Spark was asked for")

    monkeypatch.setattr(OwnSession, "open", no_spark)


def both(folder: Path, capsys: Capsys, names: Iterable[str]) -> Cli:
    """Each of these queries, joined by files and by an index."""
    queries = [
        (f"{name}_{join}", QUERIES[name], join) for name in names for join in ("files", "index")
    ]
    return Cli(capsys, write_workload(folder, queries))


def assert_alike(folder: Path) -> None:
    for name in QUERIES:
        by_files, by_index = (stored(folder, f"{name}_{join}") for join in ("files", "index"))
        assert by_files.versions == by_index.versions
        mine, theirs = (
            {sketch.access: set(sketch.fragments.ids) for sketch in one.sketches}
            for one in (by_files, by_index)
        )
        assert mine == theirs, name


@pytest.mark.slow
def test_every_type_of_key_is_found_in_files(tmp_path: Path, capsys: Capsys) -> None:
    cli = both(tmp_path, capsys, QUERIES)
    captured = cli.good("capture").results
    assert {r["mode"] for r in captured} == {"exact"}
    assert_alike(tmp_path)
    rng = random.Random(5)
    for turn in range(TURNS):
        change(tmp_path, rng, turn)
        for result in cli.good("maintain").results:
            assert result["action"] == "exact", result
        assert_alike(tmp_path)
        if turn == 0:
            for table in ("t", "u"):
                DeltaTable(str(tmp_path / table)).optimize.compact()


def test_what_is_kept_of_a_side_that_is_read_is_a_filter(tmp_path: Path, capsys: Capsys) -> None:
    cli = both(tmp_path, capsys, ["two"])
    cli.good("capture")
    kept = {r["query"]: r for r in cli.good("explain").results}
    assert {side["strategy"] for side in kept["two_files"]["joins"]} == {"files"}
    assert {side["strategy"] for side in kept["two_index"]["joins"]} == {"index"}
    assert stored(tmp_path, "two_files").state_meta["from_files"] == ["join0.left", "join0.right"]
    assert "from_files" not in stored(tmp_path, "two_index").state_meta
