"""What work costs: prior times of each kind of work, and a line through recorded times.

Law: a prediction chooses between ways to the same result, never the result. Prior times are used
until runs are recorded. They are measured on two cores; on other machines they scale together, so
that their ratios hold. `service.cost_model` predicts runs and answers, `placement` the work on
state, `compile.jointree.cost` joins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

# Work on state, measured (M) with 14 queries of TPC-H at scale 1. Of a range, work of pieces that
# are not kept is taken at the costlier end, other work in the middle. Off by 2 to 3 times in the
# median, up to 30 at worst (M).


class StateTimes(Struct, frozen=True, kw_only=True):
    """Nanoseconds per row or key, milliseconds per piece or table. (M: measured.)"""

    read_value_ns: float = 40  # Reading a table, per row and column (M: 10-40)
    tag_row_ns: float = 125  # The range of a read row (M: 25-125)
    keyed_row_ns: float = 25  # A read of some keys, per row that it scans (M)
    keyed_read_ms: float = 5  # A read of some keys, per table (M)
    build_row_ns: float = 320
    """A side built in one sort, per row, its keys at random (M: 30 in order, 320)."""
    probe_key_ns: float = 240  # A key looked up in a side with its rows (M: 100-380)
    group_row_ns: float = 300  # A grouping made of rows, per row (M)
    changed_group_ns: float = 1000  # A group changed, or a row of first rows (M: 1 us)
    opened_ms: float = 0.3  # A stored piece restored by a fresh process (assumed)
    touched_block_ns: float = 8000  # A block of stored rows read (M: 8 us)
    block_rows: int = 512
    conversion_ms: float = 50
    """A query opened and committed with other pieces kept, without their work (M: 50 at least)."""
    row_ns: float = 25  # A row passing a selection or projection, or output by a piece (assumed)
    filter_key_bytes: int = 3  # Of a side that is read: its filter, per key

    def opened(self, rows: float, touched: float) -> float:
        """Milliseconds to restore a stored piece of so many rows, so many of them touched."""
        blocks = min(touched, rows / self.block_rows)
        return self.opened_ms + blocks * self.touched_block_ns / 1e6

    def read_whole(self, rows: float, columns: int) -> float:
        """Milliseconds to read all rows of a table, with their ranges."""
        return rows * (self.read_value_ns * max(1, columns) + self.tag_row_ns) / 1e6


STATE = StateTimes()

# A step of joins, as an index join and as a tree, by the mode of the tree (`TreeMode`): processor
# time, measured (docs/decisions/0087).


class IndexTimes(Struct, frozen=True):
    """Microseconds of an index join: per step; per join that an access's rows pass; per joined row
    kept for the next join; per row of the last join; per joined row of a table with several
    accesses, where those that cancel are removed; per group that changes."""

    step: float
    join: float
    kept: float
    last: float
    again: float
    group: float


class TreeTimes(Struct, frozen=True):
    """Microseconds of a tree: per step, per node, per distinct tuple touched on the way up, and per
    row woken on the way down."""

    step: float
    node: float
    touched: float
    woken: float


INDEX_JOIN = {
    "ring": IndexTimes(step=2800.0, join=0.0, kept=0.25, last=0.23, again=0.06, group=3.2),
    "bits": IndexTimes(step=1100.0, join=200.0, kept=0.28, last=0.05, again=0.27, group=0.0),
}
JOIN_TREE = {
    "ring": TreeTimes(step=4400.0, node=0.0, touched=1.8, woken=0.1),
    "bits": TreeTimes(step=2300.0, node=390.0, touched=0.75, woken=0.08),
}

# A query answered from files. Measured (docs/decisions/0072) and rough: right about which is faster
# beyond a factor of two.


class AnswerTimes(Struct, frozen=True, kw_only=True):
    """Milliseconds: per query, per value read, and per row in operators. Of Spark also `first` for
    its first query, and `start` to start it."""

    query: float
    value: float
    join: float = 0.0
    group: float = 0.0
    double: float = 0.0
    rank: float = 0.0
    """A row sorted within its group: windows, and top-k per group."""
    top: float = 0.0
    """A row of a global top-k."""
    first: float = 0.0
    start: float = 0.0


ENGINE = AnswerTimes(
    query=10.0, value=30e-6, join=1.1e-3, group=0.25e-3, double=0.8e-3, rank=4e-3, top=0.3e-3
)
SPARK = AnswerTimes(
    query=400.0,
    value=15e-6,
    join=0.2e-3,
    group=0.07e-3,
    double=0.03e-3,
    rank=1.5e-3,
    top=0.1e-3,
    first=2500.0,
    start=4000.0,
)
DUCKDB = AnswerTimes(query=20.0, value=15e-6)  # Over local files; impctl only advises it

# A line through recorded times. Law: `fixed + per_row * rows`, both finite and never negative. A
# run that does not fit the others is left out where they agree without it; of a run's time the part
# that grows with its size counts for less, so that a few long runs do not drown the short ones.

_TYPICAL_ROWS = 1_000.0
"""Rows below which noise is equal, as the fixed part dominates."""

_FEWEST_TO_DOUBT = 4
"""With fewer runs an outlier cannot be identified."""

_DOUBT = 9.0
"""A run is an outlier if the squared error without it is smaller by this factor."""

_ROUNDING = 1e-18
"""Squared error, relative to the squared times, that counts as rounding."""

Point = tuple[float, float]


class CostLine(Struct, frozen=True):
    fixed: float
    per_row: float
    runs: int
    largest: float

    def at(self, rows: float) -> float:
        return self.fixed + self.per_row * rows


def line_through(points: Sequence[Point]) -> CostLine | None:
    """Fit the line to rows and times; None without usable runs."""
    sound = [(x, y) for x, y in points if is_amount(x) and is_amount(y)]
    if not sound:
        return None
    fixed, per_row, wrong = _fit(sound)
    fitted = sound
    squared = sum(_weight(x) * y * y for x, y in sound)
    if len(sound) >= _FEWEST_TO_DOUBT and wrong > _ROUNDING * squared:
        subsets = [sound[:index] + sound[index + 1 :] for index in range(len(sound))]
        fits = [(_fit(subset), subset) for subset in subsets]
        (fewer_fixed, fewer_per_row, left), subset = min(fits, key=lambda result: result[0][2])
        if left * _DOUBT < wrong:
            fixed, per_row, fitted = fewer_fixed, fewer_per_row, subset
    return CostLine(fixed, per_row, len(sound), max(x for x, _ in fitted))


def is_amount(value: float) -> bool:
    return math.isfinite(value) and 0.0 <= value < 1e30


def _weight(rows: float) -> float:
    return 1.0 / (rows + _TYPICAL_ROWS) ** 2


def _fit(points: Sequence[Point]) -> tuple[float, float, float]:
    """Weighted least squares: fixed part, part per row (both at least 0), squared error."""
    weighted = [(_weight(x), x, y) for x, y in points]
    total = sum(w for w, _, _ in weighted)
    mean_x = sum(w * x for w, x, _ in weighted) / total
    mean_y = sum(w * y for w, _, y in weighted) / total
    xx = sum(w * (x - mean_x) ** 2 for w, x, _ in weighted)
    xy = sum(w * (x - mean_x) * (y - mean_y) for w, x, y in weighted)
    per_row = max(0.0, xy / xx) if xx > 0.0 else 0.0
    fixed = mean_y - per_row * mean_x
    if fixed < 0.0:
        # The best line through the origin; there are rows, or the mean of times were below 0.
        fixed = 0.0
        per_row = sum(w * x * y for w, x, y in weighted) / sum(w * x * x for w, x, _ in weighted)
    return fixed, per_row, sum(w * (y - fixed - per_row * x) ** 2 for w, x, y in weighted)
