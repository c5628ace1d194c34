"""Three small tables, queries of every shape over them, and random changes.

Law: a seed determines a run, because everything is drawn from the given generator. Tables stay
small enough for the slow reference. Out of scope: committing the changes (`tests.soak.writer`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake
from msgspec import Struct

WORKLOAD = """\
version: 1
tables:
  orders: {path: orders}
  shops: {path: shops}
  returns: {path: returns}
partitions:
  orders:
    shop: {boundaries: [3, 6, 9, 12, 15, 18, 21]}
    day: {ranges: 4}
    amount: {boundaries: [8, 16, 24, 32]}
  shops:
    shop: {boundaries: [5, 10, 15, 20]}
    region: {boundaries: [c, e, g]}
  returns:
    shop: {ranges: 5}
    amount: {boundaries: [10, 20, 30]}
defaults: {answer: true}
queries:
  by_shop:
    sql: >-
      SELECT shop, COUNT(*) AS n, SUM(amount) AS s FROM orders
      GROUP BY shop HAVING COUNT(*) > :least
    params: {least: 5}
    sketch: {orders: shop}
  by_day:
    sql: >-
      SELECT day, MIN(amount) AS low, MAX(amount) AS high, AVG(price) AS mean
      FROM orders WHERE shop < 20 GROUP BY day HAVING MIN(amount) > 2 OR AVG(price) > 15.1
    sketch: {orders: day}
    maintain: eager
  top:
    sql: >-
      SELECT shop, SUM(amount) AS total FROM orders WHERE day > 1
      GROUP BY shop ORDER BY total DESC, shop LIMIT 3
    sketch: {orders: shop}
  regions:
    sql: >-
      SELECT s.region, COUNT(*) AS n, SUM(o.amount) AS total FROM orders o JOIN shops s
      ON o.shop = s.shop GROUP BY s.region HAVING SUM(o.amount) > 250
    sketch: {orders: shop, shops: region}
    maintain: eager
  both:
    sql: >-
      SELECT o.shop, COUNT(*) AS n, MAX(s.size) AS size FROM orders o JOIN shops s
      ON o.shop = s.shop WHERE o.amount > 6 GROUP BY o.shop HAVING COUNT(*) > 4
    sketch: {orders: shop, shops: shop}
  largest:
    sql: SELECT shop, MAX(amount) AS high FROM returns GROUP BY shop HAVING MAX(amount) > 35
    sketch: {returns: amount}
    answer: false
  last_returns:
    sql: SELECT shop, amount, note FROM returns ORDER BY amount DESC, shop, note LIMIT 4
    sketch: {returns: amount}
store: .impctl
"""
"""Two joins, a top-k of groups and one of rows, MIN, MAX and HAVING. None ever needs Spark.

All but one have materialized results.
"""

_FEED = {"delta.enableChangeDataFeed": "true"}
_SHOPS = 25
_SIZES = {"orders": 150, "shops": 28, "returns": 60}
TABLES = tuple(_SIZES)
SCHEMAS = {
    "orders": pa.schema(
        {"shop": pa.int64(), "day": pa.int32(), "amount": pa.int64(), "price": pa.float64()}
    ),
    "shops": pa.schema([("shop", pa.int64()), ("region", pa.string()), ("size", pa.int64())]),
    "returns": pa.schema([("shop", pa.int64()), ("amount", pa.int64()), ("note", pa.string())]),
}
_COLUMNS: dict[str, Callable[[random.Random], object]] = {
    "shop": lambda draw: draw.choice([None, *range(_SHOPS)]),
    "day": lambda draw: draw.choice([None, *range(12)]),
    "amount": lambda draw: draw.choice([None, *range(41)]),
    # Multiples of a quarter: their sums are exact in any order.
    "price": lambda draw: draw.choice([None, *(n / 4 for n in range(100))]),
    "region": lambda draw: draw.choice([None, *"abcdefgh"]),
    "size": lambda draw: draw.randrange(100),
    "note": lambda draw: draw.choice([None, "", "late", "broken", "é"]),
}


class Change(Struct, frozen=True):
    """One commit to a table; `text` is a predicate, `updates` SQL by column."""

    kind: str
    path: str
    rows: pa.Table | None = None
    text: str | None = None
    updates: dict[str, str] | None = None


def write_tables(folder: Path, draw: random.Random) -> Path:
    """Create the tables and the workload file."""
    for table, size in _SIZES.items():
        feed = {} if table == "returns" else _FEED  # without a feed, files are compared
        write_deltalake(str(folder / table), some_rows(draw, table, size), configuration=feed)
    file = folder / "w.yaml"
    file.write_text(WORKLOAD)
    return file


def some_rows(draw: random.Random, table: str, count: int) -> pa.Table:
    schema = SCHEMAS[table]
    columns = [pa.array([_COLUMNS[f.name](draw) for _ in range(count)], f.type) for f in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def some_change(draw: random.Random, folder: Path, rows: dict[str, int]) -> Change:
    """A random change of a table; `rows` are the current row counts."""
    table = draw.choices(TABLES, [6, 2, 4])[0]
    path, size = str(folder / table), _SIZES[table]
    if rows[table] > 2 * size:
        return Change("delete", path, text=f"shop % 3 = {draw.randrange(3)}")
    kinds = ("append", "delete", "update", "overwrite", "optimize", "restore")
    kind = draw.choices(kinds, [12, 7, 6, 1, 2, 1])[0]
    if kind in ("append", "overwrite"):
        count = draw.randint(1, 8) if kind == "append" else size
        return Change(kind, path, some_rows(draw, table, count))
    text = _predicate(draw, table) if kind in ("delete", "update") else None
    return Change(kind, path, None, text, _updates(draw, table) if kind == "update" else None)


def _predicate(draw: random.Random, table: str) -> str:
    result = [f"shop = {draw.randrange(_SHOPS)}", "shop IS NULL"]
    if table != "shops":
        low = draw.randrange(40)
        result += [f"amount >= {low} AND amount < {low + 3}", f"amount = {low}"]
    return draw.choice(result)


def _updates(draw: random.Random, table: str) -> dict[str, str]:
    if table == "shops":
        region = draw.choice("abcdefgh")
        return draw.choice([{"region": f"'{region}'"}, {"size": "size + 1"}])
    amount = draw.randrange(41)
    return draw.choice(
        [{"amount": str(amount)}, {"shop": str(draw.randrange(_SHOPS))}, {"shop": "NULL"}]
    )
