"""What changed rows touch and wake in trees of tables whose keys are spread evenly."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest

from impctl.compile.jointree.cost import TouchingAccess, TreeCost, tree_cost
from impctl.compile.jointree.graph import TreeShape
from impctl.compile.jointree.shape import tree_shape
from tests.circuits.trees.drawn import core
from tests.circuits.trees.test_estimate import PAIR, PATH, OfRows, rows


def cost(sql: str, tables: Mapping[str, pa.Table]) -> TreeCost:
    shape = tree_shape(core(sql), {})
    assert isinstance(shape, TreeShape)
    result = tree_cost(shape, OfRows(tables))
    assert result is not None
    return result


def of(result: TreeCost, table: str) -> TouchingAccess:
    (one,) = [access for access in result.accesses if access.scan.table == table]
    return one


def test_a_row_touches_its_own_tuple_and_those_above_it() -> None:
    """`s` is the root: a key of `r` reaches four of its tuples, one of `t` two."""
    result = cost(PATH, {"r": rows(10, 3), "s": rows(10, 4, b=20), "t": rows(20, 5)})
    reached = {table: [tuples for _, tuples in of(result, table).reached] for table in "rst"}
    assert reached == {"r": [1.0, 4.0], "s": [1.0], "t": [1.0, 2.0]}
    assert sorted(result.tuples) == [10, 20, 40]


def test_rows_that_come_alone_wake_those_that_nobody_else_wants() -> None:
    """A key of four rows of `s` comes with one of them in four, and with it the three of `r`; a
    key of two the five of `t`."""
    result = cost(PATH, {"r": rows(10, 3), "s": rows(10, 4, b=20), "t": rows(20, 5)})
    assert of(result, "s").woken == pytest.approx(3 / 4 + 5 / 2)
    # A row of `r` is alone in one case of three; its four tuples of `s` want keys of `t`.
    assert of(result, "r").woken == pytest.approx(4 / 3 * 5 / 2)


def test_what_is_woken_wakes_others() -> None:
    """With a row of `r`, alone in one case of three, four of `s` come, and a key of two of these
    wants five of `t`."""
    sql = PATH.replace("s.d", "r.d")
    result = cost(sql, {"r": rows(10, 3), "s": rows(10, 4, b=20), "t": rows(20, 5)})
    assert of(result, "r").woken == pytest.approx(4 / 3 + 4 / 3 / 2 * 5)


def test_a_group_of_a_virtual_root_wakes_all_its_rows() -> None:
    result = cost(PAIR, {"r": rows(10, 3), "s": rows(10, 7)})
    assert of(result, "r").woken == pytest.approx(7 / 3)
    assert of(result, "s").woken == pytest.approx(3 / 7)


@pytest.mark.parametrize(
    ("exists", "woken"), [("EXISTS", 3 / 4), ("NOT EXISTS", 0.0)], ids=["semi", "anti"]
)
def test_nobody_below_not_exists_is_wanted(exists: str, woken: float) -> None:
    sql = (
        f"SELECT s.d FROM s WHERE {exists} (SELECT 1 FROM r WHERE r.a = s.a) "
        "GROUP BY s.d HAVING COUNT(*) > 1"
    )
    result = cost(sql, {"r": rows(10, 3), "s": rows(10, 4)})
    assert of(result, "s").woken == pytest.approx(woken)
    # A row of `r` is passed on where it is its key's only one.
    assert [tuples for _, tuples in of(result, "r").reached] == pytest.approx([1, 4 / 3])


def test_only_rows_that_conditions_keep_touch_and_are_woken() -> None:
    sql = PAIR.replace("GROUP", "WHERE r.e = 0 GROUP")
    result = cost(sql, {"r": rows(10, 12), "s": rows(10, 7)})
    assert of(result, "r").share == 0.25
    assert [tuples for _, tuples in of(result, "r").reached] == pytest.approx([0.25, 0.25])
    assert of(result, "r").woken == pytest.approx(0.25 * 7 / 3)
    assert of(result, "s").woken == pytest.approx(3 / 7)
