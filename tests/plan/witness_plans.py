"""Random plans in which one row often decides: MIN and MAX, DISTINCT, EXISTS, also one on another.

Law: as `random_plans`; the shapes are those in which a wrong choice of witnesses shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from impctl.data.schema import INTEGER, LONG, SHORT
from impctl.expr.nodes import And, Cast, Compare, CompareOp, Expr, Literal
from impctl.plan.nodes import (
    AggregateCall,
    Attribute,
    ComputedColumn,
    Distinct,
    Join,
    JoinKind,
    Plan,
    Project,
    Query,
    SortKey,
    TopK,
    attributes_of,
    scans_of,
)
from impctl.rules.witnesses import witnessed
from impctl.safety.judge import Verdict, carried
from tests.plan.focused_plans import FocusedMaker
from tests.plan.trials import Trial, make_trial, random_partition


class WitnessMaker(FocusedMaker):
    """Groups by extremes, distinct rows and rows with a partner, judged as others are.

    With `casts`, conditions on the rows of EXISTS cast these to a narrower type.
    """

    casts = False

    def plan(self) -> Plan:
        rng = self.rng
        match rng.randrange(9):
            case 0:
                groups: Plan = self._grouped(self._base())
                if rng.random() < 0.5:
                    groups = self._judged(groups)
                outer = self._grouped(groups)
                return outer if rng.random() < 0.6 else self._judged(outer)
            case 1:
                return self._partnered(self._judged(self._grouped(self._base())))
            case 2:
                return self._judged(self._grouped(self._once(self._base())))
            case 3:
                return self._once(self._partnered(self._base()))
            case 4:
                groups = self._grouped(self._partnered(self._base()))
                return self._ranked(groups, attributes_of(groups)[-1])
            case 5:
                groups = self._grouped(self._base())
                by = SortKey(attributes_of(groups)[-1].ref(), rng.random() < 0.7, False)
                best = TopK(groups, (by,), rng.choice((1, 2)))
                return self._judged(self._grouped(best))
            case _:
                return self._judged(self._grouped(self._base()))

    def _focused_call(self, attributes: Sequence[Attribute]) -> AggregateCall:
        rng, column = self.rng, self._numeric(attributes)
        if column is None or rng.random() < 0.2:
            return super()._focused_call(attributes)
        condition: Expr | None = None
        if rng.random() < 0.15:
            condition = self.predicate(attributes)
        argument: Expr = column.ref()
        if rng.random() < 0.1:
            argument = self.number(attributes, 1)
        name = rng.choice(("min", "max", "max"))
        return AggregateCall(name, (argument,), rng.random() < 0.1, condition)

    def _once(self, child: Plan) -> Plan:
        """Some columns of the rows, each combination once."""
        attributes = attributes_of(child)
        kept = self.rng.sample(attributes, min(len(attributes), self.rng.choice((1, 2))))
        outputs = tuple(ComputedColumn(self._fresh(a.type), a.ref()) for a in kept)
        return Distinct(Project(child, outputs))

    def _partnered(self, left: Plan) -> Plan:
        """The rows with a partner, by an equality and at times by more."""
        rng, right = self.rng, self._scan()
        condition = self._condition(attributes_of(left), right.attributes)
        result = Join(JoinKind.SEMI, left, right, condition)
        number = self._numeric(right.attributes)
        if condition is None or number is None or rng.random() < 0.6:
            return result
        value: Expr = number.ref()
        if self.casts and number.type in (INTEGER, LONG):
            # No rule moves what can fail, so the condition on the right side stays in the join's.
            value = Cast(value, SHORT)
        more = Compare(CompareOp.GREATER_EQUAL, value, Literal(rng.choice((0, 1)), INTEGER))
        return Join(JoinKind.SEMI, left, right, And((condition, more)))


def make_witness_trial(seed: int, *, casts: bool = False) -> Trial:
    """A trial whose plan has something that one row decides."""
    trial = make_trial(seed)
    rng = Random(f"witness {seed}")
    maker = WitnessMaker(rng)
    maker.casts = casts
    root = maker.plan()
    scans = scans_of(root)
    chosen = [scan for scan in scans if rng.random() < 0.8] or list(scans)
    partitions = {scan.access: random_partition(rng, scan) for scan in chosen}
    return Trial(root, trial.tables, partitions, trial.facts)


def kept_by_witnesses(root: Plan, trial: Trial, verdict: Verdict) -> Plan:
    """The plan with witness nodes, which must be as safe as the query's own."""
    query = Query("", root)
    result = witnessed(query, verdict, trial.columns(root))
    carried(verdict, result.query, trial.sketched)
    return result.query.root
