"""Named parameters, and constants of the clock in a SQL text."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct, field

from impctl.errors import Location, UsageError
from impctl.expr.types import fixed_offset

if TYPE_CHECKING:
    from sqlglot.tokens import Token  # type: ignore[attr-defined]  # re-exported silently

    from impctl.types import ParameterValue, QueryName

# Constants of the clock in SQL: the day, the hour and longer units. All of them come from one
# instant in the session's time zone, and enter the text as literals, so impctl and Spark see the
# same. `now()` and `current_timestamp` are constants only if the text truncates them to the hour or
# coarser. Parts of other names, quoted names and aliases are none.

CURRENT_DATE = "current_date"
HOUR = "date_trunc('hour', current_timestamp)"
RUN_INSTANT = "now"
"""Instant of the run, cut to seconds: used by expiry, not by any text."""
NEVER = "never"
"""Instead of an instant: no existing row will ever expire."""
_UNITS = {
    "hour": "hour", "day": "day", "dd": "day", "week": "week", "month": "month", "mon": "month",
    "mm": "month", "quarter": "quarter", "year": "year", "yyyy": "year", "yy": "year",
}  # fmt: skip
"""Units of `date_trunc` by spelling."""
_CUT_NAMES = {f"date_trunc('{unit}', current_timestamp)": unit for unit in _UNITS.values()}
NOW = frozenset({"now", "current_timestamp"})
NAMES_WITHOUT_PARENTHESES = frozenset({"current_date", "current_timestamp"})
"""Names that need no parentheses, so that a column may have them."""


class ClockUse(Struct, frozen=True):
    """A place in the text, with offsets, of a constant of the clock."""

    moment: str
    start: int
    end: int
    before: int | None
    """Index of the previous token; None at the start."""


class Clock(Struct, frozen=True):
    """An instant (UTC) in a session's zone; values in `held` override it."""

    instant: datetime
    zone: str = "UTC"
    held: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, date | datetime] = field(default_factory=dict)

    def text(self, moment: str, follows: str | None = None) -> str:
        """The stored and displayed value of this moment."""
        return self.value(moment, follows).isoformat()

    def value(self, moment: str, follows: str | None = None) -> date | datetime:
        """A date, or a timestamp with UTC offset. A `given` parameter value overrides the moment it
        `follows`."""
        if moment in self.held:
            return read_moment(self.held[moment])
        if moment in self.given:
            return self.given[moment]
        moment = moment if follows is None else follows
        local = self.instant.astimezone(zone_of(self.zone))
        if moment == CURRENT_DATE:
            return local.date()
        if moment == RUN_INSTANT:
            return self.instant.replace(microsecond=0)
        return _cut(local, _CUT_NAMES[moment]).astimezone(UTC)


def read_moment(written: str) -> date | datetime:
    """Read what `Clock.text` wrote."""
    is_day = len(written) == len("2026-11-25")
    return date.fromisoformat(written) if is_day else datetime.fromisoformat(written)


def given_moment(name: str, written: str, follows: str, zone: str) -> date | datetime:
    """Value given for a parameter that follows the day or hour; UsageError if invalid."""
    try:
        if follows == CURRENT_DATE:
            return date.fromisoformat(written) if _DAY.fullmatch(written) else _no_time(written)
        return _instant(written, zone)
    except (ValueError, OverflowError):
        kind = "a day such as 2026-11-25" if follows == CURRENT_DATE else "a time: 2026-11-25 13:00"
        raise UsageError(
            f"Parameter `{name}` must be {kind}, not: {written}",
            hint="or omit it to use the current time",
            code="parameter_type",
        ) from None


def zone_of(name: str) -> tzinfo:
    """Time zone of this name; UsageError where this machine does not know it."""
    offset = fixed_offset(name)
    if offset is not None:
        return timezone(timedelta(microseconds=offset))
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(
            f"This machine has no data for time zone `{name}`, so the current day cannot be "
            "computed",
            hint="install the package `tzdata`, or set `spark.sql.session.timeZone` to a known one",
            code="zone_unknown",
        ) from None


_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_NOW = re.compile(r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:\d{2})?)?")


def instant_of(written: str, zone: str) -> datetime:
    """Read `2026-11-25` or `2026-11-25 13:00:00`, in the session's zone or with an offset; else
    UsageError."""
    try:
        return _instant(written, zone)
    except (ValueError, OverflowError):
        raise UsageError(
            f"The value of `--now` or IMPCTL_NOW is not a time: {written}",
            hint="write 2026-11-25, 2026-11-25 13:00 or 2026-11-25T13:00:00+01:00",
            code="now_syntax",
        ) from None


def _instant(written: str, zone: str) -> datetime:
    result = datetime.fromisoformat(written) if _NOW.fullmatch(written) else _no_time(written)
    if result.tzinfo is None:
        result = result.replace(tzinfo=zone_of(zone))
    return result.astimezone(UTC)


def _no_time(written: str) -> NoReturn:
    raise ValueError(written)


def _cut(local: datetime, unit: str) -> datetime:
    """Start of the unit that contains a local time, as Spark's `date_trunc` cuts it."""
    if unit == "hour":
        return local.replace(minute=0, second=0, microsecond=0)
    # The first of two midnights; a missing one is the time of the change of the clock.
    day = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    match unit:
        case "week":
            return day - timedelta(days=day.weekday())
        case "month":
            return day.replace(day=1)
        case "quarter":
            return day.replace(month=(day.month - 1) // 3 * 3 + 1, day=1)
        case "year":
            return day.replace(month=1, day=1)
        case _:
            return day


_RIGHT_NOW = r"(?:(?:now|current_timestamp)\n\(\n\)\n|current_timestamp\n(?![.(]\n))"
"""The current time; every token ends with a line feed."""
_CLOCK_USE = rf"""date_trunc\n\(\n['"]?(?P<unit>{"|".join(_UNITS)})['"]?\n,\n{_RIGHT_NOW}\)\n
    |(?:current_date|curdate)\n\(\n\)\n
    |current_date\n(?![.(]\n)
    |(?:to_date|date)\n\(\n{_RIGHT_NOW}\)\n
    |cast\n\(\n{_RIGHT_NOW}as\ndate\n\)\n
    |{_RIGHT_NOW}::\ndate\n"""


def clock_uses(sql: str, tokens: Sequence[Token]) -> Iterator[ClockUse]:
    """Constants of the clock in a text, from left to right."""
    # A line feed within a text is no end of a token.
    words = [sql[token.start : token.end + 1].lower().replace("\n", " ") for token in tokens]
    text = "".join(f"{word}\n" for word in words)
    pattern = re.compile(_CLOCK_USE, re.VERBOSE)
    index = offset = 0
    while index < len(tokens):
        is_part = index > 0 and words[index - 1] == "."
        match = None if is_part else pattern.match(text, offset)
        length = 1
        if match is not None:
            length = match.group().count("\n")
            unit = match["unit"]
            moment = CURRENT_DATE
            if unit is not None:
                moment = f"date_trunc('{_UNITS[unit]}', current_timestamp)"
            last = tokens[index + length - 1]
            yield ClockUse(moment, tokens[index].start, last.end + 1, index - 1 if index else None)
        offset += sum(len(word) + 1 for word in words[index : index + length])
        index += length


# Named parameters (`:name`, Spark's syntax). A value enters the text as one literal of its type:
# characters that could end the literal, start an escape or a Spark variable (`${...}`) become code
# points, and negative numbers get parentheses. A parameter stands only where an operand may; a
# colon in a string, comment or quoted name, or after a column (`payload:key`), is none.

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN = re.compile(r"[^\x00-\x1f\x7f'\"\\$\u2028\u2029]*")
_LONG = range(-(2**63), 2**63)
_BEFORE = frozenset(
    {"(", ",", "=", "==", "<", ">", "<=", ">=", "<>", "!=", "<=>", "+", "-", "*", "/", "%", "||"}
    | {"and", "or", "not", "between", "like", "ilike", "rlike", "then", "else", "when", "select"}
    | {"where", "having", "qualify", "limit", "offset", "on", "case", "div", "distinct", "["}
)
"""What may precede an operand. Elsewhere a literal could change its meaning: `DATE :day` would
become a typed literal, `day :key` a call."""


class Binding(Struct, frozen=True):
    """One replaced parameter: its place and its literal's, on the same line."""

    line: int
    column: int
    written: int
    bound_column: int
    bound: int


class BoundSql(Struct, frozen=True):
    """A text without parameters, and how its places map to the original."""

    sql: str
    bindings: tuple[Binding, ...] = ()
    moments: Mapping[str, str] = field(default_factory=dict)
    """Constants of the clock that were replaced, with their values."""
    bare: frozenset[str] = frozenset()
    """Those of them written without parentheses, like a column."""

    def written_at(self, line: int, column: int) -> tuple[int, int]:
        """Line and column (1-based) in the text with parameters."""
        bindings = [binding for binding in self.bindings if binding.line == line]
        index = bisect_right(bindings, column, key=lambda binding: binding.bound_column) - 1
        if index < 0:
            return line, column
        before = bindings[index]
        inside = column - before.bound_column
        if inside < before.bound:
            return line, before.column
        return line, before.column + before.written + inside - before.bound


def bind(
    sql: str,
    values: Mapping[str, ParameterValue],
    *,
    name: QueryName,
    clock: Clock | None = None,
    follows: Mapping[str, str] = MappingProxyType({}),
) -> BoundSql:
    """Replace all parameters and constants of the clock by literals; without a `clock` its
    constants stay. `follows` has the moments of parameters that follow the clock, unless a value is
    given. UsageError, with a place in the text, for a parameter without a value or where no operand
    can be, or a value without a parameter."""
    from sqlglot.dialects.spark import Spark
    from sqlglot.errors import TokenError

    moving = {f":{key}": moment for key, moment in follows.items()}
    if clock is not None:
        values = {**values, **{key: clock.value(f":{key}", follows[key]) for key in follows}}
    asks_clock = clock is not None and _CLOCK.search(sql) is not None
    if ":" not in sql and not values and not asks_clock:
        return BoundSql(sql)
    try:
        tokens = Spark().tokenize(sql)
    except TokenError:
        # The reader of the text reports the error.
        return BoundSql(sql)
    parameters = list(_parameters(sql, tokens, name))
    _refuse_unused(values, {parameter.name for parameter in parameters}, name)
    edits = [(p.start, p.end, _literal(p, values, name)) for p in parameters]
    uses = _clock_places(sql, tokens) if asks_clock else []
    moments: dict[str, str] = {}
    if clock is not None:
        edits += [(u.start, u.end, literal_text(clock.value(u.moment))) for u in uses]
        moments = {use.moment: clock.text(use.moment) for use in uses}
        moments |= {name: clock.text(name, moment) for name, moment in moving.items()}
    text, bindings = _replaced(sql, sorted(edits))
    bare = frozenset(sql[use.start : use.end].lower() for use in uses) & NAMES_WITHOUT_PARENTHESES
    return BoundSql(text, bindings, moments, bare)


_CLOCK = re.compile(rf"curdate|{'|'.join(sorted(NOW | NAMES_WITHOUT_PARENTHESES))}", re.IGNORECASE)


def _clock_places(sql: str, tokens: Sequence[Token]) -> list[ClockUse]:
    """Operands that are constants of the clock; names without parentheses that are also aliases are
    skipped."""
    uses = list(clock_uses(sql, tokens))
    operands = [
        use for use in uses if use.before is not None and _is_before(sql, tokens[use.before])
    ]
    names = {
        sql[use.start : use.end].lower() for use in uses if use not in operands
    } & NAMES_WITHOUT_PARENTHESES
    names |= {token.text.lower() for token in tokens if sql[token.start] == "`"}
    return [use for use in operands if sql[use.start : use.end].lower() not in names]


def _is_before(sql: str, token: Token) -> bool:
    return sql[token.start : token.end + 1].lower() in _BEFORE


def _literal(parameter: _Parameter, values: Mapping[str, ParameterValue], name: QueryName) -> str:
    if parameter.name not in values:
        raise _unknown(parameter, values, name)
    if not parameter.is_operand:
        raise UsageError(
            f"Parameter `:{parameter.name}` of query `{name}` is in a place that cannot hold a "
            "value",
            hint="use a parameter as an operand, for example `x > :low`",
            code="parameter_misplaced",
            location=parameter.location,
        )
    return literal_text(values[parameter.name])


def _replaced(sql: str, edits: Sequence[tuple[int, int, str]]) -> tuple[str, tuple[Binding, ...]]:
    """The text with these ranges (start, end, new text; ascending) replaced, lines kept."""
    pieces: list[str] = []
    bindings: list[Binding] = []
    done = 0
    for start, end, literal in edits:
        line = sql.count("\n", 0, start) + 1
        column = start - sql.rfind("\n", 0, start)
        first, *others = sql[start:end].split("\n")
        # What follows on a later line keeps its place there.
        rest = "\n" * len(others) + " " * len(others[-1]) if others else ""
        pieces += [sql[done:start], literal, rest]
        done = end
        shift = sum(b.bound - b.written for b in bindings if b.line == line)
        bindings.append(Binding(line, column, len(first), column + shift, len(literal)))
    return "".join((*pieces, sql[done:])), tuple(bindings)


def literal_text(value: ParameterValue) -> str:
    """The value as one Spark SQL literal of the same type; UsageError where it has none."""
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case int() if value in _LONG:
            return _signed(str(value))
        case int():
            raise _too_long()
        case float():
            return _signed(f"{value!r}D".replace("e+", "e"))
        case Decimal():
            if len(value.as_tuple().digits) > 38 or abs(value.adjusted()) > 38:
                raise _too_long()
            text = format(value, "f")
            return _signed(text if "." in text else f"{text}BD")
        case str():
            escaped = (c if _PLAIN.fullmatch(c) else f"\\u{ord(c):04x}" for c in value)
            return f"'{''.join(escaped)}'"
        case datetime():
            return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
        case date():
            return f"DATE '{value.isoformat()}'"


def _signed(text: str) -> str:
    return f"({text})" if text.startswith("-") else text


def _too_long() -> UsageError:
    return UsageError(
        "A parameter has more digits than Spark's numbers can hold",
        hint="integers have at most 64 bits, decimals at most 38 digits",
        code="parameter_type",
    )


class _Parameter(Struct, frozen=True):
    name: str
    start: int
    end: int
    location: Location
    is_operand: bool


def _parameters(sql: str, tokens: Sequence[Token], query: QueryName) -> Iterator[_Parameter]:
    from sqlglot.tokens import TokenType  # type: ignore[attr-defined]  # re-exported silently

    before: Token | None = None
    for token in tokens:
        word = _NAME.match(sql, token.end + 1)
        if token.token_type is TokenType.COLON and word is not None:
            follows_a_value = token.start > 0 and re.match(r"[\w`'\")\]]", sql[token.start - 1])
            if not follows_a_value:
                line = sql.count("\n", 0, token.start) + 1
                line_start = sql.rfind("\n", 0, token.start) + 1
                yield _Parameter(
                    word.group(),
                    token.start,
                    word.end(),
                    Location(f"query `{query}`", line, token.start - line_start + 1),
                    before is not None
                    and _is_before(sql, before)
                    # `:low.5` with 7 for `low` is not 7.5.
                    and not sql.startswith(".", word.end()),
                )
        before = token


def _refuse_unused(values: Mapping[str, ParameterValue], used: set[str], query: QueryName) -> None:
    for name in values:
        if name not in used:
            listed = ", ".join(f"`:{other}`" for other in sorted(used))
            raise UsageError(
                f"Parameter `{name}` does not occur in the SQL of query `{query}`",
                hint=f"the query has: {listed}"
                if used
                else (f"write `:{name}` in the SQL where its value belongs"),
                code="parameter_unused",
            )


def _unknown(
    parameter: _Parameter, values: Mapping[str, ParameterValue], query: QueryName
) -> UsageError:
    close = get_close_matches(parameter.name, list(values), n=1)
    hint = f"add `{parameter.name}: VALUE` under `params` of the query, or write the value itself"
    return UsageError(
        f"Parameter `:{parameter.name}` of query `{query}` has no value",
        hint=f"did you mean `:{close[0]}`?" if close else hint,
        code="parameter_unknown",
        location=parameter.location,
    )
