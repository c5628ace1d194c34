"""Random plans where part of a group matters: a grouping, arithmetic on it, a filter or top-k.

Law: as `random_plans`; the shapes are those in which a wrong rule shows on a tiny table.
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.data.schema import BOOLEAN, DOUBLE, INTEGER, LONG, STRING
from impctl.expr.nodes import (
    Arithmetic,
    ArithmeticOp,
    Call,
    Case,
    Cast,
    Coalesce,
    Compare,
    CompareOp,
    Expr,
    IsNull,
    Literal,
    Negate,
    Not,
)
from impctl.expr.types import type_of
from impctl.plan.nodes import (
    Aggregate,
    AggregateCall,
    AggregateOutput,
    Attribute,
    ComputedColumn,
    Distinct,
    Join,
    JoinKind,
    Plan,
    Project,
    Scan,
    Select,
    SetKind,
    SetOperation,
    SortKey,
    TopK,
    attributes_of,
)
from tests.plan.call_types import call_type, other_call
from tests.plan.random_plans import PlanMaker

_INEQUALITIES = (
    CompareOp.LESS,
    CompareOp.LESS_EQUAL,
    CompareOp.GREATER,
    CompareOp.GREATER_EQUAL,
)

_COMBINING = (JoinKind.INNER,) * 4 + (JoinKind.SEMI,) * 2 + (JoinKind.ANTI, JoinKind.LEFT)


class FocusedMaker(PlanMaker):
    """Groups first, then something that looks at the groups."""

    def plan(self) -> Plan:
        rng = self.rng
        plan = self._judged(self._grouped(self._base()))
        match rng.randrange(9):
            case 0:
                plan = self._judged(self._grouped(plan))
            case 1:
                plan = Distinct(plan)
            case 2:
                other = (
                    self._scan()
                    if rng.random() < 0.6
                    else self._judged(self._grouped(self._base()))
                )
                kind = rng.choice(_COMBINING)
                left, right = (plan, other) if rng.random() < 0.7 else (other, plan)
                condition = self._condition(attributes_of(left), attributes_of(right))
                plan = Join(kind, left, right, condition)
            case 3:
                plan = self._limited(plan)
            case _:
                pass
        return plan

    def _base(self) -> Plan:
        rng = self.rng
        plan: Plan
        match rng.randrange(8):
            case 0:
                left, right = self._scan(), self._scan()
                plan = Join(
                    rng.choice((JoinKind.INNER, JoinKind.INNER, JoinKind.LEFT)),
                    left,
                    right,
                    self._condition(left.attributes, right.attributes),
                )
            case 1:
                plan = self._twins()
            case _:
                plan = self._scan()
        if rng.random() < 0.35:
            column = self._numeric(attributes_of(plan))
            if column is not None:
                bound = Literal(rng.choice((0, 0, 0, 1, -1)), INTEGER)
                plan = Select(plan, Compare(rng.choice(_INEQUALITIES), column.ref(), bound))
        return plan

    def _twins(self) -> Plan:
        """UNION ALL of the same table twice."""
        left, right = self._scan(), self._scan()
        wide = min(len(left.attributes), len(right.attributes), 3)
        same = left.table == right.table
        if not same:
            return left
        outputs = tuple(self._fresh(a.type) for a in left.attributes[:wide])
        return SetOperation(
            SetKind.UNION, True, self._first(left, wide), self._first(right, wide), outputs
        )

    def _first(self, scan: Scan, wide: int) -> Plan:
        kept = scan.attributes[:wide]
        return Project(scan, tuple(ComputedColumn(self._fresh(a.type), a.ref()) for a in kept))

    def _numeric(self, attributes: Sequence[Attribute]) -> Attribute | None:
        result = [a for a in attributes if a.type is not None and a.type.is_numeric]
        return self.rng.choice(result) if result else None

    def _grouped(self, child: Plan) -> Aggregate:
        rng, attributes = self.rng, attributes_of(child)
        keys: list[Expr] = [] if rng.random() < 0.08 else [attributes[0].ref()]
        if rng.random() < 0.25:
            keys.append(rng.choice(attributes).ref())
        keys = list(dict.fromkeys(keys))
        calls = [self._focused_call(attributes) for _ in range(rng.choice((1, 1, 2)))]
        sets = None
        if len(keys) == 2 and rng.random() < 0.3:
            sets = ((0, 1), rng.choice(((0,), (1,))))
        return Aggregate(
            child,
            tuple(ComputedColumn(self._fresh(type_of(key)), key) for key in keys),
            tuple(AggregateOutput(self._fresh(call_type(call)), call) for call in calls),
            sets,
        )

    def _focused_call(self, attributes: Sequence[Attribute]) -> AggregateCall:
        rng = self.rng
        if rng.random() < 0.25:
            return self._call(attributes)
        column = self._numeric(attributes)
        if column is None or rng.random() < 0.15:
            return AggregateCall("count")
        if rng.random() < 0.08:
            return other_call(rng, attributes)
        argument: Expr = column.ref()
        if rng.random() < 0.25:
            argument = self.number(attributes, 1)
        return AggregateCall(rng.choice(("sum", "min", "max", "max", "count")), (argument,))

    def _judged(self, groups: Plan) -> Plan:
        """Arithmetic on the groups' values, then a filter or top-k on the outcome."""
        rng = self.rng
        plan = groups
        if rng.random() < 0.45:
            plan = self._reckoned(plan)
        attributes = attributes_of(plan)
        last = attributes[-1] if rng.random() < 0.8 else rng.choice(attributes)
        if rng.random() < 0.35:
            return self._ranked(plan, last)
        if last.type == BOOLEAN:
            condition: Expr = last.ref()
            return Select(plan, condition if rng.random() < 0.6 else Not(condition))
        if last.type == STRING or last.type is None:
            return Select(plan, self.predicate(attributes))
        bound: Expr = Literal(rng.choice((-3, -2, -1, 0, 0, 1, 2, 3, 4)), INTEGER)
        op = rng.choice(_INEQUALITIES)
        if rng.random() < 0.06:
            return Select(plan, Not(IsNull(last.ref())))
        if rng.random() < 0.08:
            return Select(plan, self.predicate(attributes))
        if rng.random() < 0.1:
            bound = rng.choice(attributes).ref()
            if type_of(bound) not in (INTEGER, LONG, DOUBLE):
                bound = Literal(1, INTEGER)
        left, right = (last.ref(), bound) if rng.random() < 0.7 else (bound, last.ref())
        return Select(plan, Compare(op, left, right))

    def _reckoned(self, plan: Plan) -> Plan:
        attributes = attributes_of(plan)
        outputs = [ComputedColumn(self._fresh(a.type), a.ref()) for a in attributes[:-1]]
        expr = self._steps(attributes)
        outputs.append(ComputedColumn(self._fresh(type_of(expr)), expr))
        return Project(plan, tuple(outputs))

    def _steps(self, attributes: Sequence[Attribute]) -> Expr:
        rng, last = self.rng, attributes[-1]
        expr: Expr = last.ref()
        if last.type is None or not last.type.is_numeric:
            return expr
        for _ in range(rng.choice((1, 1, 2))):
            other = self._numeric(attributes)
            beside = other.ref() if other is not None else Literal(1, INTEGER)
            match rng.randrange(8):
                case 0:
                    expr = Negate(expr)
                case 1:
                    expr = Arithmetic(ArithmeticOp.ADD, expr, beside)
                case 2:
                    expr = Arithmetic(ArithmeticOp.SUBTRACT, beside, expr)
                case 3:
                    factor = Literal(rng.choice((-1, 0, 2)), INTEGER)
                    expr = Arithmetic(ArithmeticOp.MULTIPLY, expr, factor)
                case 4:
                    expr = Coalesce((expr, Literal(rng.choice((-2, 0, 0, 2)), INTEGER)))
                case 5:
                    expr = Cast(expr, DOUBLE)
                case 6:
                    expr = Call("abs", (expr,), type_of(expr))
                case _:
                    condition = Compare(CompareOp.GREATER, expr, Literal(0, INTEGER))
                    expr = Case(((condition, expr),), Literal(0, INTEGER))
        return expr

    def _ranked(self, plan: Plan, by: Attribute) -> Plan:
        rng = self.rng
        order = [SortKey(by.ref(), rng.random() < 0.5, rng.random() < 0.5)]
        if rng.random() < 0.6:
            order += [SortKey(a.ref(), False, True) for a in attributes_of(plan)[:1]]
        if rng.random() < 0.25:
            return self._rank_filter(plan)
        return TopK(plan, tuple(order), rng.choice((1, 1, 2)), int(rng.random() < 0.15))
