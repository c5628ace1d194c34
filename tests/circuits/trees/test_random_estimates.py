"""Random queries over joins, each with an estimate or without one, never an error.

Law: whatever is estimated is a number of at least zero. Out of scope: whether it is the right one
(`test_estimate`).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import fields
from random import Random

from impctl.compile.jointree.cost import Estimate, TreesByFanOut
from impctl.errors import QueryError
from tests.circuits.trees.drawn import core
from tests.circuits.trees.random_joins import JoinMaker, random_tables
from tests.circuits.trees.test_built import table_of
from tests.circuits.trees.test_estimate import OfRows
from tests.support.random_cases import random_cases, seen_in

NUMBERS = [one.name for one in fields(Estimate) if one.name != "kept"]


def look(seed: int, seen: Counter[str]) -> None:
    rng = Random(seed)
    sql = JoinMaker(rng).sql()
    try:
        root = core(sql)
    except QueryError:
        return
    tables = {
        name: table_of([dict(row) for row in rows]) for name, rows in random_tables(rng).items()
    }
    weights = {name: rng.randint(0, 3) for name in tables}
    choice = TreesByFanOut(OfRows(tables), weights).choose(root)
    estimate = choice.estimate
    seen["all"] += 1
    if estimate is None:
        assert not choice.is_tree
        seen[choice.reason[:24]] += 1
        return
    seen["estimated"] += 1
    seen["limited"] += bool(estimate.kept)
    for name in NUMBERS:
        number = getattr(estimate, name)
        assert 0 <= number < math.inf, (name, sql)
    assert all(0 <= one.share <= 1 for one in estimate.kept)


@random_cases(40, 95, 300)
def test_random_queries_are_estimated_or_not_known(cases: range) -> None:
    seen = seen_in(cases, look)
    assert seen["estimated"] > len(cases) // 20, seen
    assert seen["limited"] > 0, seen
