"""A shop with three tables, whose names have one, two and three parts."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Cli

WORKLOAD = """\
version: 1
catalog: main
schema: shop
tables:
  sales: {path: sales, names: [legacy.Umsatz, "hive_metastore.`old shop`.sales"]}
  hr.people: {path: people}
  "crm.`big data`.orders": {path: orders}
partitions:
  main.shop.sales:
    g: {boundaries: [2, 4, 6]}
  hr.people:
    g: {boundaries: [3, 5]}
  "crm.`big data`.orders":
    g: {boundaries: [3, 5]}
queries:
  big:
    sql: SELECT g, COUNT(*) AS n, SUM(x) AS s FROM shop.sales GROUP BY g HAVING COUNT(*) >= 2
    sketch: {Sales: g}
  joined:
    sql: |
      SELECT s.g, COUNT(*) AS n FROM sales s JOIN hr.people ON people.g = s.g
      GROUP BY s.g HAVING COUNT(*) >= 3
    sketch: {sales: g}
  ordered:
    sql: |
      SELECT g, SUM(x) AS s FROM crm.`big data`.orders GROUP BY g HAVING SUM(x) > 40
    sketch: {"crm.`big data`.orders": g}
store: .impctl
spark: {master: "local[2]"}
"""

ROWS = pa.table(
    {
        "g": pa.array([0, 0, 0, 1, 3, 3, 3, 5, 7, None], pa.int64()),
        "x": pa.array([5, 15, 25, 5, 5, 15, 25, 5, 15, 25], pa.int64()),
    }
)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """The folder with the tables and the workload."""
    for name in ("sales", "people", "orders"):
        create_table(str(tmp_path / name), ROWS)
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    return tmp_path


@pytest.fixture
def cli(shop: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys, shop / "w.yaml")
