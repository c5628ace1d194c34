"""Top-k with all its ties, as capture needs it.

Law: the rows are those that some run of `ORDER BY ... LIMIT`, or of a filter on `row_number`, may
give, the rows before an OFFSET too. Without an order that tells rows apart, that is every row.
Out of scope: which top-k nodes are barriers (`safety.judge`).
"""

from __future__ import annotations

from dataclasses import replace

from impctl.data.schema import INTEGER
from impctl.expr.nodes import columns_of
from impctl.plan.nodes import Attribute, Plan, TopK, WindowCall

_RANK = Attribute("impctl/rank", "rank", INTEGER, nullable=False)


def with_ties(node: TopK) -> Plan:
    """The node with every row tied at the last place; at the end there may be a rank more."""
    order = tuple(key for key in node.order if columns_of(key.expr))
    if node.count is None or not order:
        return node.child
    rank = WindowCall(_RANK, "rank", (), (), order) if node.rank is None else node.rank
    if rank.function == "row_number":
        rank = replace(rank, function="rank")
    return replace(node, order=order, count=node.offset + node.count, offset=0, rank=rank)
