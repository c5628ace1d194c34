"""What the store recorded of real runs, beside what the model makes of the same time.

Law: steps that maintained are counted, as are recaptures in their place; captures that were asked
for, conversions and verifications are not. The store knows steps, no runs: steps that follow each
other within half a look are one run, as long as no query comes twice.
Out of scope: the model (`simulating.virtual_run`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from impctl.app.results.simulated import RecordedRuns, SimulatedSetting
from impctl.store.reader import StoreReader
from impctl.store.records import RunRecord
from impctl.types import QueryName
from impctl.values import dataclass

_STEPS = frozenset({"exact", "touch", "recapture"})
_ALL_RUNS = 1_000_000


@dataclass(frozen=True, slots=True)
class Recorded:
    """The steps of all queries from `since` on, in order."""

    since: float
    steps: Sequence[tuple[QueryName, RunRecord]]


def recorded_of(
    store: StoreReader, queries: Sequence[QueryName], since: float, until: float
) -> Recorded | None:
    """What was recorded from `since` on, or from when all of the queries were there.

    None where nothing was.
    """
    known: Mapping[QueryName, Sequence[RunRecord]] = {
        name: store.history(name, _ALL_RUNS) for name in queries
    }
    firsts = [records[-1].started_at for records in known.values() if records]
    begin = max([since, *firsts])
    steps = [
        (name, record)
        for name, records in known.items()
        for record in records
        if record.action in _STEPS and begin < record.started_at <= until
    ]
    steps.sort(key=lambda step: step[1].started_at)
    return Recorded(begin, steps) if steps else None


def compared(result: Recorded, model: SimulatedSetting, look: float) -> RecordedRuns:
    """The recorded runs, and by which share the model says more (above 0) or less."""
    runs = runs_in(result.steps, look / 2)
    work = sum(record.elapsed_ms for _, record in result.steps)
    return RecordedRuns(
        since=datetime.fromtimestamp(result.since, UTC),
        runs=runs,
        steps=len(result.steps),
        work_ms=work,
        model_runs=model.runs,
        model_steps=model.steps,
        model_work_ms=model.work_ms,
        runs_off=model.runs / runs - 1,
        steps_off=model.steps / len(result.steps) - 1,
        work_off=model.work_ms / work - 1 if work else None,
    )


def runs_in(steps: Sequence[tuple[QueryName, RunRecord]], pause: float) -> int:
    """How many runs the steps were done in."""
    runs, ended, seen = 0, 0.0, set[QueryName]()
    for name, record in steps:
        # A record is made when its step is computed, and about to be committed.
        begun = record.started_at - (record.read_ms + record.engine_ms) / 1000
        if not runs or name in seen or begun - ended > pause:
            runs, seen = runs + 1, set()
        seen.add(name)
        ended = record.started_at + record.commit_ms / 1000
    return runs
