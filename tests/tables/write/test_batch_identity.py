"""A named batch is in its table once, and the table's log tells in which version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.errors import ImpctlError, RetryableError, StorageError, UsageError
from impctl.tables.source import open_source
from impctl.tables.write.apply import (
    AppliedUpdate,
    UpdateKind,
    UpdateRequest,
    apply_update,
    commit_update,
    prepare_update,
    version_with,
)
from tests.support.refused import refused
from tests.tables import handmade

IN_THE_TABLE = AppliedUpdate(1)
"""Told though the table has moved on; a batch that takes no row tells the newest version."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    made = str(tmp_path / "t")
    write_deltalake(made, pa.table({"id": [1, 2], "x": [1, 2]}))
    return made


def apply(path: str, kind: UpdateKind = UpdateKind.INSERT, **fields: Any) -> AppliedUpdate:
    given = {"rows": ({"id": 3, "x": 3},)} if kind is UpdateKind.INSERT and not fields else {}
    request = UpdateRequest("t", kind, **{"name": "b", **given, **fields})
    return apply_update(open_source("t", path), request)


def ids(path: str) -> list[int]:
    return sorted(DeltaTable(path).to_pyarrow_table()["id"].to_pylist())


def other_commit(path: str) -> None:
    write_deltalake(path, pa.table({"id": [9], "x": [9]}), mode="append")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (UpdateKind.INSERT, {"rows": ({"id": 3},)}),
        (UpdateKind.UPDATE, {"assignments": {"x": "x + 1"}}),
        (UpdateKind.UPDATE, {"assignments": {"x": "x + 1"}, "where": "id = 1"}),
        (UpdateKind.DELETE, {"where": "id = 1"}),
        (UpdateKind.DELETE, {"where": None}),
    ],
)
def test_a_repeat_does_nothing_and_says_where_the_batch_is(
    path: str, kind: UpdateKind, fields: dict[str, Any]
) -> None:
    assert apply(path, kind, **fields).version == 1
    other_commit(path)
    before = ids(path)
    assert apply(path, kind, **fields) == IN_THE_TABLE
    assert (ids(path), DeltaTable(path).version()) == (before, 2)
    again = apply(path, kind, again=True, **fields)
    taken = again.inserted + again.deleted + again.updated
    assert again.version == (3 if taken else 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"name": "another"},
        {"rows": ({"id": 3, "x": 4},)},
        {"rows": ({"id": 3},)},
        {"rows": ({"id": 3, "x": 3}, {"id": 4, "x": 3})},
        {"name": None},
    ],
)
def test_another_name_or_content_is_another_batch(path: str, fields: dict[str, Any]) -> None:
    apply(path)
    assert apply(path, **{"rows": ({"id": 3, "x": 3},), **fields}).version == 2


def test_a_batch_edited_and_edited_back_is_in_the_table(path: str) -> None:
    apply(path)
    apply(path, rows=({"id": 4, "x": 4},))
    assert apply(path) == IN_THE_TABLE


def test_a_file_is_known_by_its_bytes(path: str, tmp_path: Path) -> None:
    file, moved = tmp_path / "a.csv", tmp_path / "b.csv"
    file.write_text("id,x\n3,3\n")
    assert apply(path, file=str(file)).version == 1
    file.rename(moved)
    assert apply(path, file=str(moved)) == IN_THE_TABLE
    moved.write_text("id,x\n4,4\n")
    assert apply(path, file=str(moved)).version == 2
    moved.unlink()
    with pytest.raises(UsageError, match="file to insert does not exist"):
        apply(path, file=str(moved))


def test_a_batch_that_took_no_row_is_not_in_the_table(path: str) -> None:
    assert apply(path, UpdateKind.DELETE, where="id = 3") == AppliedUpdate(0)
    write_deltalake(path, pa.table({"id": [3], "x": [3]}), mode="append")
    assert apply(path, UpdateKind.DELETE, where="id = 3") == AppliedUpdate(2, deleted=1)


def test_a_table_made_anew_has_no_batch(path: str) -> None:
    apply(path)
    anew = pa.table({"id": [1], "x": [1]})
    DeltaTable.create(path, anew.schema, mode="overwrite")
    assert open_source("t", path).version == 2
    assert apply(path).version == 3


def test_a_restore_takes_the_batch_out(path: str) -> None:
    apply(path)
    other_commit(path)
    DeltaTable(path).restore(1)
    assert apply(path) == IN_THE_TABLE
    DeltaTable(path).restore(0)
    assert ids(path) == [1, 2]
    assert apply(path) == AppliedUpdate(5, inserted=1)
    assert apply(path) == AppliedUpdate(5)
    assert ids(path) == [1, 2, 3]


def test_a_restore_to_nobody_knows_where_is_asked_about(path: str) -> None:
    apply(path)
    DeltaTable(path).restore(0)
    actions = handmade.actions_of(path, 2)
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["operationParameters"] = {"timestamp": "2026-11-01"}
    handmade.commit(path, 2, *actions)
    with pytest.raises(ImpctlError, match="the batch may or may not be in it") as caught:
        apply(path)
    assert caught.value.code == "batch_maybe_applied"
    assert apply(path, rows=({"id": 3, "x": 3},), again=True).version == 3


def test_checkpoints_keep_the_identity_when_the_log_is_cleaned_up(path: str) -> None:
    apply(path)
    other_commit(path)
    DeltaTable(path).create_checkpoint()
    for version in (0, 1):
        handmade.entry(path, version).unlink()
    other_commit(path)
    assert apply(path) == IN_THE_TABLE


def test_a_table_may_forget_identities_after_a_time(path: str) -> None:
    apply(path)
    keeping = {"delta.setTransactionRetentionDuration": "interval 0 seconds"}
    DeltaTable(path).alter.set_table_properties(keeping)
    assert apply(path).version == 3


def test_of_two_runs_at_once_one_commits(path: str) -> None:
    request = UpdateRequest("t", UpdateKind.INSERT, ({"id": 3, "x": 3},), name="b")
    one, two = (prepare_update(open_source("t", path), request) for _ in range(2))
    assert commit_update(one).version == 1
    with pytest.raises(RetryableError, match="Another writer changed"):
        commit_update(two)
    assert commit_update(prepare_update(open_source("t", path), request)) == IN_THE_TABLE
    assert ids(path) == [1, 2, 3]


def failing(after: bool) -> Callable[..., None]:
    def write(*given: Any, **options: Any) -> None:
        if after:
            write_deltalake(*given, **options)
        else:
            other_commit(given[0].table_uri)
        raise OSError("no space left")

    return write


def test_a_failure_after_the_commit_is_none(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("impctl.tables.write.apply.write_deltalake", failing(after=True))
    assert apply(path) == AppliedUpdate(1, inserted=1)
    assert ids(path) == [1, 2, 3]


def test_a_failure_before_the_commit_may_be_repeated(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("impctl.tables.write.apply.write_deltalake", failing(after=False))
        with pytest.raises(ImpctlError):
            apply(path)
    assert apply(path) == AppliedUpdate(2, inserted=1)


def test_a_log_that_the_disk_does_not_give_is_worth_another_try(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_source("t", path)

    def failing(*_: object) -> None:
        raise OSError("Kernel error -> Generic LocalFileSystem error (os error 5)")

    monkeypatch.setattr(DeltaTable, "transaction_version", failing)
    with refused(StorageError, "storage_failed"):
        version_with(source, "batch")
