"""Sides of joins as key columns of tables, with the conditions on the tables' own rows.

Law: a side is columns of one table as they are, or it is not known (None). Of the conditions on a
side's rows those are counted that stand above its scan, read columns of it alone, and are none that
the engine leaves to Spark; what follows from a join is not. Both hold for any plan of a side, since
an estimate chooses between two right ways.
Out of scope: counting (`tables.keys.fan_out`), what is made of it (`circuits.trees.estimate`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from impctl.circuits.trees.rows import all_of
from impctl.data.schema import SqlType
from impctl.expr.evaluate import find_condition_blocker
from impctl.expr.nodes import ColumnRef, Expr, columns_of, conjuncts, substitute
from impctl.plan.nodes import Plan, Project, Scan, Select, nodes_of, scans_of
from impctl.tables.keys.fan_out import KeyColumns
from impctl.types import AttributeId, ColumnName, TableName
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class KeySide:
    """The columns of one table that a join looks its rows up by."""

    table: TableName
    columns: KeyColumns


@dataclass(frozen=True, slots=True)
class SideSize:
    """How much there is on a side, of the rows that its condition keeps.

    These are a `share` of the table's rows; they have so many different `keys`, and `tuples` where
    a side counts these, else rows with a key.
    """

    rows: float
    share: float
    keys: float
    tuples: float


class FanOuts(Protocol):
    """What is known of the tables' keys."""

    def met(self, changed: KeySide, other: KeySide) -> float:
        """Rows, or tuples where these are counted, of the other side that a changed row meets."""
        ...

    def alone(self, side: KeySide) -> float:
        """The share of rows that are the only one with their key, roughly: keys per row."""
        ...

    def size(self, side: KeySide) -> SideSize:
        """How much there is."""
        ...


def key_side(
    rows: Plan,
    key: Sequence[Expr],
    null_safe: Sequence[bool],
    tuples: Sequence[Expr] = (),
) -> KeySide | None:
    """The table's columns that are the key; None where they are of several tables or computed.

    With `tuples` it is combinations of these that count, where the table has them all; rows else.
    Without a key it is the first table's; None where there is no table.
    """
    result = _columns(rows, key)
    if result is None:
        return None
    scan, columns = result
    kept = _columns(rows, tuples) if tuples else None
    counted = kept[1] if kept is not None and kept[0].access == scan.access else None
    where = condition_on(rows, scan)
    return KeySide(scan.table, KeyColumns(columns, tuple(null_safe), counted, where))


_Columns = tuple[tuple[ColumnName, SqlType], ...]


def _columns(rows: Plan, exprs: Sequence[Expr]) -> tuple[Scan, _Columns] | None:
    """The one access that all the columns are of, and they; of no columns, the first one."""
    made = _made(rows)
    result = [_origin(rows, expr, made) for expr in exprs]
    known = [one for one in result if one is not None]
    if len(known) < len(result) or len({scan.access for scan, _, _ in known}) > 1:
        return None
    scans = [known[0][0]] if known else scans_of(rows)
    if not scans:
        # A SELECT without FROM reads no table.
        return None
    return scans[0], tuple((name, kind) for _, name, kind in known)


_Made = dict[AttributeId, Expr]
"""What columns are computed from, by the projections of a plan."""


def _made(rows: Plan) -> _Made:
    result: _Made = {}
    for node in nodes_of(rows):
        if isinstance(node, Project):
            result |= {one.attribute.id: one.expr for one in node.outputs}
    return result


def _origin(rows: Plan, expr: Expr, made: _Made) -> tuple[Scan, ColumnName, SqlType] | None:
    """The scan that a column comes from as it is, its name there and its type."""
    while isinstance(expr, ColumnRef) and expr.id in made:
        expr = made[expr.id]
    for scan in scans_of(rows):
        for attribute in scan.attributes:
            if isinstance(expr, ColumnRef) and expr.id == attribute.id and attribute.type:
                return scan, attribute.name, attribute.type
    return None


def condition_on(rows: Plan, scan: Scan) -> Expr | None:
    """What selections say of a scan's own rows, its columns by their names in the table."""
    made = _made(rows)
    names: dict[AttributeId, Expr] = {
        one.id: ColumnRef(one.name, one.type, one.nullable)
        for one in scan.attributes
        if one.type is not None
    }
    parts = dict.fromkeys(
        substitute(part, names)
        for part in _selecting(rows, made)
        if columns_of(part)
        and columns_of(part) <= names.keys()
        and find_condition_blocker(part) is None
    )
    return all_of(list(parts))


def _selecting(rows: Plan, made: _Made) -> Iterator[Expr]:
    """The conditions of selections in terms of scans, the lowest first: it may guard others."""
    for node in reversed(tuple(nodes_of(rows))):
        if isinstance(node, Select):
            for part in conjuncts(node.predicate):
                # As often as projections lie above each other.
                while columns_of(part) & made.keys():
                    part = substitute(part, made)
                yield part
