"""Tables that Spark's own catalogs know, in memory and in Derby: `path: catalog://shop.sales`.

Each catalog in a process of its own, since a session keeps the kind it was started with.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from impctl.tables.write.maintenance import create_table
from tests.names.conftest import ROWS

pytestmark = pytest.mark.spark

SCRIPT = """
import sys
import impctl
from pyspark.sql import SparkSession

folder, kind = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.sql.catalogImplementation", kind)
    .config("spark.sql.warehouse.dir", folder + "/warehouse")
    .config("spark.driver.extraJavaOptions", "-Dderby.system.home=" + folder)
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
spark.sql("CREATE DATABASE shop")
columns = "(g BIGINT, x BIGINT, Location STRING)"
spark.sql(f"CREATE TABLE shop.sales {columns} USING parquet LOCATION '{folder}/some sales'")
spark.sql("CREATE VIEW shop.seen AS SELECT 1 AS g")
with impctl.open(folder + "/w.yaml", spark=spark) as work:
    work.capture("big")
    print([list(row) for row in work.query("big").rows])
    for name in ("gone", "seen"):
        try:
            work.capture(name)
        except impctl.ImpctlError as error:
            print(error.code, error.message)
"""
WORKLOAD = """\
version: 1
tables:
  sales: {path: catalog://shop.sales}
  none: {path: "catalog://spark_catalog.shop.`none`"}
  view: {path: catalog://shop.seen}
partitions: {sales: {g: {boundaries: [2, 4, 6]}}}
queries:
  big: {sql: "SELECT g, COUNT(*) AS n FROM shop.sales GROUP BY g HAVING COUNT(*) >= 3"}
  gone: {sql: SELECT g FROM shop.none GROUP BY g HAVING COUNT(*) >= 3}
  seen: {sql: SELECT g FROM shop.seen GROUP BY g HAVING COUNT(*) >= 3}
"""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("launched_here")
@pytest.mark.parametrize("kind", ["in-memory", "hive"])
def test_a_table_is_found_where_the_catalog_says(tmp_path: Path, kind: str) -> None:
    create_table(str(tmp_path / "some sales"), ROWS)
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    ran = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, str(tmp_path), kind],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
        check=False,
    )
    lines = ran.stdout.splitlines()
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert sorted(json.loads(lines[0])) == [[0, 3], [3, 3]]
    assert lines[1].startswith("catalog_table_unknown"), lines
    assert lines[2].startswith("catalog_table_unknown"), lines
    assert "no location" in lines[2]
