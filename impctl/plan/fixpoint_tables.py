"""Fixpoints taken for tables: plans that read the rows derived as any other rows.

Law: over a table that holds the rows of a fixpoint, the plan with that table in the fixpoint's
place yields what it did. The step over the same table yields a row for every derivation whose rows
are in the fixpoint; so what of the tables base and step use, over it, is all that derives its rows.
Where the best rows alone are kept, what derives other ones is left out (`deriving`).
Columns of such a table are called by their places, since those of a WITH entry may share a name.
Out of scope: deriving the rows (`spark.rounds`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from impctl.expr.nodes import And, Compare, CompareOp
from impctl.plan.nodes import (
    Attribute,
    Fixpoint,
    Join,
    JoinKind,
    Plan,
    Recursive,
    Scan,
    attributes_of,
    inputs_of,
    with_inputs,
)
from impctl.types import AccessId


def table_of(node: Fixpoint | Recursive) -> Scan:
    """An access of the table that holds the rows, under the node's attributes."""
    name = node.id if isinstance(node, Fixpoint) else node.fixpoint
    columns = tuple(
        replace(attribute, name=column)
        for attribute, column in zip(node.attributes, column_names(node), strict=True)
    )
    return Scan(_access(node.attributes[0]), name, columns, span=node.span)


def column_names(node: Fixpoint | Recursive) -> list[str]:
    """What the columns of such a table are called."""
    return [f"column{place}" for place in range(len(node.attributes))]


def _access(first: Attribute) -> AccessId:
    return f"rows of {first.id}"


def outer_fixpoints(plan: Plan) -> Iterator[Fixpoint]:
    """The fixpoints of a plan that are in no other one."""
    if isinstance(plan, Fixpoint):
        yield plan
        return
    for child in inputs_of(plan):
        yield from outer_fixpoints(child)


def is_recursive(plan: Plan) -> bool:
    """Whether there is a fixpoint in it."""
    return next(outer_fixpoints(plan), None) is not None


def over_tables(plan: Plan) -> Plan:
    """The plan with tables in the place of its outer fixpoints."""
    if isinstance(plan, Fixpoint):
        return table_of(plan)
    return with_inputs(plan, tuple(map(over_tables, inputs_of(plan))))


def leaves_of(fixpoint: Fixpoint) -> tuple[Recursive, ...]:
    """The places of the step that read the rows derived."""
    return tuple(_leaves(fixpoint.step, fixpoint))


def _leaves(plan: Plan, fixpoint: Fixpoint) -> Iterator[Recursive]:
    if isinstance(plan, Recursive) and plan.fixpoint == fixpoint.id:
        yield plan
    for child in inputs_of(plan):
        yield from _leaves(child, fixpoint)


def step_over_table(fixpoint: Fixpoint) -> Plan:
    """The step, with tables in the place of its own rows."""
    return _over_table(fixpoint.step, fixpoint)


def _over_table(plan: Plan, fixpoint: Fixpoint) -> Plan:
    if isinstance(plan, Recursive) and plan.fixpoint == fixpoint.id:
        return table_of(plan)
    return with_inputs(plan, tuple(_over_table(child, fixpoint) for child in inputs_of(plan)))


def deriving(fixpoint: Fixpoint) -> tuple[Plan, Plan]:
    """The base, and the step over the table: what derives rows of the fixpoint."""
    step = step_over_table(fixpoint)
    if fixpoint.best is None:
        return fixpoint.base, step
    return of_rows(fixpoint.base, fixpoint), of_rows(step, fixpoint)


def of_rows(plan: Plan, fixpoint: Fixpoint) -> Plan:
    """Of the plan's rows those that are in the table of the fixpoint's rows."""
    table = table_of(fixpoint)
    pairs = zip(attributes_of(plan), table.attributes, strict=True)
    same = tuple(Compare(CompareOp.NULL_SAFE_EQUAL, one.ref(), other.ref()) for one, other in pairs)
    return Join(JoinKind.SEMI, plan, table, same[0] if len(same) == 1 else And(same))
