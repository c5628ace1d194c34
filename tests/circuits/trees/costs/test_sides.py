"""Which columns and conditions a side of a join is counted by."""

from __future__ import annotations

import pytest

from impctl.compile.joins import chain_of
from impctl.compile.jointree.cost import condition_on, key_side
from impctl.compile.jointree.graph import TreeShape
from impctl.data.schema import LONG
from impctl.expr.nodes import Arithmetic, ArithmeticOp, Compare, CompareOp, Expr, Literal
from impctl.plan.explain import expr_text
from impctl.plan.nodes import (
    Attribute,
    ComputedColumn,
    Join,
    Plan,
    Project,
    Scan,
    Select,
    nodes_of,
    scans_of,
)
from tests.circuits.trees.drawn import core, shape_of


def conditions(plan: Plan) -> dict[str, str | None]:
    """The condition on each access of a plan, in words."""

    def said(expr: Expr | None) -> str | None:
        return None if expr is None else expr_text(expr)

    return {scan.access: said(condition_on(plan, scan)) for scan in scans_of(plan)}


def nodes(sql: str) -> dict[str, str | None]:
    """The same of the nodes of a tree."""
    shape = shape_of(sql)
    assert isinstance(shape, TreeShape)
    rows = [node.rows for node in shape.nodes if node.rows is not None]
    return {access: said for one in rows for access, said in conditions(one).items()}


PAIR = "SELECT r.a FROM r JOIN s ON r.a = s.a WHERE {} GROUP BY r.a HAVING SUM(s.d) > 1"


@pytest.mark.parametrize(
    ("where", "r", "s"),
    [
        ("r.b < 3", "b < 3", None),
        ("r.b < 3 AND s.c = 1 AND r.c IS NULL", "b < 3 AND c IS NULL", "c = 1"),
        ("r.b < s.b OR r.c = 1", None, None),
        ("r.b + 1 < 3 AND length(s.name) > 2", "b + 1 < 3", "length(name) > 2"),
    ],
)
def test_conditions_on_one_tables_rows_are_those_of_its_node(
    where: str, r: str | None, s: str | None
) -> None:
    sql = PAIR.format(where)
    if "OR" in where:
        (joins,) = [node for node in nodes_of(core(sql)) if isinstance(node, Join)]
        assert conditions(joins) == {"r#1": r, "s#1": s}
        return
    assert nodes(sql) == {"r#1": r, "s#1": s}


def test_each_access_of_a_table_has_its_own() -> None:
    sql = "SELECT x.a FROM r x JOIN r y ON x.a = y.b WHERE x.c < 5 AND y.c > 7"
    assert nodes(sql) == {"r#1": "c < 5", "r#2": "c > 7"}


def test_conditions_go_through_renamed_and_computed_columns() -> None:
    sql = (
        "SELECT t.k FROM (SELECT a AS k, b + c AS n FROM r WHERE b > 0) t JOIN s ON t.k = s.a "
        "WHERE t.n < 9"
    )
    assert nodes(sql) == {"r#1": "b > 0 AND b + c < 9", "s#1": None}


def test_what_the_engine_leaves_to_spark_is_not_counted() -> None:
    sql = "SELECT r.a FROM r JOIN s ON r.a = s.a WHERE r.b < 3 AND soundex(r.name) = 'x'"
    assert conditions(core(sql)) == {"r#1": "b < 3", "s#1": None}


def test_conditions_of_several_tables_are_none_of_one() -> None:
    (joins,) = [
        node
        for node in nodes_of(core("SELECT r.a FROM r JOIN s ON r.a = s.a AND r.b < s.b"))
        if isinstance(node, Join)
    ]
    assert joins.condition is not None
    above = Select(joins, joins.condition)
    assert conditions(above) == {"r#1": None, "s#1": None}


def test_what_stands_below_is_asked_first_and_named_as_there() -> None:
    """It may guard what stands above it, as a division."""
    sql = "SELECT t.k FROM (SELECT a AS k, b + c AS n FROM r WHERE b > 0) t WHERE t.n < 9"
    below = [node for node in nodes_of(core(sql)) if isinstance(node, Scan)][0]
    refs = {one.name: one.ref() for one in below.attributes}
    first = Select(below, Compare(CompareOp.GREATER, refs["b"], Literal(0, LONG)))
    total = Attribute("t.n", "n", LONG)
    made = Project(
        first, (ComputedColumn(total, Arithmetic(ArithmeticOp.ADD, refs["b"], refs["c"])),)
    )
    again = Attribute("u.n", "n", LONG)
    renamed = Project(made, (ComputedColumn(again, total.ref()),))
    whole = Select(renamed, Compare(CompareOp.LESS, again.ref(), Literal(9, LONG)))
    assert conditions(whole) == {"r#1": "b > 0 AND b + c < 9"}


def test_sides_with_equal_conditions_are_counted_once() -> None:
    """Columns go by their names in the table, so that accesses of it can be told alike."""
    sql = "SELECT x.a FROM r x JOIN r y ON x.a = y.a WHERE x.c < 5 AND y.c < 5"
    (joins,) = [node for node in nodes_of(core(sql)) if isinstance(node, Join)]
    sides = []
    for relation in chain_of(joins).relations:
        (scan,) = scans_of(relation.plan)
        (key,) = [one.ref() for one in scan.attributes if one.name == "a"]
        sides.append(key_side(relation.plan, [key], [False]))
    assert sides[0] is not None
    assert sides[0].columns.where is not None
    assert sides[0] == sides[1]
    assert len(set(sides)) == 1


def test_a_key_of_nothing_still_has_the_condition() -> None:
    (joins,) = [
        node
        for node in nodes_of(core("SELECT r.d FROM r CROSS JOIN s WHERE r.b < 3"))
        if isinstance(node, Join)
    ]
    side = key_side(joins.left, [], [])
    assert side is not None
    assert (side.table, side.columns.key) == ("r", ())
    assert side.columns.names == ("b",)
