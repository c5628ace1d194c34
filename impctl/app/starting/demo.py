"""The workload of `impctl init --demo`: a dashboard over the order lines of a shop.

It needs no network and no Spark. The queries are those of `make demo` (`workloads/orders.yaml`).
"""

from __future__ import annotations

DEMO_QUERIES = ("best_days", "large_orders", "best_customers")
DEMO_ROWS = 1_000_000

DEMO_TEXT = """\
# yaml-language-server: $schema=impctl.schema.json
# A million order lines in 200 files, appended by time, and three queries of a dashboard.
#
# The first two need few files, because day and order_id rise with time. The third one needs every
# file: its customers order all the time, so that only its materialized result makes it faster.
version: 1
name: demo
tables:
  orders: {path: orders}
queries:
  best_days:
    sql: |
      SELECT day, SUM(quantity * price) AS revenue FROM orders
      GROUP BY day ORDER BY revenue DESC, day LIMIT 20
    answer: true                       # keep the result as well: a materialized result
    policy: auto                       # or incremental, strict, full
  large_orders:
    sql: |
      SELECT order_id, SUM(quantity * price) AS total FROM orders
      GROUP BY order_id HAVING SUM(quantity * price) > 5000
    answer: true
  best_customers:
    sql: |
      SELECT customer_id, SUM(quantity * price) AS spent FROM orders
      GROUP BY customer_id ORDER BY spent DESC, customer_id LIMIT 10
    answer: true
updates:
  # One large order on a new day, to try `impctl apply` with; real tables have their own writers.
  - name: one-order
    insert:
      table: orders
      rows:
        - order_id: 90000001
          line: 1
          day: 2026-10-01
          customer_id: 7
          product_id: 1
          quantity: 900
          price: 499.00
  - {name: cancelled, delete: {table: orders, where: "order_id = 90000001"}}
store: .impctl
spark: {master: "local[2]", conf: {spark.driver.memory: 1g}}
"""
