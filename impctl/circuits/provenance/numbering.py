"""Plans whose rows bring along the numbers of the rows that they are made of.

Law: the plan has the rows of the one given, each as often as there are ways to make it, with the
numbers of the rows behind it in columns of their own; NULL where a branch of a UNION has fewer, and
a number below zero for the branch, so that no two rows have the same. What gives a row once for
many (DISTINCT, UNION, a grouping, a fixpoint) is evaluated first and read like a table; so are
EXISTS and IN below what counts rows, where a row is there as often as it is, however many partners
it has. What makes rows of the absence of others, or of their places in an order, has no such plan:
BlockedError with its place.
Out of scope: evaluating (`circuits.provenance.program`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from impctl.circuits.flows import BlockedError
from impctl.data.schema import LONG
from impctl.expr.nodes import Expr, Literal
from impctl.plan.nodes import (
    Aggregate,
    Attribute,
    ComputedColumn,
    Distinct,
    Fixpoint,
    Join,
    JoinKind,
    OneRow,
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
    attributes_of,
)
from impctl.values import dataclass

NUMBER = "_impctl_number"
"""The column of a table's rows that has their numbers."""


@dataclass(frozen=True, slots=True)
class NumberedPlan:
    """A plan and those of its columns that are numbers of rows."""

    plan: Plan
    numbers: tuple[Attribute, ...]


@dataclass(frozen=True, slots=True)
class Numbering:
    """Rewrites plans; `evaluated` gives what to read in place of a node that gives rows once."""

    evaluated: Callable[[Plan], Scan]

    def of(self, plan: Plan, *, is_counted: bool = False) -> NumberedPlan:
        """The plan with numbers, for what counts its rows or asks which there are; BlockedError
        where a part has none."""
        match plan:
            case Scan() | Recursive():
                number = number_of(plan)
                scan = replace(plan, attributes=(*plan.attributes, number))
                return NumberedPlan(scan, (number,))
            case OneRow():
                # It is there whatever the tables hold: nothing is needed for it.
                return NumberedPlan(plan, ())
            case Select() | Sort():
                below = self.of(plan.child, is_counted=is_counted)
                return NumberedPlan(replace(plan, child=below.plan), below.numbers)
            case Project():
                below = self.of(plan.child, is_counted=is_counted)
                outputs = (*plan.outputs, *_passed(below.numbers))
                return NumberedPlan(replace(plan, child=below.plan, outputs=outputs), below.numbers)
            case Join(kind=JoinKind.SEMI) if is_counted:
                return self.of(self.evaluated(plan))
            case Join(kind=JoinKind.INNER | JoinKind.SEMI):
                return self._joined(plan, is_counted)
            case SetOperation(kind=SetKind.UNION, all=True):
                return self._either(plan, is_counted)
            case Distinct() | Aggregate() | Fixpoint():
                return self.of(self.evaluated(plan))
            case SetOperation(kind=SetKind.UNION):
                return self.of(self.evaluated(Distinct(replace(plan, all=True), plan.span)))
        raise BlockedError(_reason(plan), plan.span)

    def _joined(self, plan: Join, is_counted: bool) -> NumberedPlan:
        left, right = (self.of(one, is_counted=is_counted) for one in (plan.left, plan.right))
        numbers = (*left.numbers, *right.numbers)
        joined = Join(JoinKind.INNER, left.plan, right.plan, plan.condition, span=plan.span)
        if plan.kind is JoinKind.INNER:
            return NumberedPlan(joined, numbers)
        # Every partner is a way of its own in which EXISTS or IN is true.
        own = tuple(ComputedColumn(one, one.ref()) for one in attributes_of(plan.left))
        return NumberedPlan(Project(joined, (*own, *_passed(numbers)), plan.span), numbers)

    def _either(self, plan: SetOperation, is_counted: bool) -> NumberedPlan:
        sides = [self.of(one, is_counted=is_counted) for one in (plan.left, plan.right)]
        most = max(len(side.numbers) for side in sides) + 1
        name = f"{plan.attributes[0].id if plan.attributes else id(plan)}/{NUMBER}"
        numbers = tuple(_number(f"{name}{at}") for at in range(most))
        wide: list[Plan] = []
        for place, (side, child) in enumerate(zip(sides, (plan.left, plan.right), strict=True)):
            result: list[Expr] = [Literal(-1 - place, LONG)]
            result += [number.ref() for number in side.numbers]
            result += [Literal(None, LONG)] * (most - len(result))
            own = tuple(ComputedColumn(one, one.ref()) for one in attributes_of(child))
            made = tuple(
                ComputedColumn(_number(f"{name}{at}/{place}"), expr)
                for at, expr in enumerate(result)
            )
            wide.append(Project(side.plan, (*own, *made), plan.span))
        left, right = wide
        attributes = (*plan.attributes, *numbers)
        return NumberedPlan(replace(plan, left=left, right=right, attributes=attributes), numbers)


def numbered(rows: pa.Table, start: int) -> pa.Table:
    """Rows of a table with numbers from `start` on."""
    numbers = np.arange(start, start + len(rows), dtype=np.int64)
    return rows.append_column(NUMBER, pa.array(numbers))


def number_of(leaf: Scan | Recursive) -> Attribute:
    """The column of a leaf that has the numbers of its rows."""
    name = leaf.access if isinstance(leaf, Scan) else leaf.attributes[0].id
    return Attribute(f"{name}/{NUMBER}", NUMBER, LONG, nullable=False)


def _number(name: str) -> Attribute:
    return Attribute(name, NUMBER, LONG)


def _passed(numbers: tuple[Attribute, ...]) -> tuple[ComputedColumn, ...]:
    return tuple(ComputedColumn(number, number.ref()) for number in numbers)


def _reason(plan: Plan) -> str:
    """Why rows of a node are not made of rows below it alone."""
    match plan:
        case Join(kind=JoinKind.ANTI):
            return "NOT EXISTS, NOT IN or an anti join returns rows because other rows do not exist"
        case Join(kind=kind):
            return f"a {kind} join returns rows because other rows do not exist"
        case SetOperation(kind=kind):
            return f"{kind.upper()} returns rows because other rows exist or do not exist"
        case TopK():
            return "the rows that a LIMIT or a rank returns depend on all other rows"
        case Window():
            return "a window function's value depends on all rows of its window"
    return f"{type(plan).__name__} cannot be traced to rows"
