"""The rows that one step of a fixpoint touches, each in a slot, as the step has made them so far.

Law: a row has one slot, from 0 on, for as long as the step lasts, and there its rank and counts
both as they are and as they were; a row that was never there has zeros. What the step has not
touched is as `ranked_rows` keeps it. Cost: a row is looked up there once; looking up slots sorts
what came since, in parts that each row is merged into a logarithmic number of times.
Out of scope: why rows come and go (`engine.fixpoint.moves`, `joined_moves`, `thin_fronts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from impctl.data.keys import are_told_by_codes, ascending, same_keys
from impctl.data.memory import reserve
from impctl.data.pages import search
from impctl.data.schema import LONG, SqlType
from impctl.data.vector import Bools, Ints, Vector, concat
from impctl.engine.batch import Batch, empty_batch, stacked_batches
from impctl.engine.disagreement import never_held
from impctl.engine.fixpoint.ranked_rows import NAMES, RankedRows
from impctl.engine.runs import are_told_by_code
from impctl.types import AttributeId

RANK, ALL, LOW = range(3)
WAS = 3
"""Where the same begins as it was."""
FIRST, LAST = 6, 7
"""Where what joins a row begins and ends, once it was looked for; -1 before (`joined_moves`)."""
CODE = 8
_ROOM = 16
"""Rows that there is room for at first."""


class TouchedRows:
    """The rows of one step; `values` of shape (9, room) has what is named above by slot."""

    def __init__(self, held: RankedRows) -> None:
        self.held = held
        self.count = 0
        self.values: Ints = np.zeros((CODE + 1, _ROOM), dtype=np.int64)
        self.values[FIRST] = -1
        self.columns = tuple(GrownColumn(kind) for kind in held.kinds)
        self.parts: list[tuple[Ints, Ints]] = []
        """Codes, ascending, and the slots of these rows; in parts, each far larger than the next.
        """
        self._are_told = True
        """Whether equal codes mean equal rows, as far as those here tell."""

    def slots_of(self, codes: Ints, keys: Sequence[Vector]) -> Ints:
        """The slots of rows, each given once, by ascending codes; shape (n,)."""
        if not self.count:
            return self._taken_up(codes, keys)
        slots = self._found(codes, keys)
        rest = (slots < 0).nonzero()[0]
        if len(rest):
            slots[rest] = self._taken_up(codes[rest], [key.take(rest) for key in keys])
        return slots

    def _found(self, codes: Ints, keys: Sequence[Vector]) -> Ints:
        """The slots of those rows that have one; -1 for others."""
        result = np.full(len(codes), -1, dtype=np.int64)
        are_told = self._are_told and are_told_by_codes(keys, keys)
        for held, owners in self.parts:
            places = held.searchsorted(codes)
            rows = (held.take(places, mode="clip") == codes).nonzero()[0]
            places = places[rows]
            if are_told:
                result[rows] = owners[places]
                continue
            # Another row may have the code, and stand before it; as good as never.
            while len(rows):
                is_same = self._is_same(owners[places], keys, rows)
                result[rows[is_same]] = owners[places[is_same]]
                rows, places = rows[~is_same], places[~is_same] + 1
                is_next = held.take(places, mode="clip") == codes[rows]
                is_next &= places < len(held)
                rows, places = rows[is_next], places[is_next]
        return result

    def _is_same(self, slots: Ints, keys: Sequence[Vector], rows: Ints) -> Bools:
        mine = [column.take(slots) for column in self.columns]
        same = same_keys(mine, [key.take(rows) for key in keys])
        return np.ones(len(rows), dtype=np.bool_) if same is None else same

    def _taken_up(self, codes: Ints, keys: Sequence[Vector]) -> Ints:
        """Slots for rows that had none."""
        start, end = self.count, self.count + len(codes)
        self.make_room(end)
        are_told = are_told_by_codes(keys, keys)
        self._look_up(start, codes, keys, are_told=are_told)
        self.values[CODE, start:end] = codes
        for column, key in zip(self.columns, keys, strict=True):
            column.append(start, key)
        self._are_told = self._are_told and are_told
        slots = np.arange(start, end, dtype=np.int64)
        self.count = end
        self.add_part(codes, slots)
        return slots

    def _look_up(self, start: int, codes: Ints, keys: Sequence[Vector], *, are_told: bool) -> None:
        """Fill in what is kept of these rows, in slots from `start` on."""
        arrangement, end = self.held.arrangement, start + len(codes)
        if not are_told or not are_told_by_code(arrangement.runs):
            located = arrangement.find(codes, keys)
            for at, name in enumerate(NAMES if located.parts else ()):
                self.values[at, start:end] = arrangement.gather(located, name)
        else:
            # The oldest first: what a newer run has of a row stands last.
            for run in arrangement.runs:
                places = search(run.pages, run.codes, codes)
                rows = (run.codes.take(places, mode="clip") == codes).nonzero()[0]
                if not len(rows):
                    continue
                places, slots = places[rows], rows + start
                for at, name in enumerate(NAMES):
                    column = run.checked_values(name, places)
                    self.values[at, slots] = 0 if column is None else column
        self.values[WAS : WAS + len(NAMES), start:end] = self.values[: len(NAMES), start:end]

    def make_room(self, rows: int) -> None:
        """So that so many rows have a place in `values`."""
        room = self.values.shape[1]
        if rows > room:
            # Pages beyond these rows take nothing until somebody writes there.
            reserve((CODE + 1) * rows * self.values.itemsize)
            grown = np.zeros((CODE + 1, 2 * rows), dtype=np.int64)
            grown[:, :room] = self.values
            grown[FIRST, room:] = -1
            self.values = grown

    def add_part(self, codes: Ints, slots: Ints) -> None:
        """These slots are found from now on; by ascending codes."""
        while self.parts and len(self.parts[-1][0]) <= 2 * len(codes):
            older, before = self.parts.pop()
            codes, slots = np.concatenate([older, codes]), np.concatenate([before, slots])
            # Two sorted parts: NumPy merges them.
            order = np.argsort(codes, kind="stable")
            codes, slots = codes[order], slots[order]
        self.parts.append((codes, slots))

    def take_up_all(self) -> None:
        """A slot for every row there is. Cost: the rows."""
        result = self.held.whole()
        if len(result):
            self.slots_of(result.codes, result.keys)

    @property
    def ranks(self) -> Ints:
        """By slot; 0 for a row that is not in the fixpoint (now)."""
        ranks: Ints = self.values[RANK]
        return ranks

    def count_in(self, slots: Ints, every: Ints, is_low: Bools | None) -> None:
        """Count what derivations weigh in, where `is_low` as low too; a slot may come often.

        CountBelowZeroError where more goes than there was.
        """
        if not len(slots):
            return
        np.add.at(self.values[ALL], slots, every)
        if is_low is not None:
            low = self.values[LOW]
            np.add.at(low, slots[is_low], every[is_low])
            if low[slots].min() < 0:
                raise never_held("ways to derive rows")
        if self.values[ALL, slots].min() < 0:
            raise never_held("ways to derive rows")

    def groundless(self, slots: Ints) -> Ints:
        """Those in the fixpoint that nothing of lower rank derives any more."""
        result: Ints = slots[(self.values[LOW, slots] == 0) & (self.values[RANK, slots] > 0)]
        return result

    def derived(self, slots: Ints | None = None) -> Ints:
        """Those (default: of all) that are not in the fixpoint, and are derived from rows in it."""
        if slots is None:
            slots = np.arange(self.count, dtype=np.int64)
        result: Ints = slots[(self.values[RANK, slots] == 0) & (self.values[ALL, slots] > 0)]
        return result

    def inside(self) -> Ints:
        """All in the fixpoint, of those touched."""
        return self.values[RANK, : self.count].nonzero()[0]

    def leave(self, slots: Ints) -> None:
        """These go out of the fixpoint."""
        self.values[RANK, slots] = 0
        self.values[LOW, slots] = 0

    def enter(self, slots: Ints, stage: int) -> None:
        """These come into the fixpoint: what derives them stands there at lower ranks."""
        self.values[RANK, slots] = stage
        self.values[LOW, slots] = self.values[ALL, slots]

    def batch(self, slots: Ints, weight: int, rank: AttributeId) -> Batch:
        """These rows with their ranks in a column of that name."""
        return self._ranked(slots, weight, rank, RANK)

    def _ranked(self, slots: Ints, weight: int, rank: AttributeId, at: int) -> Batch:
        weights = np.full(len(slots), weight, dtype=np.int64)
        rows = self.held.batch([column.take(slots) for column in self.columns], weights)
        ranks = Vector(LONG, self.values[at, slots])
        return Batch({**rows.columns, rank: ranks}, weights, ())

    def moved(self, rank: AttributeId) -> Batch:
        """What changed in the fixpoint's rows with their ranks: those there were and are not."""
        is_other = self.values[RANK, : self.count] != self.values[WAS + RANK, : self.count]
        parts = []
        for at, weight in ((WAS + RANK, -1), (RANK, 1)):
            slots = (is_other & (self.values[at, : self.count] > 0)).nonzero()[0]
            parts += [self._ranked(slots, weight, rank, at)] if len(slots) else []
        return stacked_batches(parts) if parts else empty_batch(0)

    def gone(self) -> Ints:
        """Those that were in the fixpoint and are not now."""
        ranks = self.values[:, : self.count]
        result: Ints = ((ranks[WAS + RANK] > 0) & (ranks[RANK] == 0)).nonzero()[0]
        return result

    def kept(self) -> Batch:
        """The step is over: keep what changed; the rows that came (+1) and went (-1)."""
        values = self.values[:, : self.count]
        slots = (values[:WAS] != values[WAS:FIRST]).any(axis=0).nonzero()[0]
        if not len(slots):
            return self.none
        if len(slots) > 1:
            # By code, as the arrangement wants them.
            slots = slots[ascending(values[CODE, slots])]
        keys = [column.take(slots) for column in self.columns]
        self.held.arrangement.put(values[CODE, slots], keys, self.values_of(slots))
        signs = (values[RANK, slots] > 0).astype(np.int64) - (values[WAS + RANK, slots] > 0)
        moved = signs.nonzero()[0]
        if not len(moved):
            return self.none
        return self.moved_rows([key.take(moved) for key in keys], slots[moved], signs[moved])

    @property
    def none(self) -> Batch:
        """No row that came or went."""
        return empty_batch(0)

    def moved_rows(self, keys: Sequence[Vector], slots: Ints, signs: Ints) -> Batch:
        """The rows in these slots, whose values are `keys`, that came (+1) and went (-1)."""
        del slots
        return self.held.batch(keys, signs)

    def values_of(self, slots: Ints) -> dict[str, Ints]:
        """What is kept of these rows, by name; shapes as `slots`."""
        # Column by column: all at once they would lie in one array, and keep each other in memory.
        return {name: self.values[at, slots] for at, name in enumerate(NAMES)}


class GrownColumn:
    """A column that grows at its end."""

    def __init__(self, kind: SqlType) -> None:
        self.type = kind
        self._texts: Vector | None = None
        self.numbers: Any = np.zeros(0, dtype=np.int64)
        """What is no text, with room for more."""
        self._valid: Bools | None = None

    @property
    def has_null(self) -> bool:
        """Whether some value is NULL, or may be."""
        return self._valid is not None

    def append(self, start: int, more: Vector) -> None:
        """Values from position `start` on, where those there are end."""
        if more.is_textual:
            self._texts = concat([more] if self._texts is None else [self._texts, more])
            return
        if more.valid is not None and self._valid is None:
            self._valid = np.ones(len(self.numbers), dtype=np.bool_)
        kind, end = more.values.dtype, start + len(more)
        self.make_room(end, np.result_type(self.numbers.dtype, kind) if start else kind)
        self.numbers[start:end] = more.values
        if self._valid is not None:
            self._valid[start:end] = more.validity()

    def make_room(self, rows: int, kind: Any = None) -> None:
        """So that so many values have a place."""
        kind = self.numbers.dtype if kind is None else kind
        room = len(self.numbers)
        if rows > room or kind != self.numbers.dtype:
            size = max(room, 2 * rows)
            grown = np.zeros(size, dtype=kind)
            grown[:room] = self.numbers
            self.numbers = grown
            if self._valid is not None:
                valid = np.ones(size, dtype=np.bool_)
                valid[:room] = self._valid
                self._valid = valid

    def take(self, slots: Ints) -> Vector:
        """The values at these positions."""
        if self._texts is not None:
            return self._texts.take(slots)
        valid = None if self._valid is None else self._valid[slots]
        return Vector(self.type, self.numbers[slots], valid)
