"""Appends 1,000 order lines of one more day with deltalake, as any other writer would.

Usage: append_orders.py TABLE
"""

import sys
from datetime import timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

LINES = 1_000
TODAY = {"product_id": 7, "quantity": 4, "price": Decimal("480.00")}

table = DeltaTable(sys.argv[1])
known = table.to_pyarrow_table(columns=["order_id", "day"])
order, day = pc.max(known["order_id"]).as_py(), pc.max(known["day"]).as_py()
rows = [
    {
        "order_id": order + 1 + at // 2,
        "line": 1 + at % 2,
        "day": day + timedelta(days=1),
        "customer_id": at % 500,
        **TODAY,
    }
    for at in range(LINES)
]
schema = pa.schema(table.schema().to_arrow())
write_deltalake(table, pa.Table.from_pylist(rows, schema=schema), mode="append")
print(f"appended {LINES} lines of {day + timedelta(days=1)}: version {table.version()}")
