"""What work on state takes before anything was measured, and where each number is from.

Measured (M) with 14 queries of TPC-H at scale 1 on 2 cores; a range is taken at its dearer end
where it is what a piece costs that is not kept, in the middle else, so that what is not kept has to
earn it. Law: nanoseconds per row or key, milliseconds per piece; used only until a query's own
lines are known. Off by 2 to 3 times in the median, up to 30 at worst (M).
Out of scope: learning (the cost model of recorded runs).
"""

from __future__ import annotations

from impctl.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Priors:
    """Times of steps and reads."""

    read_value_ns: float = 40
    """Reading a table, per row and column (M: 10-40)."""
    tag_row_ns: float = 125
    """Telling a read row's fragment (M: 25-125)."""
    keyed_row_ns: float = 25
    """A read of some keys, per row that it scans (M)."""
    keyed_read_ms: float = 5
    """A read of some keys, per table (M)."""
    build_row_ns: float = 320
    """A side built in one sort, per row, its keys at random (M: 30 in order, 320)."""
    probe_key_ns: float = 240
    """A key looked up in a side, its rows found included (M: 100-380)."""
    group_row_ns: float = 300
    """A grouping made of rows, per row (M)."""
    changed_group_ns: float = 1000
    """A group changed, or a row of first rows (M: 1 us)."""
    opened_ms: float = 0.3
    """A stored piece taken up by a fresh process (assumed)."""
    touched_block_ns: float = 8000
    """A block of stored rows looked at (M: 8 us)."""
    block_rows: int = 512
    """Rows of a block."""
    conversion_ms: float = 50
    """A query opened and committed with other pieces kept, beside the work on each (M: 50 at
    least)."""
    row_ns: float = 25
    """A row passing a selection or projection, or told by a piece (assumed)."""
    filter_key_bytes: int = 3
    """Of a side that is read: its filter, per key."""

    def opened(self, rows: float, touched: float) -> float:
        """Milliseconds to take up a stored piece of so many rows, so many of them touched."""
        blocks = min(touched, rows / self.block_rows)
        return self.opened_ms + blocks * self.touched_block_ns / 1e6


PRIORS = Priors()
