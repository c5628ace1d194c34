"""Rows kept by a key, as a few sorted runs: what an operator looks partners up in.

Law: the index means the sum of all rows ever added, with their weights and tags; a row and its
negative cancel when their runs are merged, and until then both are found. A run may hold equal rows
more than once. Rows that are added wait until something is asked, a million at most: a side that
fills while nobody looks partners up in it is sorted once. Adding costs the rows added, plus merges
each row takes part in a logarithmic number of times; finding costs the rows found, plus a binary
search per run. Rows are equal when all columns and all tags are.
Out of scope: what is done with the rows found (`engine.operators`), files (`store`).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Self

import numpy as np
import pyarrow as pa

from impctl.data.keys import (
    MANY,
    are_told_by_codes,
    ascending,
    ends_of,
    key_codes,
    normalise,
    perhaps_in,
    same_keys,
    when_many,
)
from impctl.data.memory import reserve
from impctl.data.pages import (
    CheckedPages,
    StoredTable,
    check_each,
    checked_places,
    rows_of_code,
    search,
    table_of,
    whole,
)
from impctl.data.schema import LONG, SqlType
from impctl.data.vector import (
    INT64_MAX,
    Bools,
    Ints,
    Vector,
    check_stored,
    concat,
    from_stored,
    slice_positions,
)
from impctl.engine.batch import Batch, empty_batch, stacked_batches
from impctl.engine.consolidate import packed, repeating, summed, united_neighbours, unpacked
from impctl.engine.run_log import RunChange, RunLog
from impctl.engine.tags import RowTags, Tags, apart, stacked
from impctl.errors import JoinTooLargeError
from impctl.types import AttributeId
from impctl.values import dataclass

_CODE, _WEIGHT, _NONE = "code", "weight", np.zeros(0, dtype=np.int64)
MOST_PAIRS = 100_000_000
"""Rows that one look-up may find: some gigabytes."""
_PLAIN = (pa.int64(), pa.float64(), pa.large_string(), pa.large_binary())
"""Stored types whose values are used where they lie, if none is NULL."""
_MOST_WAITING = 1 << 20
"""Rows that wait to be sorted: of more, what cancels or is equal would take room."""
_FEW_RUNS = 2
"""Runs up to which each is asked by itself."""
_MANY_ROWS = 1 << 16
"""Rows from which on it pays not to look for all that are equal."""
_HARDLY, _LOOKED_AT = 0.1, 4_096
"""Where so few rows are there again, by so many of a run, they take little room."""
_FEWER = 4
"""Codes asked for, per code held, from which on those not there are mostly left out unsearched."""


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of the index for rows asked for: `owners[i]` is the asking row of the i-th one."""

    owners: Ints
    rows: Batch


@dataclass(frozen=True, slots=True)
class Leading:
    """First rows per key, each once with its sum, sorted by key and then by the order.

    For the i-th key they are all there are of ranks below `limits[i]`, and all at all if
    `is_whole[i]`; of the rank `limits[i]` some may be missing.
    """

    found: Found
    limits: Ints
    is_whole: Bools


@dataclass(frozen=True, slots=True)
class IndexRun:
    """One run: a batch sorted by the codes of its keys."""

    sequence: int
    codes: Ints
    batch: Batch
    pages: CheckedPages | None = None

    def __len__(self) -> int:
        return len(self.codes)

    def slices(self, codes: Ints) -> tuple[Ints, Ints]:
        """Where the rows of each of these codes begin and end."""
        first = search(self.pages, self.codes, codes)
        last = ends_of(self.codes, first, codes, "right")
        return first, checked_places(self.pages, self.codes, codes, last, "right")

    def at(self, positions: Ints) -> Batch:
        """The batch, after these of its rows were looked at."""
        if self.pages is not None and self.pages.is_open:
            for column in self.batch.columns.values():
                self.pages.check_rows(column.values, positions)
            self.pages.check_rows(self.batch.weights, positions)
            for tag in self.batch.tags:
                if isinstance(tag, RowTags):
                    self.pages.check_rows(tag.fragments, positions)
        return self.batch


@dataclass(frozen=True, slots=True)
class _Form:
    """What runs are, apart from the index: who merges them does not hold it, so that it can go."""

    columns: tuple[tuple[AttributeId, SqlType], ...]
    order: AttributeId | None

    def ranks(self, batch: Batch) -> Ints:
        assert self.order is not None
        ranks: Ints = batch.columns[self.order].values
        return ranks

    def sorted(self, codes: Ints, batch: Batch) -> Ints:
        """The order in which a run keeps rows."""
        if self.order is None:
            return ascending(codes)
        return np.lexsort((self.ranks(batch), codes))

    def together(self, runs: Sequence[IndexRun]) -> IndexRun:
        """One run for all of these. Of many rows that only came those are united that come to lie
        side by side, and all only where more are alike: finding these takes longer than sorting."""
        if sum(map(len, runs)) < _MANY_ROWS or any((run.batch.weights < 0).any() for run in runs):
            return self.merged(runs)
        check_each(runs)
        codes, batch = united_neighbours(*self.in_turn(runs))
        index_run = IndexRun(runs[-1].sequence, codes, batch)
        # The first rows have their codes: those that are alike are among them.
        some = batch.take(np.arange(min(len(index_run), _LOOKED_AT)))
        return index_run if repeating(some) <= _HARDLY else self.merged([index_run])

    def in_turn(self, runs: Sequence[IndexRun]) -> tuple[Ints, Batch]:
        """All rows sorted, column by column: no second copy of them all is held meanwhile."""
        parts = [run.batch for run in runs]
        codes = np.concatenate([run.codes for run in runs])
        ranks = [] if self.order is None else [self.ranks(part) for part in parts]
        order = np.lexsort((np.concatenate(ranks), codes)) if ranks else ascending(codes)
        columns = {
            name: concat([part.columns[name] for part in parts]).take(order)
            for name, _ in self.columns
        }
        weights = np.concatenate([part.weights for part in parts])[order]
        tags = (stacked([part.tags[at] for part in parts]) for at in range(len(parts[0].tags)))
        return codes[order], Batch(columns, weights, tuple(tag.take(order) for tag in tags))

    def merged(self, runs: Sequence[IndexRun]) -> IndexRun:
        """One run for all of these, each row once and those that cancel left out."""
        check_each(runs)
        codes, batch = self.in_turn(runs)
        columns = [batch.columns[name] for name, _ in self.columns]
        kept, weights = summed(batch, [Vector(LONG, codes), *columns])
        if len(kept) < len(batch):
            codes, batch = codes[kept], batch.take(kept)
        return IndexRun(runs[-1].sequence, codes, Batch(batch.columns, weights, batch.tags))


class RowIndex:
    """Rows of `columns` by the key columns `keys`, with tags for so many accesses.

    With `order`, one of the columns and of type LONG, rows of one key are kept in its order.
    """

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        keys: Sequence[AttributeId],
        accesses: int,
        *,
        order: AttributeId | None = None,
    ) -> None:
        self.name = name
        self.columns = tuple(columns)
        self.keys = tuple(keys)
        self._accesses = accesses
        form = self._form = _Form(self.columns, order)
        self._log: RunLog[IndexRun] = RunLog(
            lambda runs, _: form.together(runs), lambda run: _to_arrow(run, form.columns)
        )
        self._waiting: list[IndexRun] = []
        self._waiting_rows = 0

    @property
    def rows(self) -> int:
        """Rows over all runs, cancelled ones included."""
        return self._log.rows + self._waiting_rows

    @property
    def bytes_held(self) -> int:
        return sum(int(_to_arrow(run, self.columns).nbytes) for run in self.runs())

    def codes_of(self, batch: Batch) -> Ints:
        """The codes of the batch's keys, as `add` and `find` want them."""
        return key_codes([normalise(batch.columns[key]) for key in self.keys], len(batch))

    def add(self, batch: Batch, codes: Ints) -> None:
        """Count the batch in."""
        if len(batch) == 0:
            return
        order = self._form.sorted(codes, batch)
        columns = {name: batch.columns[name].take(order) for name, _ in self.columns}
        tags = tuple(apart(tag.take(order)) for tag in batch.tags)
        held = Batch(columns, batch.weights[order], tags)
        self._waiting.append(IndexRun(self._log.next_sequence, codes[order], held))
        self._waiting_rows += len(batch)
        if len(self._waiting) > 1 and self._waiting_rows > _MOST_WAITING:
            self.runs()

    def clear(self) -> None:
        """Forget all rows."""
        self._waiting, self._waiting_rows = [], 0
        self._log.clear()

    def runs(self) -> tuple[IndexRun, ...]:
        """All runs, what waits sorted into one."""
        if self._waiting:
            waiting, self._waiting, self._waiting_rows = self._waiting, [], 0
            run = waiting[0] if len(waiting) == 1 else self._form.together(waiting)
            if len(run):
                self._log.append(run)
        return self._log.runs

    def find(self, codes: Ints, keys: Sequence[Vector]) -> Found:
        """All rows with these keys; a row asked for finds none, one or many."""
        owners, parts = [], []
        runs = self.runs() if len(codes) else ()
        # Of few runs each is asked for what it may hold, which may be far less to sort.
        ordered = when_many(codes) if len(runs) > _FEW_RUNS else None
        for run in runs:
            is_far_more = len(codes) >= max(_FEWER * len(run), MANY)
            asked = perhaps_in(whole(run.pages, run.codes), codes) if is_far_more else None
            if asked is not None or ordered is None:
                order, some = when_many(codes if asked is None else codes[asked])
            else:
                order, some = ordered
            first, last = run.slices(some)
            pairs = int((last - first).sum())
            if not pairs:
                continue
            check_size(pairs)
            positions, owner = slice_positions(first, last)
            owner = owner if order is None else order[owner]
            owner = owner if asked is None else asked[owner]
            batch = run.at(positions)
            held = [batch.columns[key] for key in self.keys]
            if not are_told_by_codes(held, keys):
                of_held = [column.take(positions) for column in held]
                same = same_keys(of_held, [key.take(owner) for key in keys])
                if same is not None and not bool(same.all()):
                    positions, owner = positions[same], owner[same]
            owners.append(owner)
            parts.append(batch.take(positions))
        if not parts:
            return Found(np.zeros(0, np.int64), empty_batch(self._accesses))
        result = stacked_batches(parts)
        reserve(result.weights.nbytes)
        return Found(np.concatenate(owners), result)

    def count(self, codes: Ints) -> Ints:
        """How many rows `find` would find for each of these codes at most; shape (n,)."""
        order, codes = when_many(codes)
        counts = np.zeros(len(codes), dtype=np.int64)
        for run in self.runs():
            first, last = run.slices(codes)
            counts += last - first
        result = np.empty_like(counts)
        result[slice(None) if order is None else order] = counts
        return result

    def codes(self) -> Ints:
        """The codes of all rows, of cancelled ones too."""
        return np.concatenate([_NONE, *(whole(run.pages, run.codes) for run in self.runs())])

    def whole(self) -> Batch:
        """All rows, each once with its sum. Cost: the rows, sorted."""
        runs = self.runs()
        return self._form.merged(runs).batch if runs else empty_batch(self._accesses)

    def leading(self, codes: Ints, keys: Sequence[Vector], window: int) -> Leading:
        """The rows of each key up to where the first `window` of every run tell what there is."""
        limits = np.full(len(codes), INT64_MAX)
        is_whole = np.ones(len(codes), dtype=np.bool_)
        ends = []
        for run in self.runs():
            low, high = run.slices(codes)
            cut = np.minimum(high, low + window)
            is_cut = cut < high
            lasts = cut[is_cut] - 1
            limits[is_cut] = np.minimum(limits[is_cut], self._form.ranks(run.at(lasts))[lasts])
            is_whole &= ~is_cut
            ends.append((run, low, cut))
        parts = []
        for run, low, cut in ends:
            check_size(int((cut - low).sum()))
            positions, owner = slice_positions(low, cut)
            batch = run.at(positions)
            # What lies beyond the limit is of no use: some of it may be missing.
            useful = self._form.ranks(batch)[positions] <= limits[owner]
            positions, owner = positions[useful], owner[useful]
            held = [batch.columns[key].take(positions) for key in self.keys]
            same = same_keys(held, [key.take(owner) for key in keys])
            if same is not None and not bool(same.all()):
                positions, owner = positions[same], owner[same]
            if len(positions):
                parts.append(IndexRun(run.sequence, owner, batch.take(positions)))
        if not parts:
            nothing = Found(np.zeros(0, np.int64), empty_batch(self._accesses))
            return Leading(nothing, limits, is_whole)
        merged = self._form.merged(parts)
        return Leading(Found(merged.codes, merged.batch), limits, is_whole)

    def as_it_stands(self) -> Self:
        """The same state, to be read while this one goes on. Cost: its runs, not their rows."""
        self.runs()
        result = copy(self)
        result._log, result._waiting = self._log.as_it_stands(), []
        return result

    def compact(self) -> None:
        """Bring all runs into one if that is likely to make the state much smaller."""
        self.runs()
        self._log.compact()

    def load(self, tables: Sequence[tuple[int, StoredTable]]) -> None:
        """Take over stored runs; they count as saved."""
        self._log.load(
            _from_arrow(sequence, table, self.columns, self._accesses) for sequence, table in tables
        )

    def load_some(self, tables: Sequence[tuple[int, StoredTable]], code: int) -> None:
        """Take over the rows of one code only, to look at: nothing may be added to them."""
        self.load([(sequence, rows_of_code(table, _CODE, code)) for sequence, table in tables])

    def changes(self) -> RunChange:
        """What changed since the last `saved`, for the checkpoint to write."""
        self.runs()
        return self._log.changes()

    def saved(self) -> None:
        """The last changes are safe now."""
        self._log.saved()


def check_size(pairs: int) -> None:
    if pairs > MOST_PAIRS:
        raise JoinTooLargeError(
            f"A change matches {pairs:,} rows in a join",
            hint="recapture with `impctl capture`, or restrict the join's condition",
        )


def _to_arrow(run: IndexRun, columns: Sequence[tuple[AttributeId, SqlType]]) -> pa.Table:
    arrays = {_CODE: pa.array(run.codes), _WEIGHT: pa.array(run.batch.weights)}
    for at, (name, _) in enumerate(columns):
        arrays[f"column{at}"] = run.batch.columns[name].to_arrow()
    for at, tag in enumerate(run.batch.tags):
        held = pa.array(tag.fragments) if isinstance(tag, RowTags) else packed(tag.sets())
        arrays[f"tag{at}"] = held
    return pa.table(arrays)


def _from_arrow(
    sequence: int,
    stored: StoredTable,
    columns: Sequence[tuple[AttributeId, SqlType]],
    accesses: int,
) -> IndexRun:
    table, pages = table_of(stored)

    def array(name: str, *plain: pa.DataType) -> pa.Array:
        column = table.column(name)
        if name in (_CODE, _WEIGHT) and column.type not in plain:
            raise TypeError(f"column `{name}` has type {column.type}")
        result = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if pages is not None and (result.type not in plain or result.null_count):
            # It is not used row by row where it lies, but read now.
            pages.check_whole(result)
        return result

    for at, (_, kind) in enumerate(columns):
        check_stored(table.column(f"column{at}").type, kind)
    vectors = {
        name: from_stored(array(f"column{at}", *_PLAIN), kind)
        for at, (name, kind) in enumerate(columns)
    }
    if table.num_columns != 2 + len(columns) + accesses:
        raise ValueError(f"its columns are {', '.join(table.column_names)}")
    tags: list[Tags] = []
    for at in range(accesses):
        held = array(f"tag{at}", pa.int32())
        tags.append(RowTags(held.to_numpy()) if pa.types.is_int32(held.type) else unpacked(held))
    weights, codes = (array(name, pa.int64()).to_numpy() for name in (_WEIGHT, _CODE))
    return IndexRun(sequence, codes, Batch(vectors, weights, tuple(tags)), pages)
