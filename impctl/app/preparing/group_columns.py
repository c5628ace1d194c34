"""Columns of a table access that all rows of a result row's group have in common.

Law: a column named here is a key of every grouping of the plan, whatever it is called on the way.
Out of scope: which attributes are safe (`safety.judge`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from impctl.expr.nodes import ColumnRef, Expr
from impctl.plan.nodes import Aggregate, ComputedColumn, Plan, Project, Scan, nodes_of
from impctl.types import AttributeId, ColumnName


def group_columns(root: Plan, scan: Scan) -> list[ColumnName]:
    """Columns of the access that all rows of a group have in common, at every grouping."""
    names = {attribute.id: attribute.name for attribute in scan.attributes}
    renamed = {
        column.attribute.id: column.expr for node in nodes_of(root) for column in _columns(node)
    }
    shared: set[AttributeId] | None = None
    for node in nodes_of(root):
        if isinstance(node, Aggregate) and node.keys:
            result = {_origin(key.expr, renamed) for key in node.keys}
            shared = result if shared is None else shared & result
    return [names[identity] for identity in sorted(shared or ()) if identity in names]


def _columns(node: Plan) -> Sequence[ComputedColumn]:
    if isinstance(node, Aggregate):
        return node.keys
    return node.outputs if isinstance(node, Project) else ()


def _origin(expr: Expr, renamed: Mapping[AttributeId, Expr]) -> AttributeId:
    """The column that an expression is, whatever it is called on the way; empty for any other."""
    while isinstance(expr, ColumnRef):
        below = renamed.get(expr.id)
        if below is None or below == expr:
            return expr.id
        expr = below
    return ""
