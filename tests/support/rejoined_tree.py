"""A join tree's shape as a plan again: every node joined with its children by the keys alone.

Law: with the plan's own grouping and what stands above it, the plan has the rows and the lineage of
the one that the shape was made of. Slow, and nothing of it is in the product.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from impctl.compile.jointree.graph import ShapeNode, TreeShape
from impctl.engine.jointree.spec import Edge
from impctl.expr.nodes import And, Cast, Compare, CompareOp, Expr
from impctl.expr.types import type_of
from impctl.plan.nodes import ComputedColumn, Join, JoinKind, Plan, Project, inputs_of, with_inputs

KINDS = {
    Edge.INNER: JoinKind.INNER,
    Edge.SEMI: JoinKind.SEMI,
    Edge.ANTI: JoinKind.ANTI,
    Edge.LEFT: JoinKind.LEFT,
}


def rejoined(root: Plan, shape: TreeShape) -> Plan:
    """The plan `root`, whose shape it is, over the tree."""
    below = _joined(shape, len(shape.nodes) - 1)
    if shape.aggregate is None:
        return Project(below, ())
    assert shape.top is not None
    keys = tuple(ComputedColumn(key.attribute, _as_typed(key)) for key in shape.aggregate.keys)
    grouping = replace(shape.aggregate, child=below, keys=keys)
    return _swapped(root, shape.top, grouping)


def _as_typed(key: ComputedColumn) -> Expr:
    """The column that is equal to a grouping column, as one of its type."""
    kind = key.attribute.type
    return key.expr if kind is None or type_of(key.expr) == kind else Cast(key.expr, kind)


def _joined(shape: TreeShape, at: int) -> Plan:
    """The joined rows of a node and everything below it."""
    node = shape.nodes[at]
    children = shape.children_of(at)
    if node.rows is None:
        # Every combination of the root's columns is there, so the children are joined by them.
        first, *others = children
        plan = _joined(shape, first)
        for child in others:
            condition = _equal(shape.nodes[first], shape.nodes[child], on_root=True)
            plan = Join(JoinKind.INNER, plan, _joined(shape, child), condition)
        return plan
    plan = node.rows
    for child in children:
        below = shape.nodes[child]
        condition = _equal(node, below, on_root=False)
        plan = Join(KINDS[below.edge], plan, _joined(shape, child), condition)
    return plan


def _equal(above: ShapeNode, below: ShapeNode, *, on_root: bool) -> Expr | None:
    """That the child's key is equal to the parent's columns, or to the key of another child."""
    if on_root:
        # Keys of two children of a virtual root lie at the same columns of it.
        places = dict(zip(above.parent_key, above.key, strict=True))
        mine = [above.kept[places[place]] for place in below.parent_key]
    else:
        mine = [above.kept[place] for place in below.parent_key]
    theirs = [below.kept[place] for place in below.key]
    parts: list[Expr] = [
        Compare(CompareOp.NULL_SAFE_EQUAL if safe else CompareOp.EQUAL, one, other)
        for one, other, safe in zip(mine, theirs, below.null_safe, strict=True)
    ]
    return reduce(lambda one, other: And((one, other)), parts) if parts else None


def _swapped(plan: Plan, old: Plan, new: Plan) -> Plan:
    """The plan with one node of it, by identity, in the place of another."""
    if plan is old:
        return new
    return with_inputs(plan, tuple(_swapped(child, old, new) for child in inputs_of(plan)))
