"""How rows and values over the sketch compare with those over the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from impctl.data.schema import Kind
from impctl.expr.nodes import (
    And,
    Arithmetic,
    ArithmeticOp,
    Call,
    Cast,
    Coalesce,
    ColumnRef,
    Compare,
    CompareOp,
    Expr,
    InList,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    Span,
    columns_of,
    conjuncts,
)
from impctl.expr.types import MAX_PRECISION, common_type, loses_values, type_of
from impctl.safety.facts import KnownSigns, Signs, may_be_nan, normalised, number_of, signs_of
from impctl.types import AccessId, AttributeId

if TYPE_CHECKING:
    from impctl.plan.nodes import Attribute


# The four ways in which a value over the sketch can compare with that over the table. Law: what
# each means is said in `safety.direction`; `meet` and `mirrored` follow from that.


class Relation(StrEnum):
    EQUAL = "equal"
    AT_MOST = "at most"
    AT_LEAST = "at least"
    UNKNOWN = "unknown"

    @property
    def mirrored(self) -> Relation:
        """The relation of the negated value."""
        match self:
            case Relation.AT_MOST:
                return Relation.AT_LEAST
            case Relation.AT_LEAST:
                return Relation.AT_MOST
            case Relation.EQUAL | Relation.UNKNOWN:
                return self

    def meet(self, other: Relation) -> Relation:
        """What holds of a value that comes from either side."""
        if self is other or other is Relation.EQUAL:
            return self
        return other if self is Relation.EQUAL else Relation.UNKNOWN


# Functions under which a lesser argument gives a lesser value. Law: an answer is given only where
# the value over the sketch is NULL, or both are known and compare as `safety.direction` says, for
# every pair of arguments that compares so; an argument for which Spark gives an error has no
# value. Java's `exp` and its logarithms are semi-monotonic by their documentation, its square
# root is the nearest double.

RelationOf = Callable[[Expr], tuple[Relation, Signs]]
"""How an argument compares, and what is known of its values."""

_WHOLE = frozenset({"floor", "ceil", "ceiling"})
_ROUNDED = frozenset({"round", "bround"})
_LOGARITHMS = frozenset({"ln", "log", "log10", "log2", "log1p"})
"""NULL for too small arguments, which a greater argument can only avoid."""


def relation_of_call(call: Call, asked: RelationOf) -> Relation:
    """How the function's value over the sketch compares; UNKNOWN where nothing is claimed."""
    name, arguments = call.name.lower(), call.arguments
    if name in ("greatest", "least"):
        return _of_choice(name == "greatest", arguments, asked)
    if name == "datediff" and len(arguments) == 2:
        return _of_days_between(arguments, asked)
    if name == "year" and len(arguments) == 1 and _is_date(arguments[0]):
        return asked(arguments[0])[0]
    if not arguments or any(number_of(rest) is None for rest in arguments[1:]):
        return Relation.UNKNOWN
    relation, signs = asked(arguments[0])
    return relation if _keeps_order(name, arguments, relation, signs) else Relation.UNKNOWN


def _keeps_order(name: str, arguments: tuple[Expr, ...], relation: Relation, signs: Signs) -> bool:
    """Whether the function of the first argument, with constants, is increasing in it."""
    result = type_of(arguments[0])
    if result is None or not result.is_numeric:
        return False
    if name in _ROUNDED:
        # A decimal of all digits may round to one that no decimal holds.
        is_wide = result.kind is Kind.DECIMAL and result.precision == MAX_PRECISION
        return len(arguments) <= 2 and not is_wide
    if len(arguments) != 1:
        return False
    if name in _WHOLE:
        return not may_be_nan(result, signs)
    if name == "sqrt":
        # Of a negative number it is NaN, the greatest of all.
        return signs.nonnegative
    if name in _LOGARITHMS:
        return relation is not Relation.AT_LEAST
    return name == "exp"


def _of_choice(is_greatest: bool, arguments: tuple[Expr, ...], asked: RelationOf) -> Relation:
    """GREATEST and LEAST, which ignore NULLs. One more argument can only make GREATEST greater: so
    it may be missing where the whole must be at most its value over the table, and not where it
    must be at least that."""
    types = [type_of(argument) for argument in arguments]
    first = types[0]
    if first is None or first.kind is Kind.OTHER:
        return Relation.UNKNOWN
    # Whole numbers of any size are compared as they are; others might be rounded first.
    if len(set(types)) != 1 and not all(result and result.is_integral for result in types):
        return Relation.UNKNOWN
    free = Relation.AT_MOST if is_greatest else Relation.AT_LEAST
    result = Relation.EQUAL
    for argument in arguments:
        relation, signs = asked(argument)
        if relation not in (Relation.EQUAL, free) and not signs.not_null:
            return Relation.UNKNOWN
        result = result.meet(relation)
    return result


def _of_days_between(arguments: tuple[Expr, ...], asked: RelationOf) -> Relation:
    """Only of dates: a time zone's clock may reverse the order of instants' dates."""
    if not all(map(_is_date, arguments)):
        return Relation.UNKNOWN
    end, start = (asked(argument)[0] for argument in arguments)
    return end.meet(start.mirrored)


def _is_date(expr: Expr) -> bool:
    result = type_of(expr)
    return result is not None and result.kind is Kind.DATE


# How a value over the sketch compares with the value of the same row over the table. Law:
# `AT_MOST` means the value over the sketch is NULL, or both are known and it is at most the one
# over the table in Spark's order (NaN greatest); `AT_LEAST` is its mirror. With doubles a step is
# taken only where NaN cannot turn the order round: -NaN is NaN, 0 * infinity and infinity -
# infinity are NaN.

RISING = (Relation.EQUAL, Relation.AT_MOST)
"""Relations under which a lower bound on the one value holds of the other."""

FALLING = (Relation.EQUAL, Relation.AT_LEAST)
"""Relations under which an upper bound on the one value holds of the other."""

UPWARD = (CompareOp.GREATER, CompareOp.GREATER_EQUAL)
"""Comparisons that a greater left side can only make true."""

DOWNWARD = (CompareOp.LESS, CompareOp.LESS_EQUAL)
"""Comparisons that a lesser left side can only make true."""


class Columns(Struct, frozen=True, dict=True):
    """What is known of a node's columns; a column not named is unknown."""

    relations: Mapping[AttributeId, Relation]
    signs: KnownSigns

    @cached_property
    def _made(self) -> dict[tuple[int, ...], tuple[tuple[object, ...], Columns]]:
        return {}

    def once(self, make: Callable[[], Columns], *of: object) -> Columns:
        """Result of `make` for these columns with `of`, computed once per objects. States with the
        same columns differ in much else, such as the keys of their rows."""
        # The cache keeps them alive, so that no other object gets the `id` of one.
        place = tuple([id(part) for part in of])
        known = self._made.get(place)
        if known is None:
            known = self._made[place] = (of, make())
        return known[1]

    def are_equal(self, expr: Expr) -> bool:
        """Whether the expression has the same value over the sketch."""
        return all(
            self.relations.get(column, Relation.UNKNOWN) is Relation.EQUAL
            for column in columns_of(expr)
        )


def direction(expr: Expr, columns: Columns) -> Relation:
    """The expression's relation, from those of its columns."""
    if columns.are_equal(expr):
        return Relation.EQUAL
    match expr:
        case ColumnRef():
            return columns.relations.get(expr.id, Relation.UNKNOWN)
        case Negate():
            return _mirrored(direction(expr.operand, columns), expr.operand, columns)
        case Arithmetic():
            return _of_arithmetic(expr, columns)
        case Cast():
            source = type_of(expr.operand)
            if source is None or not (source.is_numeric and expr.type.is_numeric):
                return Relation.UNKNOWN
            # NULL over the table is neither at most nor at least what it is over the sketch.
            if loses_values(source, expr.type):
                return Relation.UNKNOWN
            return direction(expr.operand, columns)
        case Coalesce():
            return _of_coalesce(expr, columns)
        case Call():
            return relation_of_call(
                expr, lambda x: (direction(x, columns), signs_of(x, columns.signs))
            )
        case _:
            return Relation.UNKNOWN


def _mirrored(relation: Relation, operand: Expr, columns: Columns) -> Relation:
    if relation is Relation.EQUAL:
        return relation
    if may_be_nan(type_of(operand), signs_of(operand, columns.signs)):
        return Relation.UNKNOWN
    return relation.mirrored


def _of_arithmetic(expr: Arithmetic, columns: Columns) -> Relation:
    result = type_of(expr)
    if result is None or not result.is_numeric:
        return Relation.UNKNOWN
    match expr.op:
        case ArithmeticOp.ADD | ArithmeticOp.SUBTRACT:
            return _of_sum(expr, columns)
        case ArithmeticOp.MULTIPLY:
            left, right = number_of(expr.left), number_of(expr.right)
            if right is not None:
                return _scaled(expr, expr.left, right < 0, right == 0, columns)
            if left is not None:
                return _scaled(expr, expr.right, left < 0, left == 0, columns)
            return Relation.UNKNOWN
        case ArithmeticOp.DIVIDE:
            divisor = number_of(expr.right)
            if divisor is None or divisor == 0:
                return Relation.UNKNOWN
            return _scaled(expr, expr.left, divisor < 0, False, columns)
        case ArithmeticOp.INTEGER_DIVIDE | ArithmeticOp.REMAINDER:
            return Relation.UNKNOWN


def _of_sum(expr: Arithmetic, columns: Columns) -> Relation:
    left, right = direction(expr.left, columns), direction(expr.right, columns)
    signs_left, signs_right = (signs_of(part, columns.signs) for part in (expr.left, expr.right))
    if expr.op is ArithmeticOp.SUBTRACT:
        right = _mirrored(right, expr.right, columns)
        signs_right = Signs(signs_right.nonpositive, signs_right.nonnegative)
    if not _infinities_agree(expr, signs_left, signs_right):
        return Relation.UNKNOWN
    return left.meet(right)


def _infinities_agree(expr: Arithmetic, left: Signs, right: Signs) -> bool:
    """Whether infinity - infinity, hence a new NaN, cannot arise over table or sketch."""
    result = type_of(expr)
    if result is not None and not result.is_fractional:
        return True
    if any(_is_finite(part) for part in (expr.left, expr.right)):
        return True
    up = left.nonnegative and right.nonnegative
    return up or (left.nonpositive and right.nonpositive)


def _is_finite(expr: Expr) -> bool:
    result = type_of(expr)
    by_type = result is not None and result.is_numeric and not result.is_fractional
    return by_type or number_of(expr) is not None


def _scaled(
    expr: Arithmetic, operand: Expr, is_negative: bool, is_zero: bool, columns: Columns
) -> Relation:
    result = type_of(expr)
    if is_zero and (result is None or result.is_fractional):
        return Relation.UNKNOWN
    relation = direction(operand, columns)
    return _mirrored(relation, operand, columns) if is_negative else relation


def _of_coalesce(expr: Coalesce, columns: Columns) -> Relation:
    """`coalesce(x, c)`: a NULL over the sketch becomes c, so c must be on the right side of x."""
    if len(expr.operands) != 2:
        return Relation.UNKNOWN
    operand, default = expr.operands
    number, relation = number_of(default), direction(operand, columns)
    signs, result = signs_of(operand, columns.signs), type_of(operand)
    if number is None or result is None or not result.is_numeric:
        return Relation.UNKNOWN
    low = relation is Relation.AT_MOST and signs.nonnegative and number <= 0
    high = relation is Relation.AT_LEAST and signs.nonpositive and number >= 0
    return relation if signs.not_null or low or high else Relation.UNKNOWN


# Conditions that a row cannot pass over the sketch without passing over the table. Law: if
# `find_objection` finds none, then "true over the sketch" implies "true over the table" for every
# pair of rows related as the columns say.


class Objection(Struct, frozen=True):
    """The part of a condition that a sketch could make true, and the value behind it."""

    atom: Expr
    operand: Expr
    relation: Relation


def find_objection(predicate: Expr, columns: Columns) -> Objection | None:
    """The first part that is not preserved; None when the whole condition is."""
    return _objection(normalised(predicate), columns)


def _objection(predicate: Expr, columns: Columns) -> Objection | None:
    if columns.are_equal(predicate):
        return None
    match predicate:
        case And() | Or():
            result = (_objection(part, columns) for part in predicate.operands)
            return next((objection for objection in result if objection is not None), None)
        case Compare():
            return _of_comparison(predicate, columns)
        case Not(operand=IsNull(operand=operand)):
            relation = direction(operand, columns)
            is_open = relation is Relation.UNKNOWN
            return Objection(predicate, operand, relation) if is_open else None
        case IsNull() | InList() | Like():
            relation = direction(predicate.operand, columns)
            return Objection(predicate, predicate.operand, relation)
        case Not(operand=IsNull() | InList() | Like() as atom):
            return Objection(atom, atom.operand, direction(atom.operand, columns))
        case Not(operand=operand):
            return _of_truth(predicate, operand, columns, FALLING)
        case _:
            return _of_truth(predicate, predicate, columns, RISING)


def _of_truth(
    atom: Expr, operand: Expr, columns: Columns, allowed: tuple[Relation, ...]
) -> Objection | None:
    """A bare BOOLEAN value, where false < true; for a number a lesser one may be the true one."""
    kind = type_of(operand)
    is_truth = kind is not None and kind.kind is Kind.BOOLEAN
    relation = direction(operand, columns) if is_truth else Relation.UNKNOWN
    return None if relation in allowed else Objection(atom, operand, relation)


def _of_comparison(atom: Compare, columns: Columns) -> Objection | None:
    if _is_at_an_end(atom, columns):
        return None
    sides = ((atom.left, atom.op in UPWARD), (atom.right, atom.op in DOWNWARD))
    ordered = atom.op in UPWARD or atom.op in DOWNWARD
    comparable = _share_an_order(atom)
    for operand, grows in sides:
        relation = direction(operand, columns)
        allowed = RISING if grows else FALLING
        if relation is Relation.EQUAL or (ordered and comparable and relation in allowed):
            continue
        return Objection(atom, operand, relation)
    return None


def _is_at_an_end(atom: Compare, columns: Columns) -> bool:
    """`x = c` or `x <> c` with the constant at an end of what x can be: then it is `x >= c` or the
    like. `MAX(CASE WHEN p THEN 1 ELSE 0 END) = 1`, `COUNT(*) <> 0`: a value at most 1, and at most
    what it is over the table, is 1 there if it is 1 here."""
    if atom.op not in (CompareOp.EQUAL, CompareOp.NOT_EQUAL):
        return False
    for operand, other in ((atom.left, atom.right), (atom.right, atom.left)):
        ends = _ends(operand, other, columns)
        if ends is None:
            continue
        relation = direction(operand, columns)
        (low, high), number = ends
        is_top, is_bottom = high <= number, low >= number
        if atom.op is CompareOp.NOT_EQUAL:
            is_top, is_bottom = is_bottom, is_top
        if (is_top and relation in RISING) or (is_bottom and relation in FALLING):
            return True
    return False


def _ends(
    operand: Expr, other: Expr, columns: Columns
) -> tuple[tuple[Decimal, Decimal], Decimal] | None:
    """The interval of the operand's values and the constant beside it; false is 0, true is 1."""
    result, beside = type_of(operand), type_of(other)
    if result is None or beside is None:
        return None
    if result.kind is beside.kind is Kind.BOOLEAN and isinstance(other, Literal):
        truth = other.value
        return None if truth is None else ((Decimal(0), Decimal(1)), Decimal(bool(truth)))
    number = number_of(other)
    if number is None or not result.is_numeric or common_type(result, beside) is None:
        return None
    return signs_of(operand, columns.signs).bounds, number


def _share_an_order(atom: Compare) -> bool:
    """Whether the comparison's order is that of either side's own type."""
    left, right = type_of(atom.left), type_of(atom.right)
    if left is None or right is None or Kind.OTHER in (left.kind, right.kind):
        return False
    if left == right or (left.is_numeric and right.is_numeric):
        return True
    # A date becomes midnight, which keeps its order; between the two kinds of timestamp a time
    # zone that skips an hour would not.
    kinds = {left.kind, right.kind}
    return Kind.DATE in kinds and bool(kinds & {Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ})


# What is known of a plan node's rows over the sketches, compared with its rows over the tables.
# Law, for every choice of sketches that covers the provenance: EXACT: the rows are the same.
# KEYED: for each sketched access below, the columns `keys[access]` all equal its partition
# attribute, and the rows over the sketches are exactly the rows over the tables whose key lies in
# the sketch. CONTAINED: each row over the sketches has its own row over the tables, with columns
# related as `columns` says. UNSAFE: none of these is known.


class Status(StrEnum):
    EXACT = "exact"
    KEYED = "keyed"
    CONTAINED = "contained"
    UNSAFE = "unsafe"


class Refusal(Struct, frozen=True):
    """Why a sketch is not safe: one sentence without a full stop, and the place in the SQL text."""

    reason: str
    span: Span | None = None


Keys = Mapping[AccessId, frozenset[AttributeId]]


class SafetyState(Struct, frozen=True):
    """The state of one node. `sketched` are all sketched accesses below, `keys` only means
    something for KEYED. `identifiers` are sets of columns that each identify rows uniquely. `ties`
    is set where the rows depend on a choice among tied rows that may differ between runs. `causes`
    says why a column's relation is what it is, for messages."""

    status: Status
    columns: Columns
    sketched: frozenset[AccessId] = frozenset()
    keys: Keys = field(default_factory=dict)
    identifiers: frozenset[frozenset[AttributeId]] = frozenset()
    ties: Refusal | None = None
    causes: Mapping[AttributeId, str] = field(default_factory=dict)
    refusal: Refusal | None = None

    @property
    def is_whole(self) -> bool:
        """EXACT or KEYED: rows are unchanged or absent."""
        return self.status in (Status.EXACT, Status.KEYED)

    @property
    def is_equal(self) -> bool:
        """Whether every column has the value it has over the tables."""
        return all(r is Relation.EQUAL for r in self.columns.relations.values())


def refused(reason: str, span: Span | None) -> SafetyState:
    """The state of a node that no sketch of the chosen attributes is safe for."""
    return SafetyState(Status.UNSAFE, Columns({}, {}), refusal=Refusal(reason, span))


def equal_columns(attributes: tuple[Attribute, ...], signs: KnownSigns) -> Columns:
    """All these columns EQUAL."""
    return Columns({attribute.id: Relation.EQUAL for attribute in attributes}, signs)


def with_equalities(state: SafetyState, predicate: Expr | None) -> SafetyState:
    """KEYED: columns that the predicate equates with a key are keys too."""
    if state.status is not Status.KEYED or predicate is None:
        return state
    pairs = [pair for part in conjuncts(predicate) if (pair := _equated(part)) is not None]
    return replace(state, keys={a: _equal_to(columns, pairs) for a, columns in state.keys.items()})


def _equal_to(
    columns: frozenset[AttributeId], pairs: list[tuple[AttributeId, AttributeId]]
) -> frozenset[AttributeId]:
    """These columns with all that the pairs equate with one of them."""
    while True:
        more = {x for pair in pairs if (pair[0] in columns) != (pair[1] in columns) for x in pair}
        if not more:
            return columns
        columns |= more


def _equated(part: Expr) -> tuple[AttributeId, AttributeId] | None:
    """Two columns that are identical on every row that passes. Columns of different types are
    skipped: a cast inside the comparison may round, and then two values of different ranges count
    as equal. Widening one integer type to another is exact."""
    if not (
        isinstance(part, Compare)
        and part.op in (CompareOp.EQUAL, CompareOp.NULL_SAFE_EQUAL)
        and isinstance(part.left, ColumnRef)
        and isinstance(part.right, ColumnRef)
    ):
        return None
    left, right = part.left.type, part.right.type
    if left == right or (left.is_integral and right.is_integral):
        return part.left.id, part.right.id
    return None
