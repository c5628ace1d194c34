"""What is known of a function's value by its name and its arguments.

Law: as for `plan.safety.signs`: where unsure, nothing is claimed. An argument for which Spark gives
an error has no value.
Out of scope: how a value over a sketch compares (`plan.safety.monotone`).
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.expr.nodes import Call
from impctl.expr.types import type_of
from impctl.plan.safety.facts import NOTHING, Signs
from impctl.plan.safety.numbers import EXACT_FLOAT, number_of

_NONNEGATIVE_CALLS = frozenset(
    {
        "abs",
        "length",
        "char_length",
        "character_length",
        "octet_length",
        "bit_length",
        "sqrt",
        "exp",
    }
)
_DATE_PARTS = frozenset(
    {"month", "quarter", "day", "dayofmonth", "dayofweek", "dayofyear", "weekday", "weekofyear"}
    | {"hour", "minute", "second"}
)
_ROUNDING = frozenset({"floor", "ceil", "ceiling", "round", "bround"})


def signs_of_call(call: Call, parts: Sequence[Signs]) -> Signs:
    """What is known of the value; `parts` is what is known of the arguments."""
    name, arguments = call.name.lower(), call.arguments
    if name in _NONNEGATIVE_CALLS or name in _DATE_PARTS:
        return Signs(nonnegative=True)
    types = [type_of(argument) for argument in arguments]
    if not all(result is not None and result.is_numeric for result in types):
        return NOTHING
    if name in _ROUNDING and parts:
        return Signs(parts[0].nonnegative, parts[0].nonpositive)
    if name in ("pow", "power") and len(parts) == 2:
        return Signs(nonnegative=_is_power_nonnegative(call, parts[0]))
    if name in ("greatest", "least"):
        return _of_choice(parts, is_greatest=name == "greatest")
    return NOTHING


def _is_power_nonnegative(call: Call, base: Signs) -> bool:
    """Whether the power is never below zero.

    -0.0 counts as nonnegative, and its power with an odd negative exponent is -Infinity.
    """
    first, second = call.arguments
    exponent = number_of(second)
    if exponent is not None and abs(exponent) <= EXACT_FLOAT and exponent % 2 == 0:
        return True
    result = type_of(first)
    has_negative_zero = result is None or result.is_fractional
    may_be_negative = exponent is None or exponent < 0
    return base.nonnegative and not (has_negative_zero and may_be_negative)


def _of_choice(parts: Sequence[Signs], *, is_greatest: bool) -> Signs:
    """GREATEST and LEAST leave NULLs out: one part that is never NULL may decide for all."""
    up, down = all(part.nonnegative for part in parts), all(part.nonpositive for part in parts)
    if is_greatest:
        up = up or any(part.nonnegative and part.not_null for part in parts)
    else:
        down = down or any(part.nonpositive and part.not_null for part in parts)
    anything = any(part.not_null for part in parts)
    return Signs(up, down, all(part.nan_free for part in parts), anything)
