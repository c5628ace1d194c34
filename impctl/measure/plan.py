"""Figures with their cases ready to be measured.

Every wrong option is found here, before anything is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, replace
from pathlib import Path
from typing import TYPE_CHECKING

from impctl.bench.record import Cell, RecordKind
from impctl.errors import Problem, UsageError, WorkloadError
from impctl.measure.from_workload import REPEAT, SEED, figures_of
from impctl.measure.ground import Ground
from impctl.measure.registry import MEASURES, Measure
from impctl.values import dataclass
from impctl.workload.yaml import suggestion

if TYPE_CHECKING:
    from impctl.measure.figures import CaseSpec, FigureSpec
    from impctl.service.context import Workbench
    from impctl.service.settings import MeasureRequest
    from impctl.types import QueryName

DataFacts = Sequence[Mapping[str, object]]
"""How the tables of a case were generated; part of its fingerprint."""


def _no_data(case: CaseSpec) -> DataFacts:
    return ()


@dataclass(frozen=True, slots=True)
class PlannedFigure:
    """A figure with its cases, each with the cells that measuring it will give."""

    spec: FigureSpec
    measure: Measure
    cases: tuple[tuple[CaseSpec, Iterator[Cell]], ...]


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run that is ready to start; the noise of the machine is measured in `folder`."""

    desk: Workbench
    figures: tuple[PlannedFigure, ...]
    _: KW_ONLY
    name: str
    title: str
    scale: float
    repeat: int
    seed: int
    folder: Path
    kind: RecordKind
    data_of: Callable[[CaseSpec], DataFacts] = _no_data


def planned_workload(
    desk: Workbench,
    request: MeasureRequest,
    queries: Sequence[QueryName] | None,
    delta_rows: Sequence[int],
    folder: Path,
) -> PlannedRun:
    """The figures of the open workload."""
    workload = desk.workload
    figures = figures_of(workload, desk.sketched(queries), delta_rows)
    repeat = REPEAT if request.repeat is None else request.repeat
    chosen = chosen_figures(figures, request.only)
    return PlannedRun(
        desk,
        planned_figures(desk, chosen, MEASURES, repeat=repeat, seed=SEED, scale=1.0),
        name=workload.name,
        title=f"Workload {workload.name}",
        scale=1.0,
        repeat=repeat,
        seed=SEED,
        folder=folder,
        kind=RecordKind.WORKLOAD,
    )


def chosen_figures(figures: Sequence[FigureSpec], names: Sequence[str]) -> tuple[FigureSpec, ...]:
    """The figures with these names, all without names; UsageError for an unknown one."""
    known: Mapping[str, FigureSpec] = {figure.name: figure for figure in figures}
    for name in names:
        if name not in known:
            raise UsageError(
                f"There is no figure `{name}`",
                code="figure_unknown",
                hint=suggestion(name, list(known), "the figures"),
            )
    return tuple(known[name] for name in dict.fromkeys(names)) if names else tuple(figures)


def planned_figures(
    desk: Workbench,
    figures: Sequence[FigureSpec],
    measures: Mapping[str, Measure],
    *,
    repeat: int,
    seed: int,
    scale: float,
) -> tuple[PlannedFigure, ...]:
    """The measures called for every case, which reads their options."""
    problems: list[Problem] = []
    planned: list[PlannedFigure] = []
    for figure in figures:
        measure = measures[figure.measure]
        cases: list[tuple[CaseSpec, Iterator[Cell]]] = []
        for case in figure.cases:
            ground = Ground(desk, replace(figure, cases=(case,)), repeat, seed, scale)
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
