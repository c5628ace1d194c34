"""The running example: seven sales, small enough to follow by hand.

Law: the rows never change; documents, demo and tests rest on them. Partitioned on price at 601,
1001 and 1501, brands whose revenue exceeds 5000 come from fragments 2 and 3 (Apple, 5074).
Out of scope: writing the table (`tables`).
"""

from __future__ import annotations

import pyarrow as pa

SALES_SCHEMA = pa.schema(
    [
        pa.field("sid", pa.int64()),
        pa.field("brand", pa.string()),
        pa.field("productName", pa.string()),
        pa.field("price", pa.int64()),
        pa.field("numSold", pa.int64()),
    ]
)

_ROWS = (
    (1, "Lenovo", "ThinkPad T14s Gen 2", 349, 1),
    (2, "Lenovo", "ThinkPad T14s Gen 2", 449, 2),
    (3, "Apple", "MacBook Air 13-inch", 1199, 1),
    (4, "Apple", "MacBook Pro 14-inch", 3875, 1),
    (5, "Dell", "Dell XPS 13 Laptop", 1345, 1),
    (6, "HP", "HP ProBook 450 G9", 999, 4),
    (7, "HP", "HP ProBook 550 G9", 899, 1),
)


def running_example_table() -> pa.Table:
    """The table `sales` of the running example, rows s1 to s7."""
    columns = zip(*_ROWS, strict=True)
    return pa.table([pa.array(column) for column in columns], schema=SALES_SCHEMA)
