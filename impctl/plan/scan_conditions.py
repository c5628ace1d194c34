"""The conditions that stand right above the scans of a plan.

Law: a row of the access that meets not all of its conditions is dropped there, whatever the plan
makes of the others above.
Out of scope: bringing conditions down to the scans (`plan.rules.push_selections`).
"""

from __future__ import annotations

from collections.abc import Mapping

from impctl.expr.nodes import Expr, conjuncts
from impctl.plan.nodes import Plan, Scan, Select, nodes_of
from impctl.types import AccessId


def scan_conditions(root: Plan) -> Mapping[AccessId, tuple[Expr, ...]]:
    """Per access the conditions on its rows; accesses without one are left out."""
    result: dict[AccessId, tuple[Expr, ...]] = {}
    for node in nodes_of(root):
        conditions: tuple[Expr, ...] = ()
        below = node
        while isinstance(below, Select):
            conditions += conjuncts(below.predicate)
            below = below.child
        if isinstance(below, Scan) and conditions:
            # From above: the first of several filters on a scan has the others below it.
            result.setdefault(below.access, conditions)
    return result
