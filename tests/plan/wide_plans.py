"""Random plans that read a table of wide decimals besides, with TINYINT constants and DIV.

Law: as `random_plans`, whose makers draw no such table, so that their seeds keep their plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from random import Random

from impctl.data.schema import BYTE, INTEGER, decimal
from impctl.expr.nodes import Arithmetic, ArithmeticOp, Expr, Literal
from impctl.expr.types import type_of
from impctl.plan.nodes import Attribute, Plan
from tests.plan.barrier_plans import BarrierMaker
from tests.plan.focused_plans import FocusedMaker
from tests.plan.random_exprs import ExprMaker
from tests.plan.random_plans import CATALOG, PlanMaker
from tests.support.schemas import schema_of

WIDE, LONG_SCALED = decimal(38, 18), decimal(20, 4)
LARGE = Decimal("12345678901234567890.123456789012345678")
"""More digits than the 34 that Spark's negation once kept."""

WIDE_VALUES = {
    WIDE: (
        LARGE,
        -LARGE,
        Decimal("12345678901234567890.123456789012345679"),
        Decimal(0),
        Decimal("1e-18"),
        Decimal("-0.5"),
    ),
    LONG_SCALED: tuple(Decimal(x) for x in ("1234567890123456.7891", "-0.0001", "0", "3")),
}
"""Values of few differences, some of them in the last digit."""

WIDE_TABLE = schema_of("k int, a decimal(38,18), z decimal(20,4), c double, y tinyint")


class _Wide(ExprMaker):
    """Constants and operators that decimals of many digits are sensitive to."""

    def _literal(self) -> Literal:
        rng = self.rng
        choice = rng.random()
        if choice < 0.15:
            return Literal(rng.choice((-3, -1, 1, 2, 3)), BYTE)
        if choice < 0.25:
            return Literal(rng.choice((LARGE, -LARGE, Decimal("0.000000000000000001"))), WIDE)
        return super()._literal()

    def _number(
        self, numeric: Sequence[Attribute], attributes: Sequence[Attribute], depth: int
    ) -> Expr:
        if depth <= 0 or self.rng.random() > 0.15:
            return super()._number(numeric, attributes, depth)
        inner = super()._number(numeric, attributes, depth - 1)
        result = type_of(inner)
        if result is None or not result.is_numeric or result.is_fractional:
            return inner
        divisor = self.rng.choice((Literal(3, BYTE), Literal(-2, INTEGER), Literal(LARGE, WIDE)))
        op = self.rng.choice((ArithmeticOp.INTEGER_DIVIDE, ArithmeticOp.DIVIDE))
        return Arithmetic(op, inner, divisor)


class WidePlans(_Wide, PlanMaker):
    """`PlanMaker` with wide decimals."""


class WideGroups(_Wide, FocusedMaker):
    """`FocusedMaker` with wide decimals."""


class WideBarriers(_Wide, BarrierMaker):
    """`BarrierMaker` with wide decimals."""


MAKERS = (WidePlans, WideGroups, WideGroups, WideBarriers)


def wide_plan(rng: Random) -> Plan:
    """A plan of one of the makers, over all three tables."""
    catalog = {**CATALOG, "w": WIDE_TABLE}
    return rng.choice(MAKERS)(rng, drawn=("t", "u", "w", "w"), catalog=catalog).plan()
