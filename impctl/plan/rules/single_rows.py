"""LIMIT, ORDER BY and DISTINCT over at most one row, left out.

Law: the bag of rows stays the same. One row by the plan's form: an aggregate without GROUP BY, and
what filters, computes, limits to one or joins such rows one to one. `LIMIT k` of it is all of it
where k is at least 1 and nothing is skipped, so it has a fixed answer and ranks nothing.
Out of scope: rows that only a table's values make single (`WHERE id = 5`).
"""

from __future__ import annotations

from typing import assert_never

from impctl.plan.nodes import (
    Aggregate,
    Distinct,
    Explode,
    Fixpoint,
    Join,
    JoinKind,
    Plan,
    Project,
    Recursive,
    Scan,
    Select,
    SetKind,
    SetOperation,
    Sort,
    TopK,
    Window,
    Witness,
    inputs_of,
    with_inputs,
)
from impctl.plan.one_row import OneRow


def single_rows(root: Plan) -> Plan:
    """The plan without steps that one row passes as it is."""
    inputs = inputs_of(root)
    plan = with_inputs(root, tuple(single_rows(child) for child in inputs)) if inputs else root
    match plan:
        case Sort() | Distinct() if has_one_row_at_most(plan.child):
            return plan.child
        case TopK(rank=None, offset=0, count=count) if has_one_row_at_most(plan.child):
            return plan if count == 0 else plan.child
        case _:
            return plan


def has_one_row_at_most(plan: Plan) -> bool:
    """Whether the plan has never more than one row, whatever the tables hold."""
    match plan:
        case Aggregate():
            return not plan.keys and plan.grouping_sets is None
        case TopK(rank=None, count=(0 | 1)):
            return True
        case Select() | Project() | Distinct() | Sort() | TopK() | Window():
            return has_one_row_at_most(plan.child)
        case Join(kind=JoinKind.SEMI | JoinKind.ANTI):
            return has_one_row_at_most(plan.left)
        case Join(kind=JoinKind.INNER | JoinKind.LEFT | JoinKind.RIGHT):
            return has_one_row_at_most(plan.left) and has_one_row_at_most(plan.right)
        case SetOperation(kind=SetKind.EXCEPT | SetKind.INTERSECT):
            return has_one_row_at_most(plan.left)
        case OneRow():
            return True
        case Scan() | Join() | SetOperation() | Witness() | Explode():
            return False
        case Recursive() | Fixpoint():
            return False
        case _:
            assert_never(plan)
