"""A step of a fixpoint that goes on from a key's value to other keys' by what a table adds.

Law: only what is surely that is taken for it: rows are a key and its value, one for each key that
is there; a step joins their key with a table's, and the rows derived have a key of the table and
the value more or less what stands in a column of it, a constant, or both. `offset` is told in the
order of values, where the least is best: of MAX a value that falls is one that grows there.
Out of scope: finding rows (`engine.fixpoint.valued_links`), which stay (`settling`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from impctl.data.schema import Kind, SqlType
from impctl.engine.circuit import Circuit
from impctl.engine.fixpoint.best_rows import Grouped
from impctl.engine.fixpoint.joined_step import JoinedStep, ends_of
from impctl.engine.fixpoint.plain_step import WHOLE_NUMBERS
from impctl.engine.operators.join import Join
from impctl.engine.operators.project import Project
from impctl.expr.nodes import Arithmetic, ArithmeticOp, ColumnRef, Expr, Literal
from impctl.types import AttributeId
from impctl.values import dataclass

_ADDED = frozenset({Kind.BYTE, Kind.SHORT, Kind.INTEGER, Kind.LONG})
_MOST = 1 << 50
"""Constants lie within this: sums of a few of them are far from overflowing."""


@dataclass(frozen=True, slots=True)
class Offset:
    """What is added to a value: a column of the table times `sign`, None for none; a constant."""

    column: AttributeId | None = None
    sign: int = 1
    constant: int = 0


@dataclass(frozen=True, slots=True)
class ValuedStep(JoinedStep):
    """Its columns by what they are for.

    `key` and `value` are columns of the fixpoint, `rows` has for each column of that side which one
    it is of the fixpoint or its rank; `head` is the table's column with the key of a row derived.
    """

    key: AttributeId
    value: AttributeId
    rows: Mapping[AttributeId, AttributeId]
    head: AttributeId
    offset: Offset
    is_greatest: bool


def valued_step(
    step: Circuit,
    columns: Sequence[tuple[AttributeId, SqlType]],
    grouped: Grouped,
    rank: AttributeId,
) -> ValuedStep | None:
    """The step as such a one, if it is."""
    kinds = dict(columns)
    if len(grouped.keys) != 1 or len(grouped.values) != 1 or len(kinds) != 2:
        return None
    (key,), ((value, is_greatest),) = grouped.keys, grouped.values
    if kinds[key].kind not in WHOLE_NUMBERS or kinds[value].kind is not Kind.LONG:
        return None
    above = _Above(step)
    join = above.join
    if join is None:
        return None
    ends = ends_of(step, above.at, join, above.count)
    if ends is None:
        return None
    side, own = ends
    of_table = dict(join.sides[1 - side].columns)
    head = above.leaf(ColumnRef(key, kinds[key]))
    body = above.leaf(ColumnRef(rank, kinds[value]))
    sum_ = above.sum_of(ColumnRef(value, kinds[value]), own, of_table)
    if not isinstance(head, ColumnRef) or not isinstance(body, ColumnRef) or sum_ is None:
        return None
    keys = (*join.sides[side].keys, *join.sides[1 - side].keys)
    if [own.get(one) for one in (*keys[:1], body.id, sum_.own)] != [key, rank, value]:
        return None
    if len(keys) != 2 or head.id not in of_table:
        return None
    if {of_table[head.id], of_table[keys[1]]} != {kinds[key]}:
        return None
    sign = -1 if is_greatest else 1
    offset = Offset(sum_.column, sign * sum_.sign, sign * sum_.constant)
    return ValuedStep(join, side, key, value, own, head.id, offset, is_greatest)


@dataclass(frozen=True, slots=True)
class _Sum:
    """A column of the fixpoint's side and what is added to it."""

    own: AttributeId
    column: AttributeId | None = None
    sign: int = 1
    constant: int = 0


class _Above:
    """What stands above the join of a step: projections alone, from the last operator down."""

    def __init__(self, step: Circuit) -> None:
        operators = tuple(step)
        self._outputs: list[Mapping[AttributeId, Expr]] = []
        self.at = len(operators) - 1
        while self.at >= 0 and isinstance(operator := operators[self.at], Project):
            self._outputs.append(dict(operator.outputs))
            (self.at,) = step.wires[self.at]
        result = operators[self.at] if self.at >= 0 else None
        self.join = result if isinstance(result, Join) and not result.reads else None

    @property
    def count(self) -> int:
        """How many projections."""
        return len(self._outputs)

    def leaf(self, expr: Expr, depth: int = 0) -> Expr:
        """The expression below that a column is there, `depth` projections down so far."""
        return self._below(expr, depth)[0]

    def _below(self, expr: Expr, depth: int) -> tuple[Expr, int]:
        while isinstance(expr, ColumnRef) and depth < self.count:
            expr, depth = self._outputs[depth][expr.id], depth + 1
        return expr, depth

    def sum_of(
        self,
        expr: Expr,
        own: Mapping[AttributeId, AttributeId],
        table: Mapping[AttributeId, SqlType],
        depth: int = 0,
    ) -> _Sum | None:
        """The expression as a column of the fixpoint's and what is added to it, if it is that."""
        expr, depth = self._below(expr, depth)
        if isinstance(expr, ColumnRef):
            return _Sum(expr.id) if expr.id in own else None
        if not isinstance(expr, Arithmetic):
            return None
        if expr.op not in (ArithmeticOp.ADD, ArithmeticOp.SUBTRACT):
            return None
        sign = 1 if expr.op is ArithmeticOp.ADD else -1
        sides = [(expr.left, expr.right), (expr.right, expr.left)]
        for mine, other in sides if sign > 0 else sides[:1]:
            result = self.sum_of(mine, own, table, depth)
            if result is not None:
                return self._more(result, self.leaf(other, depth), sign, table)
        return None

    def _more(
        self, result: _Sum, other: Expr, sign: int, table: Mapping[AttributeId, SqlType]
    ) -> _Sum | None:
        """A sum and one more leaf, of whole numbers; one column at most."""
        if isinstance(other, Literal):
            if other.type.kind not in _ADDED or other.value is None:
                return None
            more = result.constant + sign * int(other.value)
            if abs(int(other.value)) >= _MOST:
                return None
            return _Sum(result.own, result.column, result.sign, more)
        if not isinstance(other, ColumnRef) or other.id not in table or result.column is not None:
            return None
        if table[other.id].kind not in _ADDED:
            return None
        return _Sum(result.own, other.id, sign, result.constant)
