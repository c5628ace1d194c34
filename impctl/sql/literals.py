"""Constants of the SQL text with the types that Spark gives them."""

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
    TIMESTAMP_NTZ,
    SqlType,
    decimal,
    other,
)
from impctl.data.vector import Vector
from impctl.errors import EvaluationError, NotExactError
from impctl.expr.evaluate import Evaluator, find_blocker
from impctl.expr.nodes import Call, Cast, Expr, Literal, Span
from impctl.expr.numeric import nearest_float
from impctl.expr.types import MAX_PRECISION, fixed_offset, type_of
from impctl.sql.text import Node, SqlText

_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?(bd|[lsydf])?", re.IGNORECASE)
_STRING = re.compile(r"""(?P<quote>['"])(?P<body>.*)(?P=quote)""", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([01][0-7]{2})|(.))", re.DOTALL)
_SURROGATE = re.compile("[\\ud800-\\udfff]")
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_SUFFIX_TYPES = {"l": LONG, "s": SHORT, "y": BYTE}
_RANGES = {BYTE: 2**7, SHORT: 2**15, INTEGER: 2**31, LONG: 2**63}


def number(text: SqlText, node: Node, *, negative: bool = False) -> Literal | None:
    """Read a number with or without suffix; None for another node. A preceding minus is part of it,
    as in Spark's grammar."""
    written = _written(text, node)
    result = None if written is None else _NUMBER.fullmatch(written)
    if result is None:
        return None
    span = text.span_of(node)
    if negative and span is not None:
        minus = text.words.before(span.start)
        span = span if minus is None else text.span(minus.start, span.end)
    digits, exponent, suffix = result.groups(default="")
    suffix = suffix.lower()
    sign = "-" if negative else ""
    if suffix in ("d", "f") or (exponent and suffix != "bd"):
        kind = FLOAT if suffix == "f" else DOUBLE
        written = sign + digits + exponent
        approximate = nearest_float(written) if kind == FLOAT else float(written)
        if isinf(approximate):
            raise text.error(
                f"The number {digits}{exponent} is out of range", node, hint="remove it"
            )
        return Literal(approximate, kind, span=span)
    if suffix in _SUFFIX_TYPES:
        return _integer(text, int(sign + digits), _SUFFIX_TYPES[suffix], span)
    value = Decimal(sign + digits + exponent)
    if suffix != "bd" and "." not in digits:
        for kind in (INTEGER, LONG):
            if -_RANGES[kind] <= value < _RANGES[kind]:
                return Literal(int(value), kind, span=span)
    return _decimal(text, value, span)


def _written(text: SqlText, node: Node) -> str | None:
    """The number's text. sqlglot passes a suffix as a cast, BD as a cast of text."""
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
            f"The number {value} does not fit in `{kind}`", span, hint="remove its suffix"
        )
    return Literal(value, kind, span=span)


def _decimal(text: SqlText, value: Decimal, span: Span | None) -> Literal:
    _, digits, exponent = value.as_tuple()
    scale = max(-int(exponent), 0)
    precision = max(len(digits) + max(int(exponent), 0), scale)
    if precision > MAX_PRECISION:
        raise text.unsupported(
            f"a decimal of {precision} digits", span, hint="Spark supports at most 38 digits"
        )
    # There is no negative zero among decimals.
    return Literal(abs(value) if value == 0 else value, decimal(precision, scale), span=span)


def string_value(text: SqlText, node: Node) -> str:
    """Value of a string literal, with Spark's escapes."""
    if isinstance(node, exp.RawString):
        return str(node.this)
    span = text.span_of(node)
    result = None if span is None else _STRING.fullmatch(text.sql[span.start : span.end])
    if result is None:
        raise text.unsupported("a string literal of an unknown kind", node)
    value = _ESCAPE.sub(_unescaped, str(result.group("body")))
    if _SURROGATE.search(value) is not None:
        raise text.unsupported(
            "an unpaired surrogate (half a character)",
            node,
            hint="write the character, or `\\U` and 8 digits",
        )
    return value


def _unescaped(result: re.Match[str]) -> str:
    four, eight, octal, single = result.groups()
    if four or eight:
        return chr(int(four or eight, 16))
    if octal:
        return chr(int(octal, 8))
    if single in "%_":
        # Spark keeps the backslash for LIKE.
        return "\\" + str(single)
    return _ESCAPED.get(single, single)


def constant(value: bool | str | bytes | None, span: Span | None) -> Literal:
    """TRUE, FALSE, NULL, a string or a binary value as a literal."""
    match value:
        case None:
            return Literal(None, NULL, span=span)
        case bool():
            return Literal(value, BOOLEAN, span=span)
        case str():
            return Literal(value, STRING, span=span)
        case bytes():
            return Literal(value, BINARY, span=span)


# Dates, timestamps and intervals. A constant is computed here only if Spark provably gets the same
# value: unambiguous text, and TIMESTAMP without a zone only if the session's is a fixed offset from
# UTC. Otherwise (a region such as `Europe/Berlin`, failures, out of range) it stays a cast for
# Spark (docs/decisions/0022).

_ISO_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMESTAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[ T]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?)?"
    r"\s*(Z|UTC|[+-][0-9]{2}:[0-9]{2})?"
)
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_DAY = 86_400_000_000
_DAYS = {"day": 1, "week": 7}
_MONTHS = {"month": 1, "year": 12}
_MICROS = {"hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000}
_MOST = 2**31 - 1
_READ = {"to_date": DATE, "to_timestamp": TIMESTAMP}
_TIMES = (TIMESTAMP, TIMESTAMP_NTZ)


def typed(
    text: SqlText, kind: SqlType, written: str, node: Node, zone: str, span: Span | None
) -> Expr:
    """Read `DATE '...'` or `TIMESTAMP '...'` in this session time zone."""
    if kind == DATE:
        days = day_number(written)
        if days is None:
            raise text.error(
                f"`{written}` is not a date in the form yyyy-mm-dd",
                node,
                hint="write DATE '2024-01-31'",
            )
        return Literal(days, DATE, span=span)
    match = _TIMESTAMP.fullmatch(written.strip())
    if match is None:
        raise text.error(
            f"`{written}` is not a timestamp in the form yyyy-mm-dd hh:mm:ss",
            node,
            hint="write TIMESTAMP '2024-01-31 12:00:00Z'",
        )
    try:
        local = _local(match)
    except ValueError as error:
        raise text.error(
            f"Not a timestamp: {error}", node, hint="check the day and the time"
        ) from None
    offset = match.group(6)
    if offset is not None and fixed_offset(offset) is None:
        raise text.error(
            f"Not a timestamp: {offset} is not a valid time zone offset",
            node,
            hint="offsets range from -18:00 to +18:00",
        )
    micros = _instant(local, offset, kind, zone)
    if micros is None:
        return Cast(Literal(written, STRING, span=span), kind, zone, span=span)
    return Literal(micros, kind, span=span)


def folded(expr: Cast) -> Expr:
    """Compute a cast of a constant to a date or time where its value is certain."""
    operand = expr.operand
    if not isinstance(operand, Literal):
        return expr
    moment = _as(operand, expr.type, expr.zone)
    return expr if moment is None else Literal(moment, expr.type, span=expr.span)


def computed(call: Call) -> Expr:
    """Compute a function of constants that returns a date or time, if the engine has it."""
    if not all(isinstance(part, Literal) for part in call.arguments):
        return call
    if call.name in _READ and len(call.arguments) == 1 and isinstance(call.arguments[0], Literal):
        moment = _as(call.arguments[0], _READ[call.name], call.zone)
        return call if moment is None else Literal(moment, _READ[call.name], span=call.span)
    result = one_value(call) if call.type in (DATE, *_TIMES) else None
    if result is None or not result.validity()[0]:
        return call
    return Literal(int(result.filled()[0]), result.type, span=call.span)


def one_value(expr: Expr) -> Vector | None:
    """The value of an expression without columns; None if it fails, or only Spark knows."""
    if expr.columns or find_blocker(expr) is not None:
        return None
    try:
        return Evaluator(expr).values({}, 1)
    except (EvaluationError, NotExactError):
        return None


def alike(expr: Expr, beside: Expr, zone: str) -> Expr:
    """Cast a constant text beside a DATE or timestamp, and a DATE beside a timestamp, as Spark
    does."""
    kind = type_of(beside)
    if kind is None or not isinstance(expr, Literal) or expr.type not in (STRING, DATE):
        return expr
    if expr.type == DATE and kind not in _TIMES:
        return expr
    moment = _as(expr, kind, zone)
    return expr if moment is None else Literal(moment, kind, span=expr.span)


def _as(constant: Literal, kind: SqlType, zone: str) -> int | None:
    """The constant as a DATE or timestamp; None where only Spark knows."""
    value = constant.value
    if isinstance(value, str) and constant.type == STRING:
        if kind == DATE:
            return day_number(value)
        result = _TIMESTAMP.fullmatch(value) if kind in _TIMES else None
        try:
            return None if result is None else _instant(_local(result), result.group(6), kind, zone)
        except ValueError:
            return None
    offset = 0 if TIMESTAMP not in (kind, constant.type) else fixed_offset(zone)
    if not isinstance(value, int) or offset is None:
        return None
    if constant.type == DATE and kind in _TIMES:
        return value * _DAY - offset if _inside(value, DATE, None) is not None else None
    if constant.type in _TIMES and kind == DATE:
        return (value + offset) // _DAY
    return None


def _local(result: re.Match[str]) -> int:
    """Microseconds of the local date and time; ValueError for an invalid one."""
    day, hour, minute, second, fraction, _ = result.groups()
    moment = datetime.fromisoformat(day).replace(
        hour=int(hour or 0),
        minute=int(minute or 0),
        second=int(second or 0),
        microsecond=int((fraction or "0").ljust(6, "0")),
    )
    return (moment - _EPOCH) // _MICROSECOND


def _instant(local: int, own_zone: str | None, kind: SqlType, zone: str) -> int | None:
    """Value of a time written with or without a time zone; None where only Spark knows."""
    if kind == TIMESTAMP_NTZ:
        return local if own_zone is None else None
    offset = fixed_offset(zone if own_zone is None else own_zone)
    return None if offset is None else local - offset


def day_number(written: str) -> int | None:
    """Days since 1970-01-01 of a date written exactly as yyyy-mm-dd; None for anything else."""
    if _ISO_DATE.fullmatch(written) is None:
        return None
    try:
        return (date.fromisoformat(written) - _EPOCH.date()).days
    except ValueError:
        return None


def interval(text: SqlText, node: exp.Interval, span: Span | None) -> Expr:
    """`INTERVAL n UNIT` with one whole unit, as a cast that Spark computes."""
    amount, unit = interval_parts(text, node)
    kind = unit if unit in ("day", "month", "year", "hour", "minute", "second") else None
    if kind is None:
        factor = _DAYS.get(unit) or _MONTHS[unit]
        amount, kind = amount * factor, "day" if unit in _DAYS else "month"
    return Cast(Literal(str(amount), STRING, span=span), other(f"interval {kind}"), span=span)


def interval_parts(text: SqlText, node: exp.Interval) -> tuple[int, str]:
    """Amount and lower-case singular unit of a simple interval; refuses any other."""
    unit = node.args.get("unit")
    name = unit.name.lower().rstrip("s") if isinstance(unit, exp.Var) else ""
    amount = node.this
    written = amount.name if isinstance(amount, exp.Literal) else ""
    known = {*_DAYS, *_MONTHS, *_MICROS}
    if name not in known or re.fullmatch(r"-?\d+", written.strip()) is None:
        raise text.unsupported(
            "an INTERVAL that is not a whole number of one unit", node, hint="write INTERVAL 3 DAYS"
        )
    return int(written), name


def days_of(amount: int, unit: str) -> int | None:
    """The interval in whole days that fit INT; None for any other."""
    days = amount * _DAYS[unit] if unit in _DAYS else None
    return days if days is not None and abs(days) <= _MOST else None


def is_fixed(unit: str, amount: int) -> bool:
    """Whether the interval has units of fixed length and its amount fits INT."""
    return unit in {*_DAYS, *_MICROS} and abs(amount) <= _MOST


def shifted(start: Literal, amount: int, unit: str, zone: str, span: Span | None) -> Literal | None:
    """A DATE or timestamp moved by an interval; None where only Spark knows."""
    kind, value = start.type, start.value
    if not isinstance(value, int) or kind not in (DATE, *_TIMES):
        return None
    if kind == DATE and unit in _MICROS:
        # Spark reads the date as midnight then.
        midnight = _as(start, TIMESTAMP, zone)
        if midnight is None:
            return None
        return _inside(midnight + amount * _MICROS[unit], TIMESTAMP, span)
    offset = fixed_offset(zone) if kind == TIMESTAMP else 0
    if offset is None:
        return None
    local = value * _DAY if kind == DATE else value + offset
    try:
        moved = _moved(local, amount, unit)
    except (OverflowError, ValueError):
        return None
    return _inside(moved // _DAY if kind == DATE else moved - offset, kind, span)


def _inside(value: int, kind: SqlType, span: Span | None) -> Literal | None:
    """The constant if it is in the years 1 to 9999."""
    try:
        _EPOCH + timedelta(microseconds=value * _DAY if kind == DATE else value)
    except OverflowError:
        return None
    return Literal(value, kind, span=span)


def _moved(local: int, amount: int, unit: str) -> int:
    """A local time some units later; the last day of a shorter month."""
    if unit in _DAYS:
        return local + amount * _DAYS[unit] * _DAY
    if unit in _MICROS:
        return local + amount * _MICROS[unit]
    days, rest = divmod(local, _DAY)
    start = (_EPOCH + timedelta(days=days)).date()
    moved = _month_shifted(start, amount * _MONTHS[unit])
    return (moved - _EPOCH.date()).days * _DAY + rest


def _month_shifted(start: date, months: int) -> date:
    """The same day some months later; the last day of a shorter month."""
    total = start.year * 12 + start.month - 1 + months
    year, month = divmod(total, 12)
    last = (date(year + month // 11, (month + 1) % 12 + 1, 1) - timedelta(days=1)).day
    return date(year, month + 1, min(start.day, last))
