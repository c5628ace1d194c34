"""Rows that decide, said in SQL: the first rank of every order, one after another.

Law: rows and columns are those of the node; each branch is a rank of at most one, which Spark cuts
before it shuffles. Reading the child once per order costs less than ranking all rows by each.
Out of scope: which rows decide (`plan.rules.witnesses`).
"""

from __future__ import annotations

from functools import reduce

from impctl.data.schema import INTEGER
from impctl.plan.nodes import (
    Attribute,
    ComputedColumn,
    Plan,
    Project,
    SetKind,
    SetOperation,
    SortKey,
    TopK,
    WindowCall,
    Witness,
    attributes_of,
)

_FIRST = Attribute("impctl/first", "first", INTEGER, nullable=False)


def spelled_out(node: Witness) -> Plan:
    """The node as a union of first ranks."""
    columns = attributes_of(node)

    def both(left: Plan, right: Plan) -> Plan:
        return SetOperation(SetKind.UNION, True, left, right, columns, span=node.span)

    return reduce(both, (_first(node, order) for order in node.orders))


def _first(node: Witness, order: tuple[SortKey, ...]) -> Plan:
    rank = WindowCall(_FIRST, "rank", (), node.partition_by, order, span=node.span)
    ranked = TopK(node.child, order, 1, rank=rank, span=node.span)
    return Project(ranked, tuple(ComputedColumn(a, a.ref()) for a in attributes_of(node)))
