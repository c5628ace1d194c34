"""Which column of an access comes up through a plan unchanged as a given attribute.

Law: every row of the plan comes of rows of the access with the very value in that column, and of
all such that it would come of without others. Only selections, projections, sorts, inner joins,
DISTINCT and the keys of groupings are looked through.
Out of scope: what is made of it (`app.capturing.partners`).
"""

from __future__ import annotations

from impctl.aliases import AttributeId
from impctl.expr.nodes import ColumnRef
from impctl.plan.nodes import (
    Aggregate,
    Distinct,
    Join,
    JoinKind,
    Plan,
    Project,
    Scan,
    Select,
    Sort,
    attributes_of,
)
from impctl.plan.rules.joined_columns import ScanColumn


def column_behind(plan: Plan, wanted: AttributeId) -> ScanColumn | None:
    """The column behind an attribute that the plan yields; None where it is another value."""
    match plan:
        case Scan():
            own = (a for a in plan.attributes if a.id == wanted)
            return next((ScanColumn(plan.access, attribute) for attribute in own), None)
        case Select() | Sort() | Distinct():
            return column_behind(plan.child, wanted)
        case Project():
            for output in plan.outputs:
                if output.attribute.id == wanted and isinstance(output.expr, ColumnRef):
                    return column_behind(plan.child, output.expr.id)
        case Aggregate(grouping_sets=None):
            for key in plan.keys:
                if key.attribute.id == wanted and isinstance(key.expr, ColumnRef):
                    return column_behind(plan.child, key.expr.id)
        case Join(kind=JoinKind.INNER):
            sides = [
                side
                for side in (plan.left, plan.right)
                if wanted in {attribute.id for attribute in attributes_of(side)}
            ]
            return column_behind(sides[0], wanted) if len(sides) == 1 else None
    return None
