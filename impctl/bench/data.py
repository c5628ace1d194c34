"""Example data: orders, the running example, synthetic tables, and batches to apply."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import date

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from impctl.errors import UsageError

# The running example: seven sales. Law: the rows never change; documents, demo and tests rely on
# them. Partitioned on price at 601, 1001 and 1501, brands whose revenue exceeds 5000 come from
# ranges 2 and 3 (Apple, 5074).

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


# The table of `make demo`: a shop's order lines over two years, appended by time. Equal arguments
# give equal rows. A few weeks of each year sell several times as much as the others, and about one
# order in twenty thousand is a bulk order.

ORDERS_SCHEMA = pa.schema(
    [
        pa.field("order_id", pa.int64()),
        pa.field("line", pa.int32()),
        pa.field("day", pa.date32()),
        pa.field("customer_id", pa.int64()),
        pa.field("product_id", pa.int32()),
        pa.field("quantity", pa.int32()),
        pa.field("price", pa.decimal128(8, 2)),
    ]
)
FIRST_DAY = date(2024, 10, 1)
DAYS = 730

_MOST_LINES = 7
_PRODUCTS = 1_000
_BULK = 1 / 20_000
"""Share of bulk orders."""

# The synthetic table: `id` is unique, `a` uniform over the groups 0, 1, ..., and each of `b` to `j`
# is linear in `a` plus Gaussian noise, so correlated with `a` but not determined by it.
#
# Law: equal arguments give equal rows, whatever the batch size; memory is one batch and one count
# per group. `id` is independent of `a`, even if rows are sorted by `a`.

Integers = npt.NDArray[np.int64]


def orders_files(rows: int, files: int, seed: int) -> Iterator[pa.Table]:
    """Yield the rows of each file, equally many; the last days are in the last file."""
    random = np.random.default_rng(seed)
    lines = random.integers(1, _MOST_LINES + 1, rows // 2 + _MOST_LINES)
    ends = np.cumsum(lines)
    orders = int(np.searchsorted(ends, rows)) + 1
    days = _days_of_orders(orders)
    prices = np.minimum(random.lognormal(3.2, 0.9, _PRODUCTS) * 100 + 99, 99_900).astype(np.int64)
    for number in range(files):
        start, stop = number * rows // files, (number + 1) * rows // files
        if stop > start:
            numbers = np.arange(start, stop)
            order = np.searchsorted(ends, numbers, side="right")
            line = numbers - (ends[order] - lines[order]) + 1
            yield _rows(order, line, days[order], prices, np.random.default_rng([seed, number]))


def _days_of_orders(orders: int) -> Integers:
    """The day of each order, from 0 on, by the season's sales."""
    day = np.arange(DAYS)
    of_year = (FIRST_DAY.timetuple().tm_yday + day) % 365
    weight = 1.0 + 0.25 * np.sin(2 * np.pi * of_year / 365) + 0.2 * (day % 7 > 4)
    weight[(of_year >= 328) & (of_year <= 337)] *= 2.5  # the week around Black Friday
    ends = np.cumsum(weight)
    return np.asarray(np.searchsorted(ends, (np.arange(orders) + 0.5) * ends[-1] / orders))


def _rows(
    order: Integers, line: Integers, day: Integers, prices: Integers, random: np.random.Generator
) -> pa.Table:
    # What all lines of an order have in common depends on its number alone.
    mixed = _mixed(order)
    bulk = (mixed >> np.uint64(20)) % np.uint64(round(1 / _BULK)) == 0
    customer = (mixed % np.uint64(200_000)).astype(np.int64)
    product = random.integers(0, _PRODUCTS, len(order))
    quantity = np.where(
        bulk, random.integers(100, 200, len(order)), random.integers(1, 6, len(order))
    )
    cents = pa.array(prices[product]).cast(pa.decimal128(19, 0))
    # The storage of a decimal is its value times 100.
    price = pa.Array.from_buffers(pa.decimal128(8, 2), len(cents), cents.buffers())
    first = FIRST_DAY.toordinal() - date(1970, 1, 1).toordinal()
    columns = [
        pa.array(order + 1),
        pa.array(line.astype(np.int32)),
        pa.array((day + first).astype(np.int32)).cast(pa.date32()),
        pa.array(customer),
        pa.array(product.astype(np.int32)),
        pa.array(quantity.astype(np.int32)),
        price,
    ]
    return pa.Table.from_arrays(columns, schema=ORDERS_SCHEMA)


def _mixed(order: Integers) -> npt.NDArray[np.uint64]:
    """A pseudo-random number per order (SplitMix64; Steele, Lea and Flood, 2014)."""
    with np.errstate(over="ignore"):
        word = (order.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return word ^ (word >> np.uint64(31))


MEASURES = ("b", "c", "d", "e", "f", "g", "h", "i", "j")

SYNTHETIC_SCHEMA = pa.schema(
    [pa.field("id", pa.int64()), pa.field("a", pa.int64())]
    + [pa.field(name, pa.float64()) for name in MEASURES]
)

_SLOPES = (1.0, 1.0, 1.2, 0.5, 0.8, 1.5, 2.0, 2.5, 3.0)
_NOISE = 0.05
"""Standard deviation of the noise, over the range of `a`."""
_MAX_ROWS = 2**31
"""Above this the product that scatters ids would exceed 64 bits."""


def synthetic_batches(
    rows: int, groups: int, seed: int, *, sorted_by_a: bool = False, batch_rows: int = 500_000
) -> Iterator[pa.RecordBatch]:
    """Yield the table in batches; UsageError for sizes that no table has."""
    if not 0 <= rows < _MAX_ROWS:
        raise UsageError(
            f"A synthetic table must have 0 to {_MAX_ROWS - 1} rows, not {rows}",
            hint="give another number of rows",
        )
    if groups < 1:
        raise UsageError(
            f"A synthetic table must have at least one group, not {groups}",
            hint="give another number of groups",
        )
    return _batches(rows, groups, seed, sorted_by_a, batch_rows)


def _batches(
    rows: int, groups: int, seed: int, sorted_by_a: bool, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    # A random stream per column, so that the batch size does not shift the others. The key stays:
    # without it every published seed would name another table.
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(0,))
    group_stream, *noise_streams = map(np.random.default_rng, sequence.spawn(1 + len(MEASURES)))
    step = _coprime_step(rows)
    ends: Integers | None = None
    if sorted_by_a:
        # The counts of a uniform column have exactly this distribution; no column is sorted.
        ends = np.cumsum(group_stream.multinomial(rows, np.full(groups, 1 / groups)))
    # One round per batch, rows / batch_rows of them.
    for start in range(0, rows, batch_rows):
        stop = min(start + batch_rows, rows)
        positions = np.arange(start, stop, dtype=np.int64)
        if ends is None:
            ids = positions
            a = group_stream.integers(0, groups, size=stop - start, dtype=np.int64)
        else:
            ids = positions * step % rows
            a = np.searchsorted(ends, positions, side="right").astype(np.int64)
        measures = []
        for slope, stream in zip(_SLOPES, noise_streams, strict=True):
            values = stream.standard_normal(len(a))
            values *= _NOISE * groups
            values += slope * a
            measures.append(pa.array(values))
        columns = [pa.array(ids), pa.array(a), *measures]
        yield pa.RecordBatch.from_arrays(columns, schema=SYNTHETIC_SCHEMA)


def _coprime_step(rows: int) -> int:
    """A step that visits every id below `rows` once, far from the previous one."""
    step = max(1, int(rows * 0.6180339887))
    while math.gcd(step, max(rows, 1)) != 1:
        step += 1
    return step


# Rows like refresh function RF1 of TPC-H: new orders with their line items. Law: new orders copy
# existing ones, under keys that TPC-H's generator leaves free (it uses the first eight of every
# 32), so that joins and groups match as before; equal arguments give equal rows, and batches of one
# call share no order. Source: TPC-H specification, 2.26 (RF1); RF2 deletes a range of keys and
# needs no rows.

SIZES = (10, 50, 100, 500, 1000)
"""Rows of a refresh, orders and line items together."""

_FREE = 8


class Refresh(Struct, frozen=True):
    """New rows of both tables; `size` is the requested number of rows."""

    size: int
    orders: pa.Table
    lineitem: pa.Table


def refreshes(
    orders: pa.Table,
    lineitem_of: Callable[[Sequence[int]], pa.Table],
    sizes: Sequence[int] = SIZES,
    seed: int = 1,
) -> Iterator[Refresh]:
    """Yield refreshes of at least each size, with as few orders as possible. `lineitem_of` returns
    the line items of orders by their keys."""
    keys: Integers = orders.column("o_orderkey").to_numpy()
    drawn = np.random.default_rng(seed).permutation(len(keys))
    start = 0
    for size in sizes:
        places = np.sort(drawn[start : start + size])
        start += size
        lines = lineitem_of(keys[places].tolist())
        yield _cut(size, orders.take(pa.array(places)), lines)


def _cut(size: int, orders: pa.Table, lineitem: pa.Table) -> Refresh:
    """As many of the orders as give the size, with their line items."""
    orders = orders.sort_by("o_orderkey")
    keys: Integers = orders.column("o_orderkey").to_numpy()
    owners = np.searchsorted(keys, lineitem.column("l_orderkey").to_numpy())
    rows = np.cumsum(1 + np.bincount(owners, minlength=len(keys)))
    cut = keys[: int(np.searchsorted(rows, size)) + 1]
    chosen = lineitem.filter(pc.is_in(lineitem.column("l_orderkey"), pa.array(cut)))
    first = orders.slice(0, len(cut))
    return Refresh(size, _moved(first, "o_orderkey"), _moved(chosen, "l_orderkey"))


def _moved(table: pa.Table, column: str) -> pa.Table:
    """The rows with unused keys."""
    position = table.column_names.index(column)
    values = pc.add(table.column(column), pa.scalar(_FREE, table.column(column).type))
    return table.set_column(position, table.schema.field(position), values)


# Law: base and batches together are the table, each row once; rows without a date stay in the base.


def split_last_days(table: pa.Table, column: str, days: int) -> tuple[pa.Table, list[pa.Table]]:
    """The rows before the last `days` days with rows, and a batch for each of these days."""
    if column not in table.column_names:
        raise UsageError(
            f"The data has no column `{column}`",
            hint=f"its columns: {', '.join(f'`{name}`' for name in table.column_names)}",
        )
    if not pa.types.is_temporal(table.schema.field(column).type):
        raise UsageError(
            f"Column `{column}` has no dates", hint="name a column of dates or timestamps"
        )
    day = pc.cast(table[column], pa.date32()).combine_chunks().cast(pa.int32())
    known = pc.drop_null(day).to_numpy(zero_copy_only=False)
    last = np.unique(known)[-days:] if days > 0 else np.array([], dtype=np.int32)
    batches = [table.filter(pc.equal(day, int(number))) for number in last]
    if not len(last):
        return table, []
    is_base = pc.fill_null(pc.less(day, int(last[0])), True)
    return table.filter(is_base), batches
