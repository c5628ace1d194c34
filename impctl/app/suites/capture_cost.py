"""Measure `capture`: what a capture with its state costs against the query and a recapture.

No options. `capture_ms` fills sketch and state without storing them, `recapture_ms` finds the
sketch alone, `plain_ms` is the query without a sketch; `state_bytes` is the state on disk.
Law: the stored sketch is compared with recapture before anything is timed.
Out of scope: maintaining what was captured (`app.suites.maintain_cost`).
"""

from __future__ import annotations

from collections.abc import Iterator

from impctl.app.measured import measured_copy
from impctl.app.suites.ground import Ground
from impctl.bench.clock import WARM_UP, milliseconds
from impctl.bench.record import Cell, Metric

_MOST = 3
"""Captures timed at most; they are long enough to be steady."""


def measure_capture(ground: Ground) -> Iterator[Cell]:
    """One cell."""
    ground.only()
    return _cells(ground)


def _cells(ground: Ground) -> Iterator[Cell]:
    ground.step(f"capturing {ground.query.name}")
    with measured_copy(ground.bench, ground.query) as measured:
        checked = measured.checked()
        for _ in range(WARM_UP):
            measured.answer()
        turns = range(min(ground.repeat, _MOST))
        metrics = {
            "plain_ms": Metric.of([milliseconds(measured.answer) for _ in turns]),
            "recapture_ms": Metric.of([milliseconds(measured.recapture) for _ in turns]),
        }
        if measured.has_state:
            metrics["capture_ms"] = Metric.of([milliseconds(measured.capture) for _ in turns])
            runs = measured.scratch.store().run_refs(ground.query.name)
            metrics["state_bytes"] = Metric.of([float(sum(run.bytes for run in runs))])
        yield ground.cell(metrics, checked=checked)
