"""Top-k with all its ties, as capture needs it.

Law: the rows are those that some run of `ORDER BY ... LIMIT` may give, the rows before an OFFSET
too (pbds.md 7.3). Without an order that tells rows apart, that is every row.
Out of scope: which top-k nodes are barriers (`plan.safety`).
"""

from __future__ import annotations

from impctl.data.schema import LONG
from impctl.expr.nodes import Compare, CompareOp, Literal, columns_of
from impctl.plan.nodes import (
    Attribute,
    Output,
    Plan,
    Project,
    Select,
    TopK,
    Window,
    WindowCall,
    attributes_of,
)

_RANK = Attribute("impctl/rank", "rank", LONG, nullable=False)


def with_ties(node: TopK, child: Plan) -> Plan:
    """The node over `child`, whose columns are all kept, with every row tied at the last place."""
    order = tuple(key for key in node.order if columns_of(key.expr))
    if node.count is None or not order:
        return child
    rank = WindowCall(_RANK, "rank", (), (), order)
    last = Literal(node.offset + node.count, LONG)
    first_rows = Select(
        Window(child, (rank,)), Compare(CompareOp.LESS_EQUAL, _RANK.ref(), last), node.span
    )
    return Project(first_rows, tuple(Output(a, a.ref()) for a in attributes_of(child)))
