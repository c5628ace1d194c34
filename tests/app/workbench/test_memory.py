"""What is remembered is what judging or reading again would give, under all that it depends on."""

from __future__ import annotations

from pathlib import Path

import pytest

from impctl.errors import UsageError, WorkloadError
from impctl.reuse import verdict as reuse
from impctl.reuse.verdict import ReuseVerdict
from impctl.rules.optimize import KEPT
from impctl.safety.facts import Fact, FactKind, FactSource
from impctl.service import context as memories
from impctl.service.context import Memory
from tests.plan.catalogs import read

ASKED = read("SELECT brand, SUM(price) AS s FROM sales GROUP BY brand HAVING SUM(price) > 20")
CAPTURED = read("SELECT brand, SUM(price) AS s FROM sales GROUP BY brand HAVING SUM(price) > 10")
BRAND = (("sales#1", "brand"),)
PRICE = (("sales#1", "price"),)
POSITIVE = Fact("sales", "price", FactKind.NONNEGATIVE, FactSource.CONSTRAINT)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A note for every verdict that was really reached."""
    notes: list[object] = []
    check = reuse.check_reuse

    def noted(*arguments: object) -> ReuseVerdict:
        notes.append(arguments)
        return check(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(reuse, "check_reuse", noted)
    return notes


def test_a_verdict_is_reached_once(judged: list[object]) -> None:
    memory = Memory()
    first = memory.reuse(ASKED, CAPTURED, BRAND, [])
    assert first.allowed
    assert memory.reuse(ASKED, CAPTURED, BRAND, ()) is first
    assert len(judged) == 1
    assert Memory().reuse(ASKED, CAPTURED, BRAND, ()) == first
    assert len(judged) == 2


def test_all_that_decides_is_looked_at(judged: list[object]) -> None:
    memory = Memory()
    assert memory.reuse(ASKED, CAPTURED, BRAND, ()).allowed
    assert not memory.reuse(CAPTURED, ASKED, BRAND, ()).allowed
    assert not memory.reuse(ASKED, CAPTURED, PRICE, ()).allowed
    assert memory.reuse(ASKED, CAPTURED, PRICE, [POSITIVE]).allowed
    assert not memory.reuse(ASKED, CAPTURED, PRICE, ()).allowed
    assert len(judged) == 4


@pytest.mark.slow
def test_verdicts_are_let_go_when_plans_are(judged: list[object]) -> None:
    memory = Memory()
    facts = [
        Fact("sales", f"c{at}", FactKind.NONNEGATIVE, FactSource.CONSTRAINT)
        for at in range(KEPT + 1)
    ]
    for fact in (*facts, facts[-1]):
        memory.reuse(ASKED, CAPTURED, BRAND, [fact])
    assert len(judged) == KEPT + 1
    memory.reuse(ASKED, CAPTURED, BRAND, [facts[0]])
    assert len(judged) == KEPT + 2


TEXT = 'version: 1\ntables: {t: {path: "${WHERE}"}}\nqueries: {q: {sql: "SELECT a FROM t"}}\n'


@pytest.fixture
def taken_apart(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were taken apart."""
    result: list[Path] = []
    workload_of = memories.workload_of

    def noted(path: Path, text: str, env: dict[str, str]) -> object:
        result.append(path)
        return workload_of(path, text, env)

    monkeypatch.setattr(memories, "workload_of", noted)
    return result


def test_what_changes_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken_apart: list[Path]
) -> None:
    file, memory = tmp_path / "w.yaml", Memory()
    file.write_text(TEXT)
    first = memory.workload(file, {"WHERE": "x"})
    assert memory.workload(file, {"WHERE": "x"}) is first
    assert len(taken_apart) == 1
    assert memory.workload(file, {"WHERE": "y"}).tables["t"].path == str(tmp_path / "y")
    file.write_text(TEXT.replace("SELECT a", "SELECT b"))
    assert memory.workload(file, {"WHERE": "y"}).queries["q"].sql == "SELECT b FROM t"
    assert len(taken_apart) == 3  # noqa: PLR2004
    # A relative path is another file elsewhere, though its text is the same.
    other = tmp_path / "other"
    other.mkdir()
    (other / "w.yaml").write_text(file.read_text())
    monkeypatch.chdir(tmp_path)
    here = memory.workload(Path("w.yaml"), {"WHERE": "y"})
    monkeypatch.chdir(other)
    there = memory.workload(Path("w.yaml"), {"WHERE": "y"})
    assert (here.tables["t"].path, there.tables["t"].path) == (
        str(tmp_path / "y"),
        str(other / "y"),
    )


def test_a_file_that_is_wrong_or_gone_is_told_each_time(tmp_path: Path) -> None:
    file, memory = tmp_path / "w.yaml", Memory()
    file.write_text(TEXT)
    memory.workload(file, {"WHERE": "x"})
    file.write_text("version: 1\n")
    for _ in range(2):
        with pytest.raises(WorkloadError):
            memory.workload(file, {"WHERE": "x"})
    file.unlink()
    with pytest.raises(UsageError, match="no file"):
        memory.workload(file, {"WHERE": "x"})
