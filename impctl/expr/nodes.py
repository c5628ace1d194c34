"""Frozen nodes of scalar expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from enum import StrEnum
from math import copysign
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from impctl.data.schema import SqlType
    from impctl.types import AttributeId


class Span(Struct, frozen=True):
    """A stretch of the SQL text: character offsets, and line and column (1-based) of its start."""

    start: int
    end: int
    line: int
    column: int


class ArithmeticOp(StrEnum):
    ADD = "+"
    SUBTRACT = "-"
    MULTIPLY = "*"
    DIVIDE = "/"
    INTEGER_DIVIDE = "div"
    REMAINDER = "%"


class CompareOp(StrEnum):
    EQUAL = "="
    NOT_EQUAL = "<>"
    LESS = "<"
    LESS_EQUAL = "<="
    GREATER = ">"
    GREATER_EQUAL = ">="
    NULL_SAFE_EQUAL = "<=>"

    @property
    def mirrored(self) -> CompareOp:
        """The operator for exchanged operands."""
        return _MIRRORED.get(self, self)

    @property
    def opposite(self) -> CompareOp | None:
        """What holds where this is false, ignoring NULL; None for `<=>`, which has none."""
        return _OPPOSITES.get(self)


_MIRRORED = {
    CompareOp.LESS: CompareOp.GREATER,
    CompareOp.LESS_EQUAL: CompareOp.GREATER_EQUAL,
    CompareOp.GREATER: CompareOp.LESS,
    CompareOp.GREATER_EQUAL: CompareOp.LESS_EQUAL,
}
_OPPOSITES = {
    CompareOp.EQUAL: CompareOp.NOT_EQUAL,
    CompareOp.NOT_EQUAL: CompareOp.EQUAL,
    CompareOp.LESS: CompareOp.GREATER_EQUAL,
    CompareOp.LESS_EQUAL: CompareOp.GREATER,
    CompareOp.GREATER: CompareOp.LESS_EQUAL,
    CompareOp.GREATER_EQUAL: CompareOp.LESS,
}

LiteralValue = bool | int | float | str | Decimal | bytes | None
"""DATE literals hold days, timestamps microseconds since 1970-01-01 (UTC for TIMESTAMP)."""


class Node(Struct, frozen=True, eq=False, kw_only=True):
    """A node of an expression or plan; `span` is its place in the SQL text, which does not count
    when nodes are compared."""

    span: Span | None = None

    def __eq__(self, other: object) -> bool:
        return self.__class__ is other.__class__ and _meaning(self) == _meaning(other)

    def __ne__(self, other: object) -> bool:
        # Struct defines `__ne__` without `__eq__`.
        return not self == other

    def __hash__(self) -> int:
        return hash(_meaning(self))


def _meaning(node: Node) -> tuple[object, ...]:
    names: tuple[str, ...] = type(node).__match_args__
    return tuple([getattr(node, name) for name in names])


class Literal(Node, frozen=True):
    """A typed constant; NULL has value None. 0.0 and -0.0 are different literals."""

    value: LiteralValue
    type: SqlType

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._meaning == other._meaning

    def __hash__(self) -> int:
        return hash(self._meaning)

    @property
    def _meaning(self) -> tuple[LiteralValue, SqlType, bool]:
        value = self.value
        is_negative_zero = isinstance(value, float) and value == 0 and copysign(1, value) < 0
        return value, self.type, is_negative_zero


class ColumnRef(Node, frozen=True):
    """A column of the input, by its identity in the plan."""

    id: AttributeId
    type: SqlType
    nullable: bool = True


class Arithmetic(Node, frozen=True):
    op: ArithmeticOp
    left: Expr
    right: Expr


class Negate(Node, frozen=True):
    operand: Expr


class Compare(Node, frozen=True):
    op: CompareOp
    left: Expr
    right: Expr


class And(Node, frozen=True):
    operands: tuple[Expr, ...]


class Or(Node, frozen=True):
    operands: tuple[Expr, ...]


class Not(Node, frozen=True):
    operand: Expr


class IsNull(Node, frozen=True):
    operand: Expr


class InList(Node, frozen=True):
    """`operand IN (option, ...)`; the options are expressions, normally literals."""

    operand: Expr
    options: tuple[Expr, ...]


class Like(Node, frozen=True):
    operand: Expr
    pattern: str
    escape: str = "\\"


class Case(Node, frozen=True):
    """Searched CASE; `CASE x WHEN v` and IF have this form too. No ELSE is a NULL literal."""

    branches: tuple[tuple[Expr, Expr], ...]
    default: Expr


class Coalesce(Node, frozen=True):
    operands: tuple[Expr, ...]


class Cast(Node, frozen=True):
    """CAST under ANSI rules: an unfit value is an error. `zone` is the session's time zone."""

    operand: Expr
    type: SqlType
    zone: str = "UTC"


class Mean(Node, frozen=True):
    """AVG after splitting: `total / count`, NULL for count 0, in AVG's result type."""

    total: Expr
    count: Expr
    type: SqlType


class Call(Node, frozen=True):
    """Any other deterministic scalar function, by name so that Spark can evaluate it. `type` is
    None if impctl does not know the result type; `zone` is the session's time zone."""

    name: str
    arguments: tuple[Expr, ...]
    type: SqlType | None = None
    zone: str = "UTC"


Expr = (
    Literal
    | ColumnRef
    | Arithmetic
    | Negate
    | Compare
    | And
    | Or
    | Not
    | IsNull
    | InList
    | Like
    | Case
    | Coalesce
    | Cast
    | Mean
    | Call
)


def children(expr: Expr) -> tuple[Expr, ...]:
    """In reading order."""
    match expr:
        case Literal() | ColumnRef():
            return ()
        case Arithmetic() | Compare():
            return (expr.left, expr.right)
        case Negate() | Not() | IsNull() | Cast() | Like():
            return (expr.operand,)
        case And() | Or() | Coalesce():
            return expr.operands
        case InList():
            return (expr.operand, *expr.options)
        case Case():
            return (*(part for branch in expr.branches for part in branch), expr.default)
        case Mean():
            return (expr.total, expr.count)
        case Call():
            return expr.arguments


def with_children(expr: Expr, parts: tuple[Expr, ...]) -> Expr:
    """The expression with other parts, in the order of `children`."""
    match expr:
        case Literal() | ColumnRef():
            return expr
        case Arithmetic() | Compare():
            return replace(expr, left=parts[0], right=parts[1])
        case Negate() | Not() | IsNull() | Cast() | Like():
            return replace(expr, operand=parts[0])
        case And() | Or() | Coalesce():
            return replace(expr, operands=parts)
        case InList():
            return replace(expr, operand=parts[0], options=parts[1:])
        case Case():
            pairs = tuple(zip(parts[:-1:2], parts[1:-1:2], strict=True))
            return replace(expr, branches=pairs, default=parts[-1])
        case Mean():
            return replace(expr, total=parts[0], count=parts[1])
        case Call():
            return replace(expr, arguments=parts)


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and all its parts, outermost first."""
    yield expr
    for part in children(expr):
        yield from walk(part)


def columns_of(expr: Expr) -> frozenset[AttributeId]:
    return frozenset(part.id for part in walk(expr) if isinstance(part, ColumnRef))


def transform(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """The expression rebuilt from the leaves; `change` returns None to keep a node."""
    parts = children(expr)
    rebuilt = tuple(transform(part, change) for part in parts)
    if any(new is not old for new, old in zip(rebuilt, parts, strict=True)):
        expr = with_children(expr, rebuilt)
    changed = change(expr)
    return expr if changed is None else changed


def substitute(expr: Expr, replacements: dict[AttributeId, Expr]) -> Expr:
    """The expression with columns replaced; others stay."""

    def swap(part: Expr) -> Expr | None:
        return replacements.get(part.id) if isinstance(part, ColumnRef) else None

    return transform(expr, swap)


def plus(left: Expr, right: Expr) -> Expr:
    return Arithmetic(ArithmeticOp.ADD, left, right)


def minus(left: Expr, right: Expr) -> Expr:
    return Arithmetic(ArithmeticOp.SUBTRACT, left, right)


def times(left: Expr, right: Expr) -> Expr:
    return Arithmetic(ArithmeticOp.MULTIPLY, left, right)


def equated_columns(predicate: Expr) -> list[tuple[ColumnRef, ColumnRef]]:
    """Pairs of columns that a conjunct compares by `=` or `<=>`."""
    return [
        (part.left, part.right)
        for part in conjuncts(predicate)
        if isinstance(part, Compare)
        and part.op in (CompareOp.EQUAL, CompareOp.NULL_SAFE_EQUAL)
        and isinstance(part.left, ColumnRef)
        and isinstance(part.right, ColumnRef)
    ]


def conjuncts(expr: Expr) -> tuple[Expr, ...]:
    """The parts of a conjunction, flattened; the predicate itself if it is no conjunction."""
    if isinstance(expr, And):
        return tuple(part for operand in expr.operands for part in conjuncts(operand))
    return (expr,)
