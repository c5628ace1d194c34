"""Whatever the condition or expression, a batch does what it means in Spark, or is not written."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from math import copysign, inf, isnan, nan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec import Struct

from impctl.data.schema import Schema
from impctl.data.vector import Vector, from_arrow
from impctl.errors import EvaluationError, ImpctlError, Location, UnsupportedError
from impctl.expr.cast import cast
from impctl.expr.evaluate import Condition, Evaluator
from impctl.plan.nodes import Project, Scan, Select
from impctl.sql.statement import parse_query
from impctl.tables.rows import read_rows
from impctl.tables.schema import arrow_type
from impctl.tables.snapshot import Snapshot
from impctl.tables.source import DeltaSource, open_source
from impctl.tables.write.apply import AppliedUpdate, UpdateKind, UpdateRequest, apply_update
from impctl.tables.write.maintenance import create_table
from tests.support.random_cases import random_cases, random_seeds

Row = Mapping[str, object]
Truth = bool | None

KINDS: Mapping[str, tuple[pa.DataType, Sequence[object]]] = {
    "o": (pa.bool_(), [True, False]),
    "y": (pa.int8(), [1, -128, 7]),
    "h": (pa.int16(), [1, -3, 300]),
    "i": (pa.int32(), [1, 2, -3]),
    "l": (pa.int64(), [2**53, 2**53 + 1, -(2**63)]),
    "f": (pa.float32(), [1.5, 0.0, -0.0, nan, inf]),
    "d": (pa.float64(), [1.5, 0.0, -0.0, nan, copysign(nan, -1.0), -inf]),
    "s": (pa.string(), ["a", "B", "b c", "ü'%/=", "NULL", "1"]),
    "t": (pa.date32(), [date(2024, 1, 1), date(1969, 7, 20), date(1, 1, 1)]),
    "n": (pa.timestamp("us"), [datetime(2024, 1, 1, 2, 3, 4, 5), datetime(1969, 7, 20)]),
}
"""Column name to type and values; each name stands for a partition column `p_` and another `x_`."""


class RandomCondition(Struct, frozen=True):
    text: str
    of: Callable[[Row], Truth]
    """What it is on a row."""


class Drawer(Struct, frozen=True):
    """Draws conditions over these columns; the letter after `_` is the kind."""

    random: random.Random
    columns: Sequence[str]

    def condition(self, depth: int = 0) -> RandomCondition:
        share = self.random.random()
        if depth > 2 or share < 0.35:
            return self._atom()
        left = self.condition(depth + 1)
        if share < 0.5:
            return _is(left, self.random.choice([True, False, None]), self.random.random() < 0.5)
        if share < 0.6:
            return RandomCondition(f"NOT ({left.text})", lambda row: _not(left.of(row)))
        right = self.condition(depth + 1)
        if share < 0.75:
            return RandomCondition(
                f"({left.text}) AND ({right.text})",
                lambda row: _not(_or(_not(left.of(row)), _not(right.of(row)))),
            )
        if share < 0.9:
            return RandomCondition(
                f"({left.text}) OR ({right.text})", lambda row: _or(left.of(row), right.of(row))
            )
        if share < 0.94:
            return RandomCondition(
                f"({left.text}) <=> ({right.text})", lambda row: left.of(row) is right.of(row)
            )
        if share < 0.97:
            return RandomCondition(
                f"coalesce({left.text}, {right.text})",
                lambda row: right.of(row) if left.of(row) is None else left.of(row),
            )
        last = self._atom()
        return RandomCondition(
            f"CASE WHEN {left.text} THEN {right.text} ELSE {last.text} END",
            lambda row: right.of(row) if left.of(row) is True else last.of(row),
        )

    def _atom(self) -> RandomCondition:
        name = self.random.choice(self.columns)
        share = self.random.random()
        if share < 0.15:
            return RandomCondition(f"{name} IS NULL", lambda row: row[name] is None)
        if share < 0.3 and name[-1] not in "fd":
            return self._in_list(name)
        op = self.random.choice(["=", "<>", "<", "<=", ">", ">=", "<=>"])
        beside = [other for other in self.columns if other[-1] == name[-1]]
        value = self._value(name[-1]) if share < 0.8 else None
        if share < 0.75 and value is not None:
            text = _literal(name[-1], value)
            return RandomCondition(
                f"{name} {op} {text}", lambda row: _compared(op, row[name], value)
            )
        if share < 0.8:
            return RandomCondition(f"{name} {op} NULL", lambda row: _compared(op, row[name], None))
        other = self.random.choice(beside)
        return RandomCondition(
            f"{name} {op} {other}", lambda row: _compared(op, row[name], row[other])
        )

    def _in_list(self, name: str) -> RandomCondition:
        values = [self._value(name[-1]) for _ in range(self.random.choice([1, 2, 3]))]
        texts = ", ".join(_literal(name[-1], value) for value in values)
        word = self.random.choice(["IN", "NOT IN"])

        def of(row: Row) -> Truth:
            truth: Truth = False
            for value in values:
                truth = _or(truth, _compared("=", row[name], value))
            return truth if word == "IN" else _not(truth)

        return RandomCondition(f"{name} {word} ({texts})", of)

    def _value(self, kind: str) -> object:
        drawn = self.random.choice(KINDS[kind][1])
        # There is no literal of these without a cast of a text.
        return 1.5 if isinstance(drawn, float) and (isnan(drawn) or drawn in (inf, -inf)) else drawn


def rows_of(random_: random.Random, columns: Sequence[str], count: int) -> pa.Table:
    """Random rows of these columns, NULL among them, numbered in `row`."""
    drawn = {}
    for name in columns:
        kind, values = KINDS[name[-1]]
        cells = [random_.choice([*values, None]) for _ in range(count)]
        drawn[name] = pa.array(cells, kind)
    return pa.table({**drawn, "row": pa.array(range(count), pa.int64())})


def _is(inner: RandomCondition, wanted: Truth, is_negated: bool) -> RandomCondition:
    word = "NULL" if wanted is None else str(wanted).upper()
    negation = "NOT " if is_negated else ""
    return RandomCondition(
        f"({inner.text}) IS {negation}{word}",
        lambda row: (inner.of(row) is wanted) != is_negated,
    )


def _not(value: Truth) -> Truth:
    return None if value is None else not value


def _or(left: Truth, right: Truth) -> Truth:
    if left is True or right is True:
        return True
    return None if left is None or right is None else False


def _compared(op: str, left: object, right: object) -> Truth:
    if op == "<=>":
        return (left is None and right is None) or _compared("=", left, right) is True
    if left is None or right is None:
        return None
    a, b = _key(left), _key(right)
    outcomes = {"=": a == b, "<>": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}
    return outcomes[op]


def _key(value: object) -> tuple[bool, object]:
    """By which values are equal and ordered as in Spark, of one kind each."""
    if isinstance(value, float) and isnan(value):
        return (True, 0.0)
    return (False, value.encode() if isinstance(value, str) else value)


def _literal(kind: str, value: object) -> str:
    match value:
        case bool():
            return str(value).upper()
        case float():
            return (
                f"{'-' if copysign(1, value) < 0 else ''}{abs(value)}{'F' if kind == 'f' else 'e0'}"
            )
        case str():
            return "'" + value.replace("'", "\\'") + "'"
        case datetime():
            return f"TIMESTAMP_NTZ '{value}'"
        case date():
            return f"DATE '{value.isoformat()}'"
        case _:
            return "(-9223372036854775807 - 1)" if value == -(2**63) else str(value)


REPORTED: list[tuple[str, set[int | None]]] = [
    ("(p_i = 1) IS FALSE", {2, 3}),
    ("(p_i = 1) IS NOT TRUE", {2, 3, None}),
    ("(p_i = 1) IS NOT FALSE", {1, None}),
    ("(p_i = 1) IS TRUE", {1}),
    ("p_i < p_i", set()),
    ("NOT (p_i = p_i)", set()),
]
"""Conditions that once took other rows, each with the values for which it is true."""
ROWS = 14


def forget_statistics(path: Path) -> None:
    """A log as writers leave it that gather none."""
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


def taken(path: Path, kind: UpdateKind, where: str) -> tuple[set[int], AppliedUpdate]:
    """The rows that the batch deleted or changed, and what it told."""
    sets = {"row": "row + 1000"} if kind is UpdateKind.UPDATE else {}
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
    """One random case; what came of it."""
    random_ = random.Random(seed)
    kinds = random_.sample(list(KINDS), random_.choice([1, 1, 2, 3]))
    parts = [f"p_{kind}" for kind in kinds]
    beside = [f"x_{kind}" for kind in kinds]
    is_mixed = random_.random() < 0.5
    drawer = Drawer(random_, [*parts, *beside] if is_mixed else parts)
    condition = drawer.condition()
    data = rows_of(random_, [*parts, *beside], ROWS)
    make(path, data, parts, statistics=random_.random() < 0.75)
    return compare(path, random_.choice(list(UpdateKind)[1:]), condition, data)


def compare(path: Path, kind: UpdateKind, condition: RandomCondition, data: pa.Table) -> str:
    meant = {row["row"] for row in data.to_pylist() if condition.of(row) is True}
    refusal: ImpctlError | None = None
    try:
        hit, done = taken(path, kind, condition.text)
    except ImpctlError as error:
        refusal = error
    if refusal is not None:
        assert DeltaTable(str(path)).version() == 1, (kind, condition.text, refusal)
        assert refusal.exit_code in (2, 3), (kind, condition.text, refusal)
        return f"{refusal.code}: {refusal.message.rpartition(': ')[2]}"
    assert hit == meant, (kind, condition.text, data.to_pylist())
    assert done.deleted + done.updated == len(meant), (kind, condition.text)
    assert (done.version > 1) == bool(meant), (kind, condition.text)
    return "done"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "statistics"), [(UpdateKind.UPDATE, True), (UpdateKind.DELETE, False)]
)
@pytest.mark.parametrize(("where", "values"), REPORTED)
def test_conditions_that_once_took_other_rows(
    tmp_path: Path, where: str, values: set[int | None], kind: UpdateKind, statistics: bool
) -> None:
    present = [1, 2, 3, None]
    meant = {present.index(value) for value in values}
    data = pa.table({"p_i": pa.array(present, pa.int32()), "row": [0, 1, 2, 3]})
    make(tmp_path, data, ["p_i"], statistics=statistics)
    hit, done = taken(tmp_path, kind, where)
    assert (hit, done.deleted + done.updated) == (meant, len(meant))


@random_cases(12, 36, 240)
def test_random_conditions_take_the_rows_they_mean(tmp_path: Path, cases: range) -> None:
    outcomes = Counter(check(seed, tmp_path / str(seed)) for seed in cases)
    assert outcomes["done"] >= len(cases) // 2, outcomes


@pytest.mark.parametrize(
    "where", ["p IS NULL", "p = 'a'", "coalesce(p, 'z') = 'z'", "p IS NOT NULL"]
)
def test_an_empty_text_of_the_log_is_null(tmp_path: Path, where: str) -> None:
    write_deltalake(
        str(tmp_path), pa.table({"p": ["", "a", None], "row": [0, 1, 2]}), partition_by=["p"]
    )
    (entry,) = (tmp_path / "_delta_log").glob("*.json")
    entry.write_text(entry.read_text().replace('"p":null', '"p":""', 1))
    hit, _ = taken(tmp_path, UpdateKind.DELETE, where)
    assert hit == ({1} if where in ("p = 'a'", "p IS NOT NULL") else {0, 2})


@pytest.mark.parametrize("many", [100, pytest.param(3000, marks=pytest.mark.slow)])
def test_a_choice_of_many_partitions(tmp_path: Path, many: int) -> None:
    entries = pa.table({"p": pa.array(range(many), pa.int32()), "row": range(many)})
    write_deltalake(str(tmp_path), entries, partition_by=["p"])
    hit, _ = taken(tmp_path, UpdateKind.DELETE, "p % 2 = 0")
    assert hit == set(range(0, many, 2))


NAN = float("nan")
HARD_ROWS = pa.table(
    {
        "i": pa.array([0, 1, -7, 2**31 - 1, -(2**31), None, 29, 1299], pa.int32()),
        "l": pa.array([0, 3, -9, 2**62, -(2**63), 5, None, 57], pa.int64()),
        "m": pa.array(
            [Decimal(t) for t in ("0", "1.15", "-2.25", "99999999.99", "0.01", "-0.01", "7")]
            + [None],
            pa.decimal128(10, 2),
        ),
        "f": [0.0, -0.0, 1.5, NAN, None, float("inf"), -2.5, 1e300],
        "s": ["", "a", "it's", None, "b%", "5", "é", "a_b"],
        "b": [True, False, None, True, False, None, True, False],
        "d": pa.array([0, 1, -1, 19000, None, 2932896, -719162, 7], pa.int32()).cast(pa.date32()),
        "row": list(range(8)),
    }
)

CONDITIONS = [
    "i = 1",
    "i <> 1 AND l > 0",
    "NOT (i > 1) OR b",
    "b",
    "i IS NULL",
    "i IN (1, 29, 1299)",
    "i NOT IN (1, 29)",
    "i IN (1, f, 29e0)",
    "l IN (3, i, 4611686018427387904)",
    "i BETWEEN -7 AND 29",
    "l > i",
    "l = 4611686018427387904",
    "i > 3000000000",
    "i = 29.0",
    "m > 1.1",
    "m >= 1.15",
    "m = i",
    "m * 2 > 2.3",
    "f = 0",
    "f < 0",
    "f > 1e200",
    "f >= 1.5",
    "f = f",
    "f <> 0",
    "f > m",
    "f <=> f",
    "s <=> s",
    "s = 'a'",
    "s > 'a'",
    "s = 'it\\'s'",
    "s LIKE 'a%'",
    "s NOT LIKE '%_b'",
    "s IN ('a', 'é')",
    "d > DATE '2000-01-01'",
    "d = '1970-01-02'",
    "d IS NOT NULL AND d < DATE '1970-01-01'",
    "i % 2 = 1",
    "i / 2 > 10",
    "CASE WHEN i > 0 THEN b ELSE f > 0 END",
    "coalesce(b, i > 0)",
    "1 / 2 > 0.4",
]

REFUSED = [
    "i IN (1, NULL)",
    "l IN (3, 5e0)",
    "l IN (3, f)",
    "m IN (1.15, f)",
    "f IN (l, 1.5e0)",
    "f = cast('NaN' AS double)",
    "s > 1",
    "upper(s) = 'A'",
    "i / i = 1",
    "m / 3 > 1",
    "-CAST(m AS DECIMAL(38, 18)) = 1.5",
    "f % i = 1",
    "s LIKE 'a\\\\_b'",
]

FAILING = [
    ("i", "i * 1.1"),
    ("i", "i + 1"),
    ("i", "i * 2"),
    ("i", "-i"),
    ("i", "l"),
    ("i", "f"),
    ("i", "coalesce(i, 0) - 1"),
    ("i", "CASE WHEN s = 'a' THEN 7 WHEN b THEN l END"),
    ("l", "l * 2"),
    ("l", "l + i"),
    ("l", "l - 1"),
    ("l", "l * l"),
    ("l", "i * 1000000"),
    ("m", "m * 1.155"),
    ("m", "m + 0.005"),
    ("m", "m - i"),
    ("m", "m * 100"),
    ("m", "i"),
]
"""Columns, and values to set them to that fail on some rows."""
OTHERS = {
    "i": ["i % 7", "i div 7", "i / 3", "m", "m * 1.5", "NULL", "cast(m AS int) * 10"],
    "l": ["cast(i AS bigint) * 3000000000"],
    "m": ["-m", "m % 2", "1.005"],
    "f": ["f * 1.1", "f + i", "f / 3", "i / 3", "m", "l", "-f", "f * 1e10"],
    "s": ["'x'", "coalesce(s, 'none')"],
    "b": ["i > 0", "NOT b"],
    "d": ["DATE '2024-02-29'", "CASE WHEN i = 1 THEN d END"],
}
"""Values that fail on no row."""
BATCHES: list[dict[str, str]] = [
    *({target: value} for target, value in FAILING),
    *(
        {target: values[at] for target, values in OTHERS.items() if at < len(values)}
        for at in range(max(map(len, OTHERS.values())))
    ),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table of ROWS; every test works on a copy."""
    path = tmp_path_factory.mktemp("made") / "t"
    write_deltalake(str(path), HARD_ROWS, configuration={"delta.enableChangeDataFeed": "true"})
    return path


@pytest.fixture
def source(made: Path, tmp_path: Path) -> DeltaSource:
    return open_source("t", str(shutil.copytree(made, tmp_path / "t")))


def columns_of(scan: Scan, schema: Schema, data: pa.Table) -> dict[str, Vector]:
    result = {}
    for attribute in scan.attributes:
        column = schema.find(attribute.name)
        result[attribute.id] = from_arrow(data.column(column.name), column.type)
    return result


def matching_rows(snapshot: Snapshot, condition: str, data: pa.Table) -> set[int]:
    """Rows for which impctl's own evaluator finds the condition true."""
    root = parse_query(f"SELECT row FROM t WHERE {condition}", {"t": snapshot.schema}).root
    assert isinstance(root, Project)
    if isinstance(root.child, Scan):
        return set(data.column("row").to_pylist())
    assert isinstance(root.child, Select)
    assert isinstance(root.child.child, Scan)
    columns = columns_of(root.child.child, snapshot.schema, data)
    truth = Condition(root.child.predicate).truth(columns, len(data))
    assert not truth.is_unsure.any()
    rows = data.column("row").to_pylist()
    return {row for row, ok in zip(rows, truth.may_true, strict=True) if ok}


def row_numbers_left(source: DeltaSource) -> set[int]:
    """`row` of each row that is in the table now."""
    newest = open_source("t", source.path).snapshot()
    return set(read_rows(newest, ["row"]).column(0).to_pylist())


@pytest.mark.parametrize("condition", CONDITIONS)
def test_delete_hits_the_rows_spark_would(source: DeltaSource, condition: str) -> None:
    snapshot = source.snapshot()
    expected = matching_rows(snapshot, condition, HARD_ROWS)
    done = apply_update(source, UpdateRequest("t", UpdateKind.DELETE, where=condition))
    assert set(range(8)) - row_numbers_left(source) == expected
    assert done.deleted == len(expected)


@pytest.mark.parametrize("condition", ["i + 1 > 2", "cast(f AS bigint) = 1"])
def test_overflow_inside_a_condition_fails_before_anything_is_written(
    source: DeltaSource, condition: str
) -> None:
    """As in Spark; deltalake would compare the exact sum of the row that holds the greatest int."""
    with pytest.raises(EvaluationError, match="fails on a row of table `t`"):
        apply_update(source, UpdateRequest("t", UpdateKind.DELETE, where=condition))
    assert open_source("t", source.path).version == 0


@pytest.mark.parametrize("condition", REFUSED)
def test_what_cannot_be_promised_is_refused(source: DeltaSource, condition: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        apply_update(source, UpdateRequest("t", UpdateKind.DELETE, where=condition))
    assert caught.value.exit_code == 3
    assert caught.value.hint
    assert open_source("t", source.path).version == 0


@pytest.mark.parametrize(
    ("target", "value"), [("i", "'5'"), ("s", "f"), ("m", "f"), ("b", "i"), ("d", "i"), ("s", "d")]
)
def test_values_spark_would_not_store_alike_are_refused(
    source: DeltaSource, target: str, value: str
) -> None:
    request = UpdateRequest("t", UpdateKind.UPDATE, assignments={target: value})
    with pytest.raises(UnsupportedError, match="An update of table `t` cannot use"):
        apply_update(source, request)


@pytest.mark.parametrize("batch", BATCHES)
def test_update_stores_the_values_spark_would(source: DeltaSource, batch: dict[str, str]) -> None:
    original = read_all(source)
    expected = {
        target: expected_values(source.snapshot(), target, value) for target, value in batch.items()
    }
    failing = {row for row in range(8) if None in (result[row] for result in expected.values())}
    assert bool(failing) == (tuple(batch.items())[0] in FAILING)
    for row in failing:
        with pytest.raises(EvaluationError):
            apply_update(source, update_of([row], batch))
    assert open_source("t", source.path).version == 0
    good = [row for row in range(8) if row not in failing]
    assert apply_update(source, update_of(good, batch)).updated == len(good) > 0
    for row, after in enumerate(read_all(source)):
        kept = [*after] if row in failing else [name for name in after if name not in batch]
        assert str([after[name] for name in kept]) == str([original[row][name] for name in kept])
        for target in batch if row in good else ():
            result = expected[target][row]
            stored = from_arrow(pa.array([after[target]], arrow_type(result.type)), result.type)
            assert shown(stored) == shown(result), (row, target)


def update_of(rows: list[int], batch: dict[str, str]) -> UpdateRequest:
    where = f"row IN ({', '.join(map(str, rows))})"
    assignments = {target.upper(): value for target, value in batch.items()}
    return UpdateRequest("t", UpdateKind.UPDATE, where=where, assignments=assignments)


def read_all(source: DeltaSource) -> list[dict[str, Any]]:
    """All rows, in the order of `row`."""
    snapshot = open_source("t", source.path).snapshot()
    rows = read_rows(snapshot, snapshot.schema.names).to_pylist()
    return sorted(rows, key=lambda row: int(row["row"]))


def shown(vector: Vector) -> str:
    return repr(vector.values[0]) if vector.validity()[0] else "NULL"


def expected_values(snapshot: Snapshot, target: str, value: str) -> list[Vector | None]:
    """What impctl's own evaluator makes of the value on each row; None where it fails."""
    root = parse_query(f"SELECT {value} AS v FROM t", {"t": snapshot.schema}).root
    assert isinstance(root, Project)
    assert isinstance(root.child, Scan)
    kind = snapshot.column(target).type
    result: list[Vector | None] = []
    for row in range(8):
        columns = columns_of(root.child, snapshot.schema, HARD_ROWS.slice(row, 1))
        try:
            result.append(cast(Evaluator(root.outputs[0].expr).values(columns, 1), kind))
        except EvaluationError:
            result.append(None)
    return result


ROW_COUNT = 10
DAYS = [date(2024, 1, 1), date(2024, 1, 2), None]
NUMBERS = [1.5, 0.0, 2.5, None, inf]
COLUMNS: dict[str, tuple[pa.DataType, Sequence[object]]] = {
    "i": (pa.int32(), [1, 2, 3, None]),
    "b": (pa.bool_(), [True, False, None]),
    "s": (pa.large_string(), ["a", "b", "c d", None, "B"]),
    "f": (pa.float64(), NUMBERS),
    "m": (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("2.00"), None]),
    "d": (pa.date32(), DAYS),
    "g": (pa.float64(), [1.5, -0.0, 0.0, nan, copysign(nan, -1.0), inf]),
}
PARTITIONS = ("i", "b", "s", "f", "d")
ATOMS = (
    *("i = 1", "i <> 2", "i > 1", "i IN (1, 3)", "i IS NULL", "i + 1 = 2", "i > 1.5", "i <=> 2"),
    *("b", "NOT b", "b IS NOT NULL", "s = 'a'", "s <> 'a'", "s < 'b'", "s LIKE 'a%'", "s <=> 'B'"),
    *("s IN ('a', 'c d')", "s IS NULL", "f = 1.5", "f > 2", "f <=> f", "f IS NULL", "m = 1.5"),
    *("m > 1", "m IS NULL", "m = i", "d = DATE '2024-01-01'", "d > DATE '2024-01-01'", "d IS NULL"),
    *("row < 5", "row % 2 = 0", "coalesce(b, i = 1)", "coalesce(i, 3) = 3", "1 = 1", "i = row"),
    *("CASE WHEN b THEN s = 'a' ELSE i = 2 END", "g = 0", "g > 1", "g < 0", "g = g", "g <> 1.5"),
    *("-g < 0", "g - g < 1", "g <=> -g", "g * 0e0 > 1", "g IN (0e0, 1.5e0)"),
    "CASE g WHEN 0 THEN b END",
)
OF_PARTITIONS = (
    "s = 'a'",
    "f > 2",
    "i + 1 = 2",
    "CASE WHEN i = 1 THEN TRUE ELSE FALSE END",
    "coalesce(b, i = 1)",
    "d = DATE '2024-01-01' OR s LIKE 'a%'",
)


def condition(random_: random.Random, depth: int = 0) -> str:
    share = random_.random()
    if depth > 2 or share < 0.45:
        return random_.choice(ATOMS)
    if share < 0.85:
        word = "AND" if share < 0.65 else "OR"
        return f"({condition(random_, depth + 1)} {word} {condition(random_, depth + 1)})"
    return f"NOT ({condition(random_, depth + 1)})"


def hit_and_meant(
    path: str, kind: UpdateKind, where: str, parts: list[str], random_: random.Random
) -> tuple[set[int], set[int], int]:
    """Rows that the batch deleted or changed, those it should have, and how many it counts."""
    drawn: dict[str, pa.Array] = {
        name: pa.array([random_.choice(values) for _ in range(ROW_COUNT)], kind)
        for name, (kind, values) in COLUMNS.items()
    }
    data = pa.table({**drawn, "row": list(range(ROW_COUNT))})
    write_deltalake(path, data.slice(0, 6), partition_by=parts or None)
    write_deltalake(path, data.slice(6), mode="append")
    source = open_source("t", path)
    snapshot = source.snapshot()
    meant = matching_rows(snapshot, where, read_rows(snapshot, snapshot.schema.names))
    assignments = {"row": "row + 1000"} if kind is UpdateKind.UPDATE else {}
    done = apply_update(source, UpdateRequest("t", kind, where=where, assignments=assignments))
    left = read_rows(open_source("t", path).snapshot(), ["row"]).column(0).to_pylist()
    return set(range(ROW_COUNT)) - set(left), meant, done.deleted + done.updated


@pytest.mark.slow
@pytest.mark.parametrize("where", OF_PARTITIONS)
def test_a_delete_by_partition_columns_alone_leaves_the_other_rows(
    tmp_path: Path, where: str
) -> None:
    hit, meant, counted = hit_and_meant(
        str(tmp_path / "t"), UpdateKind.DELETE, where, list(PARTITIONS), random.Random(1)
    )
    assert (hit, counted) == (meant, len(meant))
    assert 0 < len(meant) < ROW_COUNT


OF_NANS = ("g < 0", "g > 1", "-g < 0", "g - g < 1", "g - g > 5", "g <=> -g", "h < 1", "h <=> g")


@pytest.mark.slow
@pytest.mark.parametrize("where", OF_NANS)
def test_a_nan_is_above_all_numbers_whatever_its_sign(tmp_path: Path, where: str) -> None:
    values = [nan, copysign(nan, -1.0), inf, 1.0]
    doubles = {"g": values, "h": pa.array(values, pa.float32()), "row": list(range(4))}
    write_deltalake(str(tmp_path), pa.table(doubles))
    source = open_source("t", str(tmp_path))
    snapshot = source.snapshot()
    meant = matching_rows(snapshot, where, read_rows(snapshot, snapshot.schema.names))
    apply_update(source, UpdateRequest("t", UpdateKind.DELETE, where=where))
    left = read_rows(open_source("t", source.path).snapshot(), ["row"]).column(0).to_pylist()
    assert set(range(4)) - set(left) == meant


@pytest.mark.slow
@random_seeds(8, 16, 80)
def test_random_conditions_hit_the_rows_spark_would(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    where = condition(random_)
    parts = random_.sample(PARTITIONS, random_.choice([0, 1, 1, 2]))
    kind = random_.choice([UpdateKind.DELETE, UpdateKind.DELETE, UpdateKind.UPDATE])
    hit, meant, counted = hit_and_meant(str(tmp_path / "t"), kind, where, parts, random_)
    assert (hit, counted) == (meant, len(meant)), (kind, parts, where)


NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
PLACE = Location("w.yaml", 7, 9)


@pytest.fixture
def path(tmp_path: Path) -> str:
    folder = str(tmp_path / "t")
    table = pa.table(
        {
            "town": ["Rome"],
            "day": pa.array([date(2020, 2, 2)], pa.date32()),
            "at": pa.array([NEW_YEAR], pa.timestamp("us", tz="UTC")),
            "size": [1],
        }
    )
    create_table(folder, table)
    return folder


def set_to(path: str, column: str, written: str) -> object:
    request = UpdateRequest(
        "t", UpdateKind.UPDATE, assignments={column: written}, places={column: PLACE}
    )
    assert apply_update(open_source("t", path), request).updated == 1
    return read_rows(open_source("t", path).snapshot(), [column]).column(column)[0].as_py()


def refused(path: str, column: str, written: str) -> ImpctlError:
    with pytest.raises(ImpctlError) as caught:
        set_to(path, column, written)
    assert caught.value.location == PLACE
    return caught.value


@pytest.mark.parametrize(
    ("column", "written", "meant"),
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
def test_what_the_hint_says_is_taken(path: str, column: str, written: str, meant: object) -> None:
    error = refused(path, column, written)
    hinted = re.search(
        r'values of `set` are SQL expressions: write this one as "(.*?)"', str(error.hint)
    )
    assert hinted is not None, error.hint
    assert set_to(path, column, hinted[1]) == meant


@pytest.mark.parametrize(
    ("column", "written", "hint"),
    [
        ("size", "sise + 1", "did you mean `size`|known columns"),
        ("size", "size +", "text and times need their own quotes"),
        ("at", "at + ", "text and times need their own quotes"),
        ("town", "uper(town)", "."),
        ("town", "size + sise", "did you mean `size`|known columns"),
        ("town", "day = sise", "did you mean `size`|known columns"),
        ("size", "'abc'", "explicit CAST"),
        ("at", "'noon'", "explicit CAST"),
        ("town", "'Rome' FROM updated_table WHERE size = 9 --", "."),
        ("town", 'say "hi"', "text and times need their own quotes"),
        ("town", r"C:\temp", "text and times need their own quotes"),
        ("day", "2026-02-30", "."),
        ("day", "'2026-02-30'", "."),
        ("town", "upper('x'", "text and times need their own quotes"),
    ],
)
def test_of_other_faults_it_says_no_literal(
    path: str, column: str, written: str, hint: str
) -> None:
    result = str(refused(path, column, written).hint)
    assert re.search(hint, result), result
    assert "write this one as" not in result


def test_the_key_is_named(path: str) -> None:
    assert "`set` of `t.town` cannot be used" in refused(path, "town", "Berlin").message
