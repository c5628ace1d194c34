"""Top-k: the first rows of an order or of each group, and the barrier below other operators.

Law: where a top-k is not the query's last step, the fragments of all its rows, ties at the border
included, belong to the sketch whether the rows are used above or not. So they are counted at the
root on a branch of their own, and above the barrier rows carry none of these fragments any more:
whatever is left of a row there, its fragments are counted already. The last step needs no barrier:
its rows, ties included, are what is counted. A witness node is no barrier: its rows go on with
their fragments, each as often as it is first by some order.
Out of scope: when the first rows over sketches are those over the tables (`safety.transfer`).
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.circuits.flows import (
    BlockedError,
    Column,
    Flow,
    check,
    known_type,
    known_type_of,
    refuse_approximate,
)
from impctl.circuits.likely_rows import build_likely
from impctl.circuits.plumbing import Plumbing
from impctl.engine.extremes import OrderKey
from impctl.engine.linear import Project
from impctl.engine.topk import Cut, Limit, Top
from impctl.expr.nodes import Expr, columns_of
from impctl.plan.nodes import SortKey, TopK, Witness
from impctl.rules.witnesses import first_by
from impctl.types import AttributeId


def build_top(builder: Plumbing, node: TopK, *, is_last: bool, must_be_sure: bool) -> Flow:
    """The operators of a top-k; `is_last` if nothing above it decides which rows there are.

    `must_be_sure`: something above it depends on which rows there are.
    """
    if not node.order or node.count is None:
        raise BlockedError("LIMIT without ORDER BY has no fixed result", node.span)
    below = builder.build(node.child, must_be_sure=True)
    used = _columns_decided_by(node) & below.approximate
    is_free = not below.accesses or not builder.is_barrier(node)
    # The rows that OFFSET skips are kept, which only counting fragments may be given.
    is_counted = is_last or (is_free and not node.offset)
    must_be_sure = must_be_sure or not is_counted
    is_told = bool(below.carried) and not is_last and builder.is_barrier(node)
    if used and is_told:
        raise BlockedError(
            "the engine does not support LIMIT ordered by a sum of doubles above a join tree",
            node.span,
        )
    if used and not (used <= below.whole and (must_be_sure or _has_ties_to_break(node))):
        is_asked = is_last and builder.has_answer
        return build_likely(builder, node, below, must_be_sure=must_be_sure, keeps_bounds=is_asked)
    whole = below.whole
    below, bounds = builder.parted(builder.sure(below, used))
    if is_told:
        flow = _first_and_tied(builder, node, below)
    else:
        flow = _exactly_first(builder, node, below, is_last=is_last)
    return builder.rejoined(flow, bounds, whole)


def _columns_decided_by(node: TopK) -> frozenset[AttributeId]:
    exprs = (*(key.expr for key in node.order), *node.partition_by)
    return frozenset().union(*(columns_of(expr) for expr in exprs))


def _has_ties_to_break(node: TopK) -> bool:
    """Whether more than the first key of the order decides."""
    is_dense = node.rank is not None and node.rank.function == "dense_rank"
    return len(node.order) > 1 or is_dense


def _exactly_first(builder: Plumbing, node: TopK, below: Flow, *, is_last: bool) -> Flow:
    """The operators of a top-k by exact values."""
    top = _Parts(builder, node, builder.name("top"), below.columns)
    sorted_ = top.with_keys(below)
    buffer = top.buffer(sorted_)
    if is_last:
        return top.first(sorted_, top.name, top.tied, buffer)
    if not below.accesses or not builder.is_barrier(node):
        return top.first(sorted_, top.name, top.exact, buffer)
    first = top.first(sorted_, top.name, top.tied, buffer)
    builder.barriers.append(first)
    if top.tied == top.exact:
        return builder.union([first], first.columns, ())
    kept = builder.union([top.with_keys(first)], sorted_.columns, ())
    return top.first(kept, f"{top.name}/cut", top.exact)


def _first_and_tied(builder: Plumbing, node: TopK, below: Flow) -> Flow:
    """The first groups of a join tree; all that tie with them are what takes part."""
    top = _Parts(builder, node, builder.name("top"), below.columns)
    sorted_ = top.with_keys(below)
    buffer = top.buffer(sorted_)
    first = top.first(sorted_, top.name, top.tied, buffer)
    builder.taking_part[id(node)] = first
    if top.tied == top.exact:
        return first
    return top.first(top.with_keys(first), f"{top.name}/cut", top.exact)


def build_witness(builder: Plumbing, node: Witness) -> Flow:
    """The operators that keep the rows that decide: the first of each order, side by side."""
    below = builder.build(node.child, must_be_sure=True)
    refuse_approximate(below, "deciding by", node.span)
    return builder.union(
        [_first_by(builder, node, order, below) for order in node.orders],
        below.columns,
        below.accesses,
    )


def _first_by(builder: Plumbing, node: Witness, order: tuple[SortKey, ...], below: Flow) -> Flow:
    top = _Parts(builder, first_by(node, order), builder.name("witness"), below.columns)
    sorted_ = top.with_keys(below)
    buffer = top.buffer(sorted_)
    return top.first(sorted_, top.name, top.exact, buffer)


class _Parts:
    """One top-k: its columns, and its limit with the ties at the border and without."""

    def __init__(self, builder: Plumbing, node: TopK, name: str, columns: Sequence[Column]) -> None:
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
        computed = [*self._computed("order", [key.expr for key in self.node.order])]
        computed += self._computed("part", self.node.partition_by)
        for _, expr in computed:
            check(expr, self.node.span)
        types = tuple((key, known_type_of(expr, self.node.span)) for key, expr in computed)
        columns = (*self._columns, *types)
        own = {name for name, _ in self._columns}
        passed = [(name, ref) for name, ref in flow.refs() if name in own]
        at = self.builder.put(Project((*passed, *computed)), flow)
        return Flow(at, columns, flow.accesses)

    def _computed(self, what: str, exprs: Sequence[Expr]) -> list[tuple[str, Expr]]:
        return [(f"{self.name}/{what}{at}", expr) for at, expr in enumerate(exprs)]

    def buffer(self, sorted_: Flow) -> int | None:
        """How many of the first rows of a flow that has the keys are kept; None is all."""
        is_grouped = bool(self.node.partition_by)
        wanted = self.exact.size
        result = self.builder.buffered(sorted_, self.name, is_grouped=is_grouped, wanted=wanted)
        self.builder.keeps_all |= result is None
        return result

    def first(self, flow: Flow, name: str, limit: Limit, buffer: int | None = None) -> Flow:
        """The first rows of a flow that has the keys."""
        order = [
            OrderKey(f"{self.name}/order{at}", key.descending, key.nulls_first)
            for at, key in enumerate(self.node.order)
        ]
        partition = [f"{self.name}/part{at}" for at in range(len(self.node.partition_by))]
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
