"""Subtle errors in shapes; columns with bounds; trees as text."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest

from impctl.compile.jointree.graph import NoTree, Reason, TreeShape, bounded_columns
from impctl.compile.jointree.shape import TreeNodeEntry, tree_lines, tree_nodes
from impctl.engine.jointree.spec import Edge
from impctl.plan.explain import expr_text
from impctl.plan.nodes import Select
from impctl.sql.statement import parse_query
from tests.compile.jointree.shapes import (
    CATALOG,
    core,
    pairs,
    rejoined,
    shape_of,
    shape_text,
    tree_shape,
)
from tests.support.reference_plan import annotate

HAVING = "GROUP BY r.d HAVING COUNT(*) > 1"


def tree_of(sql: str) -> TreeShape:
    shape = shape_of(sql)
    assert isinstance(shape, TreeShape), shape
    return shape


def blamed(sql: str) -> tuple[Reason, str]:
    shape = shape_of(sql)
    assert isinstance(shape, NoTree), shape
    assert shape.text
    return shape.reason, "" if shape.span is None else sql[shape.span.start : shape.span.end]


def conditions(shape: TreeShape, access: str) -> list[str]:
    """The conditions on the rows of the node with this access."""
    (node,) = (node for node in shape.nodes if access in node.accesses)
    assert node.rows is not None
    return [expr_text(one.predicate) for one in node.rows.walk() if isinstance(one, Select)]


def null_safe(sql: str) -> list[tuple[bool, ...]]:
    return [node.null_safe for node in tree_of(sql).nodes[:-1]]


def test_equal_columns_and_null_safety() -> None:
    both = f"SELECT r.d FROM r JOIN s ON r.a <=> s.a JOIN t ON t.a <=> s.a {HAVING}"
    assert null_safe(both) == [(True,), (True,)]
    one = f"SELECT r.d FROM r JOIN s ON r.a <=> s.a JOIN t ON t.a = s.a {HAVING}"
    assert null_safe(one) == [(False,), (False,)]
    twice = f"SELECT r.d FROM r JOIN s ON r.a <=> s.a AND r.b = s.b {HAVING}"
    assert sorted(null_safe(twice)[0]) == [False, True]
    plain = tree_of(f"SELECT r.d FROM r JOIN s ON r.a = s.a AND r.b = s.a {HAVING}")
    assert [len(node.key) for node in plain.nodes[:-1]] == [1]
    assert len(conditions(plain, "r#1")) == 1
    assert " = " in conditions(plain, "r#1")[0]
    safe = tree_of(f"SELECT r.d FROM r JOIN s ON r.a <=> s.a AND r.b <=> s.a {HAVING}")
    assert " <=> " in conditions(safe, "r#1")[0]


def test_bags_apply_equalities_implied_by_other_tables() -> None:
    """`r` and `s` are one bag. Both equal the column of `t`, though no condition compares them."""
    sql = f"SELECT r.d FROM r, s, t WHERE r.a = t.a AND s.a = t.a AND r.b < s.b {HAVING}"
    assert shape_text(sql) == "ring r+s{a,d}(t{a} on a)"
    tables = {
        name: [{**{c.name: None for c in CATALOG[name]}, "a": a, "b": b, "d": 1}]
        for name, a, b in (("r", 1, 1), ("s", 2, 2), ("t", 1, 1))
    }
    root = core(sql.replace("> 1", "> 0"))
    shape = tree_shape(root)
    assert isinstance(shape, TreeShape)
    assert annotate(root, tables).lineage == frozenset()
    assert annotate(rejoined(root, shape), tables).lineage == frozenset()


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("r.i = s.a", "ring r{i,d}(s{a} on a)"),
        ("r.name = s.a", "one_bag: r.name = s.a"),
        ("r.rate = s.a", "one_bag: r.rate = s.a"),
        ("r.cost = s.a", "one_bag: r.cost = s.a"),
        ("r.name = s.name", "ring r{name,d}(s{name} on name)"),
        ("r.day = s.day", "ring r{day,d}(s{day} on day)"),
        ("r.rate = s.rate", "ring r{rate,d}(s{rate} on rate)"),
    ],
)
def test_only_integral_types_join_with_other_types(condition: str, expected: str) -> None:
    assert shape_text(f"SELECT r.d FROM r JOIN s ON {condition} {HAVING}") == expected


def test_keys_of_groups_with_another_type_and_of_cross_joins() -> None:
    shape = tree_of("SELECT r.i FROM r JOIN s ON r.i = s.a GROUP BY r.i, s.a HAVING COUNT(*) > 1")
    assert shape.root.rows is None
    assert shape.groups == (0, 0)
    assert shape.root.key == (0,)
    sql = f"SELECT r.d FROM r CROSS JOIN s JOIN t ON t.a = s.a {HAVING}"
    assert shape_text(sql) == "ring r{d}(s{a}(t{a} on a) on -)"
    assert null_safe(sql) == [(False,), ()]


SHAPES = """\
/* A cross join hangs on a bag and not on a virtual root */ SELECT r.a FROM r JOIN s ON r.a = s.a
CROSS JOIN t GROUP BY r.a HAVING COUNT(*) > 1
    ring [a](r{a}(t{} on -) on a; s{a} on a)
/* Group columns of two bags merge those on the way */ SELECT 1 FROM r JOIN s ON r.a = s.a JOIN t
ON s.b = t.b JOIN u ON t.c = u.c GROUP BY r.d, t.d HAVING COUNT(*) > 1
    ring r+s+t{c,d,d}(u{c} on c)
/* Of all bags */ SELECT 1 FROM r JOIN s ON r.a = s.a JOIN t ON s.b = t.b JOIN u ON t.c = u.c
GROUP BY r.d, u.d HAVING COUNT(*) > 1
    one_bag: r.d
/* The bag with most group columns is where merging starts */ SELECT 1 FROM r JOIN s ON r.a = s.a
JOIN t ON s.b = t.b JOIN u ON t.c = u.c GROUP BY t.d, t.e, u.d HAVING COUNT(*) > 1
    ring t+u{b,d,e,d}(s{a,b}(r{a} on a) on b)
/* Of several bags with a group column the nearest is merged */ SELECT 1 FROM r JOIN s
ON r.a = s.a JOIN t ON s.b = t.b JOIN u ON t.c = u.c GROUP BY r.d, t.b HAVING COUNT(*) > 1
    ring r+s{b,d}(t{b,c}(u{c} on c) on b)
/* A virtual root has all group columns in two bags */ SELECT 1 FROM r JOIN s ON r.a = s.a
AND r.b = s.b GROUP BY r.a, s.b HAVING COUNT(*) > 1
    ring [a,b](r{a,b} on a,b; s{a,b} on a,b)
/* In one bag */ SELECT 1 FROM r JOIN s ON r.a = s.a GROUP BY r.a, s.b HAVING COUNT(*) > 1
    ring s{a,b}(r{a} on a)
/* A computed one */ SELECT 1 FROM r JOIN s ON r.a = s.a GROUP BY r.a + 1 HAVING COUNT(*) > 1
    ring r{a,a + 1}(s{a} on a)
/* Without a decision group columns do not matter */ SELECT r.d, t.d, MEDIAN(s.c / r.c) FROM r
JOIN s ON r.a = s.a JOIN t ON s.b = t.b GROUP BY r.d, t.d
    bits s{a,b}(r{a} on a; t{b} on b)
/* Nor those of a cube */ SELECT r.d, t.d, COUNT(*) FROM r JOIN s ON r.a = s.a JOIN t ON s.b = t.b
GROUP BY CUBE(r.d, t.d)
    bits s{a,b}(r{a} on a; t{b} on b)
/* A constant of the padded side is NULL without a partner */ SELECT r.d FROM r
LEFT JOIN (SELECT s.a, 1 AS one FROM s JOIN t ON s.b = t.b) q ON r.a = q.a GROUP BY r.d
HAVING SUM(q.one) > 3
    ring r{a,d}(left s{b,a}(t{b} on b) on a)
/* Semi and anti edges hang on the one relation they look at */ SELECT r.d FROM r JOIN s
ON r.a = s.a WHERE NOT EXISTS (SELECT 1 FROM t WHERE t.a = s.c) AND EXISTS (SELECT 1 FROM u
WHERE u.a = r.c AND u.b = 3) GROUP BY r.d HAVING COUNT(*) > 1
    ring r{a,c,d}(s{a,c}(anti t{a} on a) on a; semi u{a} on a)
/* An edge that compares columns of two relations makes them one bag */ SELECT r.d FROM r JOIN s
ON r.a = s.a JOIN u ON u.e = r.e WHERE EXISTS (SELECT 1 FROM t WHERE t.a = s.c AND t.b = r.c)
GROUP BY r.d HAVING COUNT(*) > 1
    ring r+s{e,c,c,d}(u{e} on e; semi t{a,b} on a,b)
/* Copies on the other side of a semi edge do not matter */ SELECT r.d FROM r
WHERE r.a IN (SELECT DISTINCT s.a FROM s JOIN t ON s.b = t.b) GROUP BY r.d HAVING COUNT(*) > 1
    ring r{a,d}(semi s{b,a}(t{b} on b) on a)
/* Those of a padded side do */ SELECT r.d FROM r LEFT JOIN (SELECT DISTINCT s.a FROM s JOIN t
ON s.b = t.b) q ON r.a = q.a GROUP BY r.d HAVING COUNT(*) > 1
    ring r{a,d}(left s+t{a} on a)
/* Conditions above the joins that may fail wait */ SELECT r.d FROM r JOIN s ON r.a = s.a
WHERE s.b / s.c > 2 GROUP BY r.d HAVING COUNT(*) > 1
    may_fail: s.b / s.c
/* The other side of an edge is one node where it has such conditions */ SELECT r.d FROM r
WHERE EXISTS (SELECT 1 FROM t JOIN u ON t.b = u.b WHERE t.a = r.a AND t.c / t.d > 2) GROUP BY r.d
HAVING COUNT(*) > 1
    ring r{a,d}(semi t+u{a} on a)
/* Exact sums are looked up by */ SELECT r.d FROM r JOIN (SELECT a, SUM(rate) AS x, SUM(b) AS y
FROM s GROUP BY a) q ON r.b = q.y JOIN t ON t.a = r.a GROUP BY r.d HAVING COUNT(*) > 1
    ring r{b,a,d}(s{y} on y; t{a} on a)
/* Sums of doubles are not */ SELECT r.d FROM r JOIN (SELECT a, SUM(rate) AS x, SUM(b) AS y FROM s
GROUP BY a) q ON r.rate = q.x JOIN t ON t.a = r.a GROUP BY r.d HAVING COUNT(*) > 1
    ring r+s{a,d}(t{a} on a)
/* Nor compared */ SELECT 1 FROM r JOIN (SELECT a, SUM(rate) AS x, SUM(b) AS y FROM s GROUP BY a)
q ON r.a = q.a GROUP BY r.d HAVING MAX(q.x) > 1
    unsure: q.x
"""


@pytest.mark.parametrize(("sql", "expected"), pairs(SHAPES))
def test_tree_shapes(sql: str, expected: str) -> None:
    assert shape_text(sql) == expected


@pytest.mark.parametrize(
    ("call", "is_edge"),
    [
        ("COUNT(*)", True),
        ("COUNT(s.b)", True),
        ("SUM(s.b * 2)", True),
        ("SUM(CASE WHEN s.b > 1 THEN s.c END)", True),
        ("COUNT(*) FILTER (WHERE s.b > 1)", True),
        ("SUM(s.b) FILTER (WHERE s.c > 1)", True),
        ("SUM(CASE WHEN s.b > 1 THEN 1 ELSE 2 END)", False),
        ("SUM(COALESCE(s.b, 1))", False),
        ("COUNT(*) FILTER (WHERE s.b IS NULL)", False),
        ("COUNT(s.b <=> NULL)", False),
        ("SUM(s.b + r.b)", False),
    ],
)
def test_arguments_with_a_value_on_padding_need_padded_rows(call: str, is_edge: bool) -> None:
    """Padding gives such an argument a value, which an edge cannot represent."""
    sql = f"SELECT r.d FROM r LEFT JOIN s ON r.a = s.a GROUP BY r.d HAVING {call} > 3"
    shape = shape_of(sql)
    assert isinstance(shape, TreeShape) == is_edge
    if isinstance(shape, TreeShape):
        assert shape.nodes[0].edge is Edge.LEFT


@pytest.mark.parametrize(
    "above",
    [
        "WHERE s.b IS NULL GROUP BY r.d",
        "JOIN t ON t.c = s.c GROUP BY r.d",
        "LEFT JOIN t ON t.c = s.c GROUP BY r.d",
        "WHERE EXISTS (SELECT 1 FROM t WHERE t.c <=> s.c) GROUP BY r.d",
        "GROUP BY s.d",
    ],
)
def test_reading_the_padded_side_above_merges_the_bags(above: str) -> None:
    sql = f"SELECT 1 FROM r LEFT JOIN s ON r.a = s.a {above} HAVING COUNT(*) > 3"
    shape = shape_of(sql)
    if isinstance(shape, TreeShape):
        assert any({"r#1", "s#1"} <= set(node.accesses) for node in shape.nodes)
    else:
        assert shape.reason is Reason.ONE_BAG


@pytest.mark.parametrize(
    "exists",
    [
        "EXISTS (SELECT 1 FROM t WHERE t.a = r.c AND t.b < r.b)",
        "EXISTS (SELECT 1 FROM t WHERE t.a = r.c AND t.a = r.b)",
        "EXISTS (SELECT 1 FROM t WHERE t.a = r.c AND t.b = r.c)",
        "NOT EXISTS (SELECT 1 FROM t WHERE t.a = r.c AND r.b > 2)",
        "r.c NOT IN (SELECT a FROM t)",
        "EXISTS (SELECT 1 FROM t WHERE t.name = r.c)",
    ],
)
def test_semi_joins_with_other_conditions_merge_bags(exists: str) -> None:
    sql = f"SELECT r.d FROM r JOIN s ON r.a = s.a WHERE {exists} {HAVING}"
    assert shape_text(sql) == "ring r+t{a,d}(s{a} on a)"


@pytest.mark.parametrize(
    ("call", "is_late"),
    [
        ("SUM(s.a * s.b - s.c)", False),
        ("SUM(s.a / 7)", False),
        ("SUM(s.a / 0)", True),
        ("SUM(s.a / s.b)", True),
        ("SUM(s.a % s.b)", True),
        ("SUM(CAST(s.name AS INT))", True),
        ("COUNT(substring(s.name, 1, 2))", False),
        ("COUNT(sqrt(s.a))", True),
        ("SUM(CAST(s.cost AS DOUBLE))", False),
    ],
)
def test_fallible_arguments_prevent_a_tree(call: str, is_late: bool) -> None:
    sql = f"SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY r.d HAVING {call} > 3"
    shape = shape_of(sql)
    assert isinstance(shape, NoTree) == is_late
    if isinstance(shape, NoTree):
        assert shape.reason is Reason.MAY_FAIL


@pytest.mark.parametrize("truth", ["1 = 2", "1 = 1"])
def test_constant_conditions_are_applied(truth: str) -> None:
    sql = f"SELECT r.d FROM r JOIN s ON r.a = s.a AND {truth} GROUP BY r.d HAVING COUNT(*) > 0"
    row = {**{column.name: None for column in CATALOG["r"]}, "a": 1, "d": 1}
    tables = {"r": [row], "s": [row]}
    root = core(sql)
    shape = tree_shape(root)
    assert isinstance(shape, TreeShape)
    expected = annotate(root, tables).lineage
    assert len(expected) == (2 if truth == "1 = 1" else 0)
    assert annotate(rejoined(root, shape), tables).lineage == expected


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT n FROM (SELECT r.d, COUNT(*) AS n FROM r JOIN s ON r.a = s.a GROUP BY r.d) "
        "GROUP BY n HAVING COUNT(*) > 2",
        "SELECT r.d FROM r JOIN s ON r.a = s.a ORDER BY r.d LIMIT 3",
        "SELECT DISTINCT d FROM (SELECT r.d, COUNT(*) AS n FROM r JOIN s ON r.a = s.a GROUP BY r.d "
        "ORDER BY n LIMIT 3)",
        "SELECT DISTINCT COUNT(*) AS n FROM r JOIN s ON r.a = s.a GROUP BY r.d ORDER BY n LIMIT 3",
        "SELECT r.d FROM r JOIN s ON r.a = s.a GROUP BY ROLLUP(r.d) HAVING COUNT(*) > 1",
        "SELECT d FROM (SELECT r.d FROM r JOIN s ON r.a = s.a EXCEPT SELECT d FROM t)",
        "SELECT r.d FROM r JOIN s ON r.a = s.a QUALIFY SUM(s.b) OVER (PARTITION BY r.d) > 2",
    ],
)
def test_blocks_not_at_the_top_have_no_tree(sql: str) -> None:
    assert blamed(sql)[0] is Reason.NOT_AT_THE_TOP


def test_union_branches_have_separate_trees() -> None:
    one, other = (
        f"SELECT {x}.d FROM {x} JOIN {y} ON {x}.a = {y}.a" for x, y in (("r", "s"), ("t", "u"))
    )
    assert shape_text(f"{one} UNION ALL {other} GROUP BY t.d HAVING COUNT(*) > 2") == (
        "bits r{a}(s{a} on a) | ring t{a,d}(u{a} on a)"
    )
    limited = f"({one} GROUP BY r.d ORDER BY COUNT(*) LIMIT 2) UNION ALL {other}"
    assert shape_text(limited).startswith("not_at_the_top: ")
    assert shape_text(limited).endswith(" | bits t{a}(u{a} on a)")


JOINED = (
    ("r.a = s.a", "s.b = t.b", "t.c = u.c"),
    ("r.a = s.a", "r.b = t.b", "r.c = u.c"),
    ("r.a = s.a", "s.a = t.a", "t.a = u.a"),
    ("r.a = s.a", "s.b = t.b", "t.c = r.c", "u.d = t.d"),
    ("r.a = s.a", "s.b < t.b", "t.c = u.c"),
)


@pytest.mark.slow
@pytest.mark.parametrize("parts", JOINED)
@pytest.mark.parametrize("end", ["", " GROUP BY r.e HAVING SUM(u.f) > 1"])
def test_the_order_in_from_does_not_matter(parts: tuple[str, ...], end: str) -> None:
    """It only chooses among trees with the same bags and height."""
    rng = Random(f"{parts} {end}")
    result = set()
    for order in rng.sample([*permutations("rstu")], 8):
        where = [*parts]
        rng.shuffle(where)
        sql = f"SELECT 1 FROM {', '.join(order)} WHERE {' AND '.join(where)}{end}"
        shape = shape_of(sql)
        if isinstance(shape, NoTree):
            result.add((str(shape.reason), 0, frozenset[object]()))
            continue
        bags = frozenset(frozenset(node.accesses) for node in shape.nodes)
        result.add((str(shape.mode), shape.height, bags))
    assert len(result) == 1


def test_names_do_not_matter() -> None:
    """Neither aliases nor table names."""
    plain = (
        "SELECT 1 FROM r JOIN s ON r.a = s.a JOIN t ON t.b = s.b GROUP BY r.a HAVING SUM(t.c) > 1"
    )
    named = (
        "SELECT 1 FROM r z JOIN s y ON z.a = y.a JOIN t x ON x.b = y.b "
        "GROUP BY z.a HAVING SUM(x.c) > 1"
    )
    assert shape_text(named) == shape_text(plain)
    others = {"r": "zz", "s": "mm", "t": "aa"}
    catalog = {new: CATALOG[old] for old, new in others.items()}
    sql, expected = plain, shape_text(plain)
    for old, new in others.items():
        sql = sql.replace(f"{old}.", f"{new}.").replace(f" {old} ", f" {new} ")
        expected = expected.replace(f"{old}{{", f"{new}{{")
    assert shape_text(sql, catalog) == expected


SUMS = "(SELECT a, c, SUM(rate) AS x, SUM(b) AS y, MAX(rate) AS m FROM r GROUP BY a, c)"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (f"SELECT a, x, y, m FROM {SUMS}", "x"),
        (f"SELECT x + 1 AS z, y + 1 AS n, CASE WHEN x > 1 THEN a END AS w FROM {SUMS}", "z w"),
        (f"SELECT a, MAX(x) AS z, COUNT(*) AS n, MAX(y) AS k FROM {SUMS} GROUP BY a", "z"),
        (f"SELECT x, COUNT(*) FILTER (WHERE x > 1) AS n FROM {SUMS} GROUP BY x", "x n"),
        (f"SELECT x, y, SUM(m) OVER (PARTITION BY a) AS w FROM {SUMS}", "x w"),
        (f"SELECT y, MAX(x) OVER (PARTITION BY a) AS w FROM {SUMS}", "w"),
        (f"SELECT x AS z, m AS n FROM {SUMS} UNION ALL SELECT rate, rate FROM s", "z"),
        (f"SELECT rate AS z, rate AS n FROM s UNION ALL SELECT x, m FROM {SUMS}", "z"),
        (f"SELECT q.x, s.rate FROM {SUMS} q JOIN s ON q.a = s.a WHERE q.x > 2", "x"),
        ("SELECT STDDEV(b) AS d, AVG(cost) AS e, SUM(cost) AS f FROM r", "d"),
    ],
)
def test_bounded_columns(sql: str, expected: str) -> None:
    root = parse_query(sql, CATALOG).root
    result = bounded_columns(root)
    assert [a.name for a in root.attributes if a.id in result] == expected.split()


def tree_and_nodes(sql: str, **sketched: str) -> tuple[TreeShape, tuple[TreeNodeEntry, ...]]:
    shape = shape_of(sql)
    assert isinstance(shape, TreeShape)
    return shape, tree_nodes(shape, {f"{table}#1": name for table, name in sketched.items()})


def lines(sql: str, **sketched: str) -> str:
    return "\n".join(tree_lines(*tree_and_nodes(sql, **sketched)))


def ranges(sql: str, **sketched: str) -> dict[tuple[str, ...], list[str]]:
    _, nodes = tree_and_nodes(sql, **sketched)
    return {node.bag: [how for _, how in node.ranges] for node in nodes if node.ranges}


def test_text_of_each_kind_of_root() -> None:
    sql = "SELECT r.a FROM s JOIN r ON s.a = r.a GROUP BY r.a HAVING SUM(s.b) > 100"
    assert lines(sql, s="c", r="a") == (
        "[a]  groups\n"
        "|- s  inner on a  keeps a, sum(b); ranges of c counted\n"
        "'- r  inner on a  keeps a; ranges of a by column"
    )
    assert lines("SELECT r.d FROM r CROSS JOIN s", r="d") == (
        "r  root; ranges of d counted\n'- s  inner on nothing"
    )
    one = "SELECT COUNT(*) FROM r JOIN s ON r.a = s.a HAVING COUNT(*) > 3"
    assert lines(one).startswith("r  one group  keeps a\n")


def test_text_shows_the_hierarchy() -> None:
    sql = (
        "SELECT r.d FROM r JOIN s ON r.a = s.a LEFT JOIN u ON u.c = r.c "
        "WHERE NOT EXISTS (SELECT 1 FROM t JOIN v ON t.b <=> v.b WHERE t.a = s.c) "
        "GROUP BY r.d HAVING COUNT(u.b) > 2"
    )
    assert lines(sql) == (
        "r  groups by d  keeps a, c, d\n"
        "|- s  inner on a  keeps a, c\n"
        "|  '- t  anti on a  keeps b, a\n"
        "|     '- v  inner on b  keeps b\n"
        "'- u  left on c  keeps c, count(b)"
    )
    shape, nodes = tree_and_nodes(sql)
    assert (shape.mode, shape.height) == ("ring", 3)
    assert [node.parent for node in nodes] == [None, 0, 1, 2, 0]
    assert [node.edge for node in nodes] == ["", "inner", "anti", "inner", "left"]


def test_ranges_are_known_by_column_or_counted() -> None:
    sql = "SELECT r.d FROM r JOIN s ON r.a = s.a JOIN t ON t.b = r.b"
    assert ranges(sql, r="a", s="a", t="d") == {
        ("r",): ["by column"],
        ("s",): ["by column"],
        ("t",): ["counted"],
    }
    bag = "SELECT r.d FROM r JOIN s ON r.c < s.c JOIN t ON t.b = r.b AND t.a = s.a"
    assert ranges(bag, r="b", s="a") == {("r", "s"): ["by column", "by column"]}
    assert ranges(bag, r="a", s="b") == {("r", "s"): ["counted", "counted"]}
    # A padded row has NULL in the column but no row of the table. A group has several rows.
    padded = "SELECT 1 FROM r LEFT JOIN s ON r.a = s.a JOIN t ON t.b <=> s.b"
    assert ranges(padded, r="a", s="b") == {("r", "s"): ["counted", "counted"]}
    grouped = "SELECT 1 FROM (SELECT a, COUNT(*) AS n FROM r GROUP BY a) q JOIN t ON t.a = q.a"
    assert ranges(grouped, r="a") == {("r",): ["counted"]}
    semi = (
        "SELECT 1 FROM r JOIN t ON t.a = r.a WHERE EXISTS "
        "(SELECT 1 FROM s WHERE s.a = r.a AND s.b < r.b)"
    )
    assert ranges(semi, r="a", s="a") == {("r", "s"): ["by column", "counted"]}
