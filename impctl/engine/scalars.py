"""Selection by a condition on a row and on scalars, which are columns of one other row at most.

Identity: with p(s) the condition for the scalars s, o those before the step and n those after it,
D the change of the rows and T the rows after it: d(out) = p(o)(D) + p(n)(T) - p(o)(T), since the
output was p(o)(T - D) and becomes p(n)(T). State: the scalars' row, never the rows. These pass as
they come; where the scalars change, the rows of T for which p(o) and p(n) differ are read, narrowed
by what the two say of a row (`plan.moved_conditions`). Cost: the changed rows, and that read.
Without a row of scalars nothing passes; a NULL scalar is a value of the condition like any other.
Filled, rows that come before the scalars are known are held back: to hold none, the scalars' tables
come first (`first_inputs`).
Not to be confused with a join, whose pairs have the columns of both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np

from impctl.data.schema import BOOLEAN, Kind, SqlType
from impctl.engine.batch import Batch, consolidated, empty_batch, stacked_batches
from impctl.engine.exact_sums import Rejoined
from impctl.engine.linear import Select
from impctl.engine.lookups import DistantRows
from impctl.engine.operator import Operator
from impctl.engine.trace import RowIndex
from impctl.errors import ImpctlError
from impctl.expr.evaluate import Evaluator
from impctl.expr.nodes import (
    ColumnRef,
    Compare,
    Expr,
    Literal,
    LiteralValue,
    children,
    columns_of,
    with_children,
)

if TYPE_CHECKING:
    from impctl.data.vector import Ints, Vector
    from impctl.expr.compare import Truth
    from impctl.types import AttributeId

_NOTHING = Literal(False, BOOLEAN)


class SelectByScalars(Operator):
    """Keeps the rows of its first input for which `predicate` is true beside its second one."""

    first_inputs = (1,)

    def __init__(
        self,
        name: str,
        predicate: Expr,
        rows: Sequence[tuple[AttributeId, SqlType]],
        scalars: Sequence[tuple[AttributeId, SqlType]],
        bounds: Mapping[AttributeId, AttributeId],
        accesses: int,
        *,
        must_be_sure: bool,
    ) -> None:
        """`scalars` are those columns of the second input that the predicate reads, and the
        `bounds` of those that have one; `accesses` is how many tags the rows have."""
        self.form = (tuple(rows), tuple(scalars))
        self._bounded = Rejoined(bounds)
        self._names = tuple(column for column, _ in rows)
        self._select = Select(predicate, must_be_sure=must_be_sure)
        self._accesses = accesses
        self._rows = DistantRows(f"{name}.rows", rows, (), accesses, has_filter=False)
        self._scalars = RowIndex(f"{name}.scalars", scalars, (), 0)
        # Where it was never filled, nothing is there that could be read.
        self._is_empty = False
        self._unsure_rows = 0
        self._is_filling = False
        self._is_known = False
        self._held: list[Batch] = []

    def step(self, rows: Batch | None, scalars: Batch | None) -> Batch:
        """Rows that came or went, and those that the scalars let in or out."""
        before = self._row()
        moved = scalars is not None and self._take(scalars)
        after = self._row() if moved else before
        is_read = moved and not self._is_empty
        rows = None if rows is None or not len(rows) else self._cut(rows)
        if rows is not None:
            self._is_empty = False
            self._rows.filled_rows += len(rows) if self._is_filling else 0
        if self._is_filling and not self._is_known:
            self._held += [] if rows is None else [rows]
            return empty_batch(self._accesses)
        parts = [] if rows is None else [self._passed(rows, before if is_read else after)]
        parts += self._moved(before, after) if is_read else ()
        parts = [part for part in parts if len(part)]
        return stacked_batches(parts) if parts else empty_batch(self._accesses)

    def _row(self) -> Batch:
        """The scalars as they are, with their bounds: one row or none."""
        return self._bounded.step(self._scalars.whole())

    def _take(self, scalars: Batch) -> bool:
        """Take the change of the scalars up; whether there is one."""
        if not len(scalars):
            return False
        columns = {name: scalars.columns[name] for name, _ in self._scalars.columns}
        change = consolidated(Batch(columns, scalars.weights, ()))
        self._scalars.add(change, self._scalars.codes_of(change))
        return len(change) > 0

    def _cut(self, rows: Batch) -> Batch:
        return Batch({name: rows.columns[name] for name in self._names}, rows.weights, rows.tags)

    def _passed(self, rows: Batch, scalars: Batch) -> Batch:
        """The rows that pass beside these scalars; those that do perhaps are counted."""
        if not len(scalars):
            return empty_batch(self._accesses)
        outcome = self._outcome(rows, scalars)
        self._unsure_rows += int(outcome.is_unsure.sum())
        return rows.keep(outcome.may_true)

    def _outcome(self, rows: Batch, scalars: Batch) -> Truth:
        assert len(scalars) == 1, "scalars are columns of one row"
        places = np.zeros(len(rows), dtype=np.int64)
        beside = {name: column.take(places) for name, column in scalars.columns.items()}
        return self._select.outcome(Batch({**rows.columns, **beside}, rows.weights, ()))

    def _signs(self, rows: Batch, scalars: Batch) -> Ints:
        """1 of each row that passes beside these scalars, 0 of others."""
        if not len(scalars):
            return np.zeros(len(rows), dtype=np.int64)
        return self._outcome(rows, scalars).may_true.astype(np.int64)

    def _moved(self, before: Batch, after: Batch) -> Iterator[Batch]:
        """The rows as after the step that the scalars after it let in (+) and out (-)."""
        predicate = self._select.predicate
        asked = stated(predicate, before, "before"), stated(predicate, after, "after")
        for rows in self._rows.moved(*asked):
            if not len(rows):
                continue
            sign = self._signs(rows, after) - self._signs(rows, before)
            places = np.flatnonzero(sign)
            result = rows.take(places)
            yield Batch(result.columns, result.weights * sign[places], result.tags)

    def known_condition(self) -> Expr | None:
        if not self._is_known:
            return None
        return stated(self._select.predicate, self._row(), "now")

    def start(self) -> None:
        self._is_empty = True

    def fill(self, is_filling: bool) -> None:
        self._is_filling, self._is_known = is_filling, False
        self._is_empty = is_filling

    def ended(self, inputs: Sequence[bool]) -> None:
        self._is_known = inputs[1]

    @property
    def holds_back(self) -> bool:  # type: ignore[override]  # it depends on what has come
        return not self._is_known or bool(self._held)

    def filled(self) -> Iterator[Batch]:
        self._is_known = True
        held, self._held, scalars = self._held, [], self._row()
        for rows in held:
            yield self._passed(rows, scalars)

    def says_like(self, other: Operator) -> bool:
        return isinstance(other, SelectByScalars) and self._select.says_like(other._select)

    @property
    def reads(self) -> tuple[DistantRows, ...]:
        return (self._rows,)

    @property
    def unsure_rows(self) -> int:
        return self._unsure_rows

    def arrangements(self) -> tuple[RowIndex, ...]:
        return (self._scalars,)


def stated(predicate: Expr, scalars: Batch, when: str) -> Expr:
    """The predicate with values in place of what it computes of scalars alone, for statistics.

    Scalars that have no value as a constant are unknown columns, of a name of their own for each
    `when`, so that what is said of them at two times is not taken for the same.
    """
    if not len(scalars):
        return _NOTHING
    return _stated(predicate, scalars, when)


def _stated(expr: Expr, scalars: Batch, when: str) -> Expr:
    used = columns_of(expr)
    if used and used <= scalars.columns.keys():
        constant = _constant(expr, scalars)
        if constant is not None:
            return constant
    if isinstance(expr, ColumnRef) and expr.id in scalars.columns:
        return replace(expr, id=f"{expr.id}/{when}")
    expr = with_children(expr, tuple(_stated(part, scalars, when) for part in children(expr)))
    if isinstance(expr, Compare) and isinstance(expr.left, Literal):
        return Compare(expr.op.mirrored, expr.right, expr.left)
    return expr


def _constant(expr: Expr, scalars: Batch) -> Literal | None:
    try:
        value = Evaluator(expr).values(scalars.columns, 1)
    except ImpctlError:
        # Rows that are asked this fail, or it is asked of none.
        return None
    if value.error is not None and bool(value.error.any()):
        return None
    if not bool(value.validity()[0]):
        return Literal(None, value.type)
    plain = _plain(value)
    return None if plain is None else Literal(plain, value.type)


def _plain(vector: Vector) -> LiteralValue:
    """The one value as a literal has it; None for a NaN, which is above all numbers."""
    value = vector.values[0]
    if vector.is_textual:
        result: LiteralValue = value.as_py()
        return result
    if vector.type.kind is Kind.DECIMAL:
        return Decimal(f"{int(value)}e-{vector.type.scale}")
    if vector.type.kind is Kind.BOOLEAN:
        return bool(value)
    if vector.type.is_fractional:
        return None if np.isnan(value) else float(value)
    return int(value)
