"""Rows kept by a key, as a few sorted runs: what an operator looks partners up in.

Law: the index means the sum of all rows ever added, with their weights and tags; a row and its
negative cancel when their runs are merged, and until then both are found. Adding costs the rows
added, plus merges each row takes part in a logarithmic number of times; finding costs the rows
found, plus a binary search per run. Rows are equal when all columns and all tags are.
Out of scope: what is done with the rows found (`engine.operators`), files (`store`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from impctl.aliases import AttributeId
from impctl.data.keys import group_rows, key_codes, normalise, same_keys
from impctl.data.ragged import slice_positions
from impctl.data.schema import LONG, Kind, SqlType
from impctl.data.vector import Ints, Vector, from_stored
from impctl.engine.batch import Batch, empty_batch, stacked_batches
from impctl.engine.run_log import RunChange, RunLog
from impctl.engine.tags import RowTags, SetTags, Tags
from impctl.errors import JoinTooLargeError

_CODE, _WEIGHT = "code", "weight"
_MOST_PAIRS = 100_000_000
"""Rows that one look-up may find: some gigabytes."""
_BINARY = SqlType(Kind.BINARY)


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of the index for rows asked for: `owners[i]` is the asking row of the i-th one."""

    owners: Ints
    rows: Batch


@dataclass(frozen=True, slots=True)
class _Rows:
    """One run: a batch sorted by the codes of its keys."""

    sequence: int
    codes: Ints
    batch: Batch

    def __len__(self) -> int:
        return len(self.codes)


class RowIndex:
    """Rows of `columns` by the key columns `keys`, with tags for so many accesses."""

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        keys: Sequence[AttributeId],
        accesses: int,
    ) -> None:
        self.name = name
        self.columns = tuple(columns)
        self.keys = tuple(keys)
        self._accesses = accesses
        self._log: RunLog[_Rows] = RunLog(
            lambda runs, _: self._merged(runs), lambda run: _to_arrow(run, self.columns)
        )

    @property
    def rows(self) -> int:
        """Rows over all runs, cancelled ones included."""
        return self._log.rows

    @property
    def bytes_held(self) -> int:
        return sum(int(_to_arrow(run, self.columns).nbytes) for run in self._log.runs)

    def codes_of(self, batch: Batch) -> Ints:
        """The codes of the batch's keys, as `add` and `find` want them."""
        return key_codes([normalise(batch.columns[key]) for key in self.keys], len(batch))

    def add(self, batch: Batch, codes: Ints) -> None:
        """Count the batch in."""
        if len(batch) == 0:
            return
        order = np.argsort(codes, kind="stable")
        columns = {name: batch.columns[name].take(order) for name, _ in self.columns}
        tags = tuple(_kept(tag.take(order)) for tag in batch.tags)
        held = Batch(columns, batch.weights[order], tags)
        self._log.append(_Rows(self._log.next_sequence, codes[order], held))

    def find(self, codes: Ints, keys: Sequence[Vector]) -> Found:
        """All rows with these keys; a row asked for finds none, one or many."""
        owners, parts = [], []
        for run in self._log.runs:
            first = run.codes.searchsorted(codes)
            last = run.codes.searchsorted(codes, side="right")
            _check_size(int((last - first).sum()))
            positions, owner = slice_positions(first, last)
            if not len(positions):
                continue
            held = [run.batch.columns[key].take(positions) for key in self.keys]
            same = same_keys(held, [key.take(owner) for key in keys])
            if same is not None and not bool(same.all()):
                positions, owner = positions[same], owner[same]
            owners.append(owner)
            parts.append(run.batch.take(positions))
        if not parts:
            return Found(np.zeros(0, np.int64), empty_batch(self._accesses))
        return Found(np.concatenate(owners), stacked_batches(parts))

    def between(self, low: int, high: int) -> Batch:
        """The rows with codes from `low` to `high`, both included, each once with its sum."""
        parts = []
        for run in self._log.runs:
            first = int(run.codes.searchsorted(low))
            last = int(run.codes.searchsorted(high, side="right"))
            if first < last:
                places = np.arange(first, last)
                parts.append(_Rows(run.sequence, run.codes[places], run.batch.take(places)))
        return self._merged(parts).batch if parts else empty_batch(self._accesses)

    def _merged(self, runs: Sequence[_Rows]) -> _Rows:
        """One run for all of these, rows that cancel left out."""
        codes = np.concatenate([run.codes for run in runs])
        batch = stacked_batches([run.batch for run in runs])
        tags = [_comparable(tag) for tag in batch.tags]
        columns = [_identity(batch.columns[name]) for name, _ in self.columns]
        grouping = group_rows([Vector(LONG, codes), *columns, *tags], len(batch))
        weights = np.add.reduceat(batch.weights[grouping.order], grouping.starts)
        kept = grouping.first[weights != 0]
        weights = weights[weights != 0]
        order = np.argsort(codes[kept], kind="stable")
        kept = kept[order]
        rows = batch.take(kept)
        return _Rows(runs[-1].sequence, codes[kept], Batch(rows.columns, weights[order], rows.tags))

    def compact(self) -> None:
        """Bring all runs into one if that is likely to make the state much smaller."""
        self._log.compact()

    def load(self, tables: Sequence[tuple[int, pa.Table]]) -> None:
        """Take over stored runs; they count as saved."""
        self._log.load(
            _from_arrow(sequence, table, self.columns, self._accesses) for sequence, table in tables
        )

    def changes(self) -> RunChange:
        """What changed since the last `saved`, for the checkpoint to write."""
        return self._log.changes()

    def saved(self) -> None:
        """The last changes are safe now."""
        self._log.saved()


def _check_size(pairs: int) -> None:
    if pairs > _MOST_PAIRS:
        raise JoinTooLargeError(
            f"A change has {pairs:,} partners in a join",
            hint="recapture with `impctl capture`, or give the join a narrower condition",
        )


def _kept(tag: Tags) -> Tags:
    """The tag in a form that does not refer to other state."""
    return tag if isinstance(tag, RowTags) else tag.sets()


def _identity(column: Vector) -> Vector:
    """A column in which values are equal only when the same: 0.0 does not cancel -0.0."""
    if not column.type.is_fractional:
        return column
    return Vector(LONG, column.values.view(np.int64), column.valid)


def _comparable(tag: Tags) -> Vector:
    """A column in which equal tags, and only these, are equal."""
    if isinstance(tag, RowTags):
        return Vector(SqlType(Kind.INTEGER), tag.fragments.astype(np.int64))
    return Vector(_BINARY, _packed(tag.sets()))


def _packed(tag: SetTags) -> pa.Array:
    """Each set as the bytes of its fragments."""
    start, end = int(tag.offsets[0]), int(tag.offsets[-1])
    data = np.ascontiguousarray(tag.fragments[start:end], dtype=np.int32)
    offsets = np.ascontiguousarray((tag.offsets - start) * data.itemsize)
    return pa.Array.from_buffers(
        pa.large_binary(), len(tag), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _unpacked(array: pa.Array) -> SetTags:
    _, offsets, data = array.buffers()
    size = np.dtype(np.int32).itemsize
    ends = np.frombuffer(offsets, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
    whole = np.zeros(0, np.int32)
    if data is not None and ends[-1]:
        whole = np.frombuffer(data, np.int32, count=int(ends[-1]) // size)
    return SetTags(ends // size, whole)


def _to_arrow(run: _Rows, columns: Sequence[tuple[AttributeId, SqlType]]) -> pa.Table:
    arrays = {_CODE: pa.array(run.codes), _WEIGHT: pa.array(run.batch.weights)}
    for at, (name, _) in enumerate(columns):
        arrays[f"column{at}"] = run.batch.columns[name].to_arrow()
    for at, tag in enumerate(run.batch.tags):
        packed = pa.array(tag.fragments) if isinstance(tag, RowTags) else _packed(tag.sets())
        arrays[f"tag{at}"] = packed
    return pa.table(arrays)


def _from_arrow(
    sequence: int,
    table: pa.Table,
    columns: Sequence[tuple[AttributeId, SqlType]],
    accesses: int,
) -> _Rows:
    def array(name: str) -> pa.Array:
        column = table.column(name)
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    vectors = {
        name: from_stored(array(f"column{at}"), kind) for at, (name, kind) in enumerate(columns)
    }
    tags: list[Tags] = []
    for at in range(accesses):
        held = array(f"tag{at}")
        tags.append(RowTags(held.to_numpy()) if pa.types.is_int32(held.type) else _unpacked(held))
    weights, codes = array(_WEIGHT).to_numpy(), array(_CODE).to_numpy()
    return _Rows(sequence, codes, Batch(vectors, weights, tuple(tags)))
