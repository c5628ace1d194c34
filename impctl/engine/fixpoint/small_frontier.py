"""A frontier of few rows, followed row by row."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from impctl.data.keys import code_of, when_many
from impctl.data.schema import Kind, SqlType
from impctl.data.vector import Ints, slice_positions
from impctl.engine.batch import never_held
from impctl.engine.fixpoint.frontier import Admit, DeletedDerivations, Derived, Dismiss
from impctl.engine.fixpoint.rows import (
    ALL,
    FIRST,
    LAST,
    LOW,
    NAMES,
    RANK,
    WAS,
    IndexView,
    Numbers,
    RowsView,
    TouchedRows,
    view_of,
)
from impctl.engine.join import JoinOperator
from impctl.engine.linear import ProjectOperator
from impctl.engine.trace import IndexRun, RowIndex, check_size

if TYPE_CHECKING:
    from impctl.engine.circuit import Circuit
    from impctl.engine.tags import Tags
    from impctl.types import AttributeId

# Rows of a table as a fixpoint's step looks them up, all integers. Law: as `RowIndex.find` for keys
# and columns that are integers without NULL: the code of a key is the key, and rows are used in
# place, without their tags. Cost: a search per run.

_NONE = np.zeros(0, dtype=np.int64)


class Places(Struct, frozen=True):
    """Matching rows: which code each matches, the run's number, and the position in it."""

    owners: Ints
    source: Ints
    place: Ints
    columns: Mapping[AttributeId, Ints]
    weights: Ints


class TableRuns:
    """The runs of one side; `columns` are the requested ones."""

    def __init__(self, runs: Sequence[IndexRun], columns: Sequence[AttributeId]) -> None:
        self.runs = tuple(runs)
        self._columns = [[run.batch.columns[name].values for name in columns] for run in runs]
        self.names = tuple(columns)

    def find(self, codes: Ints) -> Places:
        """All rows with these keys; a key has none, one or many."""
        order, codes = when_many(codes)
        parts: list[tuple[int, Ints, Ints]] = []
        for number, run in enumerate(self.runs):
            rows, first, last = run.slices_of_known(codes)
            if not len(rows):
                continue
            check_size(int((last - first).sum()))
            place, owners = slice_positions(first, last)
            run.at(place)
            owners = rows[owners]
            parts.append((number, owners if order is None else order[owners], place))
        return self._taken(parts)

    def _taken(self, parts: Sequence[tuple[int, Ints, Ints]]) -> Places:
        if not parts:
            return Places(_NONE, _NONE, _NONE, dict.fromkeys(self.names, _NONE), _NONE)
        columns = {
            name: _joined([self._columns[number][index][position] for number, _, position in parts])
            for index, name in enumerate(self.names)
        }
        weights = _joined(
            [self.runs[number].batch.weights[position] for number, _, position in parts]
        )
        source = np.repeat([number for number, _, _ in parts], [len(p) for _, _, p in parts])
        owners = _joined([owners for _, owners, _ in parts])
        return Places(
            owners, source, _joined([position for _, _, position in parts]), columns, weights
        )

    @property
    def tags(self) -> list[tuple[Tags, ...]]:
        return [run.batch.tags for run in self.runs]


def table_runs(plain: PlainStep) -> TableRuns | None:
    """The table's current rows; None where some are not integers."""
    if not plain.is_of_numbers:
        return None
    columns = [name for _, name in plain.heads if name is not None]
    wanted = {*columns, *plain.table.keys}
    runs = plain.table.runs()
    if any(run.batch.columns[name].valid is not None for run in runs for name in wanted):
        return None
    return TableRuns(runs, columns)


def _joined(parts: Sequence[Ints]) -> Ints:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


# The rows that a step touches, processed one by one. Law: a session finds slots, changes their
# state in place, records derivations, and ends with the same state as the array code. Only for rows
# of integers without NULL. Cost: a search per run for an untouched row, and microseconds; a
# session, some dozen views.


class RowByRow:
    def __init__(
        self, touched: TouchedRows, partners: DeletedDerivations, stored: Sequence[RowsView]
    ) -> None:
        self._touched = touched
        self._partners = partners
        self._stored = [(view, view.codes, len(view.codes)) for view in stored]
        self._is_single = len(touched.columns) == 1
        self._known: dict[Any, int] = {}
        """The slots of rows: a number for rows of one column, else a tuple."""
        self._fresh: list[int] = []  # Slots that no other lookup finds yet
        self._found: tuple[list[int], ...] = ([], [], [], [])
        """Heads, weights, and positions of the tags, of derivations of this session."""
        self._hit: list[int] = []
        """Slots counted in this session, where the derivations are not kept."""
        self.pairs = 0

    def _known_slot(self, key: Any) -> int:
        slot = self._known.get(key)
        return self._slot_of(key) if slot is None else slot

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
                position = view.place(position, values)
                if position < 0:
                    continue
            for now, was, column in zip(self._now, self._was, view.values, strict=True):
                if column is not None:
                    now[slot] = was[slot] = column[position]
            return

    def _begin(self) -> None:
        """Refresh the views, which others may have outdated."""
        self._view()
        self._parts = [(view_of(codes), view_of(index)) for codes, index in self._touched.parts]
        self._partner_heads = view_of(self._partners.heads)
        self._partner_weights = view_of(self._partners.weights)
        self._hit = []

    def _view(self) -> None:
        touched = self._touched
        rows = [view_of(row) for row in touched.values]
        self._room = touched.values.shape[1]
        for column in touched.columns:
            column.make_room(self._room)
        self._columns: list[Numbers] = [view_of(column.numbers) for column in touched.columns]
        self._rank, self._every, self._low = rows[RANK], rows[ALL], rows[LOW]
        self._now, self._was = rows[: len(NAMES)], rows[WAS : WAS + len(NAMES)]
        self._first, self._last, self._code = rows[FIRST], rows[LAST], view_of(touched.codes)

    def _end(self, hit: list[int] | None) -> Derived:
        """Publish the results; these slots were counted. None: the heads of the derivations
        were."""
        touched = self._touched
        if self._fresh:
            slots = touched.ordered(np.array(self._fresh, dtype=np.int64))
            touched.add_part(touched.codes[slots], slots)
        heads, weights, source, place = (np.array(p, dtype=np.int64) for p in self._found)
        counted = heads if hit is None else np.array(hit, dtype=np.int64)
        if len(counted) and touched.values[ALL : LOW + 1, counted].min() < 0:
            raise never_held("ways to derive rows")
        self.pairs += len(heads)
        result = Derived(heads, heads, weights, source, place)
        if hit is None:
            self._partners.add(result, None)
        self._fresh, self._found = [], ([], [], [], [])
        return result


# Rows of a fixpoint that come and go a few at a time, followed one by one. Law: the result is that
# of `single_join`: slots, counts, and derivations, kept for rows that go and emitted for rows that
# come. Faster than passes of NumPy for small fronts; a long chain of these takes microseconds a
# row. Only for integers. Loops are bounded by `most` rows of a front and `_PAIRS` times as many
# derivations; a larger front is left unprocessed.

THIN = 8  # Rows of a front up to which it is followed row by row
_PAIRS = 8  # Derivations per row of the largest such front up to which it is followed so

_Span = tuple[int, IndexView, int, int]  # A run's number, the run, and the rows' span in it


class ChangedRows(Struct, frozen=True):
    """Changed rows of the table: their keys, the columns that heads take, and weights."""

    keys: list[int]
    columns: list[list[int]]
    weights: list[int]


class ThinFronts(RowByRow):
    """`stored` are the rows before the step, `table` those of the table, loaded on first use;
    fronts have at most so many rows."""

    def __init__(
        self,
        plain: PlainStep,
        touched: TouchedRows,
        partners: DeletedDerivations,
        stored: Sequence[RowsView],
        most: int,
    ) -> None:
        super().__init__(touched, partners, stored)
        self._table: list[tuple[int, IndexView, Numbers, int]] | None = None
        self._most = most
        self._key = plain.key_places[0]
        names = [name for _, name in plain.heads if name is not None]
        self._heads = [
            (position, -1 if name is None else names.index(name)) for position, name in plain.heads
        ]
        self._column = self._heads[0][1] if self._is_single else -1
        """The table's column that is a whole row, if there is one."""

    @property
    def has_table(self) -> bool:
        return self._table is not None

    def see(self, table: Sequence[IndexView]) -> None:
        """Let fronts look these rows up."""
        self._table = [(run, view, view.codes, len(view.codes)) for run, view in enumerate(table)]

    def changed(self, rows: ChangedRows, own: Sequence[IndexView]) -> Derived | None:
        """Count what changed rows of the table derive from the old rows of the fixpoint. `own` are
        the fixpoint's rows by their keys: the columns that heads take from them, then the rank; not
        used where a row is its key. The owners are the changed rows. None where they are too
        many."""
        if self._column >= 0:
            return self._changed_by_rows(rows)
        spans = [[(view, *view.span(key)) for view in own] for key in rows.keys]
        if (
            sum(end - start for positions in spans for _, start, end in positions)
            > _PAIRS * self._most
        ):
            return None
        self._begin()
        heads, weights, owners, _ = self._found
        for owner, (weight, positions) in enumerate(zip(rows.weights, spans, strict=True)):
            right = [column[owner] for column in rows.columns]
            for view, start, end in positions:
                for position in range(start, end):
                    *left, body = (column[position] for column in view.columns)
                    head = self._head(left, right)
                    change = weight * view.weights[position]
                    self._every[head] += change
                    if body < self._rank[head]:
                        self._low[head] += change
                    heads.append(head)
                    weights.append(change)
                    owners.append(owner)
        result = self._end(heads)
        return Derived(result.source, result.heads, result.weights, result.source, result.place)

    def _changed_by_rows(self, rows: ChangedRows) -> Derived:
        """The same where a row is its key, and its heads are of the table alone."""
        self._begin()
        heads, weights, owners, _ = self._found
        for owner, key in enumerate(rows.keys):
            slot = self._known_slot(key)
            body = self._rank[slot]
            if not body:
                continue
            head = self._known_slot(rows.columns[self._column][owner])
            self._every[head] += rows.weights[owner]
            if body < self._rank[head]:
                self._low[head] += rows.weights[owner]
            heads.append(head)
            weights.append(rows.weights[owner])
            owners.append(owner)
        result = self._end(heads)
        return Derived(result.source, result.heads, result.weights, result.source, result.place)

    def _head(self, left: list[int], right: list[int]) -> int:
        ours = iter(left)
        values = tuple(next(ours) if index < 0 else right[index] for _, index in self._heads)
        return self._known_slot(values[0] if self._is_single else values)

    def out(self, slots: Ints, may_go: Dismiss) -> Ints | None:
        """As `Moves.out`; None where the first front is too large."""
        front: list[int] = slots.tolist()
        self._begin()
        is_begun = False
        while front and len(front) <= self._most:
            if len(front) == 1 and self._column >= 0:
                begun = front[0]
                front = self._followed(begun, may_go)
                is_begun = is_begun or front != [begun]
                if not front:
                    break
            spans = self._spans(front)
            if spans is None or not may_go(len(front)):
                break
            is_begun = True
            front = self._delete(front, spans)
        self._end(None)
        return np.array(front, dtype=np.int64) if is_begun else None

    def come(self, slots: Ints, admit: Admit) -> tuple[Ints, Derived] | None:
        """As `Moves.come`, and the derivations to report; None where the first front is too
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
        keys, first, last, table = (
            self._columns[self._key],
            self._first,
            self._last,
            self._table or [],
        )
        spans: list[list[_Span] | None] = []
        pairs = 0
        for slot in front:
            if first[slot] >= 0:
                pairs += last[slot] - first[slot]
                spans.append(None)
                continue
            result = []
            key = keys[slot]
            for number, view, codes, length in table:
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

    def _followed(self, slot: int, may_go: Dismiss) -> list[int]:
        """As `_delete` for a row with one partner, and for each single row that loses its ground by
        this; the front that is left. In chains this covers nearly everything."""
        table, known, at, before = (
            self._table or [],
            self._known,
            self._column,
            self._partners.count,
        )
        heads, weights, source, places = self._found
        rank, every, low = self._rank, self._every, self._low
        while True:
            key, spot = self._columns[0][slot], None
            for number, view, codes, length in table:
                position = bisect_left(codes, key)
                if position < length and codes[position] == key:
                    if spot is not None or (position + 1 < length and codes[position + 1] == key):
                        return [slot]
                    spot = number, view, position
            if spot is None or not may_go(1):
                return [slot]
            number, view, position = spot
            key = view.columns[at][position]
            head = known.get(key)
            if head is None:
                head = self._slot_of(key)
                rank, every, low = self._rank, self._every, self._low
            body, weight = rank[slot], view.weights[position]
            rank[slot] = low[slot] = 0
            self._first[slot] = before + len(heads)
            self._last[slot] = before + len(heads) + 1
            heads.append(head)
            weights.append(weight)
            source.append(number)
            places.append(position)
            every[head] -= weight
            if body >= rank[head]:
                return []
            low[head] -= weight
            if low[head]:
                return []
            slot = head

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
        heads, weights, source, place = self._found
        known = self._known
        if self._column >= 0 and end - start == 1:
            key = view.columns[self._column][start]
            head = known.get(key)
            heads.append(self._slot_of(key) if head is None else head)
            weights.append(view.weights[start])
            source.append(number)
            place.append(start)
            return
        for key in self._keys(slot, span):
            head = known.get(key)
            heads.append(self._slot_of(key) if head is None else head)
        weights += view.weights[start:end].tolist()
        source += repeat(number, end - start)
        place += range(start, end)

    def _keys(self, slot: int, span: _Span) -> Any:
        _, view, start, end = span
        columns = [
            repeat(self._columns[position][slot], end - start)
            if index < 0
            else view.columns[index][start:end].tolist()
            for position, index in self._heads
        ]
        return columns[0] if self._is_single else zip(*columns, strict=True)


# The two sides of a step that joins its rows with a table once. Law: each side is an input of the
# step, with columns at most chosen and renamed, and the step contains nothing else.

_ROWS, _TABLE = -1, -2  # The sources of the step


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


def ends_of(
    step: Circuit, index: int, join: JoinOperator, above: int
) -> tuple[int, Mapping[AttributeId, AttributeId]] | None:
    """The fixpoint's side of the join at this position, and the origins of the join's columns; None
    where it is no such step. `above` is the number of operators above the join."""
    ends = [
        passed(step, wire, [name for name, _ in side.columns])
        for wire, side in zip(step.wires[index], join.sides, strict=True)
    ]
    side = 0 if ends[0].at == _ROWS else 1
    own, table = ends[side], ends[1 - side]
    if (own.at, table.at, table.count) != (_ROWS, _TABLE, 0):
        return None
    if above + 1 + own.count != len(tuple(step)):
        return None
    return side, own.names


class Passed(Struct, frozen=True):
    """The position below projections, their number, and the columns' names there."""

    at: int
    count: int
    names: Mapping[AttributeId, AttributeId]


def passed(step: Circuit, index: int, names: Sequence[AttributeId]) -> Passed:
    """Skip all projections from `index` down that only choose and rename these columns."""
    operators, count = tuple(step), 0
    result: dict[AttributeId, AttributeId] = {name: name for name in names}
    while index >= 0 and isinstance(operator := operators[index], ProjectOperator):
        below = {name: operator.passes(column) for name, column in result.items()}
        result = {name: column for name, column in below.items() if column is not None}
        if len(result) < len(below):
            break
        (index,) = step.wires[index]
        count += 1
    return Passed(index, count, result)


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
    def is_by_rows(self) -> bool:
        """Whether a row has one column, its key, so that the row determines its rank; and its heads
        are of the table alone."""
        return self.is_of_numbers and len(self.heads) == 1 and self.heads[0][1] is not None


def plain_step(
    step: Circuit, columns: Sequence[tuple[AttributeId, SqlType]], rank: AttributeId
) -> PlainStep | None:
    operators = tuple(step)
    names = [*(name for name, _ in columns), rank]
    above = passed(step, len(operators) - 1, names)
    join = operators[above.at] if above.at >= 0 else None
    if not isinstance(join, JoinOperator) or join.reads:
        return None
    ends = ends_of(step, above.at, join, above.count)
    if ends is None:
        return None
    side, own = ends
    positions = {name: position for position, name in enumerate(names[:-1])} | {rank: _RANK}
    rows = {name: positions[given] for name, given in own.items()}
    heads = _heads(names, above.names, rows)
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
