"""The derived rows that a fixpoint keeps: by rank, number or level, or the best per group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from impctl.data.keys import (
    ascending,
    group_normal,
    group_rows,
    have_injective_codes,
    key_codes,
    same_keys,
    starts_in,
)
from impctl.data.memory import reserve
from impctl.data.pages import search
from impctl.data.schema import LONG, SqlType
from impctl.data.vector import Bools, Ints, Vector, concat, from_stored
from impctl.engine.batch import Batch, empty_batch, identity_of, never_held, stacked_or_empty
from impctl.engine.tags import RANGE_BITS, RowTags
from impctl.engine.trace import Arrangement, RowIndex, Run, are_determined_by_code
from impctl.errors import UnsupportedError

if TYPE_CHECKING:
    from impctl.engine.operator import Keeper
    from impctl.types import AttributeId

# Rows by number. Law: a row keeps its number until its last copy goes; one that returns has
# another, and no number is used twice. Rows are equal as in DISTINCT: NULL equals NULL. State: the
# rows with their numbers and copies. Cost: the rows that come or go.

NUMBER = "number"  # The column of numbers in the state

Fresh = Callable[[int], Ints]  # Returns this many unused numbers


class AssignedNumbers(Struct, frozen=True):
    """The number of each row, shape (rows,), and the numbers whose last copy was deleted."""

    numbers: Ints
    deleted: Ints


class _NumberedIndex:
    """An index of rows of `columns` with their numbers, by `keys`."""

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        number: AttributeId,
        keys: Sequence[AttributeId],
    ) -> None:
        self._names = (*(column for column, _ in columns), number)
        self.index = RowIndex(name, (*columns, (number, LONG)), keys, 0)

    def put(self, columns: Sequence[Vector], numbers: Ints, weight: int) -> None:
        """Insert different rows with these numbers, or delete them by a weight of -1."""
        columns = [*columns, Vector(LONG, numbers)]
        weights = np.full(len(numbers), weight, dtype=np.int64)
        batch = Batch(dict(zip(self._names, columns, strict=True)), weights, ())
        self.index.add(batch, self.index.codes_of(batch))


class RowNumbers(_NumberedIndex):
    """Rows of `columns`, each with its number; `name` is that of the state."""

    def __init__(self, name: str, columns: Sequence[tuple[AttributeId, SqlType]]) -> None:
        super().__init__(name, columns, NUMBER, [column for column, _ in columns])

    def counted(self, columns: Sequence[Vector], weights: Ints, fresh: Fresh) -> AssignedNumbers:
        """Count copies; each gets the number of its row, an unused one if the row is new.
        CountBelowZeroError where copies are deleted that do not exist."""
        keys, grouping = group_normal(columns, len(weights))
        leaders = grouping.leaders(keys)
        known, before = self._known(grouping.codes, leaders)
        changed = np.add.reduceat(weights[grouping.order], grouping.starts)
        after = before + changed
        if len(after) and after.min() < 0:
            raise never_held("rows that a recursion is made of")
        new = (known < 0).nonzero()[0]
        known[new] = fresh(len(new))
        moved = changed.nonzero()[0]
        columns = [*(leader.take(moved) for leader in leaders), Vector(LONG, known[moved])]
        batch = Batch(dict(zip(self._names, columns, strict=True)), changed[moved], ())
        self.index.add(batch, grouping.codes[moved])
        return AssignedNumbers(known[grouping.index()], known[(before > 0) & (after == 0)])

    def found(self, columns: Sequence[Vector], length: int) -> tuple[list[Vector], Ints, Ints]:
        """The different rows, their numbers, -1 for none, and the index among them of each row."""
        keys, grouping = group_normal(columns, length)
        leaders = grouping.leaders(keys)
        known, _ = self._known(grouping.codes, leaders)
        return leaders, known, grouping.index()

    def whole(self) -> Batch:
        """All rows with their numbers, and as weights their numbers of copies."""
        return self.index.whole()

    def rows(self) -> Batch:
        """All rows without their numbers."""
        return only_columns(self.whole(), self._names[:-1])

    def _known(self, codes: Ints, leaders: Sequence[Vector]) -> tuple[Ints, Ints]:
        """The numbers of different rows, -1 for absent ones, and their numbers of copies."""
        numbers, copies = np.full(len(codes), -1, dtype=np.int64), np.zeros(len(codes), np.int64)
        result = self.index.find(codes, leaders)
        if not len(result.owners):
            return numbers, copies
        # A lookup returns a row and its negative until the index cancels them.
        row_numbers = result.rows.columns[NUMBER].values
        order = np.lexsort((row_numbers, result.owners))
        owners, row_numbers = result.owners[order], row_numbers[order]
        is_first = np.ones(len(order), dtype=np.bool_)
        is_first[1:] = (owners[1:] != owners[:-1]) | (row_numbers[1:] != row_numbers[:-1])
        first = is_first.nonzero()[0]
        sums = np.add.reduceat(result.rows.weights[order], first)
        present = first[sums > 0]
        numbers[owners[present]] = row_numbers[present]
        copies[owners[present]] = sums[sums > 0]
        return numbers, copies


class RowsByNumber(_NumberedIndex):
    """The same rows by their numbers; in memory only."""

    def __init__(self, columns: Sequence[tuple[AttributeId, SqlType]], number: AttributeId) -> None:
        super().__init__("by number", columns, number, [number])

    def rows(self, numbers: Sequence[int], weight: int) -> Batch:
        """The rows of these numbers, which exist, each with this weight."""
        requested = Vector(LONG, np.array(sorted(numbers), dtype=np.int64))
        if not len(requested.values):
            return empty_batch(0)
        codes = key_codes([requested], len(requested))
        result = self.index.find(codes, [requested]).rows
        assert len(result) == len(codes), "a number is used once, and freed at the end"
        return Batch(result.columns, np.full(len(result), weight, dtype=np.int64), ())


def only_columns(rows: Batch, names: Sequence[AttributeId]) -> Batch:
    """The rows with these columns alone, without tags."""
    if not len(rows):
        return empty_batch(0)
    return Batch({name: rows.columns[name] for name in names}, rows.weights, ())


# Rows of a fixpoint, with rank and weight of derivations. Law: a *derivation* is one way to derive
# a row from others; its *bodies* are the rows of the fixpoint that it uses. `all` is the weight of
# a row's derivations whose bodies are all in the fixpoint; `rank`, from 1 up, is the stage at which
# the row came in; `low` is the weight of its derivations whose highest body rank is below its own.
# A row is in the fixpoint if it has a rank, and while every such row has a positive `low`, none
# depends on itself through a cycle. Rows are equal as in DISTINCT. Cost: the rows touched, looked
# up once in a step, and those that changed, written once. Memory: 24 bytes beside the row and its
# code.

RANK_COLUMN, _ALL_COLUMN, LOW_COLUMN = NAMES = ("rank", "all", "low")
RANK, ALL, LOW = range(3)  # Their indexes in the values of a step


class RankedRows:
    kept: Mapping[int, str] = dict(enumerate(NAMES))
    """The stored values of a row, by their index in a step (`TouchedRows`)."""
    alive = _ALL_COLUMN  # The one that is zero for a row that is not stored any more

    def __init__(self, name: str, columns: Sequence[tuple[AttributeId, SqlType]]) -> None:
        self.columns = tuple(columns)
        self.names = tuple(column for column, _ in columns)
        self.kinds = tuple(kind for _, kind in columns)
        self.arrangement = Arrangement(
            f"{name}.rows",
            self.kinds,
            self.alive,
            lambda: dict.fromkeys(self.kept.values(), np.int64),
        )

    def rows(self) -> Batch:
        """All rows, once each. Cost: these rows."""
        run = self.arrangement.whole()
        if run is None:
            return empty_batch(0)
        return self.batch(self.keys_of(run), np.ones(len(run), dtype=np.int64))

    def keys_of(self, run: Run) -> list[Vector]:
        return list(map(from_stored, run.keys, self.kinds))

    def batch(self, keys: Sequence[Vector], weights: Ints) -> Batch:
        return Batch(dict(zip(self.names, keys, strict=True)), weights, ())


# Rows of a fixpoint that keeps the best of each group, between steps. Law: rows with equal key
# columns are a group. All rows derived from rows that are in are kept by group, with tags and
# copies. A row that is in has its `rank`, the stage at which it came in, and `low`, the weight of
# its derivations whose highest body rank is below its own; a group with such rows has the order of
# its best values. Memory: a row and its tags per derivation; 16 bytes beside the row and its code
# per row that is in, and per group.

HAS_COLUMN = "has"  # The column of groups that have rows


class Grouped(Struct, frozen=True):
    """How rows are grouped and ranked: the columns of the group, and the values that decide, each
    with whether the greatest is best; with `keeps_null`, rows whose value is NULL are included."""

    keys: tuple[AttributeId, ...]
    values: tuple[tuple[AttributeId, bool], ...]
    keeps_null: bool = False


class BestFixpointRows(RankedRows):
    """The rows of `columns`, between two steps, with tags for so many accesses."""

    kept = {RANK: RANK_COLUMN, LOW: LOW_COLUMN}
    alive = RANK_COLUMN

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        grouped: Grouped,
        accesses: int,
    ) -> None:
        super().__init__(name, columns)
        self.grouped = grouped
        self.derived = RowIndex(f"{name}.derived", columns, grouped.keys, accesses)
        kinds = dict(columns)
        self.best_names = tuple(f"best{position}" for position, _ in enumerate(grouped.values))
        self.best = Arrangement(
            f"{name}.best",
            [kinds[key] for key in grouped.keys],
            HAS_COLUMN,
            lambda: dict.fromkeys((HAS_COLUMN, *self.best_names), np.int64),
        )
        self.accesses = accesses

    @property
    def keepers(self) -> tuple[Keeper, ...]:
        return self.arrangement, self.derived, self.best


# Rows of a bag fixpoint by contents and level, with weights. Law: the *level* of a row is the
# number of steps that derived it from a row of the base; a row may occur at many levels. Rows are
# equal value for value: 0.0 is not -0.0, which a step may distinguish. Cost: the rows that change,
# looked up and written once. Memory: 8 bytes beside the row, its level and its code.

_WEIGHT = "weight"


class LevelledRows:
    """The rows of `columns` and their level, in a column `level`."""

    def __init__(
        self, name: str, columns: Sequence[tuple[AttributeId, SqlType]], level: AttributeId
    ) -> None:
        self.columns = tuple(columns)
        self.names = tuple(name for name, _ in columns)
        self.level = level
        kinds = [LONG if kind.is_fractional else kind for _, kind in self.columns]
        self.arrangement = Arrangement(f"{name}.rows", (*kinds, LONG), _WEIGHT)
        self._counted: list[tuple[Ints, Sequence[Vector], Ints]] = []
        """Codes, keys and weights that changed in this step, of one level each."""

    def begin(self) -> None:
        """Begin a step: counts that an earlier step did not store are dropped."""
        self._counted = []

    def count(self, level: int, rows: Batch) -> Batch:
        """Count all changes at a level; the same with each row once, and its level. Called once per
        level and step. CountBelowZeroError where more is deleted than there was."""
        columns = [rows.columns[name] for name, _ in self.columns]
        levels = Vector(LONG, np.full(len(rows), level, dtype=np.int64))
        keys = [*map(identity_of, columns), levels]
        grouping = group_rows(keys, len(rows))
        changes = grouping.sums(rows.weights)
        moved = changes.nonzero()[0]
        if not len(moved):
            return empty_batch(0)
        first, changes = grouping.first[moved], changes[moved]
        codes, keys = grouping.codes[moved], [key.take(first) for key in keys]
        located = self.arrangement.find(codes, keys)
        weights: Ints = self.arrangement.gather(located, _WEIGHT) + changes
        if weights.min() < 0:
            raise never_held("ways to derive rows")
        self._counted.append((codes, keys, weights))
        named = {
            name: column.take(first)
            for (name, _), column in zip(self.columns, columns, strict=True)
        }
        return Batch({**named, self.level: keys[-1]}, changes, ())

    def keep(self) -> None:
        parts, self._counted = self._counted, []
        if not parts:
            return
        every, keys, changed = zip(*parts, strict=True)
        codes, weights = np.concatenate(every), np.concatenate(changed)
        order = np.argsort(codes, kind="stable")
        columns = [concat(list(of_key)).take(order) for of_key in zip(*keys, strict=True)]
        self.arrangement.put(codes[order], columns, {_WEIGHT: weights[order]})

    def whole(self) -> Batch:
        """All rows with their levels, each row of a level once. Cost: the rows."""
        run = self.arrangement.whole()
        if run is None:
            return empty_batch(0)
        columns = {}
        for (name, kind), stored in zip(self.columns, run.keys, strict=False):
            if kind.is_fractional:
                bits = from_stored(stored, LONG)
                columns[name] = Vector(kind, bits.values.view(np.float64), bits.valid)
            else:
                columns[name] = from_stored(stored, kind)
        columns[self.level] = from_stored(run.keys[-1], LONG)
        return Batch(columns, run.values[_WEIGHT], ())

    def rows(self) -> Batch:
        """All rows without their levels."""
        return only_columns(self.whole(), self.names)


# Slots for the keys of one step: numbers from 0 up, in order of arrival. Law: equal keys, as in
# GROUP BY, have one slot; codes are those of `data.keys`. Cost: each key is looked up once in the
# stored state; looking up slots sorts the keys added since, in parts that each key is merged into a
# logarithmic number of times.

_ROOM = 16


class Slots:
    """The keys of these kinds seen so far; `values` of shape (n, room) has integers by slot."""

    def __init__(self, kinds: Sequence[SqlType], values: int) -> None:
        self.count = 0
        self.values: Ints = np.zeros((values, _ROOM), dtype=np.int64)
        self.codes: Ints = np.zeros(_ROOM, dtype=np.int64)
        self.columns = tuple(GrownColumn(kind) for kind in kinds)
        self.parts: list[tuple[Ints, Ints]] = []
        """Codes, ascending, and the slots of these keys; in parts, each far larger than the
        next."""
        self._is_by_code = True  # Whether equal codes mean equal keys, for the keys seen

    def slots_of(self, codes: Ints, keys: Sequence[Vector]) -> Ints:
        """The slots of keys, each given once, by ascending codes; shape (n,)."""
        if not self.count:
            return self._add(codes, keys)
        slots = self._known(codes, keys)
        rest = (slots < 0).nonzero()[0]
        if len(rest):
            slots[rest] = self._add(codes[rest], [key.take(rest) for key in keys])
        return slots

    def slots_for(self, columns: Sequence[Vector], length: int) -> Ints:
        """The slots of keys in any order, possibly with repetitions; shape (length,)."""
        is_one = length and len(columns) == 1 and have_injective_codes(columns, columns)
        if is_one and columns[0].values.dtype == np.int64:
            return self.slots_for_codes(columns[0].values, columns)
        keys, grouping = group_normal(columns, length)
        slots = self.slots_of(grouping.codes, grouping.leaders(keys))
        return slots[grouping.index()]

    def slots_for_codes(self, codes: Ints, keys: Sequence[Vector] = ()) -> Ints:
        """The same of keys that are their codes; without `keys`, codes alone are remembered."""
        if not len(codes):
            return codes
        order = ascending(codes)
        codes = codes[order]
        is_start = starts_in(codes)
        if bool(is_start.all()):
            result = self.slots_of(codes, [key.take(order) for key in keys])
        else:
            rows = is_start.nonzero()[0]
            result = self.slots_of(codes[rows], [key.take(order[rows]) for key in keys])
            result = result[np.cumsum(is_start) - 1]
        slots = np.empty_like(result)
        slots[order] = result
        return slots

    def _known(self, codes: Ints, keys: Sequence[Vector]) -> Ints:
        """The slots of known keys; -1 for others."""
        result = np.full(len(codes), -1, dtype=np.int64)
        is_by_code = self._is_by_code and (not keys or have_injective_codes(keys, keys))
        for stored, owners in self.parts:
            positions = stored.searchsorted(codes)
            rows = (stored.take(positions, mode="clip") == codes).nonzero()[0]
            positions = positions[rows]
            if is_by_code:
                result[rows] = owners[positions]
                continue
            # Another key with the code may come first; this practically never happens.
            while len(rows):
                is_same = self._is_same(owners[positions], keys, rows)
                result[rows[is_same]] = owners[positions[is_same]]
                rows, positions = rows[~is_same], positions[~is_same] + 1
                is_next = stored.take(positions, mode="clip") == codes[rows]
                is_next &= positions < len(stored)
                rows, positions = rows[is_next], positions[is_next]
        return result

    def _is_same(self, slots: Ints, keys: Sequence[Vector], rows: Ints) -> Bools:
        same = same_keys(self.keys(slots), [key.take(rows) for key in keys])
        return np.ones(len(rows), dtype=np.bool_) if same is None else same

    def _add(self, codes: Ints, keys: Sequence[Vector]) -> Ints:
        start, end = self.count, self.count + len(codes)
        self.make_room(end)
        is_by_code = not keys or have_injective_codes(keys, keys)
        self._look_up(start, codes, keys, is_by_code=is_by_code)
        self.codes[start:end] = codes
        for column, key in zip(self.columns, keys, strict=True):
            column.append(start, key)
        self._is_by_code = self._is_by_code and is_by_code
        slots = np.arange(start, end, dtype=np.int64)
        self.count = end
        self.add_part(codes, slots)
        return slots

    def _look_up(
        self, start: int, codes: Ints, keys: Sequence[Vector], *, is_by_code: bool
    ) -> None:
        """Set the values of new keys, from slot `start` on; zero if not set."""

    def make_room(self, rows: int) -> None:
        room = self.values.shape[1]
        if rows > room:
            # Pages beyond these rows take nothing until somebody writes there.
            reserve((len(self.values) + 1) * rows * self.values.itemsize)
            self.values = with_room(self.values, 2 * rows)
            self.codes = with_room(self.codes, 2 * rows)

    def add_part(self, codes: Ints, slots: Ints) -> None:
        """Add these slots to the lookup; by ascending codes."""
        while self.parts and len(self.parts[-1][0]) <= 2 * len(codes):
            older, before = self.parts.pop()
            codes, slots = np.concatenate([older, codes]), np.concatenate([before, slots])
            # Two sorted parts: NumPy merges them.
            order = np.argsort(codes, kind="stable")
            codes, slots = codes[order], slots[order]
        self.parts.append((codes, slots))

    def keys(self, slots: Ints) -> list[Vector]:
        return [column.take(slots) for column in self.columns]

    def ordered(self, slots: Ints) -> Ints:
        """These slots by ascending codes, as arrangements want them."""
        return slots if len(slots) < 2 else slots[ascending(self.codes[slots])]


def with_room(array: Any, room: int) -> Any:
    """The array with room for so many values along its last axis; new ones are zero."""
    grown = np.zeros((*array.shape[:-1], room), dtype=array.dtype)
    grown[..., : array.shape[-1]] = array
    return grown


# The rows that one step of a fixpoint touches, in slots. Law: a row has one slot throughout the
# step, with its rank and counts as they are and as they were; a new row has zeros. Untouched rows
# are as stored. Cost: as of slots; rows that changed are written once.

WAS = 3  # Offset of the old values
FIRST, LAST = 6, 7
"""Start and end of a row's join partners, once looked up; -1 before (`single_join`)."""
MORE = 8  # The first index of other values


class TouchedRows(Slots):
    """The rows of one step; `values` of shape (8 + `more`, room) has the rows named above."""

    def __init__(self, stored: RankedRows, more: int = 0) -> None:
        super().__init__(stored.kinds, MORE + more)
        self.stored = stored
        self.values[FIRST] = -1

    def _look_up(
        self, start: int, codes: Ints, keys: Sequence[Vector], *, is_by_code: bool
    ) -> None:
        arrangement, end = self.stored.arrangement, start + len(codes)
        names = self.stored.kept
        if not is_by_code or not are_determined_by_code(arrangement.runs):
            located = arrangement.find(codes, keys)
            for index, name in names.items() if located.parts else ():
                self.values[index, start:end] = arrangement.gather(located, name)
        else:
            # The oldest first: a newer run overwrites the values of a row.
            for run in arrangement.runs:
                positions = search(run.pages, run.codes, codes)
                rows = (run.codes.take(positions, mode="clip") == codes).nonzero()[0]
                if not len(rows):
                    continue
                positions, slots = positions[rows], rows + start
                for index, name in names.items():
                    column = run.checked_values(name, positions)
                    self.values[index, slots] = 0 if column is None else column
        self.values[WAS : 2 * WAS, start:end] = self.values[:WAS, start:end]

    def make_room(self, rows: int) -> None:
        room = self.values.shape[1]
        super().make_room(rows)
        self.values[FIRST, room:] = -1

    def take_up_all(self) -> None:
        run = self.stored.arrangement.whole()
        if run is not None:
            self.slots_of(run.codes, self.stored.keys_of(run))

    @property
    def ranks(self) -> Ints:
        """By slot; 0 for a row that is not in the fixpoint (now)."""
        ranks: Ints = self.values[RANK]
        return ranks

    def counted(self, derivations: Batch, rank: AttributeId) -> Ints:
        """Count derivations, with the highest body ranks in a column of that name; the slots of the
        derived rows, one for each derivation."""
        columns = [derivations.columns[name] for name in self.stored.names]
        slots = self.slots_for(columns, len(derivations))
        # The low of a row outside the fixpoint does not matter: it is set when the row is inserted.
        is_low = derivations.columns[rank].values < self.ranks[slots]
        self.count_in(slots, derivations.weights, is_low)
        return slots

    def count_in(self, slots: Ints, every: Ints, is_low: Bools | None) -> None:
        """Add the weights of derivations, where `is_low` to the low too; slots may repeat.
        CountBelowZeroError where more is deleted than there was."""
        if not len(slots):
            return
        np.add.at(self.values[ALL], slots, every)
        if is_low is not None:
            low = self.values[LOW]
            np.add.at(low, slots[is_low], every[is_low])
            if low[slots].min() < 0:
                raise never_held("ways to derive rows")
        self.check(slots)

    def check(self, slots: Ints) -> None:
        if len(slots) and self.values[ALL, slots].min() < 0:
            raise never_held("ways to derive rows")

    def groundless(self, slots: Ints) -> Ints:
        """The rows in the fixpoint without a derivation of lower rank."""
        result: Ints = slots[(self.values[LOW, slots] == 0) & (self.values[RANK, slots] > 0)]
        return result

    def derived(self, slots: Ints | None = None) -> Ints:
        """Those (default: of all) that are not in the fixpoint but are derived from rows in it."""
        if slots is None:
            slots = np.arange(self.count, dtype=np.int64)
        result: Ints = slots[(self.values[RANK, slots] == 0) & (self.values[ALL, slots] > 0)]
        return result

    def inside(self) -> Ints:
        return self.values[RANK, : self.count].nonzero()[0]

    def leave(self, slots: Ints) -> None:
        self.values[RANK, slots] = 0
        self.values[LOW, slots] = 0

    def enter(self, slots: Ints, stage: int) -> None:
        """Insert these rows: the derivations that stand now have lower ranks."""
        self.values[RANK, slots] = stage
        self.values[LOW, slots] = self.values[ALL, slots]

    def batch(self, slots: Ints, weight: int, rank: AttributeId) -> Batch:
        return self._ranked(slots, weight, rank, RANK)

    def _ranked(self, slots: Ints, weight: int, rank: AttributeId, index: int) -> Batch:
        weights = np.full(len(slots), weight, dtype=np.int64)
        rows = self.stored.batch(self.keys(slots), weights)
        ranks = Vector(LONG, self.values[index, slots])
        return Batch({**rows.columns, rank: ranks}, weights, ())

    def moved(self, rank: AttributeId) -> Batch:
        """The change of the fixpoint's rows with their ranks: old rows and new rows."""
        is_other = self.values[RANK, : self.count] != self.values[WAS + RANK, : self.count]
        parts = []
        for index, weight in ((WAS + RANK, -1), (RANK, 1)):
            slots = (is_other & (self.values[index, : self.count] > 0)).nonzero()[0]
            parts.append(self._ranked(slots, weight, rank, index))
        return stacked_or_empty(parts, 0)

    def deleted(self) -> Ints:
        """The rows that were in the fixpoint and no longer are."""
        ranks = self.values[:, : self.count]
        result: Ints = ((ranks[WAS + RANK] > 0) & (ranks[RANK] == 0)).nonzero()[0]
        return result

    def kept(self) -> Batch:
        """End the step and store its changes; the rows inserted (+1) and deleted (-1)."""
        values = self.values[:, : self.count]
        is_other = np.zeros(self.count, dtype=np.bool_)
        for index in self.stored.kept.keys() & range(WAS):
            is_other |= values[index] != values[WAS + index]
        slots = self.ordered(is_other.nonzero()[0])
        if not len(slots):
            return self.none
        keys = self.keys(slots)
        self.stored.arrangement.put(self.codes[slots], keys, self.values_of(slots))
        signs = (values[RANK, slots] > 0).astype(np.int64) - (values[WAS + RANK, slots] > 0)
        moved = signs.nonzero()[0]
        if not len(moved):
            return self.none
        return self.moved_rows([key.take(moved) for key in keys], slots[moved], signs[moved])

    @property
    def none(self) -> Batch:
        return empty_batch(0)

    def moved_rows(self, keys: Sequence[Vector], slots: Ints, signs: Ints) -> Batch:
        """The rows in these slots, with values `keys`, inserted (+1) or deleted (-1)."""
        del slots
        return self.stored.batch(keys, signs)

    def values_of(self, slots: Ints) -> dict[str, Ints]:
        """The stored values of these rows, by name; shapes as `slots`."""
        # Column by column: all at once they would lie in one array, and keep each other in memory.
        return {name: self.values[index, slots] for index, name in self.stored.kept.items()}


class GrownColumn:
    def __init__(self, kind: SqlType) -> None:
        self.type = kind
        self._texts: list[Vector] = []
        self.numbers: Any = np.zeros(0, dtype=np.int64)
        """Values that are not text, with room for more."""
        self._is_null: Bools | None = None

    @property
    def has_null(self) -> bool:
        return self._is_null is not None

    def append(self, start: int, more: Vector) -> None:
        """Write values from position `start` on, the current end."""
        if more.is_textual:
            self._texts.append(more)
            return
        if more.valid is not None and self._is_null is None:
            self._is_null = np.zeros(len(self.numbers), dtype=np.bool_)
        kind, end = more.values.dtype, start + len(more)
        self.make_room(end, np.result_type(self.numbers.dtype, kind) if start else kind)
        self.numbers[start:end] = more.values
        if self._is_null is not None:
            self._is_null[start:end] = ~more.validity()

    def make_room(self, rows: int, kind: Any = None) -> None:
        kind = self.numbers.dtype if kind is None else kind
        room = len(self.numbers)
        if rows > room or kind != self.numbers.dtype:
            size = max(room, 2 * rows)
            self.numbers = with_room(self.numbers.astype(kind, copy=False), size)
            if self._is_null is not None:
                self._is_null = with_room(self._is_null, size)

    def take(self, slots: Ints) -> Vector:
        if self._texts:
            self._texts = [concat(self._texts)] if len(self._texts) > 1 else self._texts
            return self._texts[0].take(slots)
        valid = None if self._is_null is None else ~self._is_null[slots]
        return Vector(self.type, self.numbers[slots], valid)


# Rows of a fixpoint with numbers, by which other operators distinguish them. Law: a row has one
# number, from 1 up, from the step in which it enters to the one in which it leaves, whatever its
# rank; no two rows of a step share one, including those that leave in it. Numbers are reused only
# once all were used. Rows are tagged with their numbers, as table rows are with ranges, so the
# counts above tell which rows matter. Cost: as of rows without numbers; 8 bytes a row more; when
# numbers run out, all rows.

_NUMBER = "number"
MOST = (1 << RANGE_BITS) - 1  # The greatest number: numbers use the place of ranges


class NumberedFixpointRows(RankedRows):
    """`number` names the column with a row's number as input of the step."""

    kept = {**RankedRows.kept, MORE: _NUMBER}

    def __init__(
        self, name: str, columns: Sequence[tuple[AttributeId, SqlType]], number: AttributeId
    ) -> None:
        super().__init__(name, columns)
        self.number = number
        self.most = MOST
        self.last = 0
        self.counter = f"{name}.numbers"
        self._free: Ints = np.zeros(0, dtype=np.int64)

    def rows(self) -> Batch:
        rows = super().rows()
        return tagged(rows, self._numbers()) if len(rows) else empty_batch(1)

    def take(self, count: int, touched: Ints) -> Ints:
        """This many unused numbers; `touched` are those of the rows of the step. UnsupportedError
        where not enough are left."""
        fresh = min(count, self.most - self.last)
        unused = np.arange(self.last + 1, self.last + 1 + fresh, dtype=np.int64)
        self.last += fresh
        if fresh == count:
            return unused
        left = count - fresh
        if left > len(self._free):
            used = np.concatenate([self._numbers(), touched, unused])
            every = np.arange(1, self.most + 1, dtype=np.int64)
            self._free = np.setdiff1d(every, used)
        if left > len(self._free):
            raise UnsupportedError(
                f"A recursive query has more than {self.most:,} rows, too many for `lineage: "
                "answer`",
                code="recursion_limit",
                hint="remove `lineage: answer`",
            )
        again, self._free = self._free[:left], self._free[left:]
        return np.concatenate([unused, again])

    def _numbers(self) -> Ints:
        run = self.arrangement.whole()
        if run is None:
            return np.zeros(0, dtype=np.int64)
        numbers: Ints = run.values[_NUMBER]
        return numbers


class TouchedNumbers(TouchedRows):
    """The rows of one step with their numbers, 0 where a row has none."""

    stored: NumberedFixpointRows

    def __init__(self, stored: NumberedFixpointRows) -> None:
        super().__init__(stored, more=1)

    @property
    def numbers(self) -> Ints:
        """By slot; shape (room,)."""
        numbers: Ints = self.values[MORE]
        return numbers

    def enter(self, slots: Ints, stage: int) -> None:
        super().enter(slots, stage)
        fresh = slots[self.numbers[slots] == 0]
        if len(fresh):
            self.numbers[fresh] = self.stored.take(len(fresh), self.numbers[: self.count])

    def batch(self, slots: Ints, weight: int, rank: AttributeId) -> Batch:
        rows = super().batch(slots, weight, rank)
        numbers = Vector(LONG, self.numbers[slots])
        return Batch({**rows.columns, self.stored.number: numbers}, rows.weights, ())

    def values_of(self, slots: Ints) -> dict[str, Ints]:
        # A deleted row returns its number, even while it is still stored.
        numbers = np.where(self.values[ALL, slots] > 0, self.numbers[slots], 0)
        return {**super().values_of(slots), _NUMBER: numbers}

    def moved_rows(self, keys: Sequence[Vector], slots: Ints, signs: Ints) -> Batch:
        return tagged(super().moved_rows(keys, slots, signs), self.numbers[slots])

    @property
    def none(self) -> Batch:
        return empty_batch(1)


def tagged(rows: Batch, numbers: Ints) -> Batch:
    return Batch(rows.columns, rows.weights, (RowTags(numbers.astype(np.int32)),))
