"""Which accesses a plan yields nothing without.

Law: where one of them has no row, the plan has none. What an outer join pads, what NOT EXISTS and
EXCEPT leave, and the other branch of a union need no rows of theirs; a grouping without keys has a
row over nothing.
Out of scope: which rows of an access are needed (`plan.rules.joined_columns`).
"""

from __future__ import annotations

from impctl.plan.nodes import (
    Aggregate,
    Join,
    JoinKind,
    Plan,
    Scan,
    SetKind,
    SetOperation,
    inputs_of,
)
from impctl.types import AccessId


def indispensable(plan: Plan) -> frozenset[AccessId]:
    """Accesses without whose rows the plan has none."""
    if isinstance(plan, Scan):
        return frozenset({plan.access})
    below = [indispensable(child) for child in inputs_of(plan)]
    match plan:
        case Join(kind=JoinKind.INNER | JoinKind.SEMI) | SetOperation(kind=SetKind.INTERSECT):
            return below[0] | below[1]
        case Join(kind=JoinKind.LEFT | JoinKind.ANTI) | SetOperation(kind=SetKind.EXCEPT):
            return below[0]
        case Join(kind=JoinKind.RIGHT):
            return below[1]
        case Join() | SetOperation():
            return below[0] & below[1]
        case Aggregate() if not plan.keys or plan.grouping_sets is not None:
            return frozenset()
        case _:
            return below[0] if len(below) == 1 else frozenset()
