"""Random plans with window aggregates over whole partitions, looked at as groups are.

Law: as `random_plans`; below a window are rows, joins or groups, above it filters on its values,
groupings, joins and further windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from impctl.data.schema import INTEGER
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
from impctl.plan.rules.order import apply_rules
from tests.plan.call_types import call_type
from tests.plan.focused_plans import FocusedMaker
from tests.plan.trials import Trial, make_trial, random_partition

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
        found = self._compared(self._beside(below))
        match rng.randrange(8):
            case 0:
                return self._judged(self._grouped(found))
            case 1:
                other = self._scan()
                condition = self._condition(attributes_of(found), other.attributes)
                kind = rng.choice((JoinKind.INNER, JoinKind.SEMI, JoinKind.LEFT, JoinKind.ANTI))
                return Join(kind, found, other, condition)
            case 2:
                return Distinct(found)
            case 3:
                return self._compared(self._beside(found))
            case _:
                return found

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
        column = self._numeric(attributes)
        call = AggregateCall("count")
        if column is not None and rng.random() < 0.85:
            name = rng.choice(("sum", "sum", "avg", "min", "max", "count"))
            call = AggregateCall(name, (column.ref(),))
        found = WindowCall(self._fresh(call_type(call)), call.function, call.arguments, parts, ())
        if rng.random() < 0.15:
            order = (SortKey(rng.choice(attributes).ref(), rng.random() < 0.5, True),)
            found = replace(found, order=order, frame=WHOLE if rng.random() < 0.8 else None)
        return found

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
