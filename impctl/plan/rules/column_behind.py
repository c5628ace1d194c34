"""Which column of an access comes up through a plan unchanged as a given attribute.

Law: every row of the plan comes of a row of the access with the very value in that column. Only
selections, projections, sorts and inner joins are looked through.
Out of scope: what is made of it (`app.capturing.partners`).
"""

from __future__ import annotations

from impctl.aliases import AttributeId
from impctl.expr.nodes import ColumnRef
from impctl.plan.nodes import Join, JoinKind, Plan, Project, Scan, Select, Sort, attributes_of
from impctl.plan.rules.joined_columns import ScanColumn


def column_behind(plan: Plan, wanted: AttributeId) -> ScanColumn | None:
    """The column behind an attribute that the plan yields; None where it is another value."""
    match plan:
        case Scan():
            own = (a for a in plan.attributes if a.id == wanted)
            return next((ScanColumn(plan.access, attribute) for attribute in own), None)
        case Select() | Sort():
            return column_behind(plan.child, wanted)
        case Project():
            for output in plan.outputs:
                if output.attribute.id == wanted and isinstance(output.expr, ColumnRef):
                    return column_behind(plan.child, output.expr.id)
        case Join(kind=JoinKind.INNER):
            sides = [
                side
                for side in (plan.left, plan.right)
                if wanted in {attribute.id for attribute in attributes_of(side)}
            ]
            return column_behind(sides[0], wanted) if len(sides) == 1 else None
    return None
