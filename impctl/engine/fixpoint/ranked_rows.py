"""Rows of a fixpoint by their contents, each with its rank and the weight of what derives it.

Law: a *derivation* is one way to derive a row from others; its *bodies* are the rows of the
fixpoint that it uses. Of a row, `all` is what its derivations weigh whose bodies are all in the
fixpoint; `rank`, from 1 up, is the stage at which the row came in; `low` is what those of its
derivations weigh whose highest body rank is below its own. A row is in the fixpoint where it has a
rank, and as long as every such row has a `low` above zero, none of them owes itself to a circle.
Rows are equal as DISTINCT has it. Cost: the rows touched, looked up once in a step, and those that
changed, written once. Memory: 24 bytes beside the row and its code.
Out of scope: which rows come and go (`engine.operators.fixpoint`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.aliases import AttributeId
from impctl.data.keys import are_told_by_codes, same_keys
from impctl.data.schema import LONG, SqlType
from impctl.data.vector import Bools, Ints, Vector, concat, from_stored
from impctl.engine.arrangement import Arrangement
from impctl.engine.batch import Batch, empty_batch
from impctl.engine.disagreement import never_held
from impctl.values import dataclass

_RANK, _ALL, _LOW = "rank", "all", "low"
_NAMES = (_RANK, _ALL, _LOW)
_ROOM = 16
"""Rows that there is room for at first."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """All rows: their codes and columns, and what is remembered of each; shapes (rows,)."""

    codes: Ints
    keys: tuple[Vector, ...]
    rank: Ints
    all: Ints
    low: Ints

    def __len__(self) -> int:
        return len(self.codes)


class RankedRows:
    """The rows of `columns`, between two steps."""

    def __init__(self, name: str, columns: Sequence[tuple[AttributeId, SqlType]]) -> None:
        self.columns = tuple(columns)
        self.kinds = tuple(kind for _, kind in columns)
        self.arrangement = Arrangement(f"{name}.rows", self.kinds, _ALL)

    def touched(self) -> TouchedRows:
        """A step begins: what it touches, nothing yet."""
        return TouchedRows(self)

    def whole(self) -> Ranked:
        """All rows, by their codes. Cost: the rows."""
        run = self.arrangement.whole()
        if run is None:
            none = np.zeros(0, dtype=np.int64)
            return Ranked(none, (), none, none, none)
        keys = tuple(map(from_stored, run.keys, self.kinds))
        rank, every, low = (run.values[name] for name in _NAMES)
        return Ranked(run.codes, keys, rank, every, low)

    def rows(self) -> Batch:
        """All rows, once each. Cost: the rows."""
        found = self.whole()
        if not len(found):
            return empty_batch(0)
        return self.batch(found.keys, np.ones(len(found), dtype=np.int64))

    def batch(self, keys: Sequence[Vector], weights: Ints) -> Batch:
        """Rows of these columns, which carry no fragment."""
        columns = {name: key for (name, _), key in zip(self.columns, keys, strict=True)}
        return Batch(columns, weights, ())


class TouchedRows:
    """The rows that one step touches, each in a slot from 0 on, as the step has made them so far.

    A row that was never there has a slot like any other, and zeros.
    """

    def __init__(self, held: RankedRows) -> None:
        self._held = held
        self._count = 0
        self._values = np.zeros((2 * len(_NAMES), _ROOM), dtype=np.int64)
        """As they are, and as they were; with room for more rows."""
        self._parts: list[Sequence[Vector]] = []
        self._codes = np.zeros(0, dtype=np.int64)
        self._by_code = self._codes
        """Codes of all rows, ascending, and the slots of these rows."""
        self._are_told = True
        """Whether equal codes mean equal rows, as far as those here tell."""

    def slots_of(self, codes: Ints, keys: Sequence[Vector]) -> Ints:
        """The slots of rows, each given once, by ascending codes; shape (n,)."""
        if not self._count:
            return self._taken_up(codes, keys)
        slots = self._found(codes, keys)
        rest = (slots < 0).nonzero()[0]
        if len(rest):
            slots[rest] = self._taken_up(codes[rest], [key.take(rest) for key in keys])
        return slots

    def _found(self, codes: Ints, keys: Sequence[Vector]) -> Ints:
        """The slots of those rows that have one; -1 for others."""
        places = self._codes.searchsorted(codes)
        slots = self._by_code.take(places, mode="clip")
        slots[self._codes.take(places, mode="clip") != codes] = -1
        if self._are_told and are_told_by_codes(keys, keys):
            return slots
        rows = (slots >= 0).nonzero()[0]
        # Another row may have the code, and stand before it; as good as never.
        while len(rows := rows[~self._is_same(slots[rows], keys, rows)]):
            places[rows] += 1
            slots[rows] = self._by_code.take(places[rows], mode="clip")
            is_past = (places[rows] >= len(self._codes)) | (
                self._codes.take(places[rows], mode="clip") != codes[rows]
            )
            slots[rows[is_past]] = -1
            rows = rows[~is_past]
        return slots

    def _is_same(self, slots: Ints, keys: Sequence[Vector], rows: Ints) -> Bools:
        mine = [key.take(slots) for key in self._keys()]
        same = same_keys(mine, [key.take(rows) for key in keys])
        return np.ones(len(rows), dtype=np.bool_) if same is None else same

    def _taken_up(self, codes: Ints, keys: Sequence[Vector]) -> Ints:
        """Slots for rows that had none."""
        start, end = self._count, self._count + len(codes)
        if end > self._values.shape[1]:
            grown = np.zeros((self._values.shape[0], 2 * end), dtype=np.int64)
            grown[:, :start] = self._values[:, :start]
            self._values = grown
        located = self._held.arrangement.find(codes, keys)
        for at, name in enumerate(_NAMES if located.parts else ()):
            found = self._held.arrangement.gather(located, name)
            self._values[at, start:end] = self._values[at + len(_NAMES), start:end] = found
        slots = np.arange(start, end, dtype=np.int64)
        self._count = end
        self._parts.append(keys)
        self._are_told = self._are_told and are_told_by_codes(keys, keys)
        if start:
            codes, both = (
                np.concatenate([self._codes, codes]),
                np.concatenate([self._by_code, slots]),
            )
            # Two sorted parts: NumPy merges them.
            order = np.argsort(codes, kind="stable")
            self._codes, self._by_code = codes[order], both[order]
        else:
            self._codes, self._by_code = codes, slots
        return slots

    def take_up_all(self) -> None:
        """A slot for every row there is. Cost: the rows."""
        found = self._held.whole()
        if len(found):
            self.slots_of(found.codes, found.keys)

    @property
    def ranks(self) -> Ints:
        """By slot; 0 for a row that is not in the fixpoint (now)."""
        ranks: Ints = self._values[0]
        return ranks

    def count(self, slots: Ints, every: Ints, low: Ints) -> None:
        """Count a change of what derivations weigh in; each slot stands there once.

        CountBelowZeroError where more goes than there was.
        """
        for at, change in ((1, every), (2, low)):
            found = self._values[at, slots] + change
            if found.min() < 0:
                raise never_held("ways to derive rows")
            self._values[at, slots] = found

    def groundless(self, slots: Ints) -> Ints:
        """Those in the fixpoint that nothing of lower rank derives any more."""
        found: Ints = slots[(self._values[2, slots] == 0) & (self._values[0, slots] > 0)]
        return found

    def derived(self, slots: Ints | None = None) -> Ints:
        """Those (default: of all) that are not in the fixpoint, and are derived from rows in it."""
        if slots is None:
            slots = np.arange(self._count, dtype=np.int64)
        found: Ints = slots[(self._values[0, slots] == 0) & (self._values[1, slots] > 0)]
        return found

    def inside(self) -> Ints:
        """All in the fixpoint, of those touched."""
        return self._values[0, : self._count].nonzero()[0]

    def leave(self, slots: Ints) -> None:
        """These go out of the fixpoint."""
        self._values[0, slots] = 0
        self._values[2, slots] = 0

    def enter(self, slots: Ints, stage: int) -> None:
        """These come into the fixpoint: what derives them stands there at lower ranks."""
        self._values[0, slots] = stage
        self._values[2, slots] = self._values[1, slots]

    def batch(self, slots: Ints, weight: int, rank: AttributeId) -> Batch:
        """These rows with their ranks in a column of that name."""
        weights = np.full(len(slots), weight, dtype=np.int64)
        rows = self._held.batch([key.take(slots) for key in self._keys()], weights)
        return Batch({**rows.columns, rank: Vector(LONG, self.ranks[slots])}, weights, ())

    def _keys(self) -> Sequence[Vector]:
        """The columns of all rows, by slot."""
        if len(self._parts) > 1:
            self._parts = [[concat(list(parts)) for parts in zip(*self._parts, strict=True)]]
        return self._parts[0]

    def kept(self) -> Batch:
        """The step is over: keep what changed; the rows that came (+1) and went (-1)."""
        if not self._count:
            return empty_batch(0)
        # By code, as the arrangement wants them.
        values = self._values[:, self._by_code]
        are, were = values[: len(_NAMES)], values[len(_NAMES) :]
        places = (are != were).any(axis=0).nonzero()[0]
        if not len(places):
            return empty_batch(0)
        are, were = are[:, places], were[:, places]
        keys = [key.take(self._by_code[places]) for key in self._keys()]
        self._held.arrangement.put(self._codes[places], keys, dict(zip(_NAMES, are, strict=True)))
        signs = (are[0] > 0).astype(np.int64) - (were[0] > 0)
        moved = signs.nonzero()[0]
        return self._held.batch([key.take(moved) for key in keys], signs[moved])
