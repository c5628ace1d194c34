"""Whether a query needs every row of its tables; used where advice about its sketch is given."""

from __future__ import annotations

from impctl.plan.nodes import (
    Aggregate,
    Distinct,
    Plan,
    Project,
    Scan,
    Select,
    SetKind,
    SetOperation,
    Sort,
    Window,
)
from impctl.plan.one_row import OneRow


def counts_every_row(plan: Plan) -> bool:
    """Whether each row has a part in the answer, whatever the tables hold, so that none can be left
    out: nothing filters, joins or cuts, but HAVING of all rows together."""
    match plan:
        case Scan() | OneRow():
            return True
        case Select():
            return _is_of_all_rows(plan.child) and counts_every_row(plan.child)
        case Project() | Aggregate() | Distinct() | Sort() | Window():
            return counts_every_row(plan.child)
        case SetOperation(kind=SetKind.UNION):
            return counts_every_row(plan.left) and counts_every_row(plan.right)
        case _:
            return False


def _is_of_all_rows(plan: Plan) -> bool:
    while isinstance(plan, Project | Select):
        plan = plan.child
    return isinstance(plan, Aggregate) and not plan.keys and plan.grouping_sets is None
