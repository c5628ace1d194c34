"""Constants of time: dates, timestamps, intervals, and what Spark makes of them beforehand.

Law: a constant is computed here only where it is what Spark computes: texts in the form that leaves
nothing open, and a TIMESTAMP without a zone of its own where the session's is a fixed offset from
UTC. In a region (`Europe/Berlin`) it stays a cast for Spark to do (docs/decisions/0022), and so
does all that fails or leaves the range of dates.
Out of scope: functions of columns (`expr.temporal`), other constants (`plan.sql.literal`).
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta

from sqlglot import exp

from impctl.data.schema import DATE, STRING, TIMESTAMP, TIMESTAMP_NTZ, SqlType, other
from impctl.errors import EvaluationError, NotExactError
from impctl.expr.evaluate import Evaluator, find_blocker
from impctl.expr.nodes import Call, Cast, Expr, Literal, Span
from impctl.expr.types import fixed_offset, type_of
from impctl.plan.sql.text import SqlText

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
    text: SqlText,
    kind: SqlType,
    written: str,
    node: exp.Expression,
    zone: str,
    span: Span | None,
) -> Expr:
    """`DATE '...'` and `TIMESTAMP '...'` in a session of this time zone."""
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
    own = match.group(6)
    if own is not None and fixed_offset(own) is None:
        raise text.error(
            f"Not a timestamp: {own} is not a valid time zone offset",
            node,
            hint="offsets range from -18:00 to +18:00",
        )
    micros = _instant(local, own, kind, zone)
    if micros is None:
        return Cast(Literal(written, STRING, span=span), kind, zone, span=span)
    return Literal(micros, kind, span=span)


def folded(expr: Cast) -> Expr:
    """A cast of a constant to a date or a time, computed where nothing is left open."""
    operand = expr.operand
    if not isinstance(operand, Literal):
        return expr
    moment = _as(operand, expr.type, expr.zone)
    return expr if moment is None else Literal(moment, expr.type, span=expr.span)


def computed(call: Call) -> Expr:
    """A function of constants that gives a date or a time, computed where the engine has it."""
    if not all(isinstance(part, Literal) for part in call.arguments):
        return call
    if call.name in _READ and len(call.arguments) == 1 and isinstance(call.arguments[0], Literal):
        moment = _as(call.arguments[0], _READ[call.name], call.zone)
        return call if moment is None else Literal(moment, _READ[call.name], span=call.span)
    if call.type is None or call.type not in (DATE, *_TIMES) or find_blocker(call) is not None:
        return call
    try:
        result = Evaluator(call).values({}, 1)
    except (EvaluationError, NotExactError):
        return call
    if not result.validity()[0]:
        return call
    return Literal(int(result.filled()[0]), call.type, span=call.span)


def alike(expr: Expr, beside: Expr, zone: str) -> Expr:
    """A constant beside a DATE or a timestamp as one of that kind, as Spark compares the two.

    A text beside either is cast, and so is a DATE beside a timestamp; any other stays as it is.
    """
    kind = type_of(beside)
    if kind is None or not isinstance(expr, Literal) or expr.type not in (STRING, DATE):
        return expr
    if expr.type == DATE and kind not in _TIMES:
        return expr
    moment = _as(expr, kind, zone)
    return expr if moment is None else Literal(moment, kind, span=expr.span)


def _as(constant: Literal, kind: SqlType, zone: str) -> int | None:
    """The constant as a DATE or a timestamp; None where it is left to Spark."""
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
    """Microseconds of the written day and time; ValueError where there is no such."""
    day, hour, minute, second, fraction, _ = result.groups()
    moment = datetime.fromisoformat(day).replace(
        hour=int(hour or 0),
        minute=int(minute or 0),
        second=int(second or 0),
        microsecond=int((fraction or "0").ljust(6, "0")),
    )
    return (moment - _EPOCH) // _MICROSECOND


def _instant(local: int, own: str | None, kind: SqlType, zone: str) -> int | None:
    """The value of a time written with a zone of its `own` or without; None: Spark must say."""
    if kind == TIMESTAMP_NTZ:
        return local if own is None else None
    offset = fixed_offset(zone if own is None else own)
    return None if offset is None else local - offset


def day_number(written: str) -> int | None:
    """Days since 1970-01-01 for a date written exactly as yyyy-mm-dd; None for anything else."""
    if _ISO_DATE.fullmatch(written) is None:
        return None
    try:
        return (date.fromisoformat(written) - _EPOCH.date()).days
    except ValueError:
        return None


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
    known = {*_DAYS, *_MONTHS, *_MICROS}
    if name not in known or re.fullmatch(r"-?\d+", written.strip()) is None:
        raise text.unsupported(
            "an INTERVAL that is not a whole number of one unit",
            node,
            hint="write INTERVAL 3 DAYS",
        )
    return int(written), name


def days_of(amount: int, unit: str) -> int | None:
    """An interval in whole days, as many as an INT holds; None for any other."""
    days = amount * _DAYS[unit] if unit in _DAYS else None
    return days if days is not None and abs(days) <= _MOST else None


def is_fixed(unit: str, amount: int) -> bool:
    """Whether an interval has units of a fixed length, as many as an INT holds."""
    return unit in {*_DAYS, *_MICROS} and abs(amount) <= _MOST


def shifted(start: Literal, amount: int, unit: str, zone: str, span: Span | None) -> Literal | None:
    """A DATE or a timestamp moved by an interval; None where it is left to Spark."""
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
    """The constant, where it lies in the years 1 to 9999."""
    try:
        _EPOCH + timedelta(microseconds=value * _DAY if kind == DATE else value)
    except OverflowError:
        return None
    return Literal(value, kind, span=span)


def _moved(local: int, amount: int, unit: str) -> int:
    """A local time some units later; in a shorter month its last day."""
    if unit in _DAYS:
        return local + amount * _DAYS[unit] * _DAY
    if unit in _MICROS:
        return local + amount * _MICROS[unit]
    days, rest = divmod(local, _DAY)
    start = (_EPOCH + timedelta(days=days)).date()
    moved = _month_shifted(start, amount * _MONTHS[unit])
    return (moved - _EPOCH.date()).days * _DAY + rest


def _month_shifted(start: date, months: int) -> date:
    """The same day some months later, or the last day of that month where it is shorter."""
    total = start.year * 12 + start.month - 1 + months
    year, month = divmod(total, 12)
    last = (date(year + month // 11, (month + 1) % 12 + 1, 1) - timedelta(days=1)).day
    return date(year, month + 1, min(start.day, last))
