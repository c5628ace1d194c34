"""Shapes as one line of text, invariants of shapes, and random queries over joins."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import reduce
from random import Random

from msgspec.structs import replace

from impctl.compile.aggregates import is_ordered
from impctl.compile.jointree.graph import NoTree, ShapeNode, TreeShape
from impctl.compile.jointree.shape import tree_shapes
from impctl.data.schema import DATE, DOUBLE, INTEGER, LONG, STRING, Column, Schema, SqlType, decimal
from impctl.engine.jointree.spec import Edge, TreeMode
from impctl.expr.nodes import And, Cast, Compare, CompareOp, Expr
from impctl.expr.types import type_of
from impctl.plan.explain import expr_text
from impctl.plan.nodes import ComputedColumn, Join, JoinKind, Plan, Project
from impctl.rules.optimize import core_of, without_free_limit
from impctl.sql.statement import parse_query
from tests.support.reference_plan import Tables


def is_acyclic(edges: Sequence[frozenset[int]]) -> bool:
    """Graham, Yu and Ozsoyoglu: drop vertices of only one edge, and edges contained in others."""
    left = [set(edge) for edge in edges]
    while True:
        before = [set(edge) for edge in left]
        for edge in left:
            unshared = {v for v in edge if sum(v in other for other in left) == 1}
            edge -= unshared
        for index, edge in enumerate(left):
            if any(edge <= other for other_index, other in enumerate(left) if other_index != index):
                del left[index]
                break
        if left == before:
            return all(not edge for edge in left)


def has_running_intersection(
    edges: Sequence[frozenset[int]], parents: Sequence[int | None]
) -> bool:
    """Whether the parents form one tree in which the edges of each vertex are connected."""
    if not is_tree(parents):
        return False
    for vertex in frozenset().union(*edges):
        holders = {index for index, edge in enumerate(edges) if vertex in edge}
        tops = [index for index in holders if parents[index] not in holders]
        if len(tops) != 1:
            return False
    return True


def is_tree(parents: Sequence[int | None]) -> bool:
    """Whether every path upwards ends at the only root."""
    if sum(parent is None for parent in parents) != 1:
        return False
    for start in range(len(parents)):
        node: int | None = start
        for _ in parents:
            node = None if node is None else parents[node]
        if node is not None:
            return False
    return True


_KINDS: Mapping[str, SqlType] = {
    "k": LONG,
    "i": INTEGER,
    "s": STRING,
    "d": DATE,
    "m": decimal(15, 2),
}
_TPCH = {
    "region": "r_regionkey:k r_name:s r_comment:s",
    "nation": "n_nationkey:k n_name:s n_regionkey:k n_comment:s",
    "customer": "c_custkey:k c_name:s c_address:s c_nationkey:k c_phone:s c_acctbal:m"
    " c_mktsegment:s c_comment:s",
    "orders": "o_orderkey:k o_custkey:k o_orderstatus:s o_totalprice:m o_orderdate:d"
    " o_orderpriority:s o_clerk:s o_shippriority:i o_comment:s",
    "lineitem": "l_orderkey:k l_partkey:k l_suppkey:k l_linenumber:i l_quantity:m"
    " l_extendedprice:m l_discount:m l_tax:m l_returnflag:s l_linestatus:s l_shipdate:d"
    " l_commitdate:d l_receiptdate:d l_shipinstruct:s l_shipmode:s l_comment:s",
    "part": "p_partkey:k p_name:s p_mfgr:s p_brand:s p_type:s p_size:i p_container:s"
    " p_retailprice:m p_comment:s",
    "partsupp": "ps_partkey:k ps_suppkey:k ps_availqty:i ps_supplycost:m ps_comment:s",
    "supplier": "s_suppkey:k s_name:s s_address:s s_nationkey:k s_phone:s s_acctbal:m s_comment:s",
}
_SNB = {
    "person": "p_id:k city:s born:d",
    "knows": "k_from:k k_to:k since:d",
    "message": "m_id:k creator:k created:d length:i",
    "message_tag": "mt_message:k mt_tag:k",
    "tag": "t_id:k t_name:s t_class:k",
    "edge": "src:k dst:k",
}


def _schemas(tables: Mapping[str, str]) -> dict[str, Schema]:
    return {
        table: Schema(
            tuple(
                Column(name, _KINDS[kind])
                for name, kind in (one.split(":") for one in columns.split())
            )
        )
        for table, columns in tables.items()
    }


TPCH = _schemas(_TPCH)
SNB = _schemas(_SNB)
SYNTHETIC = {
    name: Schema(tuple(Column(one, LONG) for one in ("id", *"abcdefghij")))
    for name in (
        *("r", "s", "t", "t5k", "t500k", "s20", "s50", "s500k", "of1", "of5", "of10", "edb"),
        *("k10", "k100", "k1000", "k5000", "k100000", "g5000", "synthetic"),
    )
}


_LETTERS = (*(Column(name, LONG) for name in "abcdefg"), Column("i", INTEGER))
_TYPES = (
    Column("name", STRING),
    Column("day", DATE),
    Column("rate", DOUBLE),
    Column("cost", decimal(10, 2)),
)
CATALOG = {name: Schema((*_LETTERS, *_TYPES)) for name in ("r", "s", "t", "u", "v", "w")}


def pairs(text: str) -> list[tuple[str, str]]:
    """Pairs of a query and its indented expectation. Lines are joined."""
    findall = re.findall(r"((?:^\S.*\n)+)((?:^ .*\n)+)", text, re.MULTILINE)
    assert "".join(map("".join, findall)) == text
    return [(" ".join(sql.split()), " ".join(expected.split())) for sql, expected in findall]


def core(sql: str, catalog: Mapping[str, Schema] = CATALOG) -> Plan:
    """The plan that sketches are maintained with."""
    return core_of(without_free_limit(parse_query(sql, catalog)).root)


def shape_of(sql: str, catalog: Mapping[str, Schema] = CATALOG) -> TreeShape | NoTree:
    """The one shape of a query."""
    return tree_shape(core(sql, catalog))


def tree_shape(root: Plan) -> TreeShape | NoTree:
    (result,) = tree_shapes(root)
    return result


def shape_text(sql: str, catalog: Mapping[str, Schema] = CATALOG) -> str:
    """All shapes of a query in one line, checked. Without a tree: the reason and its SQL text."""
    root = core(sql, catalog)
    texts = []
    for result in tree_shapes(root):
        if isinstance(result, NoTree):
            assert result.text
            span = result.span
            texts.append(f"{result.reason}: {'' if span is None else sql[span.start : span.end]}")
            continue
        check(result)
        texts.append(f"{result.mode} {_node(result, len(result.nodes) - 1, _names(root))}")
    return " | ".join(texts)


def _names(root: Plan) -> dict[str, str]:
    return {a.id: a.name for node in root.walk() for a in node.attributes}


def _node(shape: TreeShape, index: int, names: dict[str, str]) -> str:
    """`bag{kept}(children)`; a virtual root is `[kept]`; edges other than inner are named."""
    node = shape.nodes[index]
    kept = ",".join(expr_text(expr, names) for expr in node.kept)
    bag = "+".join(access.removesuffix("#1") for access in node.accesses)
    text = f"[{kept}]" if node.rows is None else f"{bag}{{{kept}}}"
    children = []
    for child in shape.children_of(index):
        child_node = shape.nodes[child]
        key = ",".join(
            expr_text(child_node.kept[position], names) + ("?" if safe else "")
            for position, safe in zip(child_node.key, child_node.null_safe, strict=True)
        )
        edge = "" if child_node.edge is Edge.INNER else f"{child_node.edge} "
        children.append(f"{edge}{_node(shape, child, names)} on {key or '-'}")
    return f"{text}({'; '.join(children)})" if children else text


def check(shape: TreeShape) -> None:
    """Check the invariants: a tree, children first, matching keys, expressions over their rows."""
    *below, root = shape.nodes
    assert root.parent is None
    assert is_tree([node.parent for node in shape.nodes])
    assert all(node.parent is not None and index < node.parent for index, node in enumerate(below))
    assert len(shape.nodes) > 1 or root.circle is not None
    for node in below:
        parent = shape.nodes[node.parent or 0]
        assert len(node.key) == len(node.parent_key) == len(node.null_safe)
        assert len(set(node.key)) == len(node.key)
        assert len(set(node.parent_key)) == len(node.parent_key)
        assert all(0 <= position < len(node.kept) for position in node.key)
        assert all(0 <= position < len(parent.kept) for position in node.parent_key)
        if parent.rows is None:
            assert parent is root
            assert sorted(node.parent_key) == list(range(len(parent.kept)))
    for node in shape.nodes:
        _check_node(node)
    if shape.mode is TreeMode.RING:
        assert shape.aggregate is not None
        assert root.key == tuple(dict.fromkeys(shape.groups))
        placed = [index for node in shape.nodes for index in node.arguments]
        assert len(placed) == len(set(placed))
        calls = shape.aggregate.aggregates
        ordered = {
            index for index, one in enumerate(calls) if one.call.distinct or is_ordered(one.call)
        }
        assert (
            set(placed)
            == {index for index, one in enumerate(calls) if one.call.arguments} - ordered
        )
        assert all(part in root.kept for index in ordered for part in calls[index].call.arguments)
        for node in shape.nodes:
            if node.rows is not None:
                ids = {a.id for a in node.rows.attributes}
                for index in node.arguments:
                    assert all(part.columns <= ids for part in calls[index].call.arguments)
    assert not (root.rows is None and not root.kept)


def _check_node(node: ShapeNode) -> None:
    if node.rows is None:
        return
    ids = {attribute.id for attribute in node.rows.attributes}
    assert all(expr.columns <= ids for expr in node.kept)
    assert node.accesses == tuple(scan.access for scan in node.rows.scans)


KINDS = {
    Edge.INNER: JoinKind.INNER,
    Edge.SEMI: JoinKind.SEMI,
    Edge.ANTI: JoinKind.ANTI,
    Edge.LEFT: JoinKind.LEFT,
}


def rejoined(root: Plan, shape: TreeShape) -> Plan:
    """The plan `root` with its joins replaced by those of its shape."""
    below = _joined(shape, len(shape.nodes) - 1)
    if shape.aggregate is None:
        return Project(below, ())
    assert shape.top is not None
    keys = tuple(ComputedColumn(key.attribute, _as_typed(key)) for key in shape.aggregate.keys)
    grouping = replace(shape.aggregate, child=below, keys=keys)
    return _swapped(root, shape.top, grouping)


def _as_typed(key: ComputedColumn) -> Expr:
    """The column equal to a grouping column, cast to its type."""
    kind = key.attribute.type
    return key.expr if kind is None or type_of(key.expr) == kind else Cast(key.expr, kind)


def _joined(shape: TreeShape, index: int) -> Plan:
    """The joined rows of a node and everything below it."""
    node = shape.nodes[index]
    children = shape.children_of(index)
    if node.rows is None:
        # Every combination of the root's columns exists, so the children are joined by them.
        first, *others = children
        plan = _joined(shape, first)
        for child in others:
            condition = _equal(shape.nodes[first], shape.nodes[child], on_root=True)
            plan = Join(JoinKind.INNER, plan, _joined(shape, child), condition)
        return plan
    plan = node.rows
    for child in children:
        below = shape.nodes[child]
        condition = _equal(node, below, on_root=False)
        plan = Join(KINDS[below.edge], plan, _joined(shape, child), condition)
    return plan


def _equal(above: ShapeNode, below: ShapeNode, *, on_root: bool) -> Expr | None:
    """The condition that the child's key equals the parent's columns or another child's key."""
    if on_root:
        # Two children of a virtual root have keys on the same columns of the root.
        positions = dict(zip(above.parent_key, above.key, strict=True))
        mine = [above.kept[positions[position]] for position in below.parent_key]
    else:
        mine = [above.kept[position] for position in below.parent_key]
    theirs = [below.kept[position] for position in below.key]
    parts: list[Expr] = [
        Compare(CompareOp.NULL_SAFE_EQUAL if safe else CompareOp.EQUAL, one, other)
        for one, other, safe in zip(mine, theirs, below.null_safe, strict=True)
    ]
    return reduce(lambda one, other: And((one, other)), parts) if parts else None


def _swapped(plan: Plan, old: Plan, new: Plan) -> Plan:
    """The plan with the node `old`, found by identity, replaced by `new`."""
    if plan is old:
        return new
    return plan.map_inputs(lambda child: _swapped(child, old, new))


COLUMNS = "abci"
NAMES = (None, "", "u", "v")
TABLES = tuple(CATALOG)
_MAX_ROWS = 5


def random_tables(rng: Random) -> Tables:
    """Few rows with few distinct values. Columns that no query reads are NULL."""
    nothing = {column.name: None for column in CATALOG["r"]}
    values = rng.choice(((None, 0, 1, 1, 2), (None, 1, 1, 1, 2), (1, 1, 1, 0)))

    def row() -> dict[str, int | str | None]:
        numbers = {name: rng.choice(values) for name in COLUMNS}
        return {**nothing, **numbers, "name": rng.choice(NAMES)}

    return {name: [row() for _ in range(rng.randint(1, _MAX_ROWS))] for name in TABLES}


class JoinMaker:
    """Writes one query."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.count = 0

    def sql(self) -> str:
        """A query of two to five relations."""
        rng = self.rng
        names = [self._alias() for _ in range(rng.randint(1, 4))]
        source = self._joined(names, left=0.2)
        where = [self._extra(names) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
        where += [self._exists(names) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
        if len(names) == 1 and not where:
            where = [self._exists(names)]
        text = f" FROM {source}" + (f" WHERE {' AND '.join(where)}" if where else "")
        keys = [self._key(names) for _ in range(rng.choice((0, 1, 1, 1, 2)))]
        if rng.random() < 0.15:
            return f"SELECT {self._column(names)} AS x{text}"
        group = f" GROUP BY {', '.join(keys)}" if keys else ""
        having = "" if rng.random() < 0.1 else f" HAVING {self._having(names)}"
        return f"SELECT COUNT(*) AS n{text}{group}{having}"

    def _alias(self) -> tuple[str, str]:
        self.count += 1
        return self.rng.choice(TABLES), f"x{self.count}"

    def _joined(self, names: list[tuple[str, str]], *, left: float) -> str:
        (table, alias), *others = names
        text = f"{table} {alias}"
        joined = [(table, alias)]
        for one in others:
            kind = "LEFT JOIN" if self.rng.random() < left else "JOIN"
            count = self.rng.choice((0, 1, 1, 1, 1, 2)) if kind == "JOIN" else 1
            parts = [self._equality(joined, [one]) for _ in range(count)]
            text += f" {kind} {one[0]} {one[1]} ON {' AND '.join(parts) or 'true'}"
            if kind == "LEFT JOIN" and self.rng.random() < 0.3:
                text += f" AND {one[1]}.c > 0"
            joined.append(one)
        return text

    def _equality(self, left: list[tuple[str, str]], right: list[tuple[str, str]]) -> str:
        one, other = self._column(left), self._column(right)
        if self.rng.random() < 0.05:
            one = f"{one} + 1"
        return f"{one} {'<=>' if self.rng.random() < 0.15 else '='} {other}"

    def _extra(self, names: list[tuple[str, str]]) -> str:
        one, other = self._column(names), self._column(names)
        draw = self.rng.random()
        if draw < 0.5:
            return f"{one} = {other}"
        if draw < 0.7:
            return f"{one} < {other}"
        if draw < 0.8:
            return f"{one} IS NULL"
        if draw < 0.9:
            return f"({one} = 1 OR {other} = 2)"
        return f"{one} >= 1"

    def _exists(self, names: list[tuple[str, str]]) -> str:
        below = [self._alias() for _ in range(self.rng.choice((1, 1, 2, 3)))]
        on = [self._equality(names, below) for _ in range(self.rng.choice((0, 1, 1, 1, 2)))]
        if self.rng.random() < 0.3:
            on.append(f"{self._column(below)} >= 1")
        if self.rng.random() < 0.1:
            on.append(f"{self._column(below)} < {self._column(names)}")
        source = self._joined(below, left=0.1)
        where = f" WHERE {' AND '.join(on)}" if on else ""
        if self.rng.random() < 0.15:
            negated = self.rng.choice(("", "NOT "))
            return f"{self._column(names)} {negated}IN (SELECT {self._column(below)} FROM {source})"
        negated = "NOT " if self.rng.random() < 0.4 else ""
        return f"{negated}EXISTS (SELECT 1 FROM {source}{where})"

    def _key(self, names: list[tuple[str, str]]) -> str:
        column = self._column(names)
        return f"{column} + {self._column(names)}" if self.rng.random() < 0.1 else column

    def _having(self, names: list[tuple[str, str]]) -> str:
        if self.rng.random() < 0.25:
            return self._first(names)
        column = self._column(names)
        calls = (
            "COUNT(*)",
            f"COUNT({column})",
            f"SUM({column})",
            f"SUM({column})",
            f"SUM({column} * {column})",
            f"SUM(COALESCE({column}, 1))",
            f"COUNT(DISTINCT {column})",
            f"SUM(DISTINCT {column})",
            f"COUNT(DISTINCT {column}) FILTER (WHERE {column} >= 1)",
            f"MAX({column})",
            "SUM(1)",
            f"SUM({column}) FILTER (WHERE {self._column(names)} >= 1)",
            f"SUM({column} + {self._column(names)})",
        )
        op = self.rng.choice((">", ">", ">=", "<", "="))
        limit = self.rng.choice((0, 1, 2, 3, 8) if op in (">", ">=") else (1, 4, 9, 20, 50))
        return f"{self.rng.choice(calls)} {op} {limit}"

    def _first(self, names: list[tuple[str, str]]) -> str:
        """A condition on a first value, by MIN, MAX, MIN_BY or MAX_BY."""
        column, other = self._column(names), self._column(names)
        if self.rng.random() < 0.5:
            # Both columns are from one relation, perhaps the grouped one.
            other = f"{column.partition('.')[0]}.{self.rng.choice(COLUMNS)}"
        name = f"{column.partition('.')[0]}.name"
        condition = f" FILTER (WHERE {other} >= 1)" if self.rng.random() < 0.2 else ""
        call = self.rng.choice(("MIN", "MAX"))
        text = self.rng.choice(("> ''", "< 'v'", "= 'u'", ">= 'v'", "IS NULL"))
        number = self.rng.choice(("> 0", "= 1", "< 2", "IS NULL", "<> 1"))
        return self.rng.choice(
            (
                f"{call}({name}){condition} {text}",
                f"{call}({name}){condition} {text} AND COUNT({name}) > 1",
                f"{call}_BY({name}, {column}){condition} {text}",
                f"{call}_BY({column}, {other}){condition} {number}",
                f"{call}_BY({column}, {name}){condition} {number}",
                f"{call}_BY({column}, {name}){condition} {number} AND {call}({name}) {text}",
                f"{call}_BY({column}, {other}) {number} OR SUM({column}) > 3",
            )
        )

    def _column(self, names: list[tuple[str, str]]) -> str:
        return f"{self.rng.choice(names)[1]}.{self.rng.choice(COLUMNS)}"


OTHER = ("name", "rate")


def tables_with_values(rng: Random) -> Tables:
    """Few rows, with text and doubles."""
    result = random_tables(rng)
    for rows in result.values():
        for row in rows:
            row["name"] = rng.choice((None, "", "u", "v"))
            row["rate"] = rng.choice((None, 0.0, -0.0, 1.5, math.nan))
    return result


class AnswerMaker(JoinMaker):
    """Writes one query whose answer is materialized."""

    def sql(self) -> str:
        rng = self.rng
        if rng.random() < 0.1:
            kind = rng.choice(("UNION", "UNION ALL"))
            return f"{self._branch(1)} {kind} {self._branch(1)}"
        return self._branch(rng.choice((0, 1, 2, 3)), is_whole=True)

    def _branch(self, columns: int, *, is_whole: bool = False) -> str:
        rng = self.rng
        names = [self._alias() for _ in range(rng.choice((1, 2, 2, 2, 3, 3, 4)))]
        source = self._joined(names, left=0.25)
        where = [self._extra(names) for _ in range(rng.choice((0, 0, 0, 0, 1)))]
        where += [self._exists(names) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
        if len(names) == 1 and not where:
            where = [self._exists(names)]
        text = f" FROM {source}" + (f" WHERE {' AND '.join(where)}" if where else "")
        if is_whole and rng.random() < 0.4:
            return self._grouped(names, text, columns)
        outputs = [self._output(names) for _ in range(max(1, columns))]
        columns_text = ", ".join(f"{one} AS x{number}" for number, one in enumerate(outputs))
        return f"SELECT {'DISTINCT ' if rng.random() < 0.2 else ''}{columns_text}{text}"

    def _output(self, names: list[tuple[str, str]]) -> str:
        draw, column = self.rng.random(), self._column(names)
        if draw > 0.75:
            return self._other(names)
        if draw < 0.15:
            return f"COALESCE({column}, 7)"
        if draw < 0.3:
            return f"{column} + {self._column(names)}"
        if draw < 0.32:
            return "1"
        return column

    def _grouped(self, names: list[tuple[str, str]], text: str, keys: int) -> str:
        rng = self.rng
        keyed = [
            self._other(names) if rng.random() < 0.2 else self._column(names) for _ in range(keys)
        ]
        calls = [self._call(names) for _ in range(rng.choice((1, 1, 2)))]
        listed = [*keyed, *calls]
        named = ", ".join(f"{one} AS x{position}" for position, one in enumerate(listed))
        group = f" GROUP BY {', '.join(keyed)}" if keyed else ""
        having = f" HAVING {self._having(names)}" if rng.random() < 0.5 else ""
        order = ""
        if rng.random() < 0.4:
            positions = rng.sample(range(len(listed)), len(listed))
            keys_ = [f"{position + 1}{rng.choice(('', ' DESC'))}" for position in positions]
            order = f" ORDER BY {', '.join(keys_)}" + rng.choice(
                ("", " LIMIT 1", " LIMIT 2", " LIMIT 2 OFFSET 1")
            )
        return f"SELECT {named}{text}{group}{having}{order}"

    def _call(self, names: list[tuple[str, str]]) -> str:
        column = self._column(names)
        return self.rng.choice(
            (
                "COUNT(*)",
                f"SUM({column})",
                f"AVG({column})",
                f"MAX({column})",
                f"COUNT(DISTINCT {column})",
                f"SUM(DISTINCT {column})",
                f"COUNT(DISTINCT {self._other(names)})",
                f"SUM({column}) FILTER (WHERE {column} >= 1)",
                f"MIN({self.rng.choice(names)[1]}.name)",
                f"MAX({self.rng.choice(names)[1]}.name)",
                f"SUM({self.rng.choice(names)[1]}.i * 0.5D)",
            )
        )

    def _other(self, names: list[tuple[str, str]]) -> str:
        return f"{self.rng.choice(names)[1]}.{self.rng.choice(OTHER)}"

    def _equality(self, left: list[tuple[str, str]], right: list[tuple[str, str]]) -> str:
        if self.rng.random() > 0.1:
            return super()._equality(left, right)
        column = self.rng.choice(OTHER)
        op = self.rng.choice(("=", "=", "<=>"))
        return f"{self.rng.choice(left)[1]}.{column} {op} {self.rng.choice(right)[1]}.{column}"
