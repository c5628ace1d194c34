"""Random plans with a fixpoint: linear or not, over tables, groups and first rows, and users of it.

Law: as `random_plans`. Columns are copied, or counted up below a bound: fixpoints are finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from impctl.data.schema import BOOLEAN, INTEGER, LONG
from impctl.expr.nodes import And, Arithmetic, ArithmeticOp, Cast, Compare, CompareOp, Expr, Literal
from impctl.plan.nodes import (
    Attribute,
    ComputedColumn,
    Distinct,
    Fixpoint,
    Join,
    JoinKind,
    Plan,
    Project,
    Recursive,
    Select,
    SetKind,
    SetOperation,
    attributes_of,
)
from tests.plan.focused_plans import FocusedMaker
from tests.plan.trials import Trial, make_trial, random_partitions

_KINDS = (JoinKind.INNER,) * 6 + (JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI)


class FixpointMaker(FocusedMaker):
    """A fixpoint, and something above it."""

    def plan(self) -> Plan:
        """A plan with one fixpoint, most often not as the last step."""
        return self.above(self.fixpoint())

    def above(self, fixpoint: Fixpoint) -> Plan:
        """What uses the rows of a fixpoint."""
        rng = self.rng
        plan: Plan = fixpoint
        if rng.random() < 0.4:
            plan = Select(plan, self._narrow(attributes_of(plan)))
        match rng.randrange(6):
            case 0 | 1:
                plan = self._judged(self._grouped(plan))
            case 2:
                other = self._scan()
                kind = rng.choice((JoinKind.INNER, JoinKind.ANTI, JoinKind.ANTI, JoinKind.SEMI))
                sides = (other, plan) if rng.random() < 0.7 else (plan, other)
                plan = Join(kind, *sides, self._equal(*map(attributes_of, sides)))
                plan = self._judged(self._grouped(plan)) if rng.random() < 0.5 else plan
            case 3:
                plan = self._limited(plan)
            case 4:
                plan = Project(plan, tuple(self._copied(attributes_of(plan)[:1])))
            case _:
                pass
        return plan

    def fixpoint(self) -> Fixpoint:
        """One with one or two columns, its step often of two parts."""
        rng = self.rng
        kind = rng.choice((INTEGER, INTEGER, LONG))
        columns = tuple(self._fresh(kind) for _ in range(rng.choice((1, 2, 2))))
        base = self._narrowed(self._part(), kind, len(columns))
        step = self._step("r", columns)
        if rng.random() < 0.25:
            other = (
                self._step("r", columns)
                if rng.random() < 0.8
                else self._narrowed(self._scan(), kind, len(columns))
            )
            made = tuple(self._fresh(kind) for _ in columns)
            step = SetOperation(SetKind.UNION, True, step, other, made)
        return Fixpoint("r", base, step, columns, True)

    def _part(self) -> Plan:
        """What a base or step reads beside the fixpoint."""
        rng = self.rng
        match rng.randrange(8):
            case 0:
                return self._judged(self._grouped(self._base()))
            case 1:
                return self._grouped(self._base())
            case 2:
                return self._limited(self._scan())
            case 3:
                return Distinct(self._scan())
            case 4:
                scan = self._scan()
                return Select(scan, self.predicate(attributes_of(scan)))
            case _:
                return self._scan()

    def _step(self, name: str, columns: Sequence[Attribute]) -> Plan:
        rng = self.rng
        leaf = self._leaf(name, columns)
        plan: Plan = leaf
        if rng.random() < 0.2:
            other = self._leaf(name, columns)
            plan = Join(JoinKind.INNER, leaf, other, self._equal(leaf.attributes, other.attributes))
        if rng.random() < 0.9:
            part = self._part()
            kind = rng.choice(_KINDS)
            on = self._equal(attributes_of(plan), attributes_of(part))
            if kind is JoinKind.INNER and rng.random() < 0.5:
                plan = Join(kind, part, plan, on)
            else:
                plan = Join(kind, plan, part, on)
        if rng.random() < 0.2:
            plan = Select(plan, self.predicate(attributes_of(plan)))
        own = list(leaf.attributes)
        if rng.random() < 0.15:
            below = Compare(CompareOp.LESS, own[0].ref(), Literal(3, INTEGER))
            kind = own[0].type or INTEGER
            one = Arithmetic(ArithmeticOp.ADD, own[0].ref(), Literal(1, kind))
            rest = self._chosen(plan, leaf, columns)[1:]
            outputs: list[Expr] = [one, *rest]
            plan = Select(plan, below)
        else:
            outputs = self._chosen(plan, leaf, columns)
        made = (ComputedColumn(self._fresh(own[0].type), expr) for expr in outputs)
        return Project(plan, tuple(made))

    def _leaf(self, name: str, columns: Sequence[Attribute]) -> Recursive:
        return Recursive(name, tuple(self._fresh(column.type) for column in columns))

    def _chosen(self, plan: Plan, leaf: Recursive, columns: Sequence[Attribute]) -> list[Expr]:
        """A column for each; those of the leaf itself often stay where they are."""
        kind = columns[0].type or INTEGER
        there: list[Expr] = [a.ref() for a in attributes_of(plan) if a.type == kind]
        if kind == LONG:
            there += [Cast(a.ref(), kind) for a in attributes_of(plan) if a.type == INTEGER]
        return [
            leaf.attributes[place].ref() if self.rng.random() < 0.35 else self.rng.choice(there)
            for place, _ in enumerate(columns)
        ]

    def _equal(self, left: Sequence[Attribute], right: Sequence[Attribute]) -> Expr:
        rng = self.rng
        pairs = [(a, b) for a in left for b in right if {a.type, b.type} <= {INTEGER, LONG}]
        if not pairs:
            return Literal(True, BOOLEAN)
        op = rng.choice((CompareOp.EQUAL,) * 6 + (CompareOp.LESS, CompareOp.NULL_SAFE_EQUAL))
        a, b = rng.choice(pairs)
        equal = Compare(op, a.ref(), b.ref())
        if rng.random() < 0.15:
            c, d = rng.choice(pairs)
            return And((equal, Compare(CompareOp.EQUAL, c.ref(), d.ref())))
        return equal

    def _narrow(self, attributes: Sequence[Attribute]) -> Expr:
        column = self.rng.choice(attributes)
        return Compare(
            self.rng.choice((CompareOp.EQUAL, CompareOp.EQUAL, CompareOp.GREATER)),
            column.ref(),
            Literal(self.rng.choice((0, 1, 1, 2)), INTEGER),
        )

    def _copied(self, attributes: Sequence[Attribute]) -> list[ComputedColumn]:
        return [ComputedColumn(self._fresh(a.type), a.ref()) for a in attributes]


def make_fixpoint_trial(seed: int) -> Trial:
    """A trial with a fixpoint; tables and facts are those of the seed's own trial."""
    rng = Random(f"fixpoint {seed}")
    root = FixpointMaker(rng).plan()
    partitions = random_partitions(rng, root, alike=True)
    return replace(make_trial(seed), root=root, partitions=partitions)
