"""The scalar expressions that stand in a plan node.

Law: all of the node itself, none of what is below it. Out of scope: what they mean where they
stand (`plan.nodes`).
"""

from __future__ import annotations

from impctl.expr.nodes import Expr
from impctl.plan.nodes import (
    Aggregate,
    Distinct,
    Explode,
    Fixpoint,
    Join,
    Plan,
    Project,
    Recursive,
    Scan,
    Select,
    SetOperation,
    Sort,
    TopK,
    Window,
    Witness,
)
from impctl.plan.one_row import OneRow


def expressions_of(node: Plan) -> tuple[Expr, ...]:
    """All scalar expressions of the node itself."""
    match node:
        case Select():
            return (node.predicate,)
        case Project():
            return tuple(output.expr for output in node.outputs)
        case Join():
            return () if node.condition is None else (node.condition,)
        case Aggregate():
            calls = [output.call for output in node.aggregates]
            conditions = (call.condition for call in calls if call.condition is not None)
            arguments = (argument for call in calls for argument in call.arguments)
            return (*(key.expr for key in node.keys), *arguments, *conditions)
        case TopK():
            return (*node.partition_by, *(key.expr for key in node.order))
        case Sort():
            return tuple(key.expr for key in node.order)
        case Witness():
            return (*node.partition_by, *(key.expr for order in node.orders for key in order))
        case Window():
            return tuple(
                part
                for call in node.calls
                for part in (*call.arguments, *call.partition_by, *(k.expr for k in call.order))
            )
        case Explode():
            return (node.array,)
        case Scan() | Distinct() | SetOperation() | Recursive() | Fixpoint() | OneRow():
            return ()
