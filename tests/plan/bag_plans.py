"""Random plans with a fixpoint of UNION ALL, whose rows have a level that ends it, and users of it.

Law: as `fixpoint_plans`; each row of a step is made of one row of the fixpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from impctl.data.schema import INTEGER, LONG
from impctl.expr.nodes import Arithmetic, ArithmeticOp, Compare, CompareOp, Literal
from impctl.plan.nodes import (
    Attribute,
    ComputedColumn,
    Fixpoint,
    Join,
    JoinKind,
    Plan,
    Project,
    Select,
    SetKind,
    SetOperation,
    attributes_of,
)
from tests.plan.fixpoint_plans import FixpointMaker
from tests.plan.trials import Trial, make_trial, random_partitions

_KINDS = (JoinKind.INNER,) * 7 + (JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI)
_DEEPEST = 3


class BagMaker(FixpointMaker):
    """A fixpoint of UNION ALL, and something above it."""

    def fixpoint(self) -> Fixpoint:
        """One with a column or two, and the level as the last one or the first."""
        rng = self.rng
        kind = rng.choice((INTEGER, INTEGER, LONG))
        width = rng.choice((1, 2, 2))
        place = rng.choice((0, width))
        columns = tuple(self._fresh(kind) for _ in range(width + 1))
        base = self._narrowed(self._part(), kind, width)
        outputs = self._copied(attributes_of(base))
        outputs.insert(place, ComputedColumn(self._fresh(kind), Literal(0, kind)))
        step = self._step_of(columns, place)
        if rng.random() < 0.25:
            made = tuple(self._fresh(kind) for _ in columns)
            step = SetOperation(SetKind.UNION, True, step, self._step_of(columns, place), made)
        levels = rng.choice((None, None, _DEEPEST + 1, 50))
        return Fixpoint("r", Project(base, tuple(outputs)), step, columns, False, levels)

    def _step_of(self, columns: Sequence[Attribute], place: int) -> Plan:
        """A step that puts the level one up, and gives no row beyond the deepest."""
        rng = self.rng
        leaf = self._leaf("r", columns)
        level = leaf.attributes[place]
        kind = level.type or INTEGER
        plan: Plan = leaf
        if rng.random() < 0.9:
            part = self._part()
            join = rng.choice(_KINDS)
            on = self._equal(attributes_of(plan), attributes_of(part))
            is_turned = join is JoinKind.INNER and rng.random() < 0.5
            plan = Join(join, part, plan, on) if is_turned else Join(join, plan, part, on)
        if rng.random() < 0.2:
            plan = Select(plan, self.predicate(attributes_of(plan)))
        deepest = Literal(rng.randint(1, _DEEPEST), kind)
        plan = Select(plan, Compare(CompareOp.LESS, level.ref(), deepest))
        outputs = self._chosen(plan, leaf, columns)
        outputs[place] = Arithmetic(ArithmeticOp.ADD, level.ref(), Literal(1, kind))
        return Project(plan, tuple(ComputedColumn(self._fresh(kind), out) for out in outputs))


def make_bag_trial(seed: int) -> Trial:
    """A trial with a fixpoint of UNION ALL; tables and facts are those of the seed's own trial."""
    rng = Random(f"bag {seed}")
    root = BagMaker(rng).plan()
    return replace(make_trial(seed), root=root, partitions=random_partitions(rng, root))
