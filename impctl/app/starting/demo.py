"""The workload of `impctl init --demo`: the running example, seven sales in four price ranges.

Law: it runs offline from a folder of its own, with the table that `bench.examples` describes.
Out of scope: writing it (`app.init`).
"""

from __future__ import annotations

DEMO_QUERIES = ("q_top", "q_brand")

DEMO_TEXT = """\
# yaml-language-server: $schema=impctl.schema.json
# Seven sales, four price ranges (0 to 3), two queries, and updates to try.
version: 1
name: demo
tables:
  sales: {path: sales}
partitions:
  sales:
    price: {boundaries: [601, 1001, 1501]}
    brand: {ranges: 16}             # about equally many rows in each
queries:
  # Captured on price: ranges 2 and 3, result (Apple, 5074). After update s8: 1, 2 and 3,
  # and HP is in the result too.
  q_top:
    sql: |
      SELECT brand, SUM(price * numSold) AS rev FROM sales
      GROUP BY brand HAVING SUM(price * numSold) > 5000
    sketch: {sales: price}             # safe, because no price is negative
    policy: auto                       # or incremental, strict, full
  # New rows can raise or lower an average, so only the grouping column is safe.
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
