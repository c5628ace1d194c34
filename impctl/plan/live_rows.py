"""What an expiry asks of the rows of a table: that their time is later than an instant.

Law: to rules, safety and engine it is an ordinary selection right above each scan of the table, so
nothing else need know of it. NULL is not later than anything, and equal is not later.
Out of scope: which instant that is (`app.preparing.expiry`), reading the text it is put into
(`plan.sql.relation`).
"""

from __future__ import annotations

from impctl.expr.nodes import Compare, CompareOp, Expr, Literal
from impctl.types import ColumnName
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class LiveRows:
    """Rows are live whose `column`, a TIMESTAMP or DATE, is later than a constant of its type."""

    column: ColumnName
    later_than: Literal

    def condition(self, column: Expr) -> Expr:
        """The predicate, on the column as it is read somewhere."""
        return Compare(CompareOp.GREATER, column, self.later_than)
