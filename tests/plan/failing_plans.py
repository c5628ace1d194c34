"""Random plans that can fail: quotients, casts and sums of groups, of which a sketch keeps a part.

Law: as `focused_plans`; numbers lie near the ends of their types in part of the trials, and what
may fail is guarded in part of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from random import Random

from impctl.data.schema import BYTE, DOUBLE, INTEGER, LONG, Column, Schema, decimal
from impctl.expr.nodes import (
    Arithmetic,
    ArithmeticOp,
    Case,
    Cast,
    Compare,
    CompareOp,
    Expr,
    Literal,
    Not,
)
from impctl.expr.types import type_of
from impctl.plan.nodes import (
    Aggregate,
    AggregateCall,
    AggregateOutput,
    Attribute,
    ComputedColumn,
    Plan,
    Project,
    SortKey,
    TopK,
    attributes_of,
)
from tests.plan.call_types import call_type
from tests.plan.focused_plans import FocusedMaker

_SMALL = decimal(4, 1)
_FULL = decimal(38, 2)
BIG_TABLE = Schema(
    (Column("g", INTEGER), Column("p", INTEGER), Column("b", LONG), Column("m", _FULL))
)
BIG_VALUES = {
    LONG: (-(2**62), -1, 0, 1, 2**62, 2**62 - 1, 2**40, 7),
    _FULL: tuple(Decimal(x) for x in ("-9e35", "0.00", "0.25", "9e35", "5e35", "3.00")),
    INTEGER: (-(2**31), -2, 0, 1, 2, 2**31 - 1),
}
_DIVISIONS = (ArithmeticOp.DIVIDE, ArithmeticOp.DIVIDE, ArithmeticOp.INTEGER_DIVIDE,
              ArithmeticOp.REMAINDER)  # fmt: skip
_NULL = None


class FailingMaker(FocusedMaker):
    """Groups, then steps that may fail over a part of one, then a filter or the first groups."""

    def plan(self) -> Plan:
        return super().plan() if self.rng.random() < 0.2 else self._first_of_groups()

    def _first_of_groups(self) -> Plan:
        """`SELECT g, <step> FROM t GROUP BY g ORDER BY COUNT(*) DESC, g LIMIT k`, or the like."""
        rng, scan = self.rng, self._scan()
        key = scan.attributes[0]
        calls = [AggregateCall("count")]
        for _ in range(2):
            summed = self._numeric(scan.attributes[2:]) or key
            name = rng.choice(("sum", "sum", "sum", "sum", "avg", "count", "max"))
            calls.append(AggregateCall(name, (summed.ref(),)))
        made = tuple(AggregateOutput(self._fresh(call_type(call)), call) for call in calls)
        groups = Aggregate(scan, (ComputedColumn(self._fresh(key.type), key.ref()),), made)
        attributes = attributes_of(groups)
        expr = self._steps(attributes[:1] + attributes[1:])
        outputs = [ComputedColumn(self._fresh(a.type), a.ref()) for a in attributes]
        outputs.append(ComputedColumn(self._fresh(type_of(expr)), expr))
        steps = Project(groups, tuple(outputs))
        first, counted = outputs[0].attribute, outputs[1].attribute
        order = (SortKey(counted.ref(), True, False), SortKey(first.ref(), False, True))
        return TopK(steps, order, rng.choice((1, 1, 2)))

    def _steps(self, attributes: Sequence[Attribute]) -> Expr:
        rng = self.rng
        if rng.random() < 0.2:
            return super()._steps(attributes)
        expr: Expr = attributes[-1].ref()
        if not _is_number(expr):
            return expr
        for _ in range(rng.choice((1, 1, 2))):
            step = self._step(expr, self._numeric(attributes))
            expr = step if _is_number(step) else expr
        return expr

    def _step(self, expr: Expr, other: Attribute | None) -> Expr:
        rng = self.rng
        beside: Expr = Literal(rng.choice((2, 3, -1, 0)), INTEGER)
        if other is not None and rng.random() < 0.8:
            beside = other.ref()
        match rng.randrange(7):
            case 0 | 1 | 2:
                op = rng.choice(_DIVISIONS)
                if op is ArithmeticOp.INTEGER_DIVIDE and not _are_integral(expr, beside):
                    op = ArithmeticOp.DIVIDE
                return self._guarded(op, expr, beside)
            case 3:
                return Cast(expr, rng.choice((INTEGER, BYTE, _SMALL, DOUBLE)))
            case 4:
                op = rng.choice((ArithmeticOp.ADD, ArithmeticOp.SUBTRACT))
                return Arithmetic(op, expr, beside)
            case 5:
                return Arithmetic(ArithmeticOp.MULTIPLY, expr, beside)
            case _:
                return Arithmetic(ArithmeticOp.MULTIPLY, expr, Literal(1000, INTEGER))

    def _guarded(self, op: ArithmeticOp, expr: Expr, divisor: Expr) -> Expr:
        """The division, by itself or where the divisor is not zero; now and then in vain."""
        rng = self.rng
        zero = Literal(0, INTEGER)
        null = Literal(_NULL, type_of(divisor) or INTEGER)
        plain = Arithmetic(op, expr, divisor)
        match rng.randrange(10):
            case 0:
                tested = Compare(CompareOp.EQUAL, divisor, zero)
                return Arithmetic(op, expr, Case(((tested, null),), divisor))
            case 1:
                chosen = rng.choice((CompareOp.GREATER, CompareOp.LESS, CompareOp.NOT_EQUAL))
                return Case(((Compare(chosen, divisor, zero), plain),), expr)
            case 2:
                return Case(((Compare(CompareOp.EQUAL, divisor, zero), expr),), plain)
            case 3:
                tested = Not(Compare(CompareOp.EQUAL, divisor, zero))
                return Case(((tested, plain),), expr)
            case 4:
                # A guard that guards nothing.
                wrong = rng.choice((CompareOp.GREATER_EQUAL, CompareOp.EQUAL))
                return Case(((Compare(wrong, divisor, zero), plain),), expr)
            case 5:
                tested = Compare(CompareOp.EQUAL, divisor, Literal(1, INTEGER))
                return Arithmetic(op, expr, Case(((tested, null),), divisor))
            case _:
                return plain


def _is_number(expr: Expr) -> bool:
    own = type_of(expr)
    return own is not None and own.is_numeric


def _are_integral(*exprs: Expr) -> bool:
    return all((own := type_of(expr)) is not None and own.is_integral for expr in exprs)


def big_rows(rng: Random) -> list[dict[str, object]]:
    """Rows of two groups with numbers near the ends of their types."""
    signs = {column.name: rng.choice((-1, 0, 0, 1)) for column in BIG_TABLE}
    rows = []
    for _ in range(rng.randint(4, 10)):
        row: dict[str, object] = {}
        for column in BIG_TABLE:
            values = [v for v in BIG_VALUES[column.type] if v * signs[column.name] >= 0]
            row[column.name] = None if rng.random() < 0.1 else rng.choice(values)
        rows.append({**row, "g": rng.choice((0, 0, 1, 2)), "p": rng.choice((0, 1, 2, 3))})
    return rows
