"""The columns that are asked of joined rows, and what they are in terms of the relations' own.

Law: all that a plan reads of its joins, on the way from these to its end, is among the columns;
what is computed of them is computed of joined rows, as the query does.
Out of scope: where a tree keeps them (`circuits.trees.nodes`).
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.aliases import AttributeId
from impctl.circuits.trees.relations import relations_of
from impctl.circuits.trees.taken_apart import Shown
from impctl.expr.nodes import ColumnRef, columns_of, walk
from impctl.plan.nodes import (
    Aggregate,
    ComputedColumn,
    Plan,
    Project,
    attributes_of,
    expressions_of,
    inputs_of,
)


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


def _read_above(root: Plan, joins: Plan) -> frozenset[AttributeId]:
    wanted = frozenset(one.id for one in attributes_of(root))
    node = root
    while node is not joins:
        read = frozenset().union(*(columns_of(expr) for expr in expressions_of(node)))
        wanted = read if isinstance(node, Project | Aggregate) else wanted | read
        (node,) = inputs_of(node)
    return wanted
