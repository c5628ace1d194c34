"""A row of an answer, given by values of some of its columns.

Law: a text is read as a value of the column's type, as `--param` reads one; nothing is taken for a
value that it is not. A TIMESTAMP has its zone beside. What is not given may be anything.
Out of scope: finding the row (`app.using.derived_row`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from reprlib import repr as shortened

from impctl.app.preparing.given_values import parsed
from impctl.data.schema import INTEGRAL, Kind, SqlType
from impctl.errors import UsageError
from impctl.expr.nodes import And, Compare, CompareOp, Expr, IsNull, Literal, LiteralValue
from impctl.plan.nodes import Attribute
from impctl.types import ParameterValue
from impctl.workload.yaml import suggestion

RowGiven = Sequence[str] | Mapping[str, object]
"""Texts `NAME=VALUE,NAME=VALUE`, or Python values by name."""

_PART = re.compile(
    r"\s*(?P<name>`[^`]+`|[^=,'\s]+)\s*=\s*(?P<value>'(?:[^']|'')*'|[^,']*?)\s*(,|$)"
)
_START = datetime(1970, 1, 1, tzinfo=UTC)
_NOT_FINITE = {
    "nan": math.nan,
    **dict.fromkeys(("infinity", "+infinity", "inf", "+inf"), math.inf),
    **dict.fromkeys(("-infinity", "-inf"), -math.inf),
}
"""As answers have them, and as Python does."""
_LIKE: Mapping[Kind, ParameterValue] = {
    **dict.fromkeys(INTEGRAL, 0),
    Kind.STRING: "",
    Kind.BOOLEAN: True,
    Kind.DECIMAL: Decimal(0),
    Kind.DATE: date(1970, 1, 1),
    Kind.TIMESTAMP: datetime(1970, 1, 1),
    Kind.TIMESTAMP_NTZ: datetime(1970, 1, 1),
}
"""How a parameter with such a value is written (`app.preparing.given_values`)."""


def condition_of_row(given: RowGiven, outputs: Sequence[Attribute]) -> Expr:
    """The condition on an answer's columns; UsageError where it is none."""
    values = _texts(given) if isinstance(given, Mapping) else _split(given)
    if not values:
        raise UsageError(
            "`--row` names no row",
            hint=f"give values of columns, such as `--row {_example(outputs)}`",
            code="row_unread",
        )
    parts = [_equal(_column(name, outputs), text) for name, text in values.items()]
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def _split(given: Sequence[str]) -> dict[str, str | None]:
    result: dict[str, str | None] = {}
    for text in given:
        at = 0
        while at < len(text):
            part = _PART.match(text, at)
            if part is None:
                raise UsageError(
                    f"`--row` cannot be read: {text}",
                    hint="write NAME=VALUE, separated by commas; quote a text that contains a "
                    "comma with single quotes",
                    code="row_unread",
                )
            name, value, at = part["name"].strip("`"), part["value"], part.end()
            if name in result:
                raise UsageError(
                    f"Column `{name}` is given twice", hint="give it once", code="row_unread"
                )
            is_quoted = value.startswith("'")
            plain = value[1:-1].replace("''", "'") if is_quoted else value
            result[name] = None if not is_quoted and value.upper() == "NULL" else plain
    return result


def _texts(given: Mapping[str, object]) -> dict[str, str | None]:
    """Python values as texts."""
    result: dict[str, str | None] = {}
    for name, value in given.items():
        match value:
            case None:
                result[name] = None
            case str() | bool() | int() | float() | Decimal():
                result[name] = format(value, "f") if isinstance(value, Decimal) else str(value)
            case datetime() | date():
                result[name] = value.isoformat()
            case _:
                raise UsageError(
                    f"Column `{name}` cannot be {shortened(value)} ({type(value).__name__})",
                    hint="give a text, a number, a date or None",
                    code="row_unread",
                )
    return result


def _column(name: str, outputs: Sequence[Attribute]) -> Attribute:
    result = [one for one in outputs if one.name.lower() == name.lower()]
    if len(result) == 1:
        return result[0]
    if result:
        raise UsageError(
            f"The result has several columns `{name}`",
            hint="give the columns of the query different names with AS",
            code="row_unread",
        )
    names = [one.name for one in outputs]
    raise UsageError(
        f"The result has no column `{name}`",
        hint=suggestion(name, names, "it has") or f"it has {', '.join(names)}",
        code="row_unread",
    )


def _equal(column: Attribute, text: str | None) -> Expr:
    """That the column has this value; NULL for None."""
    if text is None:
        return IsNull(column.ref())
    kind = column.type
    value = None if kind is None else _value(text, kind)
    if kind is None or value is None:
        raise UsageError(
            f"Column `{column.name}` has type `{kind or 'unknown'}`, but `{text}` is not "
            "such a value",
            hint="give a value of that type (for a timestamp with its zone, such as '2026-01-31 "
            "12:00:00Z'), NULL for none, or omit the column",
            code="row_unread",
        )
    return Compare(CompareOp.EQUAL, column.ref(), Literal(value, kind))


def _value(text: str, kind: SqlType) -> LiteralValue:
    """The text as a literal's value; None where it is none."""
    like = _LIKE.get(kind.kind)
    if like is None:
        return _NOT_FINITE.get(text.lower(), _number(text)) if kind.is_fractional else None
    result = parsed(text, like)
    match result:
        case datetime():
            has_zone = result.tzinfo is not None
            if has_zone != (kind.kind is Kind.TIMESTAMP):
                return None
            since = result - (_START if has_zone else _START.replace(tzinfo=None))
            return since // timedelta(microseconds=1)
        case date():
            return (result - _START.date()).days
        case Decimal():
            return result if result == round(result, kind.scale) else None
    return result


def _number(text: str) -> float | None:
    result = parsed(text, 0.0)
    return result if isinstance(result, float) else None


def _example(outputs: Sequence[Attribute]) -> str:
    return f"{outputs[0].name}=5" if outputs else "NAME=VALUE"
