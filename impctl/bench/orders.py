"""The order lines of a shop over two years, appended by time: the table of `make demo`.

Equal arguments give equal rows. Orders come in the order of their days; a few weeks of each year
sell several times as much as the others, and one order in some twenty thousand is a bulk order.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
"""Share of orders that are bulk orders."""

Integers = npt.NDArray[np.int64]


def orders_files(rows: int, files: int, seed: int) -> Iterator[pa.Table]:
    """The rows of each file, as many in each; the last days lie in the last file."""
    random = np.random.default_rng(seed)
    lines = random.integers(1, _MOST_LINES + 1, rows // 2 + _MOST_LINES)
    ends = np.cumsum(lines)
    orders = int(np.searchsorted(ends, rows)) + 1
    days = _days_of_orders(orders)
    prices = np.minimum(random.lognormal(3.2, 0.9, _PRODUCTS) * 100 + 99, 99_900).astype(np.int64)
    for number in range(files):
        start, stop = number * rows // files, (number + 1) * rows // files
        if stop > start:
            at = np.arange(start, stop)
            order = np.searchsorted(ends, at, side="right")
            line = at - (ends[order] - lines[order]) + 1
            yield _rows(order, line, days[order], prices, np.random.default_rng([seed, number]))


def _days_of_orders(orders: int) -> Integers:
    """The day of each order, from 0 on: so many a day as its season sells."""
    day = np.arange(DAYS)
    of_year = (FIRST_DAY.timetuple().tm_yday + day) % 365
    weight = 1.0 + 0.25 * np.sin(2 * np.pi * of_year / 365) + 0.2 * (day % 7 > 4)
    weight[(of_year >= 328) & (of_year <= 337)] *= 2.5  # the week around Black Friday
    ends = np.cumsum(weight)
    return np.asarray(np.searchsorted(ends, (np.arange(orders) + 0.5) * ends[-1] / orders))


def _rows(
    order: Integers,
    line: Integers,
    day: Integers,
    prices: Integers,
    random: np.random.Generator,
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
    """A number for each order that looks random (SplitMix64; Steele, Lea and Flood, 2014)."""
    with np.errstate(over="ignore"):
        word = (order.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return word ^ (word >> np.uint64(31))
