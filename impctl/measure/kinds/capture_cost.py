"""Measure `capture`: what a capture with its state costs against the query and a recapture.

No options. `capture_ms` fills sketch and state without storing them, `recapture_ms` finds the
sketch alone, `plain_ms` is the query without a sketch; `state_bytes` is the state on disk.
Law: the stored sketch is compared with recapture before anything is timed; what is timed is warmed
up, each until it ran four times or for ten seconds, then timed in turns.
Out of scope: maintaining what was captured (`measure.kinds.maintain_cost`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from impctl.bench.clock import in_turns, warm_up
from impctl.bench.record import Cell, Metric
from impctl.measure.measured import measured_copy

if TYPE_CHECKING:
    from impctl.measure.ground import Ground

_MOST = 3
"""Captures timed at most; they are long enough to be steady."""


def measure_capture(ground: Ground) -> Iterator[Cell]:
    """One cell."""
    ground.only()
    return _cells(ground)


def _cells(ground: Ground) -> Iterator[Cell]:
    ground.step(f"capturing {ground.query.name}")
    with measured_copy(ground.desk, ground.query) as measured:
        checked = measured.checked()
        works: dict[str, Callable[[], object]] = {
            "plain_ms": measured.answer,
            "recapture_ms": measured.recapture,
        }
        if measured.has_state:
            works["capture_ms"] = measured.capture
        for work in works.values():
            warm_up(work)
        times = in_turns(works, min(ground.repeat, _MOST))
        metrics = {name: Metric.of(values) for name, values in times.items()}
        if measured.has_state:
            runs = measured.scratch.store().run_refs(ground.query.name)
            metrics["state_bytes"] = Metric.of([float(sum(run.bytes for run in runs))])
        yield ground.cell(metrics, checked=checked)
