"""Shapes as one line of text, and the checks that hold of every shape.

Law: two shapes with one text have the same bags, edges, keys, kept columns and mode, by the names
that the query gives them. Out of scope: what is expected of a query (`test_shaping`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from impctl.compile.aggregates import is_ordered
from impctl.compile.jointree.graph import NoTree, ShapeNode, TreeShape
from impctl.compile.jointree.shape import tree_shapes
from impctl.data.schema import DATE, DOUBLE, INTEGER, LONG, STRING, Column, Schema, decimal
from impctl.engine.jointree.spec import Edge, Mode
from impctl.expr.nodes import columns_of
from impctl.plan.explain import expr_text
from impctl.plan.nodes import Plan, attributes_of, nodes_of, scans_of
from impctl.rules.optimize import core_of, whole_answer
from impctl.sql.statement import parse_query
from tests.support.reference_hypergraph import is_tree

_LETTERS = (*(Column(name, LONG) for name in "abcdefg"), Column("i", INTEGER))
_TYPES = (
    Column("name", STRING),
    Column("day", DATE),
    Column("rate", DOUBLE),
    Column("cost", decimal(10, 2)),
)
CATALOG = {name: Schema((*_LETTERS, *_TYPES)) for name in ("r", "s", "t", "u", "v", "w")}


def pairs(text: str) -> list[tuple[str, str]]:
    """A query and, indented, what is expected of it, one pair after the other; lines are joined."""
    findall = re.findall(r"((?:^\S.*\n)+)((?:^ .*\n)+)", text, re.MULTILINE)
    assert "".join(map("".join, findall)) == text
    return [(" ".join(sql.split()), " ".join(expected.split())) for sql, expected in findall]


def core(sql: str, catalog: Mapping[str, Schema] = CATALOG) -> Plan:
    """The plan that sketches are kept by."""
    return core_of(whole_answer(parse_query(sql, catalog)).root)


def shape_of(
    sql: str, changed: Mapping[str, int] | None = None, catalog: Mapping[str, Schema] = CATALOG
) -> TreeShape | NoTree:
    """The one shape of a query."""
    (result,) = tree_shapes(core(sql, catalog), changed)
    return result


def drawn(
    sql: str, changed: Mapping[str, int] | None = None, catalog: Mapping[str, Schema] = CATALOG
) -> str:
    """All shapes of a query in a line, checked; without a tree the reason and the text blamed."""
    root = core(sql, catalog)
    texts = []
    for result in tree_shapes(root, changed):
        if isinstance(result, NoTree):
            assert result.text
            span = result.span
            texts.append(f"{result.reason}: {'' if span is None else sql[span.start : span.end]}")
            continue
        check(result)
        texts.append(f"{result.mode} {_node(result, len(result.nodes) - 1, _names(root))}")
    return " | ".join(texts)


def _names(root: Plan) -> dict[str, str]:
    return {a.id: a.name for node in nodes_of(root) for a in attributes_of(node)}


def _node(shape: TreeShape, at: int, names: dict[str, str]) -> str:
    """`bag{kept}(children)`; a virtual root is `[kept]`, an edge that is not inner has its name."""
    node = shape.nodes[at]
    kept = ",".join(expr_text(expr, names) for expr in node.kept)
    bag = "+".join(access.removesuffix("#1") for access in node.accesses)
    text = f"[{kept}]" if node.is_virtual else f"{bag}{{{kept}}}"
    children = []
    for child in shape.children_of(at):
        below = shape.nodes[child]
        key = ",".join(
            expr_text(below.kept[place], names) + ("?" if safe else "")
            for place, safe in zip(below.key, below.null_safe, strict=True)
        )
        edge = "" if below.edge is Edge.INNER else f"{below.edge} "
        children.append(f"{edge}{_node(shape, child, names)} on {key or '-'}")
    return f"{text}({'; '.join(children)})" if children else text


def check(shape: TreeShape) -> None:
    """What holds of every shape: a tree, children first, keys alike, expressions of their rows."""
    *below, root = shape.nodes
    assert root.parent is None
    assert is_tree([node.parent for node in shape.nodes])
    assert all(node.parent is not None and at < node.parent for at, node in enumerate(below))
    assert len(shape.nodes) > 1 or root.circle is not None
    for node in below:
        parent = shape.nodes[node.parent or 0]
        assert len(node.key) == len(node.parent_key) == len(node.null_safe)
        assert len(set(node.key)) == len(node.key)
        assert len(set(node.parent_key)) == len(node.parent_key)
        assert all(0 <= place < len(node.kept) for place in node.key)
        assert all(0 <= place < len(parent.kept) for place in node.parent_key)
        if parent.is_virtual:
            assert parent is root
            assert sorted(node.parent_key) == list(range(len(parent.kept)))
    for node in shape.nodes:
        _check_node(node)
    if shape.mode is Mode.RING:
        assert shape.aggregate is not None
        assert root.key == tuple(dict.fromkeys(shape.groups))
        placed = [at for node in shape.nodes for at in node.arguments]
        assert len(placed) == len(set(placed))
        calls = shape.aggregate.aggregates
        alone = {at for at, one in enumerate(calls) if one.call.distinct or is_ordered(one.call)}
        assert set(placed) == {at for at, one in enumerate(calls) if one.call.arguments} - alone
        assert all(part in root.kept for at in alone for part in calls[at].call.arguments)
        for node in shape.nodes:
            if node.rows is not None:
                own = {a.id for a in attributes_of(node.rows)}
                for at in node.arguments:
                    assert all(columns_of(part) <= own for part in calls[at].call.arguments)
    assert not (root.is_virtual and not root.kept)


def _check_node(node: ShapeNode) -> None:
    if node.rows is None:
        return
    own = {attribute.id for attribute in attributes_of(node.rows)}
    assert all(columns_of(expr) <= own for expr in node.kept)
    assert node.accesses == tuple(scan.access for scan in scans_of(node.rows))
