"""Whether a query that succeeds over its tables can fail over the sketches.

Law: the result is None only if every evaluation that fails over the sketches corresponds to one
that fails over the tables. Rows whose columns are EQUAL fail in both or neither. Over partial
groups sums and counts differ, so an expression of them may fail in new ways: a divisor may be zero,
a value may not fit a cast, or a sum may be greater because negative values are missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction

from msgspec import Struct

from impctl.data.schema import BOOLEAN, STRING, Kind, SqlType
from impctl.expr import nodes as e
from impctl.expr.types import as_decimal, sum_type, type_of
from impctl.plan import nodes as p
from impctl.plan.functions import AGGREGATES
from impctl.plan.properties import part_can_fail
from impctl.safety.direction import (
    FALLING,
    RISING,
    Columns,
    Refusal,
    Relation,
    Sketched,
    Status,
    Wording,
    direction,
)
from impctl.safety.facts import Fact, learn, number_of, signs_of
from impctl.safety.judge import Judged, node_states
from impctl.safety.transfer import relation_of
from impctl.types import AccessId, AttributeId

Interval = tuple[Fraction, Fraction]
"""The least and the greatest possible value of a number."""
Ranges = Mapping[AttributeId, Interval]

_DIVISIONS = (e.ArithmeticOp.DIVIDE, e.ArithmeticOp.INTEGER_DIVIDE, e.ArithmeticOp.REMAINDER)
_BITS = {Kind.BYTE: 7, Kind.SHORT: 15, Kind.INTEGER: 31, Kind.LONG: 63}
_NEVER_FAILING = frozenset(
    {"cbrt", "ceil", "ceiling", "exp", "floor", "isnan", "ln", "log", "log10", "log2", "pow",
     "power", "sign", "signum", "sqrt"}
)  # fmt: skip
_OVERFLOWING = frozenset({"sum", "avg", "mean"})
_NULL_OF_NONE = frozenset({"sum", "avg", "mean", "min", "max"})
_OF_ANY_VALUE = frozenset({"count", "count_if", "max", "min", *_OVERFLOWING})
"""Aggregates that fail for no value of an argument."""


class Sizes(Struct, frozen=True):
    """Statistics of the tables at the versions read; missing names are unknown. `rows`: maximum
    number per access; `bounds`: all numbers of a scan's column are in this interval."""

    rows: Mapping[AccessId, int]
    bounds: Ranges


def part_failure(
    query: p.Query, sketched: Sketched, facts: Iterable[Fact], sizes: Sizes
) -> Refusal | None:
    """A part of the query that may fail because a sketch skips rows, or None. `facts` may be all
    that is true at the versions read."""
    result = node_states(query, sketched, tuple(facts))
    calls = {
        output.attribute.id: output.call
        for node in query.root.walk()
        if isinstance(node, p.Aggregate)
        for output in node.aggregates
    }
    finder = _Finder(_ranges(query.root, sizes), calls, Wording.of(query.sql, query.root))
    return finder.first(query.root, result.judged)


class _Finder(Struct, frozen=True):
    ranges: Ranges
    calls: Mapping[AttributeId, p.AggregateCall]
    wording: Wording

    def first(self, node: p.Plan, judged: Judged) -> Refusal | None:
        below = [part.state for part in judged.inputs]
        # Nothing is known about what is unsafe alone, such as a window under `rank <= 1`.
        if not any(state.sketched or state.status is Status.UNSAFE for state in below):
            return None
        for child, part in zip(node.inputs, judged.inputs, strict=True):
            result = self.first(child, part)
            if result is not None:
                return result
        columns = _merged([state.columns for state in below])
        for expr in node.expressions:
            failing = self._failing(expr, columns, frozenset())
            if failing is not None:
                return Refusal(_reason(self.wording.text(failing)), failing.span)
        if isinstance(node, p.Aggregate) and judged.state.status is Status.CONTAINED:
            for output in node.aggregates:
                if self._may_overflow(output.call, output.attribute.id, columns):
                    return Refusal(_reason(self.wording.call(output)), output.call.span)
        return None

    def _may_overflow(self, call: p.AggregateCall, output: AttributeId, columns: Columns) -> bool:
        if call.function not in AGGREGATES:
            return True
        if call.function not in _OVERFLOWING:
            # It fails on equal values over the table too.
            are_same = all(columns.are_equal(argument) for argument in call.arguments)
            return not are_same and call.function not in _OF_ANY_VALUE
        (argument,) = call.arguments
        argument_type = type_of(argument)
        if argument_type is not None and argument_type.is_fractional:
            return False
        if call.function != "sum":
            # The mean of integers is a double; that of decimals is computed from their sum.
            return argument_type is None or not (argument_type.is_integral or output in self.ranges)
        is_sure = relation_of(call, columns, self.wording)[0] is not Relation.UNKNOWN
        return not (is_sure or output in self.ranges)

    def _failing(self, expr: e.Expr, columns: Columns, nonzero: frozenset[e.Expr]) -> e.Expr | None:
        """The innermost part that may fail; `nonzero`: what is not zero where it is evaluated."""
        if columns.are_equal(expr):
            return None
        for part, known, not_zero in _evaluated(expr, columns, nonzero):
            result = self._failing(part, known, not_zero)
            if result is not None:
                return result
        if not part_can_fail(expr) or self._is_harmless(expr, columns, nonzero):
            return None
        return expr

    def _is_harmless(self, expr: e.Expr, columns: Columns, nonzero: frozenset[e.Expr]) -> bool:
        sql_type = type_of(expr)
        if isinstance(expr, e.Call) and expr.name.lower().startswith("try_"):
            return True
        if sql_type is None:
            return False
        match expr:
            case e.Arithmetic() if expr.op in _DIVISIONS:
                is_nonzero = self._is_nonzero(expr.right, columns, nonzero)
                return (is_nonzero or self._is_of_none(expr)) and _has_room(expr, sql_type)
            case e.Arithmetic() if sql_type.is_numeric:
                return sql_type.is_fractional or self._fits(expr) or _is_smaller(expr, columns)
            case e.Negate(operand=operand):
                is_positive = signs_of(operand, columns.signs).nonnegative
                return sql_type.is_fractional or is_positive or self._fits(expr)
            case e.Cast(operand=operand):
                source = type_of(operand)
                if sql_type in (STRING, BOOLEAN) or source is None:
                    return source is not None and source.is_numeric
                if not (sql_type.is_numeric and source.is_numeric):
                    return False
                return sql_type.is_fractional or self._fits(expr) or _is_no_larger(operand, columns)
            case e.Mean():
                return sql_type.is_fractional
            case e.Call(name=name):
                lower = name.lower()
                types = [type_of(argument) for argument in expr.arguments]
                is_double = all(t is not None and t.is_fractional for t in types[:1])
                return (
                    (lower in _NEVER_FAILING and is_double)
                    or (lower in ("round", "bround", "abs") and sql_type.is_fractional)
                    or (lower == "abs" and self._fits(e.Negate(expr.arguments[0])))
                )
            case _:
                return False

    def _is_nonzero(self, expr: e.Expr, columns: Columns, nonzero: frozenset[e.Expr]) -> bool:
        """Whether the divisor is NULL or not zero wherever the division is evaluated."""
        bare = _bare(expr)
        if expr in nonzero or bare in nonzero:
            return True
        number = number_of(expr)
        if number is not None:
            return number != 0
        if isinstance(bare, e.Case):
            parts = _evaluated(bare, columns, nonzero)
            # A condition, then its result, and the default last.
            return all(
                self._is_nonzero(part, known, not_zero) or _is_null(part)
                for part, known, not_zero in (*parts[1::2], parts[-1])
            )
        result = _interval(bare, self.ranges)
        return result is not None and (result[0] > 0 or result[1] < 0)

    def _is_of_none(self, expr: e.Arithmetic) -> bool:
        """Whether the dividend is NULL where the divisor is zero, as in `SUM(x) / COUNT(x)`. NULL
        divided by zero is NULL."""
        divisor = _bare(expr.right)
        count = self.calls.get(divisor.id) if isinstance(divisor, e.ColumnRef) else None
        if count is None or count.function != "count":
            return False
        return any(
            call is not None
            and call.function in _NULL_OF_NONE
            and (call.arguments, call.condition) == (count.arguments, count.condition)
            for call in (self.calls.get(column) for column in _strict_columns(expr.left))
        )

    def _fits(self, expr: e.Expr) -> bool:
        """Whether the number always fits its type."""
        sql_type, result = type_of(expr), _computed(expr, self.ranges)
        return sql_type is not None and result is not None and _is_within(result, sql_type)


def _strict_columns(expr: e.Expr) -> Iterator[AttributeId]:
    """Columns where a NULL makes the whole expression NULL."""
    match expr:
        case e.ColumnRef():
            yield expr.id
        case e.Arithmetic() | e.Cast() | e.Negate():
            for part in expr.expressions:
                yield from _strict_columns(part)
        case _:
            pass


def _reason(text: str) -> str:
    return f"`{text}` may fail over part of a group, although it does not fail over the whole group"


def _merged(columns: list[Columns]) -> Columns:
    if len(columns) == 1:
        return columns[0]
    relations = {id: relation for part in columns for id, relation in part.relations.items()}
    signs = {key: known for part in columns for key, known in part.signs.items()}
    return Columns(relations, signs)


def _evaluated(
    expr: e.Expr, columns: Columns, nonzero: frozenset[e.Expr]
) -> list[tuple[e.Expr, Columns, frozenset[e.Expr]]]:
    """The operands, each with what is known where it is evaluated, in order of evaluation."""
    if not isinstance(expr, e.Case):
        return [(part, columns, nonzero) for part in expr.expressions]
    parts = []
    for condition, result in expr.branches:
        parts.append((condition, columns, nonzero))
        inside = Columns(columns.relations, learn(condition, columns.signs))
        parts.append((result, inside, nonzero | _nonzero_if(condition)))
        # From here on the condition was false or NULL, and dividing by NULL does not fail.
        nonzero |= _zero_tested(condition)
    parts.append((expr.default, columns, nonzero))
    return parts


def _nonzero_if(condition: e.Expr) -> frozenset[e.Expr]:
    """What is not zero where the condition is true."""
    result: set[e.Expr] = set()
    for part in e.conjuncts(condition):
        match part:
            case e.Not(operand=e.Compare() as compared):
                result |= _zero_tested(compared)
            case e.Compare():
                mirrored = part.right, part.op.mirrored, part.left
                for subject, op, other in ((part.left, part.op, part.right), mirrored):
                    number = number_of(other)
                    if number is not None and _excludes_zero(op, number):
                        result |= {subject, _bare(subject)}
            case _:
                pass
    return frozenset(result)


def _excludes_zero(op: e.CompareOp, number: Decimal) -> bool:
    match op:
        case e.CompareOp.GREATER:
            return number >= 0
        case e.CompareOp.GREATER_EQUAL:
            return number > 0
        case e.CompareOp.LESS:
            return number <= 0
        case e.CompareOp.LESS_EQUAL:
            return number < 0
        case e.CompareOp.NOT_EQUAL:
            return number == 0
        case e.CompareOp.EQUAL | e.CompareOp.NULL_SAFE_EQUAL:
            return number != 0


def _zero_tested(condition: e.Expr) -> frozenset[e.Expr]:
    """What is not zero where the condition is false: x in `x = 0`."""
    if not (isinstance(condition, e.Compare) and condition.op is e.CompareOp.EQUAL):
        return frozenset()
    sides = ((condition.left, condition.right), (condition.right, condition.left))
    zeros = [subject for subject, other in sides if number_of(other) == 0]
    return frozenset(zeros) | frozenset(_bare(subject) for subject in zeros)


def _bare(expr: e.Expr) -> e.Expr:
    """The number without casts that turn only zero into zero."""
    while isinstance(expr, e.Cast):
        source = type_of(expr.operand)
        if source is None or not source.is_numeric:
            return expr
        is_wide = expr.type.kind in (Kind.DOUBLE, Kind.LONG) and not source.is_fractional
        keeps = source.is_integral and (is_wide or expr.type.kind is Kind.DECIMAL)
        if not (keeps or (expr.type.kind is Kind.DOUBLE and source.kind is Kind.DECIMAL)):
            return expr
        expr = expr.operand
    return expr


def _is_null(expr: e.Expr) -> bool:
    while isinstance(expr, e.Cast):
        expr = expr.operand
    return isinstance(expr, e.Literal) and expr.value is None


def _has_room(expr: e.Arithmetic, sql_type: SqlType) -> bool:
    """Whether every quotient or remainder fits, except by zero."""
    if expr.op is e.ArithmeticOp.REMAINDER or sql_type.is_fractional:
        return True
    left, right = type_of(expr.left), type_of(expr.right)
    if expr.op is e.ArithmeticOp.INTEGER_DIVIDE or left is None or right is None:
        return False
    # A divisor is at least one unit of its last digit.
    dividend = as_decimal(left)
    digits = dividend.precision - dividend.scale + as_decimal(right).scale
    return digits <= sql_type.precision - sql_type.scale


def _is_no_larger(expr: e.Expr, columns: Columns) -> bool:
    """Whether the number is no farther from zero than over the table."""
    relation = direction(expr, columns)
    if relation is Relation.EQUAL:
        return True
    signs = signs_of(expr, columns.signs)
    return (signs.nonnegative and relation in RISING) or (signs.nonpositive and relation in FALLING)


def _is_smaller(expr: e.Arithmetic, columns: Columns) -> bool:
    """Whether the result fits because the table's does, or by the signs of its operands."""
    if expr.op is e.ArithmeticOp.MULTIPLY:
        return _is_no_larger(expr.left, columns) and _is_no_larger(expr.right, columns)
    if _is_no_larger(expr, columns):
        return True
    left, right = (signs_of(part, columns.signs) for part in (expr.left, expr.right))
    if expr.op is e.ArithmeticOp.ADD:
        return (left.nonnegative and right.nonpositive) or (left.nonpositive and right.nonnegative)
    return (left.nonnegative and right.nonnegative) or (left.nonpositive and right.nonpositive)


def _is_within(result: Interval, sql_type: SqlType) -> bool:
    low, high = result
    if sql_type.is_fractional:
        return True
    if sql_type.kind is Kind.DECIMAL:
        # One less, because digits after the point may be rounded up.
        most = Fraction(10 ** (sql_type.precision - sql_type.scale)) - 1
        return -most <= low and high <= most
    bits = _BITS.get(sql_type.kind)
    return bits is not None and -(2**bits) <= low and high <= 2**bits - 1


def _of_type(sql_type: SqlType | None) -> Interval | None:
    """Bounds of all numbers of the type; None if unbounded."""
    if sql_type is None:
        return None
    if sql_type.kind in _BITS:
        bits = _BITS[sql_type.kind]
        return Fraction(-(2**bits)), Fraction(2**bits - 1)
    if sql_type.kind is Kind.DECIMAL:
        most = Fraction(10 ** (sql_type.precision - sql_type.scale))
        return -most, most
    return None


def _interval(expr: e.Expr, ranges: Ranges) -> Interval | None:
    """Bounds of a number that is computed without failure; None if unknown."""
    sql_type = type_of(expr)
    if sql_type is None or not sql_type.is_numeric or sql_type.is_fractional:
        return None
    result = _computed(expr, ranges)
    if result is not None and _is_within(result, sql_type):
        return result
    return _of_type(sql_type)


def _computed(expr: e.Expr, ranges: Ranges) -> Interval | None:
    match expr:
        case e.ColumnRef():
            return ranges.get(expr.id)
        case e.Literal():
            number = number_of(expr)
            return None if number is None else (Fraction(number), Fraction(number))
        case e.Negate():
            operand = _interval(expr.operand, ranges)
            return None if operand is None else (-operand[1], -operand[0])
        case e.Cast():
            operand = _interval(expr.operand, ranges)
            # A decimal is rounded by at most one.
            return None if operand is None else (operand[0] - 1, operand[1] + 1)
        case e.Coalesce():
            return _hull(_interval(part, ranges) for part in expr.operands)
        case e.Case():
            results = [*(result for _, result in expr.branches), expr.default]
            return _hull(_interval(part, ranges) for part in results if not _is_null(part))
        case e.Arithmetic():
            left, right = _interval(expr.left, ranges), _interval(expr.right, ranges)
            return None if left is None or right is None else _combined(expr.op, left, right)
        case _:
            return None


def _combined(op: e.ArithmeticOp, left: Interval, right: Interval) -> Interval | None:
    match op:
        case e.ArithmeticOp.ADD:
            return left[0] + right[0], left[1] + right[1]
        case e.ArithmeticOp.SUBTRACT:
            return left[0] - right[1], left[1] - right[0]
        case e.ArithmeticOp.MULTIPLY:
            corners = [a * b for a in left for b in right]
            return min(corners) - 1, max(corners) + 1
        case _:
            return None


def _hull(intervals: Iterable[Interval | None]) -> Interval | None:
    """The interval that contains all of them; None if one is unknown."""
    known: list[Interval] = []
    for interval in intervals:
        if interval is None:
            return None
        known.append(interval)
    return (min(low for low, _ in known), max(high for _, high in known)) if known else None


def _ranges(root: p.Plan, sizes: Sizes) -> dict[AttributeId, Interval]:
    """Bounds of every numeric column of the plan, over all or part of the tables."""
    ranges: dict[AttributeId, Interval] = {}
    rows: dict[int, int | None] = {}
    for node in reversed(tuple(root.walk())):
        below = [rows[id(part)] for part in node.inputs]
        rows[id(node)] = _rows(node, below, sizes)
        bounds = _bounds_of_outputs(node, below, sizes, ranges)
        ranges.update({column: result for column, result in bounds if result is not None})
    return ranges


def _rows(node: p.Plan, below: list[int | None], sizes: Sizes) -> int | None:
    """Maximum number of rows; None if unknown."""
    match node:
        case p.Scan():
            return sizes.rows.get(node.access)
        case p.OneRow():
            return 1
        case p.Select() | p.Project() | p.Distinct() | p.Sort() | p.TopK() | p.Window():
            return below[0]
        case p.Aggregate():
            sets = 1 if node.grouping_sets is None else len(node.grouping_sets)
            return None if below[0] is None else max(below[0], 1) * sets
        case p.Join():
            left, right = below
            # An outer join keeps rows without a match once.
            return None if left is None or right is None else (left + 1) * (right + 1)
        case p.SetOperation():
            left, right = below
            return None if left is None or right is None else left + right
        case _:
            return None


def _bounds_of_outputs(
    node: p.Plan, below: list[int | None], sizes: Sizes, ranges: Ranges
) -> list[tuple[AttributeId, Interval | None]]:
    match node:
        case p.Scan():
            return [(a.id, sizes.bounds.get(a.id)) for a in node.attributes]
        case p.Project():
            return [(o.attribute.id, _interval(o.expr, ranges)) for o in node.outputs]
        case p.Aggregate():
            keys = [(key.attribute.id, _interval(key.expr, ranges)) for key in node.keys]
            is_filled = bool(node.keys) and node.grouping_sets is None
            return keys + [
                (o.attribute.id, _of_call(o.call, below[0], ranges, is_filled=is_filled))
                for o in node.aggregates
            ]
        case p.SetOperation():
            sides = zip(node.left.attributes, node.right.attributes, node.attributes, strict=True)
            return [
                (output.id, _hull((ranges.get(left.id), ranges.get(right.id))))
                for left, right, output in sides
            ]
        case _:
            return []


def _of_call(
    call: p.AggregateCall, rows: int | None, ranges: Ranges, *, is_filled: bool
) -> Interval | None:
    """Bounds of the aggregate over any part of `rows` rows, if it fits its type."""
    if call.function == "count":
        constant = all(isinstance(x, e.Literal) and x.value is not None for x in call.arguments)
        is_all = is_filled and call.condition is None and constant
        return Fraction(1 if is_all else 0), Fraction(2**63 - 1 if rows is None else rows)
    if len(call.arguments) != 1 or call.function not in _NULL_OF_NONE:
        return None
    result = _interval(call.arguments[0], ranges)
    if result is None or call.function in ("min", "max"):
        return result
    argument = type_of(call.arguments[0])
    sql_type = None if argument is None else sum_type(argument)
    if rows is None or sql_type is None:
        return None
    most = max(abs(result[0]), abs(result[1])) * rows
    if not _is_within((-most, most), sql_type):
        return None
    return (-most, most) if call.function == "sum" else result
