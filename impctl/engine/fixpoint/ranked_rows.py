"""Rows of a fixpoint by their contents, each with its rank and the weight of what derives it.

Law: an *instance* is one way to derive a row from others; its *body* is a row of the fixpoint that
it uses. Of a row, `all` is what its instances weigh whose bodies are all in the fixpoint; `rank`,
from 1 up, is the stage at which the row came in; `low` is what those of its instances weigh whose
highest body rank is below its own. A row is in the fixpoint where it has a rank, and as long as
every such row has a `low` above zero, none of them owes itself to a circle. Rows are equal as
DISTINCT has it. Cost: the rows touched, looked up once in a step, and those that changed, written
once. Memory: 24 bytes beside the row and its code.
Out of scope: which rows come and go (`engine.operators.fixpoint`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.aliases import AttributeId
from impctl.data.schema import LONG, SqlType
from impctl.data.vector import Bools, Ints, Vector, concat, from_stored
from impctl.engine.arrangement import Arrangement
from impctl.engine.batch import Batch, empty_batch
from impctl.engine.disagreement import never_held
from impctl.engine.runs import Run, hits_in, merge_at_once, merge_runs
from impctl.values import dataclass

_RANK, _ALL, _LOW = "rank", "all", "low"
_NAMES = (_RANK, _ALL, _LOW)
_SLOT = "slot"


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
        self._were = np.zeros((3, 0), dtype=np.int64)
        self._are = self._were
        self._parts: list[Sequence[Vector]] = []
        self._seen: Run | None = None
        """The slot of each row by its code."""

    def __len__(self) -> int:
        return self._are.shape[1]

    def slots_of(self, codes: Ints, keys: Sequence[Vector]) -> Ints:
        """The slots of rows, each given once, by ascending codes; shape (n,)."""
        slots = np.full(len(codes), -1, dtype=np.int64)
        if self._seen is not None:
            hits, places = hits_in(self._seen, self._held.kinds, codes, keys)
            slots[hits] = self._seen.values[_SLOT][places]
        rest = (slots < 0).nonzero()[0]
        if len(rest) == len(codes):
            slots = self._taken_up(codes, keys)
        elif len(rest):
            slots[rest] = self._taken_up(codes[rest], [key.take(rest) for key in keys])
        return slots

    def _taken_up(self, codes: Ints, keys: Sequence[Vector]) -> Ints:
        """Slots for rows that had none."""
        held = self._held.arrangement
        located = held.find(codes, keys)
        were = np.stack([held.gather(located, name) for name in _NAMES])
        return self._put(codes, keys, were)

    def take_up_all(self) -> None:
        """A slot for every row there is. Cost: the rows."""
        found = self._held.whole()
        if len(found):
            self.slots_of(found.codes, found.keys)

    def _put(self, codes: Ints, keys: Sequence[Vector], were: Ints) -> Ints:
        slots = np.arange(len(self), len(self) + len(codes), dtype=np.int64)
        self._were = np.concatenate([self._were, were], axis=1)
        self._are = np.concatenate([self._are, were], axis=1)
        self._parts.append(keys)
        run = Run(len(slots), codes, tuple(key.to_arrow() for key in keys), {_SLOT: slots})
        self._seen = run if self._seen is None else self._with(self._seen, run)
        return slots

    def _with(self, seen: Run, run: Run) -> Run:
        """The rows of both, none of which is in both."""
        kinds = self._held.kinds
        both = merge_at_once([seen, run], kinds, _SLOT, is_oldest=False)
        return merge_runs(seen, run, kinds, _SLOT, is_oldest=False) if both is None else both

    @property
    def ranks(self) -> Ints:
        """By slot; 0 for a row that is not in the fixpoint (now)."""
        ranks: Ints = self._are[0]
        return ranks

    def count(self, slots: Ints, every: Ints, low: Ints) -> None:
        """Count a change of what instances weigh in; each slot stands there once.

        CountBelowZeroError where more goes than there was.
        """
        self._are[1, slots] += every
        self._are[2, slots] += low
        if bool((self._are[1:, slots] < 0).any()):
            raise never_held("ways to derive rows")

    def groundless(self, slots: Ints) -> Ints:
        """Those in the fixpoint that nothing of lower rank derives any more."""
        found: Ints = slots[(self._are[0, slots] > 0) & (self._are[2, slots] == 0)]
        return found

    def derived(self, slots: Ints | None = None) -> Ints:
        """Those (default: of all) that are not in the fixpoint, and are derived from rows in it."""
        if slots is None:
            return ((self._are[0] == 0) & (self._are[1] > 0)).nonzero()[0]
        found: Ints = slots[(self._are[0, slots] == 0) & (self._are[1, slots] > 0)]
        return found

    def inside(self) -> Ints:
        """All in the fixpoint, of those touched."""
        return self._are[0].nonzero()[0]

    def leave(self, slots: Ints) -> None:
        """These go out of the fixpoint."""
        self._are[0, slots] = 0
        self._are[2, slots] = 0

    def enter(self, slots: Ints, stage: int) -> None:
        """These come into the fixpoint: what derives them stands there at lower ranks."""
        self._are[0, slots] = stage
        self._are[2, slots] = self._are[1, slots]

    def batch(self, slots: Ints, weight: int, rank: AttributeId) -> Batch:
        """These rows with their ranks in a column of that name."""
        weights = np.full(len(slots), weight, dtype=np.int64)
        rows = self._held.batch([key.take(slots) for key in self._keys()], weights)
        return Batch({**rows.columns, rank: Vector(LONG, self._are[0, slots])}, weights, ())

    def _keys(self) -> Sequence[Vector]:
        """The columns of all rows, by slot."""
        if len(self._parts) > 1:
            self._parts = [[concat(list(parts)) for parts in zip(*self._parts, strict=True)]]
        return self._parts[0]

    def kept(self) -> Batch:
        """The step is over: keep what changed; the rows that came (+1) and went (-1)."""
        if self._seen is None:
            return empty_batch(0)
        changed: Bools = (self._are != self._were).any(axis=0)
        by_code: Ints = self._seen.values[_SLOT]
        places = changed[by_code].nonzero()[0]
        slots = by_code[places]
        if not len(slots):
            return empty_batch(0)
        keys = [key.take(slots) for key in self._keys()]
        values = dict(zip(_NAMES, self._are[:, slots], strict=True))
        self._held.arrangement.put(self._seen.codes[places], keys, values)
        signs = (self._are[0, slots] > 0).astype(np.int64) - (self._were[0, slots] > 0)
        moved = signs.nonzero()[0]
        return self._held.batch([key.take(moved) for key in keys], signs[moved])
