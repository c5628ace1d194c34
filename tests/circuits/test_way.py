"""Exact, touch or recapture, and what is said to stand in the way of better."""

from __future__ import annotations

from dataclasses import replace

import pytest

from impctl.compile.aggregates import read_calls
from impctl.compile.compile import Way, choose_way, compile_plan
from impctl.compile.flows import BlockedError
from impctl.data.schema import INTEGER, STRING
from impctl.engine.accumulators import FloatSum
from impctl.plan.nodes import Aggregate, Project, nodes_of, scans_of
from impctl.rules.optimize import apply_rules, core_of
from impctl.safety.judge import check_safety
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import Mode
from tests.plan.catalogs import read

EXACT = "every operator is maintained incrementally"
KEYED = "; each group lies in one range, so the ranges of changed rows are added"
PARTITIONS = {
    "brand": RangePartition("sales", "brand", STRING, ("g", "p")),
    "price": RangePartition("sales", "price", INTEGER, (100, 1000)),
}


def way_of(sql: str, attribute: str = "brand") -> Way:
    """As the program asks: by the plan without output columns, under the whole plan's verdict."""
    query = read(sql)
    whole, core = apply_rules(query.root), apply_rules(Project(query.root, ()))
    sketched = {s.access: attribute for s in scans_of(whole) if s.table == "sales"}
    verdict = check_safety(replace(query, root=whole), sketched, [])
    assert verdict.safe, verdict.reason
    partitions = dict.fromkeys(sketched, PARTITIONS[attribute])
    inner = check_safety(replace(query, root=core), sketched, verdict.assumptions)
    return choose_way(core, verdict, inner, partitions)


def marked(sql: str, way: Way) -> str | None:
    """The part of the text that is blamed."""
    return None if way.span is None else sql[way.span.start : way.span.end]


WINDOWS = (
    "SUM(price) OVER (PARTITION BY brand)",
    "AVG(price) OVER (PARTITION BY brand, price)",
    "MAX(price) OVER (PARTITION BY brand ORDER BY sid ROWS BETWEEN UNBOUNDED PRECEDING AND "
    "UNBOUNDED FOLLOWING)",
    "COUNT(*) OVER (PARTITION BY brand RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)",
    "STDDEV(price) OVER (PARTITION BY brand)",
)
RANKED = "RANK() OVER (PARTITION BY brand ORDER BY price)"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT brand, price FROM sales WHERE price > 3",
        "SELECT brand, SUM(price) FROM sales GROUP BY brand HAVING COUNT(*) > 2",
        "SELECT brand, AVG(rate) AS r FROM sales GROUP BY brand HAVING AVG(rate) > 2",
        "SELECT brand, SUM(cost) AS c FROM sales GROUP BY brand HAVING SUM(cost) > 2",
        "SELECT brand, MIN(price) FROM sales GROUP BY brand HAVING COUNT(*) > 2",
        "SELECT brand FROM (SELECT brand FROM sales ORDER BY price LIMIT 3) GROUP BY brand",
        f"SELECT brand FROM (SELECT brand, {RANKED} r FROM sales) WHERE r < 3",
        f"SELECT brand FROM sales QUALIFY {RANKED} < 3",
        *(
            f"SELECT brand FROM (SELECT brand, price, {call} w FROM sales) WHERE price > w"
            for call in WINDOWS
        ),
        *(f"SELECT brand FROM sales QUALIFY price > {call}" for call in WINDOWS),
        *(f"SELECT brand, price, {call} w FROM sales WHERE price > 1" for call in WINDOWS),
        "SELECT DISTINCT brand FROM sales",
        "SELECT brand FROM sales ORDER BY price DESC, brand LIMIT 3",
        "SELECT brand FROM sales GROUP BY brand HAVING MAX(price) > 2 AND MIN(rate) < 1",
        "SELECT brand FROM sales GROUP BY brand HAVING COUNT(DISTINCT price) > 2",
        "SELECT brand FROM sales GROUP BY brand HAVING COUNT(*) FILTER (WHERE price > 2) > 2",
        "SELECT brand FROM sales GROUP BY brand HAVING BOOL_OR(price > 2)",
        "SELECT price FROM sales GROUP BY price HAVING MAX(brand) > 'a'",
        "SELECT brand FROM sales GROUP BY brand HAVING STDDEV(price) > 2 OR VAR_POP(rate) < 1",
        "SELECT brand FROM sales GROUP BY brand HAVING MIN_BY(price, rate) > 2",
        "SELECT s.brand FROM sales s JOIN stock t ON s.brand = t.brand",
        "SELECT s.brand FROM sales s LEFT JOIN stock t ON s.brand = t.brand",
        "SELECT brand FROM sales WHERE brand IN (SELECT brand FROM stock)",
        "SELECT brand FROM sales WHERE brand NOT IN (SELECT brand FROM stock)",
        "SELECT brand FROM sales EXCEPT SELECT brand FROM stock",
        "SELECT brand FROM sales EXCEPT ALL SELECT brand FROM stock",
        "SELECT brand FROM sales GROUP BY ROLLUP(brand) HAVING COUNT(*) > 2",
        "SELECT a.brand FROM sales a, sales b WHERE a.brand = b.brand AND a.price < b.price",
    ],
)
def test_exact(sql: str) -> None:
    way = way_of(sql)
    assert (way.mode, way.reason, way.span) == (Mode.EXACT, EXACT, None)
    assert way.compiled is not None
    for source in way.compiled.sources:
        sketched = {"sales": [PARTITIONS["brand"]], "stock": []}
        assert list(source.scan.partitions) == sketched[source.table]


@pytest.mark.parametrize("attribute", ["brand", "price"])
def test_the_ranges_of_the_attribute_are_those_of_what_runs(attribute: str) -> None:
    compiled = way_of("SELECT brand, price FROM sales WHERE price > 3", attribute).compiled
    assert compiled is not None
    assert list(compiled.sources[0].scan.partitions) == [PARTITIONS[attribute]]


@pytest.mark.parametrize(
    ("sql", "reason", "part"),
    [
        (
            "SELECT brand FROM sales GROUP BY brand HAVING MEDIAN(price) > 2",
            "the engine does not support MEDIAN",
            "MEDIAN(price)",
        ),
        (
            "SELECT brand FROM sales GROUP BY brand HAVING COUNT(DISTINCT price, brand) > 2",
            "the engine does not support COUNT of several columns",
            "COUNT(DISTINCT price, brand)",
        ),
        (
            "SELECT brand FROM sales WHERE md5(brand) = 'A'",
            "the engine does not support function `md5`",
            "md5(brand)",
        ),
        (
            "SELECT brand FROM (SELECT brand, SUM(price) OVER (PARTITION BY brand ORDER BY sid) s "
            "FROM sales) WHERE s > 2",
            "the engine does not support SUM over part of a window's partition",
            "SUM(price) OVER (PARTITION BY brand ORDER BY sid)",
        ),
        (
            "SELECT brand FROM (SELECT brand, price, SUM(price) OVER (PARTITION BY brand) s, "
            "NTILE(3) OVER (PARTITION BY brand ORDER BY sid) l FROM sales) WHERE s > 2 OR l > 1",
            "the engine does not support NTILE",
            "NTILE(3) OVER (PARTITION BY brand ORDER BY sid)",
        ),
    ],
)
def test_touch_where_the_sketch_is_keyed(sql: str, reason: str, part: str) -> None:
    way = way_of(sql)
    assert (way.mode, way.reason, way.compiled) == (Mode.TOUCH, reason + KEYED, None)
    assert marked(sql, way) == part


def test_recapture_where_it_is_not() -> None:
    sql = "SELECT price FROM sales WHERE md5(brand) > 'a' GROUP BY price HAVING COUNT(*) > 2"
    way = way_of(sql, "brand")
    assert (way.mode, way.compiled) == (Mode.RECAPTURE, None)
    assert way.reason == "the engine does not support function `md5`"
    assert marked(sql, way) == "md5(brand)"
    assert way_of(sql, "price").mode is Mode.TOUCH


def test_touch_is_for_one_table_only() -> None:
    """Rows of the other table may bring old rows into the answer."""
    keyed = (
        "SELECT s.brand FROM sales s JOIN stock t ON s.brand = t.brand"
        " GROUP BY s.brand HAVING MEDIAN(s.price) > 1"
    )
    assert way_of(keyed).mode is Mode.RECAPTURE


def test_no_sketch_no_way() -> None:
    query = read("SELECT brand FROM sales")
    core = apply_rules(Project(query.root, ()))
    verdict = check_safety(query, {}, [])
    way = choose_way(core, verdict, verdict, {})
    assert way.reason.startswith("the query has no sketch to maintain")
    assert way.mode is not Mode.EXACT


SUMS = "SELECT brand, SUM(rate) AS s FROM sales GROUP BY brand"
OPEN = "SELECT brand FROM sales GROUP BY brand HAVING SUM(rate) > 2"


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT brand FROM ({OPEN}) ORDER BY brand LIMIT 2",
        f"SELECT brand FROM stock EXCEPT {OPEN}",
        f"{OPEN} INTERSECT SELECT brand FROM stock",
        f"SELECT brand FROM stock WHERE brand NOT IN ({OPEN})",
        f"SELECT q.brand FROM ({OPEN}) q WHERE NOT EXISTS"
        " (SELECT 1 FROM stock WHERE stock.brand = q.brand)",
        "SELECT DISTINCT price FROM (SELECT price FROM sales GROUP BY price, brand"
        " HAVING SUM(rate) > 2)",
        f"SELECT q.s, shelf FROM ({SUMS}) q JOIN stock ON q.brand = stock.brand",
        f"SELECT q.s FROM ({SUMS}) q JOIN stock ON q.brand = stock.brand AND q.s > stock.shelf",
        f"SELECT s FROM ({SUMS}) ORDER BY s LIMIT 2",
        f"SELECT brand FROM ({SUMS}) ORDER BY brand, s DESC LIMIT 2 OFFSET 1",
        f"SELECT brand FROM (SELECT brand, RANK() OVER (ORDER BY s) r FROM ({SUMS})) WHERE r < 3",
        f"SELECT brand, s FROM ({SUMS}) UNION ALL SELECT brand, 1.0D FROM stock",
        f"SELECT q.s, shelf FROM ({SUMS}) q LEFT JOIN stock ON q.brand = stock.brand WHERE s > 1",
        f"SELECT shelf, s FROM stock RIGHT JOIN ({SUMS}) q ON q.brand = stock.brand WHERE s > 1",
        f"SELECT brand, s FROM ({SUMS}) EXCEPT SELECT brand, 1.0D FROM stock",
        f"SELECT DISTINCT s FROM ({SUMS}) WHERE s > 1",
        f"SELECT MAX(s) AS m FROM ({SUMS}) HAVING MAX(s) > 1",
        f"SELECT s, COUNT(*) AS n FROM ({SUMS}) GROUP BY s HAVING COUNT(*) > 1",
        f"SELECT brand FROM (SELECT brand, s FROM ({SUMS}) ORDER BY s LIMIT 2) "
        "GROUP BY brand HAVING COUNT(*) < 2",
        f"SELECT q.brand FROM (SELECT brand, s FROM ({SUMS}) ORDER BY s LIMIT 2) q JOIN stock "
        "ON q.brand = stock.brand AND q.s > stock.shelf",
        f"SELECT brand FROM (SELECT brand, s FROM ({SUMS}) ORDER BY s LIMIT 2 OFFSET 1) "
        "GROUP BY brand HAVING COUNT(*) < 2",
        "SELECT brand FROM (SELECT brand, DENSE_RANK() OVER (ORDER BY s) r "
        f"FROM ({SUMS})) WHERE r < 3",
    ],
)
def test_sums_of_doubles_are_refused_only_where_they_come_too_close(sql: str) -> None:
    """Bounds travel; below a grouping a condition that is too close to call is an error then."""
    root = core_of(apply_rules(read(sql).root))
    sketched = {s.access: PARTITIONS["brand"] for s in scans_of(root) if s.table == "sales"}
    assert compile_plan(root, sketched, {}).accesses


def test_what_is_not_fixed_goes_no_further() -> None:
    """A row too many there could make a sketch too small."""
    best = "SELECT brand, MAX_BY(price, numSold) AS m FROM sales GROUP BY brand"
    root = apply_rules(read(f"SELECT m, COUNT(*) AS n FROM ({best}) GROUP BY m").root)
    sketched = {s.access: PARTITIONS["brand"] for s in scans_of(root) if s.table == "sales"}
    with pytest.raises(BlockedError) as blocked:
        compile_plan(root, sketched, {})
    assert blocked.value.message == (
        "the engine does not support MAX_BY below another grouping or a LIMIT, because rows may tie"
    )


def test_a_sum_that_did_not_come_this_far_is_no_column() -> None:
    sql = (
        "SELECT brand FROM (SELECT brand, s, RANK() OVER (PARTITION BY brand ORDER BY s) r "
        f"FROM ({SUMS})) WHERE r < 3 AND s > 5"
    )
    root = apply_rules(read(sql).root)
    sketched = {s.access: PARTITIONS["brand"] for s in scans_of(root)}
    with pytest.raises(
        BlockedError,
        match="the engine does not support using a sum of doubles above a LIMIT",
    ):
        compile_plan(root, sketched, {}, barriers=())


@pytest.mark.parametrize(("argument", "is_whole"), [("price", True), ("cost", False)])
def test_only_sums_of_whole_numbers_are_exact_as_doubles(argument: str, is_whole: bool) -> None:
    sql = f"SELECT brand, SUM(CAST({argument} AS DOUBLE)) AS s FROM sales GROUP BY brand"
    node = next(n for n in nodes_of(read(sql).root) if isinstance(n, Aggregate))
    (part,) = (column.accumulator for column in read_calls(node).columns)
    assert isinstance(part, FloatSum)
    assert part.integral is is_whole
