"""Top-k by a sum of doubles: the rows that may be first, or those that surely are.

Law: whatever Spark's own summation gives within the bounds, its first rows are among these. Where
too many of them do no harm all are kept, and the fragments of all of them are counted: the top-k is
the query's last step, or the barrier of all that is sketched, or nothing above it groups, counts or
cuts rows. Elsewhere they must be no more than are asked for, and then they are the first rows for
sure; a step in which they are more fails with `not_exact`, and so does one in which the rows that
OFFSET skips are. Only the first sort key is looked at; ties on it are kept whole.
Out of scope: top-k by exact values (`circuits.first_rows`).
"""

from __future__ import annotations

from impctl.circuits.flows import BlockedError, Column, Flow, check, known_type_of
from impctl.circuits.plumbing import Plumbing, bounds_of
from impctl.data.schema import DOUBLE
from impctl.engine.exact_sums import Parted
from impctl.engine.extremes import OrderKey
from impctl.engine.linear import Project
from impctl.engine.topk import Cut, LikelyTop
from impctl.expr.nodes import Expr, columns_of
from impctl.plan.nodes import TopK
from impctl.types import AttributeId


def build_likely(
    builder: Plumbing, node: TopK, below: Flow, *, must_be_sure: bool, keeps_bounds: bool = False
) -> Flow:
    """The operators; the rank is not among the columns that go on.

    `must_be_sure`: rows that may be first are not enough. Else what has a bound goes on only where
    `keeps_bounds` asks for it, and the rows that OFFSET skips do.
    """
    keeps_bounds = keeps_bounds or must_be_sure
    if must_be_sure and not builder.has_doubts:
        raise BlockedError(
            "the engine does not support ordering by a sum of doubles below another grouping",
            node.span,
        )
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
        return Flow(first.at, _exact(below), below.accesses)
    if must_be_sure and below.accesses and builder.is_barrier(node):
        builder.barriers.append(first)
        first = builder.union([first], first.columns, ())
    if must_be_sure and node.offset:
        # As many rows as are skipped are no others than these, so what is left is the answer.
        skipped = likely(f"{name}/skipped", first, node.offset)
        first = builder.union([first, skipped], first.columns, first.accesses, signs=(1, -1))
    own = {key.column, bound, *parts}
    columns = tuple(column for column in sorted_.columns if column[0] not in own)
    first = Flow(first.at, columns, first.accesses)
    return builder.rejoined(first, bounds_of(below), below.whole)


def _exact(flow: Flow) -> tuple[Column, ...]:
    return tuple(column for column in flow.columns if column[0] not in flow.approximate)


def _with_keys(
    builder: Plumbing, node: TopK, below: Flow, name: str, *, keeps_bounds: bool
) -> tuple[Flow, OrderKey, AttributeId | None, list[AttributeId]]:
    """The rows with what they are sorted and parted by; its columns, the bound's if it has one."""
    key = node.order[0]
    parts: list[tuple[AttributeId, Expr]] = [
        (f"{name}/part{at}", expr) for at, expr in enumerate(node.partition_by)
    ]
    for expr in (key.expr, *node.partition_by):
        check(expr, node.span)
    if any(columns_of(expr) & below.approximate for _, expr in parts):
        raise BlockedError(
            "the engine does not support partitioning by a sum of doubles", node.span
        )
    order, bound = f"{name}/order", f"{name}/bound"
    has_bound = bool(columns_of(key.expr) & below.approximate)
    kept = [
        column for column in below.columns if keeps_bounds or column[0] not in below.approximate
    ]
    own = [(of, known_type_of(expr, node.span)) for of, expr in ((order, key.expr), *parts)]
    ids = {of for of, _ in kept}
    passed = [(of, ref) for of, ref in below.refs() if of in ids]
    at = builder.put(Project((*passed, (order, key.expr), *parts)), below)
    bounds = {order: bound} if has_bound else {}
    if keeps_bounds:
        bounds |= bounds_of(below)
    columns = (*kept, *own, *((of, DOUBLE) for of in bounds.values()))
    flow = Flow(at, columns, below.accesses)
    if bounds:
        flow = Flow(builder.put(Parted(bounds), flow), columns, below.accesses)
    sort = OrderKey(order, key.descending, key.nulls_first)
    return flow, sort, bound if has_bound else None, [of for of, _ in parts]
