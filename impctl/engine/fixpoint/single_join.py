"""The frontier of a fixpoint whose step is one join with one table.

Law: as `frontier` has it, without stepping the operators. The table rows that join deleted rows are
looked up once, and reused when these come in again; the derivations of such a row are emitted only
if it stays out. The join's rows of the fixpoint are updated at the end, by the changes. Small
fronts of integers are followed row by row. Cost: a lookup per row that goes or comes for the first
time in this step, and the derivations.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from msgspec import Struct

from impctl.data.keys import are_codes, code_of, distinct_values, key_codes, same_keys, when_many
from impctl.data.schema import LONG, Kind, SqlType
from impctl.data.vector import Ints, Vector, concat, slice_positions
from impctl.engine.batch import Batch, empty_batch, never_held
from impctl.engine.fixpoint.frontier import Admit, CircuitMoves, DerivationTags, Dismiss
from impctl.engine.fixpoint.rows import (
    ALL,
    FIRST,
    LAST,
    LOW,
    NAMES,
    RANK,
    WAS,
    TouchedRows,
    with_room,
)
from impctl.engine.join import JoinOperator
from impctl.engine.linear import ProjectOperator
from impctl.engine.trace import IndexRun, RowIndex, Run, check_size
from impctl.expr.nodes import ColumnRef, Expr

if TYPE_CHECKING:
    from impctl.engine.circuit import Circuit
    from impctl.types import AttributeId


# The two sides of a step that joins its rows with a table once. Law: each side is an input of the
# step, with columns at most chosen and renamed, and the step contains nothing else.

_ROWS, _TABLE = -1, -2  # The sources of the step
_INPUTS = 2


class JoinedStep(Struct, frozen=True):
    """`side` is the fixpoint's input of the join."""

    join: JoinOperator
    side: int

    @property
    def own(self) -> RowIndex:
        result = self.join.indexes[self.side]
        assert isinstance(result, RowIndex)
        return result

    @property
    def table(self) -> RowIndex:
        result = self.join.indexes[1 - self.side]
        assert isinstance(result, RowIndex)
        return result


class Projections:
    """The projections of a step from one position down, and the `position` below them: a source or
    another operator."""

    def __init__(self, step: Circuit, position: int) -> None:
        operators = tuple(step)
        self._outputs: list[Mapping[AttributeId, Expr]] = []
        self.position = position
        while self.position >= 0 and isinstance(
            operator := operators[self.position], ProjectOperator
        ):
            self._outputs.append(dict(operator.outputs))
            (self.position,) = step.wires[self.position]
        result = operators[self.position] if self.position >= 0 else None
        self.join = result if isinstance(result, JoinOperator) and not result.reads else None

    @property
    def count(self) -> int:
        return len(self._outputs)

    def below(self, expr: Expr, depth: int = 0) -> tuple[Expr, int]:
        """The expression of a column that lies `depth` projections down, and how far down it is
        one of columns."""
        while isinstance(expr, ColumnRef) and depth < self.count:
            expr, depth = self._outputs[depth][expr.id], depth + 1
        return expr, depth

    def origins(
        self, columns: Sequence[tuple[AttributeId, SqlType]]
    ) -> Mapping[AttributeId, AttributeId] | None:
        """The names of these columns at the end; None where one of them is computed."""
        result = {}
        for name, kind in columns:
            expr, _ = self.below(ColumnRef(name, kind))
            if not isinstance(expr, ColumnRef):
                return None
            result[name] = expr.id
        return result


def ends_of(
    step: Circuit, above: Projections, join: JoinOperator
) -> tuple[int, Mapping[AttributeId, AttributeId]] | None:
    """The fixpoint's side of the join, and the origins of that side's columns; None where `above`,
    the join and projections of that side are not the whole step."""
    ends = [Projections(step, wire) for wire in step.wires[above.position]]
    side = 0 if ends[0].position == _ROWS else 1
    recursive, table = ends[side], ends[1 - side]
    if (recursive.position, table.position, table.count) != (_ROWS, _TABLE, 0):
        return None
    if above.count + 1 + recursive.count != len(tuple(step)):
        return None
    origins = recursive.origins(join.sides[side].columns)
    return None if origins is None else (side, origins)


# A step that is one join of its rows with one table, with plain columns. Law: only recognized where
# this is certain: renamed columns, one join on equal keys, chosen columns, nothing else; a derived
# row has the rank of the row it was joined from. So a row derives, without the operators, one row
# per table row with its key.

_RANK = -1
WHOLE_NUMBERS = frozenset(
    {Kind.BYTE, Kind.SHORT, Kind.INTEGER, Kind.LONG, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ}
)


class PlainStep(JoinedStep, frozen=True):
    """The columns of a step by their origins. `rows` has for each column of that side its index in
    the fixpoint's columns; the rank's is -1. `heads` has for each column of the fixpoint whether it
    comes from the fixpoint's row, and the index there, or else the table's column."""

    rows: Mapping[AttributeId, int]
    heads: tuple[tuple[int, AttributeId | None], ...]
    is_of_numbers: bool
    """Whether there is one key, and it and all columns are integers, where not NULL."""

    @property
    def key_places(self) -> tuple[int, ...]:
        return tuple(self.rows[key] for key in self.join.sides[self.side].keys)

    @property
    def names(self) -> tuple[AttributeId, ...]:
        """The table's columns that heads take."""
        return tuple(name for _, name in self.heads if name is not None)

    @property
    def is_by_rows(self) -> bool:
        """Whether a row has one column, its key, so that the row determines its rank; and its heads
        are of the table alone."""
        return self.is_of_numbers and len(self.heads) == 1 and self.heads[0][1] is not None


def plain_step(
    step: Circuit, columns: Sequence[tuple[AttributeId, SqlType]], rank: AttributeId
) -> PlainStep | None:
    names = [*(name for name, _ in columns), rank]
    above = Projections(step, len(tuple(step)) - 1)
    origins, join = above.origins([*columns, (rank, LONG)]), above.join
    ends = None if join is None else ends_of(step, above, join)
    if origins is None or join is None or ends is None:
        return None
    side, of_fixpoint = ends
    positions = {name: position for position, name in enumerate(names[:-1])} | {rank: _RANK}
    rows = {name: positions[source] for name, source in of_fixpoint.items()}
    heads = _heads(names, origins, rows)
    keys = [rows[key] for key in join.sides[side].keys]
    if heads is None or _RANK in keys:
        return None
    of_table = dict(join.sides[1 - side].columns)
    kinds = [*dict(columns).values(), *(of_table[key] for key in join.sides[1 - side].keys)]
    are_numbers = len(keys) == 1 and all(kind.kind in WHOLE_NUMBERS for kind in kinds)
    return PlainStep(join, side, rows, heads, are_numbers)


def _heads(
    names: Sequence[AttributeId],
    above: Mapping[AttributeId, AttributeId],
    rows: Mapping[AttributeId, int],
) -> tuple[tuple[int, AttributeId | None], ...] | None:
    """The origins of a head's columns; None where its rank is not the row's."""
    *columns, rank = ((rows.get(above[name], _RANK), above[name]) for name in names)
    if rows.get(rank[1]) != _RANK or any(rows.get(name) == _RANK for _, name in columns):
        return None
    return tuple((position, None if position >= 0 else name) for position, name in columns)


# Derivations that rows of the fixpoint took part in, as arrays of shape (4, derivations): the slots
# of their heads, the weights, and where the tags are: which run of the table, and which row there.
# Law: those of a deleted row are looked up once in a step, and adjacent from then on.

HEADS, WEIGHTS, SOURCE, PLACE = range(4)


class DeletedDerivations:
    """The derivations of deleted rows, one after the other; `values` has room for more."""

    def __init__(self) -> None:
        self.count = 0
        self.values: Ints = np.zeros((4, 0), dtype=np.int64)

    def add(self, derivations: Ints) -> None:
        start, self.count = self.count, self.count + derivations.shape[1]
        if self.count > self.values.shape[1]:
            self.values = with_room(self.values, 2 * self.count)
        self.values[:, start : self.count] = derivations


# Runs of integers, looked up one by one in place. Law: as arrangements and indexes have it; looking
# up a code is a search per run, without allocating an array. Only for verified runs (`data.pages`):
# pages are verified first where that costs no more than the work done so far, else there are no
# views.

Numbers: TypeAlias = "memoryview[Any]"
"""A view of an array of integers: reading one takes a fraction of NumPy's time."""
_ROWS_A_PAGE = 100
"""Rows of a run whose pages are verified in the time of processing one changed row."""
R = TypeVar("R", Run, IndexRun)
V = TypeVar("V")


def _view_of(array: Any) -> Numbers:
    return memoryview(array)


class TableView(Struct, frozen=True):
    """One run of the table: its codes, the columns that heads take, and weights."""

    codes: Numbers
    columns: tuple[Numbers, ...]
    weights: Numbers


class StoredView(Struct, frozen=True):
    """One run of the fixpoint's rows: its codes, keys, and values; None for an all-zero column."""

    codes: Numbers
    keys: tuple[Numbers, ...]
    values: tuple[Numbers | None, ...]

    def find(self, first: int, key: tuple[int, ...]) -> int:
        """The position of a key with the code that begins at `first`; -1 where there is none."""
        code = self.codes[first]
        for position in range(first, len(self.codes)):
            if self.codes[position] != code:
                break
            if all(part[position] == value for part, value in zip(self.keys, key, strict=True)):
                return position
        return -1


def _table_view(run: IndexRun, columns: Sequence[AttributeId], keys: int) -> TableView | None:
    """Of these columns, the last so many of which are only keys."""
    vectors = [run.batch.columns[name] for name in columns]
    if any(column.valid is not None for column in vectors):
        return None
    values = tuple(_view_of(column.values) for column in vectors[: len(vectors) - keys])
    return TableView(_view_of(run.codes), values, _view_of(run.batch.weights))


def _stored_view(run: Run) -> StoredView | None:
    if not all(map(are_codes, run.keys)):
        return None
    columns = (run.values.get(name) for name in NAMES)
    return StoredView(
        _view_of(run.codes),
        tuple(_view_of(part.to_numpy()) for part in run.keys),
        tuple(None if column is None else _view_of(column) for column in columns),
    )


def _views(
    runs: Sequence[R], names: tuple[str, ...], make: Callable[[R], V | None], spent: int
) -> list[V] | None:
    """A view of each run, made once for these names; `spent` rows changed so far. None where some
    run is not to be looked up one by one, or has other values than integers."""
    for run in runs:
        if run.pages is not None and run.pages.is_open and len(run) > _ROWS_A_PAGE * (1 + spent):
            return None
    result = []
    for run in runs:
        if run.pages is not None:
            run.pages.check_all()
        if names not in run.views:
            run.views[names] = make(run)
        view = run.views[names]
        if view is None:
            return None
        result.append(view)
    return result


# Rows of a fixpoint that come and go a few at a time, followed one by one. Law: the result is that
# of the arrays: slots, counts, and derivations, kept for rows that go and emitted for rows that
# come. Faster than passes of NumPy for small fronts; a long chain of these takes microseconds a
# row. Only for integers without NULL. Loops are bounded by `most` rows of a front and `_PAIRS`
# times as many derivations; a larger front is left unprocessed. Cost: a search per run for an
# untouched row or one whose partners are unknown; a call, some dozen views.

THIN = 8  # Rows of a front up to which it is followed row by row
_PAIRS = 8  # Derivations per row of the largest such front up to which it is followed so

_Span = tuple[int, TableView, int, int]  # A run's number, the run, and the rows' span in it


class ThinFronts:
    """`stored` are the rows before the step, `table` those of the table; fronts have at most so
    many rows."""

    def __init__(
        self,
        plain: PlainStep,
        touched: TouchedRows,
        partners: DeletedDerivations,
        stored: Sequence[StoredView],
        table: Sequence[TableView],
        most: int,
    ) -> None:
        self._touched = touched
        self._partners = partners
        self._stored = [(view, view.codes, len(view.codes)) for view in stored]
        self._table = [(run, view, view.codes, len(view.codes)) for run, view in enumerate(table)]
        self._most = most
        self._is_single = len(touched.columns) == 1
        self._known: dict[Any, int] = {}
        """The slots of rows: a number for rows of one column, else a tuple."""
        self._fresh: list[int] = []  # Slots that no other lookup finds yet
        self._found: tuple[list[int], ...] = ([], [], [], [])
        """Derivations of this call, as in `DeletedDerivations`."""
        self._hit: list[int] = []
        """Slots counted in this call, where the derivations are not kept."""
        self.pairs = 0
        self._key = plain.key_places[0]
        names = plain.names
        self._heads = [
            (position, -1 if name is None else names.index(name)) for position, name in plain.heads
        ]
        self._column = self._heads[0][1] if self._is_single else -1
        """The table's column that is a whole row, if there is one."""

    def _slot_of(self, key: Any) -> int:
        values = (key,) if self._is_single else key
        code = key if self._is_single else code_of(key)
        for codes, slots in self._parts:
            position = bisect_left(codes, code)
            while position < len(codes) and codes[position] == code:
                slot: int = slots[position]
                if self._is_single or all(
                    column[slot] == value
                    for column, value in zip(self._columns, values, strict=True)
                ):
                    self._known[key] = slot
                    return slot
                position += 1
        slot = self._known[key] = self._touched.count
        if slot == self._room:
            self._touched.make_room(slot + 1)
            self._view()
        self._touched.count += 1
        self._look_up(slot, code, values)
        self._code[slot] = code
        for column, value in zip(self._columns, values, strict=True):
            column[slot] = value
        self._fresh.append(slot)
        return slot

    def _look_up(self, slot: int, code: int, values: tuple[int, ...]) -> None:
        for view, codes, length in self._stored:
            position = bisect_left(codes, code)
            if position == length or codes[position] != code:
                continue
            if not self._is_single:
                position = view.find(position, values)
                if position < 0:
                    continue
            for now, was, column in zip(self._now, self._was, view.values, strict=True):
                if column is not None:
                    now[slot] = was[slot] = column[position]
            return

    def _begin(self) -> None:
        """Refresh the views, which others may have outdated."""
        self._view()
        self._parts = [(_view_of(codes), _view_of(index)) for codes, index in self._touched.parts]
        partners = self._partners.values
        self._partner_heads, self._partner_weights = map(_view_of, partners[: WEIGHTS + 1])
        self._hit = []

    def _view(self) -> None:
        touched = self._touched
        rows = [_view_of(row) for row in touched.values]
        self._room = touched.values.shape[1]
        for column in touched.columns:
            column.make_room(self._room)
        self._columns: list[Numbers] = [_view_of(column.numbers) for column in touched.columns]
        self._rank, self._every, self._low = rows[RANK], rows[ALL], rows[LOW]
        self._now, self._was = rows[: len(NAMES)], rows[WAS : WAS + len(NAMES)]
        self._first, self._last, self._code = rows[FIRST], rows[LAST], _view_of(touched.codes)

    def _end(self, hit: list[int] | None) -> Ints:
        """Publish the derivations; these slots were counted. None: the heads of the derivations
        were."""
        touched = self._touched
        if self._fresh:
            slots = touched.ordered(np.array(self._fresh, dtype=np.int64))
            touched.add_part(touched.codes[slots], slots)
        result = np.array(self._found, dtype=np.int64)
        counted = result[HEADS] if hit is None else np.array(hit, dtype=np.int64)
        if len(counted) and touched.values[ALL : LOW + 1, counted].min() < 0:
            raise never_held("ways to derive rows")
        self.pairs += result.shape[1]
        if hit is None:
            self._partners.add(result)
        self._fresh, self._found = [], ([], [], [], [])
        return result

    def out(self, slots: Ints, may_go: Dismiss) -> Ints | None:
        """As `CircuitMoves.out`; None where the first front is too large."""
        front: list[int] = slots.tolist()
        self._begin()
        is_begun = False
        while front and len(front) <= self._most:
            spans = self._spans(front)
            if spans is None or not may_go(len(front)):
                break
            is_begun = True
            front = self._delete(front, spans)
        self._end(None)
        return np.array(front, dtype=np.int64) if is_begun else None

    def come(self, slots: Ints, admit: Admit) -> tuple[Ints, Ints] | None:
        """As `CircuitMoves.come`, and the derivations to report; None where the first front is too
        large."""
        front: list[int] = slots.tolist()
        self._begin()
        is_begun = False
        while front and len(front) <= self._most:
            spans = self._spans(front)
            if spans is None:
                break
            is_begun = True
            front = self._insert(front, spans, admit(len(front)))
        result = self._end(self._hit)
        return (np.array(front, dtype=np.int64), result) if is_begun else None

    def _spans(self, front: list[int]) -> list[list[_Span] | None] | None:
        """The spans of the partners of these rows in the table, None for those already known; None
        where they are too many."""
        keys, first, last = self._columns[self._key], self._first, self._last
        spans: list[list[_Span] | None] = []
        pairs = 0
        for slot in front:
            if first[slot] >= 0:
                pairs += last[slot] - first[slot]
                spans.append(None)
                continue
            result = []
            key = keys[slot]
            for number, view, codes, length in self._table:
                start = bisect_left(codes, key)
                if start < length and codes[start] == key:
                    end = start + 1
                    if end < length and codes[end] == key:
                        end = bisect_right(codes, key, end)
                    result.append((number, view, start, end))
                    pairs += end - start
            spans.append(result)
        return None if pairs > _PAIRS * self._most else spans

    def _delete(self, front: list[int], spans: list[list[_Span] | None]) -> list[int]:
        rank, low = self._rank, self._low
        ranks = [rank[slot] for slot in front]
        for slot in front:
            rank[slot] = low[slot] = 0
        heads, weights, _, _ = self._found
        suspects: list[int] = []
        for slot, body, result in zip(front, ranks, spans, strict=True):
            start = len(heads)
            for span in result or ():
                self._take(slot, span)
            rank, every, low = self._rank, self._every, self._low
            for index in range(start, len(heads)):
                head, weight = heads[index], weights[index]
                every[head] -= weight
                if body < rank[head]:
                    low[head] -= weight
                    suspects.append(head)
            before = self._partners.count
            self._first[slot], self._last[slot] = before + start, before + len(heads)
        some = suspects if len(suspects) < 2 else dict.fromkeys(suspects)
        return [head for head in some if not low[head] and rank[head]]

    def _insert(self, front: list[int], spans: list[list[_Span] | None], stage: int) -> list[int]:
        rank, every, low = self._rank, self._every, self._low
        for slot in front:
            rank[slot], low[slot] = stage, every[slot]
        heads, weights, _, _ = self._found
        known, of_known = self._partner_heads, self._partner_weights
        hit: list[int] = []
        for slot, result in zip(front, spans, strict=True):
            if result is None:
                for index in range(self._first[slot], self._last[slot]):
                    head = known[index]
                    every[head] += of_known[index]
                    hit.append(head)
                continue
            start = len(heads)
            for span in result:
                self._take(slot, span)
            every = self._every
            for index in range(start, len(heads)):
                every[heads[index]] += weights[index]
            hit += heads[start:]
        rank = self._rank
        self._hit += hit
        some = hit if len(hit) < 2 else dict.fromkeys(hit)
        return [head for head in some if not rank[head] and every[head] > 0]

    def _take(self, slot: int, span: _Span) -> None:
        number, view, start, end = span
        heads, weights, source, places = self._found
        known = self._known
        if self._column >= 0 and end - start == 1:
            key = view.columns[self._column][start]
            head = known.get(key)
            heads.append(self._slot_of(key) if head is None else head)
            weights.append(view.weights[start])
            source.append(number)
            places.append(start)
            return
        for key in self._keys(slot, span):
            head = known.get(key)
            heads.append(self._slot_of(key) if head is None else head)
        weights += view.weights[start:end].tolist()
        source += repeat(number, end - start)
        places += range(start, end)

    def _keys(self, slot: int, span: _Span) -> Any:
        _, view, start, end = span
        columns = [
            repeat(self._columns[position][slot], end - start)
            if index < 0
            else view.columns[index][start:end].tolist()
            for position, index in self._heads
        ]
        return columns[0] if self._is_single else zip(*columns, strict=True)


class JoinedMoves(CircuitMoves):
    """Moves front by front, by looking up the table's rows."""

    def __init__(
        self,
        plain: PlainStep,
        step: Circuit,
        rank: AttributeId,
        touched: TouchedRows,
        report: DerivationTags,
        thin: int,
    ) -> None:
        """Fronts of up to `thin` rows are followed row by row. The operators handle changes of the
        table that the rows do not determine."""
        super().__init__(step, _INPUTS, rank, touched, report)
        self._plain = plain
        self._most = thin
        self._partners = DeletedDerivations()
        self._thin: ThinFronts | None = None
        self._pairs = self._spent = 0

    @cached_property
    def _runs(self) -> Sequence[IndexRun]:
        """The table's rows as after the step."""
        return self._plain.table.runs()

    def changed(self, tables: Sequence[Batch | None]) -> Ints:
        (rows,) = tables
        assert rows is not None, "there is one table, which changed"
        plain, touched = self._plain, self._touched
        if not plain.is_by_rows or len(rows) > touched.stored.arrangement.rows:
            return super().changed(tables)
        key, head = (rows.columns[name] for name in (*plain.table.keys, *plain.names))
        if key.valid is not None or head.valid is not None:
            return super().changed(tables)
        # The rank of a row follows from its key: the join is not used.
        both = Vector(touched.columns[0].type, np.concatenate([key.values, head.values]))
        bodies, heads = np.split(touched.slots_for([both], len(both)), 2)
        ranks = touched.ranks[bodies]
        owners = ranks.nonzero()[0]
        heads, weights = heads[owners], rows.weights[owners]
        touched.count_in(heads, weights, ranks[owners] < touched.ranks[heads])
        self._report.add(weights, [tag.take(owners) for tag in rows.tags])
        plain.join.take_in(1 - plain.side, rows, len(owners))
        return heads

    def _fronts(self, slots: Ints) -> ThinFronts | None:
        """What follows a front of these rows row by row; None where that does not apply."""
        self._spent += len(slots)
        plain, touched = self._plain, self._touched
        if len(slots) > self._most or not plain.is_of_numbers:
            return None
        if any(column.has_null for column in touched.columns):
            return None
        if self._thin is None:
            columns, keys = (*plain.names, *plain.table.keys), len(plain.table.keys)
            runs = touched.stored.arrangement.runs[::-1]
            stored = _views(runs, NAMES, _stored_view, self._spent)
            table = _views(
                self._runs, columns, lambda run: _table_view(run, columns, keys), self._spent
            )
            if stored is not None and table is not None:
                self._thin = ThinFronts(plain, touched, self._partners, stored, table, self._most)
        return self._thin

    def out(self, slots: Ints, may_go: Dismiss) -> Ints:
        fronts = self._fronts(slots)
        left = None if fronts is None else fronts.out(slots, may_go)
        return self._all_out(slots, may_go) if left is None else left

    def come(self, slots: Ints, admit: Admit) -> Ints:
        fronts = self._fronts(slots)
        result = None if fronts is None else fronts.come(slots, admit)
        if result is None:
            return self._all_come(slots, admit)
        left, derivations = result
        self._report_tags(derivations)
        return left

    def _all_out(self, slots: Ints, may_go: Dismiss) -> Ints:
        if not may_go(len(slots)):
            return slots
        touched, partners = self._touched, self._partners
        ranks = touched.ranks[slots]
        touched.leave(slots)
        owners, result = self._derived(slots)
        sizes = np.bincount(owners, minlength=len(slots))
        ends = np.cumsum(sizes) + partners.count
        touched.values[FIRST, slots], touched.values[LAST, slots] = ends - sizes, ends
        partners.add(result[:, np.argsort(owners, kind="stable")])
        heads = result[HEADS]
        is_low = ranks[owners] < touched.ranks[heads]
        touched.count_in(heads, -result[WEIGHTS], is_low)
        return distinct_values(touched.groundless(heads[is_low]))

    def _all_come(self, slots: Ints, admit: Admit) -> Ints:
        touched, partners = self._touched, self._partners
        touched.enter(slots, admit(len(slots)))
        first = touched.values[FIRST, slots]
        is_known = first >= 0
        known, others = slots[is_known], slots[~is_known]
        places, _ = slice_positions(first[is_known], touched.values[LAST, known])
        heads, weights = partners.values[: WEIGHTS + 1, places]
        if len(others):
            _, result = self._derived(others)
            self._report_tags(result)
            heads = np.concatenate([heads, result[HEADS]])
            weights = np.concatenate([weights, result[WEIGHTS]])
        touched.count_in(heads, weights, None)
        return distinct_values(touched.derived(heads))

    def end(self) -> None:
        """Report the derivations of rows that stay deleted, and bring the join's rows up to
        date."""
        touched, partners = self._touched, self._partners
        join, side = self._plain.join, self._plain.side
        pairs = self._pairs + (0 if self._thin is None else self._thin.pairs)
        moved = touched.moved(self._rank) if self._spent else empty_batch(0)
        if not len(moved):
            join.take_in(side, moved, pairs)
            return
        deleted = touched.deleted()
        if len(deleted):
            first, last = touched.values[FIRST, deleted], touched.values[LAST, deleted]
            result = partners.values[:, slice_positions(first, last)[0]]
            result[WEIGHTS] *= -1
            self._report_tags(result)
        columns = {
            name: moved.columns[self._rank if position < 0 else touched.stored.names[position]]
            for name, position in self._plain.rows.items()
        }
        join.take_in(side, Batch(columns, moved.weights, ()), pairs)

    def _report_tags(self, derivations: Ints) -> None:
        if not derivations.shape[1] or not any(self._report.accesses):
            return
        source = derivations[SOURCE]
        if bool((source[1:] < source[:-1]).any()):
            derivations = derivations[:, np.argsort(source, kind="stable")]
        _, weights, source, places = derivations
        borders = [0, *(np.flatnonzero(source[1:] != source[:-1]) + 1).tolist(), len(source)]
        for start, end in pairwise(borders):
            tags = self._runs[source[start]].batch.tags
            some = [tag.take(places[start:end]) for tag in tags]
            self._report.add(weights[start:end], some)

    def _derived(self, slots: Ints) -> tuple[Ints, Ints]:
        """The derivations from these rows, and which of them each uses (first)."""
        plain, columns, names = self._plain, self._touched.columns, self._plain.names
        keys = [columns[position].take(slots) for position in plain.key_places]
        is_by_code = plain.is_of_numbers and keys[0].valid is None
        order, codes = when_many(keys[0].values if is_by_code else key_codes(keys, len(slots)))
        owned, parts, selected = [], [], []
        for source, run in enumerate(self._runs):
            asking, first, last = run.slices_of_known(codes)
            if not len(asking):
                continue
            check_size(int((last - first).sum()))
            places, owners = slice_positions(first, last)
            owners = asking[owners] if order is None else order[asking[owners]]
            batch = run.at(places)
            of_table = [batch.columns[key] for key in plain.table.keys]
            if not is_by_code or of_table[0].valid is not None:
                of_table = [column.take(places) for column in of_table]
                same = same_keys(of_table, [key.take(owners) for key in keys])
                if same is not None and not bool(same.all()):
                    owners, places = owners[same], places[same]
            part = np.empty((4, len(places)), dtype=np.int64)
            part[WEIGHTS], part[SOURCE], part[PLACE] = batch.weights[places], source, places
            owned.append(owners)
            parts.append(part)
            selected.append([batch.columns[name].take(places) for name in names])
        if not parts:
            nothing = np.zeros((4, 0), dtype=np.int64)
            return nothing[HEADS], nothing
        owners, result = owned[0], parts[0]
        if len(parts) > 1:
            owners, result = np.concatenate(owned), np.concatenate(parts, axis=1)
        theirs = dict(
            zip(names, (concat(list(c)) for c in zip(*selected, strict=True)), strict=True)
        )
        bodies = slots[owners]
        heads = [
            columns[position].take(bodies) if name is None else theirs[name]
            for position, name in plain.heads
        ]
        self._pairs += len(bodies)
        result[HEADS] = self._touched.slots_for(heads, len(bodies))
        return owners, result
