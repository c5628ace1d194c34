"""A circuit that reads one side of its joins, or both, comes to what one that keeps them comes to.

After every step the rows that carry each fragment are the same, whichever sides are kept; changes
come on one table or on several at once, and deletions take back what was read before.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from impctl.compile.compile import Compiled, compile_plan
from impctl.compile.flows import AsRecorded, BySize, SideFacts, Strategy
from impctl.compile.session import MaintainedQuery, TableChange, hand_over
from impctl.data.vector import Ints, Vector
from impctl.engine.lookups import DistantRows, KeyFilter
from impctl.plan.nodes import Plan, scans_of
from impctl.rules.optimize import apply_rules
from impctl.sql.statement import parse_query
from impctl.types import TableName
from tests.circuits.test_laws import CATALOG, PARTITIONS
from tests.support.algebra import rows
from tests.support.arrow_rows import arrow_rows
from tests.support.circuits import save
from tests.support.random_cases import random_cases
from tests.support.reference_partners import ReferencePartners
from tests.support.restored_query import Stored, counts_of, restored

JOINS = {
    "grouped": "SELECT t.g, SUM(u.y) s FROM t JOIN u ON t.g = u.g GROUP BY t.g HAVING SUM(u.y) > 2",
    "condition": "SELECT t.x FROM t JOIN u ON t.g = u.g AND t.x < u.y WHERE t.s = 'a'",
    "computed": "SELECT t.x FROM t JOIN u ON t.x + 1 = u.y",
    "null_safe": "SELECT t.x FROM t JOIN u ON t.g <=> u.g",
    "two_keys": "SELECT t.s FROM t JOIN u ON t.g = u.g AND t.x = u.y",
    "self": "SELECT a.g FROM t a JOIN t b ON a.g = b.g AND a.x < b.x WHERE b.s = 'a'",
    "three": "SELECT t.s FROM t JOIN u ON t.g = u.g JOIN u v ON v.y = t.x WHERE u.y > 0",
    "star": "SELECT COUNT(*) FROM t JOIN u ON t.g = u.g JOIN t o ON o.g = u.g AND o.x = t.x",
    "partnered": "SELECT g FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.g = t.g AND u.y > t.x)",
}
SIDES = {
    "left": ("join0.left", "join1.left"),
    "right": ("join0.right", "join1.right"),
    "both": ("join0.left", "join0.right", "join1.left", "join1.right"),
    "second": ("join1.left", "join1.right"),
}
CHOICES = [
    (name, sides)
    for name, sides in product(JOINS, SIDES)
    if sides != "second" or JOINS[name].count("JOIN") == 2
]
joins_and_sides = pytest.mark.parametrize(("name", "sides"), CHOICES)


@cache
def root_of(name: str) -> Plan:
    return apply_rules(parse_query(JOINS[name], CATALOG).root)


def compiled(
    name: str,
    distant: tuple[str, ...],
    *,
    has_filter: bool = True,
    reader: Strategy = Strategy.SPARK,
) -> Compiled:
    root = root_of(name)
    sketched = {scan.access: PARTITIONS[scan.table] for scan in scans_of(root)}
    by_spark, by_files = (distant, ()) if reader is Strategy.SPARK else ((), distant)
    return compile_plan(root, sketched, {}, AsRecorded(by_spark, has_filter, by_files))


@dataclass
class Tables:
    """The tables as they are, and the change that brings them on."""

    rng: random.Random
    held: dict[TableName, list[dict[str, object]]]

    def changed(self) -> dict[TableName, TableChange]:
        result = {}
        for name, held in self.held.items():
            fresh = rows(self.rng, self.rng.randint(0, 4), is_left=name == "t").to_pylist()
            gone = [held.pop(self.rng.randrange(len(held))) for _ in range(min(len(held), 2))]
            held += fresh
            weights = np.array([1] * len(fresh) + [-1] * len(gone), dtype=np.int64)
            if self.rng.random() < 0.8:
                result[name] = TableChange(arrow(name, [*fresh, *gone]), weights)
            else:
                held[len(held) - len(fresh) :] = []
                held += gone
        return result


def arrow(name: str, result: list[dict[str, object]]) -> pa.Table:
    return arrow_rows(CATALOG[name], result)


def started(result: Compiled, tables: Tables) -> MaintainedQuery:
    partitions = {s.access: PARTITIONS[s.table] for s in result.sources}
    partners = ReferencePartners(result, partitions, tables.held)
    session = MaintainedQuery(result)
    turns = session.turns(lambda table: result.tables.index(table))
    # Nobody can be asked while it is filled.
    session.load_in_turn(
        turns, lambda turn: [arrow(turn.table, tables.held[turn.table])], partners.pairs
    )
    session.read_by(partners)
    return session


def compared(
    name: str,
    sides: tuple[str, ...],
    seed: int,
    *,
    has_filter: bool = True,
    reader: Strategy = Strategy.SPARK,
) -> None:
    rng = random.Random(seed)
    held = {
        "t": rows(rng, 12, is_left=True).to_pylist(),
        "u": rows(rng, 8, is_left=False).to_pylist(),
    }
    tables = Tables(rng, held)
    kept = started(compiled(name, ()), tables)
    read = started(compiled(name, sides, has_filter=has_filter, reader=reader), tables)
    for _ in range(4):
        assert counts_of(read) == counts_of(kept)
        change = tables.changed()
        kept.step(change)
        read.step(change)
    assert counts_of(read) == counts_of(kept)


@pytest.mark.slow
@random_cases(1, 3, 24)
@joins_and_sides
def test_whichever_sides_are_kept(name: str, sides: str, cases: range) -> None:
    readers = (Strategy.SPARK, Strategy.FILES)
    for seed in cases:
        # Each has its turn, and begins with every other join.
        reader = readers[(seed + CHOICES.index((name, sides))) % 2]
        compared(name, SIDES[sides], seed, reader=reader)


@pytest.mark.slow
@random_cases(1, 2, 12)
@joins_and_sides
def test_sides_are_handed_over_and_back(name: str, sides: str, cases: range) -> None:
    """State goes to a circuit that reads these sides, on from there, and to one that keeps all."""
    for seed in cases:
        rng = random.Random(seed)
        held = {
            "t": rows(rng, 12, is_left=True).to_pylist(),
            "u": rows(rng, 8, is_left=False).to_pylist(),
        }
        tables = Tables(rng, held)
        kept, moving = started(compiled(name, ()), tables), started(compiled(name, ()), tables)
        stored = Stored()
        for turn in range(4):
            partitions = {s.access: PARTITIONS[s.table] for s in moving.compiled.sources}
            before = ReferencePartners(moving.compiled, partitions, held)
            form = compiled(name, () if turn % 2 else SIDES[sides], reader=Strategy.FILES)
            after = restored(moving, stored, MaintainedQuery(form))
            hand_over(moving, after, before.whole, lambda source, keys: [])
            after.read_by(ReferencePartners(form, partitions, held))
            moving = after
            change = tables.changed()
            kept.step(change)
            moving.step(change)
            assert counts_of(moving) == counts_of(kept), (seed, turn)


@pytest.mark.parametrize("reader", [Strategy.SPARK, Strategy.FILES])
@random_cases(3, 8, 24)
def test_without_the_filter_it_is_the_same(cases: range, reader: Strategy) -> None:
    for seed in cases:
        compared("grouped", SIDES["both"], seed, has_filter=False, reader=reader)


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("name", ["grouped", "condition", "null_safe", "two_keys"])
def test_rows_that_come_with_the_first_of_their_key_ask_nobody(name: str, sides: str) -> None:
    """Both tables get rows of keys that neither had: no side is read, whichever are not kept."""
    held = {
        "t": [{"g": g, "x": g, "s": "a"} for g in range(5)],
        "u": [{"g": g, "y": g} for g in range(5)],
    }
    tables = Tables(random.Random(0), held)
    kept = started(compiled(name, ()), tables)
    read = started(compiled(name, SIDES[sides]), tables)

    class Nobody:
        def rows(self, side: str, keys: list[Vector]) -> None:
            raise AssertionError(f"{side} was asked")

    read.read_by(Nobody())  # type: ignore[arg-type]  # it fails before it answers
    fresh = {
        "t": [{"g": g, "x": g, "s": "a"} for g in (70, 71, 71)],
        "u": [{"g": g, "y": g + 1} for g in (70, 71, 72)],
    }
    change = {n: TableChange(arrow(n, rows), np.ones(3, np.int64)) for n, rows in fresh.items()}
    for session in (kept, read):
        session.step(change)
    assert counts_of(read) == counts_of(kept)


def test_a_change_without_partners_asks_nobody() -> None:
    """What the filter is for: keys the other side never had are not read."""
    result = compiled("grouped", SIDES["right"])
    tables = Tables(random.Random(0), {"t": [], "u": [{"g": g, "y": 1} for g in range(50)]})
    session = started(result, tables)
    asked: list[int] = []
    whole = DistantRows.find

    class Nobody:
        def rows(self, side: str, keys: list[Vector]) -> None:
            asked.append(len(keys[0]))
            raise AssertionError("nobody was to be asked")

    assert whole is DistantRows.find
    session.read_by(Nobody())  # type: ignore[arg-type]  # it fails before it answers
    strangers = [{"g": g, "x": 1, "s": "a"} for g in (60, 70, 80, None)]
    session.step({"t": TableChange(arrow("t", strangers), np.ones(4, np.int64))})
    with pytest.raises(AssertionError, match="nobody"):
        session.step(
            {"t": TableChange(arrow("t", [{"g": 7, "x": 1, "s": "a"}]), np.ones(1, np.int64))}
        )
    assert asked == [1]


def codes(seed: int, size: int) -> Ints:
    return np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, size)


@pytest.mark.parametrize("parts", [1, 3, 40])
def test_a_filter_finds_every_key_ever_added(parts: int) -> None:
    key_filter = KeyFilter("f")
    everything = [codes(seed, 700) for seed in range(parts)]
    stored: dict[int, pa.Table] = {}
    for at, some in enumerate(everything):
        key_filter.add(some)
        if at == parts // 2:
            key_filter.compact()
        save(key_filter, stored)
    again = KeyFilter("f")
    again.load(list(stored.items()))
    strangers = codes(10_000, 20_000)
    for one in (key_filter, again):
        assert all(bool(one.may_hold(some).all()) for some in everything)
        assert one.may_hold(strangers).mean() < 0.05
    assert not KeyFilter("empty").may_hold(strangers).any()


def test_auto_keeps_what_is_small_and_reads_what_is_large() -> None:
    facts = SideFacts("join0.left", ("t", "u"), 100, (Strategy.FILES, Strategy.SPARK))
    sizes = {"t": 10, "u": 2_000}
    by_size = BySize(None, sizes.__getitem__, largest=100_000)
    assert by_size.choose(facts).strategy is Strategy.SPARK
    assert by_size.choose(facts).bytes == 200_000
    small = replace(by_size, largest=1_000_000)
    assert small.choose(facts).strategy is Strategy.INDEX
    computed = replace(facts, readers=())
    assert by_size.choose(computed).strategy is Strategy.INDEX
    asked = replace(by_size, asked=Strategy.INDEX)
    assert asked.choose(facts).strategy is Strategy.INDEX
    unknown = BySize(None, {"t": None, "u": 5}.__getitem__)
    chosen = unknown.choose(facts)
    assert (chosen.strategy, chosen.rows, chosen.bytes) == (Strategy.INDEX, None, None)
    assert "its size is unknown" in chosen.reason
