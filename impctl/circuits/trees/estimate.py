"""What a changed row costs as an index join and as a tree, from the fan-outs of key columns.

`joined` are the rows that the index join writes down for it, all its steps; `touched` the tuples
that the tree looks at on the way up. Both are products of fan-outs over the rows that the tables'
own conditions keep, as if keys were independent. Law: an estimate chooses between two right ways,
so it may be wrong; what is not known is None, never a guess.
Out of scope: counting keys (`tables.keys.fan_out`), the choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from impctl.circuits.trees.costs.index_join import index_cost
from impctl.circuits.trees.costs.sides import FanOuts, condition_on
from impctl.circuits.trees.costs.times import index_ms, rows_joined, tree_ms, tuples_touched
from impctl.circuits.trees.costs.tree import tree_cost
from impctl.circuits.trees.shape import TreeShape
from impctl.expr.nodes import Expr
from impctl.plan.nodes import Plan, scans_of
from impctl.types import AccessId, TableName
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Kept:
    """Of an access only these rows were counted, such a share of its table's."""

    access: AccessId
    condition: Expr
    share: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """Rows written and tuples touched for one changed row, in the mean over what changes; the
    processor time of a step of `times.STEP_ROWS` of them, and the bytes of state, both ways.

    `kept` are the accesses of which conditions leave out rows.
    """

    joined: float
    touched: float
    index_ms: float = 0.0
    tree_ms: float = 0.0
    index_bytes: float = 0.0
    tree_bytes: float = 0.0
    kept: tuple[Kept, ...] = ()


def estimate(
    joins: Plan, shape: TreeShape, changed: Mapping[TableName, int], fan_outs: FanOuts
) -> Estimate | None:
    """The estimate for a block's joins and their shape; None where some key is computed, or some
    node has several relations, which are joined or probed in it at a cost of their own.

    `changed` weighs the tables; where nothing is known to change, all count alike.
    """
    tree = tree_cost(shape, fan_outs)
    index = None if tree is None else index_cost(joins, shape.mode, fan_outs)
    if tree is None or index is None:
        return None
    shares = {one.scan.access: one.share for one in tree.accesses}
    return Estimate(
        joined=rows_joined(index.accesses, changed),
        touched=tuples_touched(tree.accesses, changed),
        index_ms=index_ms(index.accesses, tree, changed),
        tree_ms=tree_ms(tree, changed),
        index_bytes=index.bytes,
        tree_bytes=tree.bytes,
        kept=tuple(_kept(shape, shares)),
    )


def together(estimates: Sequence[Estimate]) -> Estimate:
    """What several blocks cost that are maintained side by side."""
    return Estimate(
        joined=sum(one.joined for one in estimates),
        touched=sum(one.touched for one in estimates),
        index_ms=sum(one.index_ms for one in estimates),
        tree_ms=sum(one.tree_ms for one in estimates),
        index_bytes=sum(one.index_bytes for one in estimates),
        tree_bytes=sum(one.tree_bytes for one in estimates),
        kept=tuple(kept for one in estimates for kept in one.kept),
    )


def _kept(shape: TreeShape, shares: Mapping[AccessId, float]) -> Iterator[Kept]:
    for node in shape.nodes:
        for scan in () if node.rows is None else scans_of(node.rows):
            assert node.rows is not None
            condition = condition_on(node.rows, scan)
            if condition is not None:
                yield Kept(scan.access, condition, shares[scan.access])
