"""A workload of small networks, for what is measured of recursive queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from impctl.app.measuring.generate import generate
from impctl.app.workbench.reporter import SilentReporter
from impctl.app.workbench.settings import Example, GenerateRequest, Settings
from impctl.app.workbench.workbench import Workbench, open_workbench

WORKLOAD = """\
version: 1
tables:
  links: {path: links}
  near: {path: field/near}
  seed: {path: field/seed}
  triggered: {path: field/triggered}
queries:
  pairs:
    sql: >-
      WITH RECURSIVE r(x, y) AS (SELECT src, dst FROM links UNION
      SELECT l.src, r.y FROM links l JOIN r ON l.dst = r.x) SELECT x, y FROM r
    sketch: {links: src}
  few:
    sql: >-
      WITH RECURSIVE r(n) AS (SELECT dst FROM links WHERE src < 2 UNION
      SELECT l.dst FROM r JOIN links l ON r.n = l.src) SELECT n FROM r
    sketch: {links: src}
  costs:
    sql: >-
      WITH RECURSIVE p(n, c) AS (SELECT dst, cost FROM links WHERE src < 2 UNION
      SELECT l.dst, p.c + l.cost FROM p JOIN links l ON p.n = l.src)
      SELECT n, MIN(c) AS c FROM p GROUP BY n
    sketch: {links: src}
  regions:
    sql: >-
      WITH RECURSIVE a(region, sensor) AS (SELECT s.region, s.sensor FROM seed s
      JOIN triggered t ON s.sensor = t.sensor UNION SELECT a.region, n.dst FROM a
      JOIN triggered t ON a.sensor = t.sensor JOIN near n ON a.sensor = n.src)
      SELECT region, sensor FROM a
    sketch: {triggered: sensor}
  unsketched: {sql: "SELECT src FROM links WHERE dst < 3", sketch: none}
  strange: {sql: "SELECT sensor FROM triggered", sketch: {triggered: nothing}}
store: .impctl
"""


@contextmanager
def network_desk(folder: Path) -> Iterator[Workbench]:
    """The workload open, its tables written below the folder."""
    made = {"links": ("transit_stub", 100, 25, None), "field": ("sensors", 36, None, None)}
    with generated_desk(folder, WORKLOAD, made) as desk:
        yield desk


@contextmanager
def generated_desk(
    folder: Path, text: str, made: Mapping[str, tuple[str, int, int | None, int | None]]
) -> Iterator[Workbench]:
    """A workload of this text open; by table the shape, rows, groups and files of a network."""
    for table, (shape, rows, groups, files) in made.items():
        request = GenerateRequest(
            folder, Example.NETWORK, table=table, rows=rows, groups=groups, shape=shape, files=files
        )
        generate(request, SilentReporter())
    (folder / "w.yaml").write_text(text)
    with open_workbench(Settings(folder / "w.yaml")) as desk:
        yield desk
