"""Numbers measured once as metrics of a cell.

Law: what was measured once has no spread. Out of scope: what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping

from impctl.bench.record import Metric


def single(values: Mapping[str, float]) -> dict[str, Metric]:
    """Metrics of one run each."""
    return {name: Metric.of([value]) for name, value in values.items()}
