"""Top-k by a sum of doubles: the rows that may be first, where too many of them do no harm.

Law: whatever Spark's own summation gives within the bounds, its first rows are among these. So the
fragments of all of them are counted, and nothing above may depend on which rows there are: the
top-k is the query's last step, or the barrier of all that is sketched, or nothing above it groups,
counts or cuts rows. Only the first sort key is looked at; ties on it are kept whole.
Out of scope: top-k by exact values (`circuits.first_rows`).
"""

from __future__ import annotations

from impctl.aliases import AttributeId
from impctl.circuits.flows import BlockedError, Flow, check, known_type
from impctl.circuits.plumbing import Plumbing
from impctl.data.schema import DOUBLE
from impctl.engine.operators.bounds import Parted
from impctl.engine.operators.likely_top import LikelyTop
from impctl.engine.operators.project import Project
from impctl.engine.order_codes import OrderKey
from impctl.expr.nodes import Expr, columns_of
from impctl.expr.types import type_of
from impctl.plan.nodes import TopK


def build_likely(builder: Plumbing, node: TopK, below: Flow, *, must_be_sure: bool) -> Flow:
    """The operators; what has a bound is not among the columns that go on, nor is the rank."""
    if must_be_sure:
        raise BlockedError("ordering by a sum of doubles below another grouping", node.span)
    if node.rank is not None and node.rank.function == "dense_rank":
        raise BlockedError("DENSE_RANK by a sum of doubles", node.span)
    assert node.count is not None
    name = builder.name("likely")
    key = node.order[0]
    exact = tuple(column for column in below.columns if column[0] not in below.approximate)
    parts: list[tuple[AttributeId, Expr]] = [
        (f"{name}/part{at}", expr) for at, expr in enumerate(node.partition_by)
    ]
    for expr in (key.expr, *node.partition_by):
        check(expr, node.span)
    if any(columns_of(expr) & below.approximate for _, expr in parts):
        raise BlockedError("partitioning by a sum of doubles", node.span)
    order, bound = f"{name}/order", f"{name}/bound"
    has_bound = bool(columns_of(key.expr) & below.approximate)
    passed = [(own, ref) for own, ref in below.refs() if own not in below.approximate]
    at = builder.put(Project((*passed, (order, key.expr), *parts)), below)
    types = [
        (own, known_type(type_of(expr), node.span)) for own, expr in ((order, key.expr), *parts)
    ]
    columns = (*exact, *types)
    if has_bound:
        at = builder.put(Parted({order: bound}), Flow(at, columns, below.accesses))
        columns = (*columns, (bound, DOUBLE))
    operator = LikelyTop(
        name,
        columns,
        OrderKey(order, key.descending, key.nulls_first),
        bound if has_bound else None,
        node.offset + node.count,
        len(below.accesses),
        partition=[own for own, _ in parts],
        has_more=len(node.order) > 1,
    )
    return Flow(builder.put(operator, Flow(at, columns, below.accesses)), exact, below.accesses)
