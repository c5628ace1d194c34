"""The table of suite `skipping`: the same rows whatever the order, placed as their order says."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from impctl.bench.layout import DAYS, TOP, Order, layout_files
from impctl.errors import UsageError

ROWS, GROUPS, FILES = 40_000, 400, 50


def files(order: Order, count: int = FILES, seed: int = 1) -> list[pa.Table]:
    return list(layout_files(ROWS, GROUPS, order, count, seed))


def mean_span(parts: list[pa.Table], name: str) -> float:
    spans = (pc.min_max(part[name]).as_py() for part in parts)
    return float(np.mean([found["max"] - found["min"] for found in spans]))


@pytest.mark.slow
@pytest.mark.parametrize("order", list(Order))
def test_rows_depend_on_neither_order_nor_files(order: Order) -> None:
    plain = pa.concat_tables(files(Order.SORTED, 1))
    found = files(order)
    assert len(found) == FILES
    assert all(len(part) == ROWS // FILES for part in found)
    assert pa.concat_tables(found).sort_by("id").equals(plain.combine_chunks())
    assert not pa.concat_tables(files(order, seed=2)).sort_by("id").equals(plain)


def test_each_order_places_rows_as_it_says() -> None:
    starts = [part["a"][0].as_py() for part in files(Order.SORTED)]
    assert all(low < high for low, high in pairwise(starts))
    span = {order: mean_span(files(order), "a") for order in Order}
    assert span[Order.SORTED] < span[Order.NEARLY] < span[Order.ZORDER] < span[Order.RANDOM]
    assert span[Order.NEARLY] < 0.1 * GROUPS
    assert (
        mean_span(files(Order.ZORDER), "day") < 0.3 * DAYS < mean_span(files(Order.NEARLY), "day")
    )


@pytest.mark.parametrize("column", ["p", "q"])
def test_groups_that_pass_lie_together_or_scattered(column: str) -> None:
    rows = pa.concat_tables(files(Order.RANDOM))
    means = rows.group_by("a").aggregate([(column, "mean")])
    passing = means.filter(pc.less(means[f"{column}_mean"], TOP // 20))["a"].to_numpy()
    assert abs(len(passing) - GROUPS // 20) <= 1
    width = int(passing.max() - passing.min()) + 1
    assert (width <= 1.1 * len(passing)) == (column == "p")


@pytest.mark.parametrize(("rows", "groups", "count"), [(10, 11, 1), (10, 1, 11), (0, 1, 1)])
def test_too_few_rows_are_refused(rows: int, groups: int, count: int) -> None:
    with pytest.raises(UsageError):
        layout_files(rows, groups, Order.SORTED, count, 1)
