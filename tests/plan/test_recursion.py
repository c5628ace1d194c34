"""Plans with fixpoints; plans compared with DuckDB and Spark."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import reduce
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pytest
from msgspec.structs import replace

from impctl.data.schema import LONG, Column
from impctl.errors import QueryError
from impctl.plan.explain import describe
from impctl.plan.fingerprint import fingerprint, template
from impctl.plan.lineage import moved_conditions, trace
from impctl.plan.nodes import Plan, Query, Recursive, Scan, Witness
from impctl.plan.properties import deciding_functions
from impctl.reuse.verdict import aligned, check_reuse
from impctl.rules.optimize import apply_rules, core_of
from impctl.rules.witnesses import witnessed
from impctl.safety.judge import Verdict, check_safety
from impctl.spark.capture import collect, sketch_passes
from impctl.spark.render import render_plan
from impctl.sql.statement import parse_query
from tests.plan.catalogs import (
    BY_REGION,
    CLOSURE,
    REACHED,
    edges_on_walks,
    fixpoints_of,
    links,
    listed,
    net_plan,
    read_net,
    ruled,
    schema_of,
)
from tests.plan.trials import accurate_sketches, instances_of
from tests.support.random_cases import quarter_then_rest, random_cases
from tests.support.reference_plan import annotate, bag, evaluate
from tests.support.run_cli import refused

NONLINEAR = (
    "WITH RECURSIVE c(x, y) AS (SELECT src, dst FROM links "
    "UNION SELECT a.x, b.y FROM c a JOIN c b ON a.y = b.x) "
)


def _edges(rng: Random) -> list[tuple[int, int]]:
    most = rng.choice((2, 3, 5))
    return [(rng.randint(1, most), rng.randint(1, most)) for _ in range(rng.randint(0, 7))]


@random_cases(10, 17, 400)
def test_reference_finds_reached_nodes_and_all_edges_to_them(cases: range) -> None:
    plan = net_plan(REACHED + "SELECT n FROM r")
    for seed in cases:
        edges = _edges(Random(seed))
        result = annotate(plan, {"links": links(*edges)})
        expected = edges_on_walks(edges, 1)
        rows = {row[0]: {index for _, index in lineage} for row, lineage in result.rows}
        assert rows == expected, seed
        assert len(result.rows) == len(rows)
        assert set(result.first_rows.values()) == {result.lineage}


@pytest.mark.parametrize("entry", [CLOSURE, NONLINEAR])
@random_cases(5, 9, 300)
def test_reference_finds_the_closure_in_every_formulation(cases: range, entry: str) -> None:
    plan = net_plan(entry + "SELECT x, y FROM c")
    for seed in cases:
        edges = _edges(Random(seed))
        walks = {start: edges_on_walks(edges, start) for start, _ in edges}
        expected = {(x, y) for x, reached in walks.items() for y in reached}
        result = annotate(plan, {"links": links(*edges)})
        assert {row for row, _ in result.rows} == expected, seed
        assert len(result.rows) == len(expected)
        for (x, y), lineage in result.rows:
            assert {index for _, index in lineage} == walks[x][y], seed


def test_all_nulls_are_one_row() -> None:
    rows: list[dict[str, Any]] = [{"t": None, "n": None}, {"t": 1, "n": None}]
    plan = net_plan(
        "WITH RECURSIVE r(n) AS (SELECT n FROM seeds UNION SELECT n FROM r) SELECT n FROM r"
    )
    ((row, lineage),) = annotate(plan, {"seeds": rows}).rows
    assert row == (None,)
    assert lineage == {("seeds#1", 0), ("seeds#1", 1)}


def test_fingerprints_ignore_only_names() -> None:
    base = REACHED + "SELECT n FROM r"
    renamed = base.replace("r(n)", "reached(node)").replace("FROM r", "FROM reached")
    renamed = renamed.replace("r.n", "reached.node").replace("SELECT n", "SELECT node")
    assert fingerprint(net_plan(renamed)) == fingerprint(net_plan(base))
    texts = [
        base,
        base.replace("src = 1", "src = 2"),
        base.replace("l.dst FROM", "l.src FROM"),
        base.replace("JOIN links l ON r.n = l.src", "JOIN links l ON r.n = l.dst"),
        base.replace("SELECT l.dst FROM r JOIN", "SELECT l.dst FROM nodes r JOIN"),
        "SELECT dst FROM links WHERE src = 1",
        CLOSURE + "SELECT x FROM c",
        NONLINEAR + "SELECT x FROM c",
    ]
    assert len({fingerprint(net_plan(text)) for text in texts}) == len(texts)
    assert template(net_plan(texts[1])) == template(net_plan(base))


TWO = (
    "WITH RECURSIVE a(n) AS (SELECT n FROM nodes UNION SELECT n + 1 FROM a WHERE n < 3), "
    "b(n) AS (SELECT n FROM nodes UNION SELECT n + 1 FROM b WHERE n < {}) "
    "SELECT 1 FROM {} x JOIN {} y ON x.n = y.n"
)


def test_one_entry_twice_differs_from_two() -> None:
    twice, both = (net_plan(TWO.format(3, "a", other)) for other in "ab")
    assert fingerprint(twice) != fingerprint(both)
    assert aligned(twice, both) is None
    assert aligned(both, twice) is None


def test_plans_of_one_shape_get_the_same_identities() -> None:
    plan = net_plan(REACHED.replace("src = 1", "src = 2") + "SELECT n FROM r")
    other = net_plan(
        REACHED.replace("r(n)", "q(n)").replace("r.n", "q.n").replace("FROM r", "FROM q")
        + "SELECT n FROM q"
    )
    result = aligned(plan, other)
    assert result is not None
    assert [one.id for one in fixpoints_of(result)] == ["q"]
    leaves = [node for node in result.walk() if isinstance(node, Recursive)]
    assert leaves == [node for node in other.walk() if isinstance(node, Recursive)]
    assert [scan.access for scan in result.scans] == [scan.access for scan in other.scans]


REUSE = REACHED + "SELECT COUNT(*) FROM r WHERE n < 9 HAVING COUNT(*) > 3"


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        # Constants above do not matter: all rows of the recursion are in the sketch.
        ("> 3", "> 5", True),
        ("> 3", "> 1", True),
        ("n < 9", "n < 100", True),
        ("n < 9", "n < 2", True),
        ("src = 1", "src = 2", False),
        ("src = 1", "src = 1 AND dst = 1", False),
    ],
)
def test_sketches_are_reusable_over_the_same_recursion(old: str, new: str, allowed: bool) -> None:
    captured, query = ruled(REUSE), ruled(REUSE.replace(old, new))
    assert check_reuse(query, captured, BY_REGION, ()).allowed is allowed


def test_stricter_constants_inside_are_refused() -> None:
    text = REACHED.replace("= l.src)", "= l.src WHERE l.cost < {})") + "SELECT n FROM r"
    captured, query = ruled(text.format(9)), ruled(text.format(5))
    verdict = check_reuse(query, captured, BY_REGION, ())
    assert not verdict.allowed
    assert verdict.reason == (
        "the constants inside WITH RECURSIVE differ, which changes what it derives"
    )


def test_tables_beside_the_recursion_follow_the_usual_rules() -> None:
    text = REACHED + "SELECT r.n FROM r JOIN nodes m ON r.n = m.n WHERE m.n < {}"
    columns = {**BY_REGION, "nodes#1": "kind"}
    for bound, accesses in ((5, {*columns}), (20, {*BY_REGION})):
        verdict = check_reuse(ruled(text.format(bound)), ruled(text.format(9)), columns, ())
        assert verdict.allowed
        assert {*verdict.accesses} == accesses, "tables with wider conditions are read whole"


@random_cases(7, 12, 300)
def test_reuse_gives_the_same_answer(cases: range) -> None:
    captured, query = ruled(REUSE), ruled(REUSE.replace("> 3", "< 3").replace("n < 9", "n < 4"))
    partitions: Any = dict.fromkeys(BY_REGION, ("src", (2, 3, 4)))
    for seed in cases:
        tables = {"links": links(*_edges(Random(seed)))}
        result = annotate(captured.root, tables)
        sketches = accurate_sketches(result, captured.root, tables, partitions)
        instances = instances_of(query.root, tables, partitions, sketches)
        whole = bag(evaluate(query.root, tables))
        assert bag(evaluate(query.root, tables, instances)) == whole, seed


def test_constants_moved_inside_only_move_table_rows() -> None:
    text = REACHED + "SELECT n FROM r"
    before, after = core_of(net_plan(text)), core_of(net_plan(text.replace("src = 1", "src = 2")))
    for is_open in (False, True):
        result = moved_conditions(before, after, is_open_above=is_open)
        assert result is not None
        assert set(result) == {"links#1"}
    for step in ("SELECT n + {} AS m FROM r", "SELECT n + 1 AS m FROM r WHERE n < {}"):
        text = f"WITH RECURSIVE r(n) AS (SELECT n FROM nodes UNION {step}) SELECT n FROM r"
        plans = [core_of(net_plan(text.format(number))) for number in (1, 2)]
        assert moved_conditions(*plans, is_open_above=True) is None
    above = [core_of(net_plan(f"{REACHED}SELECT n FROM r WHERE n * 2 > {c}")) for c in (1, 2)]
    assert moved_conditions(*above) is None
    assert moved_conditions(*above, is_open_above=True) == {}


def test_fixpoints_choose_derivations_instead_of_witnesses() -> None:
    sql = (
        "WITH RECURSIVE r(n) AS (SELECT src FROM links GROUP BY src "
        "UNION SELECT l.dst FROM r JOIN links l ON r.n = l.src) "
        "SELECT m.kind, MAX(r.n) FROM r JOIN nodes m ON r.n = m.n GROUP BY m.kind"
    )
    query = ruled(sql)
    columns = {"links#1": Column("dst", LONG), "nodes#1": Column("n", LONG)}
    sketched = {access: column.name for access, column in columns.items()}
    result = witnessed(query, check_safety(query, sketched, ()), columns)
    witnesses = [node for node in result.query.root.walk() if isinstance(node, Witness)]
    assert len(witnesses) == 1, "only above the fixpoint"
    (fixpoint,) = fixpoints_of(result.query.root)
    assert not any(isinstance(node, Witness) for node in fixpoint.walk())
    inside = list(query.root.walk()).index(fixpoints_of(query.root)[0])
    assert all(position <= inside for position in result.notes)
    assert "one derivation" in result.notes[inside]
    assert fixpoint.chooses
    assert fingerprint(query.root) == fingerprint(ruled(sql).root)
    assert fingerprint(replace(fixpoint, chooses=False)) != fingerprint(fixpoint)
    assert core_of(result.query.root) != core_of(query.root), "its state differs"


def test_unsketched_and_bag_fixpoints_choose_nothing() -> None:
    text = REACHED + "SELECT m.n FROM r JOIN nodes m ON r.n = m.n"
    for sql, access, column in (
        (text, "nodes#1", Column("n", LONG)),
        (text.replace("UNION", "UNION ALL"), "links#1", Column("dst", LONG)),
    ):
        query = ruled(sql)
        verdict = check_safety(query, {access: column.name}, ())
        assert verdict.safe
        result = witnessed(query, verdict, {access: column})
        (fixpoint,) = fixpoints_of(result.query.root)
        assert not fixpoint.chooses
        notes = [note for note in result.notes.values() if "UNION ALL counts" in note]
        assert bool(notes) == ("UNION ALL" in sql)


def test_order_dependent_calls_decide_in_a_fixpoint() -> None:
    plan = net_plan(
        "WITH RECURSIVE r(n) AS (SELECT FIRST(dst) FROM links UNION SELECT n FROM r) "
        "SELECT n FROM r"
    )
    assert [name for name, _ in deciding_functions(plan)] == ["first"]


def _captured(plan: Plan) -> object:
    scan = next(node for node in plan.walk() if isinstance(node, Scan))
    return collect(plan, scan, scan.attributes[0].id)


@pytest.mark.parametrize("run", [lambda plan: render_plan(plan, {}), _captured])
def test_spark_sql_is_refused(run: Callable[[Plan], object]) -> None:
    plan = net_plan(REACHED + "SELECT n FROM r")
    with refused(QueryError, "capture_unsupported", "WITH RECURSIVE"):
        run(plan)
    assert trace(plan, "links#1", Column("src", LONG)) is None


def _render_passes(query: Query, verdict: Verdict, columns: dict[str, Column]) -> None:
    for result in sketch_passes(query, verdict, columns):
        render_plan(result.rows, {scan.access: "v" for scan in query.root.scans})


@pytest.mark.parametrize(
    ("above", "access", "name"),
    [
        ("SELECT n FROM r", "links#1", "src"),
        ("SELECT m.n FROM r JOIN nodes m ON r.n = m.n", "nodes#1", "n"),
    ],
)
def test_spark_cannot_capture_over_a_recursion(above: str, access: str, name: str) -> None:
    query = read_net(REACHED + above)
    verdict = check_safety(query, {access: name}, ())
    with refused(QueryError, "capture_unsupported", "WITH RECURSIVE"):
        _render_passes(query, verdict, {access: Column(name, LONG)})


def test_first_rows_below_a_recursion_are_captured() -> None:
    query = read_net(
        "WITH RECURSIVE r(n) AS (SELECT n FROM (SELECT n FROM nodes ORDER BY n LIMIT 2) "
        "UNION SELECT l.dst FROM r JOIN links l ON r.n = l.src) SELECT n FROM r"
    )
    verdict = check_safety(query, {"nodes#1": "n"}, ())
    (result,) = sketch_passes(query, verdict, {"nodes#1": Column("n", LONG)})
    assert fixpoints_of(result.rows) == []
    assert [scan.access for scan in result.rows.scans] == ["nodes#1"]


def test_plans_with_a_fixpoint_as_text() -> None:
    lines = describe(core_of(net_plan(CLOSURE + "SELECT y FROM c WHERE x = 1")))
    (detail,) = [detail for _, _, operator, detail in lines if operator == "fixpoint"]
    assert detail == "c, each row once: x, y"
    assert read_net(CLOSURE + "SELECT y FROM c").tables == ("links",)


WALKS = (
    "WITH RECURSIVE r(s, n, l) AS (SELECT dst, dst, 0 FROM links WHERE src = 1 UNION ALL "
    "SELECT r.s, l.dst, r.l + 1 FROM r JOIN links l ON r.n = l.src WHERE r.l < 3) "
)
QUERIES = [
    text.format(WALKS=WALKS, REACHED=REACHED, CLOSURE=CLOSURE)
    for (text,) in listed("plans", "recursions in DuckDB")
]


def _tables(rng: Random) -> dict[str, list[dict[str, Any]]]:
    values = [*range(1, rng.choice((3, 5))), *([None] if rng.random() < 0.4 else [])]

    def value() -> int | None:
        return rng.choice(values)

    edges = links(*((value(), value()) for _ in range(rng.randint(0, 7))))
    nodes = [{"n": value(), "kind": "x"} for _ in range(rng.randint(0, 4))]
    seeds = [{"t": rng.randint(1, 3), "n": value()} for _ in range(rng.randint(0, 4))]
    return {"links": edges, "nodes": nodes, "seeds": seeds}


@pytest.fixture
def connection() -> Iterator[Any]:
    with duckdb.connect() as result:
        result.execute(
            "CREATE TABLE links (src BIGINT, dst BIGINT, cost INT, region VARCHAR, weight DOUBLE)"
        )
        result.execute("CREATE TABLE nodes (n BIGINT, kind VARCHAR)")
        result.execute("CREATE TABLE seeds (t BIGINT, n BIGINT)")
        yield result


@random_cases(1, 2, 150)
def test_answers_match_duckdb(cases: range, connection: Any) -> None:
    plans = [(sql, net_plan(sql)) for sql in QUERIES]
    rows = 0
    for seed in cases:
        tables = _tables(Random(seed))
        for name, content in tables.items():
            connection.execute(f"DELETE FROM {name}")
            for row in content:
                marks = ", ".join("?" * len(row))
                connection.execute(f"INSERT INTO {name} VALUES ({marks})", [*row.values()])
        for sql, plan in plans:
            expected = bag(connection.execute(sql).fetchall())
            rows += expected.total()
            assert bag(evaluate(plan, tables)) == expected, (seed, sql)
            assert bag(evaluate(apply_rules(plan), tables)) == expected, (seed, sql)
    assert rows > len(cases) * len(plans) // 2


COLUMNS = {
    "t": "a int, b int, s string, d date, m decimal(10,2), f double, g boolean, l bigint",
    "u": "a int, c int, s string, `my col` int",
}
CATALOG = {table: schema_of(columns) for table, columns in COLUMNS.items()}
_FILE = Path(__file__).parent / "golden" / "spark_queries.sql"
SPARK_QUERIES = [text.strip() for text in _FILE.read_text(encoding="utf-8").split(";\n")[:-1]]


def rows_of_t(rng: Random) -> list[tuple[Any, ...]]:
    """Few values of every type, with NULL, NaN, -0.0 and duplicates."""

    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.15 else value

    rows = [
        (
            maybe(rng.randint(0, 4)),
            maybe(rng.randint(-3, 8)),
            maybe(rng.choice(["x", "xy", "Zed", "it's"])),
            maybe(datetime.date(2022, 1, rng.randint(1, 6))),
            maybe(Decimal(rng.randint(-500, 500)) / 100),
            maybe(rng.choice([0.0, -0.0, 1.5, float("nan"), 2.25, -1.0])),
            maybe(rng.random() < 0.5),
            maybe(rng.randint(0, 10**6)),
        )
        for _ in range(40)
    ]
    return rows + rows[:6]


def rows_of_u(rng: Random) -> list[tuple[Any, ...]]:
    """Like `rows_of_t`, for the smaller table."""
    return [
        (
            rng.choice([None, 0, 1, 2, 3, 4]),
            rng.randint(-3, 8),
            rng.choice([None, "x", "xy", "q"]),
            rng.randint(0, 3),
        )
        for _ in range(12)
    ]


@pytest.fixture(scope="module")
def tables(spark: Any) -> Iterator[Any]:
    """A session with both tables as cached views."""
    rng = Random(5)
    for name, rows in (("t", rows_of_t(rng)), ("u", rows_of_u(rng))):
        spark.createDataFrame(rows, COLUMNS[name]).coalesce(1).createOrReplaceTempView(name)
        spark.catalog.cacheTable(name)
    yield spark
    for name in COLUMNS:
        spark.catalog.uncacheTable(name)
        spark.catalog.dropTempView(name)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if value != value else float(f"{value:.10g}") + 0.0
    return tuple(_plain(part) for part in value) if isinstance(value, list) else value


def _bags(frames: Sequence[Any]) -> list[Counter[tuple[Any, ...]]]:
    """The rows of each frame, by one query for all, because starting a query takes longest."""
    from pyspark.sql import functions as F

    numbered = [
        frame.toDF(*(f"c{index}" for index in range(len(frame.columns)))).withColumn(
            "which", F.lit(index)
        )
        for index, frame in enumerate(frames)
    ]
    bags: list[Counter[tuple[Any, ...]]] = [Counter() for _ in frames]
    for *row, which in reduce(lambda one, other: one.unionAll(other), numbered).collect():
        bags[which][tuple(map(_plain, row))] += 1
    return bags


def _rendered(plan: Plan) -> str:
    return render_plan(plan, {scan.access: scan.table for scan in plan.scans})


def test_there_are_queries() -> None:
    assert len(SPARK_QUERIES) > 100


@pytest.mark.spark
@pytest.mark.parametrize("sql", quarter_then_rest(SPARK_QUERIES))
def test_plans_match_spark(tables: Any, sql: str) -> None:
    frame = tables.sql(sql)
    plan = parse_query(sql, CATALOG).root
    ours = [item.type for item in plan.attributes]
    for kind, (name, theirs) in zip(ours, frame.dtypes, strict=True):
        assert kind is None or kind.spark_name == theirs, name
    texts = (_rendered(plan), _rendered(apply_rules(plan)))
    expected, *bags = _bags([frame, *map(tables.sql, texts)])
    assert bags == [expected, expected]


@pytest.mark.spark
@pytest.mark.parametrize("sql", [sql for sql in SPARK_QUERIES if " pivot (" in sql])
def test_pivot_columns_have_the_names_of_spark(tables: Any, sql: str) -> None:
    plan = parse_query(sql, CATALOG).root
    assert [item.name for item in plan.attributes] == tables.sql(sql).columns
