"""Random plans with window aggregates over whole partitions and places in them, like groups.

Law: as `random_plans`; below a window are rows, joins or groups, above it filters on its values,
groupings, joins and further windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from impctl.data.schema import DOUBLE, INTEGER
from impctl.expr.nodes import Arithmetic, ArithmeticOp, Compare, CompareOp, Expr, Literal
from impctl.plan.nodes import (
    AggregateCall,
    Attribute,
    Distinct,
    Join,
    JoinKind,
    Plan,
    Select,
    SortKey,
    Window,
    WindowCall,
    attributes_of,
    scans_of,
)
from impctl.rules.optimize import apply_rules
from tests.plan.call_types import call_type
from tests.plan.focused_plans import FocusedMaker
from tests.plan.trials import Trial, make_trial, random_partition

TIE_FREE = ("rank", "dense_rank", "percent_rank", "cume_dist")
WHOLE = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"


class WindowMaker(FocusedMaker):
    """Rows beside what their window partition adds up to."""

    def plan(self) -> Plan:
        rng = self.rng
        below = self._base()
        if rng.random() < 0.4:
            below = self._grouped(below)
            if rng.random() < 0.3:
                below = self._judged(below)
        result = self._compared(self._beside(below))
        match rng.randrange(8):
            case 0:
                return self._judged(self._grouped(result))
            case 1:
                other = self._scan()
                condition = self._condition(attributes_of(result), other.attributes)
                kind = rng.choice((JoinKind.INNER, JoinKind.SEMI, JoinKind.LEFT, JoinKind.ANTI))
                return Join(kind, result, other, condition)
            case 2:
                return Distinct(result)
            case 3:
                return self._compared(self._beside(result))
            case _:
                return result

    def _beside(self, child: Plan) -> Window:
        """The rows with one or two window aggregates, most often of the same partitions."""
        rng, attributes = self.rng, attributes_of(child)
        shared = self._parts(attributes)
        calls = []
        for _ in range(rng.choice((1, 1, 2))):
            parts = shared if rng.random() < 0.8 else self._parts(attributes)
            calls.append(self._windowed_call(attributes, parts))
        return Window(child, tuple(calls))

    def _parts(self, attributes: Sequence[Attribute]) -> tuple[Expr, ...]:
        rng = self.rng
        if rng.random() < 0.06:
            return ()
        if rng.random() < 0.08:
            return (self.number(attributes, 1),)
        parts: list[Expr] = [
            (attributes[0] if rng.random() < 0.7 else rng.choice(attributes)).ref()
        ]
        if rng.random() < 0.2:
            parts.append(rng.choice(attributes).ref())
        return tuple(dict.fromkeys(parts))

    def _windowed_call(
        self, attributes: Sequence[Attribute], parts: tuple[Expr, ...]
    ) -> WindowCall:
        rng = self.rng
        if rng.random() < 0.3:
            return self._placed_call(attributes, parts)
        column = self._numeric(attributes)
        call = AggregateCall("count")
        if column is not None and rng.random() < 0.85:
            name = rng.choice(("sum", "sum", "avg", "min", "max", "count"))
            call = AggregateCall(name, (column.ref(),))
        result = WindowCall(self._fresh(call_type(call)), call.function, call.arguments, parts, ())
        if rng.random() < 0.25:
            order = (SortKey(rng.choice(attributes).ref(), rng.random() < 0.5, True),)
            result = replace(result, order=order, frame=WHOLE if rng.random() < 0.7 else None)
        return result

    def _placed_call(self, attributes: Sequence[Attribute], parts: tuple[Expr, ...]) -> WindowCall:
        """A rank, LAG or LEAD; where ties would be a choice, only copies of a row tie."""
        rng = self.rng
        name = rng.choice((*TIE_FREE, "row_number", "lag", "lag", "lead"))
        sorted_by = list(attributes)
        rng.shuffle(sorted_by)
        if name in TIE_FREE:
            sorted_by = sorted_by[: rng.choice((1, 1, 2))]
        order = tuple(SortKey(a.ref(), rng.random() < 0.5, rng.random() < 0.5) for a in sorted_by)
        arguments: tuple[Expr, ...] = ()
        result = DOUBLE if name in ("percent_rank", "cume_dist") else INTEGER
        if name in ("lag", "lead"):
            taken = rng.choice(attributes)
            assert taken.type is not None
            result, arguments = taken.type, (taken.ref(),)
            if rng.random() < 0.4:
                arguments += (Literal(rng.choice((0, 1, 2, -1)), INTEGER),)
                if rng.random() < 0.5:
                    alike = [a for a in attributes if a.type == result]
                    arguments += (rng.choice(alike).ref(),)
        return WindowCall(self._fresh(result), name, arguments, parts, order)

    def _compared(self, window: Window) -> Plan:
        """A filter on a value: against a number, or a number of the row itself."""
        rng = self.rng
        if rng.random() < 0.3:
            return self._judged(window)
        value = rng.choice(window.calls).attribute.ref()
        column = self._numeric(attributes_of(window.child))
        if column is None:
            return self._judged(window)
        doubled = Arithmetic(ArithmeticOp.MULTIPLY, column.ref(), Literal(2, INTEGER))
        left: Expr = column.ref() if rng.random() < 0.6 else doubled
        ops = (CompareOp.LESS, CompareOp.GREATER_EQUAL, CompareOp.EQUAL, CompareOp.NOT_EQUAL)
        return Select(window, Compare(rng.choice(ops), left, value))


def make_window_trial(seed: int) -> Trial:
    """A trial whose plan has window aggregates, of which no value is left unread."""
    trial = make_trial(seed)
    rng = Random(f"window {seed}")
    root = apply_rules(WindowMaker(rng).plan())
    scans = scans_of(root)
    chosen = [scan for scan in scans if rng.random() < 0.8] or list(scans)
    partitions = {scan.access: random_partition(rng, scan) for scan in chosen}
    return Trial(root, trial.tables, partitions, trial.facts)
