"""Measure `strategies`: many small updates maintained eagerly in batches, or lazily at the end.

Options: `updates` (scaled, not below `least`) of `changes` rows each; `batches`, rows after which
an eager sketch is maintained, those left out that all updates together do not exceed. The lazy
cell maintains once, when all updates are in, as a query that comes then would do.

Law: every cell sees the same seeded commits on a scratch copy of its own and begins with a current
sketch; only steps of maintenance are timed; the sketch is checked against recapture at the end.
Out of scope: commits (`update_stream`), one maintenance (`follower`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

from msgspec import Struct

from benchmarks.figures import SuiteCase
from benchmarks.update_stream import Pool, UpdateStream, pool_of
from impctl.bench.record import Cell, Metric
from impctl.measure.scratch import (
    AgainstRecapture,
    captured,
    changed_table,
    scratch_copy,
    worse_of,
)
from impctl.service.prepare import prepare
from impctl.service.step import StepDone

LAZY = "lazy"
"""The label `batch` of the cell that maintains once."""


class _Options(Struct, frozen=True):
    updates: int
    changes: int
    batches: tuple[int, ...]
    key: str


class _Run(Struct, frozen=True):
    """All updates once: the maintenances, and the sketch at the end."""

    steps: Sequence[StepDone]
    checked: AgainstRecapture


def measure_strategies(case: SuiteCase) -> Iterator[Cell]:
    """A cell per size of batch, and one for lazy."""
    case.only("updates", "least", "changes", "batches", "key")
    options = _Options(
        case.scaled("updates", 1000, least=case.whole_number("least", 100)),
        case.whole_number("changes", 1),
        case.whole_numbers("batches", (1, 10, 20, 50, 100, 200, 500, 1000)),
        case.key(),
    )
    return _cells(case, options)


def _cells(case: SuiteCase, options: _Options) -> Iterator[Cell]:
    ctx = case.ctx
    tables = prepare(ctx, case.query).tables
    changed = changed_table(ctx.tables, tables)
    pool = pool_of(ctx.tables, changed, options.key, case.seed)
    # What is done for the first time in a process costs more than ever after.
    _run(case, options, tables, pool, 1, updates=3)
    # A batch of everything is what lazy does.
    smaller = [size for size in options.batches if size < options.updates * options.changes]
    for batch in (*smaller, None):
        runs = []
        for _ in range(case.repeat):
            case.step(f"{options.updates} updates, " + (f"batches of {batch}" if batch else LAZY))
            runs.append(_run(case, options, tables, pool, batch, updates=options.updates))
        yield _cell(case, options, batch, runs)


def _run(
    case: SuiteCase,
    options: _Options,
    tables: tuple[str, ...],
    pool: Pool,
    batch: int | None,
    *,
    updates: int,
) -> _Run:
    """All updates with one size of batch; None is lazy."""
    with scratch_copy(case.ctx, tables) as scratch, scratch.writing("bench"):
        follower = captured(scratch, case.query)
        stream = UpdateStream(scratch.tables, pool, case.seed)
        steps: list[StepDone | None] = []
        waiting = 0
        for _ in range(updates):
            stream.commit(options.changes)
            waiting += options.changes
            if batch is not None and waiting >= batch:
                steps.append(follower.follow())
                waiting = 0
        if waiting:
            steps.append(follower.follow())
        checked = follower.checked()
    return _Run([step for step in steps if step is not None], checked)


def _cell(case: SuiteCase, options: _Options, batch: int | None, runs: Sequence[_Run]) -> Cell:
    """Totals are medians of the runs; a step is any of them."""
    steps = [step for run in runs for step in run.steps]
    totals = [sum(step.total_ms for step in run.steps) for run in runs]
    metrics = {
        "maintain_ms": Metric.of(totals),
        "per_update_ms": Metric.of([total / options.updates for total in totals]),
        "step_ms": Metric.of([step.total_ms for step in steps]),
        "read_ms": Metric.of([step.read_ms for step in steps]),
        "engine_ms": Metric.of([step.engine_ms for step in steps]),
        "commit_ms": Metric.of([step.commit_ms for step in steps]),
    }
    label = LAZY if batch is None else str(batch)
    note = f"{options.updates} updates of {options.changes} rows in {len(runs[0].steps)} steps"
    checked = reduce(worse_of, [run.checked for run in runs])
    return case.cell(metrics, {"batch": label}, checked=checked, note=note)
