"""Tables stay open between calls, and every call works on what they are now."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import impctl
from impctl.app.workbench import open_tables, pinned
from impctl.errors import ImpctlError, ImpctlWarning
from impctl.store.store import Store
from impctl.tables.write.create import create_table

WORKLOAD = """\
version: 1
tables: {t: {path: t}, u: {path: u}}
queries:
  q:
    sql: SELECT g, COUNT(*) AS n FROM t GROUP BY g HAVING COUNT(*) > 1 ORDER BY g
    answer: true
store: .impctl
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    for name in ("t", "u"):
        create_table(str(tmp_path / name), pa.table({"g": [1, 1, 2]}))
    path = tmp_path / "w.yaml"
    path.write_text(WORKLOAD)
    return path


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that were opened by reading their whole log."""
    names: list[str] = []
    whole = pinned.open_source

    def open_source(name: str, *more: Any) -> Any:
        names.append(name)
        return whole(name, *more)

    monkeypatch.setattr(pinned, "open_source", open_source)
    return names


def groups(workload: impctl.OpenWorkload) -> list[tuple[Any, ...]]:
    return list(workload.query("q", by="state").rows)


@pytest.mark.slow
def test_a_log_is_read_once_and_then_followed(file: Path, opened: list[str]) -> None:
    with impctl.open(file) as workload:
        workload.capture()
        assert groups(workload) == [(1, 2)]
        write_deltalake(str(file.parent / "t"), pa.table({"g": [2, 3]}), mode="append")
        assert groups(workload) == [(1, 2), (2, 2)]
        DeltaTable(str(file.parent / "t")).delete("g = 1")
        assert groups(workload) == [(2, 2)]
    assert opened == ["t"]


def test_another_table_at_the_path_is_seen(file: Path, opened: list[str]) -> None:
    with impctl.open(file) as workload:
        workload.capture()
        shutil.rmtree(file.parent / "t")
        create_table(str(file.parent / "t"), pa.table({"g": [7, 7]}))
        with pytest.warns(ImpctlWarning, match="recaptured"):
            assert groups(workload) == [(7, 2)]
        shutil.rmtree(file.parent / "t")
        with pytest.raises(ImpctlError, match="does not exist"):
            groups(workload)
    assert opened.count("t") > 1


def test_another_path_in_the_file_is_another_table(file: Path, opened: list[str]) -> None:
    with impctl.open(file) as workload:
        workload.capture()
        write_deltalake(str(file.parent / "u"), pa.table({"g": [2]}), mode="append")
        file.write_text(WORKLOAD.replace("{path: t}", "{path: ./u}"))
        with pytest.warns(ImpctlWarning, match="recaptured"):
            assert groups(workload) == [(1, 2), (2, 2)]


def test_from_time_to_time_all_are_opened_anew(
    file: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with impctl.open(file) as workload:
        workload.capture()
        monkeypatch.setattr(open_tables, "_LONGEST", 0.0)
        groups(workload)
    assert opened == ["t", "t"]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries whose whole state was read from the store."""
    names: list[str] = []
    load_runs = Store.load_runs

    def noted(self: Store, query: str, beginning: str = "") -> Any:
        if not beginning:
            names.append(query)
        return load_runs(self, query, beginning)

    monkeypatch.setattr(Store, "load_runs", noted)
    return names


@pytest.mark.slow
def test_state_stays_from_one_maintain_to_the_next(file: Path, loaded: list[str]) -> None:
    table = file.parent / "t"
    with impctl.open(file) as workload, impctl.open(file) as other:
        workload.capture()
        for number in range(4):
            write_deltalake(str(table), pa.table({"g": [number, 2]}), mode="append")
            workload.maintain()
        assert loaded == ["q"], "the first one loads it"
        # Who maintains meanwhile leaves state that is not ours.
        write_deltalake(str(table), pa.table({"g": [5, 5]}), mode="append")
        other.maintain()
        write_deltalake(str(table), pa.table({"g": [6, 6]}), mode="append")
        workload.maintain()
        assert loaded == ["q"] * 3
        workload.capture()
        DeltaTable(str(table)).delete("g = 1")
        workload.maintain()
        assert loaded == ["q"] * 4
        assert groups(workload) == [(2, 6), (5, 2), (6, 2)]
        assert groups(workload) == list(workload.query("q", by="engine").rows)


def test_a_closed_workload_keeps_nothing(file: Path) -> None:
    workload = impctl.open(file)
    workload.capture()
    write_deltalake(str(file.parent / "t"), pa.table({"g": [7, 7]}), mode="append")
    workload.maintain()
    assert workload._states is not None
    workload.close()
    assert workload._states is None
