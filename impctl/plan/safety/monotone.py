"""Functions under which a lesser argument gives a lesser value.

Law: an answer is given only where the value over the sketch is NULL, or both are known and compare
as `plan.safety.direction` says, for every pair of arguments that compares so; an argument for which
Spark gives an error has no value. Java's `exp` and its logarithms are semi-monotonic by their
documentation, its square root is the nearest double.
Out of scope: operators (`plan.safety.direction`), which of these the engine computes.
"""

from __future__ import annotations

from collections.abc import Callable

from impctl.data.schema import Kind
from impctl.expr.nodes import Call, Expr
from impctl.expr.types import MAX_PRECISION, type_of
from impctl.plan.safety.facts import Signs, may_be_nan
from impctl.plan.safety.numbers import number_of
from impctl.plan.safety.relation import Relation

Asked = Callable[[Expr], tuple[Relation, Signs]]
"""How an argument compares, and what is known of its values."""

_WHOLE = frozenset({"floor", "ceil", "ceiling"})
_ROUNDED = frozenset({"round", "bround"})
_LOGARITHMS = frozenset({"ln", "log", "log10", "log2", "log1p"})
"""NULL of what is too small, which only a greater argument cannot be."""


def relation_of_call(call: Call, asked: Asked) -> Relation:
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
    """Whether the function of the first argument, and constants, rises with it."""
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


def _of_choice(is_greatest: bool, arguments: tuple[Expr, ...], asked: Asked) -> Relation:
    """GREATEST and LEAST, which leave NULLs out.

    One argument more can only make GREATEST greater: so it may be missing where the whole is to be
    at most what it is over the table, and not where it is to be at least that.
    """
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


def _of_days_between(arguments: tuple[Expr, ...], asked: Asked) -> Relation:
    """Of dates alone: what a moment's date is, the clock of a time zone may turn round."""
    if not all(map(_is_date, arguments)):
        return Relation.UNKNOWN
    end, start = (asked(argument)[0] for argument in arguments)
    return end.meet(start.mirrored)


def _is_date(expr: Expr) -> bool:
    result = type_of(expr)
    return result is not None and result.kind is Kind.DATE
