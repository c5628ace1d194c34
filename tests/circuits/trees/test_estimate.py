"""Estimates of tables whose keys are spread evenly, where they are exact, counted by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

import pyarrow as pa
import pytest

from impctl.compile.jointree.cost import Estimate, KeySide, SideSize, estimate
from impctl.compile.jointree.decompose import Block, block_of
from impctl.compile.jointree.graph import TreeShape
from impctl.compile.jointree.shape import tree_shape
from impctl.plan.explain import expr_text
from impctl.tables.lookup import KeyCounts, counted, fan_out
from tests.circuits.trees.drawn import core


@dataclass(frozen=True)
class OfRows:
    """Fan-outs of tables in memory."""

    tables: Mapping[str, pa.Table]

    def met(self, changed: KeySide, other: KeySide) -> float:
        return fan_out(self._counts(changed), self._counts(other))

    def alone(self, side: KeySide) -> float:
        counts = self._counts(side)
        return min(counts.keys / max(counts.rows, 1), 1.0)

    def size(self, side: KeySide) -> SideSize:
        counts = self._counts(side)
        return SideSize(counts.rows, counts.share, counts.keys, counts.together)

    def _counts(self, side: KeySide) -> KeyCounts:
        return counted([self.tables[side.table]], side.columns)


def rows(keys: int, each: int, **more: int) -> pa.Table:
    """`each` rows for each of so many values of `a`, `d` numbering them; `e` numbers those of a
    value from 0 to 3, other columns go round."""
    count = keys * each
    columns = {name: [at % size for at in range(count)] for name, size in more.items()}
    columns |= {"a": [at % keys for at in range(count)], "d": list(range(count))}
    return pa.table({**columns, "e": [at // keys % 4 for at in range(count)]})


def guessed(
    sql: str, tables: Mapping[str, pa.Table], changed: Mapping[str, int]
) -> Estimate | None:
    root = core(sql)
    block, shape = block_of(root), tree_shape(root, changed)
    assert isinstance(block, Block)
    assert isinstance(shape, TreeShape)
    return estimate(block.joins, shape, changed, OfRows(tables))


def estimated(sql: str, tables: Mapping[str, pa.Table], changed: Mapping[str, int]) -> Estimate:
    result = guessed(sql, tables, changed)
    assert result is not None
    return result


PAIR = "SELECT r.a FROM r JOIN s ON r.a = s.a GROUP BY r.a HAVING SUM(s.d) > 1"
PATH = "SELECT s.d FROM r JOIN s ON r.a = s.a JOIN t ON s.b = t.a GROUP BY s.d HAVING COUNT(*) > 1"


@pytest.mark.parametrize("partners", [1, 20, 200])
def test_two_tables_touch_the_row_and_its_group_whatever_the_partners(partners: int) -> None:
    tables = {"r": rows(10, partners), "s": rows(10, partners)}
    result = estimated(PAIR, tables, {"r": 5})
    assert (result.joined, result.touched) == (partners, 2)


def test_each_side_is_weighed_by_what_changes() -> None:
    tables = {"r": rows(10, 3), "s": rows(10, 7)}
    for changed, joined in (({"r": 1}, 7), ({"s": 1}, 3), ({"r": 1, "s": 3}, 4), ({}, 5)):
        result = estimated(PAIR, tables, changed)
        assert result.joined == pytest.approx(joined)


def test_a_path_of_three_writes_all_steps_and_touches_the_middle() -> None:
    """A row of `r` meets 4 of `s` and 4 * 5 with `t`; a row of `t` meets 2, then 2 * 3."""
    tables = {"r": rows(10, 3), "s": rows(10, 4, b=20), "t": rows(20, 5)}
    expected = {"r": (4 + 20, 1 + 4), "s": (3 + 15, 1), "t": (6, 1 + 2)}
    for table, (joined, touched) in expected.items():
        result = estimated(PATH, tables, {table: 1})
        assert (result.joined, result.touched) == pytest.approx((joined, touched)), table


def test_tuples_are_touched_once_however_many_rows_they_have() -> None:
    sql = "SELECT s.b FROM r JOIN s ON r.a = s.a GROUP BY s.b HAVING COUNT(*) > 1"
    tables = {"r": rows(10, 3), "s": rows(10, 40, b=20)}
    result = estimated(sql, tables, {"r": 1})
    assert (result.joined, result.touched) == pytest.approx((40, 1 + 2))


def test_without_a_decision_only_a_key_that_comes_or_goes_is_passed_on() -> None:
    tables = {"r": rows(10, 4), "s": rows(10, 2)}
    result = estimated("SELECT 1 FROM s JOIN r ON r.a = s.a", tables, {"r": 1})
    assert result.touched == 1
    below = estimated("SELECT 1 FROM s JOIN r ON r.a = s.a", tables, {"s": 2, "r": 1})
    # `s` changes most, so it is the root: a third of the changes are of `r`, one in four passes,
    # and then meets the one tuple of `s` that has the key.
    assert below.touched == pytest.approx((2 * 1 + 1 * (1 + 0.25)) / 3)


def test_a_cross_join_meets_everything() -> None:
    tables = {"r": rows(2, 1), "s": rows(3, 4)}
    sql = "SELECT r.d FROM r CROSS JOIN s GROUP BY r.d HAVING COUNT(*) > 1"
    result = estimated(sql, tables, {"r": 1})
    assert (result.joined, result.touched) == (12, 1)


def test_accesses_of_a_table_are_added_up() -> None:
    """A changed row of `r` is one of either access: it meets 4 rows and is met by 4."""
    sql = "SELECT x.a FROM r x JOIN r y ON x.a = y.a GROUP BY x.a HAVING COUNT(*) > 1"
    result = estimated(sql, {"r": rows(10, 4)}, {"r": 1})
    assert (result.joined, result.touched) == (8, 4)


@pytest.mark.parametrize(
    ("changed", "joined", "touched"), [("r", 4 + 20, 1 + 4), ("s", 3 + 15, 1), ("t", 6, 1 + 2)]
)
def test_rows_that_conditions_leave_out_count_on_no_side(
    changed: str, joined: int, touched: int
) -> None:
    """Of four times as many rows a quarter is kept of each key: a changed row is one of these, or
    comes to nothing."""
    where = " AND ".join(f"{table}.e = 0" for table in "rst")
    tables = {"r": rows(10, 12), "s": rows(10, 16, b=20), "t": rows(20, 20)}
    result = estimated(PATH.replace("GROUP", f"WHERE {where} GROUP"), tables, {changed: 1})
    assert (result.joined, result.touched) == pytest.approx((joined / 4, touched / 4))
    said = {one.access: (expr_text(one.condition), one.share) for one in result.kept}
    assert said == {f"{table}#1": ("e = 0", 0.25) for table in "rst"}


@pytest.mark.parametrize("seed", range(5))
def test_two_tables_with_conditions_against_pairs_counted_one_by_one(seed: int) -> None:
    rng = Random(seed)
    tables = {
        table: pa.table(
            {name: [rng.randrange(4) for _ in range(30)] for name in ("a", "b", "d", "e")}
        )
        for table in "rs"
    }
    sql = PAIR.replace("GROUP", "WHERE r.b < 2 AND s.b <> 1 GROUP")
    result = estimated(sql, tables, {"r": 1})
    mine = [row["a"] for row in tables["r"].to_pylist() if row["b"] < 2]
    theirs = [row["a"] for row in tables["s"].to_pylist() if row["b"] != 1]
    assert result.joined == pytest.approx(sum(map(theirs.count, mine)) / 30)


def test_state_is_that_of_the_rows_and_tuples_that_are_kept() -> None:
    """An index keeps the rows of both tables, a tree a tuple per key and its ranges."""
    few, many = ({"r": rows(100, each), "s": rows(100, each)} for each in (1, 40))
    result = [estimated(PAIR, tables, {}) for tables in (few, many)]
    assert result[1].index_bytes == pytest.approx(40 * result[0].index_bytes)
    assert result[1].tree_bytes < 20 * result[0].tree_bytes
    limited = estimated(PAIR.replace("GROUP", "WHERE r.e = 0 GROUP"), many, {})
    assert limited.index_bytes < 0.75 * result[1].index_bytes
    assert limited.tree_bytes < result[1].tree_bytes


def test_what_is_joined_on_the_way_is_kept_too() -> None:
    """A path keeps what its first two tables come to, 12 rows a key."""
    tables = {"r": rows(10, 3), "s": rows(10, 4, b=20), "t": rows(20, 5)}
    pair = "SELECT s.d FROM r JOIN s ON r.a = s.a GROUP BY s.d HAVING COUNT(*) > 1"
    path, plain = estimated(PATH, tables, {}), estimated(pair, tables, {})
    assert path.index_bytes - plain.index_bytes > 120 * 2 * 8


def test_computed_keys_are_not_guessed_at() -> None:
    sql = "SELECT r.d FROM r JOIN s ON r.a + 1 = s.a GROUP BY r.d HAVING COUNT(*) > 1"
    assert guessed(sql, {"r": rows(2, 1), "s": rows(2, 1)}, {"r": 1}) is None
