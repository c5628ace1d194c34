"""New ranges for an attribute whose ranges no longer hold about as many rows as each other.

Law: boundaries stay strictly increasing; every range that is neither heavy nor among the lightest
neighbours keeps its boundaries. A range is heavy with more than `HEAVY` times its share of rows;
heavy ones are split at values of a sample, then the lightest neighbours are merged until there are
no more ranges than asked for. A range of a single value cannot be split. How good the sample is
decides balance only, never soundness (Liu et al., EDBT 2026, section 7.4).
Out of scope: reading samples (`tables.sample`), what becomes of sketches (`sketch.renumbering`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from impctl.data.vector import Ints
from impctl.sketch.equidepth import equidepth_boundaries
from impctl.sketch.partition import BoundaryValue, RangePartition
from impctl.sketch.renumbering import Renumbering

HEAVY = 2
"""Sampled boundaries alone make ranges up to about half as large again as their share."""


def heavy_ranges(rows: Ints, wanted: int) -> Ints:
    """Ids of the ranges to split; `rows` per range, shape (ranges,), `wanted` ranges in all."""
    return np.flatnonzero(rows * wanted > HEAVY * rows.sum())


def evened(
    partition: RangePartition, counts: Ints, wanted: int, sample: Sequence[BoundaryValue]
) -> RangePartition:
    """The partition with heavy ranges split and light ones merged; as it is where the largest range
    would come out larger, as it may where fewer ranges are wanted than there are.

    `counts` has shape (fragments,); `sample` are values in the heavy ranges.
    """
    finer = with_splits(partition, counts[:-1], wanted, sample)
    new = merged_to(finer, estimated_rows(partition, finer, counts, sample)[:-1], wanted)
    largest = int(estimated_rows(partition, new, counts, sample)[:-1].max())
    return partition if largest > int(counts[:-1].max()) else new


def with_splits(
    partition: RangePartition, rows: Ints, wanted: int, sample: Sequence[BoundaryValue]
) -> RangePartition:
    """The partition with its heavy ranges split; `sample` are values in those, in any order."""
    by_range: dict[int, list[BoundaryValue]] = {}
    for value in sample:
        by_range.setdefault(bisect_right(partition.boundaries, value), []).append(value)
    cuts: list[BoundaryValue] = []
    for fragment in heavy_ranges(rows, wanted).tolist():
        inside = by_range.get(fragment, [])
        pieces = max(2, round(int(rows[fragment]) * wanted / int(rows.sum())))
        cuts += equidepth_boundaries(inside, pieces)
    return replace(partition, boundaries=tuple(sorted({*partition.boundaries, *cuts})))


def estimated_rows(
    partition: RangePartition,
    finer: RangePartition,
    counts: Ints,
    sample: Sequence[BoundaryValue],
) -> Ints:
    """Rows per fragment of `finer`; those of a split range by the parts' shares of the sample.

    `counts` are those of `partition`; both of shape (fragments,).
    """
    renumbering = Renumbering(partition, finer)
    result = renumbering.carried(counts)
    drawn = np.zeros(finer.size, dtype=np.int64)
    for value in sample:
        drawn[bisect_right(finer.boundaries, value)] += 1
    for fragment in np.flatnonzero(renumbering.targets < 0).tolist():
        parts = slice(int(renumbering.first[fragment]), int(renumbering.last[fragment]) + 1)
        shares = drawn[parts] / max(int(drawn[parts].sum()), 1)
        result[parts] += (shares * int(counts[fragment])).astype(np.int64)
    return result


def merged_to(partition: RangePartition, rows: Ints, wanted: int) -> RangePartition:
    """The partition with the lightest neighbours merged until `wanted` ranges are left."""
    counts = rows.astype(np.int64)
    kept = np.arange(len(partition.boundaries))
    while len(counts) > max(wanted, 1):
        at = int(np.argmin(counts[:-1] + counts[1:]))
        counts[at] += counts[at + 1]
        counts, kept = np.delete(counts, at + 1), np.delete(kept, at)
    return replace(partition, boundaries=tuple(partition.boundaries[at] for at in kept.tolist()))
