"""How the state of a query is stored, piece by piece, and whether its twin has the same sketch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from impctl.store.records import MaintainCommit
from impctl.store.store import Store
from tests.support.kept_workload import fragments_by_access, stored
from tests.support.run_records import run_record


def read_pieces(folder: Path, name: str) -> list[str]:
    """The sides of joins and the groupings that are read from the tables."""
    result = stored(folder, name).state_meta.get("from_files", [])
    assert isinstance(result, list)
    return result


def stored_pieces(folder: Path, name: str) -> set[str]:
    """All of which the store has rows."""
    with Store.open(folder / ".impctl", create=False) as held:
        return {run.arrangement for run in held.run_refs(name)}


def fragments(folder: Path, name: str) -> dict[str, set[int]]:
    return fragments_by_access(stored(folder, name))


def assert_alike(folder: Path, names: Iterable[str], twin: str = "{}_kept") -> None:
    """Each query and its twin, whose state is kept, have the same sketches of the same versions."""
    for name in names:
        one, other = stored(folder, name), stored(folder, twin.format(name))
        assert one.versions == other.versions
        assert fragments_by_access(one) == fragments_by_access(other), name
        assert one.state_meta["unsure"] == other.state_meta["unsure"]


def describe(folder: Path, name: str, **said: Any) -> None:
    """Say something else of a stored state."""
    held = stored(folder, name)
    record = run_record("exact", versions=held.versions)
    meta = {**held.state_meta, **said}
    commit = MaintainCommit(name, held.generation, held.pins, record, state_meta=meta)
    with Store.open(folder / ".impctl") as store, store.lock(10, "a test"):
        store.commit_maintain(commit)
