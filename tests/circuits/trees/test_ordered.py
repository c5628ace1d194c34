"""First values of groups in trees, step by step: ties, NULL, values in another one's place.

Every step ends with a checkpoint that the next one starts from. A group that is in the answer for
some choice among rows that tie counts, and its rows are in the sketch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from impctl.compile.compile import Compiled, compile_plan
from impctl.compile.jointree.graph import TreeShape
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import LONG
from impctl.engine import accumulators
from impctl.engine.jointree.tree import Tree
from impctl.errors import NotExactError
from impctl.sketch.partition import RangePartition
from tests.circuits.trees.drawn import CATALOG, core
from tests.circuits.trees.test_built import BOUNDARIES, Row, table_of
from tests.support.restored_query import Stored, restored

NOTHING: Row = dict.fromkeys(column.name for column in CATALOG["r"])
Step = tuple[Sequence[Row], Sequence[Row], bool]
"""Rows of `r` that come, rows that go, and whether the group is in the sketch then."""


def row(name: str | None, c: int | None = 1, i: int | None = 1, *, a: int = 1) -> Row:
    return {**NOTHING, "a": a, "b": 1, "c": c, "i": i, "name": name}


def asked(condition: str) -> Compiled:
    root = core(f"SELECT r.b FROM r JOIN s ON r.a = s.a GROUP BY r.b HAVING {condition}")
    ranges = {"r#1": RangePartition("r", "b", LONG, BOUNDARIES)}
    result = compile_plan(root, ranges, {}, barriers=(), trees={})
    assert isinstance(result.shapes[0], TreeShape)
    return result


def followed(condition: str, steps: Sequence[Step]) -> None:
    session = MaintainedQuery(asked(condition))
    session.load([("r", table_of([])), ("s", table_of([row(None), row(None), row(None, a=2)]))])
    stored = Stored()
    for number, (came, went, is_there) in enumerate(steps):
        weights = np.array([1] * len(came) + [-1] * len(went), dtype=np.int64)
        session.step({"r": TableChange(table_of([*came, *went]), weights)})
        assert bool(session.fragments()["r#1"].ids) == is_there, (condition, number)
        session = restored(session, stored, MaintainedQuery(asked(condition)))


STEPS: dict[str, tuple[str, list[Step]]] = {
    "a value in another one's place": (
        "MAX(r.name) = 'u'",
        [
            ([row("u")], [], True),
            ([row("v")], [row("u")], False),
            ([row("u")], [row("v")], True),
            ([row("t")], [row("u")], False),
        ],
    ),
    "a value beside a key in another one's place": (
        "MIN_BY(r.name, r.c) = 'u'",
        [
            ([row("u")], [], True),
            ([row("v")], [row("u")], False),
            ([row("u")], [row("v")], True),
        ],
    ),
    "the first goes and the next one is there, then it comes back": (
        "MIN(r.name) = 'b'",
        [
            ([row("a"), row("b"), row("c")], [], False),
            ([], [row("a")], True),
            ([row("a")], [], False),
            ([], [row("a")], True),
            ([], [row("b")], False),
            ([], [row("c")], False),
            ([row("b")], [], True),
        ],
    ),
    "copies: the first goes with the last of them": (
        "MIN(r.name) > 'a'",
        [
            ([row("a"), row("a"), row("b")], [], False),
            ([], [row("a")], False),
            ([], [row("a")], True),
        ],
    ),
    "an empty text is a value, NULL is none": (
        "MIN(r.name) = ''",
        [
            ([row(None)], [], False),
            ([row("")], [], True),
            ([row("x")], [row(None)], True),
            ([row(None)], [row("")], False),
        ],
    ),
    "only NULL": (
        "MAX(r.name) IS NULL AND MAX_BY(r.c, r.name) IS NULL",
        [
            ([row(None)], [], True),
            ([row("x")], [], False),
            ([], [row("x")], True),
            ([], [row(None)], False),
        ],
    ),
    "a NULL key does not count, a NULL value does": (
        "MAX_BY(r.name, r.c) IS NULL",
        [
            ([row("x", None)], [], True),
            ([row("x", 1)], [], False),
            ([row(None, 2)], [], True),
            ([], [row(None, 2)], False),
        ],
    ),
    "of several that tie each may be it": (
        "MAX_BY(r.name, r.c) = 'u'",
        [
            ([row("t", 2), row("v", 2)], [], False),
            ([row("u", 2)], [], True),
            ([], [row("v", 2)], True),
            ([row("x", 3)], [], False),
            ([], [row("x", 3)], True),
            ([], [row("u", 2)], False),
        ],
    ),
    "two calls that tie": (
        "MIN_BY(r.c, r.i) + MAX_BY(r.c, r.i) = 5",
        [
            ([row("", 1, 1), row("", 2, 1)], [], False),
            ([row("", 3, 2), row("", 4, 2)], [], True),
            ([], [row("", 2, 1)], True),
            ([], [row("", 4, 2)], False),
        ],
    ),
    "rows without a partner do not count": (
        "MIN(r.name) = 'b' OR MIN_BY(r.c, r.i) = 7",
        [
            ([row("a", a=3), row("b")], [], True),
            ([row("a", a=2)], [], False),
            ([row("", 7, 0, a=3)], [], False),
            ([row("", 7, 0, a=2)], [], True),
        ],
    ),
    "beside the count of joined rows": (
        "MIN(r.name) = 'b' AND COUNT(r.name) = 2",
        [
            ([row("b")], [], True),
            ([row("c", a=2)], [], False),
            ([row("b", a=2)], [row("b"), row("c", a=2)], False),
            ([row("b")], [row("b", a=2)], True),
        ],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_step_by_step(name: str) -> None:
    followed(*STEPS[name])


def test_partners_that_go_take_the_first_value_along() -> None:
    session = MaintainedQuery(asked("MAX(r.name) = 'u'"))
    partners = [row(None), row(None, a=2)]
    session.load([("r", table_of([row("u"), row("v", a=2)])), ("s", table_of(partners))])
    for sign, is_there in ((-1, True), (1, False), (-1, True)):
        change = TableChange(table_of([partners[1]]), np.array([sign], dtype=np.int64))
        session.step({"s": change})
        assert bool(session.fragments()["r#1"].ids) == is_there


def test_too_many_that_tie_stop_the_step() -> None:
    session = MaintainedQuery(asked("MIN_BY(r.c, r.i) = 1"))
    rows = [row("", value) for value in range(64)]
    session.load([("r", table_of(rows)), ("s", table_of([row(None)]))])
    assert session.fragments()["r#1"].ids
    with pytest.raises(NotExactError, match="More than 64 values"):
        session.step({"r": TableChange(table_of([row("", 64)]), np.ones(1, dtype=np.int64))})


def test_rows_that_ties_combine_to_are_bounded_and_groups_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accumulators, "_MOST_ROWS", 1)
    groups = [{**row("", value), "b": value} for value in range(4)]
    session = MaintainedQuery(asked("MIN_BY(r.c, r.i) >= 0"))
    session.load([("r", table_of(groups)), ("s", table_of([row(None)]))])
    assert len(session.fragments()["r#1"].ids) == len(BOUNDARIES) + 1
    # One more row for a group that ties, before and after.
    tied = TableChange(table_of([{**row("", 7), "b": 1}]), np.ones(1, dtype=np.int64))
    session.step({"r": tied})
    with pytest.raises(NotExactError, match="combine to too many rows"):
        session.step({"r": tied, "s": TableChange(table_of([row(None)]), tied.weights)})


def names_of(condition: str) -> set[str]:
    (tree,) = (one for one in asked(condition).circuit if isinstance(one, Tree))
    return {keeper.name.rpartition("tree0/1.")[2] for keeper in tree.arrangements()}


def test_state_of_trees_without_first_values_has_the_names_it_had() -> None:
    plain = names_of("COUNT(r.name) > 1")
    assert not any("first" in name or "last" in name for name in plain)
    names: Any = names_of("COUNT(r.name) > 1 AND MIN_BY(r.name, r.c) > '' AND MAX(r.name) > ''")
    assert names - plain == {
        "first1.0.rows",
        "first1.0.codes",
        "last0.0.rows",
        "last0.0.codes",
    }
