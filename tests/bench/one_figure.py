"""A small record to put cells into."""

from __future__ import annotations

from impctl.bench.record import Cell, Chart, Figure, Record

CHART = Chart("changes", ("maintain_ms", "recapture_ms"), ("groups",), ("x", "y"))


def record_of(*cells: Cell, noise: float = 0.0, **machine: str) -> Record:
    """A record with one figure, `f`, that holds these cells."""
    return Record(
        suite="s",
        title="A suite",
        scale=0.5,
        repeat=3,
        seed=1,
        started="2026-01-01T00:00:00+00:00",
        elapsed_s=1.5,
        noise=noise,
        machine=machine or {"cpu": "x"},
        figures=(Figure("f", "First", "about", CHART, "claim", "section 1"),),
        cells=cells,
        failures=("one thing failed",),
    )
