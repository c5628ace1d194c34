"""A plan taken apart for its answer: which rows suffice, and what is made of these at the end.

Law: the answer of a plan is `kept`'s rows, of which those stay for which the ending's `predicates`
are true, cut by `first`, brought in `order`, cut by `limit`, and `outputs` of each. Whoever
computes `kept` may give more rows than it has where a condition or the border of a top-k is too
close to call: what stands above it is asked again, by value. So below the conditions and the LIMIT
at the plan's end nothing may be unsure (`AnswerPlan.decided`).
Out of scope: computing rows (`circuits`), what may be sketched (`plan.safety`).
"""

from __future__ import annotations

from dataclasses import replace

from impctl.expr.nodes import And, Expr, columns_of, substitute
from impctl.plan.ending import Ending, FirstRows
from impctl.plan.nodes import (
    ComputedColumn,
    Plan,
    Project,
    Query,
    Select,
    Sort,
    SortKey,
    TopK,
    attributes_of,
)
from impctl.plan.rules.order import apply_rules
from impctl.types import AttributeId
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """The plan of the rows, and what is made of them: all expressions are of its columns."""

    kept: Plan
    ending: Ending

    @property
    def decided(self) -> Plan:
        """The node of `kept` whose rows may not be unsure: all that is above it is asked again."""
        return _End(self.kept, passes_top=self.ending.cuts).rest


def answer_plan(query: Query) -> AnswerPlan:
    """The query's plan (after the rules) taken apart."""
    end = _End(query.root)
    rest = end.rest
    node: Plan = rest
    if end.predicates:
        node = Select(node, And(end.predicates))
    first = end.first
    if first is not None and first.order and first.count is not None:
        # As `Ending.cuts` says.
        node = TopK(node, first.order, first.count, first.offset)
    wanted = _columns(end)
    kept = Project(
        node, tuple(ComputedColumn(a, a.ref()) for a in attributes_of(rest) if a.id in wanted)
    )
    order = end.order if end.order or first is None else first.order
    ruled = apply_rules(kept)
    columns = attributes_of(ruled)
    ending = Ending(columns, end.predicates, first, order, query.cut, end.outputs)
    return AnswerPlan(ruled, ending)


class _End:
    """The end of a plan: what stands above the last grouping, join or inner LIMIT.

    Without `passes_top` a LIMIT is not part of it.
    """

    def __init__(self, root: Plan, *, passes_top: bool = True) -> None:
        self._passes_top = passes_top
        self.outputs = tuple(ComputedColumn(a, a.ref()) for a in attributes_of(root))
        self.order: tuple[SortKey, ...] = ()
        self.first: FirstRows | None = None
        self.predicates: tuple[Expr, ...] = ()
        self.rest = self._passed(root)

    def _passed(self, node: Plan) -> Plan:
        while True:
            match node:
                case Project():
                    self._replace({one.attribute.id: one.expr for one in node.outputs})
                case Sort():
                    # Of an order below another, or of rows that are cut, nothing is left to see.
                    is_shown = not self.order and self.first is None
                    self.order = node.order if is_shown else self.order
                case TopK(rank=None) if self._passes_top and self._is_outermost:
                    self.first = FirstRows(node.order, node.count, node.offset)
                case Select():
                    self.predicates = (node.predicate, *self.predicates)
                case _:
                    return node
            node = node.child

    @property
    def _is_outermost(self) -> bool:
        """Whether no LIMIT and no condition was passed yet."""
        return self.first is None and not self.predicates

    def _replace(self, exprs: dict[AttributeId, Expr]) -> None:
        """Say it in terms of the columns below a projection."""

        def sorted_by(order: tuple[SortKey, ...]) -> tuple[SortKey, ...]:
            return tuple(replace(key, expr=substitute(key.expr, exprs)) for key in order)

        self.outputs = tuple(replace(one, expr=substitute(one.expr, exprs)) for one in self.outputs)
        self.order = sorted_by(self.order)
        self.predicates = tuple(substitute(one, exprs) for one in self.predicates)
        if self.first is not None:
            self.first = replace(self.first, order=sorted_by(self.first.order))


def _columns(end: _End) -> frozenset[AttributeId]:
    """What the rest of the plan is asked for."""
    keys = end.order if end.first is None else (*end.order, *end.first.order)
    exprs = [*(one.expr for one in end.outputs), *end.predicates, *(key.expr for key in keys)]
    return frozenset().union(*map(columns_of, exprs))
