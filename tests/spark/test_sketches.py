"""Sketches captured in Spark: all kinds of passes agree, and skipped rows never matter."""

from __future__ import annotations

import math
import random
from collections import Counter
from decimal import Decimal
from functools import cache, partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from impctl.data import schema as data_schema
from impctl.data.vector import from_arrow
from impctl.errors import UnsafeSketchError, UsageError
from impctl.rules.optimize import apply_rules
from impctl.safety.facts import Fact, FactKind, FactSource
from impctl.safety.judge import check_safety
from impctl.sketch.sketch import RangePartition, range_filter
from impctl.spark import capture
from impctl.spark.capture import sketch_passes
from impctl.spark.predicates import rewrite_sql
from impctl.spark.run import run_sql
from impctl.spark.sketches import CASE_TREE_BOUNDARIES, capture_sketches, with_range_id
from impctl.sql.statement import parse_query
from tests.compile.test_windows import QUERIES, SALES, changes, filled, kept, random_row, table_of
from tests.plan.catalogs import listed, schema_of
from tests.support.random_cases import quarter_then_rest

pytestmark = pytest.mark.spark

CATALOG = {
    "t": schema_of("id bigint, g string, h int, v int, d double, m decimal(10,2)"),
    "u": schema_of("k bigint, g string, w int"),
}


FACTS = [
    Fact(table, column, FactKind.NONNEGATIVE, FactSource.CONSTRAINT)
    for table, column in (("t", "v"), ("t", "m"), ("u", "w"))
]
ROWS = 60


def tables() -> dict[str, pa.Table]:
    groups = ["a", "b", "c", None, "e"]
    doubles = [1.5, -0.0, 0.0, math.nan, None, -3.0, 8.0]
    t = {
        "id": [None if n % 17 == 5 else n for n in range(ROWS)],
        "g": [groups[(n * n) % 5] for n in range(ROWS)],
        "h": [n % 4 if n % 9 else None for n in range(ROWS)],
        "v": [(n * 7) % 13 if n % 11 else None for n in range(ROWS)],
        "d": [doubles[n % 7] for n in range(ROWS)],
        "m": [f"{n % 10}.{n % 7}0" for n in range(ROWS)],
    }
    u = {
        "k": list(range(0, 40, 2)),
        "g": [groups[n % 5] for n in range(20)],
        "w": [n % 6 for n in range(20)],
    }
    kinds = {"h": pa.int32(), "v": pa.int32(), "w": pa.int32()}
    data = {"t": t, "u": u}
    result = {}
    for name, columns in data.items():
        arrays = {n: pa.array(values, kinds.get(n)) for n, values in columns.items()}
        if "m" in arrays:
            arrays["m"] = arrays["m"].cast(pa.decimal128(10, 2))
        result[name] = pa.table(arrays)
    return result


PARTITIONS = {
    ("t", "id"): RangePartition("t", "id", data_schema.LONG, (10, 20, 25, 33, 50)),
    ("t", "g"): RangePartition("t", "g", data_schema.STRING, ("b", "c", "d")),
    ("t", "h"): RangePartition("t", "h", data_schema.INTEGER, (1, 2, 3)),
    ("t", "d"): RangePartition("t", "d", data_schema.DOUBLE, (-1.0, 0.0, 2.0)),
    ("t", "m"): RangePartition("t", "m", data_schema.decimal(10, 2), (200, 450, 700)),
    ("u", "k"): RangePartition("u", "k", data_schema.LONG, (8, 16, 24)),
    ("u", "g"): RangePartition("u", "g", data_schema.STRING, ("b", "c", "d")),
}

SKETCHED_QUERIES = dict(listed("for_spark", "sketched"))


@pytest.fixture(scope="module")
def frames(spark):
    return {name: spark.createDataFrame(table) for name, table in tables().items()}


def bag(table: pa.Table) -> Counter[str]:
    return Counter(repr(tuple(row.values())) for row in table.to_pylist())


ODD_TYPES = {"d", "m"}
ODD_TYPED_QUERIES = {"rows", "having sum", "having double key", "top groups", "nested", "window"}
"""Doubles and decimals as partition attributes take other code paths only below the plan."""


def partitions_of(name, table):
    """The attributes to test on a table of a query."""
    return [
        attribute
        for owner, attribute in PARTITIONS
        if owner == table and (attribute not in ODD_TYPES or name in ODD_TYPED_QUERIES)
    ]


def accesses():
    for name, sql in SKETCHED_QUERIES.items():
        for scan in parse_query(sql, CATALOG).root.scans:
            yield name, scan.access


@pytest.mark.parametrize("sql", SKETCHED_QUERIES.values(), ids=SKETCHED_QUERIES)
def test_each_query_has_a_safe_sketch(sql):
    """A query without one would compare nothing."""
    parsed = parse_query(sql, CATALOG)
    columns = [
        (scan.access, attribute)
        for scan in parsed.root.scans
        for table, attribute in PARTITIONS
        if table == scan.table
    ]
    assert any(check_safety(parsed, {access: name}, FACTS).safe for access, name in columns)


@pytest.fixture(scope="module")
def results(spark, frames):
    """Function from a query's name to the bag of its rows."""
    return cache(lambda name: bag(run_sql(spark, SKETCHED_QUERIES[name], frames)))


@pytest.mark.parametrize(
    "is_rest", [False, pytest.param(True, marks=(pytest.mark.slow, pytest.mark.long))]
)
@pytest.mark.parametrize(
    ("index", "name", "access"), quarter_then_rest((n, *case) for n, case in enumerate(accesses()))
)
def test_a_filtered_query_has_the_same_result(spark, frames, results, index, name, access, is_rest):
    """Every safe sketch gives the query's result; the cheapest pass agrees with collecting.

    One attribute of each access first, preferably of a rare type, then the others.
    """
    parsed = parse_query(SKETCHED_QUERIES[name], CATALOG)
    (table,) = (scan.table for scan in parsed.root.scans if scan.access == access)
    inputs = {scan.access: frames[scan.table] for scan in parsed.root.scans}
    verdicts = {
        attribute: check_safety(parsed, {access: attribute}, FACTS)
        for attribute in partitions_of(name, table)
    }
    for attribute, verdict in verdicts.items():
        if not verdict.safe:
            column = data_schema.Column(attribute, PARTITIONS[table, attribute].type)
            with pytest.raises(UnsafeSketchError):
                sketch_passes(parsed, verdict, {access: column})
    safe = [attribute for attribute, verdict in verdicts.items() if verdict.safe]
    preferred = [attribute for attribute in safe if attribute in ODD_TYPES] or safe
    for attribute in safe:
        if (attribute != preferred[index // 2 % len(preferred)]) != is_rest:
            continue
        partition, verdict = PARTITIONS[table, attribute], verdicts[attribute]
        result = capture_sketches(spark, parsed, verdict, {access: partition}, inputs)[access]
        assert result.size == partition.size
        collected = collected_sketch(spark, parsed, verdict, access, partition, inputs)
        assert result.ids == collected.ids, attribute
        filtered = rewrite_sql(parsed, {access: range_filter(result, partition)})
        assert bag(run_sql(spark, filtered, frames)) == results(name), attribute


def collected_sketch(spark, query, verdict, access, partition, inputs):
    """The sketch of the pass that handles each operator separately."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture, "_basis", lambda plan, *_: capture._Basis(None, whole=plan))
        return capture_sketches(spark, query, verdict, {access: partition}, inputs)[access]


@pytest.mark.parametrize(
    "name", ["having sum", "having by two", "top groups", "nested", "join having"]
)
def test_rules_do_not_change_the_sketch(spark, frames, name):
    parsed = parse_query(SKETCHED_QUERIES[name], CATALOG)
    access = next(scan.access for scan in parsed.root.scans if scan.table == "t")
    inputs = {scan.access: frames[scan.table] for scan in parsed.root.scans}
    partitions, captured = {access: PARTITIONS["t", "g"]}, []
    for query in (parsed, replace(parsed, root=apply_rules(parsed.root))):
        verdict = check_safety(query, {access: "g"}, FACTS)
        captured.append(capture_sketches(spark, query, verdict, partitions, inputs))
    assert captured[0] == captured[1]


def test_sketch_is_accurate(spark, frames):
    """Expected ranges are computed here: groups with sum(v) > 60, then their rows."""
    data = tables()["t"].to_pylist()
    sums: Counter[str | None] = Counter()
    for row in data:
        sums[row["g"]] += row["v"] or 0
    partition = PARTITIONS["t", "id"]
    bounds = partition.boundaries
    expected = {
        sum(row["id"] >= b for b in bounds) if row["id"] is not None else partition.null_range
        for row in data
        if sums[row["g"]] > 60
    }
    parsed = parse_query(SKETCHED_QUERIES["having sum"], CATALOG)
    verdict = check_safety(parsed, {"t#1": "id"}, FACTS)
    result = capture_sketches(spark, parsed, verdict, {"t#1": partition}, {"t#1": frames["t"]})
    assert set(result["t#1"].ids) == expected
    assert expected


def test_barrier_rows_are_in_the_sketch(spark, frames):
    """Rows of a nested top-k count even if the join drops them."""
    parsed = parse_query(SKETCHED_QUERIES["nested top"], CATALOG)
    verdict = check_safety(parsed, {"t#1": "id"}, FACTS)
    assert verdict.barriers == 1
    inputs = {scan.access: frames[scan.table] for scan in parsed.root.scans}
    partition = RangePartition("t", "id", data_schema.LONG, tuple(range(1, ROWS)))
    result = capture_sketches(spark, parsed, verdict, {"t#1": partition}, inputs)["t#1"]
    top = run_sql(spark, "SELECT id FROM t ORDER BY v DESC NULLS LAST, id LIMIT 9", frames)
    ids = {partition.null_range if i is None else i for i in top["id"].to_pylist()}
    assert set(result.ids) == ids


JOINT_CAPTURES = {
    "rows": (SKETCHED_QUERIES["join"], {"t#1": "id", "u#1": "k"}),
    "other columns": (SKETCHED_QUERIES["join"], {"t#1": "d", "u#1": "g"}),
    "matched": (SKETCHED_QUERIES["in"], {"t#1": "g", "u#1": "k"}),
    "itself": (SKETCHED_QUERIES["self join"], {"t#1": "g", "t#2": "id"}),
    "keyed": (
        "SELECT t.g, count(*) AS n FROM t JOIN u ON t.g = u.g GROUP BY t.g HAVING count(*) > 20",
        {"t#1": "g", "u#1": "g"},
    ),
    "groups": (SKETCHED_QUERIES["join having"], {"t#1": "id", "u#1": "g"}),
    "no groups": (
        "SELECT sum(t.v) AS s FROM t JOIN u ON t.id = u.k HAVING sum(t.v) > 10000",
        {"t#1": "id", "u#1": "g"},
    ),
    "NULL keys": (
        "SELECT t.h, sum(t.v) AS s FROM t JOIN u ON t.g = u.g GROUP BY t.h HAVING sum(t.v) > 40",
        {"t#1": "id", "u#1": "k"},
    ),
    "of different kinds": (
        "SELECT t.g, sum(t.v) AS s FROM t JOIN u ON t.id = u.k GROUP BY t.g HAVING sum(t.v) > 20",
        {"t#1": "g", "u#1": "k"},
    ),
}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("sql", "sketched"), JOINT_CAPTURES.values(), ids=list(JOINT_CAPTURES))
def test_joint_captures_equal_single_captures(spark, frames, sql, sketched):
    parsed = parse_query(sql, CATALOG)
    verdict = check_safety(parsed, sketched, FACTS)
    tables = {scan.access: scan.table for scan in parsed.root.scans}
    inputs = {access: frames[table] for access, table in tables.items()}
    partitions = {a: PARTITIONS[tables[a], attribute] for a, attribute in sketched.items()}
    result = capture_sketches(spark, parsed, verdict, partitions, inputs)
    for access, partition in partitions.items():
        assert result[access] == collected_sketch(spark, parsed, verdict, access, partition, inputs)
    filters = {a: range_filter(result[a], p) for a, p in partitions.items()}
    expected = bag(run_sql(spark, parsed.sql, frames))
    assert bag(run_sql(spark, rewrite_sql(parsed, filters), frames)) == expected


def test_frames_without_the_attribute_are_refused(spark, frames):
    parsed = parse_query(SKETCHED_QUERIES["having sum"], CATALOG)
    verdict = check_safety(parsed, {"t#1": "id"}, FACTS)
    inputs = {"t#1": frames["t"].select("g", "v")}
    with pytest.raises(UsageError):
        capture_sketches(spark, parsed, verdict, {"t#1": PARTITIONS["t", "id"]}, inputs)


BIG = 2**53
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1


def neighbors(boundaries, *extremes):
    return [*[value + step for value in boundaries for step in (-1, 0, 1)], *extremes]


@pytest.fixture
def check(spark, tmp_path):
    """Asserts that Spark and RangePartition map the values to the same ranges."""
    return partial(check_range_ids, spark, tmp_path)


def check_range_ids(spark, folder, kind: data_schema.SqlType, boundaries, values: pa.Array) -> None:
    partition = RangePartition("t", "odd `name", kind, tuple(boundaries))
    pq.write_table(
        pa.table({"odd `name": values, "place": range(len(values))}), folder / "rows.parquet"
    )
    schema = f"`odd ``name` {kind.spark_name}, place bigint"
    frame = spark.read.schema(schema).parquet(str(folder / "rows.parquet"))
    assert dict(frame.dtypes)["odd `name"] == kind.spark_name
    result = with_range_id(frame, partition, "odd `name", "frag")
    assert result.columns == ["odd `name", "place", "frag"]
    assert dict(result.dtypes)["frag"] == "int"
    ids = result.select("place", "frag").toArrow().sort_by("place")["frag"].to_pylist()
    assert ids == partition.range_ids_of(from_arrow(values, kind)).tolist()


INTEGER_BOUNDARIES = {
    "none": [],
    "one": [0],
    "small": [-5, 0, 7],
    "edge of doubles": [-BIG + 1, BIG - 1],
    "beyond doubles": [-BIG - 1, -BIG, BIG, BIG + 1, BIG + 2],
    "ends": [LONG_MIN, LONG_MAX],
    "many": list(range(-1000, 1000, 3)),
    "many beyond doubles": [BIG + 2 * step for step in range(CASE_TREE_BOUNDARIES + 1)],
}


@pytest.mark.parametrize("name", INTEGER_BOUNDARIES)
def test_long(check, name):
    boundaries = INTEGER_BOUNDARIES[name]
    extremes = [LONG_MIN, LONG_MIN + 1, -BIG - 1, -BIG, 0, BIG, BIG + 1, LONG_MAX - 1, LONG_MAX]
    near = [v for v in neighbors(boundaries, *extremes) if LONG_MIN <= v <= LONG_MAX]
    check(data_schema.LONG, boundaries, pa.array([*near, None], pa.int64()))


@pytest.mark.parametrize(
    ("kind", "arrow"), [(data_schema.INTEGER, pa.int32()), (data_schema.BYTE, pa.int8())]
)
def test_narrow_integers(check, kind, arrow):
    check(kind, [-3, 100], pa.array([*neighbors([-3, 100], -128, 127), None], arrow))


def test_boolean(check):
    check(data_schema.BOOLEAN, [1], pa.array([False, True, None]))


DOUBLE_BOUNDARIES = {
    "zero": [0.0],
    "negative zero": [-0.0],
    "fractions": [-1e300, -0.1, 0.1, 5e-324, 1e16][:2] + [5e-324, 0.1, 1e16],
    "infinite": [-math.inf, 0.5, math.inf],
    "many": [step / 7 for step in range(-500, 500)],
}


@pytest.mark.parametrize("name", DOUBLE_BOUNDARIES)
@pytest.mark.parametrize(
    ("kind", "arrow"), [(data_schema.DOUBLE, pa.float64()), (data_schema.FLOAT, pa.float32())]
)
def test_doubles(check, name, kind, arrow):
    boundaries = DOUBLE_BOUNDARIES[name]
    near = [np.nextafter(b, d) for b in boundaries for d in (-math.inf, math.inf)]
    odd = [0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 1.7976931348623157e308, 5e-324]
    with np.errstate(over="ignore"):
        values = np.array([*boundaries, *near, *odd]).astype(arrow.to_pandas_dtype())
    check(kind, boundaries, pa.array([*values.tolist(), None], arrow))


@pytest.mark.parametrize(
    ("precision", "scale"), [(10, 2), (18, 4), (18, 18), (28, 8), (38, 2), (38, 38)]
)
@pytest.mark.parametrize("count", [3, CASE_TREE_BOUNDARIES + 20])
def test_decimals(check, precision, scale, count):
    largest = 10**precision - 1
    boundaries = [largest // 3 + step for step in range(-count // 2, count // 2)]
    unscaled = [v for v in neighbors(boundaries, -largest, largest, 0) if abs(v) <= largest]
    values = [Decimal(f"{v}e-{scale}") for v in unscaled]
    check(
        data_schema.decimal(precision, scale),
        boundaries,
        pa.array([*values, None], pa.decimal128(precision, scale)),
    )


def test_small_decimals_of_a_wide_type(check):
    values = [Decimal(v).scaleb(-8) for v in neighbors([-150, 0, 10**15])]
    check(data_schema.decimal(28, 8), [-150, 0, 10**15], pa.array(values, pa.decimal128(28, 8)))


@pytest.mark.parametrize("count", [3, CASE_TREE_BOUNDARIES + 20])
def test_strings(check, count):
    words = ["", "B", "a", "ab", "Ä", "z", "\ud7ff", "\uffff", "\U0001f600"]
    words += [f"word{number:03}" for number in range(count)]
    boundaries = sorted(words[1:])
    values = [*words, *(word + "\x00" for word in words), *(word[:-1] for word in words), None]
    check(data_schema.STRING, boundaries, pa.array(values, pa.string()))


@pytest.mark.parametrize("count", [2, CASE_TREE_BOUNDARIES + 20])
def test_binary(check, count):
    boundaries = sorted({bytes([number * 3 % 256, 200]) for number in range(count)})
    values = [*boundaries, *(b + b"\x00" for b in boundaries), b"", b"\xff" * 4, None]
    check(data_schema.BINARY, boundaries, pa.array(values, pa.binary()))


def test_dates(check):
    values = pa.array([*neighbors([-1, 0, 19_000], -719_162, 2_932_896), None], pa.int32())
    check(data_schema.DATE, [-1, 0, 19_000], values.cast(pa.date32()))


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
@pytest.mark.parametrize("kind", [data_schema.TIMESTAMP, data_schema.TIMESTAMP_NTZ])
@pytest.mark.parametrize("boundaries", [[-1, 0, 1_700_000_000_000_000], [253_402_300_799_999_999]])
def test_timestamps(in_zone, check, zone, kind, boundaries):
    values = pa.array([*neighbors(boundaries, 1_667_712_600_000_000), None], pa.int64())
    arrow = pa.timestamp("us", tz="UTC" if kind is data_schema.TIMESTAMP else None)
    in_zone(zone)
    check(kind, boundaries, values.cast(arrow))


def test_random_longs_agree(check):
    rng = np.random.default_rng(7)
    boundaries = sorted({int(v) for v in rng.integers(-(2**53) + 1, 2**53, 500)})
    values = pa.array(np.concatenate([rng.integers(LONG_MIN, LONG_MAX, 2000), boundaries]))
    check(data_schema.LONG, boundaries, values)


BATCHES = 4


def sales_frame(spark, rows):
    """Spark Connect cannot infer types without rows."""
    if rows:
        return spark.createDataFrame(table_of(rows))
    columns = ", ".join(f"{column.name} {column.type}" for column in SALES.columns)
    return spark.createDataFrame([], columns)


@pytest.mark.parametrize("name", quarter_then_rest(QUERIES))
def test_the_maintained_sketch_equals_a_recaptured_one(spark, name):
    rng = random.Random(f"{name} 7")
    rows = [random_row(rng) for _ in range(20)]
    session = filled(name, rows)
    settings = kept(name)
    query, partitions, range_count = settings.query, settings.partitions, 0
    for _ in range(BATCHES):
        session.step({"sales": changes(rng, rows)})
        frame = sales_frame(spark, rows)
        inputs = {scan.access: frame for scan in query.root.scans}
        expected = capture_sketches(spark, query, settings.whole, partitions, inputs)
        for access, result in session.ranges().items():
            assert set(result.ids) == set(expected[access].ids), (name, rows)
            range_count += len(result.ids)
    assert range_count > 0
