"""The columns that are asked of joined rows, and what they are in terms of the relations' own.

Law: all that a plan reads of its joins, on the way from these to its end, is among the columns;
what is computed of them is computed of joined rows, as the query does.
Out of scope: where a tree keeps them (`circuits.trees.nodes`).
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.circuits.trees.relations import relations_of
from impctl.circuits.trees.taken_apart import Shown
from impctl.expr.nodes import ColumnRef, Expr, columns_of, substitute, walk
from impctl.plan.nodes import (
    Aggregate,
    ComputedColumn,
    Distinct,
    Plan,
    Project,
    Sort,
    attributes_of,
    expressions_of,
    inputs_of,
)
from impctl.types import AttributeId


def joined_columns(root: Plan, joins: Plan) -> tuple[ComputedColumn, ...]:
    """Those columns of the joins that the plan above reads, in terms of the relations' own."""
    wanted, relations = _read_above(root, joins), relations_of(joins)
    return tuple(
        ComputedColumn(one, relations.resolved(one.ref()))
        for one in attributes_of(joins)
        if one.id in wanted
    )


def shown_columns(joined: Sequence[ComputedColumn]) -> Shown:
    """The relations' columns that these are computed of, each once."""
    refs = {
        part.id: part for one in joined for part in walk(one.expr) if isinstance(part, ColumnRef)
    }
    return tuple((ref, ref) for ref in refs.values())


def outputs_above(
    root: Plan, joins: Plan, joined: Sequence[ComputedColumn]
) -> tuple[tuple[AttributeId, Expr], ...] | None:
    """The plan's columns in terms of the relations' own, where there are only columns above the
    joins; None where there is more."""
    exprs: dict[AttributeId, Expr] = {one.id: one.ref() for one in attributes_of(root)}
    node = root
    while node is not joins:
        if not isinstance(node, Project | Sort):
            return None
        if isinstance(node, Project):
            made = {one.attribute.id: one.expr for one in node.outputs}
            exprs = {name: substitute(expr, made) for name, expr in exprs.items()}
        node = node.child
    own = {one.attribute.id: one.expr for one in joined}
    return tuple((name, substitute(expr, own)) for name, expr in exprs.items())


def _read_above(root: Plan, joins: Plan) -> frozenset[AttributeId]:
    wanted = frozenset(one.id for one in attributes_of(root))
    node = root
    while node is not joins:
        read = frozenset().union(*(columns_of(expr) for expr in expressions_of(node)))
        match node:
            case Project() | Aggregate():
                wanted = read
            case Distinct():
                # It tells rows apart by all of them, whatever goes further.
                wanted = frozenset(one.id for one in attributes_of(node))
            case _:
                wanted |= read
        (node,) = inputs_of(node)
    return wanted
