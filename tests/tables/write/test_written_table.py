"""A table followed from batch to batch is the one that stands there, or is not written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.errors import TableError, TableRecreatedError
from impctl.tables import source as source_module
from impctl.tables.footers import miscopied_columns
from impctl.tables.source import open_source
from impctl.tables.write import apply
from impctl.tables.write.apply import (
    AppliedUpdate,
    PreparedUpdate,
    UpdateKind,
    UpdateRequest,
    WrittenTable,
    commit_update,
    prepare_batch,
)
from tests.tables import handmade
from tests.tables.handmade import entry

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "x": pa.array([1, 2, 3], pa.int64())})

KINDS: dict[UpdateKind, dict[str, Any]] = {
    UpdateKind.INSERT: {"rows": ({"id": 9},)},
    UpdateKind.UPDATE: {"where": "id = 1", "assignments": {"x": "x + 1"}},
    UpdateKind.DELETE: {"where": "id = 1"},
}


@pytest.fixture
def path(tmp_path: Path) -> str:
    made = str(tmp_path / "t")
    write_deltalake(made, ROWS)
    return made


def opened(path: str) -> WrittenTable:
    return WrittenTable(open_source("t", path))


def other(path: str, *, mode: Any = "append") -> None:
    write_deltalake(path, ROWS, mode=mode)


def prepared(
    table: WrittenTable, kind: UpdateKind = UpdateKind.INSERT, name: str | None = "b"
) -> PreparedUpdate:
    return prepare_batch(table, UpdateRequest("t", kind, name=name, **KINDS[kind]))


def insert(table: WrittenTable, name: str | None = "b") -> AppliedUpdate:
    return commit_update(prepared(table, name=name))


def test_it_is_opened_once_whatever_is_written(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []
    load = source_module.DeltaTable

    def counted(*given: Any, **options: Any) -> DeltaTable:
        loads.append(given[0])
        return load(*given, **options)

    monkeypatch.setattr(source_module, "DeltaTable", counted)
    table = opened(path)
    assert [insert(table, f"b{at}").version for at in range(3)] == [1, 2, 3]
    assert commit_update(prepared(table, UpdateKind.UPDATE)).version == 4
    assert commit_update(prepared(table, UpdateKind.DELETE)).version == 5
    assert insert(table, "b1") == AppliedUpdate(2)
    assert len(loads) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["b", None])
def test_what_others_write_in_between_is_seen(path: str, name: str | None) -> None:
    table = opened(path)
    insert(table, None if name is None else "a")
    other(path)
    before = prepared(table, UpdateKind.DELETE, name)
    assert (before.source.version, before.matched and before.matched.rows) == (2, 2)
    assert commit_update(before) == AppliedUpdate(3, deleted=2)
    other(path)
    assert prepared(table, UpdateKind.DELETE, "c").source.version == 4


def test_a_batch_that_another_run_brought_in_is_left_out(path: str) -> None:
    table = opened(path)
    insert(table, "a")
    insert(opened(path), "b")
    assert insert(table, "b") == AppliedUpdate(2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(UpdateKind))
@pytest.mark.parametrize(("has_own", "commits"), [(True, 0), (True, 1), (False, 4)])
def test_a_table_put_in_its_place_is_not_written(
    path: str, kind: UpdateKind, has_own: bool, commits: int
) -> None:
    table = opened(path)
    if has_own:
        insert(table, "a")
    ready = prepared(table, kind)
    shutil.rmtree(path)
    write_deltalake(path, ROWS)
    for _ in range(commits):
        other(path)
    with pytest.raises(TableRecreatedError) as raised:
        commit_update(ready)
    assert DeltaTable(path).version() == commits
    assert "nothing was written to it; to write to it, run" in str(raised.value.hint)


@pytest.mark.parametrize("has_own", [False, True])
def test_a_backup_that_went_another_way_is_not_written(path: str, has_own: bool) -> None:
    table = opened(path)
    shutil.copytree(path, path + "-backup")
    if has_own:
        insert(table, "a")
    else:
        other(path)
    ready = prepared(table)
    shutil.rmtree(path)
    shutil.move(path + "-backup", path)
    for _ in range(2):
        other(path)
    assert str(DeltaTable(path).metadata().id) == ready.source.table_id
    with pytest.raises(TableRecreatedError):
        commit_update(ready)
    assert DeltaTable(path).version() == 2


def test_a_table_put_in_its_place_between_batches_is_the_table(path: str) -> None:
    table = opened(path)
    insert(table, "a")
    shutil.copytree(path, path + "-backup")
    insert(table, "b")
    shutil.rmtree(path)
    shutil.move(path + "-backup", path)
    # The backup lacks `b`, whatever the run remembers.
    assert insert(table, "b") == AppliedUpdate(2, inserted=1)
    shutil.rmtree(path)
    write_deltalake(path, ROWS.select(["id"]))
    for _ in range(4):
        write_deltalake(path, ROWS.select(["id"]), mode="append")
    assert insert(table, "b") == AppliedUpdate(5, inserted=1)
    assert DeltaTable(path).to_pyarrow_table().column_names == ["id"]


def test_a_backup_that_went_on_between_batches_is_read_as_it_is(path: str) -> None:
    table = opened(path)
    shutil.copytree(path, path + "-backup")
    insert(table, "a")
    shutil.rmtree(path)
    shutil.move(path + "-backup", path)
    for _ in range(2):
        other(path)
    result = prepared(table, UpdateKind.DELETE)
    # Neither the row of `a` nor any other of the log that is gone.
    assert result.table.snapshot().rows == DeltaTable(path).count() == 9
    assert commit_update(result) == AppliedUpdate(3, deleted=3)


def test_a_batch_that_came_in_before_the_own_commit_is_found(path: str) -> None:
    table = opened(path)
    insert(table, "a")
    ready = prepared(table)
    insert(opened(path), "x")
    assert commit_update(ready) == AppliedUpdate(3, inserted=1)
    assert insert(table, "x") == AppliedUpdate(2)


def test_an_entry_that_was_cleaned_away_stops_no_run(path: str) -> None:
    table = opened(path)
    insert(table, "a")
    other(path)
    DeltaTable(path).create_checkpoint()
    for version in (0, 1):
        entry(path, version).unlink()
    assert insert(table, "c") == AppliedUpdate(3, inserted=1)
    assert insert(table, "a") == AppliedUpdate(1)


def test_what_cannot_be_told_by_an_entry_is_told_by_the_table(path: str) -> None:
    other(path)
    ready = prepared(opened(path))
    text = entry(path, 1).read_text()
    entry(path, 1).unlink()
    with pytest.raises(TableRecreatedError):
        ready.table.check_unmoved()  # at version 0 again
    entry(path, 1).write_text(text)
    ready.table.check_unmoved()


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(UpdateKind))
def test_what_the_run_wrote_is_copied_faithfully(path: str, kind: UpdateKind) -> None:
    table = opened(path)
    for at, each in enumerate((UpdateKind.INSERT, UpdateKind.UPDATE, kind)):
        commit_update(prepared(table, each, f"b{at}"))
    prepared(table, UpdateKind.DELETE, "last")
    assert not table.unsure_files()
    # Taken for granted of the run's own files, so it had better be true.
    assert not miscopied_columns(open_source("t", path).snapshot()).columns


def add_misspelt(path: str) -> None:
    file = handmade.added(Path(path), "a.parquet", pa.table({"ID": [4], "x": [4]}))
    handmade.commit(path, DeltaTable(path).version() + 1, file)


def test_files_of_others_are_looked_at(path: str) -> None:
    table = opened(path)
    commit_update(prepared(table, UpdateKind.UPDATE, "a"))
    prepared(table, UpdateKind.DELETE, "looks at all")
    other(path)
    assert len(prepared(table, UpdateKind.INSERT).table.unsure_files()) == 1
    add_misspelt(path)
    with pytest.raises(TableError, match="writes the name of column `id`"):
        prepared(table, UpdateKind.DELETE)


def test_an_own_commit_makes_no_other_file_sound(path: str) -> None:
    add_misspelt(path)
    table = opened(path)
    insert(table, "a")
    with pytest.raises(TableError, match="writes the name of column `id`"):
        prepared(table, UpdateKind.DELETE)


def test_a_commit_that_is_in_fails_for_nothing_that_comes_after_it(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = opened(path)
    ready = prepared(table, name=None)
    read = apply.read_entry

    def broken(source: Any, version: int) -> str:
        if version == 1:
            raise OSError("the network is down")
        return read(source, version)

    with monkeypatch.context() as patch:
        patch.setattr(apply, "read_entry", broken)
        assert commit_update(ready) == AppliedUpdate(1, inserted=1)
    # Without that entry the table is opened again to see that it is the same.
    assert insert(table, "c") == AppliedUpdate(2, inserted=1)


def test_after_a_commit_that_got_in_in_spite_of_a_failure_the_run_goes_on(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*given: Any, **options: Any) -> None:
        write_deltalake(*given, **options)
        raise OSError("no space left")

    table = opened(path)
    with monkeypatch.context() as patch:
        patch.setattr("impctl.tables.write.apply.write_deltalake", write)
        assert insert(table, "a") == AppliedUpdate(1, inserted=1)
    assert insert(table, "a") == AppliedUpdate(1)
    assert commit_update(prepared(table, UpdateKind.DELETE)) == AppliedUpdate(2, deleted=1)
    assert DeltaTable(path).count() == 3


def test_a_stamp_is_that_of_one_commit(path: str) -> None:
    table = opened(path)
    insert(table, "a")
    assert table.is_proven()
    actions = handmade.actions_of(path, 1)
    for action in actions:
        if "txn" in action:
            action["txn"]["lastUpdated"] += 1
    handmade.commit(path, 1, *actions)
    assert not table.is_proven()
