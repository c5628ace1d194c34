"""Run a measure as a suite would, and a workload of small joined tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.data import DataRequest
from benchmarks.figures import FigureSpec, SuiteCase
from benchmarks.registry import MEASURES
from benchmarks.tables import write_graph, write_partners
from impctl.bench.record import Cell, Chart, Figure
from impctl.errors import Location
from impctl.service.context import Context, SilentReporter, open_context
from impctl.service.settings import Settings


def cells_of(case: SuiteCase) -> list[Cell]:
    """Measure all cells, and check that their labels and metrics are declared as drawable."""
    measure = MEASURES[case.spec.measure]
    result = list(measure.run(case))
    for cell in result:
        assert cell.labels.keys() <= set(measure.drawable.labels)
        assert all(map(measure.drawable.has, cell.metrics))
    return result


def case_of(
    ctx: Any, measure: str, query: str, *, repeat: int = 2, scale: float = 1.0, **options: Any
) -> SuiteCase:
    """Return a figure with one case, for this query; by default repeated twice."""
    location = Location("s.yaml", 1, 1)
    figure = Figure("f", "F", "", Chart("x", ("y",)))
    spec = FigureSpec(figure=figure, measure=measure, options=options, cases=(), location=location)
    return SuiteCase(
        ctx=ctx,
        figure="f",
        query=None if ctx is None else ctx.workload.queries[query],
        labels={},
        repeat=repeat,
        seed=1,
        spec=spec,
        location=location,
        scale=scale,
    )


def values(cell: Cell) -> Mapping[str, float]:
    """Return the median of each metric."""
    return {name: metric.median for name, metric in cell.metrics.items()}


WORKLOAD = """\
version: 1
tables: {r: {path: r}, s: {path: s}, g: {path: g}}
queries:
  pair:
    sql: SELECT r.a, SUM(s.b) AS t FROM s JOIN r ON s.a = r.a GROUP BY r.a HAVING SUM(s.b) > 4900
    sketch: {r: id, s: id}
  hop3:
    sql: >-
      SELECT g1.src, g3.dst FROM g g1 JOIN g g2 ON g1.dst = g2.src JOIN g g3 ON g2.dst = g3.src
      WHERE g3.value < 300
    sketch: {g: id}
  top:
    sql: >-
      SELECT r.a, COUNT(*) AS n FROM r JOIN s ON r.a = s.a GROUP BY r.a ORDER BY n DESC, r.a LIMIT 3
    sketch: {r: id, s: id}
  both:
    sql: >-
      SELECT r.a FROM r JOIN s ON r.a = s.a WHERE r.b < 10 UNION ALL
      SELECT r.a FROM r JOIN s ON r.c = s.c WHERE s.b < 10
    sketch: {r: id, s: id}
  single: {sql: SELECT a FROM r WHERE b < 5, sketch: {r: id}}
store: .impctl
"""


@contextmanager
def joined_context(folder: Path) -> Iterator[Context]:
    """Open the workload, with its tables written below the folder."""
    for table, seed in (("r", 1), ("s", 2)):
        request = DataRequest(table, "partners", rows=200, groups=20, seed=seed)
        write_partners(request, folder, SilentReporter())
    graph = DataRequest("g", "graph", rows=300, groups=60, seed=4)
    write_graph(graph, folder, SilentReporter())
    (folder / "w.yaml").write_text(WORKLOAD)
    with open_context(Settings(folder / "w.yaml")) as ctx:
        yield ctx
