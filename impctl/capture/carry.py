"""Columns of a table's view carried through a plan to its result.

Law: rows and all other columns stay as they are; a carried column tells of each result row what
the view says of the row it came from. That holds through selection, projection, sorting and
joins that keep the row, and is refused anywhere else.
Out of scope: what carried columns mean above an aggregation (`capture.annotate`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from impctl.aliases import AccessId, AttributeId, ColumnName
from impctl.data.schema import INTEGER
from impctl.errors import QueryError
from impctl.plan.nodes import (
    Attribute,
    Join,
    JoinKind,
    Output,
    Plan,
    Project,
    Scan,
    Select,
    Sort,
    attributes_of,
    inputs_of,
    scans_of,
    with_inputs,
)

ExtraColumns = Mapping[AccessId, tuple[ColumnName, ...]]


def extra_id(access: AccessId, name: ColumnName) -> AttributeId:
    """Identity of an extra column of an access."""
    return f"{access}!{name}"


def carry_columns(plan: Plan, extra: ExtraColumns) -> Plan:
    """The plan with the extra columns (ints) of its accesses added to what it puts out."""
    match plan:
        case Scan():
            added = tuple(
                Attribute(extra_id(plan.access, name), name, INTEGER)
                for name in extra.get(plan.access, ())
            )
            return replace(plan, attributes=(*plan.attributes, *added))
        case Project():
            child = carry_columns(plan.child, extra)
            before = {attribute.id for attribute in attributes_of(plan.child)}
            added_outputs = tuple(
                Output(attribute, attribute.ref())
                for attribute in attributes_of(child)
                if attribute.id not in before
            )
            return replace(plan, child=child, outputs=(*plan.outputs, *added_outputs))
        case Select() | Sort():
            return replace(plan, child=carry_columns(plan.child, extra))
        case Join() if plan.kind not in (JoinKind.SEMI, JoinKind.ANTI):
            return with_inputs(plan, tuple(carry_columns(part, extra) for part in inputs_of(plan)))
        case _:
            return _unchanged(plan, extra)


def _unchanged(plan: Plan, extra: ExtraColumns) -> Plan:
    """A node that cannot carry columns, sound only where nothing below has any."""
    wanted = [scan for scan in scans_of(plan) if extra.get(scan.access)]
    if isinstance(plan, Join) and not any(extra.get(s.access) for s in scans_of(plan.right)):
        return replace(plan, left=carry_columns(plan.left, extra))
    if wanted:
        raise QueryError(
            f"impctl cannot carry a column of `{wanted[0].table}` through this part of the query",
            hint="leave the table unsketched, or use policy `full`",
            code="column_not_carried",
        )
    return plan
