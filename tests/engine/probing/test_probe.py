"""Joins in a circle by look-ups: after every batch the joined rows are those of brute force."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from impctl.data.schema import LONG
from impctl.engine.jointree import cyclic
from impctl.engine.jointree.cyclic import Circle, Probe, Probed
from impctl.errors import InvariantError
from tests.support.circuits import Runs, load_all, save_all
from tests.support.random_cases import random_cases
from tests.support.reference_circle import (
    CircleCase,
    Joined,
    Row,
    random_circle,
    random_circle_changes,
    random_circle_row,
)

STEPS = 6


class Followed:
    """A probe beside its tables, stopped and taken up again where that is asked."""

    def __init__(self, case: CircleCase) -> None:
        self.case = case
        self.probe = Probe("probe0", case.circle)
        self.tables: list[Counter[Row]] = [Counter() for _ in range(1 + max(case.tables))]
        self.found: Joined = Counter()
        self._stored: Runs = {}

    def fill(self, batches: list[list[tuple[int, Row, int]]]) -> None:
        self.probe.fill(True)
        for changes in batches:
            assert self.probe.step(*self.case.batches(changes)) is None
            self._count(changes)
        for batch in self.probe.filled():
            self.found.update(self.case.rows_in(batch))
        self.probe.fill(False)

    def step(self, changes: list[tuple[int, Row, int]]) -> Joined:
        out = self.probe.step(*self.case.batches(changes))
        assert out is not None
        told = self.case.rows_in(out)
        self.found.update(told)
        self._count(changes)
        return told

    def _count(self, changes: list[tuple[int, Row, int]]) -> None:
        for table, row, weight in changes:
            self.tables[table][row] += weight

    def check(self) -> int:
        wanted = self.case.joined(self.tables)
        assert {row: n for row, n in self.found.items() if n} == wanted
        whole = self.case.rows_in(self.probe.output())
        assert {row: n for row, n in whole.items() if n} == wanted
        return sum(wanted.values())

    def restart(self) -> None:
        fresh = Probe("probe0", self.case.circle)
        save_all(self.probe.arrangements(), self._stored)
        load_all(fresh.arrangements(), self._stored)
        self.probe = fresh


def run(seed: int) -> Counter[str]:
    case, random_ = random_circle(seed), random.Random(seed + 1)
    circle = Followed(case)
    rows = [
        (table, random_circle_row(random_, case, table), random_.choice([1, 1, 2]))
        for table in range(len(circle.tables))
        for _ in range(random_.choice([0, 2, 4]))
    ]
    random_.shuffle(rows)
    if seed % 2:
        circle.fill([rows[at : at + 3] for at in range(0, len(rows), 3)])
    else:
        circle.step(rows)
    said: Counter[str] = Counter()
    for _ in range(STEPS):
        said["joined"] += circle.check()
        circle.step(random_circle_changes(random_, case, circle.tables))
        if seed % 3 == 0:
            circle.restart()
    said["joined"] += circle.check()
    said["shared"] += len(set(case.tables)) < len(case.tables)
    return said


@random_cases(16, 48, 4_000)
def test_joined_rows_equal_brute_force(cases: range, monkeypatch: pytest.MonkeyPatch) -> None:
    said: Counter[str] = Counter()
    for seed in cases:
        monkeypatch.setattr(cyclic, "LOT", (1, 2, 1_000_000)[seed % 3])
        said += run(seed)
    assert said["joined"] > len(cases) * 6
    assert said["shared"] > len(cases) // 4


def triangle(*, null_safe: bool = False, stores: tuple[int, int, int] = (0, 0, 0)) -> CircleCase:
    """Edges from k0 to k1 of a table, or three: a to b, b to c, c to a."""
    inputs = tuple(
        Probed(
            tuple((f"i{at}.k{place}", LONG) for place in range(3)),
            tuple(sorted([(at, 0), ((at + 1) % 3, 1)])),
            1,
            stores[at],
        )
        for at in range(3)
    )
    circle = Circle(inputs, (null_safe,) * 3, ("i0.k0", "i1.k0", "i2.k0"))
    return CircleCase(circle, stores, ((LONG, LONG, LONG),) * 3)


def edge(source: int | None, target: int | None, fragment: int = 0) -> Row:
    return (source, target, None, fragment)


def test_all_accesses_of_one_table_change_at_once() -> None:
    circle = Followed(triangle())
    told = circle.step([(0, edge(1, 2, 5), 1), (0, edge(2, 3, 6), 1), (0, edge(3, 1, 7), 2)])
    assert told == {(1, 2, 3, 5, 6, 7): 2, (2, 3, 1, 6, 7, 5): 2, (3, 1, 2, 7, 5, 6): 2}
    told = circle.step([(0, edge(2, 3, 6), -1), (0, edge(2, 3, 4), 1)])
    assert sum(told.values()) == 0
    assert len(told) == 6
    circle.check()


def test_rows_that_cancel_are_left_out() -> None:
    """What comes and goes in two accesses at once meets itself."""
    circle = Followed(triangle())
    circle.step([(0, edge(at, at), 1) for at in range(3)])
    changes = [(0, edge(1, 1, 9), 1), (0, edge(2, 2), -1)]
    out = circle.probe.step(*circle.case.batches(changes))
    assert out is not None
    told = circle.case.rows_in(out)
    assert len(out) == len(told)
    assert all(told.values())


def test_null_joins_only_where_all_equalities_say_so() -> None:
    rows = [(0, edge(None, 1), 1), (0, edge(1, 2), 1), (0, edge(2, None), 1)]
    plain, safe = Followed(triangle()), Followed(triangle(null_safe=True))
    assert plain.step(rows) == {}
    assert len(safe.step(rows)) == 3
    plain.check()
    safe.check()


def test_rows_of_one_table_are_kept_once_for_all_its_accesses() -> None:
    def sets_of(stores: tuple[int, int, int]) -> list[str]:
        probe = Probe("probe0", triangle(stores=stores).circle)
        return sorted(keeper.name for keeper in probe.arrangements())

    assert sets_of((0, 0, 0)) == ["probe0.0.by0", "probe0.0.by0_1", "probe0.0.by1"]
    assert len(sets_of((0, 1, 2))) == 9


def test_each_row_asks_the_input_that_offers_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """One hub with many edges out of it and into it: no edge beside it is looked at for it."""
    circle = Followed(triangle())
    hub, many = 0, 50
    circle.step([(0, edge(hub, at), 1) for at in range(1, many)])
    circle.step([(0, edge(at, hub), 1) for at in range(1, many)])
    looked: list[int] = []
    extended = cyclic._extended

    def counted(partial: cyclic.Partial, at: int, view: cyclic.View) -> cyclic.Partial:
        result = extended(partial, at, view)
        looked.append(len(result))
        return result

    monkeypatch.setattr(cyclic, "_extended", counted)
    assert len(circle.step([(0, edge(1, 2), 1)])) == 3
    assert circle.step([(0, edge(hub, 3), 1), (0, edge(4, hub), 1)]) == {}
    assert sum(looked) < many / 2


def test_inputs_that_nothing_connects_are_refused() -> None:
    alone = Probed((("a", LONG),), ((0, 0),), 0, 0)
    other = Probed((("b", LONG),), ((1, 0),), 0, 1)
    with pytest.raises(InvariantError, match="connected"):
        Probe("probe0", Circle((alone, other), (False, False), ()))


def test_inputs_of_one_store_have_the_same_columns() -> None:
    one = Probed((("a", LONG),), ((0, 0),), 0, 0)
    other = Probed((("b", LONG), ("c", LONG)), ((0, 0),), 0, 0)
    with pytest.raises(InvariantError, match="same rows"):
        Probe("probe0", Circle((one, other), (False,), ()))
