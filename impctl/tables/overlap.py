"""How far the files of a table overlap on a column: each value in one file, or in all of them.

Law: from statistics alone, values taken as evenly spread between a file's bounds; a file without
statistics overlaps all. Cost: one sort of the files.
Out of scope: how rows are spread over values (`tables.value_weights`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from impctl.tables.bounds import ColumnBounds
from impctl.tables.density import line_of
from impctl.tables.snapshot import Snapshot
from impctl.tables.statistics import file_bounds
from impctl.types import ColumnName


def overlap(snapshot: Snapshot, column: ColumnName) -> float:
    """The share of the files that may hold a value, on average over the files' values."""
    bounds = file_bounds(snapshot, column)
    return mean_overlap(bounds) / max(len(bounds), 1)


def mean_overlap(bounds: ColumnBounds) -> float:
    """How many of these files may hold a value, on average: 1 where each is in one file only."""
    line = line_of(bounds)
    if line is None:
        return float(len(bounds))
    lows, ends = line.spans(bounds.filled)
    # How many files lie over each piece of the line, and what that adds up to from the left.
    edges, at = np.unique(np.concatenate([lows, ends]), return_inverse=True)
    steps = np.zeros(len(edges))
    np.add.at(steps, at[: len(lows)], 1.0)
    np.add.at(steps, at[len(lows) :], -1.0)
    files_over = np.cumsum(steps)[:-1]
    summed = np.concatenate([[0.0], np.cumsum(files_over * np.diff(edges))])
    covered = summed[at[len(lows) :]] - summed[at[: len(lows)]]
    return float((covered / (ends - lows)).mean())


def is_sorted(snapshot: Snapshot, column: ColumnName) -> bool:
    """Whether each file begins where the one before it ends, or later; NULL lies anywhere."""
    bounds = file_bounds(snapshot, column).filled
    if not bounds.is_known or bool(bounds.may_be_nan.any()):
        return False
    spans = sorted(zip(bounds.lows.tolist(), bounds.highs.tolist(), strict=True))
    return all(before[1] <= after[0] for before, after in pairwise(spans))


def clustered_columns(
    snapshot: Snapshot, columns: Sequence[ColumnName], most: float
) -> list[ColumnName]:
    """Those of the columns by which files overlap at most so much, the best first."""
    result = [(overlap(snapshot, name), name) for name in columns]
    return [name for share, name in sorted(result, key=lambda pair: pair[0]) if share <= most]
