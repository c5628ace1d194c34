"""Whether a captured sketch lets anything be skipped, and what would help.

Law: only what the snapshot's own statistics say; nothing is read, nothing refused. A sketch that
holds nearly everything saves nothing; one of few ranges saves reading only where rows of a range
lie together, in few files. Clustering is advised only where `cluster` would do it.
Out of scope: what is skipped by the sketch as it stands (`app.preparing.filters`).
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from impctl.app.capturing.cluster_forecast import ClusterForecast, ClusterForecasts
from impctl.app.results.clustered import ClusteredSketch
from impctl.app.workbench.pinned import PinnedTables
from impctl.errors import count_text
from impctl.sketch.partition import BoundaryValue, RangePartition
from impctl.sketch.sketch import exact_filter
from impctl.store.records import StoredSketch
from impctl.tables.prune import prune
from impctl.tables.snapshot import Snapshot
from impctl.tables.statistics import file_bounds
from impctl.types import QueryName
from impctl.values import dataclass

_USEFUL_SHARE = 0.75
"""Beyond this share, of ranges held or of files left to read, a sketch is not worth using."""

_SPREAD = 0.5
"""A table whose files each span more of the ranges than this is not clustered by them; beside it
each file of a sorted table spans its own part."""

_SMALL, _MANY_SMALL = 0.001, 10
"""A file is small with less than this share of the rows; so many are worth a word."""

_ROWS = 100_000
"""A smaller table is read in no time, however it lies."""


_EVERY_ROW = (
    "every row counts for this query, so no sketch can skip any; `answer: true` "
    "materializes its result"
)
"""What to do where nothing can be skipped."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What keeps a sketch from leaving files out, and what would help."""

    message: str
    fix: str


def warnings_of(
    tables: PinnedTables,
    forecasts: ClusterForecasts,
    query: QueryName,
    sketches: Sequence[StoredSketch],
    *,
    counts_every_row: bool = False,
) -> list[str]:
    """A warning for every sketch that lets next to nothing be skipped; one that cannot, since the
    query `counts_every_row`, is told so."""
    result = advice_of(tables, forecasts, query, sketches)
    if counts_every_row:
        result = [replace(advice, fix=_EVERY_ROW) for advice in result]
    return [f"{advice.message}; {advice.fix}" for advice in result]


def advice_of(
    tables: PinnedTables,
    forecasts: ClusterForecasts,
    query: QueryName,
    sketches: Sequence[StoredSketch],
) -> list[Advice]:
    """What to say of each sketch that lets next to nothing be skipped, and of small files."""
    result = [_advice(tables, forecasts, query, sketch) for sketch in sketches]
    return list(dict.fromkeys(advice for advice in result if advice is not None))


def _advice(
    tables: PinnedTables, forecasts: ClusterForecasts, query: QueryName, sketch: StoredSketch
) -> Advice | None:
    ranges = sketch.partition.ranges
    held = sum(fragment < ranges for fragment in sketch.fragments.ids)
    name = f"the sketch of query `{query}` on `{sketch.table}.{sketch.attribute}`"
    if held > _USEFUL_SHARE * ranges:
        message = f"{name} covers {held} of {count_text(ranges, 'range')} and skips almost nothing"
        return Advice(message, "use more ranges or another attribute")
    snapshot = tables.snapshot(sketch.table)
    span, files = _span(snapshot, sketch), len(snapshot.files)
    if span is not None:
        return Advice(
            f"{name} skips almost no files: a typical file of the table spans {span:.0%} of "
            "the ranges",
            _order_fix(forecasts, query, sketch, snapshot.bytes),
        )
    small = _small_and_wide(snapshot, sketch)
    if small < _MANY_SMALL or small * 2 < files:
        return None
    return Advice(
        f"{name} skips none of the {small} small files (of {files}): each spans most of "
        "the ranges, which is usual after many small commits",
        f"{_who_joins_files(forecasts.of(sketch.table))} would merge them",
    )


def _order_fix(
    forecasts: ClusterForecasts, query: QueryName, sketch: StoredSketch, total: int
) -> str:
    """What an order of the files would do for the sketch: told only where it is worth it."""
    forecast = forecasts.of(sketch.table)
    if forecast is None:
        return "use another attribute"
    by = ", ".join(f"`{name}`" for name in forecast.columns)
    expected = None if forecast.obstacle else _helped(forecast, query, sketch)
    if expected is not None:
        return (
            f"`impctl cluster` would order the table's files by {by} and leave about "
            f"{expected.bytes_expected / max(total, 1):.1%} of them to read"
        )
    alone = forecasts.alone(query, sketch)
    if alone is not None:
        return (
            "one order for all sketches of the table does not help; `impctl cluster "
            f"--table {sketch.table} --by {sketch.attribute}` helps this one and would "
            f"leave about {alone.bytes_expected / max(total, 1):.1%} to read"
        )
    if forecast.obstacle:
        return f"clustering the table would not help: {forecast.obstacle}"
    return (
        f"use another attribute: the order that helps other sketches, by {by}, does not "
        "help this one"
    )


def _helped(
    forecast: ClusterForecast, query: QueryName, sketch: StoredSketch
) -> ClusteredSketch | None:
    """What is expected of the sketch, where that is less than it leaves now."""
    wanted = (query, sketch.attribute)
    return next(
        (
            one
            for one in forecast.sketches
            if (one.query, one.attribute) == wanted and one.bytes_expected < one.bytes
        ),
        None,
    )


def _who_joins_files(forecast: ClusterForecast | None) -> str:
    return "OPTIMIZE" if forecast is None or forecast.obstacle else "`impctl cluster` or OPTIMIZE"


def _small_and_wide(snapshot: Snapshot, sketch: StoredSketch) -> int:
    """Files of few rows that span most of the ranges."""
    partition, few = sketch.partition, (snapshot.rows or 0) * _SMALL
    return sum(
        bounds.rows is not None
        and bounds.rows < few
        and bounds.minimum is not None
        and bounds.maximum is not None
        and _spanned(bounds.minimum, bounds.maximum, partition) > _SPREAD * partition.ranges
        for bounds in file_bounds(snapshot, partition.attribute)
    )


def _span(snapshot: Snapshot, sketch: StoredSketch) -> float | None:
    """The share of the ranges that the file in the middle spans, where that keeps files from being
    left out; None where files are left out, or where sorting the table would not help."""
    files, partition = snapshot.files, sketch.partition
    is_small = snapshot.rows is not None and snapshot.rows < _ROWS
    kept = prune(snapshot, [exact_filter(sketch.fragments, partition)])
    if is_small or len(kept) <= _USEFUL_SHARE * len(files):
        return None
    shares = [
        _spanned(bounds.minimum, bounds.maximum, partition) / partition.ranges
        for bounds in file_bounds(snapshot, partition.attribute)
        if bounds.minimum is not None and bounds.maximum is not None
    ]
    share = statistics.median(shares) if shares else 0.0
    return share if share > _SPREAD + 1 / len(files) else None


def _spanned(low: BoundaryValue, high: BoundaryValue, partition: RangePartition) -> int:
    """Ranges that values from `low` to `high` fall into."""
    first, last = (bisect_right(partition.boundaries, value) for value in (low, high))
    return last - first + 1
