"""What a changed row costs as an index join and as a tree, from the fan-outs of key columns.

`joined` are the rows that the index join writes down for it, all its steps; `touched` the tuples
that the tree looks at on the way up. Both are products of fan-outs, as if keys were independent,
and conditions on rows were none. Where only crossing zero goes on (bits, semi and anti edges), a
change does so as often as its key has no other row. Law: an estimate chooses between two right
ways, so it may be wrong; what is not known is None, never a guess.
Out of scope: counting keys (`tables.keys.fan_out`), the choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from impctl.aliases import AttributeId, ColumnName, TableName
from impctl.circuits.join_order import chain_of
from impctl.circuits.trees.shape import ShapeNode, TreeShape
from impctl.data.schema import SqlType
from impctl.engine.trees.spec import NO_SLOTS, Mode
from impctl.expr.nodes import ColumnRef, Compare, CompareOp, Expr
from impctl.plan.nodes import Join, JoinKind, Plan, Project, Scan, Select, Sort, nodes_of, scans_of
from impctl.tables.keys.fan_out import KeyColumns
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class KeySide:
    """The columns of one table that a join looks its rows up by."""

    table: TableName
    columns: KeyColumns


class FanOuts(Protocol):
    """What is known of the tables' keys."""

    def met(self, changed: KeySide, other: KeySide) -> float:
        """Rows, or tuples where these are counted, of the other side that a changed row meets."""
        ...

    def alone(self, side: KeySide) -> float:
        """The share of rows that are the only one with their key, roughly: keys per row."""
        ...


@dataclass(frozen=True, slots=True)
class Estimate:
    """Rows written and tuples touched for one changed row, in the mean over what changes."""

    joined: float
    touched: float


def estimate(
    joins: Plan, shape: TreeShape, changed: Mapping[TableName, int], fan_outs: FanOuts
) -> Estimate | None:
    """The estimate for a block's joins and their shape; None where some key is computed, or some
    node has several relations, which are joined or probed in it at a cost of their own.

    `changed` weighs the tables; where nothing is known to change, all count alike.
    """
    touched = _touched(shape, fan_outs)
    joined = _joined(joins, fan_outs)
    if touched is None or joined is None:
        return None
    return Estimate(_mean(joined, changed), _mean(touched, changed))


_PerTable = Sequence[tuple[TableName, float]]
"""For each access its table, and what one changed row of it costs."""


def _mean(costs: _PerTable, changed: Mapping[TableName, int]) -> float:
    weights = [changed.get(table, 0) for table, _ in costs]
    if not any(weights):
        weights = [1] * len(costs)
    total = sum(weight * cost for weight, (_, cost) in zip(weights, costs, strict=True))
    return total / sum(weights)


def _touched(shape: TreeShape, fan_outs: FanOuts) -> list[tuple[TableName, float]] | None:
    """Tuples that a changed row of each node brings in, itself among them."""
    costs: list[tuple[TableName, float]] = []
    for at, node in enumerate(shape.nodes):
        if node.rows is None:
            continue
        if len(node.accesses) > 1:
            return None
        reached, touched = 1.0, 1.0
        while shape.nodes[at].parent is not None:
            below, above = shape.nodes[at], shape.nodes[shape.nodes[at].parent or 0]
            side = _side(below, below.key, below.null_safe)
            if side is None:
                return None
            if shape.mode is Mode.BITS or below.edge in NO_SLOTS:
                reached *= fan_outs.alone(side)
            if above.rows is not None:
                upper = _side(above, below.parent_key, below.null_safe, tuples=True)
                if upper is None:
                    return None
                reached *= fan_outs.met(side, upper)
            touched += reached
            at = shape.nodes[at].parent or 0
        costs.extend((scan.table, touched) for scan in scans_of(node.rows))
    return costs


def _side(
    node: ShapeNode, places: Sequence[int], null_safe: Sequence[bool], *, tuples: bool = False
) -> KeySide | None:
    """The table's columns that are the key; None where they are of several tables or computed."""
    assert node.rows is not None
    key = _columns(node.rows, [node.kept[place] for place in places])
    if key is None:
        return None
    table, columns = key
    kept = _columns(node.rows, node.kept) if tuples else None
    counted = kept[1] if kept is not None and kept[0] == table else None
    return KeySide(table, KeyColumns(columns, tuple(null_safe), counted))


_Columns = tuple[tuple[ColumnName, SqlType], ...]


def _columns(rows: Plan, exprs: Sequence[Expr]) -> tuple[TableName, _Columns] | None:
    """The one table that all the columns are of, and they; of no columns, the first table."""
    found = [_origin(rows, expr) for expr in exprs]
    known = [one for one in found if one is not None]
    if len(known) < len(found) or len({scan.access for scan, _, _ in known}) > 1:
        return None
    table = known[0][0].table if known else scans_of(rows)[0].table
    return table, tuple((name, kind) for _, name, kind in known)


def _origin(rows: Plan, expr: Expr) -> tuple[Scan, ColumnName, SqlType] | None:
    """The scan that a column comes from as it is, its name there and its type."""
    wanted: dict[AttributeId, Expr] = {}
    for node in nodes_of(rows):
        if isinstance(node, Project):
            wanted |= {one.attribute.id: one.expr for one in node.outputs}
    while isinstance(expr, ColumnRef) and expr.id in wanted:
        expr = wanted[expr.id]
    for scan in scans_of(rows):
        for attribute in scan.attributes:
            if isinstance(expr, ColumnRef) and expr.id == attribute.id and attribute.type:
                return scan, attribute.name, attribute.type
    return None


@dataclass(frozen=True, slots=True)
class _Arc:
    """An equality between two relations of the chain, by their places."""

    ends: tuple[int, int]
    columns: tuple[Expr, Expr]


def _joined(joins: Plan, fan_outs: FanOuts) -> list[tuple[TableName, float]] | None:
    """Rows that the index join writes for a changed row of each relation, over all its steps."""
    while isinstance(joins, Select | Project | Sort):
        joins = joins.child
    if not isinstance(joins, Join) or joins.kind is not JoinKind.INNER:
        return None
    chain = chain_of(joins)
    plans = [one.plan for one in chain.relations]
    owner = {name: at for at, one in enumerate(chain.relations) for name in one.ids}
    arcs = []
    for part in chain.conditions:
        match part:
            case Compare(CompareOp.EQUAL, ColumnRef() as one, ColumnRef() as other):
                ends = (owner[one.id], owner[other.id])
                arcs.append(_Arc(ends, (one, other)))
    costs: list[tuple[TableName, float]] = []
    for start, plan in enumerate(plans):
        total = 0.0
        for last in range(max(start, 1), len(plans)):
            met = _met(start, last, plans, arcs, fan_outs)
            if met is None:
                return None
            total += met
        costs.extend((scan.table, total) for scan in scans_of(plan))
    return costs


def _met(
    start: int, last: int, plans: Sequence[Plan], arcs: Sequence[_Arc], fan_outs: FanOuts
) -> float | None:
    """What a row of one relation comes to when it is joined with all up to the last one."""
    reached, product = [start], 1.0
    left = [at for at in range(last + 1) if at != start]
    while left:
        arc_ends = (
            (one, other)
            for one in reached
            for other in left
            if any({one, other} == set(arc.ends) for arc in arcs)
        )
        # What no equality connects is met as a whole.
        one, other = next(arc_ends, (reached[0], left[0]))
        between = [arc for arc in arcs if {one, other} == set(arc.ends)]
        sides = []
        for place in (one, other):
            exprs = [arc.columns[arc.ends.index(place)] for arc in between]
            found = _columns(plans[place], exprs)
            if found is None:
                return None
            sides.append(KeySide(found[0], KeyColumns(found[1], (False,) * len(exprs))))
        product *= fan_outs.met(*sides)
        reached.append(other)
        left.remove(other)
    return product
