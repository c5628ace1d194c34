"""Measure `phases`: tables that change one after the other, as when they are cleaned in turn.

Options: `tables` in their order; `steps` changes of each, with a `share` of its rows; `ways` and
one `budget` (a share of all state). Before the first change of a table the expectation moves on to
it, and a way that goes by what is expected chooses anew: `convert_ms`.

Law: as measure `state`; a cell per way and table.
Out of scope: finding out that a phase has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.state.asked import moving_tables, share_of_each
from benchmarks.state.held_back import Change, commit, hold_back
from benchmarks.state.kept_by import (
    BOUNDED,
    CHOSEN,
    KEPT,
    RECAPTURE,
    WAYS,
    Declared,
    brought_to,
    captured_under,
    expecting,
    step_ms,
    stored_bytes,
)
from impctl.bench.record import Cell, Metric
from impctl.measure.follower import AgainstRecapture, Follower
from impctl.measure.ground import Ground
from impctl.service.context import Workbench
from impctl.service.prepare import prepare
from impctl.service.scratch import scratch_copy
from impctl.types import TableName
from impctl.values import dataclass
from impctl.workload.models import QuerySpec


@dataclass(frozen=True, slots=True)
class _Options:
    tables: tuple[TableName, ...]
    steps: int
    share: float
    ways: tuple[str, ...]
    budget: float


@dataclass(frozen=True, slots=True)
class _Phase:
    """What one table's changes took."""

    convert_ms: float
    steps: tuple[float, ...]
    stored: int
    checked: AgainstRecapture


def measure_phases(ground: Ground) -> Iterator[Cell]:
    """A cell per way and table."""
    ground.only("tables", "steps", "share", "ways", "budget")
    tables = moving_tables(ground, "tables of the workload, in the order of their changes")
    steps = ground.whole_number("steps", 3)
    options = _Options(
        tables,
        steps,
        share_of_each(ground, 0.01, steps),
        ground.choices("ways", WAYS, (KEPT, CHOSEN, RECAPTURE)),
        ground.numbers("budget", (1.0,))[0],
    )
    return _cells(ground, options)


def _cells(ground: Ground, options: _Options) -> Iterator[Cell]:
    reads = prepare(ground.desk, ground.query).tables
    moving = [table for table in options.tables if table in reads]
    with scratch_copy(ground.desk, reads) as base:
        shares = dict.fromkeys(moving, (options.share,) * options.steps)
        changes = hold_back(base, shares, 0.0, ground.seed)
        for way in options.ways:
            ground.step(way)
            runs = [_run(ground, options, base, moving, changes, way) for _ in range(ground.repeat)]
            for at, table in enumerate(moving):
                yield _told(ground, {"way": way, "table": table}, [run[at] for run in runs])


def _run(
    ground: Ground,
    options: _Options,
    base: Workbench,
    moving: Sequence[TableName],
    changes: Sequence[Change],
    way: str,
) -> list[_Phase]:
    spec = ground.query
    result = []
    with scratch_copy(base, prepare(base, spec).tables) as scratch:
        with scratch.writing("bench"):
            captured_under(scratch, spec, None)
            whole = stored_bytes(scratch, spec)
        budget = round(whole * options.budget) if way in BOUNDED else None
        for table in moving:
            rows = round(scratch.tables.snapshot(table).likely_rows * options.share)
            mine = [{table: change[table]} for change in changes]
            with expecting(scratch, {table: Declared(max(1, rows))}) as desk:
                result.append(_phase(desk, spec, mine, way, budget))
            scratch.tables.advance(table)
    return result


def _phase(
    desk: Workbench, spec: QuerySpec, changes: Sequence[Change], way: str, budget: int | None
) -> _Phase:
    with desk.writing("bench"):
        convert_ms = brought_to(desk, spec, way, budget)
        follower = Follower(desk, prepare(desk, spec))
        steps = []
        for change in changes:
            commit(desk, change)
            steps.append(step_ms(follower, way))
        stored = 0 if way == RECAPTURE else stored_bytes(desk, spec)
        return _Phase(convert_ms, tuple(steps), stored, follower.checked())


def _told(ground: Ground, labels: dict[str, str], runs: Sequence[_Phase]) -> Cell:
    metrics = {
        "maintain_ms": Metric.of([each for run in runs for each in run.steps]),
        "convert_ms": Metric.of([run.convert_ms for run in runs]),
        "total_ms": Metric.of([run.convert_ms + sum(run.steps) for run in runs]),
        "stored_bytes": Metric.of([run.stored for run in runs]),
    }
    return ground.cell(metrics, {**labels}, checked=runs[0].checked)
