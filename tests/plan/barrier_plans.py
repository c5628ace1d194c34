"""Random plans with barriers: first groups by a sum, below a join, a filter, a grouping, IN.

Law: as `random_plans`; the order is one that a fact about the summed column makes safe, so that
whoever loses the fact loses the barrier.
"""

from __future__ import annotations

from impctl.data.schema import INTEGER, LONG
from impctl.expr.nodes import Compare, CompareOp, Literal
from impctl.plan.nodes import (
    Aggregate,
    AggregateCall,
    AggregateOutput,
    ComputedColumn,
    Join,
    JoinKind,
    Plan,
    Select,
    SortKey,
    TopK,
    Window,
    WindowCall,
    attributes_of,
)
from tests.plan.call_types import call_type
from tests.plan.focused_plans import FocusedMaker

_BOUNDS = (CompareOp.LESS, CompareOp.LESS_EQUAL, CompareOp.GREATER, CompareOp.EQUAL)


class BarrierMaker(FocusedMaker):
    """Groups, the first of them by their sum, and something that drops some of these."""

    def plan(self) -> Plan:
        """A plan in which a top-k or a rank is not the last step."""
        first = self._first_groups()
        plan = self._above(first)
        return self._above(plan) if self.rng.random() < 0.2 else plan

    def _first_groups(self) -> Plan:
        rng, scan = self.rng, self._scan()
        key = scan.attributes[0]
        summed = self._numeric(scan.attributes[1:]) or key
        name = rng.choice(("sum", "sum", "sum", "max", "count"))
        call = AggregateCall(name, (summed.ref(),))
        keys = (ComputedColumn(self._fresh(key.type), key.ref()),)
        calls = (AggregateOutput(self._fresh(call_type(call)), call),)
        groups = Aggregate(scan, keys, calls)
        descending = rng.random() < 0.85
        order = (
            SortKey(calls[0].attribute.ref(), descending, rng.random() < 0.1),
            SortKey(keys[0].attribute.ref(), rng.random() < 0.5, rng.random() < 0.5),
        )
        count = rng.choice((1, 1, 2))
        if rng.random() < 0.7:
            return TopK(groups, order, count, int(rng.random() < 0.1))
        function = rng.choice(("rank", "dense_rank", "row_number"))
        ranked = WindowCall(self._fresh(INTEGER), function, (), (), order)
        within = Compare(CompareOp.LESS_EQUAL, ranked.attribute.ref(), Literal(count, INTEGER))
        return Select(Window(groups, (ranked,)), within)

    def _above(self, first: Plan) -> Plan:
        rng, attributes = self.rng, attributes_of(first)
        match rng.randrange(5):
            case 0 | 1:
                other = self._scan()
                kind = rng.choice((JoinKind.INNER, JoinKind.INNER, JoinKind.SEMI))
                sides = (other, first) if rng.random() < 0.5 else (first, other)
                pairs = [attributes_of(side)[0].ref() for side in sides]
                return Join(kind, *sides, Compare(CompareOp.EQUAL, *pairs))
            case 2 | 3:
                column = self._numeric(attributes[1:]) or attributes[0]
                bound = Literal(rng.choice((0, 1, 2, 3, 4)), INTEGER)
                return Select(first, Compare(rng.choice(_BOUNDS), column.ref(), bound))
            case _:
                key = rng.choice(attributes)
                counted = AggregateOutput(self._fresh(LONG), AggregateCall("count"))
                keys = (ComputedColumn(self._fresh(key.type), key.ref()),)
                few = Compare(CompareOp.LESS, keys[0].attribute.ref(), Literal(3, INTEGER))
                groups = Aggregate(first, keys, (counted,))
                return Select(groups, few) if key.type in (INTEGER, LONG) else groups
