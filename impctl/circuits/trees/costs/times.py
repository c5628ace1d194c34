"""How long a step takes by either way, from what changed rows come to.

Law: processor time of the engine for a step of `STEP_ROWS` changed rows of one table, in the mean
over the tables, weighed by how much they change; reading changes and committing cost both ways
alike and are left out. A tuple that several rows of a step touch is touched once. The constants are
measured (docs/decisions/0087), each the share of one thing that is done so often; on other machines
they go up and down together, so that a choice by their ratios holds.
Out of scope: what is done how often (`index_join`, `tree`), the choice (`circuits.trees.choice`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from impctl.circuits.trees.costs.index_join import JoinedAccess
from impctl.circuits.trees.costs.tree import TouchingAccess, TreeCost
from impctl.engine.jointree.spec import Mode
from impctl.types import TableName
from impctl.values import dataclass

STEP_ROWS = 1_000
"""Rows that a step is thought to change."""


@dataclass(frozen=True, slots=True)
class IndexTimes:
    """Microseconds of an index join: per step, per join that an access's rows pass, per joined row
    that is kept for the next join, and per row of the last join; per joined row of a table that has
    several accesses, where those that cancel are taken out; and per group that changes."""

    step: float
    join: float
    kept: float
    last: float
    again: float
    group: float


@dataclass(frozen=True, slots=True)
class TreeTimes:
    """Microseconds of a tree: per step, per node, per different tuple that is touched on the way
    up, and per row that is woken on the way down."""

    step: float
    node: float
    touched: float
    woken: float


INDEX = {
    Mode.RING: IndexTimes(step=2800.0, join=0.0, kept=0.25, last=0.23, again=0.06, group=3.2),
    Mode.BITS: IndexTimes(step=1100.0, join=200.0, kept=0.28, last=0.05, again=0.27, group=0.0),
}
TREE = {
    Mode.RING: TreeTimes(step=4400.0, node=0.0, touched=1.8, woken=0.1),
    Mode.BITS: TreeTimes(step=2300.0, node=390.0, touched=0.75, woken=0.08),
}


def index_ms(
    accesses: Sequence[JoinedAccess], tree: TreeCost, weights: Mapping[TableName, float]
) -> float:
    """Milliseconds of a step of the index join; `tree` says which groups change, if any count."""
    times = INDEX[tree.mode]
    groups = _groups(tree)

    def micros(own: Sequence[JoinedAccess]) -> float:
        kept, last = sum(one.kept for one in own), sum(one.last for one in own)
        again = kept + last if len(own) > 1 else 0.0
        each = times.kept * kept + times.last * last + times.again * again
        fixed = times.step + times.join * sum(one.joins for one in own)
        changed = min(groups[own[0].scan.table], STEP_ROWS * last)
        return fixed + STEP_ROWS * each + times.group * changed

    return _mean(accesses, micros, weights) / 1000.0


def tree_ms(cost: TreeCost, weights: Mapping[TableName, float]) -> float:
    """Milliseconds of a step of the tree."""
    times = TREE[cost.mode]

    def micros(own: Sequence[TouchingAccess]) -> float:
        fixed = times.step + times.node * len(cost.tuples)
        woken = STEP_ROWS * sum(one.woken for one in own)
        return fixed + times.touched * sum(_touched(cost, own).values()) + times.woken * woken

    return _mean(cost.accesses, micros, weights) / 1000.0


def _touched(cost: TreeCost, own: Sequence[TouchingAccess]) -> dict[int, float]:
    """How many different tuples of each node a step of a table touches."""
    drawn: dict[int, float] = {}
    for one in own:
        for node, tuples in one.reached:
            drawn[node] = drawn.get(node, 0.0) + STEP_ROWS * tuples
    return {node: _different(many, cost.tuples[node]) for node, many in drawn.items()}


def _groups(cost: TreeCost) -> dict[TableName, float]:
    """How many different tuples of the root a step of each table touches: its groups."""
    root = len(cost.tuples) - 1
    return {
        table: _touched(cost, own).get(root, 0.0) for table, own in _by_table(cost.accesses).items()
    }


def rows_joined(accesses: Sequence[JoinedAccess], weights: Mapping[TableName, float]) -> float:
    """Rows that an index join writes for one changed row of a table, in all accesses of it."""
    return _mean(accesses, lambda own: sum(one.kept + one.last for one in own), weights)


def tuples_touched(accesses: Sequence[TouchingAccess], weights: Mapping[TableName, float]) -> float:
    """Tuples that one changed row of a table touches by itself, in all accesses of it."""
    return _mean(
        accesses, lambda own: sum(tuples for one in own for _, tuples in one.reached), weights
    )


def _different(drawn: float, tuples: float) -> float:
    """How many are different of so many tuples drawn from so many, in the mean."""
    return tuples * -math.expm1(-drawn / tuples) if tuples > 0 else 0.0


_Access = TypeVar("_Access", JoinedAccess, TouchingAccess)


def _mean(
    accesses: Iterable[_Access],
    cost: Callable[[Sequence[_Access]], float],
    weights: Mapping[TableName, float],
) -> float:
    """What a change of one table costs, in the mean over the tables; all alike where no weight
    is known."""
    tables = _by_table(accesses)
    known = {table: weights.get(table, 0.0) for table in tables}
    if not any(known.values()):
        known = dict.fromkeys(tables, 1.0)
    total = sum(known[table] * cost(own) for table, own in tables.items())
    return total / sum(known.values())


def _by_table(accesses: Iterable[_Access]) -> dict[TableName, list[_Access]]:
    tables: dict[TableName, list[_Access]] = {}
    for one in accesses:
        tables.setdefault(one.scan.table, []).append(one)
    return tables
