"""Measure the figures of a workload file into a record; write and compare records."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from impctl.bench.machine import UNSTEADY, describe_machine, noise_of, yardstick
from impctl.bench.record import Cell, Chart, Figure, Label, Record, RecordKind
from impctl.data.schema import name_parts
from impctl.errors import (
    ImpctlError,
    Location,
    Problem,
    StorageError,
    UnsoundSketchError,
    UsageError,
    WorkloadError,
)
from impctl.measure.figures import (
    CaseContext,
    CaseSpec,
    ChartSpec,
    FigureSpec,
    OptionValue,
    words_of,
)
from impctl.measure.kinds import measure_capture, measure_maintain, measure_query, measure_ways
from impctl.measure.record_files import check_outputs, write_outputs
from impctl.measure.scratch import folder_beside
from impctl.service.context import Context, Isolated, Reporter, master_of
from impctl.service.prepare import prepare
from impctl.service.results import Failure, Outcome
from impctl.spark.session import find_java, shown
from impctl.store.disk import BENCH_SCRATCH, scratch_folder
from impctl.workload.models import LineageMode, PartitionSpec, QuerySpec, Workload
from impctl.workload.yaml import suggestion

if TYPE_CHECKING:
    from impctl.service.settings import MeasureRequest
    from impctl.types import QueryName


# A measure is a function from a ground to cells; its labels and metrics are all listed.


class Drawable(Struct, frozen=True):
    """Labels that a measure adds to those of the case, and its metrics. With `operators` there are
    more metrics, named after operators (`join_bytes`)."""

    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    operators: bool = False

    def has(self, metric: str) -> bool:
        return metric in self.metrics or (self.operators and metric.endswith("_bytes"))


class Measure(Struct, frozen=True):
    """What a figure does with each case. `labelled` are options whose every value has cells
    labelled with it, or only adds a metric to one; not those whose values act together on a cell,
    as `changes` of `memory`. A fingerprint does not include them."""

    run: Callable[[CaseContext], Iterator[Cell]]
    labelled: tuple[str, ...]
    drawable: Drawable


MEASURES: Mapping[str, Measure] = {
    "capture": Measure(
        measure_capture, (), Drawable((), ("plain_ms", "recapture_ms", "capture_ms", "state_bytes"))
    ),
    "maintain": Measure(
        measure_maintain,
        ("changes", "shares"),
        Drawable(
            ("changes", "share", "kind"),
            (
                *("maintain_ms", "read_ms", "engine_ms", "commit_ms"),
                *("recapture_ms", "recapture_ratio", "state_bytes", "duckdb_ms"),
            ),
        ),
    ),
    "query": Measure(
        measure_query,
        (),
        Drawable(
            (),
            (
                *("plain_ms", "sketch_ms", "gain_ratio", "duckdb_plain_ms"),
                *("files_share", "rows_share", "fragments_share"),
            ),
        ),
    ),
    "ways": Measure(
        measure_ways,
        (),
        Drawable(("way",), ("files_count", "wall_ms", "cpu_ms", "gain_ratio", "cpu_gain_ratio")),
    ),
}


# Fingerprints of cases: what the labels omit. Law: cells of a figure with equal labels have equal
# fingerprints exactly if query, partition, options and data were equal; repetitions, machine and
# file names do not count. Options shown in labels are omitted, so that another size changes no
# other cell.


def case_fingerprint(planned: PlannedRun, figure: PlannedFigure, case: CaseSpec) -> str:
    """The fingerprint of one case of one figure, as this run measures it."""
    workload = planned.ctx.workload
    query = workload.queries[case.query]
    facts = {
        "measure": figure.spec.measure,
        "options": {
            name: value
            for name, value in figure.spec.options.items()
            if name not in figure.measure.labelled
        },
        "query": _query_facts(query),
        "partitions": [
            [part.table, part.column, part.boundaries, part.ranges]
            for part in workload.partitions
            if _is_of(part, query)
        ],
        "data": list(planned.data_of(case)),
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _query_facts(query: QuerySpec) -> dict[str, object]:
    facts: dict[str, object] = {
        "sql": " ".join(query.sql.split()),
        "sketch": dict(query.sketch),
        "params": dict(query.params),
        "settings": [query.policy, query.maintain, query.join, query.buffer],
    }
    # Records from before the setting have the same fingerprint.
    return facts if query.lineage is LineageMode.ALL else {**facts, "lineage": query.lineage}


def _is_of(partition: PartitionSpec, query: QuerySpec) -> bool:
    """Whether the query may have its sketch on this partition."""
    if query.sketch:
        return query.sketch.get(partition.table) == partition.column
    own_name = name_parts(partition.table) or (partition.table,)
    return own_name[-1].lower() in words_of(query.sql)


# Law: every requested query is a case of every figure, at the full size of its tables; nothing is
# generated. Without sizes of a change there are both rows and shares of the table, so that a
# break-even is shown for small and large tables.

_CHANGES = (10, 100, 1000)
_SHARES = (0.01, 0.1)
REPEAT = 3
"""Runs of each measurement: a small workload then takes about a minute."""

SEED = 1


def figures_of(
    workload: Workload, queries: Sequence[QuerySpec], delta_rows: Sequence[int] = ()
) -> tuple[FigureSpec, ...]:
    """The figures of these queries; `delta_rows`, if given, are all the sizes of a change."""
    cases = tuple(CaseSpec(spec.name, {"query": spec.name}, spec.location) for spec in queries)
    figure = partial(FigureSpec, cases=cases, location=Location(workload.file, 1, 1))
    sizes: dict[str, OptionValue] = {"changes": _CHANGES, "shares": _SHARES}
    return (
        figure(
            name="changes",
            title="Size of a change",
            about="Updating a sketch after a change of its table, by maintaining it and by "
            "recapturing it. The rows of a change are sampled from the table.",
            measure="maintain",
            options={"changes": tuple(delta_rows)} if delta_rows else sizes,
            chart=ChartSpec("changes", ("maintain_ms", "recapture_ms"), ("query",), ("x", "y")),
        ),
        figure(
            name="skipping",
            title="What a sketch saves",
            about="The query without its sketch and with it, and the rows that remain to read with "
            "the sketch.",
            measure="query",
            chart=ChartSpec("query", ("plain_ms", "sketch_ms", "rows_share"), (), ()),
        ),
        figure(
            name="capture",
            title="First capture",
            about="Capturing sketch and state once, compared with the query and with a recapture "
            "of the sketch alone.",
            measure="capture",
            chart=ChartSpec("query", ("plain_ms", "recapture_ms", "capture_ms"), (), ()),
        ),
        figure(
            name="ways",
            title="Ways to the answer",
            about="The same answer from the materialized result, by impctl's engine, by DuckDB and "
            "by Spark, in one warm process. Speed-ups are against Spark over all files.",
            measure="ways",
            chart=ChartSpec("way", ("files_count", "wall_ms", "cpu_ms"), ("query",), ("y",)),
        ),
    )


# Every wrong option is reported before anything is measured.

DataFacts = Sequence[Mapping[str, object]]
"""How the tables of a case were generated; part of its fingerprint."""


class PlannedFigure(Struct, frozen=True):
    """A figure with its cases, each with the cells that measuring it yields."""

    spec: FigureSpec
    measure: Measure
    cases: tuple[tuple[CaseSpec, Iterator[Cell]], ...]


class PlannedRun(Struct, frozen=True):
    """A run that is ready to start; the noise of the machine is measured in `folder`."""

    ctx: Context
    figures: tuple[PlannedFigure, ...]
    name: str
    title: str
    scale: float
    repeat: int
    seed: int
    folder: Path
    kind: RecordKind
    data_of: Callable[[CaseSpec], DataFacts] = lambda case: ()


def planned_workload(
    ctx: Context,
    request: MeasureRequest,
    queries: Sequence[QueryName] | None,
    delta_rows: Sequence[int],
    folder: Path,
) -> PlannedRun:
    workload = ctx.workload
    figures = figures_of(workload, ctx.sketched(queries), delta_rows)
    repeat = REPEAT if request.repeat is None else request.repeat
    chosen = chosen_figures(figures, request.only)
    return PlannedRun(
        ctx,
        planned_figures(ctx, chosen, MEASURES, repeat=repeat, seed=SEED, scale=1.0),
        name=workload.name,
        title=f"Workload {workload.name}",
        scale=1.0,
        repeat=repeat,
        seed=SEED,
        folder=folder,
        kind=RecordKind.WORKLOAD,
    )


def chosen_figures(figures: Sequence[FigureSpec], names: Sequence[str]) -> tuple[FigureSpec, ...]:
    """The figures with these names, or all without names; UsageError for an unknown one."""
    known = {figure.name: figure for figure in figures}
    for name in names:
        if name not in known:
            raise UsageError(
                f"There is no figure `{name}`",
                code="figure_unknown",
                hint=suggestion(name, list(known), "the figures"),
            )
    return tuple(known[name] for name in dict.fromkeys(names)) if names else tuple(figures)


def planned_figures(
    ctx: Context,
    figures: Sequence[FigureSpec],
    measures: Mapping[str, Measure],
    *,
    repeat: int,
    seed: int,
    scale: float,
) -> tuple[PlannedFigure, ...]:
    """Call the measures for every case, which reads their options."""
    problems: list[Problem] = []
    planned: list[PlannedFigure] = []
    for figure in figures:
        measure = measures[figure.measure]
        cases: list[tuple[CaseSpec, Iterator[Cell]]] = []
        for case in figure.cases:
            ground = CaseContext(ctx, replace(figure, cases=(case,)), repeat, seed, scale)
            try:
                cases.append((case, measure.run(ground)))
            except WorkloadError as error:
                # The options belong to the figure, so one case reports every problem.
                problems += error.problems
                break
        planned.append(PlannedFigure(figure, measure, tuple(cases)))
    if problems:
        count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise WorkloadError(f"The figures have {count}", problems)
    return tuple(planned)


# The machine, the versions and Spark's setup. Law: only settings that affect Spark's speed are
# recorded, since others may hold secrets.

_SETTINGS = ("spark.driver.memory", "spark.sql.shuffle.partitions")


def machine_facts(ctx: Context) -> dict[str, str]:
    """Describe the machine, with `java` and `spark`: its master, memory and shuffle partitions."""
    facts = describe_machine()
    # Where nothing needs Spark no Java is needed either.
    with suppress(UsageError):
        facts["java"] = str(find_java(os.environ).version)
    spec = ctx.spark_spec
    settings = [
        f"{name.removeprefix('spark.')} {spec.conf[name]}"
        for name in _SETTINGS
        if name in spec.conf
    ]
    facts["spark"] = ", ".join([shown(master_of(spec.master)), *settings])
    return facts


# Law: a case that fails is named in `failures` and among the run's failures; its cells so far are
# kept and the others continue. A sketch too small, or a result that differs, fails the run. The
# yardstick is timed before every figure and at the end. Output files have every finished cell, so
# an interrupt keeps those.


def run_workload(
    ctx: Context,
    request: MeasureRequest,
    queries: Sequence[QueryName] | None,
    *,
    delta_rows: Sequence[int],
) -> Outcome:
    """Measure an open workload; the yardstick runs on the disk of its tables."""
    check_outputs(request, ctx.reserved)
    with scratch_folder(BENCH_SCRATCH, folder_beside(ctx, ctx.workload.tables)) as folder:
        planned = planned_workload(ctx, request, queries, delta_rows, folder)
        return measured(planned, request, ctx.reporter)


def measured(planned: PlannedRun, request: MeasureRequest, reporter: Reporter) -> Outcome:
    """Measure a planned run; write the requested files after every cell."""
    run = _MeasuredRun(planned, reporter)
    unwritten: StorageError | None = None
    for record in run.records():
        # After every cell: an interrupt costs the one at hand, not hours.
        try:
            written, unwritten = write_outputs(request, record), None
        except StorageError as error:
            # Measuring continues, and the results are shown in any case.
            written, unwritten = (), error
    warnings = []
    if unwritten is not None:
        run.failures.append(Failure(None, unwritten))
    if record.noise >= UNSTEADY:
        warnings.append(
            f"the machine was busy: equal work took at most {record.noise:.0%} longer; for exact "
            "times, measure again on an idle machine"
        )
    return Outcome((record, *written), tuple(warnings), tuple(run.failures))


class _MeasuredRun(Struct, dict=True):
    """One run: what was measured so far, and what failed."""

    planned: PlannedRun
    reporter: Reporter
    failures: list[Failure] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)
    tables: dict[str, int] = field(default_factory=dict)
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    @cached_property
    def machine(self) -> Mapping[str, str]:
        return machine_facts(self.planned.ctx)

    def records(self) -> Iterator[Record]:
        """Measure figure by figure; yield the record so far after every cell, finally the whole."""
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
                figure.spec.name: noise_of(self.medians[index : index + 2])
                # A figure that is not done has no yardstick after it.
                for index, figure in enumerate(planned.figures[: len(self.medians) - 1])
            },
            kind=planned.kind,
        )

    def _count_rows(self, figure: PlannedFigure) -> None:
        ctx = self.planned.ctx
        for case, _ in figure.cases:
            # What is wrong with a query or its tables is reported when it is measured.
            with suppress(Exception):
                for table in prepare(ctx, ctx.workload.queries[case.query]).tables:
                    rows = ctx.tables.snapshot(table).rows
                    if rows is not None:
                        self.tables[table] = rows

    def _measured(self, figure: PlannedFigure) -> Iterator[Cell]:
        """Yield every cell as soon as it is measured and judged."""
        for case, cells in figure.cases:
            spec = self.planned.ctx.workload.queries[case.query]
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
        texts = []
        if cell.covers is False:
            texts.append(f"The maintained sketch of query `{case.query}` is too small")
        if cell.equal is False:
            texts.append(
                f"Query `{case.query}` has a different result with its sketch than without"
            )
        hint = f"please report this, with the {self.planned.kind} and its seed"
        for text in texts:
            self._failed(cell.figure, case, UnsoundSketchError(text, hint=hint), cell.labels)

    def _failed(
        self,
        figure: str,
        case: CaseSpec,
        error: ImpctlError,
        labels: Mapping[str, Label] | None = None,
    ) -> None:
        given = case.labels if labels is None else labels
        case_text = ", ".join(f"{name} {value}" for name, value in given.items())
        failure = error.saying(f"Figure `{figure}`, {case_text}: {error.message}")
        self.failures.append(Failure(case.query, failure))


def _figure(spec: FigureSpec) -> Figure:
    chart = Chart(spec.chart.x, spec.chart.y, spec.chart.series, spec.chart.log)
    return Figure(spec.name, spec.title, spec.about, chart, spec.claim, spec.source)
