"""Rows that decide, said in SQL: the first rank of every order, one after another.

Law: rows and columns are those of the node; each branch is a rank of at most one, which Spark cuts
before it shuffles. Reading the child once per order costs less than ranking all rows by each.
Out of scope: which rows decide (`rules.witnesses`).
"""

from __future__ import annotations

from functools import reduce

from impctl.plan.nodes import (
    ComputedColumn,
    Plan,
    Project,
    SetKind,
    SetOperation,
    SortKey,
    Witness,
    attributes_of,
)
from impctl.rules.witnesses import first_by


def spelled_out(node: Witness) -> Plan:
    """The node as a union of first ranks."""
    columns = attributes_of(node)

    def both(left: Plan, right: Plan) -> Plan:
        return SetOperation(SetKind.UNION, True, left, right, columns, span=node.span)

    return reduce(both, (_first(node, order) for order in node.orders))


def _first(node: Witness, order: tuple[SortKey, ...]) -> Plan:
    columns = tuple(ComputedColumn(a, a.ref()) for a in attributes_of(node))
    return Project(first_by(node, order), columns)
