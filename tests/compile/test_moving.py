"""Constants that move and rows that expire: time and changes in random steps, against live rows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec import Struct, field

from impctl.compile import session
from impctl.compile.compile import compile_plan, plan_maintenance
from impctl.compile.flows import Source, StoredChoices
from impctl.compile.session import (
    MaintainedQuery,
    TableChange,
    TouchedQuery,
    differing_rows,
    judged_alone,
    moved_above,
    touched_source,
    why_not_computable,
)
from impctl.data.schema import DATE, INTEGER, TIMESTAMP, Column, Schema
from impctl.data.vector import Ints, Vector, from_arrow
from impctl.engine.fixpoint.absorption import AbsorbedFixpoint, Absorbs, Shipping
from impctl.expr.nodes import Call, Compare, CompareOp, Expr, Literal
from impctl.plan.lineage import MovedConditions, moved_conditions
from impctl.plan.nodes import LiveRows
from impctl.rules.optimize import apply_rules
from impctl.sketch.sketch import MaintenanceMode, RangePartition, RangeSet
from impctl.sql.statement import parse_query
from impctl.types import TableName
from tests.compile.cases import (
    ALL_KEPT,
    Case,
    Kept,
    Planned,
    arrow,
    kept,
    random_row,
    several_cases,
)
from tests.support.carried_queries import ReferencePartners, Stored, arrow_rows, counts_of, restored
from tests.support.diagrams import with_diagrams
from tests.support.random_cases import random_cases
from tests.support.reference_plan import annotate

CATALOG = {
    "t": Schema((Column("g", INTEGER), Column("h", INTEGER), Column("at", TIMESTAMP))),
    "u": Schema((Column("g", INTEGER), Column("h", INTEGER), Column("day", DATE))),
}
TIME_OF = {"t": "at", "u": "day"}
SECOND = 1_000_000
QUERIES = {
    "sums": "SELECT g, SUM(h) AS s FROM t GROUP BY g HAVING SUM(h) > 3",
    "few": "SELECT g, COUNT(*) AS n FROM t GROUP BY g HAVING COUNT(*) < 3",
    "extremes": "SELECT g FROM t GROUP BY g HAVING MAX(h) > 3 AND MIN(h) < 2",
    "latest": "SELECT g, MAX(at) AS m FROM t GROUP BY g ORDER BY m DESC, g LIMIT 2",
    "rows": "SELECT g, h FROM t WHERE h > 1 ORDER BY h DESC, g LIMIT 3",
    "kinds": "SELECT DISTINCT g, h FROM t WHERE h < 4",
    "joined": "SELECT t.g FROM t JOIN u ON t.h = u.h GROUP BY t.g HAVING COUNT(*) > 1",
    "left": "SELECT t.g FROM t LEFT JOIN u ON t.h = u.h WHERE u.g IS NULL",
    "there": "SELECT g FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.h = t.h)",
    "missing": "SELECT g FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.h = t.h)",
    "twice": "SELECT a.g FROM t a JOIN t b ON a.h = b.g WHERE a.g < 4",
    "bag": "SELECT g, COUNT(*) AS n FROM (SELECT g FROM t UNION ALL SELECT h FROM u) GROUP BY g",
    "halves": """SELECT g FROM t WHERE h < 3 UNION ALL
        SELECT g FROM t WHERE h >= 3 OR h IS NULL""",
    "reach": """WITH RECURSIVE r(n) AS (SELECT h FROM t WHERE g = 0 UNION
        SELECT l.h FROM r JOIN t l ON r.n = l.g) SELECT n FROM r""",
    "seeds": """WITH RECURSIVE r(n) AS (SELECT g FROM u WHERE h < 2 UNION
        SELECT l.h FROM r JOIN t l ON r.n = l.g) SELECT n FROM r WHERE n > 0""",
}
WHOLE = {QUERIES[name] for name in ("sums", "latest", "bag", "twice", "halves", "reach")}
"""Of these all rows of the tables that they read are seen, if not by each access."""
SIDES = ("joined", "there", "twice")
"""Of these a side is read in some cases."""


def edges_at(now: int) -> dict[TableName, int]:
    """Ten seconds in the one table; in the other two days, of which each has four seconds."""
    return {"t": (now - 10) * SECOND, "u": now // 4 - 2}


def live_at(now: int) -> dict[TableName, LiveRows]:
    edges = edges_at(now)
    return {
        "t": LiveRows("at", Literal(edges["t"], TIMESTAMP)),
        "u": LiveRows("day", Literal(edges["u"], DATE)),
    }


@cache
def planned(sql: str, now: int | None) -> Planned:
    live: Mapping[TableName, LiveRows] = MappingProxyType({} if now is None else live_at(now))
    query = parse_query(sql, CATALOG, live=live)
    scans = apply_rules(query.root).scans
    for tables in ("t", "tu"):
        partitions = {
            scan.access: RangePartition(scan.table, "g", INTEGER, (1, 2, 3, 4, 5))
            for scan in scans
            if scan.table in tables
        }
        result = Kept.of(query, partitions)
        if result.whole.safe:
            return result
    raise AssertionError((sql, result.whole.reason))


Row = dict[str, int | None]


def arrow_of(table: TableName, rows: list[Row]) -> pa.Table:
    return arrow_rows(CATALOG[table], rows)


class ExpiringCase(Struct, dict=True):
    """Tables in files, a query's state over them, and the instant of the run."""

    rng: random.Random
    sql: str
    read: StoredChoices
    buffer: int | None
    now: int = 100
    files: dict[TableName, list[list[Row]]] = field(default_factory=dict)
    stored: Stored = field(default_factory=dict)
    read_files: int = 0
    all_files: int = 0

    def __post_init__(self) -> None:
        for table in CATALOG:
            sizes = [self.rng.choice((0, 1, 3, 8)) for _ in range(3)]
            self.files[table] = [[self.row(table) for _ in range(size)] for size in sizes]
        self.session = self._filled(self._started(self.now), self.rows_now())

    def row(self, table: TableName) -> Row:
        """Late ones, ones of the future, ones at the edge, ones without a time."""
        rng = self.rng

        def small() -> int | None:
            return None if rng.random() < 0.1 else rng.randrange(6)

        by = rng.choice((-30, -11, -10, -10, -9, -5, -1, 0, 3, 20)) + rng.choice((0, 0, 1))
        if table == "u":
            at = self.now // 4 + rng.choice((-5, -3, -2, -2, -1, 0, 2))
        else:
            at = (self.now + by) * SECOND + rng.choice((0, 0, 0, 1, -1, 500_000))
        known = None if rng.random() < 0.1 else at
        return {"g": small(), "h": small(), TIME_OF[table]: known}

    def rows_now(self) -> dict[TableName, list[Row]]:
        return {table: sum(files, []) for table, files in self.files.items()}

    def live_now(self) -> dict[TableName, list[Row]]:
        """What is live, told without any of what is tested."""
        edges = edges_at(self.now)
        return {
            table: [r for r in rows if (at := r[TIME_OF[table]]) is not None and at > edges[table]]
            for table, rows in self.rows_now().items()
        }

    def _started(self, now: int | None) -> MaintainedQuery:
        read = self.read if now is not None else ALL_KEPT
        made = planned(self.sql, now)
        result = MaintainedQuery(made.compiled(read, self.buffer))
        tables: Any = _Now(self)
        result.read_by(ReferencePartners(result.compiled, made.partitions, tables))
        return result

    def _filled(
        self, session: MaintainedQuery, rows: Mapping[TableName, list[Row]]
    ) -> MaintainedQuery:
        tables: Any = _Now(self)
        partitions = planned(self.sql, None).partitions
        partners = ReferencePartners(session.compiled, partitions, tables)
        names = session.compiled.tables
        session.load([(name, arrow_of(name, rows[name])) for name in names], partners.pairs)
        return session

    def changed(self) -> dict[TableName, TableChange]:
        """Some commits on some tables, as one change of each."""
        result = {}
        for table in self.files:
            if self.rng.random() < 0.4:
                continue
            gone: list[Row] = []
            came: list[Row] = []
            for _ in range(self.rng.choice((1, 1, 3))):
                self._commit(table, gone, came)
            weights = np.array([-1] * len(gone) + [1] * len(came), dtype=np.int64)
            result[table] = TableChange(arrow_of(table, [*gone, *came]), weights)
        return result

    def _commit(self, table: TableName, gone: list[Row], came: list[Row]) -> None:
        rng, files = self.rng, self.files[table]
        kind = rng.choice(("insert", "insert", "delete", "revive", "compact"))
        if kind == "compact":
            files[:] = [sum(files, [])]
            return
        new = [self.row(table) for _ in range(rng.choice((1, 2, 5)))] if kind == "insert" else []
        out: list[Row] = []
        for file in files if kind != "insert" else ():
            taken = [row for row in file if rng.random() < 0.2]
            for row in taken:
                file.remove(row)
            out += taken
        if kind == "revive":
            # Of rows that expired long ago, too.
            new = [{**row, TIME_OF[table]: self.row(table)[TIME_OF[table]]} for row in out]
        if new:
            files.append(new)
        gone += out
        came += new

    def step(self, by: int) -> int:
        """Time goes on, and tables, in one step; how many rows came or went by the former."""
        before, after = planned(self.sql, self.now), planned(self.sql, self.now + by)
        edges = edges_at(self.now), edges_at(self.now + by)
        self.session = restored(self.session, self.stored, self._started(self.now + by))
        conditions = moved_conditions(before.core, after.core)
        assert conditions is not None
        changes = self.changed()
        self.now += by

        def moved_rows(asked: Sequence[session.Moving]) -> list[pa.Table]:
            (table,) = {source.table for source, _ in asked}
            own, column = self.files[table], TIME_OF[table]
            low, high = edges[0][table], edges[1][table]
            result = []
            for file in own:
                times = [at for row in file if (at := row[column]) is not None]
                if times and min(times) <= high and max(times) > low:
                    result.append(arrow_of(table, file))
            self.read_files += len(result)
            self.all_files += len(own)
            return result

        def refill(source: Source, _: Mapping[str, Vector]) -> list[pa.Table]:
            return [arrow_of(source.table, self.rows_now()[source.table])]

        _, count = self.session.move(changes, conditions, moved_rows, refill)
        expired = self._expired(*edges)
        assert count == expired if self.sql in WHOLE else count <= expired, (self.sql, self.now)
        return count

    def _expired(self, before: Mapping[TableName, int], after: Mapping[TableName, int]) -> int:
        """How many rows there are of the query's tables that were live and no longer are."""
        times = [
            (table, row[TIME_OF[table]])
            for table in self.session.compiled.tables
            for row in self.rows_now()[table]
        ]
        return sum(at is not None and before[table] < at <= after[table] for table, at in times)

    def check(self) -> None:
        expected = self._filled(self._started(None), self.live_now())
        assert counts_of(self.session) == counts_of(expected), (self.sql, self.now, self.files)


class _Now(Mapping[TableName, Any]):
    """The rows of a case as they are when they are asked for."""

    def __init__(self, case: ExpiringCase) -> None:
        self._case = case

    def __getitem__(self, table: TableName) -> list[Row]:
        return self._case.rows_now()[table]

    def __iter__(self) -> Any:
        return iter(self._case.files)

    def __len__(self) -> int:
        return len(self._case.files)


STEPS = 6


def run(cases: Sequence[int]) -> Counter[str]:
    seen: Counter[str] = Counter()
    names = list(QUERIES)
    for seed in cases:
        rng, name = random.Random(seed), names[seed % len(names)]
        side = rng.choice((("join0.left",), ("join0.right",))) if name in SIDES else ()
        read = StoredChoices(side) if rng.random() < 0.5 else StoredChoices((), from_files=side)
        case = ExpiringCase(rng, QUERIES[name], read, rng.choice((None, 2)))
        seen[f"cases of {name}"] += 1
        for _ in range(STEPS):
            seen[name] += case.step(rng.choice((0, 1, 1, 2, 4, 9, 50))) > 0
            case.check()
            seen["steps"] += 1
        seen["read"] += case.read_files
        seen["files"] += case.all_files
    return seen


@pytest.mark.slow
@random_cases(0, 15, 340, also="18 20 22 27 29 30 32 36 53-55 61 64 71 73")
def test_what_is_live_is_what_is_kept(cases: Sequence[int]) -> None:
    seen = run(cases)
    assert seen["steps"] == STEPS * len(cases)
    for name in QUERIES:
        assert seen[name] >= seen[f"cases of {name}"] > 0, (name, seen)
    assert seen["read"] < seen["files"]


@pytest.mark.slow
@with_diagrams
@pytest.mark.parametrize("ship", list(Shipping))
@random_cases(4, 6, 200)
def test_so_it_is_of_recursion_by_absorption(
    cases: range, ship: Shipping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaves go where a row expires, though the table has it still."""
    by_functions = partial(compile_plan, absorbs=Absorbs(ship, 100_000))
    recursive = {name: sql for name, sql in QUERIES.items() if "RECURSIVE" in sql}
    monkeypatch.setattr("tests.compile.cases.compile_plan", by_functions)
    monkeypatch.setattr(f"{__name__}.QUERIES", recursive)
    circuit = planned(recursive["reach"], 100).compiled().circuit
    assert any(isinstance(one, AbsorbedFixpoint) for one in circuit)
    seen = run(cases)
    assert all(seen[name] > len(cases) // 4 for name in recursive), seen


LAST = "SELECT g, MAX(day) AS m FROM t GROUP BY g"
MOVED_QUERIES = {
    "having": (f"{LAST} HAVING MAX(day) >= {{now}}", "g x day"),
    "least": ("SELECT g FROM t GROUP BY g HAVING COUNT(*) > 1 AND MIN(day) < {now} - 1", "g x day"),
    "where too": (
        "SELECT g FROM t WHERE day >= {early} GROUP BY g HAVING MAX(day) > {now} - 1 OR "
        "COUNT(*) > 3",
        "g x",
    ),
    "all rows": ("SELECT MAX(day) AS m FROM t HAVING MAX(day) >= {now} AND COUNT(*) > 1", "g x"),
    "by two": ("SELECT g, x FROM t GROUP BY g, x HAVING MAX(day) <=> {now} OR COUNT(*) > 2", "g x"),
    "column": (
        f"SELECT c, COUNT(*) AS n FROM (SELECT g, CASE WHEN m >= {{now}} THEN 'new' WHEN m IS NULL "
        f"THEN NULL ELSE 'old' END AS c FROM ({LAST})) GROUP BY c HAVING COUNT(*) > 1",
        "g",
    ),
    "stacked": (
        f"SELECT c, COUNT(*) AS n FROM (SELECT m >= {{now}} AS c FROM ({LAST} HAVING MAX(day) > "
        "{now} - 3)) GROUP BY c HAVING COUNT(*) > 1",
        "g",
    ),
    "order": (f"{LAST} HAVING MAX(day) < {{now}} ORDER BY m DESC, g LIMIT 2", "g"),
    "distance": (f"SELECT g FROM ({LAST}) ORDER BY (m - {{now}}) * (m - {{now}}), g LIMIT 2", "g"),
    "joined groups": (
        f"SELECT q.g FROM ({LAST}) q JOIN u ON q.g = u.g WHERE q.m + u.n > {{now}}",
        "g",
    ),
    "joined rows": ("SELECT t.x FROM t JOIN u ON t.g = u.g WHERE t.day + u.n >= {now}", "g x day"),
    "outer": (
        "SELECT t.g FROM t LEFT JOIN (SELECT g, MAX(n) AS m FROM u GROUP BY g HAVING MAX(n) + 4 > "
        "{now}) q ON t.g = q.g WHERE q.m IS NULL AND t.day < {now}",
        "g x",
    ),
    "distinct": (f"SELECT DISTINCT m FROM ({LAST}) WHERE m >= {{now}}", "g"),
    "ranked": (
        "SELECT g, day FROM (SELECT g, day, RANK() OVER (PARTITION BY g ORDER BY x DESC) AS r "
        "FROM t) WHERE r <= 1 AND day >= {now}",
        "g",
    ),
    "union": (f"SELECT g FROM ({LAST} UNION ALL SELECT g, n FROM u) WHERE m >= {{now}}", "g x"),
    "sets": (
        "SELECT g, x FROM t GROUP BY GROUPING SETS ((g), (x), ()) HAVING MAX(day) >= {now}",
        "g x",
    ),
    "window": (
        "SELECT g FROM (SELECT g, day, MAX(day) OVER (PARTITION BY g) AS m FROM t) "
        "WHERE m - day > {now} - 4",
        "g",
    ),
}
UNSURE = {
    "sums": ("SELECT g FROM t GROUP BY g HAVING SUM(d) > {now} / 10D", "g"),
    "sums in a column": (
        "SELECT g FROM (SELECT g, SUM(d) * ({now} - 5) AS s FROM t GROUP BY g) "
        "ORDER BY s DESC LIMIT 2",
        "g",
    ),
    "sums below": (
        "SELECT COUNT(*) AS n FROM (SELECT g FROM t GROUP BY g HAVING SUM(d) > {now} / 10D) "
        "HAVING COUNT(*) > 1",
        "g",
    ),
}
DISTANT = {
    "far": ("SELECT t.x FROM t JOIN u ON t.g = u.g WHERE u.n >= {early}", "g x"),
    "near": ("SELECT t.x FROM t JOIN u ON t.g = u.g WHERE t.day >= {now} AND u.n > 0", "g x"),
    "both": (
        "SELECT t.g FROM t JOIN u ON t.g = u.g WHERE t.day < {now} AND u.n >= {early} "
        "GROUP BY t.g HAVING COUNT(*) > 2",
        "g x",
    ),
    "twice": (
        "SELECT a.g FROM t a JOIN t b ON a.g = b.g WHERE a.day >= {now} AND b.day < {now}",
        "g",
    ),
    "above": (
        "SELECT t.g FROM t JOIN u ON t.g = u.g GROUP BY t.g HAVING MAX(t.day) >= {now}",
        "g x",
    ),
}
MOVED_SIDES = (("join0.left",), ("join0.right",), ("join0.left", "join0.right"))


@random_cases(
    0, 30, 400, also="1 6 21-23 26 30 39 40 42 45 47 49 50 52 54 63 64 66 82 84 85 87 92 95"
)
def test_what_moves_above_comes_to_what_is_filled_anew(cases: range) -> None:
    seen = several_cases(MOVED_QUERIES, cases)
    assert seen["moves"] == len(cases) * 4
    for name in MOVED_QUERIES:
        assert seen[name] > len(cases) // len(MOVED_QUERIES) // 6, (name, seen)


@random_cases(0, 10, 100, also="7 10 12 14 15")
def test_sums_of_doubles_cover_when_their_constants_move(cases: range) -> None:
    seen = several_cases(UNSURE, cases, is_exact=False)
    assert seen["moves"] > len(cases) * 2, seen


@random_cases(0, 15, 120, also="1 9 23 25 27 28")
def test_sides_that_are_read_follow(cases: range) -> None:
    seen = several_cases(DISTANT, cases, MOVED_SIDES)
    assert seen["moves"] == len(cases) * 4
    for name in DISTANT:
        assert seen[name] > len(cases) // len(DISTANT) // 6, (name, seen)


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT g, MAX(day - {now}) AS m FROM t GROUP BY g HAVING m > 1", "with rows of a table"),
        (
            "SELECT g, SUM(CASE WHEN day > {now} THEN 1 END) AS m FROM t GROUP BY g HAVING m > 0",
            "with rows",
        ),
        (
            "SELECT g FROM (SELECT g, MAX_BY(x, day) AS m FROM t GROUP BY g) WHERE m > {now}",
            "are not all stored",
        ),
    ],
)
def test_what_the_state_cannot_tell_is_said(sql: str, why: str) -> None:
    before, after = kept(sql, 5, "g"), kept(sql, 6, "g")
    conditions = moved_conditions(before.core, after.core, is_open_above=True)
    result = moved_above(before.compiled(), after.compiled(), conditions)
    assert why in str(why_not_computable(after.compiled().circuit, result))


def test_pairs_that_are_read_cannot_be_told() -> None:
    sql, sides = MOVED_QUERIES["joined rows"][0], StoredChoices(MOVED_SIDES[1])
    before, after = (kept(sql, now, "g").compiled(sides) for now in (5, 6))
    result = moved_above(before, after, {})
    assert "not all stored" in str(why_not_computable(after.circuit, result))


def test_arguments_that_become_one_make_another_circuit() -> None:
    sql = "SELECT g FROM t GROUP BY g HAVING SUM(x + 5) > 1 AND SUM(x + {now}) > 1"
    before, after = kept(sql, 5, "g"), kept(sql, 6, "g")
    conditions = moved_conditions(before.core, after.core, is_open_above=True)
    if conditions is not None:
        assert moved_above(before.compiled(), after.compiled(), conditions) is None


NUMBERED = "SELECT g, x, COUNT(*) OVER (PARTITION BY g ORDER BY x, day, d) AS r FROM t"
TOUCHED_QUERIES = (
    f"SELECT g, r FROM ({NUMBERED} WHERE day >= {{now}}) WHERE r > 1",
    f"SELECT g, r FROM ({NUMBERED} WHERE day > {{early}} AND day <= {{now}} AND x > 0) WHERE r > 1",
    f"SELECT g, r FROM ({NUMBERED} WHERE day < {{now}} OR x = 1) WHERE r <> 3 AND r > 1 AND x > 2",
)


class Touched(Case):
    """A case whose sketch is kept by touch, by nothing but what it is given."""

    def __post_init__(self) -> None:
        self.tables["t"] = [random_row(self.rng, "t") for _ in range(self.rng.choice((0, 4, 9)))]
        result = self._kept(self.now)
        way = plan_maintenance(result.core, result.whole, result.verdict, result.partitions)
        assert way.mode is MaintenanceMode.TOUCH, way.reason
        (self.partition,) = result.partitions.values()
        ids = np.zeros(self.partition.size, dtype=np.bool_)
        ids[list(self.needed())] = True
        self.touched = TouchedQuery(self.partition, RangeSet.from_mask(ids))
        rows = self._ranges(range(len(self.tables["t"])))
        self.touched.range_rows.count(0, rows, np.ones(len(rows), dtype=np.int64))

    def needed(self) -> set[int]:
        """The fragments that the answer stems from."""
        result = annotate(self._kept(self.now).query.root, self.tables)
        return set(self._ranges(row for _, row in result.lineage).tolist())

    def _ranges(self, rows: Iterable[int]) -> Ints:
        values = arrow("t", [self.tables["t"][row] for row in rows]).column("g")
        return self.partition.range_ids_of(from_arrow(values, INTEGER)).astype(np.int64)

    def move(self, now: int) -> int:
        before, after = self._kept(self.now), self._kept(now)
        conditions = moved_conditions(before.core, after.core)
        assert conditions is not None
        changes, self.now = self.changed(), now
        if "t" in changes:
            self.touched.step(changes["t"])
        (scan,) = after.core.scans
        if scan.access not in conditions:
            return 0
        moved = judged_alone(conditions[scan.access])
        assert moved is not None
        source = touched_source(scan, moved, self.partition)
        assert source is not None
        rows = differing_rows(source, moved, arrow("t", self.tables["t"]))[0]
        return self.touched.move([rows])


def _several(cases: Iterable[int]) -> tuple[int, int]:
    """Rows that moved in all, and ranges that no sketch ever had."""
    moved = left_out = 0
    for seed in cases:
        rng = random.Random(seed)
        case = Touched(rng, TOUCHED_QUERIES[seed % len(TOUCHED_QUERIES)], "g")
        for _ in range(4):
            moved += case.move(case.now + rng.choice((0, 1, 1, 2, -1, -3)))
            held = set(case.touched.ranges.ids)
            assert held >= case.needed(), (case.sql, case.now, case.tables)
        left_out += case.partition.size - len(held)
    return moved, left_out


@random_cases(0, 30, 300, also="0-5 10 15 24 53")
def test_what_moves_is_touched(cases: range) -> None:
    moved, left_out = _several(cases)
    assert moved > len(cases)
    assert left_out > len(cases) // 4


def _at_least(value: int) -> Expr:
    return Compare(CompareOp.GREATER_EQUAL, Literal(1, INTEGER), Literal(value, INTEGER))


def test_what_only_spark_can_judge_is_left_out_unless_it_moved() -> None:
    spark = [Call("hash", (Literal(at, INTEGER),), None) for at in (1, 2)]
    both = MovedConditions((_at_least(1), spark[0]), (_at_least(2), spark[0]))
    assert judged_alone(both) == MovedConditions((_at_least(1),), (_at_least(2),))
    assert judged_alone(MovedConditions((spark[0],), (spark[1],))) is None


def test_a_constant_above_is_not_followed() -> None:
    sql = f"SELECT g, r FROM ({NUMBERED}) WHERE r > {{now}}"
    assert moved_conditions(kept(sql, 5, "g").core, kept(sql, 6, "g").core) is None
