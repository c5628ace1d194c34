"""Cells of a measure as a suite would run it, and a workload of small joined tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.data import DataRequest
from benchmarks.registry import MEASURES
from benchmarks.tables import write_graph, write_partners
from impctl.bench.record import Cell
from impctl.errors import Location
from impctl.measure.figures import CaseContext, CaseSpec, ChartSpec, FigureSpec
from impctl.service.context import Context, SilentReporter, open_context
from impctl.service.settings import Settings


def cells_of(ground: CaseContext) -> list[Cell]:
    """All cells; whatever is in them can be drawn by what the measure says of itself."""
    measure = MEASURES[ground.figure.measure]
    result = list(measure.run(ground))
    for cell in result:
        assert cell.labels.keys() <= set(measure.drawable.labels)
        assert all(map(measure.drawable.has, cell.metrics))
    return result


def ground_of(
    ctx: Any, measure: str, query: str, *, repeat: int = 2, scale: float = 1.0, **options: Any
) -> CaseContext:
    """A figure with one case, of this query; by default repeated once."""
    place = Location("s.yaml", 1, 1)
    texts = {"name": "f", "title": "F", "about": "", "claim": "", "source": "", "measure": measure}
    case, chart = CaseSpec(query, {}, place), ChartSpec("x", ("y",), (), ())
    figure = FigureSpec(**texts, options=options, cases=(case,), chart=chart, location=place)
    return CaseContext(ctx, figure, repeat, seed=1, scale=scale)


def values(cell: Cell) -> Mapping[str, float]:
    """The median of each metric."""
    return {name: metric.median for name, metric in cell.metrics.items()}


WORKLOAD = """\
version: 1
tables:
  r: {path: r}
  s: {path: s}
  m: {path: m}
  g: {path: g}
queries:
  pair:
    sql: SELECT r.a, SUM(s.b) AS t FROM s JOIN r ON s.a = r.a GROUP BY r.a HAVING SUM(s.b) > 4900
    sketch: {r: id, s: id}
  path:
    sql: >-
      SELECT m.a, COUNT(*) AS n FROM r JOIN m ON r.a = m.a JOIN s ON m.c = s.c GROUP BY m.a
      HAVING SUM(s.b) > 4900
    sketch: {r: id, m: c, s: a}
  no_group:
    sql: SELECT COUNT(*) AS n FROM r JOIN m ON r.a = m.a WHERE r.b < 50 HAVING COUNT(*) > 9999
    sketch: {r: id, m: id}
  hop3:
    sql: >-
      SELECT g1.src, g3.dst FROM g g1 JOIN g g2 ON g1.dst = g2.src JOIN g g3 ON g2.dst = g3.src
      WHERE g3.value < 300
    sketch: {g: id}
  dead_ends:
    sql: >-
      SELECT g1.src FROM g g1 JOIN g g2 ON g1.dst = g2.src
      WHERE NOT EXISTS (SELECT 1 FROM m WHERE m.a = g2.dst)
      AND EXISTS (SELECT 1 FROM s WHERE s.a = g1.src AND s.b < 50)
    sketch: {g: id, s: id}
  kept:
    sql: SELECT r.a FROM r LEFT JOIN m ON r.a = m.a JOIN s ON r.c = s.c WHERE s.b < 20
    sketch: {r: id, s: id}
  triangle:
    sql: >-
      SELECT a.src FROM g a JOIN g b ON a.dst = b.src JOIN g c ON b.dst = c.src AND c.dst = a.src
      JOIN g e ON a.src = e.src
    sketch: {g: src}
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
def joined_desk(folder: Path) -> Iterator[Context]:
    """The workload open, its tables written below the folder."""
    for table, rows, keys, seed in (("r", 200, 20, 1), ("s", 200, 20, 2), ("m", 30, 10, 3)):
        request = DataRequest(table, "partners", rows=rows, groups=keys, seed=seed)
        write_partners(request, folder, SilentReporter())
    graph = DataRequest("g", "graph", rows=300, groups=60, seed=4)
    write_graph(graph, folder, SilentReporter())
    (folder / "w.yaml").write_text(WORKLOAD)
    with open_context(Settings(folder / "w.yaml")) as ctx:
        yield ctx
