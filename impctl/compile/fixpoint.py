"""Fixpoints as circuits of their own, and those that are followed back from the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from impctl.compile.builder import CircuitBuilder, TracedFixpoint
from impctl.compile.flows import BlockedError, Column, Flow, known_type, typed
from impctl.data.schema import LONG
from impctl.engine.circuit import Circuit
from impctl.engine.fixpoint.absorption import BODY, HEAD, NOTHING
from impctl.engine.fixpoint.fixpoint import (
    ROW,
    Backward,
    BestFixpoint,
    FixpointOperator,
    LineageOperator,
    NumberColumns,
    UnionAllFixpoint,
    UsedRows,
)
from impctl.engine.fixpoint.frontier import NO_BODY, Recursion
from impctl.engine.fixpoint.rows import Grouped
from impctl.engine.linear import KeyTags
from impctl.engine.operator import level_limits
from impctl.expr.nodes import Call, Cast, ColumnRef, Expr, Literal, Span
from impctl.plan import nodes as p
from impctl.plan.recursion import is_derived_from_one_row, reads_fixpoint

if TYPE_CHECKING:
    from impctl.sketch.sketch import RangePartition
    from impctl.types import AccessId, AttributeId, FixpointId

# Fixpoints: the step is a circuit of its own. Parts of it that do not read the fixpoint are built
# beside it, once. In the step, rows carry ranks as columns, one per leaf; a derived row's rank is
# the greatest of them (with UNION ALL, the level of the one row it is derived from). All rows of a
# fixpoint count, used above or not: the ranges of all their derivations (or of one each, if
# requested) go to the root on a separate branch, and rows above carry none of them. A fixpoint
# keyed on a column has no branch: its rows carry the range of their own value, for every access
# below. For the lineage of the answer alone, rows carry numbers, and derived rows those of their
# bodies. Each reference to a WITH entry has its own fixpoint.

_RANK = "rank"
_NUMBER = "number"
_PRESERVED = {
    p.JoinKind.INNER: (True, True),
    p.JoinKind.LEFT: (True, False),
    p.JoinKind.RIGHT: (False, True),
    p.JoinKind.FULL: (False, False),
    p.JoinKind.SEMI: (True, False),
    p.JoinKind.ANTI: (True, False),
}
"""Join sides that may read the fixpoint: more rows in it never give fewer rows above."""


def build_fixpoint(
    builder: CircuitBuilder,
    node: p.Fixpoint,
    inner: CircuitBuilder,
    key: Keyed | None = None,
    *,
    is_numbered: bool = False,
) -> Flow:
    """Build the operators of a fixpoint; `inner` builds those of its step; KEYED if it has a `key`.
    If it `is_numbered`, which needs a set, rows carry their numbers."""
    if not node.is_set and not is_derived_from_one_row(node):
        reason = "WITH RECURSIVE of UNION ALL, with rows made of none of its rows or of two,"
        raise BlockedError(reason, node.span)
    columns = typed(node.attributes, node.span)
    name = builder.name("fixpoint")
    rank = f"{name}/{_RANK}"
    base = as_rows(builder, builder.build(node.base, must_be_sure=True), node.base, node)
    ranking = _Ranking(node.id, is_numbered, [], [])
    ranked = ranking.ranked(node.step)
    apart = [builder.sure(builder.build(plan, must_be_sure=True)) for plan in ranking.beside]
    if key is not None:
        base, *apart = (untagged(builder, flow) for flow in (base, *apart))
    numbering = None
    if is_numbered:
        bodies = tuple(f"{name}/body{index}" for index in range(len(ranked[1].numbers)))
        numbering = NumberColumns(f"{name}/{_NUMBER}", bodies)
    named = (rank,) if numbering is None else (rank, numbering.number, *numbering.bodies)
    inner.prefix = f"{name}."
    step = _step(inner, node, ranked, ranking.leaves, apart, named)
    accesses = (*base.accesses, *step.accesses)
    circuit = Circuit(inner.operators, inner.inputs)
    counts = (len(base.accesses), len(step.accesses))
    operator: Recursion
    if not node.is_set:
        operator = UnionAllFixpoint(name, columns, rank, circuit, counts, level_limits(node.levels))
    elif node.best is None:
        chooses = node.chooses and bool(accesses)
        operator = FixpointOperator(
            name, columns, rank, circuit, counts, chooses=chooses, numbering=numbering
        )
    else:
        grouped = _grouped(node.best, columns)
        operator = BestFixpoint(name, columns, grouped, rank, circuit, counts)
    inputs = (base, *apart)
    if isinstance(operator, FixpointOperator) and numbering is not None:
        # The rows carry their numbers; the accesses below wait for `trace_back`.
        rows = Flow(builder.put(operator, *inputs), columns, ())
        numbers = f"rows of {name}"
        builder.opened.append(TracedFixpoint(node, name, numbers, operator, rows, accesses))
        return replace(rows, accesses=(numbers,))
    return rows_of(builder, operator, inputs, columns, accesses, key)


def rows_of(
    builder: CircuitBuilder,
    operator: Recursion,
    inputs: Sequence[Flow],
    columns: tuple[Column, ...],
    accesses: tuple[AccessId, ...],
    key: Keyed | None,
) -> Flow:
    """The rows of a fixpoint that reads these flows, and the barrier of its lineage."""
    rows = Flow(builder.put(operator, *inputs), columns, ())
    if key is not None:
        tags = KeyTags(key.column, key.partition, len(key.accesses))
        return replace(rows, wire=builder.put(tags, rows), accesses=key.accesses)
    if accesses:
        builder.barriers.append(Flow(builder.put(LineageOperator(operator), rows), (), accesses))
    return rows


def _grouped(best: p.BestOnly, columns: Sequence[Column]) -> Grouped:
    names = [name for name, _ in columns]
    return Grouped(
        tuple(names[position] for position in best.keys),
        tuple((names[value.place], value.greatest) for value in best.values),
        best.keeps_null,
    )


class Keyed(Struct, frozen=True):
    """The column that a fixpoint is keyed on, the accesses below, and the ranges of all of them."""

    column: AttributeId
    partition: RangePartition
    accesses: tuple[AccessId, ...]

    @classmethod
    def of(
        cls,
        node: p.Fixpoint,
        keyed: Mapping[AttributeId, tuple[AccessId, ...]],
        sketched: Mapping[AccessId, RangePartition],
    ) -> Keyed | None:
        """The key column of a fixpoint; None for one that is a barrier. BlockedError if accesses
        have different ranges: then no sketch covers all of them."""
        column = next(
            (attribute.id for attribute in node.attributes if attribute.id in keyed), None
        )
        if column is None:
            return None
        partitions = {sketched[access].id: sketched[access] for access in keyed[column]}
        if len(partitions) > 1:
            raise BlockedError("a recursion that reads tables with different ranges", node.span)
        (partition,) = partitions.values()
        return cls(column, partition, keyed[column])


def untagged(builder: CircuitBuilder, flow: Flow) -> Flow:
    """The rows without range ids: above, a row's own value gives them."""
    return builder.union([flow], flow.columns, ()) if flow.accesses else flow


def build_leaf(builder: CircuitBuilder, node: p.Recursive) -> Flow:
    """The rows that a leaf of a step represents, under its own columns."""
    flow = builder.leaf_flows.get(node.fixpoint)
    if flow is None:
        raise BlockedError("rows of a WITH entry inside another self-referencing entry", node.span)
    columns = typed(node.attributes, node.span)
    if columns == flow.columns:
        return flow
    outputs = [
        (new, ColumnRef(old, kind))
        for (new, _), (old, kind) in zip(columns, flow.columns, strict=True)
    ]
    return builder.project(flow, outputs, columns, node)


def columns_of_leaf(leaf: p.Recursive, flow: Flow, span: Span | None) -> tuple[Column, ...]:
    """The columns of a leaf that represents this flow; BlockedError if one is not available."""
    columns = typed(leaf.attributes, span)
    if not {name for name, _ in columns} <= flow.ids:
        reason = "the engine does not support using a sum of doubles below WITH RECURSIVE"
        raise BlockedError(reason, span)
    return columns


def as_rows(
    builder: CircuitBuilder,
    flow: Flow,
    plan: p.Plan,
    node: p.Fixpoint,
    *more: tuple[AttributeId, Expr],
) -> Flow:
    """A flow's rows under the columns of the fixpoint, none with bounds, and more columns."""
    flow = builder.sure(flow)
    outputs: list[tuple[AttributeId, Expr]] = []
    pairs = zip(typed(node.attributes, node.span), plan.attributes, strict=False)
    for (name, kind), attribute in pairs:
        known_type(attribute.type, node.span)
        ref = attribute.ref()
        outputs.append((name, ref if attribute.type == kind else Cast(ref, kind)))
    columns = (*typed(node.attributes, node.span), *((name, LONG) for name, _ in more))
    return builder.project(flow, [*outputs, *more], columns, node)


def _step(
    inner: CircuitBuilder,
    node: p.Fixpoint,
    ranked: _Ranked,
    leaves: Sequence[p.Recursive],
    apart: Sequence[Flow],
    named: Sequence[AttributeId],
) -> Flow:
    """The operators of the step. Input rows have a rank, output rows the greatest rank of their
    inputs; with numbers, input rows have these and output rows those of all inputs. `named` are
    these columns."""
    plan, carried = ranked
    rank, *numbers = named
    columns = typed(node.attributes, node.span)
    leaf_flows = {node.id: Flow(-1, (*columns, *number_columns((rank, *numbers[:1]))), ())}
    for index, (leaf, flow) in enumerate(zip(leaves, apart, strict=True)):
        columns = columns_of_leaf(leaf, flow, node.span)
        leaf_flows[leaf.fixpoint] = Flow(-2 - index, columns, flow.accesses)
    inner.leaf_flows = leaf_flows
    flow = inner.build(plan, must_be_sure=True)
    bodies = ((name, body.ref()) for name, body in zip(numbers[1:], carried.numbers, strict=True))
    return as_rows(inner, flow, plan, node, (rank, _greatest(carried.ranks)), *bodies)


class _Carried(Struct, frozen=True):
    """The ranks (the greatest is a row's own) and numbers of the rows that a row derives from."""

    ranks: tuple[p.Attribute, ...] = ()
    numbers: tuple[p.Attribute, ...] = ()

    @property
    def passed(self) -> tuple[p.ComputedColumn, ...]:
        return p.ComputedColumn.unchanged((*self.ranks, *self.numbers))


_Ranked = tuple[p.Plan, _Carried]


class _Ranking(Struct, frozen=True):
    """Carries ranks and numbers through a step; `leaves` replace what is `beside` the fixpoint."""

    fixpoint: FixpointId
    is_numbered: bool
    leaves: list[p.Recursive]
    beside: list[p.Plan]

    def ranked(self, plan: p.Plan) -> _Ranked:
        """The plan with ranks among its columns, and which these are."""
        if not reads_fixpoint(plan, self.fixpoint):
            return self._put_beside(plan), _Carried()
        match plan:
            case p.Recursive():
                first = plan.attributes[0].id
                rank = p.Attribute(f"{first}/{_RANK}", _RANK, LONG, nullable=False)
                number = p.Attribute(f"{first}/{_NUMBER}", _NUMBER, LONG, nullable=False)
                carried = _Carried((rank,), (number,) if self.is_numbered else ())
                more = (*carried.ranks, *carried.numbers)
                return replace(plan, attributes=(*plan.attributes, *more)), carried
            case p.Select() | p.Sort():
                below, carried = self.ranked(plan.child)
                return replace(plan, child=below), carried
            case p.Project():
                below, carried = self.ranked(plan.child)
                return replace(plan, child=below, outputs=(*plan.outputs, *carried.passed)), carried
            case p.Join():
                return self._joined(plan)
            case p.SetOperation(kind=p.SetKind.UNION, all=True):
                return self._either(plan)
        kind = type(plan).__name__
        raise BlockedError(f"{kind} over rows of the self-referencing WITH entry", plan.span)

    def _put_beside(self, plan: p.Plan) -> p.Plan:
        leaf = p.Recursive(f"{self.fixpoint}/{len(self.beside)}", plan.attributes, span=plan.span)
        self.leaves.append(leaf)
        self.beside.append(plan)
        return leaf

    def _joined(self, plan: p.Join) -> _Ranked:
        sides = (plan.left, plan.right)
        for side, may_read in zip(sides, _PRESERVED[plan.kind], strict=True):
            if not may_read and reads_fixpoint(side, self.fixpoint):
                side_text = f"the optional side of a {plan.kind} join"
                raise BlockedError(f"{side_text} that is a self-referencing WITH entry", plan.span)
        (left, left_columns), (right, right_columns) = map(self.ranked, sides)
        both_columns = _Carried(
            (*left_columns.ranks, *right_columns.ranks),
            (*left_columns.numbers, *right_columns.numbers),
        )
        return replace(plan, left=left, right=right), both_columns

    def _either(self, plan: p.SetOperation) -> _Ranked:
        """Both sides with one rank as their last column before equally many numbers."""
        ranked = [self.ranked(side) for side in (plan.left, plan.right)]
        count = max(len(own.numbers) for _, own in ranked)
        first = plan.attributes[0].id

        def columns(of: str) -> list[p.Attribute]:
            numbers = (f"{_NUMBER}{index}" for index in range(count))
            return [p.Attribute(f"{first}/{name}{of}", name, LONG) for name in (_RANK, *numbers)]

        sides: list[p.Plan] = []
        for index, side in enumerate((plan.left, plan.right)):
            below, carried = ranked[index]
            numbers: list[Expr] = [number.ref() for number in carried.numbers]
            numbers += [Literal(NOTHING, LONG)] * (count - len(numbers))
            exprs = (_greatest(carried.ranks), *numbers)
            more = map(p.ComputedColumn, columns(f"{index}"), exprs)
            sides.append(p.Project(below, (*p.ComputedColumn.unchanged(side.attributes), *more)))
        new_columns = columns("")
        left, right = sides
        union = replace(plan, left=left, right=right, attributes=(*plan.attributes, *new_columns))
        return union, _Carried((new_columns[0],), tuple(new_columns[1:]))


def _greatest(ranks: Sequence[p.Attribute]) -> Expr:
    if not ranks:
        return Literal(NO_BODY, LONG)
    refs = tuple(rank.ref() for rank in ranks)
    return refs[0] if len(refs) == 1 else Call("greatest", refs, LONG)


# Fixpoints sketched for the answer alone: their rows carry numbers as if these were ranges of one
# more access. The numbers that arrive at the root or a barrier are the rows that the answer stems
# from. Their derivations are followed back, and the ranges of these go to the root on a separate
# branch. Outer fixpoints come first, since they may use rows of inner ones.


def number_columns(names: Sequence[AttributeId]) -> tuple[Column, ...]:
    return tuple((name, LONG) for name in names)


def trace_back(builder: CircuitBuilder, root: Flow) -> dict[int, p.Plan]:
    """The branches with the ranges of all fixpoints' rows that result rows stem from, and by
    operator identity (`id`) the fixpoint that each added operator serves."""
    served: dict[int, p.Plan] = {}
    while builder.opened:
        traced = builder.opened.pop()
        arriving = [flow for flow in (root, *builder.barriers) if traced.numbers in flow.accesses]
        if not arriving:
            continue
        used = UsedRows(f"{traced.name}.used")
        arrived = builder.union(arriving, (), (traced.numbers,))
        answer = Flow(builder.put(used, arrived), ((ROW, LONG),), ())
        columns = number_columns((HEAD, BODY))
        derivations = Flow(
            builder.put(LineageOperator(traced.operator), traced.rows), columns, traced.accesses
        )
        backward = Backward(f"{traced.name}.back", len(traced.accesses))
        rows = Flow(builder.put(backward, answer, derivations), ((ROW, LONG),), ())
        lineage = builder.put(LineageOperator(backward), rows)
        builder.barriers.append(Flow(lineage, (), traced.accesses))
        served |= {id(used): traced.node, id(backward): traced.node}
    return served
