"""Pruning skips only files in which no row can match, compared with brute force."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from impctl.data.schema import (
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Kind,
    SqlType,
    decimal,
)
from impctl.data.vector import from_arrow
from impctl.expr.nodes import Compare, CompareOp, Expr, InList, IsNull, Literal, Not, Or
from impctl.plan.nodes import Attribute
from impctl.sketch.sketch import (
    BoundaryValue,
    RangeFilter,
    RangePartition,
    RangeSet,
    exact_filter,
    range_filter,
)
from impctl.tables import statistics
from impctl.tables.rows import read_rows
from impctl.tables.snapshot import Snapshot, ValueBounds, as_array, places_in
from impctl.tables.source import open_source
from impctl.tables.statistics import (
    Line,
    column_statistics,
    file_bounds,
    file_spans,
    key_spans,
    known_counts,
    line_of,
    prune_by_condition,
    prune_to_values,
    spread_counts,
)
from impctl.tables.statistics import prune as prune_files
from impctl.tables.write.maintenance import create_laid_out_table
from tests.plan.random_plans import ExprMaker
from tests.support.random_cases import FEW, random_cases
from tests.support.reference_plan import ReferenceFailure, Value, is_true
from tests.tables import handmade
from tests.tables.handmade import (
    VectoredTable,
    add,
    column_bounds,
    create,
    entry,
    fixture_table,
    write_table,
)

NAN = float("nan")


def filter_of(
    kind: SqlType, boundaries: tuple[BoundaryValue, ...], ids: list[int], column: str = "v"
) -> RangeFilter:
    partition = RangePartition("t", column, kind, boundaries)
    return range_filter(RangeSet.of(ids, partition.size), partition)


def rows_of(snapshot: Snapshot, *filters: RangeFilter) -> list[Any]:
    pylist = read_rows(snapshot, ["v"], prune_files(snapshot, filters)).column("v").to_pylist()
    return sorted(pylist, key=lambda value: (value is not None, str(value)))


def test_files_outside_are_skipped(tmp_path: Path) -> None:
    files = [[0, 9], [10, 19], [20, 29], [30, None], [None, None]]
    tables = (pa.table({"v": pa.array(values, pa.int64())}) for values in files)
    snapshot = write_table(tmp_path, *tables)
    assert rows_of(snapshot, filter_of(LONG, (10, 20, 30), [0, 2])) == [0, 20, 29, 9]
    assert rows_of(snapshot, filter_of(LONG, (10, 20, 30), [4])) == [None, None, None, 30]
    assert rows_of(snapshot, filter_of(LONG, (10,), [0]), filter_of(LONG, (5,), [1])) == [0, 9]
    everything = filter_of(LONG, (10, 20, 30), [0, 1, 2, 3, 4])
    of_another_type = filter_of(DOUBLE, (100.0,), [1])
    for filters in ([], [everything], [of_another_type]):
        assert len(prune_files(snapshot, filters)) == 5


def test_prune_partitions_by_value(tmp_path: Path) -> None:
    data = pa.table({"v": [1.0, NAN, None], "x": [1, 2, 3]})
    snapshot = write_table(tmp_path, data, partition_by=["v"])
    for value, row in ((1.0, 1), (NAN, 2), (None, 3)):
        kept = prune_to_values(snapshot, {"v": from_arrow(pa.array([value], pa.float64()), DOUBLE)})
        assert row in read_rows(snapshot, ["x"], kept).column("x").to_pylist()
        assert len(kept) < len(snapshot.files)


def test_files_without_null_are_skipped(tmp_path: Path) -> None:
    snapshot = write_table(
        tmp_path,
        pa.table({"v": [1, 2]}),
        pa.table({"v": pa.array([None, None], pa.int64())}),
        pa.table({"v": [None, 30]}),
    )
    assert rows_of(snapshot, filter_of(LONG, (10,), [2])) == [None, None, None, 30]
    assert rows_of(snapshot, filter_of(LONG, (10,), [0])) == [1, 2]


def test_partition_columns_prune() -> None:
    snapshot = open_source("t", str(fixture_table("delta-0.8.0-null-partition"))).snapshot()
    (kept,) = prune_files(snapshot, [filter_of(STRING, ("B",), [0], "k")])
    assert kept.partition_values == {"k": "A"}
    (kept,) = prune_files(snapshot, [filter_of(STRING, ("B",), [2], "k")])
    assert kept.partition_values == {"k": None}


def test_mapped_columns_prune() -> None:
    snapshot = open_source("t", str(fixture_table("table_with_partitioning_mapping"))).snapshot()
    assert len(prune_files(snapshot, [filter_of(STRING, ("A",), [0], "description")])) == 0


_KINDS: list[tuple[SqlType, pa.DataType, st.SearchStrategy[Any]]] = [
    (LONG, pa.int64(), st.integers(-5, 5)),
    (DOUBLE, pa.float64(), st.sampled_from([-1.0, -0.0, 0.0, 0.1, 0.3, 2.5, NAN, float("inf")])),
    (STRING, pa.string(), st.text("abé", max_size=3) | st.just("b" * 40)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "arrow", "values"), _KINDS)
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_each_matching_row_is_kept(
    tmp_path_factory: pytest.TempPathFactory,
    kind: SqlType,
    arrow: pa.DataType,
    values: st.SearchStrategy[Any],
    data: st.DataObject,
) -> None:
    column = st.lists(st.none() | values, min_size=1, max_size=3)
    files = data.draw(st.lists(column, min_size=1, max_size=4))
    drawn = data.draw(st.lists(values.filter(lambda v: v == v), max_size=3))
    boundaries = tuple(sorted(set(drawn)))
    ids = data.draw(st.sets(st.integers(0, len(boundaries) + 1)))
    chosen = filter_of(kind, boundaries, sorted(ids))
    tables = [pa.table({"v": pa.array(file, arrow)}) for file in files]
    snapshot = write_table(tmp_path_factory.mktemp("t") / "t", *tables)

    def matching(table: pa.Table) -> int:
        ranges = chosen.partition.range_ids_of(from_arrow(table.column("v"), kind))
        return sum(int(range_id) in ids for range_id in ranges)

    kept = read_rows(snapshot, ["v"], prune_files(snapshot, [chosen]))
    assert matching(kept) == matching(read_rows(snapshot, ["v"]))


@pytest.mark.parametrize("char", ["\U00020000", "\U0010ffff", "\U0001f600"])
def test_escaped_characters_skip_no_file(tmp_path: Path, char: str) -> None:
    # deltalake reads the pair of surrogates of U+20000 as U+10000, which is below it.
    rows = pa.table({"s": [f"a{char}"]})
    create_laid_out_table(str(tmp_path / "t"), [rows])
    text = entry(tmp_path / "t", 0).read_text()
    assert "\\ud8" in text or "\\udb" in text
    (bounds,) = file_bounds(open_source("t", str(tmp_path / "t")).snapshot(), "s")
    assert bounds.minimum <= f"a{char}"
    assert bounds.maximum is None


IN_1973 = 94_694_400_000_000
FLOAT_BELOW, FLOAT_ABOVE = 0.09999999403953552, 0.10000000894069672


@pytest.mark.parametrize(
    ("kind", "value", "low", "high"),
    [
        *(("long", 5, 5, 5), ("boolean", True, True, True), ("date", "2020-01-01", 18262, 18262)),
        ("timestamp_ntz", "1970-01-01T00:00:00.000", -1000, 1000),
        ("timestamp", "1973-01-01T00:00:00.000Z", IN_1973 - 1000, IN_1973 + 1000),
        # Before 1973, offsets may have had seconds that texts lack.
        ("timestamp", "1972-12-31T23:59:59.999Z", IN_1973 - 60_002_000, IN_1973 + 60_000_000),
        # No bound moves past zero.
        *(("decimal(38,1)", 0.0, 0, 0), ("decimal(38,1)", -1.5, -16, -14)),
        ("decimal(38,0)", 2**63, 2**63 - 2**19 - 1, 2**63 + 2**19 + 1),
        # deltalake truncates longer numbers.
        *(("decimal(38,0)", 2**63 - 1, None, None), ("decimal(38,0)", -(2**63), None, None)),
        *(("float", 0.1, FLOAT_BELOW, FLOAT_ABOVE), ("float", 0.0, 0.0, 0.0)),
        ("float", 3.5e38, float(np.finfo(np.float32).max), math.inf),
        *(("double", 0.1, 0.09999999999999998, 0.10000000000000003), ("double", 0.0, 0.0, 0.0)),
        *(("double", 5e-324, 0.0, 1.5e-323), ("double", -5e-324, -1.5e-323, 0.0)),
        *(("float", "NaN", None, None), ("double", "NaN", None, None)),
        ("double", "Infinity", 1.7976931348623155e308, math.inf),
        ("decimal(38,0)", 2**63 - 2, 2**63 - 2 - 2**19, 2**63 - 2 + 2**19),
        *(("string", text, text, text) for text in ("", "b" * 31, "é" * 31, "\U00020000" * 15)),
        *(("string", text, text, None) for text in ("b" * 32, "é" * 32, "\U00020000" * 16)),
        *(("string", text, text, None) for text in ("a\ufffd", "\U0001f600")),
    ],
)
def test_bounds_from_statistics(tmp_path: Path, kind: str, value: Any, low: Any, high: Any) -> None:
    file_stats = json.loads(handmade.stats(3, {"v": 0}, v=(value, value)))
    file = handmade.add("a.parquet", 3, stats=json.dumps(file_stats, ensure_ascii=False))
    features = ["timestampNtz"] if kind == "timestamp_ntz" else []
    handmade.create(tmp_path, {"v": kind}, file, features=features)
    lines = [json.dumps(action, ensure_ascii=False) for action in handmade.actions_of(tmp_path, 0)]
    entry(tmp_path, 0).write_text("\n".join(lines), encoding="utf-8")
    (bounds,) = file_bounds(handmade.open_table(tmp_path).snapshot(), "v")
    assert (repr(bounds.minimum), repr(bounds.maximum)) == (repr(low), repr(high))


def test_bounds_of_times_have_64_bits() -> None:
    least, greatest = np.array([-(2**63)]), np.array([2**63 - 1])
    for kind in (TIMESTAMP, TIMESTAMP_NTZ):
        assert statistics._moved(least, kind, -1) == least
        assert statistics._moved(greatest, kind, 1) == greatest


BELOW = {None: None, 0.0: 0.0, -1.0: -1.0000000000000004}
ABOVE = {None: None, 2.0: 2.000000000000001, -1.0: -0.9999999999999998}


def test_incomplete_statistics(tmp_path: Path) -> None:
    """Statistics are missing, partial, of NULLs only, or of no rows."""
    all_stats: list[dict[str, Any] | None] = [
        None,
        {"numRecords": 3},
        {"numRecords": 3, "nullCount": {"v": 3}},
        {"numRecords": 0, "nullCount": {"v": 0}},
        {"numRecords": 3, "nullCount": {"v": 1}, "minValues": {"v": 0.0}, "maxValues": {"v": 2.0}},
        {"numRecords": 3, "minValues": {"v": -1.0}},
        {"numRecords": 3, "nullCount": {"v": 0}, "maxValues": {"v": -1.0}},
    ]
    files = [
        handmade.add(f"{number}.parquet", 3, stats=None if result is None else json.dumps(result))
        for number, result in enumerate(all_stats)
    ]
    path = handmade.create(tmp_path, {"v": "double", "other": "long"}, *files)
    snapshot = open_source("t", path).snapshot()
    bounds = file_bounds(snapshot, "V")
    for file, result in zip(snapshot.files, bounds, strict=True):
        text = all_stats[int(file.uri.rpartition("/")[2].removesuffix(".parquet"))] or {}
        rows, nulls = text.get("numRecords"), text.get("nullCount", {}).get("v")
        low, high = (text.get(side, {}).get("v") for side in ("minValues", "maxValues"))
        may_be_nan = nulls is None or rows is None or nulls < rows
        limits = BELOW[low], ABOVE[high]
        assert result == ValueBounds(*limits, nulls, rows, may_be_nan)
    assert file_bounds(snapshot, "v") is bounds, "read once per snapshot"
    assert not replace(snapshot, version=1).bounds, "not shared with another snapshot"


def test_bounds_of_partitions(tmp_path: Path) -> None:
    """Including NULL and NaN, with and without row counts."""
    cases = [(value, stats) for value in ("1.5", "NaN", None, "") for stats in (3, None)]
    files = [
        handmade.add(
            f"{number}.parquet",
            3,
            stats=None if rows is None else json.dumps({"numRecords": rows}),
            partitionValues={"v": value},
        )
        for number, (value, rows) in enumerate(cases)
    ]
    columns = {"v": "double", "other": "long"}
    path = handmade.create(tmp_path, columns, *files, partition_columns=["v"])
    snapshot = open_source("t", path).snapshot()
    for file, result in zip(snapshot.files, file_bounds(snapshot, "v"), strict=True):
        value, rows = cases[int(file.uri.rpartition("/")[2].removesuffix(".parquet"))]
        if not value:
            assert result.is_all_null, "even without a row count"
            assert result.null_count == (rows or 1)
        else:
            known = None if value == "NaN" else 1.5
            assert result == ValueBounds(known, known, 0, rows, value == "NaN")


VALUES: dict[str, tuple[SqlType, pa.DataType, list[Any]]] = {
    "long": (LONG, pa.int64(), [-1, 0, 1, 2]),
    "long at the ends": (LONG, pa.int64(), [-(2**63), 2**53, 2**53 + 1, 2**63 - 1]),
    "wide": (decimal(38, 0), pa.decimal128(38, 0), [-(2**70), 0, 1, 2**63]),
    "double": (DOUBLE, pa.float64(), [-math.inf, -0.0, 5e-324, 1.5]),
    "text": (STRING, pa.string(), ["", "a", "b" * 32, "\U00020000"]),
}
"""Ascending values by type; files start and end at each of them."""
NUMBERS = [Fraction(1, 2), 2**63, -(2**70)]
"""Constants to compare with integer columns."""


def every_file(values: list[Any]) -> list[ValueBounds]:
    """All possible bounds of a file whose minimum and maximum are among these values."""
    return [
        ValueBounds(low, high, nulls, rows, may_be_nan)
        for low, high in itertools.product([None, *values], repeat=2)
        for nulls, rows in [(None, None), (None, 3), (1, None), (0, 3), (1, 3), (3, 3), (0, 0)]
        for may_be_nan in (False, True)
        if None in (low, high) or low <= high
        # A file of only NULLs has no minimum or maximum.
        if rows is None or nulls is None or nulls < rows or low is high is None
    ]


def some_files(values: list[Any]) -> list[list[ValueBounds]]:
    """Random small samples of these files."""
    rng, files = random.Random(7), every_file(values)
    known = [one for one in files if None not in (one.minimum, one.maximum)]
    return [rng.sample(rng.choice([files, known]), rng.randint(0, 4)) for _ in range(60)]


@pytest.fixture(params=VALUES)
def case(request: pytest.FixtureRequest) -> tuple[SqlType, pa.DataType, list[Any]]:
    return VALUES[request.param]


Case = tuple[SqlType, pa.DataType, list[Any]]


def test_files_that_may_match_ranges(case: Case) -> None:
    kind, _, values = case
    files = every_file(values)
    bounds = column_bounds(files, kind)
    assert list(bounds) == files
    assert bounds.may_hold_null.tolist() == [one.may_hold_null for one in files]
    assert bounds.is_all_null.tolist() == [one.is_all_null for one in files]
    for boundaries in ((), (values[1],), tuple(values[1:3])):
        partition = RangePartition("t", "v", kind, boundaries)
        for ids in itertools.product((False, True), repeat=partition.size):
            chosen = RangeSet.of(np.flatnonzero(ids).tolist(), partition.size)
            row_filter = exact_filter(chosen, partition)
            tolist = statistics._may_match(row_filter, bounds).tolist()
            assert tolist == [handmade.may_match(row_filter, one) for one in bounds]
        spans = file_spans(partition, bounds)
        pairs = list(zip(spans.first.tolist(), spans.last.tolist(), strict=True))
        assert pairs == [handmade.span_of(partition, one) for one in bounds]


def test_files_that_may_hold_values(case: Case) -> None:
    kind, arrow, values = case
    bounds = column_bounds(every_file(values), kind)
    more = [math.nan] if kind is DOUBLE else []
    for sought in ([], *([one] for one in [None, *values, *more]), [None, values[0], values[-1]]):
        # Arrow does not convert Python integers to wide decimals.
        plain = [one and Decimal(one) for one in sought] if kind.kind is Kind.DECIMAL else sought
        vector = from_arrow(pa.array(plain, arrow, from_pandas=False), kind)
        tolist = statistics._may_hold(vector, bounds).tolist()
        assert tolist == [handmade.may_hold_some(sought, one) for one in bounds]
    for constant in values if kind in (STRING, DOUBLE) else [*values, *NUMBERS]:
        for op in (op for op in CompareOp if op is not CompareOp.NULL_SAFE_EQUAL):
            flags = statistics._condition_may_hold(op, bounds, constant)
            assert flags.tolist() == [handmade.may_compare(op, one, constant) for one in bounds]


def test_files_that_may_join(case: Case) -> None:
    kind, _, values = case
    bounds = column_bounds(every_file(values), kind)
    for others in some_files(values):
        spans = key_spans(column_bounds(others, kind))
        filled = [one for one in others if not one.is_all_null]
        ends = [(one.minimum, one.maximum) for one in filled]
        assert (spans is None) == any(None in pair for pair in ends)
        if spans is not None:
            may_be_nan = any(one.may_be_nan for one in filled)
            expected = [handmade.meets(ends, may_be_nan, one) for one in bounds]
            assert spans.meets(bounds).tolist() == expected


def test_line_of_spans(case: Case) -> None:
    kind, _, values = case
    for files in some_files(values):
        bounds = column_bounds(files, kind)
        line = line_of(bounds)
        filled = [one for one in bounds if not one.is_all_null]
        ends: list[Any] = [value for one in filled for value in (one.minimum, one.maximum)]
        expected = None if None in ends else Line.of(ends)
        assert line == expected
        if line is not None:
            lows, beyond = line.spans(bounds.filled)
            assert lows.tolist() == [line.place(one.minimum) for one in filled]
            assert bool((beyond > lows).all())
            expected_ends = [line.place(one.maximum) + line.unit for one in filled]
            assert beyond.tolist() == np.maximum(expected_ends, np.nextafter(lows, np.inf)).tolist()


@FEW
@given(st.lists(st.integers(-3, 3) | st.sampled_from([2**63 + 1, 2**64 - 1, -(2**63) - 1])))
def test_no_integer_is_rounded(values: list[int]) -> None:
    ordered = sorted(set(values))
    assert as_array(ordered).tolist() == ordered
    needles = as_array([2**53 + 1, 2**63 - 1])
    positions = [sum(one < value for one in ordered) for value in (2**53 + 1, 2**63 - 1)]
    assert places_in(ordered, needles, "left").tolist() == positions


@pytest.mark.parametrize("order", [1, -1])
def test_table_statistics_combine_those_of_files(tmp_path: Path, order: int) -> None:
    files = [
        handmade.add(f"{number}.parquet", 2, stats=handmade.stats(2, {"v": number}, v=pair))
        for number, pair in enumerate([(5, 9), (-2, 4), (7, 7)][::order])
    ]
    snapshot = open_source("t", handmade.create(tmp_path, {"v": "long"}, *files)).snapshot()
    result, bounds = column_statistics(snapshot, "v"), file_bounds(snapshot, "v")
    filled = [one for one in bounds if not one.is_all_null]
    assert len(filled) == 2, "a file of NULLs has no bounds"
    assert result.minimum == min(one.minimum for one in filled)
    assert result.maximum == max(one.maximum for one in filled)
    assert result.null_count == 3


LARGE = Decimal("12345678901234567890.123456789012345678")
KINDS: dict[str, tuple[str, SqlType, list[Value]]] = {
    "a": ("long", LONG, [-3, -1, 0, 1, 2, 4, 2**53, 2**53 + 1]),
    "i": ("integer", INTEGER, [-2, 0, 1, 3]),
    "d": ("double", DOUBLE, [-1.5, -0.0, 0.0, 0.5, 2.5, math.nan, math.inf, -math.inf]),
    "s": ("string", STRING, ["", "a", "ab", "b", "b" * 40, "a\U0001f600" * 20]),
    "m": ("decimal(6,1)", decimal(6, 1), [Decimal("-1.5"), Decimal("0.0"), Decimal("2.5")]),
    "w": ("decimal(38,18)", decimal(38, 18), [LARGE, -LARGE, Decimal(0), Decimal("1e-18")]),
}
ATTRIBUTES = tuple(Attribute(name, name, kind) for name, (_, kind, _) in KINDS.items())
COLUMNS = {name: name for name in KINDS}
Row = dict[str, Value]


def random_stats(rng: Random, rows: Sequence[Row]) -> str:
    """Statistics as a Delta writer gathers them, with some missing at random."""
    result: dict[str, Any] = {"numRecords": len(rows), "minValues": {}, "maxValues": {}}
    nulls = result["nullCount"] = {}
    for name in KINDS:
        values = [row[name] for row in rows if row[name] is not None]
        if rng.random() < 0.95:
            nulls[name] = len(rows) - len(values)
        clean = [v for v in values if not (isinstance(v, float) and not math.isfinite(v))]
        if len(clean) < len([v for v in values if v == v]) or not clean or rng.random() < 0.05:
            continue
        low, high = min(clean), max(clean)  # type: ignore[type-var]  # one column, one value type
        result["minValues"][name] = _json(low, rounds_up=False)
        result["maxValues"][name] = _json(high, rounds_up=True)
    return json.dumps(result)


def _json(value: Value, *, rounds_up: bool) -> Any:
    if isinstance(value, str):
        return value if len(value) <= 32 else value[:32] + ("\ufffd" if rounds_up else "")
    return float(value) if isinstance(value, Decimal) else value


def random_rows(rng: Random) -> list[Row]:
    pools = {}
    for name, (_, _, values) in KINDS.items():
        sample: list[Value] = rng.sample(values, rng.randint(1, min(3, len(values))))
        pools[name] = sample + ([None] if rng.random() < 0.4 else [])
        pools[name] = [None] if rng.random() < 0.05 else pools[name]
    return [{name: rng.choice(pool) for name, pool in pools.items()} for _ in range(3)]


def snapshot_of(folder: Path, stats: Sequence[str]) -> Snapshot:
    adds = [add(f"{number}.parquet", 3, stats=text) for number, text in enumerate(stats)]
    columns = {name: kind for name, (kind, _, _) in KINDS.items()}
    return open_source("t", create(folder, columns, *adds)).snapshot()


def condition(rng: Random) -> Expr:
    """A random condition, mostly comparisons of a column and a constant."""
    if rng.random() < 0.3:
        return ExprMaker(rng).predicate(ATTRIBUTES)
    name = rng.choice(list(KINDS))
    _, kind, values = KINDS[name]
    column = next(a for a in ATTRIBUTES if a.id == name).ref()
    constants = [Literal(rng.choice(values), kind) for _ in range(2)]
    if kind in (LONG, INTEGER, DOUBLE) and rng.random() < 0.3:
        constants[0] = Literal(rng.randint(-2, 3), rng.choice((INTEGER, LONG)))
    if kind.is_numeric and rng.random() < 0.1:
        constants[0] = Literal(Decimal("0.5"), decimal(2, 1))
    if kind in (LONG, DOUBLE) and rng.random() < 0.3:
        constants[1] = Literal(rng.choice((5.0, 2.0**53)), DOUBLE)
    ops = list(CompareOp)
    choice = rng.random()
    if choice < 0.1:
        expr: Expr = InList(column, tuple(constants))
    elif choice < 0.2:
        expr = IsNull(column)
    elif choice < 0.6:
        expr = Compare(rng.choice(ops), column, constants[0])
    else:
        expr = Compare(rng.choice(ops), constants[0], column)
    if rng.random() < 0.3:
        expr = Not(expr)
    return Or((expr, condition(rng))) if rng.random() < 0.2 else expr


def skipped_files(folder: Path, cases: range) -> tuple[int, int, int]:
    """Counts of checked pairs, of skipped files, and of files with a matching row."""
    checked = skipped = needed = 0
    for case in cases:
        rng = Random(f"prune {case}")
        files = [random_rows(rng) for _ in range(5)]
        snapshot = snapshot_of(folder / str(case), [random_stats(rng, rows) for rows in files])
        for _ in range(25):
            where = condition(rng)
            kept = {f.uri.rpartition("/")[2] for f in prune_by_condition(snapshot, where, COLUMNS)}
            for number, rows in enumerate(files):
                try:
                    holds = any(is_true(where, row) for row in rows)
                except ReferenceFailure:
                    continue
                checked += 1
                is_kept = f"{number}.parquet" in kept
                skipped += not is_kept
                needed += holds
                assert is_kept or not holds, (case, where, rows)
    return checked, skipped, needed


@random_cases(2, 5, 60)
def test_no_file_with_a_matching_row_is_skipped(tmp_path: Path, cases: range) -> None:
    checked, skipped, needed = skipped_files(tmp_path, cases)
    assert checked > 100 * len(cases)
    assert min(skipped, needed) > checked // 6, "both are frequent"


@pytest.mark.parametrize(
    ("kind", "stats", "op", "constant", "kept"),
    [
        (DATE, ("2020-01-01", "2020-01-05"), "=", Literal(18262, DATE), True),
        (DATE, ("2020-01-01", "2020-01-05"), "=", Literal(18270, DATE), False),
        (DATE, ("2020-01-01", "2020-01-05"), "=", Literal("2020-02-01", STRING), True),
        (FLOAT, (0.0, 2.0), "=", Literal(2**24 + 1, INTEGER), True),
        (FLOAT, (0.0, 2.0), "=", Literal(5, INTEGER), False),
        (LONG, (0, 5), "=", Literal(2.5, DOUBLE), True),
        (LONG, (0, 5), "=", Literal(7, LONG), False),
        # Statistics do not count NaN, which is greater than every number.
        (DOUBLE, (0.0, 2.0), ">", Literal(9.0, DOUBLE), True),
        (DOUBLE, (0.0, 2.0), ">=", Literal(9.0, DOUBLE), True),
        (DOUBLE, (0.0, 2.0), "<", Literal(-1.0, DOUBLE), False),
        (LONG, (0, 5), ">", Literal(9, LONG), False),
        (LONG, (2, 2), "<>", Literal(2, LONG), False),
    ],
)
def test_files_are_kept_by_statistics(
    tmp_path: Path, kind: SqlType, stats: tuple[Any, Any], op: str, constant: Literal, kept: bool
) -> None:
    action = add("0.parquet", 2, stats=handmade.stats(2, {"v": 0}, v=stats))
    snapshot = open_source("t", create(tmp_path, {"v": str(kind.kind)}, action)).snapshot()
    compared = Compare(CompareOp(op), Attribute("v", "v", kind).ref(), constant)
    assert bool(prune_by_condition(snapshot, compared, {"v": "v"})) == kept


def test_column_of_another_type_skips_no_file(tmp_path: Path) -> None:
    snapshot = snapshot_of(tmp_path, [random_stats(Random(1), random_rows(Random(2)))])
    wrong = Compare(CompareOp.GREATER, Attribute("a", "a", INTEGER).ref(), Literal(9, INTEGER))
    assert len(prune_by_condition(snapshot, wrong, COLUMNS)) == 1


@pytest.mark.parametrize(
    ("other", "kept"), [(Literal(5.0, DOUBLE), True), (Literal(5, INTEGER), False)]
)
def test_mixed_list_rounds_the_column(tmp_path: Path, other: Literal, kept: bool) -> None:
    """With a double in the list, Spark casts all to double, and 2^53 + 1 becomes 2^53."""
    row: Row = {**random_rows(Random(3))[0], "a": 2**53 + 1}
    snapshot = snapshot_of(tmp_path, [random_stats(Random(5), [row])])
    listed = InList(Attribute("a", "a", LONG).ref(), (Literal(2**53, LONG), other))
    assert bool(prune_by_condition(snapshot, listed, COLUMNS)) == kept


def test_list_constants_round_each_other(tmp_path: Path) -> None:
    """Beside a constant of 30 digits, Spark rounds the other one to 8 decimal places, here to 1.
    In `a = 1.000000000000000001` it keeps all digits."""
    bounds = {"minValues": {"a": 1}, "maxValues": {"a": 1}, "nullCount": {"a": 0}}
    file = add("0.parquet", 1, stats=json.dumps({"numRecords": 1, **bounds}))
    snapshot = open_source("t", create(tmp_path, {"a": "long"}, file)).snapshot()
    fine = Literal(Decimal("1.000000000000000001"), decimal(38, 18))
    large = Literal(Decimal(10) ** 29, decimal(30, 0))
    column = Attribute("a", "a", LONG).ref()
    assert len(prune_by_condition(snapshot, InList(column, (fine, large)), {"a": "a"})) == 1
    assert not prune_by_condition(snapshot, InList(column, (Literal(2, LONG),)), {"a": "a"})


_DOUBLES = [-math.inf, -1.5, -0.0, 0.0, 0.5, 2.5, 7.0, math.inf, math.nan]
COUNTED_KINDS: dict[str, tuple[SqlType, pa.DataType, list[Any], tuple[Any, ...]]] = {
    "long": (LONG, pa.int64(), list(range(-3, 9)), (-1, 0, 4)),
    "double": (DOUBLE, pa.float64(), _DOUBLES, (0.0, 2.5)),
    "string": (STRING, pa.string(), ["", "a", "ab", "b" * 40, "b" * 39 + "c", "z"], ("a", "b")),
}


def laid_out(path: Path, files: Iterable[pa.Table]) -> Snapshot:
    create_laid_out_table(str(path), files)
    return open_source("t", str(path)).snapshot()


def random_table(rng: Random, kind: str) -> pa.Table:
    """Rows of mostly one value, sometimes with NULL or another value."""
    _, arrow, values, _ = COUNTED_KINDS[kind]
    start = rng.randrange(len(values))
    near = values[start : start + rng.choice((1, 1, 2))]
    near += [None] * rng.choice((0, 0, 1)) + rng.sample(values, rng.choice((0, 0, 1)))
    if rng.random() < 0.1:
        near = [None]
    rows = [rng.choice(near) for _ in range(rng.randint(1, 5))]
    return pa.table({"v": pa.array(rows, arrow), "n": list(range(len(rows)))})


def check(snapshot: Snapshot, partition: RangePartition) -> int:
    """The number of files with known counts; asserts that these match the rows."""
    counts, unknown = known_counts(snapshot, partition)
    unknown_uris = {file.uri for file in unknown}
    known = [file for file in snapshot.files if file.uri not in unknown_uris]
    column = from_arrow(read_rows(snapshot, ["v"], known).column(0), partition.type)
    read = np.bincount(partition.range_ids_of(column), minlength=partition.size)
    assert counts.tolist() == read.tolist()
    spread = spread_counts(snapshot, partition, unknown, read)
    assert (spread >= 0).all()
    rows = sum(file.rows - (0 if file.deleted is None else len(file.deleted)) for file in unknown)
    assert spread.sum() == rows
    return len(known)


@pytest.mark.slow
@random_cases(4, 6, 100)
@pytest.mark.parametrize("kind", list(COUNTED_KINDS))
def test_known_counts_match_rows(tmp_path: Path, kind: str, cases: range) -> None:
    known = files = 0
    partition = RangePartition("t", "v", COUNTED_KINDS[kind][0], COUNTED_KINDS[kind][3])
    for seed in cases:
        rng = Random(seed)
        known += check(
            laid_out(tmp_path / str(seed), [random_table(rng, kind) for _ in range(6)]), partition
        )
        files += 6
    assert files // 10 < known < files


@random_cases(4, 6, 60)
def test_deleted_rows_are_not_counted(tmp_path: Path, cases: range) -> None:
    known = 0
    for seed in cases:
        rng, path = Random(seed), tmp_path / str(seed)
        table = VectoredTable(path, random_table(rng, "long"))
        for _ in range(3):
            table.append(random_table(rng, "long"))
        deleted = rng.randint(0, 3)
        table.delete(lambda rows, deleted=deleted: pc.equal(rows["n"], deleted))  # type: ignore[misc]  # bound now
        snapshot = open_source("t", str(path)).snapshot()
        known += check(snapshot, RangePartition("t", "v", LONG, (-1, 0, 4)))
    assert known > len(cases)


def test_only_given_files_are_counted(tmp_path: Path) -> None:
    snapshot = laid_out(tmp_path / "t", [pa.table({"v": [number, number]}) for number in range(4)])
    partition = RangePartition("t", "v", LONG, (1, 2))
    counts, unknown = known_counts(snapshot, partition, snapshot.uris[1:])
    assert (counts.tolist(), unknown) == ([0, 2, 4, 0], ())


def test_ranges_of_another_type_count_nothing(tmp_path: Path) -> None:
    snapshot = laid_out(tmp_path / "t", [pa.table({"v": [1.5]})])
    counts, unknown = known_counts(snapshot, RangePartition("t", "v", LONG, (1, 2)))
    assert (counts.sum(), len(unknown)) == (0, 1)


def test_unknown_rows_are_spread_like_the_others(tmp_path: Path) -> None:
    files = [[0, 0, 0, 1], [0, 3, 3, 3, None], [5, 9], [None]]
    snapshot = laid_out(tmp_path / "t", [pa.table({"v": pa.array(v, pa.int64())}) for v in files])
    partition = RangePartition("t", "v", LONG, (1, 3, 5, 9))
    spread = spread_counts(snapshot, partition, snapshot.files, np.array([5, 1, 1, 0, 0, 0]))
    # 3 of 4 rows to the first of two ranges; 2.4, 0.8 and 0.8 of 4; one each; NULL separately.
    assert spread.tolist() == [5, 2, 1, 1, 1, 2]
    assert (spread.sum(), spread[-1]) == (12, 2)
