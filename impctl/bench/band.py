"""How far two measurements may lie apart for no reason: the one rule of reports and comparisons.

Law: two metrics differ only where no run of one lies among the runs of the other and their medians
lie further apart than the band. The band of times and ratios is the noise, but at least a tenth,
since two yardsticks may agree by chance, and at least half where one of the two has a single run;
sizes have hardly any.
Out of scope: which noise holds for a figure (`record`), what a difference is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from impctl.bench.record import Metric

SINGLE = 0.5
"""Band of a time that was measured once: Spark alone makes one run differ by that from the next."""

LEAST = 0.1
"""Of times, however quiet the machine seemed: noise comes from few yardsticks."""

_EXACT = 0.01
"""Of sizes and counts, which do not depend on how quick the machine is."""


def band_of(metric: str, one: Metric, other: Metric, noise: float) -> float:
    """The share by which the medians of this metric may differ for no reason."""
    if not metric.endswith(("_ms", "_ratio")):
        return _EXACT
    return time_band(one, other, noise)


def time_band(one: Metric, other: Metric, noise: float) -> float:
    """The same of times and ratios, whatever they are called."""
    return max(noise, SINGLE if min(one.runs, other.runs) < 2 else LEAST)


def side_of(one: Metric, other: Metric, band: float) -> int:
    """1 where `other` is more than `one` beyond the band, -1 where it is less, else 0."""
    if other.low > one.high and other.median > one.median * (1 + band):
        return 1
    if other.high < one.low and one.median > other.median * (1 + band):
        return -1
    return 0
