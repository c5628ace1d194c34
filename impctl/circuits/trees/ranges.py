"""Which node of a tree has a sketched access, and whether its tuples tell the fragment.

Law: a tuple tells the fragment of an access iff it has the value of the partition's column of every
row it stands for, and every one of these rows has a row of the access in it: not where that side of
a join is padded, grouped or looked at only.
Out of scope: fragments that are counted (`engine.jointree.node`).
"""

from __future__ import annotations

from impctl.circuits.trees.shape import ShapeNode
from impctl.expr.nodes import ColumnRef
from impctl.plan.nodes import Join, JoinKind, Plan, Scan, Select, Sort
from impctl.types import AccessId, ColumnName

_LEFT = frozenset({JoinKind.SEMI, JoinKind.ANTI, JoinKind.LEFT})


def told_by(node: ShapeNode, access: AccessId, column: ColumnName) -> int | None:
    """The place in what the node keeps of the partition's column; None where rows are counted."""
    scan = None if node.rows is None else _plain_scan(node.rows, access)
    if scan is None:
        return None
    wanted = {a.id for a in scan.attributes if a.name.lower() == column.lower()}
    places = (
        at for at, expr in enumerate(node.kept) if isinstance(expr, ColumnRef) and expr.id in wanted
    )
    return next(places, None)


def _plain_scan(plan: Plan, access: AccessId) -> Scan | None:
    """The scan of the access, where each row of the plan has just one row of it in it."""
    match plan:
        case Scan():
            return plan if plan.access == access else None
        case Select() | Sort():
            return _plain_scan(plan.child, access)
        case Join(kind=JoinKind.INNER):
            return _plain_scan(plan.left, access) or _plain_scan(plan.right, access)
        case Join() if plan.kind in _LEFT:
            return _plain_scan(plan.left, access)
        case _:
            return None
