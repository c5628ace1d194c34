"""The mark of a table's files: the same whatever the order, another for other files, additive."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.changes import files_mark, is_reached
from impctl.tables.log import Commits, read_commits
from impctl.tables.snapshot import Snapshot
from impctl.tables.source import open_source
from tests.tables.vectored import VectoredTable

ROWS = pa.table({"id": pa.array(range(40), pa.int64()), "p": ["a b", "ü", "c/d", "50%"] * 10})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Appends, a deletion, an update, OPTIMIZE and RESTORE over escaped partition folders.

    Tests only read it.
    """
    path = str(tmp_path_factory.mktemp("marked") / "t")
    for at in range(4):
        write_deltalake(path, ROWS.slice(at * 8), mode="append", partition_by=["p"])
    delta = DeltaTable(path)
    delta.delete("id = 13")
    delta.update(updates={"id": "id + 100"}, predicate="id < 5")
    delta.optimize.compact()
    delta.restore(3)
    return path


def _commits(path: str, since: int, until: int) -> Commits:
    result = read_commits(open_source("t", path), since, until)
    assert result is not None
    return result


@pytest.mark.slow
def test_commits_lead_from_every_version_to_every_later_one(path: str) -> None:
    source = open_source("t", path)
    snapshots = [source.snapshot(version) for version in range(source.version + 1)]
    marks = [files_mark(snapshot) for snapshot in snapshots]
    assert marks[3] == marks[-1]
    assert len({mark.digest for mark in marks}) == len(marks) - 1
    for since, mark in enumerate(marks):
        for until in range(since + 1, len(marks)):
            commits = _commits(path, since, until)
            assert is_reached(mark, commits, snapshots[until]) is True
            assert is_reached(marks[since - 1], commits, snapshots[until]) in (
                marks[since - 1].digest == mark.digest,
            )


def test_the_same_files_in_another_order_and_place_have_the_same_mark(path: str) -> None:
    snapshot = open_source("t", path).snapshot()
    order = list(range(len(snapshot.uris)))
    random.Random(1).shuffle(order)
    uris = tuple(snapshot.uris[at].replace(snapshot.path, "/elsewhere/t") for at in order)
    moved = replace(snapshot, path="/elsewhere/t", uris=uris, actions=snapshot.actions.take(order))
    assert files_mark(moved) == files_mark(snapshot)


def test_a_size_a_name_and_a_deleted_row_make_another_mark(path: str) -> None:
    snapshot = open_source("t", path).snapshot()
    sizes = snapshot.actions.column("size_bytes").to_pylist()
    at = snapshot.actions.schema.get_field_index("size_bytes")
    larger = snapshot.actions.set_column(at, "size_bytes", pa.array([sizes[0] + 1, *sizes[1:]]))
    others: list[Snapshot] = [
        replace(snapshot, actions=larger),
        replace(snapshot, uris=(snapshot.uris[0] + "x", *snapshot.uris[1:])),
        replace(snapshot, uris=snapshot.uris[1:], actions=snapshot.actions.slice(1)),
        replace(snapshot, deletions={snapshot.uris[0]: np.array([0])}),
    ]
    digests = {files_mark(other).digest for other in [snapshot, *others]}
    assert len(digests) == 5


def test_names_of_any_length_and_number_do_not_depend_on_each_other(path: str) -> None:
    """Files are hashed in pieces as wide as their longest name: that is no part of the mark."""
    snapshot = open_source("t", path).snapshot()
    draw = random.Random(2)
    names = ["x" * draw.randrange(1, 40) + str(at) for at in range(3000)]
    actions = snapshot.actions.slice(0, 1).take([0] * len(names))

    def marked(chosen: list[str]) -> str:
        uris = tuple(f"{snapshot.path}/{name}" for name in chosen)
        return files_mark(replace(snapshot, uris=uris, actions=actions)).digest

    assert marked(names) == marked(sorted(names)) == marked(sorted(names, key=len))
    assert marked(names) != marked([*names[:-1], names[-1] + "y"])


def test_a_removed_file_without_its_size_tells_nothing(path: str) -> None:
    source = open_source("t", path)
    commits = _commits(path, 3, 4)
    lines = [json.loads(line) for line in commits.texts[0].splitlines()]
    for line in lines:
        if "remove" in line:
            del line["remove"]["size"]
    cut = Commits(("\n".join(map(json.dumps, lines)),), "t", 3)
    assert is_reached(files_mark(source.snapshot(3)), cut, source.snapshot(4)) is None


def test_deletion_vectors_that_commits_set(tmp_path: Path) -> None:
    """A file removed and added again with more rows deleted is another file to the mark."""
    rows = pa.table({"id": pa.array(range(30), pa.int64())})
    table = VectoredTable(tmp_path, rows, feed=True)
    table.delete(lambda part: pc.equal(part["id"], 3))
    table.append(rows)
    table.delete(lambda part: pc.less(part["id"], 9))
    source = open_source("t", str(tmp_path))
    marks = [files_mark(source.snapshot(version)) for version in range(4)]
    assert [mark.rows for mark in marks] == [30, 29, 59, 42]
    assert len({mark.digest for mark in marks}) == 4
    for since in range(3):
        commits = _commits(str(tmp_path), since, 3)
        assert is_reached(marks[since], commits, source.snapshot(3))
