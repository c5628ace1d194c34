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
from impctl.expr import nodes as e
from impctl.expr.functions import ONE_ROW
from impctl.expr.nodes import Call, ColumnRef, Expr, IsNull, Span
from impctl.expr.types import MAX_PRECISION, common_type, loses_values, type_of
from impctl.plan import nodes as p
from impctl.plan.explain import shortened
from impctl.safety.facts import KnownSigns, Signs, may_be_nan, normalized, number_of, signs_of
from impctl.types import AccessId, AttributeId, ColumnName

if TYPE_CHECKING:
    from impctl.plan.nodes import Attribute


class Relation(StrEnum):
    """How a value over the sketch compares with the value of the same row over the table. AT_MOST:
    it is NULL, or both are known and it is at most the other in Spark's order (NaN greatest).
    AT_LEAST is the mirror image."""

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
        """The relation of a value that comes from either side."""
        if self is other or other is Relation.EQUAL:
            return self
        return other if self is Relation.EQUAL else Relation.UNKNOWN


# Monotone functions. Law: a relation is claimed only if it holds for every pair of arguments
# related as described; an argument for which Spark fails has no value. Java documents `exp` and
# the logarithms as semi-monotonic; its square root is the nearest double.

RelationOf = Callable[[e.Expr], tuple[Relation, Signs]]
"""How an argument compares, and what is known about its values."""
_WHOLE = frozenset({"floor", "ceil", "ceiling"})
_ROUNDED = frozenset({"round", "bround"})
_LOGARITHMS = frozenset({"ln", "log", "log10", "log2", "log1p"})
"""NULL for arguments that are too small, which a greater argument can only avoid."""


def relation_of_call(call: e.Call, describe: RelationOf) -> Relation:
    """The relation of the function's value; UNKNOWN where nothing is claimed."""
    name, arguments = call.name.lower(), call.arguments
    if name in ("greatest", "least"):
        return _of_choice(name == "greatest", arguments, describe)
    if name == "datediff" and len(arguments) == 2:
        return _of_days_between(arguments, describe)
    if name == "year" and len(arguments) == 1 and _is_date(arguments[0]):
        return describe(arguments[0])[0]
    if not arguments or any(number_of(rest) is None for rest in arguments[1:]):
        return Relation.UNKNOWN
    relation, signs = describe(arguments[0])
    return relation if _keeps_order(name, arguments, relation, signs) else Relation.UNKNOWN


def _keeps_order(
    name: str, arguments: tuple[e.Expr, ...], relation: Relation, signs: Signs
) -> bool:
    """Whether the function, with the other arguments constant, is monotone in the first."""
    result = type_of(arguments[0])
    if result is None or not result.is_numeric:
        return False
    if name in _ROUNDED:
        # A decimal of 38 digits may round to one of 39.
        is_wide = result.kind is Kind.DECIMAL and result.precision == MAX_PRECISION
        return len(arguments) <= 2 and not is_wide
    if len(arguments) != 1:
        return False
    if name in _WHOLE:
        return not may_be_nan(result, signs)
    if name == "sqrt":
        # Of a negative number it is NaN, the greatest value.
        return signs.nonnegative
    if name in _LOGARITHMS:
        return relation is not Relation.AT_LEAST
    return name == "exp"


def _of_choice(is_greatest: bool, arguments: tuple[e.Expr, ...], describe: RelationOf) -> Relation:
    """GREATEST and LEAST ignore NULLs. Another argument can only make GREATEST greater: so an
    argument may be NULL over the sketch if the result must be AT_MOST, but not if AT_LEAST."""
    types = [type_of(argument) for argument in arguments]
    first = types[0]
    if first is None or first.kind is Kind.OTHER:
        return Relation.UNKNOWN
    # Integers of any size are compared exactly; other numbers might be rounded first.
    if len(set(types)) != 1 and not all(result and result.is_integral for result in types):
        return Relation.UNKNOWN
    free = Relation.AT_MOST if is_greatest else Relation.AT_LEAST
    result = Relation.EQUAL
    for argument in arguments:
        relation, signs = describe(argument)
        if relation not in (Relation.EQUAL, free) and not signs.not_null:
            return Relation.UNKNOWN
        result = result.meet(relation)
    return result


def _of_days_between(arguments: tuple[e.Expr, ...], describe: RelationOf) -> Relation:
    """Only of dates: a time zone may reverse the order of instants' dates."""
    if not all(map(_is_date, arguments)):
        return Relation.UNKNOWN
    end, start = (describe(argument)[0] for argument in arguments)
    return end.meet(start.mirrored)


def _is_date(expr: e.Expr) -> bool:
    result = type_of(expr)
    return result is not None and result.kind is Kind.DATE


RISING = (Relation.EQUAL, Relation.AT_MOST)
"""Relations under which a lower bound on the value also holds over the table."""
FALLING = (Relation.EQUAL, Relation.AT_LEAST)
"""Relations under which an upper bound on the value also holds over the table."""
UPWARD = (e.CompareOp.GREATER, e.CompareOp.GREATER_EQUAL)
"""Comparisons that a greater left side can only make true."""
DOWNWARD = (e.CompareOp.LESS, e.CompareOp.LESS_EQUAL)
"""Comparisons that a lesser left side can only make true."""


class Columns(Struct, frozen=True, dict=True):
    """What is known about a node's columns; a missing column is unknown."""

    relations: Mapping[AttributeId, Relation]
    signs: KnownSigns

    @cached_property
    def _cache(self) -> dict[tuple[int, ...], tuple[tuple[object, ...], Columns]]:
        return {}

    def once(self, compute: Callable[[], Columns], *of: object) -> Columns:
        """The result of `compute` for these columns and the objects `of`, cached: many states have
        the same columns but differ otherwise, such as in keys."""
        # The cache keeps the objects alive, so that no other object gets the `id` of one.
        key = tuple([id(part) for part in of])
        cached = self._cache.get(key)
        if cached is None:
            cached = self._cache[key] = (of, compute())
        return cached[1]

    def are_equal(self, expr: e.Expr) -> bool:
        """Whether the expression has the same value over the sketch."""
        return all(
            self.relations.get(column, Relation.UNKNOWN) is Relation.EQUAL
            for column in expr.columns
        )


def direction(expr: e.Expr, columns: Columns) -> Relation:
    """The expression's relation, from those of its columns. With doubles a step is taken only where
    NaN cannot reverse the order: -NaN, 0 * infinity and infinity - infinity are NaN."""
    if columns.are_equal(expr):
        return Relation.EQUAL
    match expr:
        case e.ColumnRef():
            return columns.relations.get(expr.id, Relation.UNKNOWN)
        case e.Negate():
            return _mirrored(direction(expr.operand, columns), expr.operand, columns)
        case e.Arithmetic():
            return _of_arithmetic(expr, columns)
        case e.Cast():
            source = type_of(expr.operand)
            if source is None or not (source.is_numeric and expr.type.is_numeric):
                return Relation.UNKNOWN
            # The value over the table may become NULL, which is neither AT_MOST nor AT_LEAST.
            if loses_values(source, expr.type):
                return Relation.UNKNOWN
            return direction(expr.operand, columns)
        case e.Coalesce():
            return _of_coalesce(expr, columns)
        case e.Call():
            return relation_of_call(
                expr, lambda x: (direction(x, columns), signs_of(x, columns.signs))
            )
        case _:
            return Relation.UNKNOWN


def _mirrored(relation: Relation, operand: e.Expr, columns: Columns) -> Relation:
    if relation is Relation.EQUAL:
        return relation
    if may_be_nan(type_of(operand), signs_of(operand, columns.signs)):
        return Relation.UNKNOWN
    return relation.mirrored


def _of_arithmetic(expr: e.Arithmetic, columns: Columns) -> Relation:
    result = type_of(expr)
    if result is None or not result.is_numeric:
        return Relation.UNKNOWN
    match expr.op:
        case e.ArithmeticOp.ADD | e.ArithmeticOp.SUBTRACT:
            return _of_sum(expr, columns)
        case e.ArithmeticOp.MULTIPLY:
            left, right = number_of(expr.left), number_of(expr.right)
            if right is not None:
                return _scaled(expr, expr.left, right < 0, right == 0, columns)
            if left is not None:
                return _scaled(expr, expr.right, left < 0, left == 0, columns)
            return Relation.UNKNOWN
        case e.ArithmeticOp.DIVIDE:
            divisor = number_of(expr.right)
            if divisor is None or divisor == 0:
                return Relation.UNKNOWN
            return _scaled(expr, expr.left, divisor < 0, False, columns)
        case e.ArithmeticOp.INTEGER_DIVIDE | e.ArithmeticOp.REMAINDER:
            return Relation.UNKNOWN


def _of_sum(expr: e.Arithmetic, columns: Columns) -> Relation:
    left, right = direction(expr.left, columns), direction(expr.right, columns)
    signs_left, signs_right = (signs_of(part, columns.signs) for part in (expr.left, expr.right))
    if expr.op is e.ArithmeticOp.SUBTRACT:
        right = _mirrored(right, expr.right, columns)
        signs_right = Signs(signs_right.nonpositive, signs_right.nonnegative)
    if not _infinities_agree(expr, signs_left, signs_right):
        return Relation.UNKNOWN
    return left.meet(right)


def _infinities_agree(expr: e.Arithmetic, left: Signs, right: Signs) -> bool:
    """Whether infinity - infinity, which is NaN, cannot occur over table or sketch."""
    result = type_of(expr)
    if result is not None and not result.is_fractional:
        return True
    if any(_is_finite(part) for part in (expr.left, expr.right)):
        return True
    up = left.nonnegative and right.nonnegative
    return up or (left.nonpositive and right.nonpositive)


def _is_finite(expr: e.Expr) -> bool:
    result = type_of(expr)
    by_type = result is not None and result.is_numeric and not result.is_fractional
    return by_type or number_of(expr) is not None


def _scaled(
    expr: e.Arithmetic, operand: e.Expr, is_negative: bool, is_zero: bool, columns: Columns
) -> Relation:
    result = type_of(expr)
    if is_zero and (result is None or result.is_fractional):
        return Relation.UNKNOWN
    relation = direction(operand, columns)
    return _mirrored(relation, operand, columns) if is_negative else relation


def _of_coalesce(expr: e.Coalesce, columns: Columns) -> Relation:
    """`coalesce(x, c)`: NULL over the sketch becomes c, which must compare with x as required."""
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


class Objection(Struct, frozen=True):
    """The part of a condition that a sketch could make true, and the value behind it."""

    atom: e.Expr
    operand: e.Expr
    relation: Relation


def find_objection(predicate: e.Expr, columns: Columns) -> Objection | None:
    """The first part that is not preserved; None if for every pair of rows related as `columns`
    says "true over the sketch" implies "true over the table"."""
    return _objection(normalized(predicate), columns)


def _objection(predicate: e.Expr, columns: Columns) -> Objection | None:
    if columns.are_equal(predicate):
        return None
    match predicate:
        case e.And() | e.Or():
            objections = (_objection(part, columns) for part in predicate.operands)
            return next((objection for objection in objections if objection is not None), None)
        case e.Compare():
            return _of_comparison(predicate, columns)
        case e.Not(operand=e.IsNull(operand=operand)):
            relation = direction(operand, columns)
            is_open = relation is Relation.UNKNOWN
            return Objection(predicate, operand, relation) if is_open else None
        case e.IsNull() | e.InList() | e.Like():
            relation = direction(predicate.operand, columns)
            return Objection(predicate, predicate.operand, relation)
        case e.Not(operand=e.IsNull() | e.InList() | e.Like() as atom):
            return Objection(atom, atom.operand, direction(atom.operand, columns))
        case e.Not(operand=operand):
            return _of_truth(predicate, operand, columns, FALLING)
        case _:
            return _of_truth(predicate, predicate, columns, RISING)


def _of_truth(
    atom: e.Expr, operand: e.Expr, columns: Columns, allowed: tuple[Relation, ...]
) -> Objection | None:
    """A bare BOOLEAN value, where false < true; among numbers a lesser one may be the true one."""
    kind = type_of(operand)
    is_truth = kind is not None and kind.kind is Kind.BOOLEAN
    relation = direction(operand, columns) if is_truth else Relation.UNKNOWN
    return None if relation in allowed else Objection(atom, operand, relation)


def _of_comparison(atom: e.Compare, columns: Columns) -> Objection | None:
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


def _is_at_an_end(atom: e.Compare, columns: Columns) -> bool:
    """Whether the atom is `x = c` or `x <> c` with c at an end of the values of x, which then means
    `x >= c` or similar. Examples: `MAX(CASE WHEN p THEN 1 ELSE 0 END) = 1`, `COUNT(*) <> 0`. A
    value of at most 1 that is AT_MOST and 1 over the sketch is 1 over the table."""
    if atom.op not in (e.CompareOp.EQUAL, e.CompareOp.NOT_EQUAL):
        return False
    for operand, other in ((atom.left, atom.right), (atom.right, atom.left)):
        ends = _ends(operand, other, columns)
        if ends is None:
            continue
        relation = direction(operand, columns)
        (low, high), number = ends
        is_top, is_bottom = high <= number, low >= number
        if atom.op is e.CompareOp.NOT_EQUAL:
            is_top, is_bottom = is_bottom, is_top
        if (is_top and relation in RISING) or (is_bottom and relation in FALLING):
            return True
    return False


def _ends(
    operand: e.Expr, other: e.Expr, columns: Columns
) -> tuple[tuple[Decimal, Decimal], Decimal] | None:
    """The interval of the operand's values, and the constant; false is 0, true is 1."""
    result, other_type = type_of(operand), type_of(other)
    if result is None or other_type is None:
        return None
    if result.kind is other_type.kind is Kind.BOOLEAN and isinstance(other, e.Literal):
        truth = other.value
        return None if truth is None else ((Decimal(0), Decimal(1)), Decimal(bool(truth)))
    number = number_of(other)
    if number is None or not result.is_numeric or common_type(result, other_type) is None:
        return None
    return signs_of(operand, columns.signs).bounds, number


def _share_an_order(atom: e.Compare) -> bool:
    """Whether the comparison orders values as both sides' types do."""
    left, right = type_of(atom.left), type_of(atom.right)
    if left is None or right is None or Kind.OTHER in (left.kind, right.kind):
        return False
    if left == right or (left.is_numeric and right.is_numeric):
        return True
    # A date becomes midnight, which keeps the order; a time zone that skips an hour may change the
    # order between the two kinds of timestamp.
    kinds = {left.kind, right.kind}
    return Kind.DATE in kinds and bool(kinds & {Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ})


class Status(StrEnum):
    """A node's rows over the sketches, compared with its rows over the tables, for all sketches
    that cover the provenance. EXACT: the rows are the same. KEYED: for each sketched access below,
    the columns `keys[access]` equal its partition attribute, and the rows are exactly those whose
    key is in the sketch. CONTAINED: the rows map one to one to some of those over the tables, with
    columns related as `columns` says. UNSAFE: none of these is known."""

    EXACT = "exact"
    KEYED = "keyed"
    CONTAINED = "contained"
    UNSAFE = "unsafe"


class Refusal(Struct, frozen=True):
    """Why a sketch is not safe: one sentence without a period, and the position in the SQL text."""

    reason: str
    span: e.Span | None = None


Keys = Mapping[AccessId, frozenset[AttributeId]]

Sketched = Mapping[AccessId, ColumnName]
"""The column that each sketched access is sketched on."""


class SafetyState(Struct, frozen=True):
    """The state of one node. `sketched`: all sketched accesses below. `keys`: for KEYED only.
    `identifiers`: sets of columns that each identify rows uniquely. `ties`: set if the rows depend
    on a choice among tied rows that may differ between runs. `causes`: why columns have their
    relations, for messages."""

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
        """Whether every column has its value over the tables."""
        return all(r is Relation.EQUAL for r in self.columns.relations.values())


def refused(reason: str, span: e.Span | None) -> SafetyState:
    return SafetyState(Status.UNSAFE, Columns({}, {}), refusal=Refusal(reason, span))


def equal_columns(attributes: tuple[Attribute, ...], signs: KnownSigns) -> Columns:
    return Columns({attribute.id: Relation.EQUAL for attribute in attributes}, signs)


def with_equalities(state: SafetyState, predicate: e.Expr | None) -> SafetyState:
    """For KEYED: columns that the predicate equates with a key are keys too."""
    if state.status is not Status.KEYED or predicate is None:
        return state
    pairs = _equated(predicate)
    return replace(state, keys={a: e.linked(columns, pairs) for a, columns in state.keys.items()})


def _equated(predicate: e.Expr) -> list[tuple[AttributeId, AttributeId]]:
    """Pairs of columns that are identical on every row that passes. Columns of different types are
    skipped, because a cast in the comparison may round: values of different ranges would be equal.
    Widening an integer type is exact."""
    return [
        (left.id, right.id)
        for left, right in e.equated_columns(predicate)
        if left.type == right.type or (left.type.is_integral and right.type.is_integral)
    ]


# How messages name parts of a query; these texts decide nothing.

_LONGEST = 60


class Wording(Struct, frozen=True):
    """The SQL text and a name for each column that has one worth showing."""

    sql: str
    names: dict[AttributeId, str]

    @classmethod
    def of(cls, sql: str, root: p.Plan) -> Wording:
        """Names from the plan: columns by name, aggregates by their call in the text."""
        wording = cls(sql, {})
        for node in reversed(list(root.walk())):
            match node:
                case p.Scan() | p.Recursive() | p.Fixpoint():
                    wording.names.update((a.id, a.name) for a in node.attributes)
                case p.Project():
                    wording.names.update(
                        (o.attribute.id, wording.text(o.expr)) for o in node.outputs
                    )
                case p.Aggregate():
                    wording.names.update((k.attribute.id, wording.text(k.expr)) for k in node.keys)
                    wording.names.update((o.attribute.id, wording.call(o)) for o in node.aggregates)
                case _:
                    pass
        return wording

    def text(self, expr: Expr) -> str:
        """The expression as the query spells it, or its columns."""
        if isinstance(expr, ColumnRef) and expr.id in self.names:
            return self.names[expr.id]
        return self.slice(expr.span) or self._columns(expr)

    def call(self, output: p.AggregateOutput) -> str:
        """An aggregate call as the query spells it."""
        call = output.call
        if text := self.slice(call.span):
            return text
        arguments = ", ".join(self.text(argument) for argument in call.arguments)
        return f"{call.function}({'DISTINCT ' if call.distinct else ''}{arguments or '*'})"

    def slice(self, span: Span | None) -> str:
        """The SQL text of a span on one line; empty without one."""
        if span is None or span.end > len(self.sql) or span.start >= span.end:
            return ""
        return shortened(" ".join(self.sql[span.start : span.end].split()), _LONGEST)

    def _columns(self, expr: Expr) -> str:
        if not expr.expressions:
            return str(getattr(expr, "value", getattr(expr, "id", "expression")))
        return ", ".join(dict.fromkeys(self.names.get(c, c) for c in sorted(expr.columns)))


def condition_name(node: p.Select) -> str:
    """The user's name for this condition."""
    below: p.Plan = node.child
    while isinstance(below, p.Project | p.Select):
        below = below.child
    return "HAVING" if isinstance(below, p.Aggregate) else "WHERE"


def difference(relation: Relation) -> str:
    """How a value over part of its rows compares with the value over all of them."""
    match relation:
        case Relation.AT_MOST:
            how = "smaller"
        case Relation.AT_LEAST:
            how = "larger"
        case Relation.UNKNOWN | Relation.EQUAL:
            how = "larger or smaller"
    return f"can be {how} over part of a group than over all of it"


def objection_text(
    subject: str, objection: Objection, causes: Mapping[AttributeId, str], wording: Wording
) -> str:
    """Why a condition is not preserved, as one sentence."""
    text = wording.text(objection.operand)
    if isinstance(objection.atom, Call) and objection.atom.name == ONE_ROW:
        return (
            f"`{text}` must return at most one row, and may return fewer rows over part of its "
            "table"
        )
    if isinstance(objection.atom, IsNull):
        return (
            f"{subject} tests `{text}` for NULL, and it can be NULL over part of a group but not "
            "over all of it"
        )
    sentence = f"{subject} compares `{text}`, which {difference(objection.relation)}"
    known = [causes[c] for c in sorted(objection.operand.columns) if c in causes]
    return f"{sentence}, because {known[0]}" if known else sentence
