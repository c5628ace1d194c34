"""Which fragments of a partition each file may hold, as arrays over files.

Law: a file's rows lie in the fragments from `first` to `last`, or in that of NULL where `may_null`;
statistics that are not known span everything.
Out of scope: which files a sketch leaves (`tables.prune`), which is decided by values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from impctl.data.vector import Ints
from impctl.sketch.likelihood import Mixture
from impctl.sketch.partition import RangePartition
from impctl.tables.bounds import ColumnBounds, places_in
from impctl.tables.density import Density, line_of
from impctl.tables.snapshot import DataFile
from impctl.values import dataclass

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class FileSpans:
    """Files against the fragments of one partition; all arrays of shape (files,)."""

    first: Ints
    last: Ints
    """Less than `first` for a file of NULLs only."""
    may_null: npt.NDArray[np.bool_]
    ranges: int

    def merged(self, together: int) -> FileSpans:
        """The same over fewer ranges, each of so many beside each other; NULL is not merged."""
        first, last = self.first // together, self.last // together
        is_null = self.last < self.first
        last = np.where(is_null, first - 1, last)
        return FileSpans(first, last, self.may_null, -(-self.ranges // together))

    def left(self, mixture: Mixture) -> Floats:
        """Chance that each file is left: by each way that its fragments may be; shape (files,)."""
        result = self._mean(mixture.weights) * self.chances(mixture.chances)
        return np.asarray(np.clip(result.sum(axis=0), 0.0, 1.0))

    def _mean(self, of_fragments: Floats) -> Floats:
        """Mean over the fragments of each file; that of NULL where it has no other."""
        total, end = _summed(of_fragments), np.maximum(self.last + 1, self.first)
        count = end - self.first
        result = (total[..., end] - total[..., self.first]) / np.maximum(count, 1)
        return np.where(count > 0, result, of_fragments[..., self.ranges, None])

    def chances(self, of_fragments: Floats) -> Floats:
        """Chance that each file is left, fragments taken as independent; fragments, then files,
        are the last dimension."""
        chances = of_fragments[..., : self.ranges]
        is_sure = chances >= 1.0
        sure, total = _summed(is_sure), _summed(np.log1p(-np.where(is_sure, 0.0, chances)))
        end = np.maximum(self.last + 1, self.first)
        none = np.exp(total[..., end] - total[..., self.first])
        none = np.where(sure[..., end] > sure[..., self.first], 0.0, none)
        of_null = of_fragments[..., self.ranges, None]
        none = np.where(self.may_null, none * (1.0 - of_null), none)
        return np.asarray(np.clip(1.0 - none, 0.0, 1.0))


def _summed(values: Floats | npt.NDArray[np.bool_]) -> Floats:
    """Sums of all before each, along the last dimension."""
    zero = np.zeros((*values.shape[:-1], 1))
    return np.concatenate([zero, np.cumsum(values, axis=-1)], axis=-1)


def rows_by_fragment(
    partition: RangePartition, files: Sequence[DataFile], bounds: ColumnBounds
) -> Floats:
    """Rows of each fragment, those of a file spread evenly between its bounds; shape (size,).

    Nobody tells how many are NULL: that fragment counts those of files of nothing else.
    """
    rows = np.array([file.rows or 1 for file in files], dtype=np.float64)
    is_null = bounds.is_all_null
    line, total = line_of(bounds), float(rows[~is_null].sum())
    if line is None:
        even = np.full(partition.ranges, total / partition.ranges)
    else:
        spread = Density.of(*line.spans(bounds.filled), rows[~is_null])
        before = spread.before(line.places(partition.boundaries))
        even = np.diff(np.concatenate([[0.0], np.clip(before, 0.0, total), [total]]))
    return np.append(np.maximum(even, 0.0), float(rows[is_null].sum()))


def file_spans(partition: RangePartition, bounds: ColumnBounds) -> FileSpans:
    """The spans of files, from their bounds on the partition's attribute."""
    boundaries, end = partition.boundaries, partition.ranges - 1
    first = np.where(bounds.has_low, places_in(boundaries, bounds.lows, "right"), 0)
    is_bounded = bounds.has_high & ~bounds.may_be_nan
    last = np.where(is_bounded, places_in(boundaries, bounds.highs, "right"), end)
    last = np.where(bounds.is_all_null, first - 1, last)
    return FileSpans(first, last, bounds.may_hold_null, partition.ranges)
