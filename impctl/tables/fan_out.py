"""Fan-outs: how many rows of one table have the key of a row of another, in the mean.

Law: over all keys k, with r_k rows that change and s_k others, a changed row meets sum r_k * s_k /
sum r_k others: exactly, where all keys are counted, but that a collision of codes takes two keys
for one. Where there is a condition on a table's rows only those are counted that may meet it, as
the engine would let them pass. In a sample, keys are chosen by a hash of their own, the same in
every table, so a chosen key's rows are there on both sides and the estimate is unbiased. NULL meets
nothing unless the column is null-safe. Reads the columns of the key and of the condition alone, in
batches, in one pass; keeps one number per different key.
Out of scope: what is made of fan-outs (`compile.jointree.cost`), which conditions are counted
(`compile.jointree.cost`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from impctl.data.keys import ascending, key_codes, starts_in
from impctl.data.vector import Bools, Ints, Vector, from_arrow
from impctl.expr.evaluate import Condition
from impctl.expr.nodes import ColumnRef, Expr, walk
from impctl.tables.rows import read_batches
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.data.schema import SqlType
    from impctl.tables.snapshot import DataFile, Snapshot
    from impctl.types import ColumnName

MANY_ROWS = 4_000_000
"""Rows of a table from which on a sample of keys is counted."""
ONE_IN = 16
"""One key of so many is in a sample."""
_LARGE, _LEFT_OUT = 100_000, 0.01
"""Rows of a table of which files are left out, and the most of them that these may hold."""
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """The columns of a key, with their types and where NULL equals NULL.

    With `counted`, more columns, different combinations of these count once per key: tuples. None
    counts rows. With `where`, whose columns go by their names in the table, only rows count that
    may meet it.
    """

    key: tuple[tuple[ColumnName, SqlType], ...]
    null_safe: tuple[bool, ...]
    counted: tuple[tuple[ColumnName, SqlType], ...] | None = None
    where: Expr | None = None

    @property
    def names(self) -> tuple[ColumnName, ...]:
        """The columns to read."""
        every = (*self.key, *(self.counted or ()), *_read_by(self.where))
        return tuple(dict.fromkeys(name for name, _ in every))


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """How often keys occur: `codes` ascend, shape (keys,), `counts` beside them.

    Of the keys one in `one_in` is there; `rows` are all that meet the condition, whatever their
    key, of the table's `read`.
    """

    rows: int
    codes: Ints
    counts: Ints
    read: int
    one_in: int = 1

    @property
    def share(self) -> float:
        """How many of the table's rows meet the condition; all of an empty table's."""
        return self.rows / self.read if self.read else 1.0

    @property
    def keys(self) -> int:
        """Different keys, those that were not chosen too."""
        return len(self.codes) * self.one_in

    @property
    def together(self) -> int:
        """The counts of all keys, those that were not chosen too: rows with a key, or tuples."""
        return int(self.counts.sum()) * self.one_in


def one_in(*rows: int) -> int:
    """One key of how many is counted, for tables of so many rows that are compared."""
    return ONE_IN if max(rows, default=0) > MANY_ROWS else 1


def fan_out(changed: KeyCounts, other: KeyCounts) -> float:
    """What a changed row that counts meets on the other side, in the mean; 0 where none can change.

    Both are counted with one `one_in`.
    """
    assert changed.one_in == other.one_in, "samples of the same keys"
    if not changed.rows:
        return 0.0
    _, mine, theirs = np.intersect1d(
        changed.codes, other.codes, assume_unique=True, return_indices=True
    )
    # The products may be beyond 64 bits together: an estimate may as well be a double.
    met = changed.counts[mine].astype(np.float64) @ other.counts[theirs].astype(np.float64)
    return float(met) * changed.one_in / changed.rows


def key_counts(snapshot: Snapshot, columns: KeyColumns, one_in: int = 1) -> KeyCounts:
    """The counts of a table's keys at a version; errors as of `tables.rows.read_batches`, and
    EvaluationError where the condition fails on a row."""
    return counted(read_batches(snapshot, columns.names, _telling(snapshot)), columns, one_in)


def _telling(snapshot: Snapshot) -> Sequence[DataFile]:
    """The files to count: of a large table not the smallest, which take longer to open than to
    read, and together hold hardly any of its rows."""
    files = sorted(snapshot.files, key=lambda file: file.rows or 0, reverse=True)
    if snapshot.likely_rows < _LARGE or any(file.rows is None for file in files):
        return snapshot.files
    ends = np.cumsum([file.rows for file in files])
    return files[: 1 + int(np.searchsorted(ends, (1.0 - _LEFT_OUT) * float(ends[-1])))]


def counted(batches: Iterable[pa.Table], columns: KeyColumns, one_in: int = 1) -> KeyCounts:
    """The counts of the keys in all batches, which have the columns by name."""
    rows = read = 0
    result: list[tuple[Ints, Ints]] = []
    for whole in batches:
        read += len(whole)
        batch = _meeting(whole, columns.where)
        rows += len(batch)
        codes, keeps = _codes(batch, columns.key, columns.null_safe)
        chosen = np.flatnonzero(keeps & _is_chosen(codes, one_in))
        keys, counts = codes[chosen], np.ones(len(chosen), dtype=np.int64)
        if columns.counted is not None:
            every = (*columns.key, *columns.counted)
            some = batch if len(chosen) == len(batch) else batch.take(pa.array(chosen))
            counts, _ = _codes(some, every, (True,) * len(every))
        result.append(_united(keys, counts, are_tuples=columns.counted is not None))
    if not result:
        nothing = np.zeros(0, dtype=np.int64)
        return KeyCounts(0, nothing, nothing, 0, one_in)
    keys, counts = (np.concatenate(parts) for parts in zip(*result, strict=True))
    keys, counts = _united(keys, counts, are_tuples=columns.counted is not None)
    if columns.counted is not None:
        keys, counts = _united(keys, np.ones(len(keys), dtype=np.int64), are_tuples=False)
    return KeyCounts(rows, keys, counts, read, one_in)


def _meeting(batch: pa.Table, where: Expr | None) -> pa.Table:
    """The rows that may meet the condition."""
    if where is None:
        return batch
    columns = {name: from_arrow(batch.column(name), kind) for name, kind in _read_by(where)}
    return batch.filter(pa.array(Condition(where).truth(columns, len(batch)).may_true))


def _read_by(where: Expr | None) -> Sequence[tuple[ColumnName, SqlType]]:
    """The columns that a condition reads."""
    parts = () if where is None else walk(where)
    return [(part.id, part.type) for part in parts if isinstance(part, ColumnRef)]


def _codes(
    batch: pa.Table, columns: Sequence[tuple[ColumnName, SqlType]], null_safe: Sequence[bool]
) -> tuple[Ints, Bools]:
    """One code per row, and whether the key can meet another."""
    keeps = np.ones(len(batch), dtype=bool)
    vectors: list[Vector] = []
    for (name, kind), is_safe in zip(columns, null_safe, strict=True):
        vector = from_arrow(batch.column(name), kind)
        if not is_safe:
            keeps &= vector.validity()
        vectors.append(vector)
    return key_codes(vectors, len(batch)), keeps


def _is_chosen(codes: Ints, one_in: int) -> Bools:
    """Whether the key is in the sample; its own code need not be spread, as whole numbers are."""
    if one_in == 1:
        return np.ones(len(codes), dtype=bool)
    words = codes.view(np.uint64)
    # The upper bits of a product depend on all lower ones; what is above these is brought down.
    spread = ((words ^ (words >> np.uint64(29))) * _SPREAD) >> np.uint64(32)
    chosen: Bools = spread % np.uint64(one_in) == 0
    return chosen


def thinned(every: KeyCounts, one_in: int) -> KeyCounts:
    """What a sample of one key in so many would have counted, of the counts of all keys."""
    assert every.one_in == 1, "all keys are there"
    chosen = np.flatnonzero(_is_chosen(every.codes, one_in))
    return replace(every, codes=every.codes[chosen], counts=every.counts[chosen], one_in=one_in)


def _united(keys: Ints, counts: Ints, *, are_tuples: bool) -> tuple[Ints, Ints]:
    """The counts of equal keys added up; of tuples, whose codes these are, each pair once.

    A tuple's code is made of its key too, so that of one code there is one key.
    """
    order = ascending(counts if are_tuples else keys)
    keys, counts = keys[order], counts[order]
    if are_tuples:
        is_first = starts_in(counts)
        return keys[is_first], counts[is_first]
    starts = np.flatnonzero(starts_in(keys))
    return keys[starts], np.add.reduceat(counts, starts) if len(starts) else counts
