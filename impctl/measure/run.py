"""Measure the figures of a run, one after another, into one record.

A case that fails, by a bug too, is named in `failures` and among the run's failures; its cells so
far are kept and the others go on. A sketch found too small, or a result that differs, fails the
run. The yardstick is timed before every figure and at the end. Files asked for hold every cell
that is done, so an interrupt keeps those.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from impctl.bench.record import Cell, Chart, Figure, Label, Record
from impctl.bench.yardstick import UNSTEADY, noise_of, yardstick
from impctl.errors import ImpctlError, StorageError, UnsoundSketchError
from impctl.measure.fingerprint import case_fingerprint
from impctl.measure.keep import try_kept, write_kept
from impctl.measure.machine_facts import machine_facts
from impctl.measure.plan import PlannedFigure, PlannedRun, planned_workload
from impctl.service.context import Isolated, Reporter, Workbench
from impctl.service.prepare import prepare
from impctl.service.results import Failure, Outcome
from impctl.service.scratch import folder_beside
from impctl.store.disk import BENCH_SCRATCH, scratch_folder
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.measure.figures import CaseSpec, FigureSpec
    from impctl.service.settings import MeasureRequest
    from impctl.types import QueryName


def run_workload(
    desk: Workbench,
    request: MeasureRequest,
    queries: Sequence[QueryName] | None,
    *,
    delta_rows: Sequence[int],
) -> Outcome:
    """Measure an open workload; the yardstick runs on the disk of its tables."""
    try_kept(request, desk.reserved)
    with scratch_folder(BENCH_SCRATCH, folder_beside(desk, desk.workload.tables)) as folder:
        planned = planned_workload(desk, request, queries, delta_rows, folder)
        return measured(planned, request, desk.reporter)


def measured(planned: PlannedRun, request: MeasureRequest, reporter: Reporter) -> Outcome:
    """Measure a planned run; the files of the request are written after every cell."""
    run = _Run(planned, reporter)
    unwritten: StorageError | None = None
    for record in run.records():
        # After every cell: an interrupt costs the one at hand, not hours.
        try:
            written, unwritten = write_kept(request, record), None
        except StorageError as error:
            # What was measured goes on being measured and is shown in any case.
            written, unwritten = (), error
    warnings = []
    if unwritten is not None:
        run.failures.append(Failure(None, unwritten))
    if record.noise >= UNSTEADY:
        warnings.append(f"the machine was busy: equal work took at most {record.noise:.0%} longer")
    return Outcome((record, *written), tuple(warnings), tuple(run.failures))


@dataclass(slots=True)
class _Run:
    """One run: what was measured so far, and what failed."""

    planned: PlannedRun
    reporter: Reporter
    failures: list[Failure] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)
    tables: dict[str, int] = field(default_factory=dict)
    machine: Mapping[str, str] = field(init=False)
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __post_init__(self) -> None:
        self.machine = machine_facts(self.planned.desk)

    def records(self) -> Iterator[Record]:
        """Measure figure by figure; after every cell the record so far, the last one whole."""
        planned = self.planned
        planned.folder.mkdir(parents=True, exist_ok=True)
        clock = time.perf_counter()
        self.medians.append(yardstick(planned.folder))
        for number, figure in enumerate(planned.figures, start=1):
            self.reporter.step(f"figure {figure.spec.name}", number, len(planned.figures))
            self._count_rows(figure)
            for _ in self._measured(figure):
                yield self._record(number, round(time.perf_counter() - clock, 1))
            self.medians.append(yardstick(planned.folder))
            yield self._record(number, round(time.perf_counter() - clock, 1))

    def _record(self, figures: int, elapsed_s: float) -> Record:
        planned = self.planned
        return Record(
            suite=planned.name,
            title=planned.title,
            scale=planned.scale,
            repeat=planned.repeat,
            seed=planned.seed,
            started=self.started.isoformat(timespec="seconds"),
            elapsed_s=elapsed_s,
            noise=noise_of(self.medians),
            machine=self.machine,
            figures=tuple(_figure(figure.spec) for figure in planned.figures[:figures]),
            cells=tuple(self.cells),
            failures=tuple(failure.error.message for failure in self.failures),
            tables=dict(self.tables),
            figure_noise={
                figure.spec.name: noise_of(self.medians[at : at + 2])
                # A figure that is not done has no yardstick after it.
                for at, figure in enumerate(planned.figures[: len(self.medians) - 1])
            },
            kind=planned.kind,
        )

    def _count_rows(self, figure: PlannedFigure) -> None:
        desk = self.planned.desk
        for case, _ in figure.cases:
            # What is wrong with a query or its tables is told where it is measured.
            with suppress(Exception):
                for table in prepare(desk, desk.workload.queries[case.query]).tables:
                    rows = desk.tables.snapshot(table).rows
                    if rows is not None:
                        self.tables[table] = rows

    def _measured(self, figure: PlannedFigure) -> Iterator[Cell]:
        """Every cell as soon as it is there and judged."""
        for case, cells in figure.cases:
            spec = self.planned.desk.workload.queries[case.query]
            fingerprint = case_fingerprint(self.planned, figure, case)
            failed: list[Failure] = []
            with Isolated(failed, spec):
                for cell in cells:
                    self.cells.append(replace(cell, fingerprint=fingerprint))
                    self._judge(cell, case)
                    yield cell
            for failure in failed:
                self._failed(figure.spec.name, case, failure.error)

    def _judge(self, cell: Cell, case: CaseSpec) -> None:
        """A cell whose check failed is a failure of the run."""
        hint = f"please report this, with the {self.planned.kind} and its seed"
        if cell.covers is False:
            text = f"The maintained sketch of query `{case.query}` is too small"
            self._failed(cell.figure, case, UnsoundSketchError(text, hint=hint), cell.labels)
        if cell.equal is False:
            text = f"Query `{case.query}` has a different result with its sketch than without"
            self._failed(cell.figure, case, UnsoundSketchError(text, hint=hint), cell.labels)

    def _failed(
        self,
        figure: str,
        case: CaseSpec,
        error: ImpctlError,
        labels: Mapping[str, Label] | None = None,
    ) -> None:
        place = _labels_text(case.labels if labels is None else labels)
        told = error.saying(f"Figure `{figure}`, {place}: {error.message}")
        self.failures.append(Failure(case.query, told))


def _labels_text(labels: Mapping[str, Label]) -> str:
    return ", ".join(f"{name} {value}" for name, value in labels.items())


def _figure(spec: FigureSpec) -> Figure:
    chart = Chart(spec.chart.x, spec.chart.y, spec.chart.series, spec.chart.log)
    return Figure(spec.name, spec.title, spec.about, chart, spec.claim, spec.source)
