"""Two right answers of one query whose ORDER BY leaves it open which of several rows come last.

Law: where a LIMIT (or an OFFSET) cuts between rows that tie, any of them are right. Equal is then
the list of values that the order goes by, row by row as a bag, and every row that does not tie with
one at the cut. Only where all that the order goes by is put out; else the rows must be the same.
Out of scope: a LIMIT without an order (`app.verify`), comparing rows (`app.using.same_rows`).
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.app.results.results import RowValue
from impctl.app.using.same_rows import same_rows
from impctl.expr.nodes import ColumnRef, Expr
from impctl.plan.nodes import Plan, Project, TopK, attributes_of
from impctl.values import dataclass

Rows = Sequence[Sequence[RowValue]]


@dataclass(frozen=True, slots=True)
class CutOrder:
    """The positions of the output columns that the order goes by, and where rows are cut off."""

    places: tuple[int, ...]
    count: int
    has_offset: bool

    def are_both_right(self, mine: Rows, theirs: Rows) -> bool:
        """Whether two answers, each in its order, differ in nothing but rows that tie at a cut."""
        if len(mine) != len(theirs) or len(mine) < self.count:
            return False
        if not same_rows(self._keys(mine), self._keys(theirs)):
            return False
        return same_rows(self._inside(mine), self._inside(theirs))

    def _keys(self, rows: Rows) -> Rows:
        return [[row[at] for at in self.places] for row in rows]

    def _inside(self, rows: Rows) -> Rows:
        """The rows that do not tie with one at a cut."""
        keys = self._keys(rows)
        edges = [keys[-1], keys[0]] if self.has_offset else [keys[-1]]
        return [
            row
            for row, own in zip(rows, keys, strict=True)
            if not any(same_rows([own], [edge]) for edge in edges)
        ]


def cut_order(root: Plan) -> CutOrder | None:
    """Where the plan ends with ORDER BY and LIMIT; None where not, or the order is not put out."""
    shown: list[Expr] = [attribute.ref() for attribute in attributes_of(root)]
    node = root
    while isinstance(node, Project):
        below = {output.attribute.id: output.expr for output in node.outputs}
        shown = [below.get(one.id, one) if isinstance(one, ColumnRef) else one for one in shown]
        node = node.child
    if not isinstance(node, TopK) or node.rank is not None or not node.count or not node.order:
        return None
    if any(key.expr not in shown for key in node.order):
        return None
    places = tuple(shown.index(key.expr) for key in node.order)
    return CutOrder(places, node.count, bool(node.offset))
