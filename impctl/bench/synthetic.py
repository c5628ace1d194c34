"""The synthetic table of the benchmarks: a key, a group column, nine columns that follow it.

`id` is unique, `a` uniform over the groups 0, 1, ..., and each of `b` to `j` is linear in `a` plus
Gaussian noise, so that it is correlated with `a` but not determined by it.

Law: equal arguments give equal rows, whatever the batch size; memory is bounded by one batch and
one count per group. `id` tells nothing about `a`, also where rows are sorted by `a`.
Out of scope: writing the table (`tables`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from impctl.errors import UsageError

MEASURES = ("b", "c", "d", "e", "f", "g", "h", "i", "j")

SYNTHETIC_SCHEMA = pa.schema(
    [pa.field("id", pa.int64()), pa.field("a", pa.int64())]
    + [pa.field(name, pa.float64()) for name in MEASURES]
)

_SLOPES = (1.0, 1.0, 1.2, 0.5, 0.8, 1.5, 2.0, 2.5, 3.0)
_MAX_ROWS = 2**31
"""Beyond this the product that scatters ids would leave 64 bits."""

Integers = npt.NDArray[np.int64]


def synthetic_batches(
    rows: int,
    groups: int,
    seed: int,
    *,
    sorted_by_a: bool = False,
    noise: float = 0.05,
    batch_rows: int = 500_000,
) -> Iterator[pa.RecordBatch]:
    """The rows of the table in batches; `noise` is the standard deviation over the range of `a`."""
    _check(rows, groups, noise)
    if batch_rows < 1:
        raise UsageError("A batch needs at least one row", hint="give a larger batch size")
    return _batches(rows, groups, seed, sorted_by_a, noise, batch_rows)


def _batches(
    rows: int, groups: int, seed: int, sorted_by_a: bool, noise: float, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    group_stream, *noise_streams = _streams(seed)
    step = _coprime_step(rows)
    ends: Integers | None = None
    if sorted_by_a:
        # The counts of a uniform column have exactly this distribution; no column is sorted.
        ends = np.cumsum(group_stream.multinomial(rows, np.full(groups, 1 / groups)))
    # One round per batch, rows / batch_rows of them.
    for start in range(0, rows, batch_rows):
        stop = min(start + batch_rows, rows)
        positions = np.arange(start, stop, dtype=np.int64)
        if ends is None:
            ids = positions
            a = group_stream.integers(0, groups, size=stop - start, dtype=np.int64)
        else:
            ids = positions * step % rows
            a = np.searchsorted(ends, positions, side="right").astype(np.int64)
        yield _batch(ids, a, noise * groups, noise_streams)


def _batch(
    ids: Integers, a: Integers, deviation: float, streams: Sequence[np.random.Generator]
) -> pa.RecordBatch:
    measures = []
    for slope, stream in zip(_SLOPES, streams, strict=True):
        values = stream.standard_normal(len(a))
        values *= deviation
        values += slope * a
        measures.append(pa.array(values))
    return pa.RecordBatch.from_arrays(
        [pa.array(ids), pa.array(a), *measures], schema=SYNTHETIC_SCHEMA
    )


def _streams(seed: int) -> list[np.random.Generator]:
    """A stream per column, so that the size of a batch does not shift the others."""
    # The key stays: without it every published seed would name another table.
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(0,))
    return [np.random.default_rng(child) for child in sequence.spawn(1 + len(MEASURES))]


def _coprime_step(rows: int) -> int:
    """A step that visits every id below `rows` once, far from the one before."""
    step = max(1, int(rows * 0.6180339887))
    while math.gcd(step, max(rows, 1)) != 1:
        step += 1
    return step


def _check(rows: int, groups: int, noise: float) -> None:
    if not 0 <= rows < _MAX_ROWS:
        raise UsageError(
            f"A synthetic table must have 0 to {_MAX_ROWS - 1} rows, not {rows}",
            hint="give another number of rows",
        )
    if groups < 1:
        raise UsageError(
            f"A synthetic table must have at least one group, not {groups}",
            hint="give another number of groups",
        )
    if not 0 <= noise < math.inf:
        raise UsageError("The noise must be zero or a positive number", hint="0.05 is usual")
