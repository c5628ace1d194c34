"""A plan built into the operators of a circuit; names of circuits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, assert_never

from msgspec.structs import replace

from impctl.compile.aggregates import Calls, read_calls, refuse_choice, split_extremes
from impctl.compile.answers import check_ending, kept_rows
from impctl.compile.buffers import KEEP_ALL, Buffers
from impctl.compile.builder import LEFT_BEHIND, CircuitBuilder, FirstGrouping
from impctl.compile.fixpoint import Keyed, build_fixpoint, build_leaf, trace_back
from impctl.compile.flows import (
    BlockedError,
    Chooser,
    Column,
    Flow,
    Source,
    check,
    known_type,
    known_type_of,
    over_rows,
    typed,
)
from impctl.compile.joins import build_join, build_selected
from impctl.compile.jointree.build import PlannedBlock, build_blocks, plant_blocks, rows_from_tree
from impctl.compile.ordering import build_top, build_window, build_witness
from impctl.compile.provenance.absorbed import AbsorbedRows, build_absorbed
from impctl.data.schema import LONG, Kind
from impctl.engine import linear
from impctl.engine.accumulators import FUNCTIONS as SPREADS
from impctl.engine.accumulators import AggregateColumn, ExactSum
from impctl.engine.aggregate import AggregateOperator
from impctl.engine.circuit import Circuit
from impctl.engine.extremes import Extreme, FirstValue
from impctl.engine.join import JoinOperator, Side
from impctl.expr.nodes import Cast, ColumnRef, Expr, Literal
from impctl.plan import nodes as p
from impctl.plan.fingerprint import fingerprint, template
from impctl.plan.lineage import for_all, is_sketched_for_answer
from impctl.plan.properties import scan_conditions
from impctl.version import stamped

if TYPE_CHECKING:
    from impctl.engine.fixpoint.absorption import Absorbs
    from impctl.engine.result_rows import AnswerRows
    from impctl.rules.finalize import AnswerPlan
    from impctl.sketch.sketch import RangePartition
    from impctl.types import AccessId, AttributeId


def build_set_operation(
    builder: CircuitBuilder, node: p.SetOperation, *, must_be_sure: bool
) -> Flow:
    """Set operations as signed union, DISTINCT and join. UNION ALL is the sum, UNION its distinct
    rows; INTERSECT keeps distinct left rows that are on the right, EXCEPT those that are not,
    without the right side's ranges. INTERSECT ALL and EXCEPT ALL count copies. NULL equals NULL."""
    sure = must_be_sure or not (node.kind is p.SetKind.UNION and node.all)
    columns = typed(node.attributes, node.span)
    left = _renamed(builder, node, node.left, columns, must_be_sure=sure)
    right = _renamed(builder, node, node.right, columns, must_be_sure=sure)
    rows = over_rows(node, left, right)
    return replace(_put(builder, node, left, right, columns), rows=rows, is_plain=False)


def _put(
    builder: CircuitBuilder,
    node: p.SetOperation,
    left: Flow,
    right: Flow,
    columns: tuple[Column, ...],
) -> Flow:
    accesses = (*left.accesses, *right.accesses)
    if node.kind is p.SetKind.UNION:
        both_sides = builder.union([left, right], columns, accesses)
        if node.all:
            return both_sides
        rows = over_rows(replace(node, all=True), left, right)
        copies = replace(both_sides, rows=rows, is_plain=False)
        return builder.distinct(copies, columns, node)
    if node.all:
        return _repeated(builder, node, left, right, columns)
    left = builder.distinct(left, columns, node)
    right = builder.distinct(right, columns, node)
    both = _common(builder, left, right, columns)
    match node.kind:
        case p.SetKind.INTERSECT:
            return both
        case p.SetKind.EXCEPT:
            return builder.union([left, both], columns, left.accesses, signs=(1, -1))
        case _:
            assert_never(node.kind)


def _repeated(
    builder: CircuitBuilder,
    node: p.SetOperation,
    left: Flow,
    right: Flow,
    columns: tuple[Column, ...],
) -> Flow:
    """INTERSECT ALL and EXCEPT ALL: each row with the copies that its counts leave."""
    name = builder.name("copies")
    counts = (f"{name}/left", f"{name}/right")
    counted = (*columns, *((count, LONG) for count in counts))
    is_difference = node.kind is p.SetKind.EXCEPT
    accesses = left.accesses if is_difference else (*left.accesses, *right.accesses)
    flows = []
    for side_index, flow in enumerate((left, right)):
        marks = [(count, Literal(int(side_index == i), LONG)) for i, count in enumerate(counts)]
        flows.append(builder.project(flow, [*flow.refs(), *marks], counted, node))
    both_sides = builder.union(flows, counted, accesses)
    sums = [
        AggregateColumn(count, LONG, ExactSum(count, side_index, LONG), None)
        for side_index, count in enumerate(counts)
    ]
    grouped = AggregateOperator(name, columns, sums, accesses=len(accesses), is_keyed=False)
    once = Flow(builder.put(grouped, both_sides), counted, accesses)
    repeat = linear.Repeat(*counts, is_difference=is_difference)
    return Flow(builder.put(repeat, once), columns, accesses)


def _common(builder: CircuitBuilder, left: Flow, right: Flow, columns: tuple[Column, ...]) -> Flow:
    """Rows that both sides have; each side has every row once."""
    name = builder.name("join")
    ids = tuple(column for column, _ in columns)
    left_side = Side(columns, ids, len(left.accesses))
    right_side = Side(columns, ids, len(right.accesses))
    wire = builder.put(JoinOperator(name, left_side, right_side, [True] * len(ids)), left, right)
    return Flow(wire, columns, (*left.accesses, *right.accesses))


def _renamed(
    builder: CircuitBuilder,
    node: p.SetOperation,
    side: p.Plan,
    columns: tuple[Column, ...],
    *,
    must_be_sure: bool,
) -> Flow:
    below = builder.build(side, must_be_sure=must_be_sure)
    if node.kind is not p.SetKind.UNION or not node.all:
        below = builder.sure(below)
    outputs = []
    for (name, kind), attribute in zip(columns, side.attributes, strict=True):
        result = known_type(attribute.type, node.span)
        ref = ColumnRef(attribute.id, result, attribute.nullable)
        outputs.append((name, ref if result == kind else Cast(ref, kind)))
    return builder.project(below, outputs, columns, node)


# Names of circuits and query templates. A circuit's name changes whenever the engine would read
# older state differently, a template's whenever another release reads the query differently.
# Names of counters, runs and their columns belong to the format: if one changes, so must the
# format, else older state is `state_corrupt`.

ENGINE_FORMAT = 6  # Increased whenever the engine would read older state differently
_SPREAD_FORMAT = 7  # The same for plans with variances: their squares are summed with residues


def circuit_id(core: p.Plan) -> str:
    calls = (
        output.call.function
        for node in core.walk()
        if isinstance(node, p.Aggregate)
        for output in node.aggregates
    )
    is_spread = any(function in SPREADS for function in calls)
    return f"{_SPREAD_FORMAT if is_spread else ENGINE_FORMAT}:{fingerprint(core)}"


def with_answer(circuit: str) -> str:
    return f"{circuit}:answer"


def template_id(root: p.Plan) -> str:
    """Name a plan's template, as this release of impctl reads and rewrites queries. It does not
    depend on the lineage a sketch is to hold."""
    return stamped(template(for_all(root)))


class PlanBuilder(CircuitBuilder):
    """Builds operators for plan nodes, from the leaves up: the output is the node's bag of rows,
    tagged by the provenance rules (Niu et al., PVLDB 2021). `must_be_sure` is passed down: below a
    grouping, a row kept because its condition is too close to call could make a sketch too small.
    """

    def __init__(
        self,
        sketched: Mapping[AccessId, RangePartition],
        keyed: Mapping[int, AttributeId] = MappingProxyType({}),
        last_top: p.TopK | None = None,
        chooser: Chooser | None = None,
        *,
        barriers: Collection[int] | None = None,
        buffers: Buffers = KEEP_ALL,
        has_doubts: bool = True,
        answer: AnswerPlan | None = None,
        blocks: Sequence[PlannedBlock] = (),
        keyed_rows: Mapping[AttributeId, tuple[AccessId, ...]] = MappingProxyType({}),
        absorbs: Absorbs | None = None,
    ) -> None:
        """`keyed` maps Aggregates whose groups have one range, by identity (`id`), to the grouping
        column that gives it; `keyed_rows` has the columns of KEYED fixpoints. `last_top` is the
        LIMIT with only columns above. The rows of an `answer` are kept; those that it does not
        evaluate again must be sure. `blocks` are those that trees serve; `absorbs` keeps fixpoints
        by absorption; for the rest see `CircuitBuilder`."""
        super().__init__(chooser, barriers=barriers, buffers=buffers, has_doubts=has_doubts)
        self.sketched = sketched
        self.first_grouping: FirstGrouping | None = None
        self._keyed = keyed
        self._keyed_rows = keyed_rows
        self._last_top = id(last_top)
        self._node_of: dict[int, p.Plan] = {}
        self._conditions: Mapping[AccessId, tuple[Expr, ...]] = {}
        self._answer = answer
        self.has_answer = answer is not None
        self._decided = id(None if answer is None else answer.decided)
        self.kept: AnswerRows | None = None
        self._blocks = tuple(blocks)
        self._absorbs = absorbs
        self.absorbed: list[AbsorbedRows] = []

    def root(self, plan: p.Plan, *, is_passed: bool = False) -> Flow:
        """The whole plan and its barriers; tags in the order of the plan's accesses. `is_passed`:
        partial aggregates may fill it. Above a barrier rows carry none of its accesses' ranges, so
        each access counts once."""
        self._conditions = scan_conditions(plan)
        self.plan = plan
        self.is_passed = is_passed
        if self._answer is not None:
            flow = self._kept(plan, self._answer)
            check_ending(self._answer.ending, plan.span)
        elif self._blocks:
            flow = build_blocks(self, self._blocks)
        else:
            flow = self.build(plan, must_be_sure=False)
        self._node_of |= trace_back(self, flow)
        accesses = tuple(s.access for s in plan.scans if s.access in self.sketched)
        if not self.barriers:
            return flow if flow.accesses == accesses else self.union([flow], flow.columns, accesses)
        is_read = not set(accesses).isdisjoint(flow.accesses) or self.kept is not None
        return self.union([flow, *self.barriers] if is_read else self.barriers, (), accesses)

    def circuit(self) -> Circuit:
        """The circuit of what is built, without what no sketch depends on."""
        if self.barriers:
            self.drop_unread()
        return Circuit(self.operators, self.inputs)

    def _kept(self, plan: p.Plan, answer: AnswerPlan) -> Flow:
        """The plan's rows, kept, and the ranges that trees give."""
        tree_rows = rows_from_tree(self, self._blocks)
        if tree_rows is not None:
            self.kept, flow = tree_rows
            return flow
        ranges = plant_blocks(self, self._blocks)
        flow = self.build(plan, must_be_sure=False)
        kept = self.kept = kept_rows(answer.ending, flow.approximate)
        flow = replace(flow, wire=self.put(kept, flow), rows=None)
        if not ranges:
            return flow
        flows = [flow, *ranges]
        return self.union(flows, (), tuple(a for flow in flows for a in flow.accesses))

    def owners(self) -> dict[str, p.Plan]:
        """The plan node that each piece of state serves, by the state's name."""
        return {
            keeper.name: self._node_of[id(operator)]
            for operator in self.operators
            if id(operator) in self._node_of
            for keeper in operator.arrangements()
        }

    def build(self, plan: p.Plan, *, must_be_sure: bool) -> Flow:
        start = len(self.operators)
        must_be_sure = must_be_sure or id(plan) == self._decided
        flow = self._planted_for(plan, must_be_sure=must_be_sure)
        if flow is None:
            flow = self._built(plan, must_be_sure=must_be_sure)
        # Nodes below are done first, so each operator belongs to the innermost.
        for operator in self.operators[start:]:
            self._node_of.setdefault(id(operator), plan)
        return flow

    def _built(self, plan: p.Plan, *, must_be_sure: bool) -> Flow:
        match plan:
            case p.Scan() | p.OneRow():
                return self._relation(plan)
            case p.Select():
                return self._selected(plan, must_be_sure)
            case p.Project():
                return self._project(plan, must_be_sure)
            case p.Sort():
                return self.build(plan.child, must_be_sure=must_be_sure)
            case p.Aggregate():
                below = self.build(plan.child, must_be_sure=True)
                return self.grouped(plan, below, must_be_sure=must_be_sure)
            case p.Distinct():
                below = self.build(plan.child, must_be_sure=True)
                return self.distinct(below, typed(plan.attributes, plan.span), plan)
            case p.Join():
                return build_join(self, plan, must_be_sure=must_be_sure)
            case p.SetOperation():
                return build_set_operation(self, plan, must_be_sure=must_be_sure)
            case p.TopK():
                is_last = id(plan) == self._last_top
                return build_top(self, plan, is_last=is_last, must_be_sure=must_be_sure)
            case p.Witness():
                return build_witness(self, plan)
            case p.Recursive() | p.Fixpoint():
                return self._recursion(plan)
            case p.Explode():
                reason = f"the engine does not support `{plan.function}`, which expands arrays"
                raise BlockedError(reason, plan.span)
            case p.Window():
                return build_window(self, plan)

    def _selected(self, node: p.Select, must_be_sure: bool) -> Flow:
        selected = build_selected(self, node, must_be_sure=must_be_sure)
        if selected is not None:
            return selected
        below = self.build(node.child, must_be_sure=must_be_sure)
        return self.select(below, node.predicate, node, must_be_sure=must_be_sure)

    def _planted_for(self, plan: p.Plan, *, must_be_sure: bool) -> Flow | None:
        """The flow that trees planted for the node; over a grouping it may leave no choice."""
        planted = self.planted.get(id(plan))
        if planted is not None and must_be_sure and isinstance(plan, p.Aggregate):
            refuse_choice(plan, read_calls(plan).choice)
        return planted

    def _recursion(self, node: p.Recursive | p.Fixpoint) -> Flow:
        if isinstance(node, p.Recursive):
            return build_leaf(self, node)
        is_numbered = is_sketched_for_answer(node) and any(
            s.access in self.sketched for s in node.scans
        )
        if is_numbered and self._blocks:
            reason = "the engine does not support `lineage: answer` above a join tree"
            raise BlockedError(reason, node.span)
        inner = PlanBuilder(self.sketched, keyed_rows=self._keyed_rows)
        key = Keyed.of(node, self._keyed_rows, self.sketched)
        if self._absorbs is None:
            is_numbered = is_numbered and key is None
            return build_fixpoint(self, node, inner, key, is_numbered=is_numbered)
        rows, absorbed = build_absorbed(self, node, inner, key, self._absorbs)
        self.absorbed.append(absorbed)
        return rows

    def _relation(self, node: p.Scan | p.OneRow) -> Flow:
        if isinstance(node, p.OneRow):
            return Flow(self.put(linear.OneRowOperator()), (), ())
        columns = []
        for attribute in node.attributes:
            if attribute.type is None or attribute.type.kind is Kind.OTHER:
                reason = f"column `{attribute.name}` has a type that the engine does not support"
                raise BlockedError(reason, node.span)
            columns.append((attribute.id, attribute.name, attribute.type))
        partition = self.sketched.get(node.access)
        operator = linear.TableScan(columns, () if partition is None else (partition,))
        conditions = self._conditions.get(node.access, ())
        self.sources.append(Source(node.access, node.table, operator, conditions))
        accesses = () if partition is None else (node.access,)
        return Flow(-len(self.sources), typed(node.attributes, node.span), accesses, rows=node)

    def _project(self, node: p.Project, must_be_sure: bool) -> Flow:
        below = self.build(node.child, must_be_sure=must_be_sure)
        outputs = [(output.attribute.id, output.expr) for output in node.outputs]
        columns = typed(node.attributes, node.span)
        if not below.carried:
            return self.project(below, outputs, columns, node)
        outputs.extend((name, ColumnRef(name, kind)) for name, kind in below.carried)
        result = self.project(below, outputs, (*columns, *below.carried), node)
        return replace(result, carried=below.carried)

    def grouped(self, node: p.Aggregate, below: Flow, *, must_be_sure: bool) -> Flow:
        columns = typed(node.attributes, node.span)
        key = self._keyed.get(id(node))
        split = split_extremes(self, node, below)
        node, below = split.node, split.below
        calls = read_calls(node, None, below.approximate)
        if must_be_sure:
            refuse_choice(node, calls.choice)
        parts = [column.accumulator for column in calls.columns]
        self.keeps_all |= any(isinstance(part, FirstValue) for part in parts)
        keys = [(key.attribute.id, key.expr) for key in node.keys]
        for _, expr in (*keys, *calls.arguments):
            check(expr, node.span)
            if not expr.columns <= below.ids:
                raise BlockedError(LEFT_BEHIND, node.span)
        output_columns = typed(node.attributes, node.span)
        if node.grouping_sets is None:
            every = range(len(node.keys))
            wire = self._grouped(node, below, calls, every, key)
            rows = below.rows if self.groupings[-1][1].readers else None
            rows = None if rows is None else replace(node, child=rows)
            bounds = (calls.inexact, rows, calls.integral)
            flow = Flow(wire, output_columns, below.accesses, *bounds, is_plain=False)
            return split.whole(self, flow, columns)
        flows = []
        for chosen in node.grouping_sets:
            wire = self._grouped(node, below, calls, chosen, key)
            absent = {node.keys[i].attribute.id for i in range(len(keys)) if i not in chosen}
            outputs: list[tuple[AttributeId, Expr]] = [
                (name, Literal(None, kind) if name in absent else ColumnRef(name, kind))
                for name, kind in output_columns
            ]
            set_flow = Flow(
                wire, output_columns, below.accesses, calls.inexact, integral=calls.integral
            )
            flows.append(self.project(set_flow, outputs, output_columns, node))
        return split.whole(self, self.union(flows, output_columns, below.accesses), columns)

    def _grouped(
        self,
        node: p.Aggregate,
        below: Flow,
        calls: Calls,
        chosen: Sequence[int],
        key: AttributeId | None,
    ) -> int:
        """One grouping by the chosen keys, of which `key` may give the range; its position."""
        used = [node.keys[position] for position in chosen]
        inputs = [(key.attribute.id, key.expr) for key in used]
        outputs = (*inputs, *calls.arguments)
        columns = tuple((name, known_type_of(expr, node.span)) for name, expr in outputs)
        prepared = self.project(below, outputs, columns, node)

        def create(calls: Calls) -> AggregateOperator:
            return AggregateOperator(
                name,
                columns[: len(inputs)],
                calls.columns,
                accesses=len(below.accesses),
                is_keyed=key is not None,
                is_distinct=node.grouping_sets is not None,
                distinct=calls.distinct,
                first_types=calls.first_types,
                key_ranges=None if key is None else (key, self.sketched[below.accesses[0]]),
            )

        name = self.name("aggregate")
        buffer = None
        if any(isinstance(column.accumulator, Extreme) for column in calls.columns):
            buffer = self.buffered(prepared, name, is_grouped=bool(node.keys))
            self.keeps_all |= buffer is None
        operator = create(read_calls(node, buffer, below.approximate))
        wire, _ = self.put_groups(prepared, operator, lambda: create(calls))
        if operator.is_bounded and self.operators[wire] is operator:
            self.refill(operator, prepared, [name for name, _ in operator.keys])
        if self.first_grouping is None:
            self.first_grouping = FirstGrouping(operator, node, dict(outputs))
        return wire
