"""When joins become trees of themselves."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from impctl.circuits.trees.choice import TreesAsRecorded, TreesByFanOut
from impctl.circuits.trees.estimate import KeySide
from impctl.errors import TableError
from tests.circuits.trees.drawn import core

PAIR = "SELECT r.a FROM r JOIN s ON r.a = s.a GROUP BY r.a HAVING SUM(s.d) > 1"
COMPUTED = PAIR.replace("r.a = s.a", "r.a + 1 = s.a")
CIRCLE = PAIR.replace("GROUP", "JOIN t ON s.b = t.a AND t.b = r.b GROUP")
NONE = "SELECT r.a FROM r JOIN s ON r.a < s.a GROUP BY r.a HAVING SUM(s.d) > 1"


@dataclass(frozen=True)
class Evenly:
    """Every key meets so many."""

    partners: float

    def met(self, changed: KeySide, other: KeySide) -> float:
        return self.partners if other.columns.counted is None else 1.0

    def alone(self, side: KeySide) -> float:
        return 0.5


class Gone:
    """Tables that cannot be read."""

    def met(self, changed: KeySide, other: KeySide) -> float:
        raise TableError("a file is gone")

    alone = met


@pytest.mark.parametrize(("partners", "is_tree"), [(1, False), (7.9, False), (8, True), (9, True)])
def test_four_joined_rows_for_a_tuple_make_a_tree(partners: float, is_tree: bool) -> None:
    choice = TreesByFanOut(Evenly(partners), {"r": 1, "s": 1}).choose(core(PAIR))
    assert choice.is_tree is is_tree
    assert choice.estimate is not None
    assert (choice.estimate.joined, choice.estimate.touched) == (partners, 2)


@pytest.mark.parametrize("sql", [COMPUTED, CIRCLE, NONE])
def test_what_is_not_known_stays_with_the_index(sql: str) -> None:
    assert not TreesByFanOut(Evenly(10**6), {}).choose(core(sql)).is_tree


def test_tables_that_cannot_be_read_stay_with_the_index() -> None:
    choice = TreesByFanOut(Gone(), {}).choose(core(PAIR))
    assert (choice.is_tree, choice.estimate) == (False, None)
    assert "a file is gone" in choice.reason


@pytest.mark.parametrize("is_tree", [True, False])
def test_what_the_capture_chose_holds(is_tree: bool) -> None:
    assert TreesAsRecorded(is_tree).choose(core(PAIR)).is_tree is is_tree
