"""A suite read and checked: its figures, the data they need, and their cases ready to be measured.

Law: everything that can be wrong with a suite is found here, before a table is written or a second
measured. A workload is planned as the suite that is made from it, which needs no data.
Out of scope: generating (`app.measuring.data`), measuring (`app.measuring.run`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from impctl.aliases import QueryName
from impctl.app.measuring.charts import chart_problems
from impctl.app.measuring.data import DataRequest, requests_of
from impctl.app.measuring.from_workload import suite_of
from impctl.app.measuring.ground import Ground, words_of
from impctl.app.measuring.registry import MEASURES
from impctl.app.measuring.shipped import shipped_suites, suite_file, unknown_suite
from impctl.app.results.made import SuiteResult
from impctl.app.results.results import Outcome
from impctl.app.workbench.reporter import Reporter
from impctl.app.workbench.settings import Example, Settings, SuiteRequest
from impctl.app.workbench.workbench import Workbench
from impctl.bench.record import Cell, RecordKind
from impctl.errors import Problem, UsageError, WorkloadError
from impctl.values import dataclass
from impctl.workload.reading import suggestion
from impctl.workload.suite_models import CaseSpec, DataSpec, FigureSpec, Suite
from impctl.workload.suite_schema import suite_json_schema
from impctl.workload.suites import MAX_SCALE, Vocabulary, load_suite

VOCABULARY = Vocabulary(tuple(str(example) for example in Example), tuple(MEASURES))

DEFAULT_FOLDER = Path(".impctl") / "suites"
"""Where generated data lies without `--data`, each suite in a folder of its own."""


@dataclass(frozen=True, slots=True)
class PlannedFigure:
    """A figure with its cases, each with the cells that measuring it will give."""

    spec: FigureSpec
    cases: tuple[tuple[CaseSpec, Iterator[Cell]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSuite:
    """A run of a suite, ready to start."""

    suite: Suite
    scale: float
    repeat: int
    folder: Path
    desk: Workbench
    data: tuple[DataRequest, ...]
    figures: tuple[PlannedFigure, ...]
    kind: RecordKind = RecordKind.SUITE


def planned_suite(request: SuiteRequest, reporter: Reporter) -> PlannedSuite:
    """The suite as asked for; WorkloadError lists everything wrong with its file."""
    path = suite_file(request.suite)
    if path is None:
        raise unknown_suite(request.suite)
    folder = DEFAULT_FOLDER / path.stem if request.folder is None else request.folder
    suite = load_suite(path, os.environ, folder, VOCABULARY)
    scale = suite.scale if request.scale is None else request.scale
    if not 0 < scale <= MAX_SCALE:
        raise UsageError(
            f"The scale must be above 0 and at most {MAX_SCALE}: {scale:g}",
            hint="1 is the full size of the suite",
        )
    figures = tuple(figure.at(scale) for figure in _chosen(suite, request.only))
    repeat = suite.repeat if request.repeat is None else request.repeat
    settings = Settings(path, spark_profile=request.spark_profile)
    desk = Workbench(settings, suite.workload, reporter)
    planned = _planned(desk, figures, repeat, suite.seed, scale)
    data = requests_of(
        data_read(suite, figures, folder), scale=scale, seed=suite.seed, source=request.source
    )
    return PlannedSuite(
        suite=suite,
        scale=scale,
        repeat=repeat,
        folder=folder,
        desk=desk,
        data=data,
        figures=planned,
    )


def planned_workload(
    desk: Workbench,
    request: SuiteRequest,
    queries: Sequence[QueryName] | None,
    delta_rows: Sequence[int],
    folder: Path,
) -> PlannedSuite:
    """The open workload as a suite; the noise is measured in `folder`."""
    suite = suite_of(desk.workload, desk.sketched(queries), delta_rows)
    repeat = suite.repeat if request.repeat is None else request.repeat
    figures = _planned(desk, _chosen(suite, request.only), repeat, suite.seed, suite.scale)
    return PlannedSuite(
        suite=suite,
        scale=suite.scale,
        repeat=repeat,
        folder=folder,
        desk=desk,
        data=(),
        figures=figures,
        kind=RecordKind.WORKLOAD,
    )


def data_read(suite: Suite, figures: Sequence[FigureSpec], folder: Path) -> tuple[DataSpec, ...]:
    """The data whose tables a query of the figures may read: those its text names."""
    texts = [suite.workload.queries[case.query].sql for fig in figures for case in fig.cases]
    words = frozenset[str]().union(*map(words_of, texts))
    base = folder.absolute()
    used = {
        Path(table.path).relative_to(base).parts[0]
        for name, table in suite.workload.tables.items()
        if name.lower() in words and Path(table.path).is_relative_to(base)
    }
    return tuple(spec for name, spec in suite.data.items() if name in used)


def check_suite(word: str, reporter: Reporter) -> Outcome:
    """Whether a suite is right, without what its data are made from."""
    path = suite_file(word)
    if path is None:
        raise unknown_suite(word)
    return Outcome((_described(path, reporter),))


def list_suites(reporter: Reporter) -> Outcome:
    """The shipped suites."""
    return Outcome(tuple(_described(path, reporter) for path in shipped_suites().values()))


def _described(path: Path, reporter: Reporter) -> SuiteResult:
    suite = load_suite(path, os.environ, DEFAULT_FOLDER, VOCABULARY)
    desk = Workbench(Settings(path), suite.workload, reporter)
    for scale in sorted({suite.scale, 1.0}):
        at_scale = [figure.at(scale) for figure in suite.figures]
        _planned(desk, at_scale, suite.repeat, suite.seed, scale)
    names = tuple(figure.name for figure in suite.figures)
    # All there are: some belong to the full size alone.
    cases = sum(len(figure.at(1.0).cases) for figure in suite.figures)
    return SuiteResult(suite.name, suite.title, suite.file, tuple(suite.data), names, cases)


def suite_schema_text() -> str:
    """The JSON Schema of suite files, for editors."""
    return json.dumps(suite_json_schema(VOCABULARY), indent=2) + "\n"


def _chosen(suite: Suite, names: Sequence[str]) -> tuple[FigureSpec, ...]:
    known: Mapping[str, FigureSpec] = {figure.name: figure for figure in suite.figures}
    for name in names:
        if name not in known:
            raise UsageError(
                f"Suite `{suite.name}` has no figure `{name}`",
                code="figure_unknown",
                hint=suggestion(name, list(known), "its figures"),
            )
    return tuple(known[name] for name in dict.fromkeys(names)) if names else suite.figures


def _planned(
    desk: Workbench, figures: Sequence[FigureSpec], repeat: int, seed: int, scale: float
) -> tuple[PlannedFigure, ...]:
    """The measures called for every case, which reads their options."""
    problems: list[Problem] = []
    planned: list[PlannedFigure] = []
    for figure in figures:
        problems += chart_problems(figure)
        cases: list[tuple[CaseSpec, Iterator[Cell]]] = []
        for case in figure.cases:
            ground = Ground(desk, replace(figure, cases=(case,)), repeat, seed, scale)
            try:
                cases.append((case, MEASURES[figure.measure].run(ground)))
            except WorkloadError as error:
                # The options are the figure's: one case tells all there is to tell.
                problems += error.problems
                break
        planned.append(PlannedFigure(figure, tuple(cases)))
    if problems:
        count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise WorkloadError(f"The figures have {count}", problems)
    return tuple(planned)
