"""Whether a captured sketch lets anything be skipped, told as warnings.

Law: only what the snapshot's own statistics say; nothing is read, nothing refused. A sketch that
holds nearly everything saves nothing; one of few ranges saves reading only where rows of a range
lie together, in few files.
Out of scope: what is skipped by the sketch as it stands (`app.filters`).
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Sequence

from impctl.app.workbench import Workbench
from impctl.sketch.partition import BoundaryValue, RangePartition
from impctl.store.records import StoredSketch
from impctl.tables.snapshot import Snapshot
from impctl.tables.statistics import file_bounds
from impctl.workload.models import QuerySpec

_USEFUL_SHARE = 0.75
"""Beyond this share of the ranges a sketch is not worth using."""

_SPREAD = 0.5
"""A table whose files each span more of the ranges than this is not clustered by them."""

_ROWS = 100_000
"""A smaller table is read in no time, however it lies."""


def warnings_of(bench: Workbench, spec: QuerySpec, sketches: Sequence[StoredSketch]) -> list[str]:
    """A warning for every sketch that lets next to nothing be skipped."""
    found = []
    for sketch in sketches:
        held, ranges = len(sketch.fragments), sketch.partition.ranges
        name = f"the sketch of query `{spec.name}` on `{sketch.table}.{sketch.attribute}`"
        if held > _USEFUL_SHARE * ranges:
            found.append(
                f"{name} holds {held} of {ranges} ranges and saves next to nothing; "
                "try more ranges or another attribute"
            )
            continue
        share = _spread(bench.snapshot(sketch.table), sketch.partition)
        if share > _SPREAD:
            found.append(
                f"{name} can hardly leave out a file, because a file of the table holds rows of "
                f"{share:.0%} of the ranges; write the table sorted by `{sketch.attribute}`, "
                f"or run OPTIMIZE with ZORDER BY (`{sketch.attribute}`)"
            )
    return found


def _spread(snapshot: Snapshot, partition: RangePartition) -> float:
    """The share of the ranges between least and greatest value, of the file in the middle.

    0 for a table that is small, of one file, or without statistics for the attribute.
    """
    if len(snapshot.files) < 2 or (snapshot.rows or 0) < _ROWS:
        return 0.0
    shares = [
        _spanned(bounds.minimum, bounds.maximum, partition) / partition.ranges
        for bounds in file_bounds(snapshot, partition.attribute)
        if bounds.minimum is not None and bounds.maximum is not None
    ]
    return statistics.median(shares) if shares else 0.0


def _spanned(low: BoundaryValue, high: BoundaryValue, partition: RangePartition) -> int:
    """Ranges that values from `low` to `high` fall into."""
    first, last = (bisect_right(partition.boundaries, value) for value in (low, high))
    return last - first + 1
