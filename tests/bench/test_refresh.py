"""Refreshes: new orders with all their line items, under keys that nobody has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from impctl.bench.refresh import refreshes

KEYS = [32 * block + place for block in range(400) for place in range(8)]
ORDERS = pa.table({"o_orderkey": pa.array(KEYS, pa.int64()), "o_name": [f"o{k}" for k in KEYS]})
_LINES = [(key, line) for key in KEYS for line in range(1 + key % 7)]
LINEITEM = pa.table(
    {
        "l_orderkey": pa.array([key for key, _ in _LINES], pa.int64()),
        "l_linenumber": pa.array([line for _, line in _LINES], pa.int32()),
    }
)


def lineitem_of(keys: Sequence[int]) -> pa.Table:
    return LINEITEM.filter(pc.is_in(LINEITEM.column("l_orderkey"), pa.array(keys, pa.int64())))


def test_orders_come_with_all_their_lines_under_free_keys() -> None:
    seen: set[int] = set()
    for refresh in refreshes(ORDERS, lineitem_of, sizes=(1, 10, 200)):
        keys = set(refresh.orders.column("o_orderkey").to_pylist())
        assert not keys & set(KEYS)
        assert not keys & seen
        seen |= keys
        lines = refresh.lineitem.column("l_orderkey").to_pylist()
        assert set(lines) == keys
        wanted = {key + 8: 1 + key % 7 for key in KEYS if key + 8 in keys}
        assert {key: lines.count(key) for key in keys} == wanted
        rows = len(keys) + len(lines)
        assert refresh.size <= rows < refresh.size + 8
        names = zip(
            refresh.orders.column("o_orderkey").to_pylist(),
            refresh.orders.column("o_name").to_pylist(),
            strict=True,
        )
        assert all(name == f"o{key - 8}" for key, name in names)


def test_equal_arguments_give_equal_rows() -> None:
    one, other = (list(refreshes(ORDERS, lineitem_of, sizes=(50,), seed=3)) for _ in range(2))
    assert one == other
    (different,) = refreshes(ORDERS, lineitem_of, sizes=(50,), seed=4)
    assert not different.orders.equals(one[0].orders)
    assert np.unique(different.orders.column("o_orderkey").to_numpy()).size == len(different.orders)
