"""Rows shaped like refresh function RF1 of TPC-H: new orders together with their line items.

Law: new orders are copies of orders that are there, under keys that the generator of TPC-H leaves
free (it uses the first eight of every 32), so that joins and groups find what they find for old
ones; equal arguments give equal rows, and batches of one call share no order.
Source: TPC-H specification, 2.26 (RF1); its counterpart RF2 deletes a range of keys and needs no
rows. Out of scope: writing the rows (`measure.generate`), deleting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from impctl.values import dataclass

SIZES = (10, 50, 100, 500, 1000)
"""Rows that came with one refresh, orders and line items together."""

_FREE = 8

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Refresh:
    """New rows of both tables; `size` is how many there were to be."""

    size: int
    orders: pa.Table
    lineitem: pa.Table


def refreshes(
    orders: pa.Table,
    lineitem_of: Callable[[Sequence[int]], pa.Table],
    sizes: Sequence[int] = SIZES,
    seed: int = 1,
) -> Iterator[Refresh]:
    """A refresh of at least each size, as few orders as give that.

    `lineitem_of` gives the line items of orders by their keys.
    """
    keys: Keys = orders.column("o_orderkey").to_numpy()
    drawn = np.random.default_rng(seed).permutation(len(keys))
    start = 0
    for size in sizes:
        places = np.sort(drawn[start : start + size])
        start += size
        lines = lineitem_of(keys[places].tolist())
        yield _cut(size, orders.take(pa.array(places)), lines)


def _cut(size: int, orders: pa.Table, lineitem: pa.Table) -> Refresh:
    """As many of the orders as bring the rows of both to the size."""
    orders = orders.sort_by("o_orderkey")
    keys: Keys = orders.column("o_orderkey").to_numpy()
    owners = np.searchsorted(keys, lineitem.column("l_orderkey").to_numpy())
    rows = np.cumsum(1 + np.bincount(owners, minlength=len(keys)))
    kept = keys[: int(np.searchsorted(rows, size)) + 1]
    chosen = lineitem.filter(pc.is_in(lineitem.column("l_orderkey"), pa.array(kept)))
    first = orders.slice(0, len(kept))
    return Refresh(size, _moved(first, "o_orderkey"), _moved(chosen, "l_orderkey"))


def _moved(table: pa.Table, column: str) -> pa.Table:
    """The rows under free keys."""
    at = table.column_names.index(column)
    values = pc.add(table.column(column), pa.scalar(_FREE, table.column(column).type))
    return table.set_column(at, table.schema.field(at), values)
