"""Rows on the way through a circuit as a plan over the tables, so that others can read them too.

Law: the plan's rows are those that the flow it was made for has seen in all, with the fragment of
every sketched access beside them. Only selections, projections and inner joins have such a plan
with fragments; above a grouping, another join or a set operation the rows are the engine's own.
Out of scope: running the plan (`circuits.reading.transient`, `app.capturing.partners.by_spark`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from impctl.circuits.flows import Column, Flow
from impctl.data.schema import INTEGER
from impctl.engine.operator import Operator
from impctl.plan.nodes import (
    Attribute,
    ComputedColumn,
    Join,
    Plan,
    Project,
    Scan,
    Select,
    Sort,
    attributes_of,
    scans_of,
)
from impctl.types import AccessId, AttributeId, ColumnName
from impctl.values import dataclass

FRAGMENT_COLUMN: ColumnName = "__impctl_fragment"
"""The fragment's column among a table's own."""


@dataclass(frozen=True, slots=True)
class Readable:
    """Rows that can be read anew: `columns`, then the fragment of each access, from `plan`.

    `name` is that of the side, or of the join, whose rows they are; `keys` are the columns by which
    a side is asked. `rows` is the plan without fragments, which yields more columns perhaps.
    Above a grouping, another join or a set operation, where rows may have many fragments of an
    access or none, Spark is not asked, and `plan` is `rows`.
    """

    name: str
    rows: Plan
    plan: Plan
    columns: tuple[Column, ...]
    keys: tuple[AttributeId, ...]
    accesses: tuple[AccessId, ...]

    def reads(self, access: AccessId) -> bool:
        """Whether an access of a table is below it."""
        return any(scan.access == access for scan in scans_of(self.rows))


@dataclass(frozen=True, slots=True)
class DistantJoin:
    """An operator with inputs that are not kept; the rows it gives, and those of such an input.

    `joined` is None where it finds its pairs itself while it is filled.
    """

    operator: Operator
    joined: Readable | None
    sides: tuple[Readable, ...]


def fragment_attribute(access: AccessId) -> Attribute:
    """The fragment of the rows of an access, as a column."""
    return Attribute(f"impctl/fragment/{access}", FRAGMENT_COLUMN, INTEGER, nullable=False)


def with_fragments(plan: Plan, accesses: Collection[AccessId]) -> Plan:
    """The plan with the fragments of these accesses carried up from their scans."""
    match plan:
        case Scan():
            if plan.access not in accesses:
                return plan
            return replace(plan, attributes=(*plan.attributes, fragment_attribute(plan.access)))
        case Project():
            child = with_fragments(plan.child, accesses)
            passed = tuple(
                ComputedColumn(attribute, attribute.ref())
                for attribute in map(fragment_attribute, accesses)
                if attribute in attributes_of(child)
            )
            return replace(plan, child=child, outputs=(*plan.outputs, *passed))
        case Select() | Sort():
            return replace(plan, child=with_fragments(plan.child, accesses))
        case Join():
            left = with_fragments(plan.left, accesses)
            return replace(plan, left=left, right=with_fragments(plan.right, accesses))
        case _:
            raise AssertionError(f"no range passes {type(plan).__name__} below a grouping")


def read_by_engine(
    flow: Flow, name: str, columns: tuple[Column, ...], keys: tuple[AttributeId, ...]
) -> Readable:
    """The rows of a flow that can be read, in these columns, by these keys."""
    if flow.plan is not None:
        return readable(name, flow.plan, columns, keys, flow.accesses)
    assert flow.computed is not None, "only what can be read is asked for"
    return Readable(name, flow.computed, flow.computed, columns, keys, flow.accesses)


def readable(
    name: str,
    plan: Plan,
    columns: tuple[Column, ...],
    keys: tuple[AttributeId, ...],
    accesses: tuple[AccessId, ...],
) -> Readable:
    """The rows of `plan`, in exactly these columns."""
    outputs = [
        ComputedColumn(a, a.ref()) for a in (Attribute(key, key, kind) for key, kind in columns)
    ]
    fragments = [ComputedColumn(a, a.ref()) for a in map(fragment_attribute, accesses)]
    chosen = Project(with_fragments(plan, accesses), (*outputs, *fragments))
    return Readable(name, plan, chosen, columns, keys, accesses)
