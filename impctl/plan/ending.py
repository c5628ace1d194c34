"""The end of a plan as what is made of kept rows: conditions, order, LIMIT, columns put out.

Law: a frozen value with all that telling an answer needs, so that it can be written beside the rows
and told again without the plan (`plan.written_ending`). Its expressions are of `columns`.
Out of scope: taking a plan apart (`plan.rules.answered`), telling the answer (`circuits.answers`).
"""

from __future__ import annotations

from impctl.expr.nodes import Expr
from impctl.plan.nodes import Attribute, ComputedColumn, SortKey
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The first `count` rows (None: all) by an order, without the first `offset`."""

    order: tuple[SortKey, ...]
    count: int | None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Ending:
    """What is made of rows with `columns`: some by `predicates`, cut, ordered, cut, put out."""

    columns: tuple[Attribute, ...]
    predicates: tuple[Expr, ...]
    first: FirstRows | None
    order: tuple[SortKey, ...]
    limit: int | None
    outputs: tuple[ComputedColumn, ...]

    @property
    def values(self) -> tuple[Expr, ...]:
        """What is computed of the rows to order them and to put them out."""
        keys = self.order if self.first is None else (*self.order, *self.first.order)
        return (*(key.expr for key in keys), *(one.expr for one in self.outputs))

    @property
    def cuts(self) -> bool:
        """Whether the first rows by an order are taken, of which more may be given for ties."""
        return self.first is not None and bool(self.first.order) and self.first.count is not None

    @property
    def is_cut(self) -> bool:
        """Whether a row may come or go because of others."""
        return self.first is not None or self.limit is not None
