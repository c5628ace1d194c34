"""Whether ranges still hold about as many rows as each other, told from the counts that are kept.

Law: the imbalance of a partition is the rows of its largest range over the mean per range, NULL's
fragment left out, since nothing can split it. Ranges have drifted when that is several times what
it was when they were chosen, so a value too heavy for any range is not reported for ever. Drift
costs speed only: a sketch over unbalanced ranges is as right as any.
Out of scope: counting (`compile.fill`), mending (`app.rebalance`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from impctl.app.capturing.range_depth import RangeDepth
from impctl.app.results.results import RangesEntry
from impctl.app.workbench.settings import imbalance_of
from impctl.app.workbench.workbench import Workbench
from impctl.store.records import StoredQuery
from impctl.types import ColumnName, TableName

if TYPE_CHECKING:
    # The engine takes longer to load than a run with nothing to do may last.
    from impctl.compile.fill import RangeRows

REBALANCE_HINT = "run `impctl capture --rebalance`"


def depths(counted: RangeRows, before: Sequence[RangeDepth] = ()) -> list[RangeDepth]:
    """What is kept of the counts; without `before` the ranges were chosen just now."""
    chosen = {(depth.table, depth.attribute): depth.at_capture for depth in before}
    result = []
    for partition in counted.partitions:
        table, attribute = partition.table, partition.attribute
        ranges = counted.counts(partition)[:-1]
        total, largest = int(ranges.sum()), int(ranges.max())
        depth = RangeDepth(table, attribute, len(ranges), total, largest, 0.0)
        at_capture = chosen.get((table, attribute), imbalance(depth))
        result.append(replace(depth, at_capture=at_capture))
    return result


def imbalance(depth: RangeDepth) -> float:
    """Largest range over mean range; 0 for a table without rows."""
    return depth.largest * depth.ranges / depth.rows if depth.rows else 0.0


def has_drifted(depth: RangeDepth, threshold: float) -> bool:
    """Whether the imbalance is more than `threshold` times what it was at the choice.

    Ranges chosen over an empty table are one range, which holds everything from then on.
    """
    if depth.at_capture == 0 and depth.ranges == 1:
        return depth.rows > 0
    return imbalance(depth) > threshold * max(depth.at_capture, 1.0)


def ranges_entries(desk: Workbench, stored: StoredQuery) -> tuple[RangesEntry, ...]:
    """What results say of the ranges of a query; empty where they are not counted."""
    threshold = imbalance_of(desk.settings)
    entries = []
    for kept in stored.state_meta.get("depths", ()):
        depth = RangeDepth(**kept)
        drifted = has_drifted(depth, threshold)
        hint = None
        if drifted:
            is_fixed = has_own_boundaries(desk, depth.table, depth.attribute)
            hint = _own_hint(depth) if is_fixed else REBALANCE_HINT
        entries.append(
            RangesEntry(
                table=depth.table,
                attribute=depth.attribute,
                ranges=depth.ranges,
                rows=depth.rows,
                largest=depth.largest,
                imbalance=imbalance(depth),
                at_capture=depth.at_capture,
                drifted=drifted,
                hint=hint,
            )
        )
    return tuple(entries)


def ranges_entry(
    desk: Workbench, stored: StoredQuery, table: TableName, attribute: ColumnName
) -> RangesEntry | None:
    """The same for the ranges of one sketch."""
    result = ranges_entries(desk, stored)
    return next((e for e in result if (e.table, e.attribute) == (table, attribute)), None)


def has_own_boundaries(desk: Workbench, table: TableName, attribute: ColumnName) -> bool:
    """Whether the workload file gives the boundaries, which then are the user's to change."""
    return any(
        part.table == table
        and part.column.lower() == attribute.lower()
        and part.boundaries is not None
        for part in desk.workload.partitions
    )


def _own_hint(depth: RangeDepth) -> str:
    return (
        f"the workload file sets the `boundaries` of `{depth.table}.{depth.attribute}`; "
        "change them there and capture again"
    )
