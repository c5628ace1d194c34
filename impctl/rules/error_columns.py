"""Error bounds of doubles in the answer, as additional columns of the plan.

Law: two computations of a column that add the same rows in different orders, rounded to doubles,
differ by at most its error column, apart from a relative error of a few roundings of the column.
The error of a sum depends on the size of what was added, even if it cancels: n values of total
magnitude M have an error of at most n * 2^-53 * M. For variances see `engine.accumulators`. A
column without an error column is exact or treated as exact, so that a comparison is too strict,
never too lenient. Rows that are in only one of the results, because of a condition on such a sum,
are not covered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce

from msgspec.structs import replace

from impctl.data.schema import DOUBLE, Kind
from impctl.expr import nodes as e
from impctl.expr.types import type_of
from impctl.plan import nodes as p
from impctl.types import AttributeId

Errors = Mapping[AttributeId, e.Expr]
"""Per inexact column of a plan, its error bound as an expression over the plan's columns."""
_Added = Callable[[str, str, e.Expr], e.Expr]
"""Adds an aggregate over the same rows: name, function and argument."""
_UNIT = e.Literal(2.0**-52, DOUBLE)
"""The rounding of one addition in each of the two computations."""
_SPREAD_UNIT = e.Literal(2.0**-50, DOUBLE)
_NONE = e.Literal(0.0, DOUBLE)
_ANY = e.Literal(float("inf"), DOUBLE)
_SUMS = frozenset({"sum", "try_sum", "avg", "try_avg"})
_SPREADS = frozenset({"var_pop", "variance", "stddev_pop", "stddev"})
_EXTREMES = frozenset({"min", "max"})


def with_rounding(root: p.Plan) -> tuple[p.Plan, tuple[int, ...]] | None:
    """Append error columns, and return the positions of the columns that they belong to; None if no
    column is known to be inexact."""
    plan, errors = _bounded(root)
    columns = root.attributes
    inexact = tuple(index for index, column in enumerate(columns) if column.id in errors)
    if not inexact:
        return None
    outputs = [p.ComputedColumn(column, column.ref()) for column in columns]
    outputs += [_error_column(columns[index].id, errors[columns[index].id]) for index in inexact]
    return p.Project(plan, tuple(outputs)), inexact


def _error_column(owner: AttributeId, error: e.Expr) -> p.ComputedColumn:
    return p.ComputedColumn(p.Attribute(f"{owner}/off", "off", DOUBLE), error)


def _bounded(plan: p.Plan) -> tuple[p.Plan, Errors]:
    """The plan with additional columns from which the errors of its columns are computed."""
    match plan:
        case p.Select() | p.Sort() | p.TopK(rank=None):
            child, errors = _bounded(plan.child)
            return replace(plan, child=child), errors
        case p.Join():
            (left, first), (right, second) = _bounded(plan.left), _bounded(plan.right)
            return plan.with_inputs((left, right)), {**first, **second}
        case p.Project():
            return _of_project(plan)
        case p.Aggregate():
            return _of_aggregate(plan)
        case p.Window():
            return _of_window(plan)
        case p.SetOperation() if plan.kind is p.SetKind.UNION and plan.all:
            return _of_union(plan)
        case _:
            return plan, {}


def _of_project(plan: p.Project) -> tuple[p.Plan, Errors]:
    child, below = _bounded(plan.child)
    outputs, errors = list(plan.outputs), dict[AttributeId, e.Expr]()
    for output in plan.outputs:
        error = _error(output.expr, below) if _is_double(output.expr) else None
        if error is not None:
            column = _error_column(output.attribute.id, error)
            outputs.append(column)
            errors[output.attribute.id] = column.attribute.ref()
    return replace(plan, child=child, outputs=tuple(outputs)), errors


def _of_union(plan: p.SetOperation) -> tuple[p.Plan, Errors]:
    sides = [_bounded(side) for side in (plan.left, plan.right)]
    shown = [side.attributes for side in (plan.left, plan.right)]
    inexact = [
        index
        for index, columns in enumerate(zip(*shown, strict=True))
        if any(column.id in errors for column, (_, errors) in zip(columns, sides, strict=True))
    ]
    if not inexact:
        return plan, {}
    inputs = []
    for (side, errors), columns in zip(sides, shown, strict=True):
        outputs = [p.ComputedColumn(attribute, attribute.ref()) for attribute in columns]
        outputs += [
            _error_column(columns[index].id, errors.get(columns[index].id, _NONE))
            for index in inexact
        ]
        inputs.append(p.Project(side, tuple(outputs)))
    owners = [plan.attributes[index].id for index in inexact]
    added = [_error_column(owner, _NONE).attribute for owner in owners]
    union = replace(plan, left=inputs[0], right=inputs[1], attributes=(*plan.attributes, *added))
    return union, {owner: attribute.ref() for owner, attribute in zip(owners, added, strict=True)}


def _of_aggregate(plan: p.Aggregate) -> tuple[p.Plan, Errors]:
    child, below = _bounded(plan.child)
    calls, errors = list(plan.aggregates), dict[AttributeId, e.Expr]()
    for output in plan.aggregates:
        owner = output.attribute

        def added(
            name: str, function: str, argument: e.Expr, of: p.AggregateOutput = output
        ) -> e.Expr:
            column = p.Attribute(f"{of.attribute.id}/{name}", name, DOUBLE)
            call = p.AggregateCall(function, (argument,), condition=of.call.condition)
            calls.append(p.AggregateOutput(column, call))
            return column.ref()

        call = output.call
        error = _of_call(call.function, call.arguments, below, added, call.distinct)
        if error is not None:
            errors[owner.id] = error
    return replace(plan, child=child, aggregates=tuple(calls)), errors


def _of_window(plan: p.Window) -> tuple[p.Plan, Errors]:
    child, below = _bounded(plan.child)
    calls, errors = list(plan.calls), dict(below)
    for call in plan.calls:

        def added(name: str, function: str, argument: e.Expr, of: p.WindowCall = call) -> e.Expr:
            column = p.Attribute(f"{of.attribute.id}/{name}", name, DOUBLE)
            calls.append(replace(of, attribute=column, function=function, arguments=(argument,)))
            return column.ref()

        error = _of_call(call.function, call.arguments, below, added)
        if error is not None:
            errors[call.attribute.id] = error
    return replace(plan, child=child, calls=tuple(calls)), errors


def _of_call(
    function: str,
    arguments: tuple[e.Expr, ...],
    below: Errors,
    added: _Added,
    distinct: bool = False,
) -> e.Expr | None:
    """Error of one aggregate; over distinct values, that over all values, which is no less."""
    if len(arguments) != 1:
        return None
    (argument,) = arguments
    kind = type_of(argument)
    if kind is None or not kind.is_numeric:
        return None
    inexact = _error(argument, below)
    if distinct and (inexact is not None or function in _SPREADS):
        return None
    if function in _EXTREMES:
        return None if inexact is None else added("off", "max", inexact)
    if function in _SUMS:
        is_average = function in ("avg", "try_avg")
        if not kind.is_fractional and not (is_average and kind.kind is not Kind.DECIMAL):
            return None
        # For an average, n roundings are divided by n rows.
        error = e.times(_UNIT, added("size", "sum", _size(argument)))
        if not is_average:
            error = e.times(error, _double(added("count", "count", argument)))
        if inexact is not None:
            error = e.plus(error, added("off", "avg" if is_average else "sum", inexact))
        return error
    if function in _SPREADS and inexact is None:
        return _of_spread(function, argument, added)
    return None


def _of_spread(function: str, argument: e.Expr, added: _Added) -> e.Expr:
    """With e = c * n * 2^-53 * sqrt(mean square), the error of a standard deviation s is at most 3
    e, and that of the variance s^2 at most e * (s + 2 e)."""
    value = _double(argument)
    square = added("square", "avg", e.times(value, value))
    count = _double(added("count", "count", argument))
    unit = e.times(e.times(_SPREAD_UNIT, count), e.Call("sqrt", (square,), DOUBLE))
    # The sample's variance is up to twice the population's.
    twice = e.times(e.Literal(2.0, DOUBLE), unit)
    if function.startswith("stddev"):
        return e.times(e.Literal(3.0, DOUBLE), twice)
    root = e.plus(added("root", "stddev_pop", argument), e.times(e.Literal(2.0, DOUBLE), twice))
    return e.times(e.Literal(2.0, DOUBLE), e.times(twice, root))


def _error(expr: e.Expr, errors: Errors) -> e.Expr | None:
    """How much two values of an expression may differ; None if not at all or unknown."""
    if not expr.columns & errors.keys():
        return None
    match expr:
        case e.ColumnRef():
            return errors[expr.id]
        case e.Negate():
            return _error(expr.operand, errors)
        case e.Cast():
            is_widening = expr.type == DOUBLE and _is_double(expr.operand)
            return _error(expr.operand, errors) if is_widening else None
        case e.Arithmetic():
            return _of_arithmetic(expr, errors)
        case e.Coalesce():
            return _sum(_error(part, errors) for part in expr.operands)
        case e.Case():
            if any(when.columns & errors.keys() for when, _ in expr.branches):
                return None
            branches = [(when, _error(then, errors) or _NONE) for when, then in expr.branches]
            return replace(
                expr, branches=tuple(branches), default=_error(expr.default, errors) or _NONE
            )
        case e.Call():
            return _of_function(expr, errors)
        case _:
            return None


def _of_arithmetic(expr: e.Arithmetic, errors: Errors) -> e.Expr | None:
    left, right = _error(expr.left, errors), _error(expr.right, errors)
    off = left or _NONE, right or _NONE
    match expr.op:
        case e.ArithmeticOp.ADD | e.ArithmeticOp.SUBTRACT:
            return e.plus(e.plus(*off), e.times(_UNIT, e.plus(_size(expr.left), _size(expr.right))))
        case e.ArithmeticOp.MULTIPLY:
            crossed = e.plus(e.times(_size(expr.left), off[1]), e.times(_size(expr.right), off[0]))
            return e.plus(crossed, e.times(*off))
        case e.ArithmeticOp.DIVIDE:
            # |a / b - c / d| <= (|a - c| + |a / b| |b - d|) / |d|, and |d| >= |b| - |b - d|
            least = e.minus(_size(expr.right), off[1])
            numerator = e.plus(off[0], e.times(_size(expr), off[1]))
            is_away = e.Compare(e.CompareOp.GREATER, least, _NONE)
            return e.Case(((is_away, _divided(numerator, least)),), _ANY)
        case _:
            return None


def _of_function(expr: e.Call, errors: Errors) -> e.Expr | None:
    (first, *rest) = expr.arguments
    off = _error(first, errors)
    match expr.name:
        case "abs" | "positive" | "negative":
            return off
        case "greatest" | "least":
            return _sum(_error(part, errors) for part in expr.arguments)
        case "sqrt" if off is not None:
            # |sqrt(a) - sqrt(b)| is |a - b| / (sqrt(a) + sqrt(b)), and at most sqrt(|a - b|).
            root = e.Call("sqrt", (off,), DOUBLE)
            larger = e.Call("greatest", (expr, root), DOUBLE)
            is_away = e.Compare(e.CompareOp.GREATER, larger, _NONE)
            return e.Case(((is_away, _divided(off, larger)),), _NONE)
        case "round" | "bround" if off is not None and not expr.columns - first.columns:
            digits = rest[0] if rest else e.Literal(0, DOUBLE)
            step = e.Call("pow", (e.Literal(10.0, DOUBLE), e.Negate(_double(digits))), DOUBLE)
            return e.plus(off, step)
        case _:
            return None


def _is_double(expr: e.Expr) -> bool:
    kind = type_of(expr)
    return kind is not None and kind.is_fractional


def _double(expr: e.Expr) -> e.Expr:
    return expr if type_of(expr) == DOUBLE else e.Cast(expr, DOUBLE)


def _size(expr: e.Expr) -> e.Expr:
    return e.Call("abs", (_double(expr),), DOUBLE)


def _sum(parts: Iterable[e.Expr | None]) -> e.Expr | None:
    """Sum of the known errors; an operand that is NULL has none."""
    known: list[e.Expr] = [e.Coalesce((part, _NONE)) for part in parts if part is not None]
    return reduce(e.plus, known) if known else None


def _divided(left: e.Expr, right: e.Expr) -> e.Expr:
    return e.Arithmetic(e.ArithmeticOp.DIVIDE, left, right)
