"""Which column of an access comes up through a plan unchanged as a given attribute.

Law: every row of the plan with a value there comes of rows of the access with the very value in
that column, and of all such that it would come of without others. Selections, projections, sorts,
DISTINCT and the keys of groupings are looked through, inner joins, and of other joins the side
whose rows each go their own way: an outer join pads rows of the other one.
Out of scope: what is made of it (`app.capturing.partners`).
"""

from __future__ import annotations

from collections.abc import Collection

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
from impctl.types import AttributeId

_BY_LEFT = frozenset({JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI})
_BY_RIGHT = frozenset({JoinKind.INNER, JoinKind.RIGHT})


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
        case Join():
            sides = [
                side
                for side, kinds in ((plan.left, _BY_LEFT), (plan.right, _BY_RIGHT))
                if plan.kind in kinds and wanted in {a.id for a in attributes_of(side)}
            ]
            return column_behind(sides[0], wanted) if len(sides) == 1 else None
    return None


def is_narrowed(plan: Plan, keys: Collection[AttributeId]) -> bool:
    """Whether a read by values of these attributes need not read all of every access."""
    return any(column_behind(plan, key) is not None for key in keys)
