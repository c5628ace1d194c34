"""Every scalar type Delta holds, in every place of a query, against what plain Python says.

After rows came, went and came back, and after a restart, the sketch is the accurate one; what a
type cannot be used for is named.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.compile.compile import Compiled, compile_plan
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
from impctl.plan.nodes import Plan, scans_of
from impctl.rules.optimize import apply_rules
from impctl.sketch.partition import RangePartition
from impctl.sql.statement import parse_query
from impctl.tables.schema import arrow_type
from tests.support.arrow_rows import arrow_rows
from tests.support.restored_query import Stored, restored

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
"""An id, which is also the row's fragment, and a value."""
Oracle = Callable[[Sequence[Row]], set[int]]


def key(value: Any) -> Any:
    """Orders values of one type as Spark does, text by its bytes."""
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


PLACES: dict[str, tuple[str, Oracle]] = {
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


def compiled(sql: str, kind: SqlType, partition: RangePartition = IDS) -> Compiled:
    root = root_of(sql, kind)
    return compile_plan(root, {scans_of(root)[0].access: partition}, {})


def change(rows: Sequence[Row], kind: SqlType, sign: int) -> dict[str, TableChange]:
    table = arrow_rows(table_of(kind), [{"id": id_, "v": value} for id_, value in rows])
    return {"t": TableChange(table, np.full(len(rows), sign, dtype=np.int64))}


def fragments(session: MaintainedQuery) -> set[int]:
    (result,) = session.fragments().values()
    return set(result.ids)


def steps(values: list[Any]) -> list[tuple[list[Row], int]]:
    """Values one by one and together, out and in again, and all out in the end."""
    rows: list[Row] = [*enumerate([*values, None, values[0], values[3], None])]
    return [
        (rows[:4], 1), (rows[4:], 1), (rows[:1], -1), (rows[3:8], -1), (rows[:1], 1),
        (rows[3:5], 1), (rows[8:], -1), (rows[5:8], 1), (rows[:8], -1), (rows, 1), (rows, -1),
    ]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", TYPES)
def test_every_type_in_every_place(name: str, place: str) -> None:
    kind, values = TYPES[name]
    sql, oracle = PLACES[place]
    blocked = BLOCKED.get((name, place))
    if blocked is not None:
        with pytest.raises(BlockedError, match=blocked):
            compiled(sql, kind)
        return
    session = MaintainedQuery(compiled(sql, kind))
    session.load([])
    stored = Stored()
    rows: list[Row] = []
    for turn, (changed, sign) in enumerate(steps(values)):
        session.step(change(changed, kind, sign))
        gone = {id_ for id_, _ in changed}
        rows = [*rows, *changed] if sign > 0 else [row for row in rows if row[0] not in gone]
        assert fragments(session) == oracle(rows), (turn, rows)
        if turn % 3 == 1:
            session = restored(session, stored, MaintainedQuery(compiled(sql, kind)))


@pytest.mark.parametrize("name", sorted(TYPES.keys() - {"boolean", "binary"}))
def test_every_type_as_sketch_attribute(name: str) -> None:
    """Boolean and binary attributes are refused with their reason (`service.partitions`)."""
    kind, values = TYPES[name]
    vector = from_arrow(pa.array(values, arrow_type(kind)), kind)
    canonical = vector.values.to_pylist() if vector.is_textual else vector.values.tolist()
    bounds = tuple(sorted({value for value in canonical if value == value})[1::2])
    partition = RangePartition("t", "v", kind, bounds)
    session = MaintainedQuery(compiled("SELECT id FROM t WHERE id > 1", kind, partition))
    session.load([])
    rows: list[Row] = []
    for changed, sign in steps(values):
        session.step(change(changed, kind, sign))
        gone = {id_ for id_, _ in changed}
        rows = [*rows, *changed] if sign > 0 else [row for row in rows if row[0] not in gone]
        wanted = set()
        for id_, value in rows:
            if id_ > 1:
                vector = from_arrow(pa.array([value], arrow_type(kind)), kind)
                wanted.add(int(partition.fragments_of(vector)[0]))
        assert fragments(session) == wanted


def test_a_group_without_a_known_key_beside_one_with_it() -> None:
    sql = PLACES["key of an extreme"][0]
    session = MaintainedQuery(compiled(sql, INTEGER))
    session.load([])
    session.step(change([(2, 5), (1, None)], INTEGER, 1))
    assert fragments(session) == {1}
