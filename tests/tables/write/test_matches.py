"""Batches with any condition or value have Spark's semantics, or are not written."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from math import copysign, inf, isnan, nan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec import Struct

from impctl.data.schema import Kind, SqlType
from impctl.errors import EvaluationError, ImpctlError, Location, UnsupportedError
from impctl.expr import nodes as e
from impctl.tables.rows import read_rows
from impctl.tables.snapshot import Snapshot
from impctl.tables.source import DeltaSource, open_source
from impctl.tables.write.apply import AppliedUpdate, UpdateKind, UpdateRequest, apply_update
from impctl.tables.write.rows import match_rows
from tests.support.random_cases import random_cases
from tests.support.reference_plan import is_true

INSERT, DELETE, UPDATE = UpdateKind

KINDS: Mapping[str, tuple[pa.DataType, Kind, Sequence[Any]]] = {
    "o": (pa.bool_(), Kind.BOOLEAN, [True, False]),
    "y": (pa.int8(), Kind.BYTE, [1, -128, 7]),
    "h": (pa.int16(), Kind.SHORT, [1, -3, 300]),
    "i": (pa.int32(), Kind.INTEGER, [1, 2, -3]),
    "l": (pa.int64(), Kind.LONG, [2**53, 2**53 + 1, -(2**63)]),
    "f": (pa.float32(), Kind.FLOAT, [1.5, 0.0, -0.0, nan, inf]),
    "d": (pa.float64(), Kind.DOUBLE, [1.5, 0.0, -0.0, nan, copysign(nan, -1.0), -inf]),
    "s": (pa.string(), Kind.STRING, ["a", "B", "b c", "ü'%/=", "NULL", "1"]),
    "t": (pa.date32(), Kind.DATE, [date(2024, 1, 1), date(1969, 7, 20), date(1, 1, 1)]),
    "n": (
        *(pa.timestamp("us"), Kind.TIMESTAMP_NTZ),
        [datetime(2024, 1, 1, 2, 3, 4, 5), datetime(1969, 7, 20)],
    ),
}
"""Types and values by kind: columns `p_<kind>` are partition columns, `x_<kind>` are not."""


class Drawer(Struct, frozen=True):
    """Generates conditions over columns; the letter after `_` is the kind."""

    random: random.Random
    columns: Sequence[str]

    def condition(self, depth: int = 0) -> e.Expr:
        share = self.random.random()
        if depth > 2 or share < 0.4:
            return self._atom()
        left = self.condition(depth + 1)
        if share < 0.6:
            return e.Not(left)
        pair = (left, self.condition(depth + 1))
        return e.And(pair) if share < 0.75 else e.Or(pair)

    def _atom(self) -> e.Expr:
        name = self.random.choice(self.columns)
        column, share = self._column(name), self.random.random()
        if name[-1] == "o" and share < 0.3:
            constant = e.Literal(self.random.choice([True, False]), column.type)
            return column if share < 0.1 else e.Compare(NULL_SAFE, column, constant)
        if share < 0.15:
            return e.IsNull(column)
        if share < 0.3 and name[-1] not in "fd":
            options = tuple(self._literal(name[-1]) for _ in range(self.random.choice([1, 2, 3])))
            listed = e.InList(column, options)
            return listed if self.random.random() < 0.5 else e.Not(listed)
        op = self.random.choice(list(e.CompareOp))
        if share < 0.75:
            return e.Compare(op, column, self._literal(name[-1]))
        if share < 0.8:
            return e.Compare(op, column, e.Literal(None, column.type))
        similar = [other for other in self.columns if other[-1] == name[-1]]
        return e.Compare(op, column, self._column(self.random.choice(similar)))

    def _column(self, name: str) -> e.ColumnRef:
        return e.ColumnRef(name, SqlType(KINDS[name[-1]][1]))

    def _literal(self, kind: str) -> e.Literal:
        drawn = self.random.choice(KINDS[kind][2])
        # These have no literal without a cast.
        is_odd = isinstance(drawn, float) and (isnan(drawn) or drawn in (inf, -inf))
        return e.Literal(1.5 if is_odd else drawn, SqlType(KINDS[kind][1]))


NULL_SAFE = e.CompareOp.NULL_SAFE_EQUAL


def rows_of(random_: random.Random, columns: Sequence[str], count: int) -> pa.Table:
    """Random rows with these columns, with NULLs, and row numbers in `row`."""
    drawn = {}
    for name in columns:
        kind, _, values = KINDS[name[-1]]
        cells = [random_.choice([*values, None]) for _ in range(count)]
        drawn[name] = pa.array(cells, kind)
    return pa.table({**drawn, "row": pa.array(range(count), pa.int64())})


def sql_of(condition: e.Expr) -> str:
    """The SQL of a condition, as a user would write it."""
    match condition:
        case e.ColumnRef():
            return condition.id
        case e.Literal():
            return literal_of(condition.value, condition.type)
        case e.Compare(op=op, left=left, right=e.Literal(value=bool()) as right) if op is NULL_SAFE:
            return f"{sql_of(left)} IS {sql_of(right)}"
        case e.Compare():
            return f"{sql_of(condition.left)} {condition.op} {sql_of(condition.right)}"
        case e.IsNull():
            return f"{sql_of(condition.operand)} IS NULL"
        case e.InList():
            options = ", ".join(map(sql_of, condition.options))
            return f"{sql_of(condition.operand)} IN ({options})"
        case e.Not(operand=e.InList(operand=operand, options=options)):
            return f"{sql_of(operand)} NOT IN ({', '.join(map(sql_of, options))})"
        case e.Not():
            return f"NOT ({sql_of(condition.operand)})"
        case _:
            word = " AND " if isinstance(condition, e.And) else " OR "
            return word.join(f"({sql_of(part)})" for part in condition.expressions)


def literal_of(value: Any, kind: SqlType) -> str:
    match value:
        case None | bool():
            return "NULL" if value is None else str(value).upper()
        case float():
            suffix = "F" if kind.kind is Kind.FLOAT else "e0"
            return f"{'-' if copysign(1, value) < 0 else ''}{abs(value)}{suffix}"
        case str():
            return "'" + value.replace("'", "\\'") + "'"
        case datetime():
            return f"TIMESTAMP_NTZ '{value}'"
        case date():
            return f"DATE '{value.isoformat()}'"
        case _:
            return "(-9223372036854775807 - 1)" if value == -(2**63) else str(value)


ROWS = 14


def forget_statistics(path: Path) -> None:
    """Remove statistics from the log, as if a writer did not gather them."""
    for entry in (path / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        for action in actions:
            action.get("add", {}).pop("stats", None)
        entry.write_text("".join(json.dumps(action) + "\n" for action in actions))


def make(path: Path, data: pa.Table, parts: Sequence[str], *, statistics: bool) -> None:
    half = len(data) // 2
    write_deltalake(str(path), data.slice(0, half), partition_by=list(parts) or None)
    write_deltalake(str(path), data.slice(half), mode="append")
    if not statistics:
        forget_statistics(path)


def apply_batch(path: Path, kind: UpdateKind, where: str) -> tuple[set[int], AppliedUpdate]:
    """Apply a batch; returns the rows that it deleted or changed, and its result."""
    sets = {"row": "row + 1000"} if kind is UPDATE else {}
    before = rows_left(path)
    request = UpdateRequest("t", kind, where=where, assignments=sets)
    done = apply_update(open_source("t", str(path)), request)
    left = rows_left(path)
    assert len(left) == len(before) - done.deleted
    assert {row % 1000 for row in left} <= before
    return before - left, done


def rows_left(path: Path) -> set[int]:
    pylist = read_rows(open_source("t", str(path)).snapshot(), ["row"]).column(0).to_pylist()
    assert len(pylist) == len(set(pylist))
    return set(pylist)


def check(seed: int, path: Path) -> str:
    """Check one random case; returns `done` or the reason of refusal."""
    random_ = random.Random(seed)
    kinds = random_.sample(list(KINDS), random_.choice([1, 1, 2, 3]))
    parts = [f"p_{kind}" for kind in kinds]
    others = [f"x_{kind}" for kind in kinds]
    is_mixed = random_.random() < 0.5
    drawer = Drawer(random_, [*parts, *others] if is_mixed else parts)
    condition = drawer.condition()
    data = rows_of(random_, [*parts, *others], ROWS)
    make(path, data, parts, statistics=random_.random() < 0.75)
    return compare(path, random_.choice(list(UpdateKind)[1:]), condition, data)


def compare(path: Path, kind: UpdateKind, condition: e.Expr, data: pa.Table) -> str:
    expected = {row["row"] for row in data.to_pylist() if is_true(condition, row)}
    text, refusal = sql_of(condition), None
    try:
        matched, done = apply_batch(path, kind, text)
    except ImpctlError as error:
        refusal = error
    if refusal is not None:
        assert DeltaTable(str(path)).version() == 1, (kind, text, refusal)
        assert refusal.exit_code in (2, 3), (kind, text, refusal)
        return f"{refusal.code}: {refusal.message.rpartition(': ')[2]}"
    assert matched == expected, (kind, text, data.to_pylist())
    assert done.deleted + done.updated == len(expected), (kind, text)
    assert (done.version > 1) == bool(expected), (kind, text)
    return "done"


@random_cases(12, 36, 240)
def test_random_conditions_match_the_right_rows(tmp_path: Path, cases: range) -> None:
    outcomes = Counter(check(seed, tmp_path / str(seed)) for seed in cases)
    assert outcomes["done"] >= len(cases) // 2, outcomes


@pytest.mark.parametrize("where", ["p IS NULL", "p = 'a'", "p IS NULL OR p = 'z'", "p IS NOT NULL"])
def test_empty_partition_value_is_null(tmp_path: Path, where: str) -> None:
    write_deltalake(
        str(tmp_path), pa.table({"p": ["", "a", None], "row": [0, 1, 2]}), partition_by=["p"]
    )
    (entry,) = (tmp_path / "_delta_log").glob("*.json")
    entry.write_text(entry.read_text().replace('"p":null', '"p":""', 1))
    matched, _ = apply_batch(tmp_path, DELETE, where)
    assert matched == ({1} if where in ("p = 'a'", "p IS NOT NULL") else {0, 2})


def test_condition_over_many_partitions(tmp_path: Path) -> None:
    entries = pa.table({"p": pa.array(range(100), pa.int32()), "row": range(100)})
    write_deltalake(str(tmp_path), entries, partition_by=["p"])
    matched, _ = apply_batch(tmp_path, DELETE, "p < row OR p > 50")
    assert matched == set(range(51, 100))


@pytest.mark.parametrize("kind", list(UpdateKind)[1:])
@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("g < 1", {3, 4}),
        ("g > 1", {0, 1, 2}),
        ("g <=> h", {0, 1, 2, 4}),
        ("g = 0", {3, 4}),
        ("h < 1", {4}),
    ],
)
def test_nan_is_greatest_and_zeros_are_equal(
    tmp_path: Path, where: str, expected: set[int], kind: UpdateKind
) -> None:
    values = [nan, copysign(nan, -1.0), inf, -0.0, 0.0]
    others = pa.array([copysign(nan, -1.0), nan, inf, 1.0, -0.0], pa.float32())
    data = {"g": values, "h": others, "row": list(range(5))}
    write_deltalake(str(tmp_path), pa.table(data))
    assert apply_batch(tmp_path, kind, where)[0] == expected


def test_both_zeros_are_one_key(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"g": [0.0, -0.0, nan, 1.0, 0.0]}))
    request = UpdateRequest("t", UPDATE, where="g < 1", assignments={"g": "g + 2"})
    assert apply_update(open_source("t", str(tmp_path)), request).updated == 3
    rows = read_rows(open_source("t", str(tmp_path)).snapshot(), ["g"]).column("g").to_pylist()
    assert sorted(map(str, rows)) == ["1.0", "2.0", "2.0", "2.0", "nan"]


HARD_ROWS = pa.table(
    {
        "i": pa.array([0, 1, -7, 2**31 - 1, -(2**31), None, 29, 1299], pa.int32()),
        "l": pa.array([0, 3, -9, 2**62, -(2**63), 5, None, 57], pa.int64()),
        "m": pa.array(
            [Decimal(t) for t in ("0", "1.15", "-2.25", "99999999.99", "0.01", "-0.01", "7")]
            + [None],
            pa.decimal128(10, 2),
        ),
        "f": [0.0, -0.0, 1.5, nan, None, float("inf"), -2.5, 1e300],
        "n": pa.array([0.5, -0.0, 1.5, nan, None, inf, -2.5, 3.25], pa.float32()),
        "s": ["", "a", "it's", None, "b%", "5", "é", "a_b"],
        "b": [True, False, None, True, False, None, True, False],
        "d": pa.array([0, 1, -1, 19000, None, 2932896, -719162, 7], pa.int32()).cast(pa.date32()),
        "z": pa.array(
            [1_711_846_800_000_000, 1_711_846_799_999_999, None, 0, -1, 2**53, -(2**45), 1],
            pa.timestamp("us", "UTC"),
        ),
        "row": list(range(8)),
    }
)


MATCHES: Mapping[str, set[int]] = {
    "i = 1": {1},
    "i <> 1 AND l > 0": {3, 7},
    "NOT (i > 1) OR b": {0, 1, 2, 3, 4, 6},
    "b": {0, 3, 6},
    "NOT b": {1, 4, 7},
    "b IS NOT TRUE": {1, 2, 4, 5, 7},
    "i IS NULL": {5},
    "i IN (1, 29, 1299)": {1, 6, 7},
    "i NOT IN (1, 29)": {0, 2, 3, 4, 7},
    "i IN (1, f, 29e0)": {0, 1, 6},
    "l IN (3, i, 4611686018427387904)": {0, 1, 3},
    "l IN (3, 5e0)": {1, 5},
    "l IN (3, f)": {0, 1},
    "m IN (1.15, f)": {0, 1},
    "f IN (l, 1.5e0)": {0, 2},
    "i BETWEEN -7 AND 29": {0, 1, 2, 6},
    "l NOT BETWEEN i AND 5": {2, 3, 4, 7},
    "l > i": {1, 3},
    "l = 4611686018427387904": {3},
    "l = -9223372036854775807 - 1": {4},
    "i > 3000000000": set(),
    "i = 29.0": {6},
    "m > 1.1": {1, 3, 6},
    "m >= 1.15": {1, 3, 6},
    "m = i": {0},
    "f = 0": {0, 1},
    "f < 0": {6},
    "f > 1e200": {3, 5, 7},
    "f >= 1.5": {2, 3, 5, 7},
    "f = f": {0, 1, 2, 3, 5, 6, 7},
    "f <> 0": {2, 3, 5, 6, 7},
    "f > m": {2, 3, 5},
    "f <=> f": {0, 1, 2, 3, 4, 5, 6, 7},
    "s <=> s": {0, 1, 2, 3, 4, 5, 6, 7},
    "s = 'a'": {1},
    "s > 'a'": {2, 4, 6, 7},
    "s = 'it\\'s'": {2},
    "s IN ('a', 'é')": {1, 6},
    "s < s": set(),
    "d > DATE '2000-01-01'": {3, 5},
    "d = '1970-01-02'": {1},
    "d IS NOT NULL AND d < DATE '1970-01-01'": {2, 6},
    "z >= TIMESTAMP '2024-03-31 01:00:00'": {0, 5},
    "z = '2024-03-31 02:00:00+01:00'": {0},
    "z > DATE '2024-03-30'": {0, 1, 5},
    "1 / 2 > 0.4": {0, 1, 2, 3, 4, 5, 6, 7},
    "NULL": set(),
}
"""Supported conditions, and the rows that match in Spark."""

REFUSED = {
    "i IN (1, NULL)": "a comparison with a bare NULL",
    "s > 1": "does not support comparing",
    "i + 1 > 2": "arithmetic on columns is not available in conditions",
    "-f < 0": "arithmetic on columns is not available in conditions",
    "i % 2 IN (1, 3)": "arithmetic on columns is not available in conditions",
    "m / 3 IS NULL": "arithmetic on columns is not available in conditions",
    "upper(s) = 'A'": "function `upper` is not available in conditions",
    "d < current_date()": "function `current_date` is not available in conditions",
    "s LIKE 'a%'": "LIKE is not available in conditions",
    "NOT (s LIKE '%b' OR i = 1)": "LIKE is not available in conditions",
    "CASE WHEN b THEN i = 1 ELSE f > 0 END": "CASE is not available in conditions",
    "coalesce(b, i > 0)": "COALESCE is not available in conditions",
    "coalesce(i, 3) = 3": "COALESCE is not available in conditions",
    "f = cast('NaN' AS double)": "CAST is not available in conditions",
    "CAST(f AS BIGINT) = 1": "CAST is not available in conditions",
    "(i = 1) IS NOT TRUE": "a condition inside an expression is not available in conditions",
    "(i = 1) <=> b": "a condition inside an expression is not available in conditions",
}
"""Unsupported conditions."""

REFUSED_VALUES = [
    ("i", "CAST(m AS INT) * 10", "CAST is not available in values"),
    ("l", "coalesce(l, 0)", "COALESCE is not available in values"),
    ("d", "CASE WHEN i = 1 THEN d END", "CASE is not available in values"),
    ("b", "i > 0", "a condition inside an expression is not available in values"),
    ("b", "NOT b", "a condition inside an expression is not available in values"),
    ("s", "upper(s)", "function `upper` is not available in values"),
    ("d", "d + 1", "function `date_add` is not available in values"),
    ("i", "'5'", "cannot be stored"),
    ("s", "f", "cannot be stored"),
    ("b", "i", "cannot be stored"),
    ("d", "i", "cannot be stored"),
    ("s", "d", "cannot be stored"),
    ("f", "-n + n", "single-precision"),
]

FAILING = {
    ("i", "i * 1.1"): {3, 4},
    ("i", "i + 1"): {3},
    ("i", "i * 2"): {3, 4},
    ("i", "-i"): {4},
    ("i", "l"): {3, 4},
    ("i", "f"): {3, 5, 7},
    ("i", "10 / i"): {0},
    ("l", "l * 2"): {3, 4},
    ("l", "l + i"): {4},
    ("l", "l - 1"): {4},
    ("l", "l * l"): {3, 4},
    ("l", "l % i"): {0},
    ("m", "m * 1.155"): {3},
    ("m", "m + 0.005"): {3},
    ("m", "m - i"): {3, 4},
    ("m", "m * 100"): {3},
    ("m", "i"): {3, 4},
}
"""Columns and values, and the rows on which Spark fails."""
UPDATES: Mapping[str, Sequence[str]] = {
    "i": ["i % 7", "i div 7", "i / 3", "m", "m * 1.5", "NULL", "0"],
    "l": ["i * 3000000000", "i", "-1"],
    "m": ["-m", "m % 2", "1.005", "m / 3", "2e0"],
    "f": ["f * 1.1", "f + i", "f / 3", "i / 3", "m", "l", "-f", "f * 1e10", "-f - f", "n"],
    "n": ["1.1", "f", "NULL"],
    "s": ["'x'", "s", "i"],
    "b": ["TRUE", "NULL"],
    "d": ["DATE '2024-02-29'", "d"],
    "z": ["TIMESTAMP '2024-03-31 02:30:00'", "z"],
}
"""Values that fail on no row."""


@pytest.fixture(scope="module")
def written_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table of HARD_ROWS; a test that writes works on a copy."""
    path = tmp_path_factory.mktemp("made") / "t"
    write_deltalake(str(path), HARD_ROWS, configuration={"delta.enableChangeDataFeed": "true"})
    return path


@pytest.fixture
def source(written_table: Path, tmp_path: Path) -> DeltaSource:
    return open_source("t", str(shutil.copytree(written_table, tmp_path / "t")))


def numbered(source: DeltaSource, where: str, target: str = "", value: str = "") -> dict[int, Any]:
    """The rows that match, and their new values."""
    assignments = {target: value} if value else {}
    matched = match_rows(source.snapshot(), f"({where}) AND row >= 0", assignments)
    numbers = matched.values.column(f"k{matched.keys.index('row')}").to_pylist()
    assert matched.rows == len(numbers)
    values = matched.values.column("v0").to_pylist() if value else numbers
    return dict(zip(numbers, values, strict=True))


def read_all(source: DeltaSource) -> list[dict[str, Any]]:
    """All rows, in the order of `row`."""
    snapshot = open_source("t", source.path).snapshot()
    rows = read_rows(snapshot, snapshot.schema.names).to_pylist()
    return sorted(rows, key=lambda row: int(row["row"]))


def test_conditions_match_rows(written_table: Path) -> None:
    source = open_source("t", str(written_table))
    assert {where: set(numbered(source, where)) for where in MATCHES} == dict(MATCHES)


def test_unsupported_expressions_write_nothing(source: DeltaSource) -> None:
    cases = [
        *((reason, {"where": where}) for where, reason in REFUSED.items()),
        *((reason, {"assignments": {target: value}}) for target, value, reason in REFUSED_VALUES),
    ]
    for reason, fields in cases:
        kind = UPDATE if "assignments" in fields else DELETE
        with pytest.raises(UnsupportedError, match=reason) as caught:
            apply_update(source, UpdateRequest("t", kind, **fields))  # type: ignore[arg-type]  # of a table
        assert "An update of table `t` cannot use `" in caught.value.message
        assert (caught.value.code, caught.value.exit_code) == ("update_unsupported", 3)
        assert caught.value.hint
    assert open_source("t", source.path).version == 0


def test_failing_values_write_nothing(source: DeltaSource) -> None:
    for (target, value), rows in FAILING.items():
        for row in rows:
            with pytest.raises(EvaluationError, match="fails on a row of table `t`"):
                numbered(source, f"row = {row}", target, value)
        others = " AND ".join(f"row <> {row}" for row in rows)
        assert numbered(source, others, target, value).keys() == {*range(8)} - rows
        with pytest.raises(EvaluationError, match="fails on a row of table `t`"):
            apply_update(source, UpdateRequest("t", UPDATE, assignments={target: value}))
    assert open_source("t", source.path).version == 0


@pytest.mark.parametrize("i", range(max(map(len, UPDATES.values()))))
def test_updates_change_only_computed_values(source: DeltaSource, i: int) -> None:
    before = read_all(source)
    batch = {target: values[i] for target, values in UPDATES.items() if i < len(values)}
    new = {target: numbered(source, "i <> 1", target, value) for target, value in batch.items()}
    expected = [
        {name: new[name][row["row"]] if name in batch else row[name] for name in row}
        if row["row"] not in (1, 5)
        else row
        for row in before
    ]
    named = {target.upper(): value for target, value in batch.items()}
    request = UpdateRequest("t", UPDATE, where="i <> 1", assignments=named)
    assert apply_update(source, request).updated == 6
    assert spelled(read_all(source)) == spelled(expected)


def spelled(rows: object) -> str:
    """The rows as text, in which NaN equals NaN and -0.0 equals 0.0."""
    return re.sub(r"-0\.0\b", "0.0", repr(rows))


@pytest.mark.spark
@pytest.mark.slow
def test_spark_matches_the_same_rows_and_computes_the_same_values(
    spark: Any, written_table: Path, tmp_path: Path
) -> None:
    source = open_source("t", str(written_table))
    pq.write_table(HARD_ROWS, tmp_path / "rows.parquet")
    frame = spark.read.parquet(str(tmp_path / "rows.parquet"))
    frame.createOrReplaceTempView("hard_rows")
    kinds = dict(frame.dtypes)
    pairs = [(target, value) for target, values in UPDATES.items() for value in values]
    texts = [f"({where}) <=> TRUE" for where in MATCHES]
    texts += [f"CAST(({value}) AS {kinds[target]})" for target, value in pairs]
    result = spark.sql(f"SELECT row, {', '.join(texts)} FROM hard_rows").toArrow()
    cells_of = zip(*result.columns[1:], strict=True)
    of_spark = dict(zip(result.column(0).to_pylist(), cells_of, strict=True))
    for i, where in enumerate(MATCHES):
        assert {row for row, cells in of_spark.items() if cells[i].as_py()} == MATCHES[where], where
    for i, (target, value) in enumerate(pairs, start=len(MATCHES)):
        spark_values = {row: cells[i].as_py() for row, cells in of_spark.items()}
        ours = numbered(source, "TRUE", target, value)
        assert spelled(sorted(ours.items())) == spelled(sorted(spark_values.items())), value
    for (target, value), rows in FAILING.items():
        failing = (
            f"SELECT CAST(({value}) AS {kinds[target]}) FROM hard_rows WHERE row = {min(rows)}"
        )
        with pytest.raises(Exception, match="OVERFLOW|OUT_OF_RANGE|BY_ZERO"):
            spark.sql(failing).collect()


@pytest.mark.spark
@pytest.mark.slow
def test_spark_matches_the_same_rows_by_random_conditions(spark: Any, tmp_path: Path) -> None:
    random_ = random.Random(7)
    names = [f"x_{kind}" for kind in KINDS]
    data = rows_of(random_, names, 60)
    write_deltalake(str(tmp_path / "t"), data)
    pq.write_table(data, tmp_path / "rows.parquet")
    spark.read.parquet(str(tmp_path / "rows.parquet")).createOrReplaceTempView("random_rows")
    source, ours = open_source("t", str(tmp_path / "t")), {}
    while len(ours) < 150:
        text = sql_of(Drawer(random_, names).condition())
        try:
            ours[text] = set(numbered(source, text))
        except UnsupportedError:
            continue
    texts = ", ".join(f"({text}) <=> TRUE" for text in ours)
    result = spark.sql(f"SELECT row, {texts} FROM random_rows").toArrow()
    for column, (text, rows) in zip(result.columns[1:], ours.items(), strict=True):
        assert set(result.column(0).filter(column).to_pylist()) == rows, text


NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
PLACE = Location("w.yaml", 7, 9)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    path = tmp_path_factory.mktemp("one row") / "t"
    table = pa.table(
        {
            "town": ["Rome"],
            "day": pa.array([date(2020, 2, 2)], pa.date32()),
            "at": pa.array([NEW_YEAR], pa.timestamp("us", tz="UTC")),
            "size": [1],
        }
    )
    write_deltalake(path, table)
    return open_source("t", str(path)).snapshot()


def set_to(snapshot: Snapshot, column: str, written: str) -> object:
    matched = match_rows(snapshot, None, {column: written}, {column: PLACE})
    assert (matched.rows, matched.assigned) == (1, (column,))
    return matched.values.column("v0")[0].as_py()


def refused(snapshot: Snapshot, column: str, written: str) -> ImpctlError:
    with pytest.raises(ImpctlError) as caught:
        set_to(snapshot, column, written)
    assert caught.value.location == PLACE
    return caught.value


@pytest.mark.parametrize(
    ("column", "written", "expected"),
    [
        ("town", "Berlin", "Berlin"),
        ("town", "New York", "New York"),
        ("town", "12:30", "12:30"),
        ("town", "town hall", "town hall"),
        ("day", "2026-01-01", NEW_YEAR.date()),
        ("day", "'2026-01-01'", NEW_YEAR.date()),
        ("at", "2026-01-01", NEW_YEAR),
        ("at", "2026-01-01T00:00:00Z", NEW_YEAR),
        ("at", "2026-01-01 00:00:00", NEW_YEAR),
        ("at", "2026-01-01 01:00:00+01:00", NEW_YEAR),
        ("at", "'2026-01-01T00:00:00Z'", NEW_YEAR),
    ],
)
def test_hinted_literal_is_accepted(
    snapshot: Snapshot, column: str, written: str, expected: object
) -> None:
    error = refused(snapshot, column, written)
    hinted = re.search(
        r'values of `set` are SQL expressions: write this one as "(.*?)"', str(error.hint)
    )
    assert hinted is not None, error.hint
    assert set_to(snapshot, column, hinted[1]) == expected


@pytest.mark.parametrize(
    ("column", "written", "hint"),
    [
        ("size", "sise + 1", "did you mean `size`|known columns"),
        ("size", "size +", "text and times need their own quotes"),
        ("at", "at + ", "text and times need their own quotes"),
        ("town", "uper(town)", "."),
        ("town", "size + sise", "did you mean `size`|known columns"),
        ("town", "day = sise", "did you mean `size`|known columns"),
        ("size", "'abc'", "of the column's type"),
        ("at", "'noon'", "of the column's type"),
        ("town", "'Rome' FROM updated_table WHERE size = 9 --", "."),
        ("town", 'say "hi"', "text and times need their own quotes"),
        ("town", r"C:\temp", "text and times need their own quotes"),
        ("day", "2026-02-30", "."),
        ("day", "'2026-02-30'", "."),
        ("town", "upper('x'", "text and times need their own quotes"),
    ],
)
def test_other_errors_hint_no_literal(
    snapshot: Snapshot, column: str, written: str, hint: str
) -> None:
    result = str(refused(snapshot, column, written).hint)
    assert re.search(hint, result), result
    assert "write this one as" not in result


def test_message_names_the_column(snapshot: Snapshot) -> None:
    assert "`set` of `t.town` cannot be used" in refused(snapshot, "town", "Berlin").message
