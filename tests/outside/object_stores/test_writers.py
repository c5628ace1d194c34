"""Batches in an object store under other writers: each is in once, and in the right table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import write_deltalake

from impctl.errors import RetryableError, TableRecreatedError
from impctl.tables.source import open_source
from impctl.tables.write.apply import (
    AppliedUpdate,
    UpdateKind,
    UpdateRequest,
    WrittenTable,
    commit_update,
    prepare_batch,
    prepare_update,
)
from tests.outside.object_stores.lake import ROWS, Lake, appends

ROOT = Path(__file__).parents[3]
INSERT = UpdateRequest("t", UpdateKind.INSERT, ({"k": 7},), name="b")
DELETE = UpdateRequest("t", UpdateKind.DELETE, where="k = 7", name="d")


def table(lake: Lake) -> WrittenTable:
    return WrittenTable(open_source("t", lake.uri("t"), lake.options))


@pytest.mark.slow
def test_of_two_runs_at_once_each_batch_is_in_once(lake: Lake) -> None:
    place = lake.workload(lake.make("t"), appends(6))
    lake.server.delay(20)
    command = [
        sys.executable,
        "-P",
        "-m",
        "impctl",
        "apply",
        str(place.cli.workload),
        "--all",
        "--json",
    ]
    runs = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    codes = {run.wait(60) for run in runs}
    # A batch that both commit at the same moment ends one of the runs, to be run again.
    assert codes <= {0, 6}
    place.cli.good("apply", "--all")
    pylist = lake.delta("t").to_pyarrow_table(columns=["k"]).column("k").to_pylist()
    assert sorted(k for k in pylist if k >= 1000) == [1000 + at for at in range(6)]


@pytest.mark.slow
def test_of_two_commits_at_once_one_gets_in(lake: Lake) -> None:
    lake.make("t")
    one, two = (prepare_batch(table(lake), INSERT) for _ in range(2))
    assert commit_update(one) == AppliedUpdate(1, inserted=1)
    with pytest.raises(RetryableError, match="Another writer changed"):
        commit_update(two)
    source = open_source("t", lake.uri("t"), lake.options)
    assert commit_update(prepare_update(source, INSERT)) == AppliedUpdate(1)


@pytest.mark.slow
def test_what_others_write_in_between_is_seen(lake: Lake) -> None:
    lake.make("t")
    followed = table(lake)
    commit_update(prepare_batch(followed, INSERT))
    write_deltalake(lake.uri("t"), ROWS, mode="append", storage_options=lake.options)
    done = commit_update(prepare_batch(followed, DELETE))
    assert done == AppliedUpdate(3, deleted=3)


@pytest.mark.slow
@pytest.mark.parametrize("request_of", [INSERT, DELETE], ids=["insert", "delete"])
def test_a_table_put_in_its_place_is_not_written(lake: Lake, request_of: UpdateRequest) -> None:
    lake.make("t")
    followed = table(lake)
    commit_update(prepare_batch(followed, UpdateRequest("t", UpdateKind.INSERT, ({"k": 1},))))
    ready = prepare_batch(followed, request_of)
    lake.empty("t")
    lake.make("t")
    write_deltalake(lake.uri("t"), ROWS, mode="append", storage_options=lake.options)
    with pytest.raises(TableRecreatedError):
        commit_update(ready)
    assert lake.delta("t").version() == 1
