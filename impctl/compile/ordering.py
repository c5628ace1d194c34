"""Top-k, ranks and window functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from impctl.compile.builder import CircuitBuilder, bounds_of
from impctl.compile.flows import (
    BlockedError,
    Column,
    Flow,
    check,
    known_type,
    known_type_of,
    refuse_approximate,
    typed,
)
from impctl.data.schema import DOUBLE, Kind, SqlType
from impctl.engine.exact_sums import Parted
from impctl.engine.extremes import OrderKey
from impctl.engine.join import JoinOperator, Side
from impctl.engine.linear import ProjectOperator as Project
from impctl.engine.topk import Cut, LikelyTop, Limit, Top
from impctl.engine.window import CHOOSING, RANKS, WindowOperator
from impctl.engine.window import WindowValue as Placed
from impctl.expr.nodes import Cast, ColumnRef, Expr, Literal, Span
from impctl.expr.types import as_decimal, narrowed, type_of
from impctl.plan import nodes as p
from impctl.plan.functions import AGGREGATES
from impctl.plan.properties import is_whole
from impctl.rules.normalize import split_averages
from impctl.rules.witnesses import first_by

if TYPE_CHECKING:
    from impctl.types import AttributeId


# A top-k below other operators is a barrier: the ranges of all its rows, ties at the border
# included, belong to the sketch, used above or not. They go to the root on a separate branch, and
# rows above carry none of them. The last step needs no barrier: its rows, ties included, are what
# is counted. A witness node is no barrier: its rows keep their ranges, each as often as it is
# first by some order.


def build_top(builder: CircuitBuilder, node: p.TopK, *, is_last: bool, must_be_sure: bool) -> Flow:
    """Build a top-k; `is_last` if no operator above selects rows. `must_be_sure`: an operator above
    depends on which rows there are."""
    if not node.order or node.count is None:
        raise BlockedError("LIMIT without ORDER BY has no fixed result", node.span)
    below = builder.build(node.child, must_be_sure=True)
    exprs = (*(key.expr for key in node.order), *node.partition_by)
    used = frozenset().union(*(expr.columns for expr in exprs)) & below.approximate
    is_free = not below.accesses or not builder.is_barrier(node)
    # The rows that OFFSET skips are kept; only counting of ranges may receive them.
    is_counted = is_last or (is_free and not node.offset)
    must_be_sure = must_be_sure or not is_counted
    has_tree = bool(below.carried) and not is_last and builder.is_barrier(node)
    if used and has_tree:
        reason = "the engine does not support LIMIT ordered by a sum of doubles above a join tree"
        raise BlockedError(reason, node.span)
    is_dense = node.rank is not None and node.rank.function == "dense_rank"
    has_ties_to_break = len(node.order) > 1 or is_dense
    if used and not (used <= below.integral and (must_be_sure or has_ties_to_break)):
        keeps_bounds = is_last and builder.has_answer
        return build_likely(
            builder, node, below, must_be_sure=must_be_sure, keeps_bounds=keeps_bounds
        )
    integral = below.integral
    below, bounds = builder.parted(builder.sure(below, used))
    flow = _exactly_first(builder, node, below, is_last=is_last, has_tree=has_tree)
    return builder.rejoined(flow, bounds, integral)


def _exactly_first(
    builder: CircuitBuilder, node: p.TopK, below: Flow, *, is_last: bool, has_tree: bool
) -> Flow:
    """The operators of a top-k by exact values; with `has_tree`, all tied groups take part."""
    top = _TopParts(builder, node, builder.name("top"), below.columns)
    sorted_ = top.with_keys(below)
    buffer = top.buffer(sorted_)
    if is_last:
        return top.first(sorted_, top.name, top.tied, buffer)
    if has_tree:
        first = builder.taking_part[id(node)] = top.first(sorted_, top.name, top.tied, buffer)
        if top.tied == top.exact:
            return first
        return top.first(top.with_keys(first), f"{top.name}/cut", top.exact)
    if not below.accesses or not builder.is_barrier(node):
        return top.first(sorted_, top.name, top.exact, buffer)
    first = top.first(sorted_, top.name, top.tied, buffer)
    builder.barriers.append(first)
    if top.tied == top.exact:
        return builder.union([first], first.columns, ())
    kept = builder.union([top.with_keys(first)], sorted_.columns, ())
    return top.first(kept, f"{top.name}/cut", top.exact)


def build_witness(builder: CircuitBuilder, node: p.Witness) -> Flow:
    """Build the operators that keep the rows that decide: the first of each order, side by side."""
    below = builder.build(node.child, must_be_sure=True)
    refuse_approximate(below, "deciding by", node.span)
    flows = []
    for order in node.orders:
        top = _TopParts(builder, first_by(node, order), builder.name("witness"), below.columns)
        sorted_ = top.with_keys(below)
        flows.append(top.first(sorted_, top.name, top.exact, top.buffer(sorted_)))
    return builder.union(flows, below.columns, below.accesses)


class _TopParts:
    """One top-k: its columns, and its limit with the ties at the border and without."""

    def __init__(
        self, builder: CircuitBuilder, node: p.TopK, name: str, columns: Sequence[Column]
    ) -> None:
        assert node.count is not None
        self.builder = builder
        self.node = node
        self.name = name
        self._columns = tuple(columns)
        size = node.offset + node.count
        cut = Cut.ROW if node.rank is None else Cut(node.rank.function)
        self.exact = Limit(size, cut, node.offset)
        self.tied = Limit(size, Cut.RANK) if cut is Cut.ROW else self.exact

    def with_keys(self, flow: Flow) -> Flow:
        """The node's input columns, and what it sorts and partitions by."""
        node, name = self.node, self.name
        computed = [(f"{name}/order{index}", key.expr) for index, key in enumerate(node.order)]
        computed += [(f"{name}/part{index}", expr) for index, expr in enumerate(node.partition_by)]
        for _, expr in computed:
            check(expr, node.span)
        types = tuple((key, known_type_of(expr, node.span)) for key, expr in computed)
        columns = (*self._columns, *types)
        names = {name for name, _ in self._columns}
        passed = [(name, ref) for name, ref in flow.refs() if name in names]
        wire = self.builder.put(Project((*passed, *computed)), flow)
        return Flow(wire, columns, flow.accesses)

    def buffer(self, sorted_: Flow) -> int | None:
        """How many of the first rows of a flow with the keys are kept; None is all."""
        is_grouped = bool(self.node.partition_by)
        first_rows = self.exact.size
        result = self.builder.buffered(sorted_, self.name, is_grouped=is_grouped, wanted=first_rows)
        self.builder.keeps_all |= result is None
        return result

    def first(self, flow: Flow, name: str, limit: Limit, buffer: int | None = None) -> Flow:
        order = [
            OrderKey(f"{self.name}/order{index}", key.descending, key.nulls_first)
            for index, key in enumerate(self.node.order)
        ]
        partition = [f"{self.name}/part{index}" for index in range(len(self.node.partition_by))]
        rank = None if self.node.rank is None else self.node.rank.attribute
        operator = Top(
            name,
            flow.columns,
            order,
            limit,
            len(flow.accesses),
            partition=partition,
            rank=None if rank is None else rank.id,
            buffer=buffer,
        )
        if operator.is_bounded:
            self.builder.refill(operator, flow, partition)
        columns = self._columns
        if rank is not None:
            columns = (*columns, (rank.id, known_type(rank.type, self.node.span)))
        return Flow(self.builder.put(operator, flow), columns, flow.accesses)


# Top-k by a sum of doubles keeps all rows that may be first: whatever Spark's summation gives
# within the bounds, its first rows are among them. Extra rows are harmless, and their ranges are
# counted, if the top-k is the last step or the barrier of all sketched accesses, or if nothing
# above groups, counts or cuts rows. Elsewhere a step with extra rows, or extra rows that OFFSET
# skips, fails with `not_exact`. Only the first sort key is compared; ties on it are all kept.


def build_likely(
    builder: CircuitBuilder,
    node: p.TopK,
    below: Flow,
    *,
    must_be_sure: bool,
    keeps_bounds: bool = False,
) -> Flow:
    """Build first rows that may be unsure, without their rank. `must_be_sure` allows no extra rows.
    Otherwise columns with bounds, and the rows that OFFSET skips, pass only if `keeps_bounds`."""
    keeps_bounds = keeps_bounds or must_be_sure
    if must_be_sure and not builder.has_doubts:
        reason = "the engine does not support ordering by a sum of doubles below another grouping"
        raise BlockedError(reason, node.span)
    assert node.count is not None
    name = builder.name("likely")
    sorted_, key, bound, parts = _with_keys(builder, node, below, name, keeps_bounds=keeps_bounds)

    def likely(name: str, flow: Flow, size: int) -> Flow:
        operator = LikelyTop(
            name,
            sorted_.columns,
            key,
            bound,
            size,
            len(flow.accesses),
            partition=parts,
            cut=Cut.ROW if node.rank is None else Cut(node.rank.function),
            has_more=len(node.order) > 1,
            is_sure=must_be_sure,
        )
        return Flow(builder.put(operator, flow), sorted_.columns, flow.accesses)

    first = likely(name, sorted_, node.offset + node.count)
    if not keeps_bounds:
        exact = tuple(column for column in below.columns if column[0] not in below.approximate)
        return Flow(first.wire, exact, below.accesses)
    if must_be_sure and below.accesses and builder.is_barrier(node):
        builder.barriers.append(first)
        first = builder.union([first], first.columns, ())
    if must_be_sure and node.offset:
        # As many rows as are skipped are no others than these, so what is left is the answer.
        skipped = likely(f"{name}/skipped", first, node.offset)
        first = builder.union([first, skipped], first.columns, first.accesses, signs=(1, -1))
    added = {key.column, bound, *parts}
    columns = tuple(column for column in sorted_.columns if column[0] not in added)
    first = Flow(first.wire, columns, first.accesses)
    return builder.rejoined(first, bounds_of(below), below.integral)


def _with_keys(
    builder: CircuitBuilder, node: p.TopK, below: Flow, name: str, *, keeps_bounds: bool
) -> tuple[Flow, OrderKey, AttributeId | None, list[AttributeId]]:
    """The rows with their sort and partition columns; the column of the bound, if there is one."""
    key = node.order[0]
    parts: list[tuple[AttributeId, Expr]] = [
        (f"{name}/part{index}", expr) for index, expr in enumerate(node.partition_by)
    ]
    for expr in (key.expr, *node.partition_by):
        check(expr, node.span)
    if any(expr.columns & below.approximate for _, expr in parts):
        reason = "the engine does not support partitioning by a sum of doubles"
        raise BlockedError(reason, node.span)
    order, bound = f"{name}/order", f"{name}/bound"
    has_bound = bool(key.expr.columns & below.approximate)
    passed_columns = [
        column for column in below.columns if keeps_bounds or column[0] not in below.approximate
    ]
    added = [
        (column_id, known_type_of(expr, node.span))
        for column_id, expr in ((order, key.expr), *parts)
    ]
    ids = {column_id for column_id, _ in passed_columns}
    passed = [(column_id, ref) for column_id, ref in below.refs() if column_id in ids]
    wire = builder.put(Project((*passed, (order, key.expr), *parts)), below)
    bounds = {order: bound} if has_bound else {}
    if keeps_bounds:
        bounds |= bounds_of(below)
    columns = (*passed_columns, *added, *((column_id, DOUBLE) for column_id in bounds.values()))
    flow = Flow(wire, columns, below.accesses)
    if bounds:
        flow = Flow(builder.put(Parted(bounds), flow), columns, below.accesses)
    sort = OrderKey(order, key.descending, key.nulls_first)
    return flow, sort, bound if has_bound else None, [column_id for column_id, _ in parts]


# Ranks without a limit, LAG and LEAD. Every step checks that sort keys and shifted values are
# exact, and that no rows tie where ties matter. Offsets are literals, as in Spark.

_SHIFTED = frozenset({"lag", "lead"})


def check_placed(call: p.WindowCall, span: Span | None) -> None:
    """BlockedError for a call that the engine does not compute by position."""
    reason, span = f"the engine does not support {call.function.upper()}", call.span or span
    if call.function not in RANKS | _SHIFTED:
        raise BlockedError(reason, span)
    if call.frame is not None or not call.order:
        raise BlockedError(f"{reason} without ORDER BY or with a frame", span)
    if call.function in _SHIFTED:
        _ahead(call, span)
        _shifted_values(call, span)


def _shifted_values(call: p.WindowCall, span: Span | None) -> tuple[Expr, ...]:
    """The value that others take of a row, and its default if there is one, of one type. A number
    that loses nothing by it has the value's type, whatever type Spark makes of both."""
    value, *default = call.arguments[::2]
    kind = known_type_of(value, span)
    if not default or type_of(default[0]) == kind:
        return (value, *default)
    default_kind = type_of(default[0])
    is_constant = isinstance(default[0], Literal)
    if (
        is_constant
        and default_kind is not None
        and _fits(narrowed(default[0], default_kind, kind), kind)
    ):
        return (value, Cast(default[0], kind))
    name = call.function.upper()
    raise BlockedError(f"the default of {name} has a different type than its value", span)


def _fits(source: SqlType, target: SqlType) -> bool:
    """Whether every number of one type is one of the other: whole numbers and decimals."""
    if not all(type_.is_integral or type_.kind is Kind.DECIMAL for type_ in (source, target)):
        return False
    source, target = as_decimal(source), as_decimal(target)
    return (
        source.scale <= target.scale
        and source.precision - source.scale <= target.precision - target.scale
    )


def _ahead(call: p.WindowCall, span: Span | None) -> int:
    """How many rows ahead of its own the value is."""
    ahead = 1
    if len(call.arguments) > 1:
        offset = call.arguments[1]
        if not isinstance(offset, Literal) or type(offset.value) is not int:
            raise BlockedError(f"the offset of {call.function.upper()} is not an integer", span)
        ahead = offset.value
    return -ahead if call.function == "lag" else ahead


def build_placed(
    builder: CircuitBuilder,
    node: p.Window,
    rows: Flow,
    partition: Sequence[AttributeId],
    calls: Sequence[p.WindowCall],
) -> Flow:
    """The rows with a column per call; they have no accesses."""
    choosing = next((call for call in calls if call.function in CHOOSING), None)
    if choosing is not None and not builder.has_doubts:
        reason = f"the ORDER BY of {choosing.function.upper()} may have ties"
        raise BlockedError(reason, choosing.span or node.span)
    name = builder.name("places")
    computed: dict[Expr, AttributeId] = {}
    for call in calls:
        # What it sorts by, and what others take of a row.
        shifted = _shifted_values(call, node.span) if call.function in _SHIFTED else ()
        for expr in (*(key.expr for key in call.order), *shifted):
            fresh = f"{name}/{len(computed)}"
            computed.setdefault(expr, expr.id if isinstance(expr, ColumnRef) else fresh)
    added = [(column, expr) for expr, column in computed.items() if column not in rows.ids]
    kinds = [(column, known_type_of(expr, node.span)) for column, expr in added]
    if added:
        rows = builder.project(rows, (*rows.refs(), *added), (*rows.columns, *kinds), node)
    rows = builder.sure(rows, (*computed.values(), *partition))
    rows, bounds = builder.parted(rows)
    placed = [_placed(call, computed, node.span) for call in calls]
    wire = builder.put(WindowOperator(name, rows.columns, partition, placed), rows)
    results = typed([call.attribute for call in calls], node.span)
    integral = rows.integral
    return builder.rejoined(Flow(wire, (*rows.columns, *results), ()), bounds, integral)


def _placed(call: p.WindowCall, columns: dict[Expr, AttributeId], span: Span | None) -> Placed:
    order = tuple(OrderKey(columns[k.expr], k.descending, k.nulls_first) for k in call.order)
    if call.function in RANKS:
        return Placed(call.attribute.id, call.function, order)
    value, *default = [columns[expr] for expr in _shifted_values(call, span)]
    ahead = _ahead(call, call.span or span)
    otherwise = default[0] if default else None
    return Placed(call.attribute.id, call.function, order, value, ahead, otherwise)


# f(x) OVER (PARTITION BY p) of R is R joined with (SELECT p, f(x) FROM R GROUP BY p) on p, with
# NULL equal to NULL. A row has the ranges of all rows of its partition; they come with the group,
# so its own are dropped. Calls with other partitions are joined one after the other; a row then
# also gets ranges that rows of its later partitions got from earlier ones, which are its own where
# a sketch is safe. Ranks, LAG and LEAD are added before (`engine.window`). A step costs the changed
# rows and the rows of partitions whose value changes; every row is kept.


def build_window(builder: CircuitBuilder, node: p.Window) -> Flow:
    for call in node.calls:
        if call.function not in AGGREGATES:
            check_placed(call, node.span)
        elif not is_whole(call):
            name = call.function.upper()
            reason = f"the engine does not support {name} over part of a window's partition"
            raise BlockedError(reason, call.span or node.span)
    rows = builder.build(node.child, must_be_sure=True)
    for partition_by in dict.fromkeys(call.partition_by for call in node.calls):
        calls = [call for call in node.calls if call.partition_by == partition_by]
        aggregates = [call for call in calls if call.function in AGGREGATES]
        grouping = _grouping(builder, node, partition_by, aggregates)
        placed = [call for call in calls if call.function not in AGGREGATES]
        result = _beside(builder, node, rows, grouping, placed)
        results = (call.attribute for call in (*aggregates, *placed))
        columns = (*rows.columns, *typed(results, node.span))
        outputs = [(name, ColumnRef(name, kind)) for name, kind in columns]
        rows = builder.project(result, outputs, columns, node)
    return rows


def _grouping(
    builder: CircuitBuilder,
    node: p.Window,
    partition_by: tuple[Expr, ...],
    calls: Sequence[p.WindowCall],
) -> p.Aggregate:
    name = builder.name("window")
    keys = tuple(
        p.ComputedColumn(
            p.Attribute(f"{name}/key{position}", f"key{position}", type_of(expr)), expr
        )
        for position, expr in enumerate(partition_by)
    )
    results = tuple(
        p.AggregateOutput(
            call.attribute, p.AggregateCall(call.function, call.arguments, span=call.span)
        )
        for call in calls
    )
    return p.Aggregate(node.child, keys, results, span=node.span)


def _beside(
    builder: CircuitBuilder,
    node: p.Window,
    rows: Flow,
    grouping: p.Aggregate,
    placed: Sequence[p.WindowCall],
) -> Flow:
    """Each row with its group's columns and ranges; both are kept, as no other state has them. Keys
    are exact: an inexact one makes the grouping fail. Without ranges and functions a group would
    add nothing."""
    name = builder.name("window")
    keys = grouping.keys
    ids = [k.expr.id if isinstance(k.expr, ColumnRef) else f"{name}/{k.attribute.id}" for k in keys]
    computed = [
        (column, key.expr) for column, key in zip(ids, keys, strict=True) if column not in rows.ids
    ]
    types = [(column, known_type_of(expr, node.span)) for column, expr in computed]
    alone = builder.union([rows], rows.columns, ())
    if computed:
        alone = builder.project(alone, (*rows.refs(), *computed), (*rows.columns, *types), node)
    if placed:
        alone = build_placed(builder, node, alone, ids, placed)
        if not rows.accesses and not grouping.aggregates:
            return alone
    groups = _groups(builder, grouping, rows)
    integral = rows.integral | groups.integral
    alone, row_bounds = builder.parted(alone)
    groups, group_bounds = builder.parted(groups)
    sides = (
        Side(alone.columns, tuple(ids), 0),
        Side(groups.columns, tuple(key.attribute.id for key in keys), len(groups.accesses)),
    )
    wire = builder.put(JoinOperator(name, *sides, [True] * len(ids)), alone, groups)
    flow = Flow(wire, (*alone.columns, *groups.columns), groups.accesses)
    return builder.rejoined(flow, {**row_bounds, **group_bounds}, integral)


def _groups(builder: CircuitBuilder, grouping: p.Aggregate, rows: Flow) -> Flow:
    """The groups, with averages computed from sums and counts."""
    split = split_averages(grouping)
    if not isinstance(split, p.Project):
        return builder.grouped(grouping, rows, must_be_sure=True)
    assert isinstance(split.child, p.Aggregate), "averages are split above the grouping"
    below = builder.grouped(split.child, rows, must_be_sure=True)
    outputs = [(output.attribute.id, output.expr) for output in split.outputs]
    return builder.project(below, outputs, typed(split.attributes, split.span), split)
