"""What a request says beside the query: values of its parameters, and conditions on rows."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from numbers import Integral, Real
from reprlib import repr as shortened
from typing import TYPE_CHECKING

from msgspec.structs import replace

from impctl.data.schema import BOOLEAN, Column, Kind, Schema, SqlType, other
from impctl.errors import QueryError, UsageError
from impctl.expr.evaluate import find_blocker
from impctl.expr.types import fixed_offset, type_of
from impctl.plan.nodes import Attribute, Project, Scan, Select
from impctl.service.text import named_before
from impctl.workload.yaml import suggestion

if TYPE_CHECKING:
    from impctl.expr.nodes import Expr
    from impctl.service.settings import GivenValues
    from impctl.types import AttributeId, ParameterValue
    from impctl.workload.models import QuerySpec

# `--param NAME=VALUE`, or a Python value. Law: a value takes the type of the one in the workload
# file, or the run ends with exit code 2; it is never guessed or converted. A Python value is
# written out and read like the command line's text, so there is one way in.

_INTEGER = re.compile(r"[-+]?[0-9]{1,19}")
_DECIMAL = re.compile(r"[-+]?([0-9]{1,38}(\.[0-9]{0,38})?|\.[0-9]{1,38})")
_DOUBLE = re.compile(r"[-+]?([0-9]{1,38}(\.[0-9]{0,38})?|\.[0-9]{1,38})([eE][-+]?[0-9]{1,3})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
    r"(?P<zone>Z|[-+][0-9]{2}:[0-9]{2})?"
)

_KINDS: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number of 64 bits",
    Decimal: "a decimal number of up to 38 digits",
    float: "a number",
    str: "text",
    datetime: "a timestamp such as 2024-01-31 12:00:00, at most 18:00 from UTC",
    date: "a date such as 2024-01-31",
}
_DIGITS = 38
_EXACT_DOUBLES = range(-(2**53), 2**53 + 1)


def with_parameters(spec: QuerySpec, given: GivenValues) -> QuerySpec:
    """The query with these parameter values instead of its defaults."""
    written = _written_values(spec, given) if isinstance(given, Mapping) else _split(given)
    changed: dict[str, ParameterValue] = {}
    for name, text in written.items():
        if name not in spec.params:
            raise _unknown(spec, name)
        value = parsed(text, spec.params[name])
        if value is None:
            raise _misfit(spec, name, text)
        changed[name] = value
    return replace(spec, params={**spec.params, **changed})


def split_moving(spec: QuerySpec, given: GivenValues) -> tuple[list[str], GivenValues]:
    """Texts NAME=VALUE split into those of moving parameters and the others."""
    if isinstance(given, Mapping):
        moving = [f"{name}={value}" for name, value in given.items() if name in spec.moves]
        return moving, {name: value for name, value in given.items() if name not in spec.moves}
    is_moving = [text.partition("=")[0] in spec.moves for text in given]
    moving = [text for text, moves in zip(given, is_moving, strict=True) if moves]
    return moving, [text for text, moves in zip(given, is_moving, strict=True) if not moves]


def _split(given: Sequence[str]) -> dict[str, str]:
    result: dict[str, str] = {}
    for text in given:
        name, equals, written = text.partition("=")
        problem = hint = ""
        if not equals:
            problem, hint = f"`--param {text}` has no value", "write `--param NAME=VALUE`"
        elif name in result:
            problem, hint = f"Parameter `{name}` occurs twice", "give it once"
        if problem:
            raise UsageError(problem, hint=hint, code="parameter_syntax")
        result[name] = written
    return result


def _written_values(spec: QuerySpec, given: Mapping[str, object]) -> dict[str, str]:
    result: dict[str, str] = {}
    for name, value in given.items():
        if name not in spec.params:
            raise _unknown(spec, name)
        text = as_text(value, spec.params[name])
        if text is None:
            shown = "None" if value is None else f"{shortened(value)} ({type(value).__name__})"
            raise _misfit(spec, name, shown)
        result[name] = text
    return result


def as_text(value: object, like: ParameterValue) -> str | None:
    """A Python value as text if it has the type of `like` or converts to it without loss. A `str`
    is read like a command-line text, whatever the parameter's type. None has no type, and nothing
    compares as equal to NULL."""
    match value:
        case str():
            # Half a surrogate pair, which Python lets pass, is no character.
            is_unicode = not any("\ud800" <= character <= "\udfff" for character in value)
            return str.__str__(value) if is_unicode else None
        case bool():
            return str(value) if isinstance(like, bool) else None
        case datetime():
            return value.isoformat() if isinstance(like, datetime) else None
        case date():
            is_date = isinstance(like, date) and not isinstance(like, datetime)
            return value.isoformat() if is_date else None
        case Decimal():
            fits = value.is_finite() and abs(value.adjusted()) <= _DIGITS
            return format(value, "f") if fits and isinstance(like, Decimal) else None
        case _ if isinstance(like, bool):
            return None
        case Integral() if isinstance(like, float):
            return str(int(value)) if int(value) in _EXACT_DOUBLES else None
        case Integral() if isinstance(like, int | Decimal):
            return str(int(value))
        case Real() if isinstance(like, float):
            return repr(float(value))
        case _:
            return None


def _unknown(spec: QuerySpec, name: str) -> UsageError:
    hint = suggestion(name, list(spec.params), "it has")
    return UsageError(
        f"Query `{spec.name}` has no parameter `{name}`",
        hint=hint or "add `params` to the query, with a value for each parameter",
        code="parameter_unknown",
        location=spec.location,
    )


def _misfit(spec: QuerySpec, name: str, shown: str) -> UsageError:
    like = spec.params[name]
    return UsageError(
        f"Parameter `{name}` of query `{spec.name}` takes {_KINDS[type(like)]}, not: {shown}",
        hint=f"its value in the workload file, which fixes its type, is {like}",
        code="parameter_type",
        location=spec.location,
    )


def parsed(written: str, like: ParameterValue) -> ParameterValue | None:
    """The text as a value of the type of `like`; None if it is not one."""
    match like:
        case bool():
            return {"true": True, "false": False}.get(written.lower())
        case int():
            value = int(written) if _INTEGER.fullmatch(written) else None
            return value if value is not None and -(2**63) <= value < 2**63 else None
        case Decimal():
            number = Decimal(written) if _DECIMAL.fullmatch(written) else None
            fits = number is not None and len(number.as_tuple().digits) <= 38
            return number if fits else None
        case float():
            approximate = float(written) if _DOUBLE.fullmatch(written) else math.inf
            return approximate if math.isfinite(approximate) else None
        case str():
            return written
        case datetime():
            moment = _TIMESTAMP.fullmatch(written)
            if moment is None or (moment["zone"] and fixed_offset(moment["zone"]) is None):
                return None
            return _in_calendar(datetime, written)
        case date():
            return _in_calendar(date, written) if _DATE.fullmatch(written) else None


def _in_calendar(kind: type[date], written: str) -> date | None:
    try:
        return kind.fromisoformat(written)
    except ValueError:
        return None


# `query --where` and conditions on a table. Law: read like a WHERE over the answer, applied to its
# whole rows after ORDER BY and LIMIT. A condition that only Spark computes as Spark does is
# refused, whoever answers.

_TABLE = "answer"
_QUERY = "query"
"""The condition's query name while it is parsed."""


def condition_on(
    outputs: Sequence[Attribute],
    text: str,
    zone: str,
    option: str = "--where",
    of: str = "the result",
) -> Expr:
    """The condition over an answer's attributes; UsageError for an invalid one. `option` (its
    source) and `of` (what it filters) are for messages."""
    from impctl.sql.statement import parse_query

    schema = Schema(tuple(Column(a.name, a.type or other("unknown")) for a in outputs))
    names = [name.lower() for name in schema.names]
    if len(set(names)) < len(names):
        raise UsageError(
            f"`{option}` needs unique column names in the result",
            hint="give the columns of the query different names with AS",
            code="where_ambiguous",
        )
    try:
        root = parse_query(
            f"SELECT * FROM {_TABLE} WHERE {text}", {_TABLE: schema}, name=_QUERY, zone=zone
        ).root
    except QueryError as error:
        hint = f"{of} has no columns"
        if schema.names:
            column = schema.columns[0]
            example = f"{column.name} = {_VALUES.get(column.type.kind, '5')}"
            if column.type.kind is Kind.BINARY:
                example = f"{column.name} IS NOT NULL"
            hint = f"write a condition on {', '.join(schema.names)}, such as `{example}`"
        message = named_before(_QUERY, error.message.replace(f" in query `{_QUERY}`", ""))
        message = message.replace("its SQL cannot be parsed near", "near", 1)
        raise UsageError(
            f"`{option}` cannot be read: {message}", hint=hint, code="where_unread"
        ) from None
    select = root.child if isinstance(root, Project) else root
    if not isinstance(select, Select) or not isinstance(select.child, Scan):
        raise UsageError(
            f"`{option}` takes one condition on the columns of {of}",
            hint="remove subqueries, ORDER BY and LIMIT; `--limit` shows fewer rows",
            code="where_unread",
        )
    by_name = {a.name.lower(): a for a in outputs}
    shown: dict[AttributeId, Expr] = {
        a.id: by_name[a.name.lower()].ref() for a in select.child.attributes
    }
    condition = select.predicate.substitute(shown)
    blocker, kind = find_blocker(condition), type_of(condition)
    objection = None if blocker is None else blocker.reason
    if blocker is None and kind not in (BOOLEAN, SqlType(Kind.NULL)):
        objection = f"a value of type `{kind}` is neither true nor false"
    if objection is not None:
        raise UsageError(
            f"`{option}` cannot be applied to {of}: {objection}",
            hint="compare each column with a value of the same type, and NULL with IS NULL",
            code="where_unread",
        )
    return condition


_VALUES = {
    Kind.STRING: "'abc'",
    Kind.BOOLEAN: "true",
    Kind.DATE: "DATE '2026-01-31'",
    Kind.TIMESTAMP: "TIMESTAMP '2026-01-31 12:00:00Z'",
    Kind.TIMESTAMP_NTZ: "TIMESTAMP_NTZ '2026-01-31 12:00:00'",
}
"""A value as SQL writes it; of other types it is a number."""
