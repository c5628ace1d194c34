"""One query that fails stops no other; summary and exit code say so; the next run converges."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.service import verify as verify_module
from impctl.service.context import Workbench
from impctl.store.store import Store
from impctl.tables.write.maintenance import create_table
from tests.support.kept_workload import stored
from tests.support.run_cli import Cli
from tests.support.small_workload import ROWS

FILE = """
version: 1
tables: {t: {path: t}, u: {path: u}}
partitions: {t: {g: {boundaries: [2, 4, 6]}}, u: {g: {boundaries: [2, 4, 6]}}}
queries:
  divides: {sql: "SELECT g, SUM(10 div x) s FROM t GROUP BY g HAVING SUM(10 div x) > 1"}
  corrupt: {sql: "SELECT g, COUNT(*) n FROM t GROUP BY g HAVING COUNT(*) > 1"}
  gone: {sql: "SELECT g, COUNT(*) n FROM u GROUP BY g HAVING COUNT(*) > 1"}
  good: {sql: "SELECT g, SUM(x) s FROM t GROUP BY g HAVING SUM(x) > 1"}
store: .impctl
"""
FAILED = {"divides", "corrupt", "gone"}


@pytest.fixture
def many(tmp_path: Path, table: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    create_table(str(tmp_path / "u"), ROWS)
    file = tmp_path / "many.yaml"
    file.write_text(FILE)
    return Cli(capsys, file)


def spoil_state(root: Path, query: str) -> None:
    """Alter the query's state where it is stored."""
    with Store.open(root) as store:
        assert store.run_refs(query)
    connection = sqlite3.connect(root / "catalog.sqlite")
    changed = connection.execute(
        "UPDATE run SET checksum = checksum + 1 WHERE query_id ="
        " (SELECT id FROM query WHERE name = ?)",
        (query,),
    ).rowcount
    connection.commit()
    connection.close()
    assert changed > 0


@pytest.fixture
def spoiled(many: Cli, table: str, tmp_path: Path) -> Cli:
    """Captured; then one query divides by zero, one has a corrupt state, one no history."""
    many.good("capture")
    spoil_state(tmp_path / ".impctl", "corrupt")
    write_deltalake(table, pa.table({"g": [0], "x": [0], "note": ["z"]}), mode="append")
    other = str(tmp_path / "u")
    held = set(DeltaTable(other).file_uris())
    write_deltalake(other, ROWS, mode="append")
    (added,) = set(DeltaTable(other).file_uris()) - held
    Path(added.removeprefix("file://")).unlink()
    return many


def failures(document: dict[str, Any]) -> dict[str, str]:
    error = document["error"]
    return {f["query"]: f["code"] for f in error.get("failures", [error])}


@pytest.mark.slow
def test_capture_goes_on(many: Cli) -> None:
    text = FILE.replace("u: {path: u}", "u: {path: nowhere}")
    many.workload.write_text(text.replace("div x) s FROM t GROUP", "div y) s FROM t GROUP"))
    for _ in range(2):
        ran = many("capture")
        assert ran.code == 3
        assert failures(ran.document) == {"divides": "column_unknown", "gone": "table_missing"}
        assert [r["query"] for r in ran.results] == ["corrupt", "good"]
    many.workload.write_text(FILE)
    assert many("plan", "--detailed-exitcode").code == 2
    many.good("capture", "--query", "divides", "--query", "gone")
    assert many("plan", "--detailed-exitcode").code == 0


@pytest.mark.slow
def test_maintain_goes_on_and_converges(
    spoiled: Cli, table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = spoiled("maintain", "--policy", "incremental")
    assert failures(ran.document).keys() == FAILED
    assert ran.code == 3
    assert [(r["query"], r["action"]) for r in ran.results] == [("good", "exact")]
    # The same again: what is done stays done, what failed fails alike.
    again = spoiled("maintain", "--policy", "incremental")
    assert failures(again.document) == failures(ran.document)
    assert [(r["query"], r["action"]) for r in again.results] == [("good", "none")]
    assert run(build_app(), ["maintain", str(spoiled.workload), "--policy", "incremental"]) == 3
    lines = capsys.readouterr().err.splitlines()
    head, _, names = lines[-1].partition(": ")
    assert head == "3 of 4 queries failed"
    assert set(names.split(", ")) == {f"`{name}`" for name in FAILED}
    # Mended from outside, the same command brings everything up to date.
    DeltaTable(table).delete("x = 0")
    DeltaTable(str(tmp_path / "u")).restore(0)
    spoiled.good("capture", "--query", "divides", "--query", "gone", "--query", "corrupt")
    spoiled.good("maintain")
    assert spoiled("plan", "--detailed-exitcode").code == 0


@pytest.mark.slow
def test_auto_recaptures_a_corrupt_state(spoiled: Cli) -> None:
    result = spoiled.one("maintain", "--query", "corrupt")
    assert (result["action"], result["reason_code"]) == ("recapture", "catalog_corrupt")
    assert spoiled.one("maintain", "--query", "corrupt")["action"] == "none"


@pytest.mark.slow
def test_plan_goes_on(spoiled: Cli) -> None:
    ran = spoiled("plan", "--policy", "incremental")
    assert failures(ran.document).keys() == {"corrupt", "gone"}
    assert ran.code == 7
    # What a query divides by is only found out by computing.
    assert [(r["query"], r["action"]) for r in ran.results] == [
        ("divides", "exact"),
        ("good", "exact"),
    ]


@pytest.mark.slow
def test_an_unexpected_error_is_one_querys_own(
    many: Cli, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from impctl.service.step import Maintainer

    many.good("capture")
    write_deltalake(table, ROWS, mode="append")
    step = Maintainer.step

    def stumbles(self: Maintainer, *args: Any, **kwargs: Any) -> Any:
        if self.taken.stored.query == "corrupt":
            raise KeyError("a bug")
        return step(self, *args, **kwargs)

    monkeypatch.setattr(Maintainer, "step", stumbles)
    ran = many("maintain")
    assert (ran.code, ran.error["code"], ran.error["query"]) == (1, "unexpected", "corrupt")
    assert "KeyError" in ran.error["message"]
    assert {r["query"]: r["action"] for r in ran.results} == {
        "divides": "exact",
        "gone": "none",
        "good": "exact",
    }
    monkeypatch.setattr(Maintainer, "step", step)
    assert [r["query"] for r in many.good("maintain").results if r["action"] == "exact"] == [
        "corrupt"
    ]


def test_verify_goes_on(many: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark is pretended: what is recaptured is what is stored, but for one query."""
    many.good("capture")
    stored_fragments = {}
    for name in ("divides", "gone", "good"):
        sketches = stored(many.workload.parent, name).sketches
        stored_fragments[name] = {s.access: s.fragments for s in sketches}

    def needed(desk: Workbench, prepared: Any, *_: Any) -> Any:
        if prepared.spec.name == "corrupt":
            raise RuntimeError("Spark stumbled")
        return stored_fragments[prepared.spec.name]

    monkeypatch.setattr(Workbench, "spark", lambda _: None)
    monkeypatch.setattr(verify_module, "needed", needed)
    ran = many("verify")
    assert (ran.code, ran.error["query"]) == (1, "corrupt")
    assert {r["query"]: r["covers"] for r in ran.results} == {
        "divides": True,
        "gone": True,
        "good": True,
    }
