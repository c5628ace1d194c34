"""The running example in a folder: seven sales, four price ranges, two queries, three updates."""

from __future__ import annotations

from pathlib import Path

from impctl.bench.data import running_example_table
from impctl.tables.write.maintenance import create_table

_TEXT = """\
# Seven sales, four price ranges (0 to 3), two dashboards, and updates to try.
version: 1
name: demo
tables:
  sales: {path: sales}
partitions:
  sales:
    price: {boundaries: [601, 1001, 1501]}
    brand: {ranges: 16}             # about equally many rows in each
queries:
  # Captured on price: ranges 2 and 3, result (Apple, 5074). After s8: 1, 2 and 3, and HP joins.
  q_top:
    sql: |
      SELECT brand, SUM(price * numSold) AS rev FROM sales
      GROUP BY brand HAVING SUM(price * numSold) > 5000
    sketch: {sales: price}             # safe, because no price is negative
    policy: auto                       # or incremental, strict, full
  # An average moves both ways as rows come and go, so only the grouping column is safe.
  q_brand:
    sql: |
      SELECT brand, AVG(price) AS avg_price FROM sales
      GROUP BY brand HAVING AVG(price) > 1000
    sketch: {sales: brand}
    maintain: eager                    # a sketch for every version; lazy is the default
updates:
  - name: s8
    insert:
      table: sales
      rows:
        - {sid: 8, brand: HP, productName: "HP ProBook 650 G10", price: 1299, numSold: 1}
  - {name: old, delete: {table: sales, where: "sid = 3"}}
  - {name: raise, update: {table: sales, set: {price: "price * 1.1"}, where: "brand = 'Dell'"}}
store: .impctl
spark: {master: "local[2]", conf: {spark.driver.memory: 1g}}
"""


def write_running_example(folder: Path) -> Path:
    """The workload file `demo.yaml`, beside the table that it names."""
    folder.mkdir(parents=True, exist_ok=True)
    create_table(str(folder / "sales"), running_example_table())
    file = folder / "demo.yaml"
    file.write_text(_TEXT, encoding="utf-8")
    return file
