"""Frozen nodes of scalar expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from functools import partial
from math import copysign
from operator import is_
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from msgspec import Struct
from msgspec.structs import astuple, replace

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


class Traversable(Struct, frozen=True):
    """A struct with expressions in its fields: alone, in tuples, or in clauses."""

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The outermost expressions in the fields, in order."""
        return tuple(cast("list[Expr]", outermost(self, ExprNode)))

    def map(self, change: Callable[[Expr], Expr]) -> Self:
        """A copy with each of `expressions` changed; the same object if none changes."""
        return with_changed(self, ExprNode, cast("Callable[[ExprNode], ExprNode]", change))


class Clause(Traversable, frozen=True):
    """A part of a node, such as a sort key: its expressions are those of the node."""


class Node(Traversable, frozen=True, eq=False, kw_only=True):
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


def _meaning(struct: Traversable) -> tuple[Any, ...]:
    """The fields without the span."""
    return tuple([getattr(struct, name) for name in type(struct).__match_args__])


_Kind = TypeVar("_Kind")
_Struct = TypeVar("_Struct", bound=Traversable | tuple[Any, ...])


def outermost(struct: Traversable, kind: type[_Kind]) -> list[_Kind]:
    """The structs of this kind in the fields of another, in order, without those inside others."""
    result: list[_Kind] = []
    _collect(astuple(struct), kind, result)
    return result


def _collect(values: tuple[object, ...], kind: type[_Kind], result: list[_Kind]) -> None:
    for value in values:
        if isinstance(value, kind):
            result.append(value)
        elif isinstance(value, tuple):
            _collect(value, kind, result)
        elif isinstance(value, Clause):
            _collect(astuple(value), kind, result)


def with_changed(struct: _Struct, kind: type[_Kind], change: Callable[[_Kind], _Kind]) -> _Struct:
    """A copy with each of the `outermost` changed; the same object if none changes."""
    # One function with a loop: each frame for a level limits how deep a query may nest.
    whole: Any = struct
    values = whole if isinstance(whole, tuple) else astuple(whole)
    news: list[Any] = []
    for value in values:
        if isinstance(value, kind):
            news.append(change(value))
        elif isinstance(value, tuple | Clause):
            news.append(with_changed(value, kind, change))
        else:
            news.append(value)
    if all(map(is_, news, values)):
        return struct
    if whole is values:
        return cast("_Struct", tuple(news))
    return cast("_Struct", replace(whole, **dict(zip(whole.__struct_fields__, news, strict=True))))


class ExprNode(Node, frozen=True):
    """A node of an expression, whose `expressions` are its operands."""

    def walk(self) -> Iterator[Expr]:
        """The expression and all its parts, outermost first."""
        yield cast("Expr", self)
        for part in self.expressions:
            yield from part.walk()

    @property
    def columns(self) -> frozenset[AttributeId]:
        """The columns that it reads."""
        return frozenset(part.id for part in self.walk() if isinstance(part, ColumnRef))

    def transform(self, change: Callable[[Expr], Expr | None]) -> Expr:
        """The expression rebuilt from the leaves; `change` returns None to keep a node."""
        transform: Any = partial(ExprNode.transform, change=change)
        rebuilt = cast("Expr", with_changed(self, ExprNode, transform))
        changed = change(rebuilt)
        return rebuilt if changed is None else changed

    def rewrite(self, change: Callable[[Expr], Expr | None]) -> Expr:
        """The expression with parts replaced, the outermost first; where `change` returns None,
        the parts inside are rewritten."""
        changed = change(cast("Expr", self))
        if changed is not None:
            return changed
        rewrite: Any = partial(ExprNode.rewrite, change=change)
        return cast("Expr", with_changed(self, ExprNode, rewrite))

    def substitute(self, replacements: Mapping[AttributeId, Expr]) -> Expr:
        """The expression with columns replaced; others stay."""
        return self.transform(
            lambda part: replacements.get(part.id) if isinstance(part, ColumnRef) else None
        )


class Literal(ExprNode, frozen=True):
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


class ColumnRef(ExprNode, frozen=True):
    """A column of the input, by its identity in the plan."""

    id: AttributeId
    type: SqlType
    nullable: bool = True


class Arithmetic(ExprNode, frozen=True):
    op: ArithmeticOp
    left: Expr
    right: Expr


class Negate(ExprNode, frozen=True):
    operand: Expr


class Compare(ExprNode, frozen=True):
    op: CompareOp
    left: Expr
    right: Expr


class And(ExprNode, frozen=True):
    operands: tuple[Expr, ...]


class Or(ExprNode, frozen=True):
    operands: tuple[Expr, ...]


class Not(ExprNode, frozen=True):
    operand: Expr


class IsNull(ExprNode, frozen=True):
    operand: Expr


class InList(ExprNode, frozen=True):
    """`operand IN (option, ...)`; the options are expressions, normally literals."""

    operand: Expr
    options: tuple[Expr, ...]


class Like(ExprNode, frozen=True):
    operand: Expr
    pattern: str
    escape: str = "\\"


class Case(ExprNode, frozen=True):
    """Searched CASE; `CASE x WHEN v` and IF have this form too. No ELSE is a NULL literal."""

    branches: tuple[tuple[Expr, Expr], ...]
    default: Expr


class Coalesce(ExprNode, frozen=True):
    operands: tuple[Expr, ...]


class Cast(ExprNode, frozen=True):
    """CAST under ANSI rules: an unfit value is an error. `zone` is the session's time zone."""

    operand: Expr
    type: SqlType
    zone: str = "UTC"


class Mean(ExprNode, frozen=True):
    """AVG after splitting: `total / count`, NULL for count 0, in AVG's result type."""

    total: Expr
    count: Expr
    type: SqlType


class Call(ExprNode, frozen=True):
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


def linked(start: Iterable[_Kind], pairs: Sequence[tuple[_Kind, _Kind]]) -> frozenset[_Kind]:
    """These values, and all that pairs link with them, directly or not."""
    result = set(start)
    for _ in pairs:
        for pair in pairs:
            if not result.isdisjoint(pair):
                result |= {*pair}
    return frozenset(result)


def conjunction(parts: Sequence[Expr], span: Span | None = None) -> Expr:
    """The parts joined by AND; a single one unchanged."""
    return parts[0] if len(parts) == 1 else And(tuple(parts), span=span)


def conjuncts(expr: Expr) -> tuple[Expr, ...]:
    """The parts of a conjunction, flattened; the predicate itself if it is no conjunction."""
    if isinstance(expr, And):
        return tuple(part for operand in expr.operands for part in conjuncts(operand))
    return (expr,)
