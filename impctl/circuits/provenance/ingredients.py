"""What derives the rows of a fixpoint taken apart: ingredients, and what joins them.

Law: the plan with leaves in place of the ingredients derives the fixpoint's rows, those of the base
too, as often as they are derived. An ingredient is conditions and columns over one table, as deep
as joins and UNION ALL allow, and has all columns that the fixpoint reads of the table, here or
elsewhere: so its rows are rows of the table, and those of several ingredients can be told to be
one. Anything else that does not read the fixpoint, as a grouping, is an ingredient as it is, whose
rows are leaves though they are no rows of a table.
Out of scope: the operator that reads them (`circuits.provenance.absorbed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from impctl.circuits.flows import BlockedError
from impctl.expr.nodes import Cast
from impctl.plan.nodes import (
    Attribute,
    ComputedColumn,
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
    attributes_of,
    scans_of,
)
from impctl.plan.recursion import reads_fixpoint
from impctl.types import AttributeId, ColumnName, TableName
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class OfTable:
    """Which table the rows of an ingredient are rows of, and the columns that tell them."""

    table: TableName
    columns: tuple[ColumnName, ...]


@dataclass(frozen=True, slots=True)
class IngredientOfPlan:
    """An ingredient, the leaf that stands for it, and the columns that tell its rows apart.

    `of` is None where they are no rows of a table; without `has_scans` they are there for good.
    """

    plan: Plan
    leaf: Recursive
    told_by: tuple[Attribute, ...]
    of: OfTable | None
    has_scans: bool


@dataclass(frozen=True, slots=True)
class Apart:
    """A fixpoint's base and step as one plan, over its own rows and those of ingredients."""

    plan: Plan
    ingredients: tuple[IngredientOfPlan, ...]


def taken_apart(node: Fixpoint) -> Apart:
    """The base and the step of a fixpoint, under its columns, with all ingredients taken out."""
    read: dict[TableName, dict[ColumnName, Attribute]] = {}
    for scan in scans_of(node):
        read.setdefault(scan.table, {}).update({one.name: one for one in scan.attributes})
    taking = _Taking(node, read)
    base = taking.opened(under_columns_of(node.base, node))
    step = under_columns_of(taking.opened(node.step), node)
    both = SetOperation(SetKind.UNION, True, base, step, node.attributes, span=node.span)
    return Apart(both, tuple(taking.ingredients))


@dataclass(frozen=True, slots=True)
class _Taking:
    node: Fixpoint
    read: Mapping[TableName, Mapping[ColumnName, Attribute]]
    """The columns that are read of each table."""
    ingredients: list[IngredientOfPlan] = field(default_factory=list)

    def opened(self, plan: Plan) -> Plan:
        """The plan with leaves in place of its ingredients."""
        if isinstance(plan, Recursive) and plan.fixpoint == self.node.id:
            return plan
        if not reads_fixpoint(plan, self.node.id) and not _is_joined(plan):
            return self._ingredient(plan)
        match plan:
            case Select() | Project() | Sort():
                return replace(plan, child=self.opened(plan.child))
            case Join() | SetOperation():
                left, right = self.opened(plan.left), self.opened(plan.right)
                return replace(plan, left=left, right=right)
        # What is left is told where rows are numbered.
        return plan

    def _ingredient(self, plan: Plan) -> Plan:
        scans = scans_of(plan)
        own = attributes_of(plan)
        wide = self._with_columns_of_table(plan)
        if wide is not None:
            (scan,) = scans_of(wide)
            of = OfTable(scan.table, tuple(one.name for one in scan.attributes))
            told_by = scan.attributes
        else:
            wide, of, told_by = plan, None, own
        if not attributes_of(wide):
            what = (
                "the engine does not support a part of WITH RECURSIVE without columns, because "
                "its rows cannot be distinguished"
            )
            raise BlockedError(what, plan.span)
        leaf = Recursive(
            f"{self.node.id}/{len(self.ingredients)}", attributes_of(wide), span=plan.span
        )
        self.ingredients.append(IngredientOfPlan(wide, leaf, told_by, of, bool(scans)))
        if len(leaf.attributes) == len(own):
            return leaf
        return Project(leaf, tuple(ComputedColumn(one, one.ref()) for one in own), plan.span)

    def _with_columns_of_table(self, plan: Plan) -> Plan | None:
        """Conditions and columns over a table, and all that are read of it; None for any other."""
        match plan:
            case Scan():
                return self._whole(plan)
            case Select() | Sort():
                below = self._with_columns_of_table(plan.child)
                return None if below is None else replace(plan, child=below)
            case Project():
                below = self._with_columns_of_table(plan.child)
                if below is None:
                    return None
                known: set[AttributeId] = {one.attribute.id for one in plan.outputs}
                (scan,) = scans_of(below)
                more = tuple(
                    ComputedColumn(o, o.ref()) for o in scan.attributes if o.id not in known
                )
                return replace(plan, child=below, outputs=(*plan.outputs, *more))
        return None

    def _whole(self, scan: Scan) -> Scan | None:
        """The scan with all columns; None where there are none."""
        own = {one.name for one in scan.attributes}
        more = (
            replace(one, id=f"{scan.access}.{name}")
            for name, one in self.read[scan.table].items()
            if name not in own
        )
        result = replace(scan, attributes=(*scan.attributes, *more))
        return result if result.attributes else None


def _is_joined(plan: Plan) -> bool:
    """Whether its rows are made of those of several parts, each by itself an ingredient."""
    match plan:
        case Select() | Project() | Sort():
            return _is_joined(plan.child)
        case Join(kind=JoinKind.INNER) | SetOperation(kind=SetKind.UNION, all=True):
            return True
    return False


def under_columns_of(plan: Plan, node: Fixpoint) -> Plan:
    """The base or the step of a fixpoint under the columns, and types, of its rows."""
    pairs = zip(node.attributes, attributes_of(plan), strict=True)
    return Project(
        plan,
        tuple(
            ComputedColumn(
                new, old.ref() if new.type in (None, old.type) else Cast(old.ref(), new.type)
            )
            for new, old in pairs
        ),
        plan.span,
    )
