"""When sides of joins are stored or read; implied equalities."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from impctl.compile.compile import compile_plan
from impctl.compile.flows import ChooseBySize, SideFacts, StoredChoices, Strategy
from impctl.compile.joins import chain_of, implied_equalities
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import INTEGER, LONG, Column, Schema
from impctl.data.vector import Ints, Vector
from impctl.engine.batch import Batch
from impctl.engine.join import JoinOperator, Side
from impctl.engine.lookups import DistantRows, KeyFilter
from impctl.engine.tags import RowTags
from impctl.engine.trace import RowIndex
from impctl.plan.nodes import Join as PlanJoin
from impctl.plan.nodes import Plan
from impctl.rules.optimize import apply_rules
from impctl.sketch.sketch import RangePartition
from impctl.sql.statement import parse_query
from tests.compile.test_reading import JOINS, Tables, arrow, compiled, started
from tests.support.carried_queries import arrow_rows, counts_of
from tests.support.circuits import save


class FailingReader:
    """A reader that must not be called."""

    def rows(self, side: str, keys: list[Vector]) -> None:
        raise AssertionError(f"{side} was asked for {len(keys[0])} keys")


@pytest.mark.parametrize("sides", ["left", "right", "left right"])
@pytest.mark.parametrize("name", ["grouped", "condition", "null_safe", "two_keys"])
def test_rows_with_new_keys_read_no_side(name: str, sides: str) -> None:
    """Both tables get rows with new keys, so no side is read."""

    def rows_of(t: Sequence[int], u: Iterable[tuple[int, int]]) -> dict[str, Any]:
        return {"t": [{"g": g, "x": g, "s": "a"} for g in t], "u": [{"g": g, "y": y} for g, y in u]}

    tables = Tables(Random(0), rows_of(range(5), [(g, g) for g in range(5)]))
    kept, _ = started(compiled(JOINS[name]), tables)
    distant = StoredChoices([f"join0.{side}" for side in sides.split()])
    read, _ = started(compiled(JOINS[name], distant), tables)
    read.read_by(FailingReader())  # type: ignore[arg-type]  # it fails before it answers
    fresh = rows_of((70, 71, 71), [(g, g + 1) for g in (70, 71, 72)])
    change = {n: TableChange(arrow(n, rows), np.ones(3, np.int64)) for n, rows in fresh.items()}
    for session in (kept, read):
        session.step(change)
    assert counts_of(read) == counts_of(kept)


def test_changes_without_partners_read_nothing() -> None:
    """The key filter avoids reading keys that the other side never had."""
    tables = Tables(Random(0), {"t": [], "u": [{"g": g, "y": 1} for g in range(50)]})
    session, _ = started(compiled(JOINS["grouped"], StoredChoices(["join0.right"])), tables)
    session.read_by(FailingReader())  # type: ignore[arg-type]  # it fails before it answers
    strangers, known = (
        arrow("t", [{"g": g, "x": 1, "s": "a"} for g in keys])
        for keys in ((60, 70, 80, None), (7,))
    )
    session.step({"t": TableChange(strangers, np.ones(4, np.int64))})
    with pytest.raises(AssertionError, match="asked for 1 keys"):
        session.step({"t": TableChange(known, np.ones(1, np.int64))})


def codes(seed: int, size: int) -> Ints:
    return np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, size)


@pytest.mark.parametrize("parts", [1, 3, 40])
def test_key_filters_find_every_added_key(parts: int) -> None:
    key_filter = KeyFilter("f")
    everything = [codes(seed, 700) for seed in range(parts)]
    stored: dict[int, pa.Table] = {}
    for number, some in enumerate(everything):
        key_filter.add(some)
        if number == parts // 2:
            key_filter.compact()
        save(key_filter, stored)
    loaded = KeyFilter("f")
    loaded.load(list(stored.items()))
    strangers = codes(10_000, 20_000)
    for one in (key_filter, loaded):
        assert all(bool(one.may_hold(some).all()) for some in everything)
        assert one.may_hold(strangers).mean() < 0.05
    assert not KeyFilter("empty").may_hold(strangers).any()


def test_auto_keeps_small_sides_and_reads_large_ones() -> None:
    facts = SideFacts("join0.left", ("t", "u"), 100, (Strategy.FILES, Strategy.SPARK))
    by_size = ChooseBySize(None, {"t": 10, "u": 2_000}.__getitem__, largest=100_000)
    large = by_size.choose(facts)
    assert (large.strategy, large.bytes) == (Strategy.SPARK, 200_000)
    for chooser, side_facts in (
        (replace(by_size, largest=1_000_000), facts),
        (by_size, replace(facts, readers=())),
        (replace(by_size, requested=Strategy.INDEX), facts),
    ):
        assert chooser.choose(side_facts).strategy is Strategy.INDEX
    chosen = ChooseBySize(None, {"t": None, "u": 5}.__getitem__).choose(facts)
    assert (chosen.strategy, chosen.rows, chosen.bytes) == (Strategy.INDEX, None, None)
    assert "its size is unknown" in chosen.reason


COLUMNS = (("k", LONG), ("v", LONG))
ROW = 36
"""Estimated bytes of a row of these columns."""


def batch(rng: random.Random, rows: int, name: str = "") -> Batch:
    values = {f"{name}{column}": [rng.randrange(5) for _ in range(rows)] for column, _ in COLUMNS}
    columns = {
        column: Vector(LONG, np.array(one, dtype=np.int64)) for column, one in values.items()
    }
    tag = RowTags(np.array([rng.randrange(3) for _ in range(rows)], dtype=np.int32))
    return Batch(columns, np.ones(rows, dtype=np.int64), (tag,))


def filling(room: int) -> DistantRows:
    side = DistantRows("s", COLUMNS, ("k",), 1, is_held=True, room=room)
    side.fill(True)
    return side


def add(side: DistantRows, rows: Batch) -> None:
    side.add(rows, side.codes_of(rows))


@pytest.mark.parametrize(("room", "rows"), [(10, 9), (10, 10), (10, 11), (0, 1)])
def test_unrequested_rows_are_held_while_there_is_room(room: int, rows: int) -> None:
    rng, side = random.Random(rows), filling(room=room * ROW)
    if room:
        side.let_go()
    for _ in range(rows):
        add(side, batch(rng, 1))
    assert (side.at_hand is not None) == (rows <= room)
    if side.at_hand is not None:
        assert len(side.at_hand.whole()) <= rows
        assert int(side.at_hand.whole().weights.sum()) == rows


def test_requested_rows_are_held_and_kept_up_to_twice_the_room() -> None:
    rng, side = random.Random(1), filling(room=10 * ROW)
    add(side, batch(rng, 20))
    assert side.at_hand is not None
    add(side, batch(rng, 1))
    assert side.at_hand is None
    key = np.array([0, 1, 2, 3, 4])
    assert int(side.find(key, [Vector(LONG, key)]).rows.weights.sum()) == 21
    side.let_go()
    side.fill(False)
    assert side.at_hand is None


@pytest.mark.parametrize("seed", range(20))
def test_joins_that_start_keeping_rows_match_others(seed: int) -> None:
    rng = random.Random(seed)
    left, right = (tuple((f"{s}{name}", kind) for name, kind in COLUMNS) for s in "lr")

    def join(*, reads: bool) -> JoinOperator:
        room = 1 << 20 if reads else 0
        sides = [Side(c, (c[0][0],), 1, reads, True, reads, room) for c in (left, right)]
        return JoinOperator("j", sides[0], sides[1], [False])

    read, kept = join(reads=True), join(reads=False)
    for one in (read, kept):
        one.fill(True)
    for _ in range(4):
        change = (batch(rng, rng.randint(0, 9), "l"), batch(rng, rng.randint(0, 9), "r"))
        assert sums(read.step(*change)) == sums(kept.step(*change))
        if rng.random() < 0.3:
            read.ended([True, True])
            break
    names = read.keep_at_hand()
    for one in (read, kept):
        one.fill(False)
    assert list(names) == ["j.left", "j.right"]
    assert read.reads == ()
    assert read.form == kept.form
    assert read.can_output
    assert [type(one) for one in read.indexes] == [RowIndex, RowIndex]
    change = (batch(rng, 5, "l"), batch(rng, 5, "r"))
    assert sums(read.step(*change)) == sums(kept.step(*change))
    assert sums(read.output()) == sums(kept.output())


def sums(rows: Batch) -> dict[tuple[object, ...], int]:
    result: Counter[tuple[object, ...]] = Counter()
    columns = [rows.columns[name].values.tolist() for name in sorted(rows.columns)]
    tags = [tag.sets().ranges.tolist() for tag in rows.tags] if len(rows) else []
    for *key, weight in zip(*columns, *tags, rows.weights.tolist(), strict=True):
        result[tuple(key)] += weight
    return {key: weight for key, weight in result.items() if weight}


def test_only_sides_read_by_budget_have_room() -> None:
    facts = SideFacts("s", ("t",), 100, (Strategy.FILES,))
    chosen = ChooseBySize(None, {"t": 1_000}.__getitem__, from_files=1_000).choose(facts)
    assert (chosen.strategy, chosen.room) == (Strategy.FILES, 2_000)
    for chooser in (
        ChooseBySize(None, {"t": 5}.__getitem__, from_files=1_000),
        ChooseBySize(Strategy.FILES, {"t": 1_000}.__getitem__, from_files=1_000),
        StoredChoices(from_files=("s",)),
    ):
        assert chooser.choose(facts).room == 0


THREE_COLUMNS = Schema((*(Column(name, LONG) for name in "knp"), Column("i", INTEGER)))
THREE_TABLES = dict.fromkeys(("a", "b", "c"), THREE_COLUMNS)
MEETS = "SELECT a.n, COUNT(*) AS t FROM a JOIN b ON {} JOIN c ON {} WHERE a.p = 1 AND c.p = 1 "
GROUPED = "GROUP BY a.n HAVING COUNT(*) > 1"
SQL = (MEETS + GROUPED).format("a.k = b.k", "b.k = c.k")
COUNT = 60


def plan_of(sql: str) -> Plan:
    return apply_rules(parse_query(sql, THREE_TABLES).root)


def session_of(sql: str) -> MaintainedQuery:
    root = plan_of(sql)
    ranges = {
        scan.access: RangePartition(scan.table, "n", LONG, tuple(range(1, COUNT)))
        for scan in root.scans
    }
    return MaintainedQuery(compile_plan(root, ranges, {}))


def random_rows(rng: Random, count: int) -> list[dict[str, Any]]:
    return [
        {"k": rng.choice([None, *range(20)]), "n": rng.randrange(COUNT), "p": 1, "i": 0}
        for _ in range(count)
    ]


def table_of(result: list[dict[str, Any]]) -> pa.Table:
    return arrow_rows(THREE_COLUMNS, result)


def expected_ranges(tables: dict[str, list[dict[str, Any]]]) -> dict[str, set[int]]:
    result = [
        rows
        for rows in product(*(tables[name] for name in "abc"))
        if rows[0]["k"] is not None and len({row["k"] for row in rows}) == 1
    ]
    count = Counter(row["n"] for row, _, _ in result)
    kept = [rows for rows in result if count[rows[0]["n"]] > 1]
    return {name: {rows[index]["n"] for rows in kept} for index, name in enumerate("abc")}


@pytest.mark.parametrize("seed", range(5))
def test_implied_equalities_do_not_change_rows(seed: int) -> None:
    rng = Random(seed)
    tables = {name: random_rows(rng, count) for name, count in (("a", 40), ("b", 4), ("c", 40))}
    session = session_of(SQL)
    session.load([(name, table_of(result)) for name, result in tables.items()])
    assert sum(op.joined_rows for op in session.circuit) < 40 * 40 / 4
    for _ in range(6):
        changes = {}
        for name in rng.sample("abc", 2):
            inserted, deleted = random_rows(rng, 3), [tables[name].pop() for _ in range(3)]
            tables[name] = [*inserted, *tables[name]]
            weights = np.array([1] * 3 + [-1] * 3, dtype=np.int64)
            changes[name] = TableChange(table_of([*inserted, *deleted]), weights)
        session.step(changes)
        result = {access[0]: set(ids.ids) for access, ids in session.ranges().items()}
        assert result == expected_ranges(tables)


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [
        ("a.k = b.k", "b.k = c.k", 1),
        ("a.k = b.k", "b.k = c.n", 1),
        ("a.k = b.k", "b.k = c.k AND a.k = c.k", 0),
        ("a.k = b.k", "b.n = c.k", 0),
        ("a.k = b.i", "b.i = c.k", 0),
        ("a.k + 1 = b.k", "b.k = c.k", 0),
        ("a.k <=> b.k", "b.k = c.k", 0),
        ("a.k = b.k AND a.n = b.n", "b.k = c.k AND b.n = c.n", 2),
    ],
)
def test_implied_equalities(first: str, second: str, count: int) -> None:
    plan = plan_of((MEETS + GROUPED).format(first, second))
    chain = chain_of(next(node for node in plan.walk() if isinstance(node, PlanJoin)))
    by_table = {one.plan.scans[0].table: one.ids for one in chain.relations}
    both = by_table["a"] | by_table["c"]
    stated = [part for part in chain.conditions if part.columns <= both]
    assert len(implied_equalities(chain.equal, by_table["a"], by_table["c"], stated)) == count
