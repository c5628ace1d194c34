"""What is remembered is what judging again would give, under all that it depends on."""

from __future__ import annotations

import pytest

from impctl.app.workbench.memory import Memory
from impctl.plan.reuse import verdict as reuse
from impctl.plan.reuse.verdict import ReuseVerdict
from impctl.plan.rules.planned import KEPT
from impctl.plan.safety.facts import Fact, FactKind, FactSource
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
