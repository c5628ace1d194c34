"""Operators for plan nodes, from the leaves up.

Law: each node becomes operators whose output is the node's bag of rows, with the tags of the
provenance rules (Niu et al., PVLDB 2021). What is no operator of its own is put together from
others: DISTINCT is a grouping without functions; joins, set operations and top-k have files of
their own. `must_be_sure` travels down: below a grouping, a row kept because its condition was too
close to call could make a sketch too small.
Out of scope: calls of aggregates (`maintain.calls`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NoReturn

from impctl.aliases import AccessId, AttributeId
from impctl.data.schema import Kind
from impctl.engine.circuit import Operator
from impctl.engine.extremes import Extreme
from impctl.engine.operators import aggregate, project, scan, select
from impctl.engine.operators.join import Join as JoinOperator
from impctl.engine.operators.top import Top
from impctl.engine.operators.union import Branch, Union
from impctl.engine.ordered_values import First
from impctl.expr.nodes import ColumnRef, Expr, Literal, columns_of
from impctl.expr.types import type_of
from impctl.maintain.calls import Calls, read_calls
from impctl.maintain.flows import (
    BlockedError,
    Column,
    Flow,
    Source,
    check,
    known_type,
    refuse_approximate,
    typed,
)
from impctl.maintain.readable import Readable
from impctl.maintain.refills import Refilled, prefix_of
from impctl.maintain.strategy import AsRecorded, Chooser, SideChoice
from impctl.plan.nodes import (
    Aggregate,
    Attribute,
    Distinct,
    Join,
    Output,
    Plan,
    Project,
    Scan,
    Select,
    SetOperation,
    Sort,
    TopK,
    Window,
    attributes_of,
    scans_of,
)
from impctl.sketch.partition import RangePartition


class Builder:
    """Collects operators; each after those it reads."""

    def __init__(
        self,
        sketched: Mapping[AccessId, RangePartition],
        keyed: Collection[int] = (),
        last_top: TopK | None = None,
        chooser: Chooser | None = None,
        *,
        barriers: Collection[int] | None = None,
        buffer: int | None = None,
    ) -> None:
        """`keyed` are identities (`id`) of the Aggregates whose groups have one fragment.

        `last_top` is the LIMIT above which there are only columns, if there is one; `barriers` are
        identities of others whose rows all count (default: all others). `chooser` decides which
        sides of joins are kept (default: all); `buffer` bounds what MIN, MAX and top-k keep per
        group, where they can be refilled.
        """
        self.sketched = sketched
        self.chooser: Chooser = AsRecorded() if chooser is None else chooser
        self.sides: list[SideChoice] = []
        self.distant: dict[int, tuple[Readable, ...]] = {}
        self.operators: list[Operator] = []
        self.inputs: list[tuple[int, ...]] = []
        self.sources: list[Source] = []
        self.first_aggregate: int | None = None
        self._keyed = frozenset(keyed)
        self._last_top = id(last_top)
        self._barrier_ids = None if barriers is None else frozenset(barriers)
        self.barriers: list[Flow] = []
        self.buffer = buffer
        self.refills: list[Refilled] = []
        self.keeps_all = False
        self._named: dict[str, int] = {}
        self._node_of: dict[int, Plan] = {}

    def root(self, plan: Plan) -> Flow:
        """The whole plan and its barriers; tags in the order of the plan's accesses.

        Above a barrier rows carry none of its accesses' fragments, so each access counts once.
        """
        flow = self.build(plan, must_be_sure=False)
        wanted = tuple(s.access for s in scans_of(plan) if s.access in self.sketched)
        if not self.barriers:
            return flow if flow.accesses == wanted else self.union([flow], flow.columns, wanted)
        counted = [flow, *self.barriers] if flow.accesses else self.barriers
        return self.union(counted, (), wanted)

    def buffered(self, flow: Flow) -> int | None:
        """How much an operator over this flow keeps per group; None is everything."""
        return self.buffer if prefix_of(self, flow) is not None else None

    def refill(
        self, operator: aggregate.Aggregate | Top, flow: Flow, keys: Sequence[AttributeId]
    ) -> None:
        """Note that the operator, over this flow, can run out of rows."""
        prefix = prefix_of(self, flow)
        assert prefix is not None, "only what can be refilled is bounded"
        found = Refilled(operator, prefix, tuple(keys))
        found.read_from_groups()
        self.refills.append(found)

    def is_barrier(self, node: TopK) -> bool:
        """Whether all first rows belong to the sketch, used above or not."""
        return self._barrier_ids is None or id(node) in self._barrier_ids

    def drop_unread(self) -> None:
        """Forget operators and sources that the last operator does not depend on.

        Above the last barrier of every access, nothing can change a sketch.
        """
        read = {len(self.operators) - 1}
        for at in reversed(range(len(self.operators))):
            if at in read:
                read.update(self.inputs[at])
        kept = [at for at in range(len(self.operators)) if at in read]
        sources = [at for at in range(len(self.sources)) if -1 - at in read]
        moved = {old: new for new, old in enumerate(kept)}
        moved |= {-1 - old: -1 - new for new, old in enumerate(sources)}
        self.operators = [self.operators[at] for at in kept]
        self.inputs = [tuple(moved[wire] for wire in self.inputs[at]) for at in kept]
        self.sources = [self.sources[at] for at in sources]
        self.distant = {moved[at]: rows for at, rows in self.distant.items() if at in moved}
        names = {keeper.name for op in self.operators for keeper in op.arrangements()}
        # The rows of a distant side are no state, and its filter has a name of its own.
        joins = [op for op in self.operators if isinstance(op, JoinOperator)]
        names |= {side.name for op in joins for side in op.distant}
        self.sides = [choice for choice in self.sides if choice.side in names]
        kept_ids = {id(operator) for operator in self.operators}
        self.refills = [found for found in self.refills if id(found.operator) in kept_ids]

    def put(self, operator: Operator, *inputs: Flow) -> int:
        """Append an operator; its position."""
        self.operators.append(operator)
        self.inputs.append(tuple(flow.at for flow in inputs))
        return len(self.operators) - 1

    def name(self, kind: str) -> str:
        """A name no other operator of the circuit has."""
        number = self._named.get(kind, 0)
        self._named[kind] = number + 1
        return f"{kind}{number}"

    def owners(self) -> dict[str, Plan]:
        """The plan node that each piece of state serves, by the state's name."""
        return {
            keeper.name: self._node_of[id(operator)]
            for operator in self.operators
            if id(operator) in self._node_of
            for keeper in operator.arrangements()
        }

    def build(self, plan: Plan, *, must_be_sure: bool) -> Flow:
        """The operators of a node and everything below it."""
        start = len(self.operators)
        flow = self._built(plan, must_be_sure=must_be_sure)
        # Nodes below are done first, so each operator is left to the innermost.
        for operator in self.operators[start:]:
            self._node_of.setdefault(id(operator), plan)
        return flow

    def _built(self, plan: Plan, *, must_be_sure: bool) -> Flow:
        from impctl.maintain.joins import build_join
        from impctl.maintain.sets import build_set_operation

        match plan:
            case Scan():
                return self._scan(plan)
            case Select():
                below = self.build(plan.child, must_be_sure=must_be_sure)
                return self.select(below, plan.predicate, plan, must_be_sure=must_be_sure)
            case Project():
                return self._project(plan, must_be_sure)
            case Sort():
                return self.build(plan.child, must_be_sure=must_be_sure)
            case Aggregate():
                return self._aggregate(plan, must_be_sure=must_be_sure)
            case Distinct():
                below = self.build(plan.child, must_be_sure=True)
                return self.distinct(below, typed(attributes_of(plan), plan.span), plan)
            case Join():
                return build_join(self, plan, must_be_sure=must_be_sure)
            case SetOperation():
                return build_set_operation(self, plan, must_be_sure=must_be_sure)
            case TopK():
                return self._top(plan)
            case Window():
                return _refuse(plan)

    def _scan(self, node: Scan) -> Flow:
        columns = []
        for attribute in node.attributes:
            if attribute.type is None or attribute.type.kind is Kind.OTHER:
                raise BlockedError(
                    f"column `{attribute.name}` has a type the engine does not know", node.span
                )
            columns.append((attribute.id, attribute.name, attribute.type))
        partition = self.sketched.get(node.access)
        operator = scan.Scan(columns, () if partition is None else (partition,))
        self.sources.append(Source(node.access, node.table, operator))
        accesses = () if partition is None else (node.access,)
        columns_ = typed(node.attributes, node.span)
        return Flow(-len(self.sources), columns_, accesses, plan=node)

    def select(self, flow: Flow, predicate: Expr, node: Plan, *, must_be_sure: bool) -> Flow:
        """The rows for which the predicate is true, or too close to call where that is sound."""
        check(predicate, flow, node.span, must_be_sure=must_be_sure)
        at = self.put(select.Select(predicate, must_be_sure=must_be_sure), flow)
        plan = None if flow.plan is None else Select(flow.plan, predicate)
        return Flow(at, flow.columns, flow.accesses, flow.approximate, plan)

    def _project(self, node: Project, must_be_sure: bool) -> Flow:
        below = self.build(node.child, must_be_sure=must_be_sure)
        outputs = [(output.attribute.id, output.expr) for output in node.outputs]
        return self.project(below, outputs, typed(attributes_of(node), node.span), node)

    def project(
        self,
        flow: Flow,
        outputs: Sequence[tuple[AttributeId, Expr]],
        columns: tuple[Column, ...],
        node: Plan,
    ) -> Flow:
        """Computed columns."""
        inexact = set()
        for name, expr in outputs:
            check(expr, flow, node.span)
            if columns_of(expr) & flow.approximate:
                inexact.add(name)
        at = self.put(project.Project(outputs), flow)
        plan = None if flow.plan is None else _projected(flow.plan, outputs, columns)
        return Flow(at, columns, flow.accesses, frozenset(inexact), plan)

    def _aggregate(self, node: Aggregate, *, must_be_sure: bool) -> Flow:
        below = self.build(node.child, must_be_sure=True)
        buffer = self.buffered(below)
        calls = read_calls(node, buffer)
        if calls.choice is not None and must_be_sure:
            name = calls.choice.function.upper()
            reason = f"{name} below another grouping or a LIMIT, where rows may tie"
            raise BlockedError(reason, calls.choice.span or node.span)
        parts = [column.accumulator for column in calls.columns]
        self.keeps_all |= any(isinstance(part, First) for part in parts)
        self.keeps_all |= buffer is None and any(isinstance(part, Extreme) for part in parts)
        keys = [(key.attribute.id, key.expr) for key in node.keys]
        for _, expr in (*keys, *calls.arguments):
            check(expr, below, node.span)
            if columns_of(expr) & below.approximate:
                raise BlockedError("grouping or summing a sum of doubles again", node.span)
        columns = typed(attributes_of(node), node.span)
        if node.grouping_sets is None:
            every = range(len(node.keys))
            at = self._grouped(node, below, calls, every, is_distinct=False)
            return Flow(at, columns, below.accesses, calls.inexact)
        flows = []
        for chosen in node.grouping_sets:
            at = self._grouped(node, below, calls, chosen, is_distinct=True)
            absent = {node.keys[i].attribute.id for i in range(len(keys)) if i not in chosen}
            outputs: list[tuple[AttributeId, Expr]] = [
                (name, Literal(None, kind) if name in absent else ColumnRef(name, kind))
                for name, kind in columns
            ]
            set_flow = Flow(at, columns, below.accesses, calls.inexact)
            flows.append(self.project(set_flow, outputs, columns, node))
        return self.union(flows, columns, below.accesses)

    def _grouped(
        self,
        node: Aggregate,
        below: Flow,
        calls: Calls,
        chosen: Sequence[int],
        *,
        is_distinct: bool,
    ) -> int:
        """One grouping by the chosen keys; its position."""
        used = [node.keys[place] for place in chosen]
        inputs = [(key.attribute.id, key.expr) for key in used]
        prepared = Flow(
            self.put(project.Project((*inputs, *calls.arguments)), below), (), below.accesses
        )
        operator = aggregate.Aggregate(
            self.name("aggregate"),
            [(key.attribute.id, known_type(type_of(key.expr), node.span)) for key in used],
            calls.columns,
            accesses=len(below.accesses),
            is_keyed=id(node) in self._keyed,
            is_distinct=is_distinct,
            distinct=calls.distinct,
            first_types=calls.first_types,
        )
        at = self.put(operator, prepared)
        if operator.is_bounded:
            self.refill(operator, prepared, [name for name, _ in operator.keys])
        if self.first_aggregate is None:
            self.first_aggregate = at
        return at

    def _top(self, node: TopK) -> Flow:
        from impctl.maintain.first_rows import build_top

        return build_top(self, node, is_last=id(node) == self._last_top)

    def distinct(self, flow: Flow, columns: tuple[Column, ...], node: Plan) -> Flow:
        """Each row once, with the fragments of all its copies."""
        refuse_approximate(flow, "DISTINCT over", node.span)
        operator = aggregate.Aggregate(
            self.name("distinct"),
            columns,
            (),
            accesses=len(flow.accesses),
            is_keyed=False,
            is_distinct=True,
        )
        return Flow(self.put(operator, flow), columns, flow.accesses)

    def union(
        self,
        flows: Sequence[Flow],
        columns: tuple[Column, ...],
        accesses: tuple[AccessId, ...],
        *,
        signs: Sequence[int] | None = None,
    ) -> Flow:
        """The sum of flows that all have these columns, their tags by access."""
        branches = []
        for flow, sign in zip(flows, signs or [1] * len(flows), strict=True):
            place = {access: at for at, access in enumerate(flow.accesses)}
            tags = tuple(place.get(access) for access in accesses)
            branches.append(Branch(tuple((name, name) for name, _ in columns), tags, sign))
        inexact = frozenset().union(*(flow.approximate for flow in flows))
        return Flow(self.put(Union(branches), *flows), columns, accesses, inexact)


def _projected(
    plan: Plan, outputs: Sequence[tuple[AttributeId, Expr]], columns: Sequence[Column]
) -> Project:
    kinds = dict(columns)
    named = [Output(Attribute(name, name, kinds[name]), expr) for name, expr in outputs]
    return Project(plan, tuple(named))


def _refuse(node: Window) -> NoReturn:
    """BlockedError naming an operator the engine does not have."""
    raise BlockedError("a window function is not maintained by the engine yet", node.span)
