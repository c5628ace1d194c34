"""What is known of a query's flows, in the terms of the choice: rows, changed rows, bytes.

Law: measured where something measures it (rows of stored runs, of tables, of changes), else taken
from what flows in; a guess is only ever of a cost.
Out of scope: prior times (`placement.graph`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from impctl.app.maintaining.keeping.buffers import Facts, bounded_of
from impctl.app.maintaining.keeping.opened import Opened
from impctl.app.maintaining.kinds import Expected
from impctl.app.workbench.pinned import PinnedTables
from impctl.compile.flows import row_bytes
from impctl.placement.graph import KindOfChange, Numbers
from impctl.types import TableName

ROWS_UNKNOWN = 100
"""Rows of a change whose log does not tell."""
_NEW = 0.95
"""The share of the keys that come with their own partners that is taken to be new, as long as no
run has told: rows that look like an order with its lines may be lines of older orders."""
_FEW_ROWS = 8.0
"""Groups of so few rows on average are taken to come whole, as an order with its lines does."""


def numbers_of(query: Opened, tables: PinnedTables, expected: Sequence[Expected]) -> Numbers:
    """The numbers of a circuit."""
    flows = _Flows(query, tables)
    changes = {frozenset(one.tables): one for one in expected}

    def changed(wire: int, kind: KindOfChange) -> float:
        one = changes[kind.tables]
        return sum(flows.fan_out(at, wire) * _rows(one, name) for at, name in flows.below(wire))

    def fresh(side: str, kind: KindOfChange) -> float:
        if not flows.comes_with_its_own(side, kind):
            return 0.0
        deletes = changes[kind.tables].deletes
        deleted = max((deletes.get(name, 0.0) for name in kind.tables), default=0.0)
        return _NEW * (1.0 - deleted)

    def deleted(wire: int, kind: KindOfChange) -> float:
        one = changes[kind.tables]
        return sum(
            flows.fan_out(at, wire) * _rows(one, name) * one.deletes.get(name, 0.0)
            for at, name in flows.below(wire)
        )

    kinds = [KindOfChange(one.tables, one.per_day) for one in expected]
    bounded = bounded_of(
        query, Facts(rows=flows.rows, changed=changed, deleted=deleted, kinds=kinds)
    )
    return Numbers(
        rows=flows.rows, changed=changed, bytes=flows.bytes, fresh=fresh, bounded=bounded
    )


def rows_of_change(expected: Expected, tables: Collection[TableName]) -> float:
    """Rows that such a change moves in these tables, together."""
    return sum(_rows(expected, name) for name in expected.tables if name in tables)


def _rows(expected: Expected, table: TableName) -> float:
    if table not in expected.tables:
        return 0.0
    rows = expected.rows.get(table)
    return ROWS_UNKNOWN if rows is None else max(1.0, rows)


class _Flows:
    """The rows at every wire of a circuit, from what is stored of it."""

    def __init__(self, query: Opened, tables: PinnedTables) -> None:
        self._query = query
        compiled = query.compiled
        self._operators, self._wires = tuple(compiled.circuit), compiled.circuit.wires
        self._sources = compiled.sources
        self._known: dict[int, float] = {
            -1 - at: float(tables.snapshot(source.table).likely_rows)
            for at, source in enumerate(compiled.sources)
        }
        self._sides: dict[str, tuple[int, int]] = {}
        self._widths: dict[str, int] = {}
        told: dict[int, float] = {}
        for at, operator in enumerate(self._operators):
            own = self._wires[at]
            for side, mine, other in zip(operator.indexes, own, reversed(own), strict=False):
                self._sides[side.name] = (mine, other)
                self._widths[side.name] = row_bytes(side.columns, 1)
                told[mine] = float(self._side_rows(side.name))
        self._told = told
        self._grouped: dict[str, tuple[float, float]] = {}
        """Groups, and rows below them."""
        for at, operator in enumerate(self._operators):
            self._known[at] = self._rows_at(at)
            if operator.group_keys:
                rows = sum(self._known[wire] for wire in self._wires[at])
                self._grouped[operator.piece] = self._known[at], rows

    def _side_rows(self, name: str) -> int:
        size = self._query.sizes.get(name)
        return self._query.as_stored.meta.read_rows.get(name, 0) if size is None else size.rows

    def _rows_at(self, at: int) -> float:
        if at in self._told:
            return self._told[at]
        operator = self._operators[at]
        if operator.group_keys and operator.reads:
            return float(self._side_rows(operator.reads[0].name))
        names = [keeper.name for keeper in operator.arrangements()]
        stored = [self._query.sizes[name].rows for name in names if name in self._query.sizes]
        if stored and not operator.indexes:
            return float(stored[0])
        return max((self._known[wire] for wire in self._wires[at]), default=0.0)

    def rows(self, wire: int) -> float:
        return self._known[wire]

    def below(self, wire: int) -> list[tuple[int, TableName]]:
        """The sources below a wire, with their tables."""
        result: dict[int, TableName] = {}
        waiting = [wire]
        while waiting:
            at = waiting.pop()
            if at < 0:
                result[-1 - at] = self._sources[-1 - at].table
            else:
                waiting += self._wires[at]
        return sorted(result.items())

    def fan_out(self, source: int, wire: int) -> float:
        """Rows at a wire for each row of a source."""
        return self._known[wire] / max(1.0, self._known[-1 - source])

    def comes_with_its_own(self, piece: str, kind: KindOfChange) -> bool:
        """Whether the keys that a run asks of a piece mostly come with it: both sides of its join
        change, or its groups have few rows."""
        if piece in self._sides:
            mine, other = self.tables_of(piece)
            return bool(mine & kind.tables and other & kind.tables)
        groups, below = self._grouped.get(piece, (0.0, 0.0))
        return below <= groups * _FEW_ROWS

    def tables_of(self, side: str) -> tuple[frozenset[TableName], frozenset[TableName]]:
        """The tables below a side, and those below the other one."""
        mine, other = (frozenset(n for _, n in self.below(wire)) for wire in self._sides[side])
        return mine, other

    def bytes(self, name: str) -> int:
        """Bytes of a piece if it is kept."""
        size = self._query.sizes.get(name)
        if size is not None:
            return size.bytes
        if name in self._grouped:
            return self._query.as_stored.meta.group_bytes.get(name, 0)
        return self._query.as_stored.meta.read_rows.get(name, 0) * self._widths.get(name, 0)
