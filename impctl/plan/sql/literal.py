"""Constants of the SQL text, in the types Spark gives them.

Law: value and type are Spark's own (ANSI, session time zone unknown). A TIMESTAMP without a zone
means whatever the session says, so it stays a cast for Spark to do; DATE plus or minus a whole
interval is computed here, exactly.
Out of scope: expressions over columns (`parse_expr`).
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from decimal import Decimal
from math import isinf

from sqlglot import exp

from impctl.data.schema import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    NULL,
    SHORT,
    STRING,
    TIMESTAMP,
    SqlType,
    decimal,
    other,
)
from impctl.expr.nearest_float import nearest_float
from impctl.expr.nodes import Cast, Expr, Literal, Span
from impctl.expr.types import MAX_PRECISION
from impctl.expr.zones import fixed_offset
from impctl.plan.sql.text import SqlText

_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?(bd|[lsydf])?", re.IGNORECASE)
_STRING = re.compile(r"""(?P<quote>['"])(?P<body>.*)(?P=quote)""", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([01][0-7]{2})|(.))", re.DOTALL)
_SURROGATE = re.compile("[\\ud800-\\udfff]")
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIMESTAMP = re.compile(
    r"(\d{4}-\d{2}-\d{2})(?:[ T](\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,6}))?)?"
    r"\s*(Z|UTC|[+-]\d{2}:\d{2})?"
)
_EPOCH = date(1970, 1, 1)
_SUFFIX_TYPES = {"l": LONG, "s": SHORT, "y": BYTE}
_RANGES = {BYTE: 2**7, SHORT: 2**15, INTEGER: 2**31, LONG: 2**63}
_DAYS = {"day": 1, "week": 7}
_MONTHS = {"month": 1, "year": 12}


def number(text: SqlText, node: exp.Expression, *, negative: bool = False) -> Literal | None:
    """A number, with its suffix if it has one; None for a node that is none.

    `negative` says that a minus stands before it, which belongs to it, as in Spark's grammar.
    """
    written = _written(text, node)
    found = None if written is None else _NUMBER.fullmatch(written)
    if found is None:
        return None
    span = text.span_of(node)
    if negative and span is not None:
        minus = text.token_before(span.start)
        span = span if minus is None else text.span(minus.start, span.end)
    digits, exponent, suffix = found.group(1), found.group(2) or "", (found.group(3) or "").lower()
    sign = "-" if negative else ""
    if suffix in ("d", "f") or (exponent and suffix != "bd"):
        kind = FLOAT if suffix == "f" else DOUBLE
        written = sign + digits + exponent
        approximate = nearest_float(written) if kind == FLOAT else float(written)
        if isinf(approximate):
            raise text.error(f"The number {digits}{exponent} is out of range", node, hint="drop it")
        return Literal(approximate, kind, span=span)
    if suffix in _SUFFIX_TYPES:
        return _integer(text, int(sign + digits), _SUFFIX_TYPES[suffix], span)
    value = Decimal(sign + digits + exponent)
    if suffix != "bd" and "." not in digits:
        for kind in (INTEGER, LONG):
            if -_RANGES[kind] <= value < _RANGES[kind]:
                return Literal(int(value), kind, span=span)
    return _decimal(text, value, span)


def _written(text: SqlText, node: exp.Expression) -> str | None:
    """How a number is written. With a suffix it reaches us as a cast, with BD as one of text."""
    literal = node.this if isinstance(node, exp.Cast) else node
    if not isinstance(literal, exp.Literal):
        return None
    span = text.span_of(literal)
    if literal is node:
        if literal.is_string:
            return None
        # A number such as `.5` has no place.
        return literal.name if span is None else text.sql[span.start : span.end]
    if span is None:
        return f"{literal.name}bd" if literal.is_string else None
    written = text.sql[span.start : span.end]
    return written if written[-1].isalpha() and not literal.is_string else None


def _integer(text: SqlText, value: int, kind: SqlType, span: Span | None) -> Literal:
    if not -_RANGES[kind] <= value < _RANGES[kind]:
        raise text.error(
            f"The number {value} does not fit into `{kind}`", span, hint="drop its suffix"
        )
    return Literal(value, kind, span=span)


def _decimal(text: SqlText, value: Decimal, span: Span | None) -> Literal:
    _, digits, exponent = value.as_tuple()
    scale = max(-int(exponent), 0)
    precision = max(len(digits) + max(int(exponent), 0), scale)
    if precision > MAX_PRECISION:
        raise text.unsupported(
            f"a decimal of {precision} digits", span, hint="Spark holds 38 at most"
        )
    # There is no negative zero among decimals.
    return Literal(abs(value) if value == 0 else value, decimal(precision, scale), span=span)


def string_value(text: SqlText, node: exp.Expression) -> str:
    """The value of a string literal, escapes read as Spark reads them."""
    if isinstance(node, exp.RawString):
        return str(node.this)
    span = text.span_of(node)
    found = None if span is None else _STRING.fullmatch(text.sql[span.start : span.end])
    if found is None:
        raise text.unsupported("a string literal of a kind it does not know", node)
    value = _ESCAPE.sub(_unescaped, str(found.group("body")))
    if _SURROGATE.search(value) is not None:
        raise text.unsupported(
            "half a character (a surrogate)",
            node,
            hint="write the character, or \\U and 8 digits",
        )
    return value


def _unescaped(found: re.Match[str]) -> str:
    four, eight, octal, single = found.groups()
    if four or eight:
        return chr(int(four or eight, 16))
    if octal:
        return chr(int(octal, 8))
    if single in "%_":
        # Spark keeps the backslash for LIKE.
        return "\\" + str(single)
    return _ESCAPED.get(single, single)


def day_number(written: str) -> int | None:
    """Days since 1970-01-01 for a date written exactly as yyyy-mm-dd; None for anything else."""
    if _ISO_DATE.fullmatch(written) is None:
        return None
    try:
        return (date.fromisoformat(written) - _EPOCH).days
    except ValueError:
        return None


def typed(
    text: SqlText, kind: SqlType, written: str, node: exp.Expression, span: Span | None
) -> Expr:
    """`DATE '...'` and `TIMESTAMP '...'`."""
    if kind == DATE:
        days = day_number(written)
        if days is None:
            raise text.error(
                f"`{written}` is not a date of the form yyyy-mm-dd",
                node,
                hint="write DATE '2024-01-31'",
            )
        return Literal(days, DATE, span=span)
    found = _TIMESTAMP.fullmatch(written.strip())
    if found is None:
        raise text.error(
            f"`{written}` is not a timestamp of the form yyyy-mm-dd hh:mm:ss",
            node,
            hint="write TIMESTAMP '2024-01-31 12:00:00Z'",
        )
    has_zone = found.group(6) is not None
    if has_zone != (kind == TIMESTAMP):
        return Cast(Literal(written, STRING, span=span), kind, span=span)
    return Literal(_micros(text, found, node), kind, span=span)


def _micros(text: SqlText, found: re.Match[str], node: exp.Expression) -> int:
    day, hour, minute, second, fraction, zone = found.groups()
    try:
        moment = datetime.fromisoformat(day).replace(
            hour=int(hour or 0),
            minute=int(minute or 0),
            second=int(second or 0),
            microsecond=int((fraction or "0").ljust(6, "0")),
        )
    except ValueError as error:
        raise text.error(f"Not a timestamp: {error}", node, hint="check day and time") from None
    offset = 0 if zone is None else fixed_offset(zone)
    if offset is None:
        raise text.error(
            f"Not a timestamp: no time zone is {zone} from UTC",
            node,
            hint="offsets go from -18:00 to +18:00",
        )
    return (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1) - offset


def interval(text: SqlText, node: exp.Interval, span: Span | None) -> Expr:
    """`INTERVAL n UNIT` with one whole unit, as a cast for Spark to do."""
    amount, unit = interval_parts(text, node)
    kind = unit if unit in ("day", "month", "year", "hour", "minute", "second") else None
    if kind is None:
        factor = _DAYS.get(unit) or _MONTHS[unit]
        amount, kind = amount * factor, "day" if unit in _DAYS else "month"
    return Cast(Literal(str(amount), STRING, span=span), other(f"interval {kind}"), span=span)


def interval_parts(text: SqlText, node: exp.Interval) -> tuple[int, str]:
    """Amount and lower-case unit (singular) of a simple interval; refuses any other."""
    unit = node.args.get("unit")
    name = unit.name.lower().rstrip("s") if isinstance(unit, exp.Var) else ""
    amount = node.this
    written = amount.name if isinstance(amount, exp.Literal) else ""
    known = {*_DAYS, *_MONTHS, "hour", "minute", "second"}
    if name not in known or re.fullmatch(r"-?\d+", written.strip()) is None:
        raise text.unsupported(
            "an INTERVAL other than one whole number of one unit",
            node,
            hint="write INTERVAL 3 DAYS",
        )
    return int(written), name


def shifted(day: Literal, amount: int, unit: str, span: Span | None) -> Literal | None:
    """A DATE literal moved by an interval; None where the result is not a date."""
    start = _EPOCH + timedelta(days=int(str(day.value)))
    try:
        if unit in _DAYS:
            moved = start + timedelta(days=amount * _DAYS[unit])
        elif unit in _MONTHS:
            moved = _month_shifted(start, amount * _MONTHS[unit])
        else:
            return None
    except (OverflowError, ValueError):
        return None
    return Literal((moved - _EPOCH).days, DATE, span=span)


def _month_shifted(start: date, months: int) -> date:
    """The same day some months later, or the last day of that month where it is shorter."""
    total = start.year * 12 + start.month - 1 + months
    year, month = divmod(total, 12)
    last = (date(year + month // 11, (month + 1) % 12 + 1, 1) - timedelta(days=1)).day
    return date(year, month + 1, min(start.day, last))


def constant(value: bool | str | bytes | None, span: Span | None) -> Literal:
    """TRUE, FALSE, NULL, a string or a binary value."""
    match value:
        case None:
            return Literal(None, NULL, span=span)
        case bool():
            return Literal(value, BOOLEAN, span=span)
        case str():
            return Literal(value, STRING, span=span)
        case bytes():
            return Literal(value, BINARY, span=span)
