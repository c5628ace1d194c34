"""Random typed expressions over some columns: numbers, and conditions that cut a group apart.

Law: everything follows from the source of randomness. Expressions are typed, but not sensible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random

from impctl.data.schema import BOOLEAN, DOUBLE, INTEGER, LONG, STRING, decimal
from impctl.expr.nodes import (
    And,
    Arithmetic,
    ArithmeticOp,
    Call,
    Case,
    Cast,
    Coalesce,
    Compare,
    CompareOp,
    Expr,
    InList,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Or,
)
from impctl.expr.types import type_of
from impctl.plan.nodes import Attribute

ORDERED = (
    CompareOp.LESS,
    CompareOp.LESS_EQUAL,
    CompareOp.GREATER,
    CompareOp.GREATER_EQUAL,
    CompareOp.GREATER,
    CompareOp.GREATER_EQUAL,
)
EQUALITIES = (CompareOp.EQUAL, CompareOp.NOT_EQUAL, CompareOp.NULL_SAFE_EQUAL)


@dataclass
class ExprMaker:
    """Makes one expression after another from one source of randomness."""

    rng: Random

    def number(self, attributes: Sequence[Attribute], depth: int) -> Expr:
        """A numeric expression of a known type."""
        numeric = [a for a in attributes if a.type is not None and a.type.is_numeric]
        for _ in range(6):
            expr = self._number(numeric, attributes, depth)
            result = type_of(expr)
            if result is not None and result.is_numeric:
                return expr
        return Literal(1, INTEGER)

    def _number(
        self, numeric: Sequence[Attribute], attributes: Sequence[Attribute], depth: int
    ) -> Expr:
        rng = self.rng
        if depth <= 0:
            return rng.choice(numeric).ref() if numeric else self._literal()
        inner = self._number(numeric, attributes, depth - 1)
        match rng.randrange(10):
            case 0:
                return Negate(inner)
            case 1 | 2:
                return Arithmetic(
                    rng.choice((ArithmeticOp.ADD, ArithmeticOp.SUBTRACT)),
                    inner,
                    self._number(numeric, attributes, depth - 1),
                )
            case 3:
                return Arithmetic(ArithmeticOp.MULTIPLY, inner, self._literal())
            case 4:
                other = self._number(numeric, attributes, depth - 1)
                return Arithmetic(ArithmeticOp.MULTIPLY, inner, other)
            case 5:
                divisor = Literal(rng.choice((-2, 2, 3)), INTEGER)
                return Arithmetic(ArithmeticOp.DIVIDE, inner, divisor)
            case 6:
                result = type_of(inner)
                to_long = result is not None and result.is_integral and rng.random() < 0.5
                return Cast(inner, LONG if to_long else DOUBLE)
            case 7:
                return Coalesce((inner, self._literal()))
            case 8:
                return Call("abs", (inner,), type_of(inner))
            case _:
                branch = (self.predicate(attributes, 1), inner)
                default: Expr = Literal(None, type_of(inner) or INTEGER)
                return Case((branch,), self._literal() if rng.random() < 0.6 else default)

    def _literal(self) -> Literal:
        rng = self.rng
        if rng.random() < 0.15:
            return Literal(rng.choice((-1.5, 0.0, 0.5, float("nan"))), DOUBLE)
        if rng.random() < 0.1:
            return Literal(Decimal(rng.choice(("-1.5", "0.0", "2.5"))), decimal(2, 1))
        return Literal(rng.choice((-2, -1, 0, 0, 1, 1, 2, 3, 4)), INTEGER)

    def predicate(self, attributes: Sequence[Attribute], depth: int = 2) -> Expr:
        """A condition, mostly a comparison of a late column with a literal."""
        rng = self.rng
        choice = rng.random()
        if depth > 0 and choice < 0.14:
            return And(
                (self.predicate(attributes, depth - 1), self.predicate(attributes, depth - 1))
            )
        if depth > 0 and choice < 0.22:
            return Or(
                (self.predicate(attributes, depth - 1), self.predicate(attributes, depth - 1))
            )
        if depth > 0 and choice < 0.3:
            return Not(self.predicate(attributes, depth - 1))
        return self._atom(attributes)

    def _atom(self, attributes: Sequence[Attribute]) -> Expr:
        rng = self.rng
        column = rng.choice(attributes[-3:] if rng.random() < 0.7 else attributes)
        choice = rng.random()
        if choice < 0.06:
            return IsNull(column.ref())
        if column.type == BOOLEAN:
            return column.ref()
        if column.type == STRING:
            return self._text_atom(column)
        if choice < 0.12:
            options = tuple(Literal(rng.randint(-1, 3), INTEGER) for _ in range(2))
            return InList(column.ref(), options)
        op = rng.choice(ORDERED if rng.random() < 0.85 else EQUALITIES)
        left = column.ref() if rng.random() < 0.75 else self.number(attributes, 1)
        right = self._literal() if rng.random() < 0.85 else self.number(attributes, 0)
        result = type_of(left)
        if result is None or not result.is_numeric:
            return Not(IsNull(left))
        return Compare(op, left, right) if rng.random() < 0.8 else Compare(op, right, left)

    def _text_atom(self, column: Attribute) -> Expr:
        if self.rng.random() < 0.3:
            return Like(column.ref(), self.rng.choice(("a%", "_", "%b")))
        op = self.rng.choice(ORDERED)
        return Compare(op, column.ref(), Literal(self.rng.choice(("a", "b")), STRING))
