"""Batches found by one reading of the log that is carried on are those found by reading it anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.source import open_source
from impctl.tables.write.apply import (
    AppliedBatches,
    UpdateKind,
    UpdateRequest,
    apply_update,
    identity_of,
    version_with,
)
from tests.tables.handmade import entry

ROWS = pa.table({"id": [1], "x": [1]})
NAMES = ("a", "b", "c", "never")


class Log:
    """A table's log that grows, and all that is known of it at each step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.followed = AppliedBatches()
        write_deltalake(str(path), ROWS)

    def batch(self, name: str, *, again: bool = False) -> None:
        request = UpdateRequest("t", UpdateKind.INSERT, ({"id": 3},), name=name, again=again)
        apply_update(open_source("t", str(self.path)), request)

    def other(self) -> None:
        write_deltalake(str(self.path), ROWS, mode="append")

    def delta(self) -> DeltaTable:
        return DeltaTable(str(self.path))

    def drop(self, below: int) -> None:
        for version in range(below):
            entry(self.path, version).unlink(missing_ok=True)

    def check(self) -> dict[str, int | None]:
        source = open_source("t", str(self.path))
        content = ("insert", [[("id", 3)]], None, [])
        identities = {name: identity_of(source, name, content, None) for name in NAMES}
        told = {n: version_with(source, identity) for n, identity in identities.items()}
        for known in (self.followed, AppliedBatches()):
            assert told == {n: known.version_with(source, i) for n, i in identities.items()}
        return told


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "t")


STEPS: dict[str, list[Callable[[Log], object]]] = {
    "others between": [
        lambda log: log.batch("a"),
        lambda log: log.other(),
        lambda log: log.batch("b"),
    ],
    "again": [
        lambda log: log.batch("a"),
        lambda log: log.other(),
        lambda log: log.batch("a", again=True),
    ],
    "restored": [
        lambda log: log.batch("a"),
        lambda log: log.batch("b"),
        lambda log: log.delta().restore(1),
        lambda log: log.batch("b"),
        lambda log: log.delta().restore(0),
    ],
    "checkpoint": [
        lambda log: log.batch("a"),
        lambda log: log.delta().create_checkpoint(),
        lambda log: log.batch("b"),
        lambda log: log.drop(1),
        lambda log: log.drop(2),
        lambda log: log.batch("c"),
    ],
    "forgotten": [
        lambda log: log.batch("a"),
        lambda log: log.delta().alter.set_table_properties(
            {"delta.setTransactionRetentionDuration": "interval 0 seconds"}
        ),
        lambda log: log.batch("b"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS.keys())
def test_they_are_those_of_the_log_read_anew(
    log: Log, steps: list[Callable[[Log], object]]
) -> None:
    assert set(log.check().values()) == {None}
    result = []
    for step in steps:
        step(log)
        result.append(log.check())
    assert any(version is not None for told in result for version in told.values())
    assert {told["never"] for told in result} == {None}


def test_a_checkpoint_that_is_not_understood_is_left_to_deltalake(log: Log) -> None:
    log.batch("a")
    log.other()
    log.delta().create_checkpoint()
    log.drop(2)
    hint = log.path / "_delta_log" / "_last_checkpoint"
    said = json.loads(hint.read_text())
    for text in ("{", "[]", json.dumps({**said, "parts": 2})):
        hint.write_text(text)
        source = open_source("t", str(log.path))
        identity = identity_of(source, "a", ("insert", [[("id", 3)]], None, []), None)
        known = AppliedBatches()
        assert known.version_with(source, identity) == 1
        assert not known.version_with(source, "impctl/apply/never")


def test_the_log_is_read_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    from impctl.tables import log as commits

    read: list[int] = []
    entry = commits.read_entry

    def told(source: object, version: int) -> str:
        read.append(version)
        return entry(source, version)  # type: ignore[arg-type]  # passed through

    for _ in range(3):
        log.other()
    log.batch("a")
    monkeypatch.setattr(commits, "read_entry", told)
    source, known = open_source("t", str(log.path)), AppliedBatches()
    for name in ("x", "y", "z"):
        assert known.version_with(source, f"impctl/apply/{name}") is None
    assert read == [0, 1, 2, 3, 4]
    known.add("impctl/apply/own", 5, 5)
    log.other()
    source = open_source("t", str(log.path))
    # The run's own commit is known without a look.
    assert known.version_with(source, "impctl/apply/x") is None
    assert read == [0, 1, 2, 3, 4]
