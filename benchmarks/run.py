"""Runs a suite: reads its file, generates its tables, measures its figures.

Everything that can be wrong with a suite is found before a table is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from benchmarks.data import DataRequest, Example, make_data, requests_of
from benchmarks.figures import CaseSpec, FigureSpec, SuiteCase
from benchmarks.registry import MEASURES
from benchmarks.suite import MAX_SCALE, DataSpec, Suite, load_suite, suite_file, suite_files
from impctl.bench.record import Record, RecordKind
from impctl.errors import Problem, UsageError, WorkloadError, count_text
from impctl.measure.files import check_outputs
from impctl.measure.run import (
    PlannedFigure,
    PlannedRun,
    chosen_figures,
    fingerprint,
    measured,
    words_of,
)
from impctl.service.context import Context, Reporter
from impctl.service.results import Outcome
from impctl.service.settings import MeasureRequest, Settings
from impctl.workload.yaml import shown, suggestion

DEFAULT_FOLDER = Path(".impctl") / "suites"
"""Parent of the folders with generated data, one for each suite."""


class SuiteRequest(Struct, frozen=True):
    """A suite to run, by name or path; None leaves a choice to the suite.

    `folder` holds the generated data; `source` is what examples are made from that are not drawn
    at random.
    """

    suite: str
    scale: float | None = None
    folder: Path | None = None
    source: Path | None = None
    spark_profile: Path | None = None
    figures: MeasureRequest = MeasureRequest()


class PlannedSuite(Struct, frozen=True):
    """A suite that is ready to be measured, and the tables it needs."""

    run: PlannedRun
    data: tuple[DataRequest, ...]


def run_suite(request: SuiteRequest, reporter: Reporter) -> Outcome:
    """The record, the files asked for, and what failed."""
    with planned_suite(request, reporter) as planned:
        check_outputs(request.figures, planned.run.ctx.reserved)
        make_data(planned.data, planned.run.folder, reporter)
        return measured(planned.run, request.figures, reporter)


@contextmanager
def planned_suite(request: SuiteRequest, reporter: Reporter) -> Iterator[PlannedSuite]:
    """The suite as asked for; WorkloadError lists everything wrong with its file."""
    path = suite_file(request.suite)
    folder = DEFAULT_FOLDER / path.stem if request.folder is None else request.folder
    suite = _loaded(path, folder)
    scale = suite.scale if request.scale is None else request.scale
    if not 0 < scale <= MAX_SCALE:
        raise UsageError(
            f"The scale must be above 0 and at most {MAX_SCALE}: {scale:g}",
            hint="1 is the full size of the suite",
        )
    named = {figure.name: figure for figure in suite.figures_at(scale)}
    figures = chosen_figures(named, request.figures.only)
    repeat = suite.repeat if request.figures.repeat is None else request.figures.repeat
    settings = Settings(path, spark_profile=request.spark_profile)
    with closing(Context(settings, suite.workload, reporter)) as ctx:
        check_charts(figures)
        cases = [case for figure in figures for case in figure.cases]
        specs = data_read(suite, cases, folder)
        data = requests_of(specs, scale=scale, seed=suite.seed, source=request.source)

        def data_of(case: CaseSpec) -> Sequence[Mapping[str, object]]:
            read = {spec.name for spec in data_read(suite, [case], folder)}
            # The rows of its tables identify a source: its place and time differ by machine.
            return [{**asdict(one), "source": None} for one in data if one.name in read]

        record = Record(
            suite=suite.name,
            title=suite.title,
            scale=scale,
            repeat=repeat,
            seed=suite.seed,
            kind=RecordKind.SUITE,
        )
        planned = planned_figures(ctx, figures, record, data_of)
        yield PlannedSuite(PlannedRun(ctx, planned, record, folder), data)


def planned_figures(
    ctx: Context,
    figures: Sequence[FigureSpec],
    record: Record,
    data_of: Callable[[CaseSpec], Sequence[Mapping[str, object]]] = lambda case: (),
) -> tuple[PlannedFigure, ...]:
    """Call the measures for every case, which reads their options; WorkloadError lists every wrong
    one."""
    problems: list[Problem] = []
    result = []
    for spec in figures:
        measure = MEASURES[spec.measure]
        options = {
            name: spec.options[name] for name in spec.options if name not in measure.labelled
        }
        planned = []
        try:
            for one in spec.cases:
                case = SuiteCase(
                    ctx=ctx,
                    figure=spec.name,
                    query=ctx.workload.queries[one.query],
                    labels=one.labels,
                    repeat=record.repeat,
                    seed=record.seed,
                    spec=spec,
                    location=one.location,
                    scale=record.scale,
                )
                cells = measure.run(case)
                planned.append(
                    (case, fingerprint(case, spec.measure, options, data_of(one)), cells)
                )
        except WorkloadError as error:
            # The options belong to the figure, so one case reports every problem.
            problems += error.problems
        result.append(PlannedFigure(spec.figure, tuple(planned)))
    if problems:
        count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise WorkloadError(f"The figures have {count}", problems)
    return tuple(result)


def data_read(suite: Suite, cases: Sequence[CaseSpec], folder: Path) -> tuple[DataSpec, ...]:
    """The data whose tables a query of the cases may read: those its text names."""
    texts = [suite.workload.queries[case.query].sql for case in cases]
    words = frozenset[str]().union(*map(words_of, texts))
    base = folder.absolute()
    used = {
        Path(table.path).relative_to(base).parts[0]
        for name, table in suite.workload.tables.items()
        if name.lower() in words and Path(table.path).is_relative_to(base)
    }
    return tuple(spec for name, spec in suite.data.items() if name in used)


def list_suites(reporter: Reporter) -> str:
    """A line for each suite, with its figures and the number of its cases at full size."""
    lines = []
    for path in suite_files().values():
        suite = checked_suite(path, reporter)
        figures = suite.figures_at(1.0)
        cases = count_text(sum(len(figure.cases) for figure in figures), "case")
        lines.append(f"{suite.name}: {suite.title} ({cases})")
        lines.append("  " + ", ".join(figure.name for figure in figures))
    return "\n".join(lines)


def checked_suite(path: Path, reporter: Reporter) -> Suite:
    """The suite, whose figures can be measured at its own scale and at full size."""
    suite = _loaded(path, DEFAULT_FOLDER)
    with closing(Context(Settings(path), suite.workload, reporter)) as ctx:
        for scale in sorted({suite.scale, 1.0}):
            figures = suite.figures_at(scale)
            check_charts(figures)
            record = Record(
                suite=suite.name, title=suite.title, scale=scale, repeat=1, seed=suite.seed
            )
            planned_figures(ctx, figures, record)
    return suite


def check_charts(figures: Sequence[FigureSpec]) -> None:
    """WorkloadError where a chart names a label or metric that no cell of its figure has."""
    problems = [problem for figure in figures for problem in _chart_problems(figure)]
    if problems:
        raise WorkloadError("The charts of the figures are wrong", problems)


def _chart_problems(figure: FigureSpec) -> list[Problem]:
    """One for every name of the chart that no cell of the figure can have."""
    drawable = MEASURES[figure.measure].drawable
    chart = figure.figure.chart
    own_labels = dict.fromkeys(label for case in figure.cases for label in case.labels)
    labels = (*own_labels, *drawable.labels)
    wrong = [("label", name, labels) for name in (chart.x, *chart.series) if name not in labels]
    wrong += [("metric", name, drawable.metrics) for name in chart.y if not drawable.has(name)]
    return [_chart_problem(figure, *result) for result in wrong]


def _chart_problem(figure: FigureSpec, kind: str, name: str, known: Sequence[str]) -> Problem:
    text = f"The chart of figure `{figure.name}` names no {kind} of its cells: {shown(name)}"
    return Problem(text, figure.location, suggestion(name, known, f"the {kind}s"))


def _loaded(path: Path, folder: Path) -> Suite:
    return load_suite(path, folder, tuple(Example), tuple(MEASURES))
