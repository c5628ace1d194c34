"""Every scalar type in every role in a query; sums of doubles in any order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from impctl.compile.compile import Dataflow, compile_plan
from impctl.compile.flows import BlockedError
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Column,
    Schema,
    SqlType,
    decimal,
)
from impctl.data.vector import from_arrow
from impctl.errors import NotExactError
from impctl.plan.nodes import Plan
from impctl.rules.optimize import apply_rules, core_of
from impctl.safety.judge import check_safety
from impctl.sketch.sketch import RangePartition
from impctl.sql.statement import parse_query
from impctl.tables.snapshot import arrow_type
from tests.compile.cases import BY_G, SUMS, add_in_order, compiled, several_unsure_cases
from tests.support.carried_queries import Stored, arrow_rows, restored
from tests.support.random_cases import random_cases
from tests.support.random_queries import ARROW, SCHEMA

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LONG_TEXT = "the same first eight bytes "
DAYS = [date(2024, 2, 28), date(2024, 2, 29)]
MOMENTS = [EPOCH + timedelta(microseconds=m) for m in (0, -1, 10**15, -(10**16), 1, 2, 3)]
TYPES: dict[str, tuple[SqlType, list[Any]]] = {
    "byte": (BYTE, [-128, 127, 0, 5, -5, 6, 7]),
    "short": (SHORT, [-(2**15), 2**15 - 1, 0, 5, -5, 6, 7]),
    "int": (INTEGER, [-(2**31), 2**31 - 1, 0, 5, -5, 6, 7]),
    "long": (LONG, [-(2**63), 2**63 - 1, 0, 5, -5, 2**53 + 1, 2**53]),
    "float": (FLOAT, [math.nan, math.inf, -0.0, 0.0, 0.5, -math.inf, 1.5]),
    "double": (DOUBLE, [math.nan, math.inf, -0.0, 0.0, 0.1, -math.inf, 1e300]),
    "decimal": (
        decimal(10, 2),
        [Decimal(x) for x in ("0.00", "99999999.99", "-99999999.99", "1.25", "1.26", "2", "3")],
    ),
    "wide decimal": (
        decimal(38, 4),
        [Decimal(x) for x in ("1e30", "-1e33", "0", "1.25", "1.2501", "9007199254740993", "2e30")],
    ),
    "string": (
        STRING,
        ["", "a", LONG_TEXT + "1", LONG_TEXT + "2", "\U0001f600", "\uffee", LONG_TEXT],
    ),
    "binary": (BINARY, [b"", b"\x00", b"\xff\x01", b"12345678a", b"12345678", b"a", b"b"]),
    "boolean": (BOOLEAN, [True, False, True, False, True, False, True]),
    "date": (
        DATE,
        [date(1970, 1, 1), date.min, date.max, *DAYS, date(1582, 10, 4), date(1969, 12, 31)],
    ),
    "timestamp": (TIMESTAMP, MOMENTS),
    "timestamp_ntz": (TIMESTAMP_NTZ, [m.replace(tzinfo=None) for m in MOMENTS]),
}  # fmt: skip
Row = tuple[int, Any]
"""An id, which is also the row's range, and a value."""
Oracle = Callable[[Sequence[Row]], set[int]]


def key(value: Any) -> Any:
    """A sort key that orders values as Spark does, text by bytes."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value + 0.0)
    return value.encode() if isinstance(value, str) else value


def known(rows: Sequence[Row]) -> list[tuple[int, Any]]:
    return [(id_, key(value)) for id_, value in rows if value is not None]


def parity(rows: Sequence[Row]) -> list[list[Row]]:
    return [[row for row in rows if row[0] % 2 == rest] for rest in (0, 1)]


def in_groups(rows: Sequence[Row], keep: Callable[[list[Any]], bool]) -> set[int]:
    """The rows of the groups (by id % 2) whose known keys pass."""
    result = [part for part in parity(rows) if part and keep([k for _, k in known(part)])]
    return {id_ for part in result for id_, _ in part}


def repeated(rows: Sequence[Row]) -> set[int]:
    counts = Counter("NULL" if v is None else key(v) for _, v in rows)
    return {id_ for id_, v in rows if counts["NULL" if v is None else key(v)] > 1}


def joined(rows: Sequence[Row]) -> set[int]:
    keys = Counter(k for _, k in known(rows))
    return {id_ for id_, k in known(rows) if keys[k] > 1}


def last_two(rows: Sequence[Row]) -> set[int]:
    """ORDER BY v DESC LIMIT 2 with ties; NULL comes last."""
    order = sorted((k for _, k in known(rows)), reverse=True)
    if len(order) < 2:
        nulls = {id_ for id_, v in rows if v is None}
        return {id_ for id_, _ in known(rows)} | (nulls if len(rows) > len(order) else set())
    return {id_ for id_, k in known(rows) if k >= order[1]}


def spread(rows: Sequence[Row]) -> set[int]:
    return in_groups(rows, lambda keys: bool(keys) and min(keys) < max(keys))


def newest_known(rows: Sequence[Row]) -> set[int]:
    """The rows of the groups whose last row has a value."""
    result = [
        part for part in parity(rows) if part and max(part, key=lambda r: r[0])[1] is not None
    ]
    return {id_ for part in result for id_, _ in part}


ROLES: dict[str, tuple[str, Oracle]] = {
    "group key": ("SELECT v FROM t GROUP BY v HAVING COUNT(*) > 1", repeated),
    "join key": ("SELECT t.v FROM t JOIN t o ON t.v = o.v AND t.id <> o.id", joined),
    "extremes": ("SELECT id % 2 FROM t GROUP BY id % 2 HAVING MIN(v) < MAX(v)", spread),
    "distinct count": (
        "SELECT id % 2 FROM t GROUP BY id % 2 HAVING COUNT(DISTINCT v) > 2",
        lambda rows: in_groups(rows, lambda keys: len(set(keys)) > 2),
    ),
    "beside an extreme": (
        "SELECT id % 2 FROM t GROUP BY id % 2 HAVING MAX_BY(v, id) = MIN_BY(v, -id)",
        newest_known,
    ),
    "key of an extreme": (
        "SELECT id % 2 FROM t GROUP BY id % 2 HAVING MIN_BY(id, v) IS NULL",
        lambda rows: in_groups(rows, lambda keys: not keys),
    ),
    "sort key": ("SELECT id FROM t ORDER BY v DESC LIMIT 2", last_two),
    "column": ("SELECT v FROM t WHERE id > 3", lambda rows: {i for i, _ in rows if i > 3}),
    "condition": ("SELECT id FROM t WHERE v = v", lambda rows: {i for i, _ in known(rows)}),
    "case": (
        "SELECT id FROM t WHERE CASE WHEN id > 3 THEN v END IS NOT NULL",
        lambda rows: {i for i, _ in known(rows) if i > 3},
    ),
}  # fmt: skip
BLOCKED = {("float", "case"): "the engine does not support single-precision results"}
IDS = RangePartition("t", "id", INTEGER, tuple(range(1, 20)))


def table_of(kind: SqlType) -> Schema:
    return Schema((Column("id", INTEGER), Column("v", kind)))


@cache
def root_of(sql: str, kind: SqlType) -> Plan:
    return apply_rules(parse_query(sql, {"t": table_of(kind)}).root)


def compiled_for(sql: str, kind: SqlType, partition: RangePartition = IDS) -> Dataflow:
    root = root_of(sql, kind)
    return compile_plan(root, {root.scans[0].access: partition}, {})


def change(rows: Sequence[Row], kind: SqlType, sign: int) -> dict[str, TableChange]:
    table = arrow_rows(table_of(kind), [{"id": id_, "v": value} for id_, value in rows])
    return {"t": TableChange(table, np.full(len(rows), sign, dtype=np.int64))}


def ranges(session: MaintainedQuery) -> set[int]:
    (result,) = session.ranges().values()
    return set(result.ids)


def states(values: list[Any]) -> Iterator[tuple[list[Row], int, list[Row]]]:
    """Insert values, delete and reinsert some, then delete all. Yields changes and current rows."""
    rows: list[Row] = [*enumerate([*values, None, values[0], values[3], None])]
    present: list[Row] = []
    for changed, sign in [
        (rows[:4], 1), (rows[4:], 1), (rows[3:8], -1), (rows[3:5], 1),
        ([rows[0], *rows[8:]], -1), (rows[:1], 1), (rows[:5], -1),
    ]:  # fmt: skip
        changed_ids = {id_ for id_, _ in changed}
        present = [row for row in present if row[0] not in changed_ids or sign > 0]
        present += changed if sign > 0 else []
        yield changed, sign, present


ALIKE = ("short", "int", "timestamp_ntz")
"""Types that are computed like others, tested only by `make check`."""


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE)) for name in TYPES]
)
def test_every_type_in_every_role(name: str, role: str) -> None:
    kind, values = TYPES[name]
    sql, oracle = ROLES[role]
    blocked = BLOCKED.get((name, role))
    if blocked is not None:
        with pytest.raises(BlockedError, match=blocked):
            compiled_for(sql, kind)
        return
    session = MaintainedQuery(compiled_for(sql, kind))
    session.load([])
    stored = Stored()
    for turn, (changed, sign, rows) in enumerate(states(values)):
        session.step(change(changed, kind, sign))
        assert ranges(session) == oracle(rows), (turn, rows)
        if turn == 2:
            session = restored(session, stored, MaintainedQuery(compiled_for(sql, kind)))


@pytest.mark.parametrize("name", sorted(TYPES.keys() - {"boolean", "binary"}))
def test_every_type_as_sketch_attribute(name: str) -> None:
    """Boolean and binary attributes are refused with their reason (`service.partitions`)."""
    kind, values = TYPES[name]
    vector = from_arrow(pa.array(values, arrow_type(kind)), kind)
    canonical = vector.values.to_pylist() if vector.is_textual else vector.values.tolist()
    bounds = tuple(sorted({value for value in canonical if value == value})[1::2])
    partition = RangePartition("t", "v", kind, bounds)
    session = MaintainedQuery(compiled_for("SELECT id FROM t WHERE id > 1", kind, partition))
    session.load([])
    for changed, sign, rows in states(values):
        session.step(change(changed, kind, sign))
        values_in_result = pa.array([value for id_, value in rows if id_ > 1], arrow_type(kind))
        assert ranges(session) == set(
            partition.range_ids_of(from_arrow(values_in_result, kind)).tolist()
        )


def test_groups_with_and_without_a_known_key() -> None:
    session = MaintainedQuery(compiled_for(ROLES["key of an extreme"][0], INTEGER))
    session.load([])
    session.step(change([(2, 5), (1, None)], INTEGER, 1))
    assert ranges(session) == {1}


CATALOG = {"t": Schema((Column("g", INTEGER), Column("s", STRING)))}
FIRST = "SELECT g, MAX(s) m FROM t GROUP BY g ORDER BY m NULLS FIRST LIMIT 1"


def compiled_text() -> Dataflow:
    root = apply_rules(parse_query(FIRST, CATALOG).root)
    (scan,) = root.scans
    return compile_plan(root, {scan.access: RangePartition("t", "g", INTEGER, (1, 2))}, {})


def text_change(*rows: tuple[int, str | None, int]) -> dict[str, TableChange]:
    groups, texts, weights = zip(*rows, strict=True)
    table = pa.table({"g": pa.array(groups, pa.int32()), "s": pa.array(texts, pa.string())})
    return {"t": TableChange(table, np.array(weights, dtype=np.int64))}


def test_null_beside_text_stays_null_after_a_restart() -> None:
    session = MaintainedQuery(compiled_text())
    session.step(text_change((1, None, 1), (0, "a", 1)))
    assert [result.ids for result in session.ranges().values()] == [(1,)]
    restarted = restored(session, Stored(), MaintainedQuery(compiled_text()))
    restarted.step(text_change((1, None, -1), (2, "b", 1)))
    assert [result.ids for result in restarted.ranges().values()] == [(0,)]


BY_SMALL_G = RangePartition("t", "g", INTEGER, (1, 2))
DOWN = (1e308, 1e308, -math.inf)
"""The sum is infinite, or NaN if minus infinity is added last. NaN is above all numbers."""


def table_of_doubles(doubles: Sequence[float]) -> pa.Table:
    rows = [{"id": 1, "g": 1, "s": "a", "x": 1, "d": d, "m": None} for d in doubles]
    return pa.Table.from_pylist(rows, schema=ARROW)


def is_in_sketch(condition: str, *batches: Sequence[float]) -> bool:
    """Whether group 1 is in the sketch after loading the first batch and applying the others."""
    query = parse_query(f"SELECT g FROM t GROUP BY g HAVING {condition}", {"t": SCHEMA})
    query = replace(query, root=apply_rules(query.root))
    (scan,) = query.root.scans
    verdict = check_safety(query, {scan.access: "g"}, [])
    assert verdict.safe
    partitions, barriers = {scan.access: BY_SMALL_G}, verdict.barrier_positions
    circuit = compile_plan(query.root, partitions, verdict.key_columns, barriers=barriers)
    session = MaintainedQuery(circuit)
    session.load([("t", table_of_doubles(batches[0]))])
    for batch in batches[1:]:
        weights = np.ones(len(batch), dtype=np.int64)
        session.step({"t": TableChange(table_of_doubles(batch), weights)})
    return bool(ranges(session))


@pytest.mark.parametrize(
    ("condition", "batches", "is_kept"),
    [
        *(
            (condition, batches, True)
            for condition in (
                *("SUM(d) > 5", "AVG(d) > 5", "SUM(d) + 1 > 5", "SUM(d) * 2 > 5", "SUM(d) < 5"),
            )
            for batches in ((DOWN,), (DOWN[:2], DOWN[2:]), (DOWN[2:], DOWN[:2]))
        ),
        # The other sign, and just below the largest double.
        ("SUM(d) > CAST(1e308 AS DOUBLE) * 10", ([-1e308, -1e308, math.inf],), True),
        ("SUM(d) > 5", ([0.9e308, 0.89e308, -math.inf],), True),
        # Without overflow the result is known.
        ("SUM(d) > 5", ([1e3, -math.inf],), False),
        ("SUM(d) < 5", ([1e3, -math.inf],), True),
        ("SUM(d) < 5", ([*DOWN, math.nan],), False),
    ],
)
def test_overflow_beside_infinity_is_uncertain(
    condition: str, batches: tuple[Sequence[float], ...], is_kept: bool
) -> None:
    assert is_in_sketch(condition, *batches) is is_kept


PARTS = "SELECT g, h, SUM(d) AS s FROM t GROUP BY g, h"
MEANS = "SELECT g, AVG(h) AS a FROM t GROUP BY g"
SAFE = (
    f"SELECT g, SUM(s) AS s FROM ({PARTS}) GROUP BY g HAVING SUM(s) > 1",
    f"SELECT g, AVG(s) AS s FROM ({PARTS}) GROUP BY g HAVING AVG(s) > 1",
    f"SELECT g, MAX(s) AS s FROM ({PARTS}) GROUP BY g HAVING MAX(s) > 1",
    f"SELECT g, MIN(s) AS s FROM ({PARTS}) GROUP BY g ORDER BY s LIMIT 2",
    f"SELECT g, COUNT(s) AS n FROM ({PARTS}) GROUP BY g HAVING COUNT(s) > 1",
    f"SELECT g, SUM(s) AS x FROM ({PARTS}) GROUP BY g ORDER BY x DESC LIMIT 2",
    f"SELECT g, SUM(2 * s - 1) AS x FROM ({PARTS}) GROUP BY g HAVING SUM(2 * s - 1) < 2",
    f"SELECT g, MIN(s) FILTER (WHERE h = 1) AS x FROM ({PARTS}) GROUP BY g "
    "HAVING MIN(s) FILTER (WHERE h = 1) < 1",
    "SELECT g FROM t GROUP BY g HAVING ROUND(SUM(d), 1) > 1",
    "SELECT g, ROUND(SUM(d), 1) AS s FROM t GROUP BY g ORDER BY s DESC LIMIT 2",
    "SELECT g FROM t GROUP BY g HAVING SQRT(SUM(d)) <= 1",
    "SELECT g FROM t GROUP BY g HAVING COALESCE(SUM(d), 0) < 1",
    "SELECT g FROM t GROUP BY g HAVING GREATEST(SUM(d), AVG(d), 1D) > 1",
    "SELECT g FROM t GROUP BY g HAVING CASE WHEN COUNT(*) > 1 THEN SUM(d) ELSE 2D END > 1",
    f"SELECT DISTINCT s FROM ({SUMS} HAVING SUM(d) > 1)",
    f"SELECT s, COUNT(*) AS n, VAR_POP(s) AS v FROM ({SUMS} HAVING SUM(d) > 1) GROUP BY s",
    f"SELECT s FROM ({SUMS} HAVING SUM(d) > 1) UNION SELECT w FROM side",
    f"SELECT q.g FROM ({SUMS}) q WHERE EXISTS (SELECT 1 FROM side WHERE side.k = q.g) AND q.s > 1",
    f"SELECT q.g FROM ({SUMS}) q LEFT JOIN side ON q.g = side.k WHERE q.s > 1",
    f"SELECT q.g FROM ({SUMS}) q LEFT JOIN side ON q.g = side.k WHERE q.s > side.w",
    f"SELECT q.g FROM ({SUMS}) q WHERE q.g NOT IN (SELECT k FROM side) AND q.s > 1",
    f"SELECT q.g FROM ({SUMS}) q WHERE q.s > 1 AND EXISTS (SELECT 1 FROM side WHERE k = q.g "
    "AND w < q.s)",
    "SELECT t.g, t.h FROM t LEFT JOIN (SELECT k, SUM(w) AS s FROM side GROUP BY k) b ON t.g = b.k "
    "WHERE b.s > 1",
)
"""Never refused: uncertain groups stay in the sketch."""
WHOLE = (
    f"SELECT a, COUNT(*) AS n FROM ({MEANS}) GROUP BY a HAVING COUNT(*) > 1",
    f"SELECT DISTINCT a FROM ({MEANS}) WHERE a > 0",
    f"SELECT x.g FROM ({MEANS}) x JOIN (SELECT k, AVG(k) AS b FROM side GROUP BY k) y ON x.a = y.b",
    f"SELECT g FROM ({MEANS}) WHERE a IN (SELECT AVG(k) FROM side GROUP BY k)",
    f"SELECT g FROM ({MEANS}) WHERE a NOT IN (SELECT AVG(k) FROM side GROUP BY k)",
    f"SELECT g, a FROM ({MEANS}) ORDER BY a DESC, g LIMIT 2",
    f"SELECT COUNT(*) AS n FROM (SELECT g, a FROM ({MEANS}) ORDER BY a, g LIMIT 2)",
    f"SELECT a, g FROM ({MEANS}) EXCEPT SELECT AVG(k), k FROM side GROUP BY k",
    "SELECT g, h FROM t WHERE h >= (SELECT AVG(h) FROM t)",
    "SELECT g FROM t GROUP BY g HAVING AVG(h) > (SELECT AVG(k) / 5 FROM side)",
    "SELECT u.g, u.h FROM t u JOIN (SELECT g, AVG(h) AS a FROM t GROUP BY g) q "
    "ON u.g = q.g AND u.h >= q.a",
    f"SELECT g, MAX(a) AS a FROM ({MEANS}) GROUP BY g HAVING MAX(a) > 0",
    f"SELECT q.g FROM ({MEANS}) q LEFT JOIN side ON q.g = side.k AND side.w > q.a WHERE q.a > 0",
)
"""Averages of integers, used as exact values: no excess range."""
BEYOND = (
    f"SELECT x.g FROM ({MEANS}) x JOIN (SELECT k, AVG(w) AS b FROM side GROUP BY k) y ON x.a = y.b",
    f"SELECT g FROM ({MEANS}) WHERE a IN (SELECT AVG(w) FROM side GROUP BY k)",
    f"SELECT x.g FROM ({MEANS}) x LEFT JOIN (SELECT k, AVG(w) AS b FROM side GROUP BY k) y "
    "ON x.a = y.b",
    f"SELECT COUNT(*) AS n FROM (SELECT g, a FROM ({MEANS}) ORDER BY a, g LIMIT 1)",
)
"""Averages of integers that are too large to be exact, as join keys and in an order with ties."""
TOO_CLOSE = (
    "SELECT g FROM t EXCEPT SELECT k FROM side GROUP BY k HAVING SUM(w) >= 0.6D",
    "SELECT g FROM (SELECT g, SUM(h) AS s FROM t GROUP BY g) WHERE s >= 0.6D ORDER BY g LIMIT 2",
)
"""Conditions on rows that remove or displace other rows."""
STRICT = (
    f"SELECT s, COUNT(*) AS n FROM ({SUMS}) GROUP BY s HAVING COUNT(*) > 1",
    f"SELECT s FROM (SELECT DISTINCT s FROM ({SUMS})) JOIN side ON s > w",
    f"SELECT ROUND(s, 1) AS r, COUNT(*) AS n FROM ({SUMS}) GROUP BY ROUND(s, 1) "
    "HAVING COUNT(*) > 1",
    f"SELECT FLOOR(s) AS r, COUNT(*) AS n FROM ({SUMS}) GROUP BY FLOOR(s) HAVING COUNT(*) > 1",
    "SELECT g FROM t GROUP BY g HAVING CAST(SUM(d) AS DECIMAL(30, 1)) > 1",
    "SELECT g FROM t GROUP BY g HAVING SUM(CAST(d AS DECIMAL(30, 1))) > 1",
    f"SELECT g, SUM(s) AS s FROM ({PARTS} HAVING SUM(d) > 1) GROUP BY g HAVING SUM(s) > 2",
    f"SELECT g, COUNT(DISTINCT s) AS n FROM ({PARTS}) GROUP BY g HAVING COUNT(DISTINCT s) > 1",
    f"SELECT g, VAR_POP(s) AS n FROM ({PARTS}) GROUP BY g HAVING VAR_POP(s) > 1",
    f"SELECT q.g FROM ({SUMS}) q LEFT JOIN side ON q.g = side.k AND q.s > side.w",
    f"SELECT q.g FROM ({SUMS}) q WHERE NOT EXISTS (SELECT 1 FROM side WHERE k = q.g AND w > q.s)",
    f"SELECT g, s FROM ({SUMS}) WHERE s > 1 EXCEPT SELECT k, w FROM side",
    "SELECT t.g FROM t LEFT JOIN (SELECT k, SUM(w) AS s FROM side GROUP BY k HAVING SUM(w) > 1) b "
    "ON t.g = b.k WHERE b.s IS NULL",
    "SELECT t.g FROM t WHERE t.g NOT IN (SELECT k FROM side GROUP BY k HAVING SUM(w) > 1)",
    "SELECT g FROM t GROUP BY g HAVING CASE WHEN SUM(d) > 1 THEN 1 ELSE 0 END = 1",
)
"""Refused when the order of summation decides."""
FIRST_SUMS = (
    f"SELECT COUNT(*) AS n FROM (SELECT g, s FROM ({SUMS}) ORDER BY s DESC LIMIT 2)",
    f"SELECT g, SUM(s) AS x FROM (SELECT g, s FROM ({SUMS}) ORDER BY s LIMIT 3) GROUP BY g "
    "HAVING SUM(s) > 1",
    f"SELECT h, SUM(s) AS x FROM (SELECT g, h, s FROM ({PARTS}) ORDER BY s DESC LIMIT 3) "
    "GROUP BY h HAVING SUM(s) > 1",
    "SELECT h, COUNT(*) AS n FROM "
    "(SELECT g, h, RANK() OVER (PARTITION BY g ORDER BY s DESC) AS r "
    f"FROM ({PARTS})) WHERE r <= 1 GROUP BY h HAVING COUNT(*) > 1",
    "SELECT g, MAX(s) AS x FROM "
    "(SELECT g, s, ROW_NUMBER() OVER (PARTITION BY g ORDER BY s, h) AS r "
    f"FROM ({PARTS})) WHERE r <= 1 GROUP BY g HAVING COUNT(*) < 2 AND MAX(s) < 2",
    f"SELECT h, COUNT(*) AS n FROM (SELECT g, h, s FROM ({PARTS}) ORDER BY h, s LIMIT 3) "
    "GROUP BY h HAVING COUNT(*) > 1",
)
"""First rows below a grouping: refused when they are not sure."""
SKIPPED = (
    f"SELECT t.g, t.h FROM t JOIN (SELECT g, s FROM ({SUMS}) ORDER BY s DESC LIMIT 2 OFFSET 1) q "
    "ON t.g = q.g",
    f"SELECT t.g, COUNT(*) AS n FROM t JOIN (SELECT g, s FROM ({SUMS}) ORDER BY s, g LIMIT 3 "
    "OFFSET 2) q ON t.g = q.g GROUP BY t.g HAVING COUNT(*) > 1",
    "SELECT t.g, t.h FROM t JOIN (SELECT k, SUM(w) AS s FROM side GROUP BY k ORDER BY s, k LIMIT 2 "
    "OFFSET 1) q ON t.g = q.k",
)
"""OFFSET above or beside the sketched table: the skipped rows must be sure, too."""
DENSE_RANKS = (
    "SELECT h, COUNT(*) AS n FROM (SELECT g, h, DENSE_RANK() OVER (PARTITION BY g ORDER BY s DESC) "
    f"AS r FROM ({PARTS})) WHERE r <= 1 GROUP BY h HAVING COUNT(*) > 1",
    "SELECT g, MAX(s) AS x FROM (SELECT g, s, DENSE_RANK() OVER (PARTITION BY g ORDER BY s) AS r "
    f"FROM ({PARTS})) WHERE r <= 1 GROUP BY g HAVING COUNT(*) < 2 AND MAX(s) < 2",
    "SELECT t.g, t.h FROM t JOIN (SELECT g, DENSE_RANK() OVER (ORDER BY s DESC) AS r FROM "
    f"({SUMS})) q ON t.g = q.g WHERE q.r <= 2",
)
"""DENSE_RANK: the number of distinct values must be sure."""


@pytest.fixture
def _added_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    add_in_order(monkeypatch)


@pytest.mark.usefixtures("_added_in_order")
@random_cases(
    0, 10, 1_000, also="1 8 10 12 25 29 33 36 39 77 104 127 131 138 163 207 253 508 583 859"
)
def test_safe_queries_never_fail(cases: Sequence[int]) -> None:
    counts = several_unsure_cases(SAFE, cases)
    assert counts["cases"] > len(cases) * 6, counts
    assert counts["unsure"] > len(cases) // 12, counts
    assert counts["not exact"] == 0, counts


@pytest.mark.usefixtures("_added_in_order")
@random_cases(0, 4, 200, also="0-7 18 19 44")
def test_averages_of_whole_numbers_are_exact(cases: Sequence[int]) -> None:
    counts = several_unsure_cases(WHOLE, cases)
    assert counts["cases"] == len(cases) * 12, counts
    assert counts["unsure"] == counts["slack"] == 0, counts


def loaded(sql: str, kind: SqlType, *, of_t: Sequence[Any], of_side: Sequence[Any]) -> None:
    """Load rows of one group with these values of the type."""
    catalog, tables = {}, {}
    for table, (group, column), values in (("t", "gh", of_t), ("side", "kw", of_side)):
        catalog[table] = Schema((Column(group, INTEGER), Column(column, kind)))
        rows = [{group: 1, column: value} for value in values]
        tables[table] = arrow_rows(catalog[table], rows)
    root = core_of(apply_rules(parse_query(sql, catalog).root))
    sketched = {scan.access: BY_G for scan in root.scans if scan.table == "t"}
    session = MaintainedQuery(compile_plan(root, sketched, {}))
    for name in session.compiled.tables:
        session.load([(name, tables[name])])


@pytest.mark.usefixtures("_added_in_order")
@pytest.mark.parametrize("sql", BEYOND)
def test_averages_of_huge_integers_are_refused_if_they_decide(sql: str) -> None:
    loaded(sql, LONG, of_t=[1 << 40, 1], of_side=[1 << 40, 1])
    with pytest.raises(NotExactError):
        loaded(sql, LONG, of_t=[1 << 60, 1], of_side=[1 << 40, 1])


@pytest.mark.usefixtures("_added_in_order")
@pytest.mark.parametrize("sql", TOO_CLOSE)
def test_uncertain_rows_are_refused_if_they_could_replace_others(
    sql: str,
) -> None:
    values = [0.1, 0.2, 0.3]
    loaded(sql, DOUBLE, of_t=values[1:], of_side=values[1:])
    with pytest.raises(NotExactError):
        loaded(sql, DOUBLE, of_t=values, of_side=values)


@pytest.mark.usefixtures("_added_in_order")
@random_cases(
    0, 4, 1_000, also="0 2-6 9 10 12 17 18 29-31 33-35 37 38 46-49 51 54 56-58 62 64 511 706"
)
def test_uncertain_values_fail_at_run_time(cases: Sequence[int]) -> None:
    counts = several_unsure_cases(STRICT, cases)
    assert counts["cases"] > len(cases) * 3, counts
    assert 0 < counts["not exact"] < len(cases) * 3 // 4, counts


@pytest.mark.usefixtures("_added_in_order")
@random_cases(0, 7, 200, also="10 11 23 34 39 40")
def test_first_rows_below_a_grouping_are_sure_or_refused(cases: Sequence[int]) -> None:
    are_sure_or_refused(FIRST_SUMS, cases)


@pytest.mark.usefixtures("_added_in_order")
@random_cases(0, 7, 200, also="2 5 6 37-39")
def test_skipped_rows_are_sure_or_refused(cases: Sequence[int]) -> None:
    are_sure_or_refused(SKIPPED, cases)


@pytest.mark.usefixtures("_added_in_order")
@random_cases(0, 6, 200, also="10 11 14 17 23 31 34 35 39")
def test_dense_ranks_are_sure_or_refused(cases: Sequence[int]) -> None:
    are_sure_or_refused(DENSE_RANKS, cases)


def are_sure_or_refused(queries: tuple[str, ...], cases: Sequence[int]) -> None:
    counts = several_unsure_cases(queries, cases)
    assert counts["cases"] > len(cases) * 3, counts
    assert 0 < counts["not exact"] < len(cases), counts


@pytest.mark.usefixtures("_added_in_order")
@random_cases(5, 6, 60)
def test_integral_doubles_are_exact(cases: Sequence[int]) -> None:
    pools = ((1.0, 2.0, 3.0, -0.0, 0.0), (None, -7.0, 1e9, 3.0), (2.0**40, -(2.0**40), 1.0))
    for queries in (SAFE, STRICT):
        chosen = [sql for sql in queries if "ROUND" not in sql and "VAR_POP" not in sql]
        counts = several_unsure_cases(chosen, cases, pools)
        assert counts["not exact"] == counts["unsure"] == 0, counts


QUERIES = (
    f"{SUMS} ORDER BY s DESC LIMIT 2",
    f"{SUMS} ORDER BY s LIMIT 1",
    f"{SUMS} ORDER BY s DESC NULLS FIRST, g LIMIT 2 OFFSET 1",
    "SELECT g, AVG(d) AS s FROM t GROUP BY g ORDER BY s DESC, g DESC LIMIT 2",
    "SELECT g, SUM(d) / COUNT(*) AS s FROM t GROUP BY g ORDER BY s LIMIT 2",
    f"SELECT g FROM (SELECT g, RANK() OVER (ORDER BY s DESC) AS r FROM ({SUMS})) WHERE r <= 2",
    f"SELECT g FROM (SELECT g, DENSE_RANK() OVER (ORDER BY s DESC) AS r FROM ({SUMS})) "
    "WHERE r <= 2",
    "SELECT g, h FROM (SELECT g, h, DENSE_RANK() OVER (PARTITION BY g ORDER BY SUM(d), h) AS r "
    "FROM t GROUP BY g, h) WHERE r <= 1",
    "SELECT g, h FROM (SELECT g, h, ROW_NUMBER() OVER (PARTITION BY g ORDER BY SUM(d), h) AS r "
    "FROM t GROUP BY g, h) WHERE r <= 1",
    f"SELECT q.g, COUNT(*) AS n FROM (SELECT g, s FROM ({SUMS}) ORDER BY s DESC LIMIT 2) q "
    "JOIN side ON q.g = side.k GROUP BY q.g",
    f"SELECT q.g FROM ({SUMS}) q JOIN side ON q.g = side.k AND q.s > side.w",
    f"SELECT q.g, side.w FROM ({SUMS}) q JOIN side ON q.g = side.k WHERE q.s + side.w >= 1",
    "SELECT g, AVG(d) AS s FROM t GROUP BY g HAVING AVG(d) > (SELECT AVG(d) FROM t)",
    "SELECT a.g FROM (SELECT g, SUM(d) AS s FROM t GROUP BY g) a "
    "JOIN (SELECT k, SUM(w) AS s FROM side GROUP BY k) b ON a.g = b.k AND a.s > b.s",
    f"SELECT g, s FROM ({SUMS}) WHERE s > 1 UNION ALL SELECT k, w FROM side WHERE w > 2",
    f"SELECT g, s FROM ({SUMS} UNION ALL SELECT k, w FROM side) ORDER BY s DESC LIMIT 2",
)
POSITIVE = "SELECT k FROM side GROUP BY k HAVING SUM(w) > 0"
WITHOUT_PARTNER = (
    f"SELECT g, h FROM t WHERE NOT EXISTS (SELECT 1 FROM ({POSITIVE}) x WHERE x.k = t.g)",
    f"SELECT t.g FROM t LEFT JOIN ({POSITIVE}) x ON x.k = t.g WHERE x.k IS NULL",
)
"""If it is uncertain whether a row has a partner, it is uncertain whether it is in the result."""


@pytest.mark.usefixtures("_added_in_order")
@random_cases(0, 14, 1_000, also="0-4 6 17 22 38 62 79 86")
def test_sketches_cover_every_order_of_summation(cases: range) -> None:
    counts = several_unsure_cases(QUERIES, cases)
    assert counts["cases"] > len(cases) * 8, counts
    assert counts["unsure"] > len(cases) // 10, counts
    assert counts["not exact"] == 0, counts


@pytest.mark.usefixtures("_added_in_order")
@random_cases(0, 12, 300, also="29 34 37")
def test_uncertain_partners_are_never_trusted(cases: range) -> None:
    counts = several_unsure_cases(WITHOUT_PARTNER, cases)
    assert counts["cases"] >= len(cases), counts
    assert counts["not exact"] > 0, counts


@pytest.mark.usefixtures("_added_in_order")
@pytest.mark.parametrize(
    "sql",
    [
        *SAFE,
        *WHOLE,
        *STRICT,
        *FIRST_SUMS,
        *SKIPPED,
        *DENSE_RANKS,
        *QUERIES,
        f"{POSITIVE} INTERSECT SELECT g FROM t",
        f"SELECT q.g FROM ({SUMS} HAVING SUM(d) > 1) q WHERE NOT EXISTS "
        "(SELECT 1 FROM side WHERE k = q.g)",
        "SELECT DISTINCT h FROM (SELECT h FROM t GROUP BY h, g HAVING SUM(d) > 2)",
        f"SELECT w, s FROM side RIGHT JOIN ({SUMS}) q ON q.g = side.k WHERE s > 1",
    ],
)
def test_these_queries_compile(sql: str) -> None:
    assert compiled(sql).circuit is not None
