"""Inner join on equal keys, and selection by scalars of one row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from impctl.data.keys import normalise
from impctl.data.memory import reserve
from impctl.data.schema import BOOLEAN, Kind, SqlType
from impctl.engine.batch import Batch, consolidated, empty_batch, stacked_or_empty
from impctl.engine.exact_sums import Rejoined
from impctl.engine.linear import SelectOperator
from impctl.engine.lookups import DistantRows, KeyFilter
from impctl.engine.operator import Operator
from impctl.engine.trace import RowIndex
from impctl.errors import ImpctlError
from impctl.expr.evaluate import Evaluator
from impctl.expr.nodes import ColumnRef, Compare, Expr, Literal, LiteralValue

if TYPE_CHECKING:
    from impctl.data.vector import Bools, Ints, Vector
    from impctl.expr.compare import Truth
    from impctl.types import AttributeId


# Inner join on equal keys. Identity: d(R join S) = dR join S + (R + dR) join dS; with two distant
# sides dR join S + R join dS + dR join dS, so neither reads rows of this step. State: the rows of
# both sides by their keys, with tags; of a distant side a filter of its keys. Cost: the changed
# rows and their matches, never the other side. A row whose key contains NULL has no partner and is
# not kept, unless that key compares NULL as a value. Without keys every row is a partner (cross
# join). A joined row carries the tags of both rows. Where both sides change and rows leave, pairs
# that cancel are dropped. Outer, semi and anti joins are composed from this one.


class Side(Struct, frozen=True):
    """One input: the kept columns, its keys, and the number of its sketched accesses. The rows of a
    distant side are not kept but read on request. Where it is `is_held` they are at hand while the
    circuit is filled; otherwise pairs come from outside then."""

    columns: tuple[tuple[AttributeId, SqlType], ...]
    keys: tuple[AttributeId, ...]
    accesses: int
    is_distant: bool = False
    has_filter: bool = True
    is_held: bool = False
    room: int = 0  # Bytes of rows that may be held to be kept later (`keep_at_hand`)


class JoinOperator(Operator):
    """Rows of `left` and `right` with equal keys; `null_safe[i]` says that NULL equals NULL in the
    i-th key."""

    joined_rows = 0

    def __init__(self, name: str, left: Side, right: Side, null_safe: Sequence[bool]) -> None:
        self.sides = self.form = (left, right)
        self._plain = tuple(index for index, safe in enumerate(null_safe) if not safe)
        self._indexes = (_rows_of(f"{name}.left", left), _rows_of(f"{name}.right", right))
        self.held_sides = ((f"{name}.left", left.keys), (f"{name}.right", right.keys))
        self._is_filling = False

    @property
    def indexes(self) -> tuple[RowIndex | DistantRows, ...]:
        return self._indexes

    @property
    def reads(self) -> tuple[DistantRows, ...]:
        return tuple(index for index in self._indexes if isinstance(index, DistantRows))

    def fill(self, is_filling: bool) -> None:
        # Pairs of sides that are at hand are computed here, filling or not.
        are_outside = any(side.is_distant and not side.is_held for side in self.sides)
        self._is_filling = is_filling and are_outside
        for side in self.reads:
            side.fill(is_filling and not are_outside)

    def ended(self, inputs: Sequence[bool]) -> None:
        for has_ended, index in zip(inputs, reversed(self._indexes), strict=True):
            if has_ended and isinstance(index, DistantRows):
                index.let_go()

    def keep_at_hand(self) -> Sequence[str]:
        kept: list[str] = []
        for position, index in enumerate(self._indexes):
            rows = index.at_hand if isinstance(index, DistantRows) else None
            if rows is None:
                continue
            sides, indexes = list(self.sides), list(self._indexes)
            sides[position] = replace(sides[position], is_distant=False, is_held=False, room=0)
            indexes[position] = rows
            self.sides = self.form = (sides[0], sides[1])
            self._indexes = (indexes[0], indexes[1])
            kept.append(rows.name)
        return kept

    def keep_again(self, index: int, rows: Batch) -> None:
        """Keep those rows of a side that steps would have kept: no NULL in a plain key."""
        if len(rows):
            keyed = self._keyed(rows, index)
            self._indexes[index].add(keyed.rows, keyed.codes)

    def take_in(self, index: int, rows: Batch, pairs: int) -> None:
        """Keep a side's change whose pairs, so many, were computed elsewhere."""
        self.joined_rows += pairs
        if len(rows):
            self._add(
                [self._keyed(rows, index) if side == index else None for side in (0, 1)], (index,)
            )

    def step(self, *batches: Batch | None) -> Batch:
        result = [
            None if batch is None or len(batch) == 0 else self._keyed(batch, index)
            for index, batch in enumerate(batches)
        ]
        parts = []
        if self._is_filling:
            self._add(result, (0, 1))
        else:
            self._expect(result)
            if len(self.reads) == len(self.sides):
                parts += [*self._pairs(result, (0, 1)), *self._of_both(result)]
                self._add(result, (0, 1))
            else:
                # The side that is read is looked up before its change in this step is added.
                for index in (1, 0) if self.sides[0].is_distant else (0, 1):
                    parts += self._pairs(result, (index,))
                    self._add(result, (index,))
        pairs = stacked_or_empty(parts, sum(side.accesses for side in self.sides))
        self.joined_rows += len(pairs)
        # Rows that both sides exchange meet in pairs that cancel; a join above would multiply them.
        return consolidated(pairs) if len(parts) > 1 and _takes_away(result) else pairs

    def _expect(self, batches: Sequence[_Keyed | None]) -> None:
        for batch, index in zip(batches, self._indexes, strict=True):
            if batch is not None and isinstance(index, DistantRows):
                index.expect(batch.rows, batch.codes)

    def _add(self, batches: Sequence[_Keyed | None], sides: Sequence[int]) -> None:
        for index in sides:
            batch = batches[index]
            if batch is not None:
                self._indexes[index].add(batch.rows, batch.codes)

    def _pairs(self, batches: Sequence[_Keyed | None], sides: Sequence[int]) -> list[Batch]:
        parts = []
        for index in sides:
            batch = batches[index]
            if batch is not None:
                pairs = self._joined(batch, index, self._indexes[1 - index])
                parts += [pairs] if len(pairs) else []
        return parts

    def _of_both(self, batches: Sequence[_Keyed | None]) -> list[Batch]:
        left, right = batches
        if left is None or right is None:
            return []
        side = self.sides[1]
        index = RowIndex("both", side.columns, side.keys, side.accesses)
        index.add(right.rows, right.codes)
        pairs = self._joined(left, 0, index)
        return [pairs] if len(pairs) else []

    def _keyed(self, batch: Batch, index: int) -> _Keyed:
        side = self.sides[index]
        columns = {name: batch.columns[name] for name, _ in side.columns}
        known = self.known([columns[key] for key in side.keys])
        rows = Batch(columns, batch.weights, batch.tags)
        rows = rows if known is None else rows.keep(known)
        return _Keyed(rows, self._indexes[index].codes_of(rows))

    def known(self, keys: Sequence[Vector]) -> Bools | None:
        """Which rows of these keys can have a partner; None for all of them."""
        result: Bools | None = None
        for position in self._plain:
            valid = keys[position].valid
            if valid is not None:
                result = valid if result is None else result & valid
        return result

    def _joined(self, batch: _Keyed, index: int, other: RowIndex | DistantRows) -> Batch:
        keys = [normalise(batch.rows.columns[key]) for key in self.sides[index].keys]
        result = other.find(batch.codes, keys)
        mine, theirs = batch.rows.take(result.owners), result.rows
        left, right = (mine, theirs) if index == 0 else (theirs, mine)
        columns = {**left.columns, **right.columns}
        reserve(mine.weights.nbytes)
        return Batch(columns, mine.weights * theirs.weights, (*left.tags, *right.tags))

    @property
    def can_output(self) -> bool:
        return not self.reads

    def output(self) -> Batch:
        """All pairs. Cost: the rows of one side, and the pairs."""
        left, right = self._indexes
        assert isinstance(left, RowIndex)
        rows = left.whole()
        if not len(rows):
            return empty_batch(sum(side.accesses for side in self.sides))
        pairs = self._joined(_Keyed(rows, left.codes_of(rows)), 0, right)
        return consolidated(pairs) if len(pairs) else pairs

    def arrangements(self) -> tuple[RowIndex | KeyFilter, ...]:
        result: list[RowIndex | KeyFilter] = []
        for index in self._indexes:
            result += index.arrangements() if isinstance(index, DistantRows) else [index]
        return tuple(result)


class _Keyed(Struct, frozen=True):
    rows: Batch
    codes: Ints


def _rows_of(name: str, side: Side) -> RowIndex | DistantRows:
    if not side.is_distant:
        return RowIndex(name, side.columns, side.keys, side.accesses)
    return DistantRows(
        name,
        side.columns,
        side.keys,
        side.accesses,
        has_filter=side.has_filter,
        is_held=side.is_held,
        room=side.room,
    )


def _takes_away(batches: Sequence[_Keyed | None]) -> bool:
    return any(batch is not None and bool((batch.rows.weights < 0).any()) for batch in batches)


# Selection by a condition on a row and on scalars, the columns of at most one other row. Identity:
# with p(s) the condition for the scalars s, o those before and n those after the step, D the change
# of the rows and T the rows after it: d(out) = p(o)(D) + p(n)(T) - p(o)(T), since the output was
# p(o)(T - D) and becomes p(n)(T). State: the scalars' row, never the rows. Where the scalars
# change, the rows of T for which p(o) and p(n) differ are read, narrowed by statistics
# (`plan.lineage`). Cost: the changed rows, and that read. Without a row of scalars nothing
# passes; a NULL scalar is a value of the condition like any other. While filling, rows that arrive
# before the scalars are held back; the scalars' tables come first (`first_inputs`) to avoid that.

_NOTHING = Literal(False, BOOLEAN)


class SelectByScalars(Operator):
    """Keeps the rows of its first input for which `predicate` is true beside its second one."""

    first_inputs = (1,)

    unsure_rows = 0

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
        """`scalars` are the columns of the second input that the predicate reads, with the `bounds`
        of those that have one; `accesses` is the number of tags of the rows."""
        self.form = (tuple(rows), tuple(scalars))
        self._bounded = Rejoined(bounds)
        self._names = tuple(column for column, _ in rows)
        self._select = SelectOperator(predicate, must_be_sure=must_be_sure)
        self._accesses = accesses
        self._rows = DistantRows(f"{name}.rows", rows, (), accesses, has_filter=False)
        self._scalars = RowIndex(f"{name}.scalars", scalars, (), 0)
        # Where it was never filled, nothing is there that could be read.
        self._is_empty = False
        self._is_filling = False
        self._is_known = False
        self._waiting: list[Batch] = []

    def step(self, rows: Batch | None, scalars: Batch | None) -> Batch:
        """Rows that were inserted or deleted, and those that a change of the scalars lets in or
        out."""
        before = self._row()
        moved = scalars is not None and self._take(scalars)
        after = self._row() if moved else before
        is_read = moved and not self._is_empty
        rows = None if rows is None or not len(rows) else self._cut(rows)
        if rows is not None:
            self._is_empty = False
            self._rows.filled_rows += len(rows) if self._is_filling else 0
        if self._is_filling and not self._is_known:
            self._waiting += [] if rows is None else [rows]
            return empty_batch(self._accesses)
        parts = [] if rows is None else [self._passed(rows, before if is_read else after)]
        parts += self._moved(before, after) if is_read else ()
        return stacked_or_empty(parts, self._accesses)

    def _row(self) -> Batch:
        return self._bounded.step(self._scalars.whole())

    def _take(self, scalars: Batch) -> bool:
        """Apply the change of the scalars; whether there is one."""
        if not len(scalars):
            return False
        columns = {name: scalars.columns[name] for name, _ in self._scalars.columns}
        change = consolidated(Batch(columns, scalars.weights, ()))
        self._scalars.add(change, self._scalars.codes_of(change))
        return len(change) > 0

    def _cut(self, rows: Batch) -> Batch:
        return Batch({name: rows.columns[name] for name in self._names}, rows.weights, rows.tags)

    def _passed(self, rows: Batch, scalars: Batch) -> Batch:
        """The rows that pass beside these scalars; those that perhaps pass are counted."""
        if not len(scalars):
            return empty_batch(self._accesses)
        outcome = self._outcome(rows, scalars)
        self.unsure_rows += int(outcome.is_unsure.sum())
        return rows.keep(outcome.may_true)

    def _outcome(self, rows: Batch, scalars: Batch) -> Truth:
        assert len(scalars) == 1, "scalars are columns of one row"
        positions = np.zeros(len(rows), dtype=np.int64)
        beside = {name: column.take(positions) for name, column in scalars.columns.items()}
        return self._select.outcome(Batch({**rows.columns, **beside}, rows.weights, ()))

    def _signs(self, rows: Batch, scalars: Batch) -> Ints:
        if not len(scalars):
            return np.zeros(len(rows), dtype=np.int64)
        return self._outcome(rows, scalars).may_true.astype(np.int64)

    def _moved(self, before: Batch, after: Batch) -> Iterator[Batch]:
        predicate = self._select.predicate
        requested = stated(predicate, before, "before"), stated(predicate, after, "after")
        for rows in self._rows.moved(*requested):
            if not len(rows):
                continue
            sign = self._signs(rows, after) - self._signs(rows, before)
            positions = np.flatnonzero(sign)
            result = rows.take(positions)
            yield Batch(result.columns, result.weights * sign[positions], result.tags)

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
        return not self._is_known or bool(self._waiting)

    def filled(self) -> Iterator[Batch]:
        self._is_known = True
        waiting, self._waiting, scalars = self._waiting, [], self._row()
        for rows in waiting:
            yield self._passed(rows, scalars)

    def says_like(self, other: Operator) -> bool:
        return isinstance(other, SelectByScalars) and self._select.says_like(other._select)

    @property
    def reads(self) -> tuple[DistantRows, ...]:
        return (self._rows,)

    def arrangements(self) -> tuple[RowIndex, ...]:
        return (self._scalars,)


def stated(predicate: Expr, scalars: Batch, when: str) -> Expr:
    """The predicate with values in place of what it computes of scalars alone, for statistics.
    Scalars without a value as a constant are unknown columns, named differently for each `when`, so
    that statements about them at two times are not confused."""
    if not len(scalars):
        return _NOTHING
    return _stated(predicate, scalars, when)


def _stated(expr: Expr, scalars: Batch, when: str) -> Expr:
    def value(part: Expr) -> Expr | None:
        used = part.columns
        if used and used <= scalars.columns.keys():
            constant = _constant(part, scalars)
            if constant is not None:
                return constant
        if isinstance(part, ColumnRef) and part.id in scalars.columns:
            return replace(part, id=f"{part.id}/{when}")
        return None

    def mirrored(part: Expr) -> Expr | None:
        if isinstance(part, Compare) and isinstance(part.left, Literal):
            return Compare(part.op.mirrored, part.right, part.left)
        return None

    return expr.rewrite(value).transform(mirrored)


def _constant(expr: Expr, scalars: Batch) -> Literal | None:
    try:
        value = Evaluator(expr).values(scalars.columns, 1)
    except ImpctlError:
        # Evaluating rows will raise this error, or there are none.
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
