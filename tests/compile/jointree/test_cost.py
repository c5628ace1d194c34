"""Estimates for evenly spread keys, checked by hand; when joins become trees."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from random import Random
from types import SimpleNamespace
from typing import NoReturn

import pyarrow as pa
import pytest
from msgspec import Struct
from msgspec.structs import replace

from impctl.compile.flows import row_bytes
from impctl.compile.joins import chain_of
from impctl.compile.jointree.cost import (
    PAIR_BYTES,
    STEP_ROWS,
    FanOuts,
    IndexCost,
    JoinedAccess,
    JoinEstimate,
    KeySide,
    TouchingAccess,
    TreeChoice,
    TreeCost,
    TreesByFanOut,
    condition_on,
    estimate,
    index_cost,
    index_ms,
    is_better_as_tree,
    key_side,
    rows_joined,
    tree_cost,
    tree_ms,
    tuples_touched,
)
from impctl.compile.jointree.decompose import block_of
from impctl.costs import INDEX_JOIN, JOIN_TREE
from impctl.data.schema import LONG
from impctl.engine.jointree.spec import TreeMode
from impctl.errors import QueryError, TableError
from impctl.expr.nodes import Arithmetic, ArithmeticOp, Compare, CompareOp, Expr, Literal
from impctl.plan.explain import expr_text
from impctl.plan.nodes import Attribute, ComputedColumn, Join, Plan, Project, Scan, Select
from impctl.tables.sample import KeyCounts, counted, fan_out
from tests.compile.jointree.shapes import JoinMaker, core, random_tables, shape_of, tree_shape
from tests.compile.jointree.test_build import table_of
from tests.support.random_cases import random_cases, seen_in


class MemoryFanOuts(Struct, frozen=True):
    """Fan-outs of tables in memory."""

    tables: Mapping[str, pa.Table]

    def met(self, changed: KeySide, other: KeySide) -> float:
        return fan_out(self.counts(changed), self.counts(other))

    def counts(self, side: KeySide) -> KeyCounts:
        return counted([self.tables[side.table]], side.columns)


def rows(keys: int, each: int, **more: int) -> pa.Table:
    """`each` rows for each of `keys` values of `a`. `d` numbers the rows, `e` cycles through 0 to 3
    within a value, other columns cycle through their size."""
    count = keys * each
    columns = {name: [number % size for number in range(count)] for name, size in more.items()}
    columns |= {"a": [number % keys for number in range(count)], "d": list(range(count))}
    return pa.table({**columns, "e": [number // keys % 4 for number in range(count)]})


def estimated(sql: str, tables: Mapping[str, pa.Table], changed: Mapping[str, int]) -> JoinEstimate:
    """None if nothing is known."""
    root = core(sql)
    return estimate(block_of(root).joins, tree_shape(root), changed, MemoryFanOuts(tables))


PAIR = "SELECT r.a FROM r JOIN s ON r.a = s.a GROUP BY r.a HAVING SUM(s.d) > 1"
PATH = "SELECT s.d FROM r JOIN s ON r.a = s.a JOIN t ON s.b = t.a GROUP BY s.d HAVING COUNT(*) > 1"


PATH_TABLES = {"r": rows(10, 3), "s": rows(10, 4, b=20), "t": rows(20, 5)}
"""A row of `r` meets 4 of `s` and 4 * 5 with `t`; a row of `t` meets 2, then 2 * 3."""
GROUPED = "SELECT s.b FROM r JOIN s ON r.a = s.a GROUP BY s.b HAVING COUNT(*) > 1"
CROSS = "SELECT r.d FROM r CROSS JOIN s GROUP BY r.d HAVING COUNT(*) > 1"
SELF = "SELECT x.a FROM r x JOIN r y ON x.a = y.a GROUP BY x.a HAVING COUNT(*) > 1"
ROWS = "SELECT 1 FROM s JOIN r ON r.a = s.a"


@pytest.mark.parametrize(
    ("sql", "tables", "changed", "joined", "touched"),
    [
        # With two tables the row and its group are touched, whatever the partners.
        *((PAIR, {"r": rows(10, n), "s": rows(10, n)}, {"r": 5}, n, 2) for n in (1, 20, 200)),
        # A path of three writes all steps and touches the middle.
        (PATH, PATH_TABLES, {"r": 1}, 4 + 20, 1 + 4),
        (PATH, PATH_TABLES, {"s": 1}, 3 + 15, 1),
        (PATH, PATH_TABLES, {"t": 1}, 6, 1 + 2),
        # Tuples are touched once however many rows they have.
        (GROUPED, {"r": rows(10, 3), "s": rows(10, 40, b=20)}, {"r": 1}, 40, 1 + 2),
        # Without a decision only new and deleted keys are passed on. `s` is the root: a third of
        # the changes are of `r`, one in four of them is passed on to the one tuple of `s` with
        # the key.
        (ROWS, {"r": rows(10, 4), "s": rows(10, 2)}, {"s": 1}, 4, 1),
        (ROWS, {"r": rows(10, 4), "s": rows(10, 2)}, {"s": 2, "r": 1}, 10 / 3, (2 + 1.25) / 3),
        (CROSS, {"r": rows(2, 1), "s": rows(3, 4)}, {"r": 1}, 12, 1),
        # A changed row of `r` is one of either access: it meets 4 rows and is met by 4.
        (SELF, {"r": rows(10, 4)}, {"r": 1}, 8, 4),
    ],
)
def test_joined_rows_and_touched_tuples(
    sql: str,
    tables: Mapping[str, pa.Table],
    changed: Mapping[str, int],
    joined: float,
    touched: float,
) -> None:
    result = estimated(sql, tables, changed)
    assert (result.joined, result.touched) == pytest.approx((joined, touched))


def test_sides_are_weighted_by_their_changes() -> None:
    tables = {"r": rows(10, 3), "s": rows(10, 7)}
    cases = (({"r": 1}, 7), ({"s": 1}, 3), ({"r": 1, "s": 3}, 4), ({}, 5), ({"t": 1}, 5))
    for changed, joined in cases:
        assert estimated(PAIR, tables, changed).joined == pytest.approx(joined)


@pytest.mark.parametrize(
    ("changed", "joined", "touched"), [("r", 4 + 20, 1 + 4), ("s", 3 + 15, 1), ("t", 6, 1 + 2)]
)
def test_filtered_rows_count_on_neither_side(changed: str, joined: int, touched: int) -> None:
    """Of four times as many rows, a quarter per key passes. Other changed rows have no effect."""
    where = " AND ".join(f"{table}.e = 0" for table in "rst")
    tables = {"r": rows(10, 12), "s": rows(10, 16, b=20), "t": rows(20, 20)}
    result = estimated(PATH.replace("GROUP", f"WHERE {where} GROUP"), tables, {changed: 1})
    assert (result.joined, result.touched) == pytest.approx((joined / 4, touched / 4))
    described = {one.access: (expr_text(one.condition), one.share) for one in result.kept}
    assert described == {f"{table}#1": ("e = 0", 0.25) for table in "rst"}


@pytest.mark.parametrize("seed", range(5))
def test_filtered_joins_match_pairs_counted_by_hand(seed: int) -> None:
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


def test_state_sizes_of_indexes_and_trees() -> None:
    """An index keeps the rows of both tables. A tree keeps a tuple per key with its ranges."""
    few, many = ({"r": rows(100, each), "s": rows(100, each)} for each in (1, 40))
    result = [estimated(PAIR, tables, {}) for tables in (few, many)]
    assert result[1].index_bytes == pytest.approx(40 * result[0].index_bytes)
    assert result[1].tree_bytes < 20 * result[0].tree_bytes
    limited = estimated(PAIR.replace("GROUP", "WHERE r.e = 0 GROUP"), many, {})
    assert limited.index_bytes < 0.75 * result[1].index_bytes
    assert limited.tree_bytes < result[1].tree_bytes


def test_intermediate_joins_count_as_state() -> None:
    """A path keeps the join of its first two tables, 12 rows per key."""
    pair = "SELECT s.d FROM r JOIN s ON r.a = s.a GROUP BY s.d HAVING COUNT(*) > 1"
    path, plain = (estimated(sql, PATH_TABLES, {}) for sql in (PATH, pair))
    assert path.index_bytes - plain.index_bytes > 120 * 2 * 8


COMPUTED = PAIR.replace("r.a = s.a", "r.a + 1 = s.a")
CIRCLE = PAIR.replace("GROUP", "JOIN t ON s.b = t.a AND t.b = r.b GROUP")
NONE = "SELECT r.a FROM r JOIN s ON r.a < s.a GROUP BY r.a HAVING SUM(s.d) > 1"
OUTER = "SELECT r.d FROM r LEFT JOIN s ON r.a = s.a GROUP BY r.d HAVING COUNT(s.d) > 1"


class EvenFanOuts(Struct, frozen=True):
    """Tables of a million rows. `share` of them pass the conditions; every key has `partners`."""

    partners: float
    share: float = 1.0

    def met(self, changed: KeySide, other: KeySide) -> float:
        return self.partners if other.columns.counted is None else 1.0

    def counts(self, side: KeySide) -> SimpleNamespace:
        rows = 1e6 * (self.share if side.columns.where is not None else 1.0)
        keys = rows / max(self.partners, 1.0)
        return SimpleNamespace(rows=rows, share=rows / 1e6, keys=keys, together=keys)


class UnreadableFanOuts:
    """Tables that cannot be read."""

    def _read(self, *_: KeySide) -> NoReturn:
        raise TableError("a file is gone")

    met = counts = _read


def chosen(sql: str, fan_outs: FanOuts) -> TreeChoice:
    return TreesByFanOut(fan_outs, {"r": 1, "s": 1}).choose(core(sql))


@pytest.mark.parametrize(("partners", "is_tree"), [(1, False), (3, False), (30, True), (200, True)])
def test_many_partners_favor_a_tree(partners: float, is_tree: bool) -> None:
    choice = chosen(PAIR, EvenFanOuts(partners))
    assert choice.is_tree is is_tree
    estimate = choice.estimate
    assert (estimate.joined, estimate.touched) == (partners, 2)
    assert (estimate.tree_ms < estimate.index_ms) is is_tree


@pytest.mark.parametrize(
    ("share", "percent", "is_tree"),
    [(1.0, "100%", True), (0.5, "50%", True), (0.001, "0.1%", False)],
)
def test_selective_conditions_favor_the_index(share: float, percent: str, is_tree: bool) -> None:
    """With 0.1%, one of a thousand changed rows is joined, so trees and indexes mostly look up."""
    sql = PAIR.replace("GROUP", "WHERE r.b < 3 AND s.b < 3 GROUP")
    choice = chosen(sql, EvenFanOuts(60, share))
    assert choice.is_tree is is_tree
    assert "r where b < 3" in choice.reason
    assert f"({percent})" in choice.reason


def estimate_of(tree_ms: float, tree_bytes: float) -> JoinEstimate:
    """Compared with an index join that takes 100 ms and keeps 100 bytes."""
    return JoinEstimate(1, 1, 100.0, tree_ms, 100.0, tree_bytes)


@pytest.mark.parametrize(
    ("tree_ms", "tree_bytes", "is_tree"),
    [
        (90, 1000, True),
        (91, 1000, False),
        (91, 67, False),
        (91, 66, True),
        (110, 66, True),
        (111, 1, False),
    ],
)
def test_state_size_decides_between_similar_times(
    tree_ms: float, tree_bytes: float, is_tree: bool
) -> None:
    assert is_better_as_tree(estimate_of(tree_ms, tree_bytes)) is is_tree


def test_all_blocks_of_a_plan_are_estimated_together() -> None:
    one, two = (chosen(sql, EvenFanOuts(60)).estimate for sql in (PAIR, f"{PAIR} UNION ALL {PAIR}"))
    for name in ("joined", "touched", "index_ms", "tree_ms", "index_bytes", "tree_bytes"):
        assert getattr(two, name) == pytest.approx(2 * getattr(one, name)), name


@pytest.mark.parametrize("sql", [COMPUTED, CIRCLE, NONE, OUTER])
def test_unknown_estimates_use_the_index(sql: str) -> None:
    assert not TreesByFanOut(EvenFanOuts(10**6), {}).choose(core(sql)).is_tree


def test_unreadable_tables_use_the_index() -> None:
    choice = TreesByFanOut(UnreadableFanOuts(), {}).choose(core(PAIR))
    assert (choice.is_tree, choice.estimate) == (False, None)
    assert "a file is gone" in choice.reason


def cost(
    sql: str, mode: TreeMode = TreeMode.RING, tables: Mapping[str, pa.Table] = PATH_TABLES
) -> IndexCost | None:
    return index_cost(block_of(core(sql)).joins, mode, MemoryFanOuts(tables))


def rows_bytes(count: int, columns: int, accesses: int = 1) -> int:
    """Bytes of `count` rows of integers."""
    return count * row_bytes([(str(number), LONG) for number in range(columns)], accesses)


@pytest.mark.parametrize(("mode", "pairs"), [(TreeMode.RING, 170), (TreeMode.BITS, 0)])
def test_index_state_has_tables_and_intermediate_joins(mode: TreeMode, pairs: int) -> None:
    """30, 40 and 100 rows, and 120 joined ones. With groups, each row's range is stored too."""
    result = cost(PATH, mode)
    kept = rows_bytes(30, 1) + rows_bytes(40, 3) + rows_bytes(100, 1) + rows_bytes(120, 4, 2)
    assert result.bytes == kept + pairs * PAIR_BYTES


def test_which_joins_changes_of_a_table_pass() -> None:
    result = cost(PATH)
    each = {one.scan.table: (one.joins, one.kept, one.last) for one in result.accesses}
    assert each == {"r": (2, 4.0, 20.0), "s": (2, 3.0, 15.0), "t": (1, 0.0, 6.0)}


def test_nulls_match_only_in_null_safe_joins() -> None:
    """Three rows of each table, one of them NULL."""
    three = pa.table({"a": pa.array([1, 2, None], pa.int64()), "d": [1, 2, 3]})
    for op, met in (("=", 2 / 3), ("<=>", 1.0)):
        sql = f"SELECT r.d FROM r JOIN s ON r.a {op} s.a"
        result = cost(sql, TreeMode.BITS, {"r": three, "s": three})
        assert [one.last for one in result.accesses] == pytest.approx([met, met])


def conditions(plan: Plan) -> dict[str, str | None]:
    """The condition on each access of a plan, as text."""

    def text(expr: Expr | None) -> str | None:
        return None if expr is None else expr_text(expr)

    return {scan.access: text(condition_on(plan, scan)) for scan in plan.scans}


def nodes(sql: str) -> dict[str, str | None]:
    """The condition on each access of a tree's nodes."""
    rows = [node.rows for node in shape_of(sql).nodes if node.rows is not None]
    return {access: text for one in rows for access, text in conditions(one).items()}


def join_of(sql: str) -> Join:
    (result,) = [node for node in core(sql).walk() if isinstance(node, Join)]
    return result


JOINED_PAIR = "SELECT r.a FROM r JOIN s ON r.a = s.a WHERE {} GROUP BY r.a HAVING SUM(s.d) > 1"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (JOINED_PAIR.format("r.b < 3"), {"r#1": "b < 3", "s#1": None}),
        (
            JOINED_PAIR.format("r.b < 3 AND s.c = 1 AND r.c IS NULL"),
            {"r#1": "b < 3 AND c IS NULL", "s#1": "c = 1"},
        ),
        (
            JOINED_PAIR.format("r.b + 1 < 3 AND length(s.name) > 2"),
            {"r#1": "b + 1 < 3", "s#1": "length(name) > 2"},
        ),
        # Each access of a table has separate conditions.
        (
            "SELECT x.a FROM r x JOIN r y ON x.a = y.b WHERE x.c < 5 AND y.c > 7",
            {"r#1": "c < 5", "r#2": "c > 7"},
        ),
        # They go through renamed and computed columns.
        (
            "SELECT t.k FROM (SELECT a AS k, b + c AS n FROM r WHERE b > 0) t JOIN s ON t.k = s.a "
            "WHERE t.n < 9",
            {"r#1": "b > 0 AND b + c < 9", "s#1": None},
        ),
    ],
)
def test_conditions_on_one_table_match_those_of_its_node(
    sql: str, expected: dict[str, str | None]
) -> None:
    assert nodes(sql) == expected


def test_conditions_on_several_tables_or_for_spark_are_ignored() -> None:
    either = join_of(JOINED_PAIR.format("r.b < s.b OR r.c = 1"))
    both = join_of("SELECT r.a FROM r JOIN s ON r.a = s.a AND r.b < s.b")
    for plan in (either, Select(both, both.condition)):
        assert conditions(plan) == {"r#1": None, "s#1": None}
    sql = "SELECT r.a FROM r JOIN s ON r.a = s.a WHERE r.b < 3 AND soundex(r.name) = 'x'"
    assert conditions(core(sql)) == {"r#1": "b < 3", "s#1": None}


def test_lower_conditions_come_first_with_base_names() -> None:
    """A lower condition may guard a higher one, such as a division."""
    sql = "SELECT t.k FROM (SELECT a AS k, b + c AS n FROM r WHERE b > 0) t WHERE t.n < 9"
    below = [node for node in core(sql).walk() if isinstance(node, Scan)][0]
    refs = {one.name: one.ref() for one in below.attributes}
    first = Select(below, Compare(CompareOp.GREATER, refs["b"], Literal(0, LONG)))
    total = Attribute("t.n", "n", LONG)
    computed = Project(
        first, (ComputedColumn(total, Arithmetic(ArithmeticOp.ADD, refs["b"], refs["c"])),)
    )
    alias = Attribute("u.n", "n", LONG)
    renamed = Project(computed, (ComputedColumn(alias, total.ref()),))
    whole = Select(renamed, Compare(CompareOp.LESS, alias.ref(), Literal(9, LONG)))
    assert conditions(whole) == {"r#1": "b > 0 AND b + c < 9"}


def test_sides_with_equal_conditions_are_counted_once() -> None:
    """Columns have their table's names, so that accesses of one table are recognized as equal."""
    sql = "SELECT x.a FROM r x JOIN r y ON x.a = y.a WHERE x.c < 5 AND y.c < 5"
    sides = []
    for relation in chain_of(join_of(sql)).relations:
        (scan,) = relation.plan.scans
        (key,) = [one.ref() for one in scan.attributes if one.name == "a"]
        sides.append(key_side(relation.plan, [key], [False]))
    assert sides[0].columns.where is not None
    assert len(set(sides)) == 1


def test_an_empty_key_still_has_the_condition() -> None:
    side = key_side(join_of("SELECT r.d FROM r CROSS JOIN s WHERE r.b < 3").left, [], [])
    assert (side.table, side.columns.key, side.columns.names) == ("r", (), ("b",))


R, R_AGAIN = Scan("r#1", "r", ()), Scan("r#2", "r", ())
FIRST = JoinedAccess(R, 0.5, 2, 3.0, 7.0)
AGAIN = JoinedAccess(R_AGAIN, 1.0, 1, 0.0, 11.0)


def cost_of_accesses(
    *accesses: TouchingAccess, mode: TreeMode = TreeMode.RING, tuples: float = 1e12
) -> TreeCost:
    return TreeCost(accesses, (tuples, tuples), mode, 0.0)


LEAF = TouchingAccess(R, 0.5, ((0, 0.5), (1, 2.0)), 4.0)
ROOT = TouchingAccess(R_AGAIN, 1.0, ((1, 1.0),), 0.0)


@pytest.mark.parametrize("mode", list(TreeMode))
def test_index_cost_counts_steps_joined_rows_and_changed_groups(
    mode: TreeMode,
) -> None:
    costs = INDEX_JOIN[mode]
    one = costs.step + 2 * costs.join + STEP_ROWS * (3.0 * costs.kept + 7.0 * costs.last)
    for tuples, changed in ((1e12, STEP_ROWS * 2.0), (5.0, 5.0)):
        tree = cost_of_accesses(LEAF, mode=mode, tuples=tuples)
        expected = (one + costs.group * changed) / 1000
        assert index_ms([FIRST], tree, {"r": 1}) == pytest.approx(expected)


def test_changed_groups_are_limited_by_joined_rows() -> None:
    costs = INDEX_JOIN[TreeMode.RING]
    rare = replace(FIRST, kept=0.0, last=0.01)
    result = costs.step + 2 * costs.join + STEP_ROWS * 0.01 * (costs.last + costs.group)
    assert index_ms([rare], cost_of_accesses(LEAF), {"r": 1}) == pytest.approx(result / 1000)


def test_a_changed_row_enters_every_access_of_its_table() -> None:
    costs = INDEX_JOIN[TreeMode.BITS]
    both = costs.step + 3 * costs.join + STEP_ROWS * (3.0 * costs.kept + 18.0 * costs.last)
    both += STEP_ROWS * 21.0 * costs.again
    result = index_ms([FIRST, AGAIN], cost_of_accesses(LEAF, ROOT, mode=TreeMode.BITS), {"r": 1})
    assert result == pytest.approx(both / 1000)
    assert rows_joined([FIRST, AGAIN], {"r": 1}) == 21.0


@pytest.mark.parametrize("mode", list(TreeMode))
def test_tree_cost_counts_nodes_touched_tuples_and_woken_rows(mode: TreeMode) -> None:
    costs = JOIN_TREE[mode]
    one = costs.step + 2 * costs.node + STEP_ROWS * (2.5 * costs.touched + 4.0 * costs.woken)
    assert tree_ms(cost_of_accesses(LEAF, mode=mode), {"r": 1}) == pytest.approx(one / 1000)
    both = one + STEP_ROWS * costs.touched
    assert tree_ms(cost_of_accesses(LEAF, ROOT, mode=mode), {}) == pytest.approx(both / 1000)
    assert tuples_touched([LEAF, ROOT], {}) == 3.5


def test_tuples_touched_by_several_rows_count_once() -> None:
    """All of ten tuples are touched. Of as many tuples as there are rows, a share of 1 - 1/e is."""
    fixed = JOIN_TREE[TreeMode.RING].step + 2 * JOIN_TREE[TreeMode.RING].node

    def different(tuples: float) -> float:
        micros = 1000 * tree_ms(cost_of_accesses(ROOT, tuples=tuples), {})
        return (micros - fixed) / JOIN_TREE[TreeMode.RING].touched

    assert different(10) == pytest.approx(10)
    assert different(1000) == pytest.approx(1000 * (1 - math.exp(-1)))
    assert different(0) == pytest.approx(0)


def accesses_of(
    sql: str, tables: Mapping[str, pa.Table] = PATH_TABLES
) -> dict[str, TouchingAccess]:
    result = tree_cost(tree_shape(core(sql)), MemoryFanOuts(tables))
    return {access.scan.table: access for access in result.accesses}


def test_a_row_touches_its_own_tuple_and_those_above_it() -> None:
    """`s` is the root: a key of `r` reaches four of its tuples, one of `t` two."""
    result = tree_cost(tree_shape(core(PATH)), MemoryFanOuts(PATH_TABLES))
    reached = {one.scan.table: [tuples for _, tuples in one.reached] for one in result.accesses}
    assert reached == {"r": [1.0, 4.0], "s": [1.0], "t": [1.0, 2.0]}
    assert sorted(result.tuples) == [10, 20, 40]


@pytest.mark.parametrize(
    ("sql", "tables", "woken"),
    [
        # One in four rows of `s` is the only one of its key and wakes three rows of `r`; one in two
        # wakes five rows of `t`. One in three rows of `r` is the only one of its key; its four
        # tuples of `s` need keys of `t`.
        (PATH, PATH_TABLES, {"s": 3 / 4 + 5 / 2, "r": 4 / 3 * 5 / 2}),
        # A row of `r` wakes four of `s`, and a key of two of these wakes five of `t`.
        (PATH.replace("s.d", "r.d"), PATH_TABLES, {"r": 4 / 3 + 4 / 3 / 2 * 5}),
        # A group of a virtual root wakes all its rows.
        (PAIR, {"r": rows(10, 3), "s": rows(10, 7)}, {"r": 7 / 3, "s": 3 / 7}),
    ],
)
def test_first_rows_of_a_key_wake_their_partners(
    sql: str, tables: Mapping[str, pa.Table], woken: dict[str, float]
) -> None:
    result = accesses_of(sql, tables)
    assert {table: result[table].woken for table in woken} == pytest.approx(woken)


@pytest.mark.parametrize(
    ("exists", "woken"), [("EXISTS", 3 / 4), ("NOT EXISTS", 0.0)], ids=["semi", "anti"]
)
def test_not_exists_wakes_no_rows(exists: str, woken: float) -> None:
    sql = (
        f"SELECT s.d FROM s WHERE {exists} (SELECT 1 FROM r WHERE r.a = s.a) "
        "GROUP BY s.d HAVING COUNT(*) > 1"
    )
    result = accesses_of(sql, {"r": rows(10, 3), "s": rows(10, 4)})
    assert result["s"].woken == pytest.approx(woken)
    # A row of `r` is passed on if it is the only one with its key.
    assert [tuples for _, tuples in result["r"].reached] == pytest.approx([1, 4 / 3])


def test_filtered_rows_neither_touch_nor_are_woken() -> None:
    sql = PAIR.replace("GROUP", "WHERE r.e = 0 GROUP")
    result = accesses_of(sql, {"r": rows(10, 12), "s": rows(10, 7)})
    assert result["r"].share == 0.25
    assert [tuples for _, tuples in result["r"].reached] == pytest.approx([0.25, 0.25])
    assert result["r"].woken == pytest.approx(0.25 * 7 / 3)
    assert result["s"].woken == pytest.approx(3 / 7)


NUMBERS = [name for name in JoinEstimate.__struct_fields__ if name != "kept"]


def one_case(seed: int, counts: Counter[str]) -> None:
    rng = Random(seed)
    sql = JoinMaker(rng).sql()
    try:
        root = core(sql)
    except QueryError:
        return
    tables = {
        name: table_of([dict(row) for row in rows]) for name, rows in random_tables(rng).items()
    }
    weights = {name: rng.randint(0, 3) for name in tables}
    choice = TreesByFanOut(MemoryFanOuts(tables), weights).choose(root)
    estimate = choice.estimate
    counts["all"] += 1
    if estimate is None:
        assert not choice.is_tree
        counts[choice.reason[:24]] += 1
        return
    counts["estimated"] += 1
    counts["limited"] += bool(estimate.kept)
    for name in NUMBERS:
        number = getattr(estimate, name)
        assert 0 <= number < math.inf, (name, sql)
    assert all(0 <= one.share <= 1 for one in estimate.kept)


@random_cases(25, 47, 300)
def test_estimates_of_random_queries_are_valid(cases: range) -> None:
    counts = seen_in(cases, one_case)
    assert counts["estimated"] > len(cases) // 20, counts
    assert counts["limited"] > 0, counts
