"""Function calls and casts of the SQL text.

Law: a function is known to Spark by name or refused; what has a node of its own becomes that node
(COALESCE, NULLIF, IF, MOD, casts), everything else a Call with the arguments as written, so that
Spark can be asked. Volatile functions are noted.
Out of scope: aggregate and window functions (`plan.sql.aggregate`, `plan.sql.window`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from impctl.data.schema import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Kind,
    SqlType,
    decimal,
    from_delta,
)
from impctl.expr.functions import number_type
from impctl.expr.nodes import (
    Arithmetic,
    ArithmeticOp,
    Call,
    Case,
    Cast,
    Coalesce,
    Compare,
    CompareOp,
    Expr,
    IsNull,
    Literal,
    Negate,
    Not,
    Span,
)
from impctl.expr.types import type_of, uncounted
from impctl.plan.functions import (
    AGGREGATES,
    FOREIGN,
    GENERATORS,
    SCALARS,
    UNIT_DIFFERENCES,
    UNIT_SUMS,
    UNITS,
    VOLATILE,
    WINDOW_ONLY,
)
from impctl.plan.sql import literal as parse_literal
from impctl.plan.sql import moments
from impctl.plan.sql.scope import did_you_mean
from impctl.plan.sql.text import SqlText

if TYPE_CHECKING:
    from impctl.plan.sql.expr import ExprReader

_NO_PARENTHESES = {
    "CurrentDate": "current_date",
    "CurrentTimestamp": "current_timestamp",
    "CurrentUser": "current_user",
    "SessionUser": "session_user",
}
"""By the name of the node class, since older versions of sqlglot lack some."""
CAST_FUNCTIONS = {
    "bigint": "long",
    "binary": "binary",
    "boolean": "boolean",
    "date": "date",
    "double": "double",
    "float": "float",
    "int": "integer",
    "smallint": "short",
    "string": "string",
    "timestamp": "timestamp",
    "tinyint": "byte",
}
"""Casts that are written as functions, and their types."""
_INTERVALS = frozenset({"interval day", "interval month", "interval year"})
_RESULT_TYPES = (
    (
        STRING,
        "btrim chr concat_ws date_format format_number initcap lower lpad ltrim md5 regexp_extract "
        "regexp_replace repeat replace rpad rtrim sha1 substring_index translate trim upper",
    ),
    (
        INTEGER,
        "ascii char_length character_length datediff date_diff day dayofmonth dayofweek dayofyear "
        "bit_length hour instr len length locate minute month octet_length position quarter second "
        "weekday weekofyear year",
    ),
    (DATE, "add_months date_add date_sub last_day make_date next_day to_date trunc"),
    (TIMESTAMP, "date_trunc to_timestamp"),
    (
        DOUBLE,
        "acos asin atan atan2 cbrt cos degrees exp ln log log10 log1p log2 months_between pow "
        "power radians sign signum sin sqrt tan tanh",
    ),
    (BOOLEAN, "contains endswith isnan regexp_like startswith"),
)
"""Functions whose result type is the same for all arguments; STRING only for plain ones."""
_FIELDS = {
    "days": "day", "dow": "dayofweek", "doy": "dayofyear", "week": "weekofyear", "hours": "hour",
    "minutes": "minute", "months": "month", "years": "year",
}  # fmt: skip
_FIELD_FUNCTIONS = frozenset(
    {"year", "quarter", "month", "weekofyear", "day", "dayofweek", "dayofyear", "hour", "minute"}
)
"""Fields of EXTRACT that are functions of their own."""
_WITH_FIELDS = (DATE, TIMESTAMP, TIMESTAMP_NTZ)
_SAME_TYPE = frozenset({"abs", "negative", "nullifzero", "positive"})


def read_call(reader: ExprReader, node: exp.Expression, span: Span | None) -> Expr | None:
    """A call or cast; None for any other node."""
    match node:
        case exp.Cast():
            return _cast(reader, node, span)
        case exp.Anonymous():
            return _function(reader, node, span)
        case exp.Substring():
            parts = [node.this, node.args.get("start"), node.args.get("length")]
            return _call(reader, "substring", [part for part in parts if part is not None], span)
        case exp.Trim():
            return _trim(reader, node, span)
        case exp.Extract():
            name = node.this.name.lower()
            name = _FIELDS.get(name, name)
            operand = reader.read(node.expression)
            if name in _FIELD_FUNCTIONS and type_of(operand) in _WITH_FIELDS:
                return _made(reader, name, (operand,), span)
            # An interval has fields, too, for which Spark has no function of their own.
            return Call("date_part", (parse_literal.constant(name, span), operand), span=span)
        case exp.StrPosition():
            if any(node.args.get(part) for part in ("position", "occurrence")):
                hint = "use locate(part, text, start)"
                raise reader.text.unsupported("POSITION with a start", node, hint=hint)
            return _call(reader, "locate", [node.args["substr"], node.this], span)
    name = _NO_PARENTHESES.get(type(node).__name__)
    if name is None:
        return None
    span = reader.text.place_of(name) if span is None else span
    reader.reading.note_volatile(name, span)
    return Call(name, (), span=span)


def function_name(node: exp.Expression) -> str | None:
    """Lower-case name of a plain function call; None for another node."""
    if isinstance(node, exp.Any) and isinstance(node.this, exp.Paren):
        # sqlglot takes `any(x)` for the quantifier.
        return "any"
    if not isinstance(node, exp.Anonymous):
        return None
    return node.name.lower()


def arguments_of(node: exp.Expression) -> list[exp.Expression]:
    """The written arguments of a plain function call."""
    return [node.this.this] if isinstance(node, exp.Any) else list(node.expressions)


def _cast(reader: ExprReader, node: exp.Cast, span: Span | None) -> Expr:
    text = reader.text
    number = parse_literal.number(text, node)
    if number is not None:
        return number
    for option in ("format", "default"):
        if node.args.get(option) is not None:
            raise text.unsupported(f"CAST with {option.upper()}", node)
    target = _cast_type(text, node)
    if not isinstance(node, exp.TryCast):
        # Only typed literals come as a plain cast: Spark's CAST reads as exp.TryCast.
        return _typed_literal(reader, node, target, span)
    if node.args.get("safe"):
        raise text.unsupported(
            "TRY_CAST", node, hint="use CAST, which fails where TRY_CAST returns NULL"
        )
    return moments.folded(Cast(reader.read(node.this), target, reader.reading.zone, span=span))


def _typed_literal(reader: ExprReader, node: exp.Cast, kind: SqlType, span: Span | None) -> Expr:
    """`DATE '2024-01-31'`. The parser reads `DATE '2024-01-31'::STRING` as a date made of a cast
    text, while in Spark the date is cast."""
    text, zone, literal = reader.text, reader.reading.zone, node.this
    casts: list[exp.Cast] = []
    while isinstance(literal, exp.Cast):
        casts.append(literal)
        literal = literal.this
    written = parse_literal.string_value(text, literal)
    value = moments.typed(text, kind, written, node, zone, span)
    for cast in reversed(casts):
        value = moments.folded(Cast(value, _cast_type(text, cast), zone, span=span))
    return value


def _cast_type(text: SqlText, node: exp.Cast) -> SqlType:
    written = str(node.to.sql(dialect="spark")).lower()
    name = CAST_FUNCTIONS.get(written, written)
    if name in ("decimal", "numeric", "dec"):
        return decimal(10, 0)
    if name.startswith("decimal("):
        inside = name[len("decimal(") : -1].replace(" ", "")
        name = f"decimal({inside if ',' in inside else inside + ',0'})"
    result = from_delta(name)
    if result.kind in (Kind.OTHER, Kind.NULL) and name not in _INTERVALS:
        raise text.unsupported(f"CAST to `{written}`", node, hint="cast to a simple type")
    return result


def _trim(reader: ExprReader, node: exp.Trim, span: Span | None) -> Expr:
    position = str(node.args.get("position") or "BOTH").upper()
    name = {"BOTH": "btrim", "LEADING": "ltrim", "TRAILING": "rtrim"}[position]
    parts: tuple[Expr, ...] = (reader.read(node.this),)
    if node.expression is None:
        name = "trim" if name == "btrim" else name
    else:
        characters = reader.read(node.expression)
        parts = (*parts, characters) if name == "btrim" else (characters, *parts)
    return Call(name, parts, _result_type(name, parts), span=span)


def _function(reader: ExprReader, node: exp.Anonymous, span: Span | None) -> Expr:
    name = function_name(node) or ""
    by_unit = _function_by_unit(reader, node, name, span)
    if by_unit is not None:
        return by_unit
    _refuse_kinds(reader, node, name)
    for argument in node.expressions:
        if isinstance(argument, exp.Distinct | exp.Star | exp.Kwarg | exp.Lambda):
            what = type(argument).__name__.lower()
            raise reader.text.unsupported(f"`{name}` with a {what} argument", node)
    parts = reader.read_all(node.expressions)
    rewritten = _rewritten(name, parts, reader.reading.zone, span)
    if rewritten is not None:
        return rewritten
    if name in VOLATILE and not (name == "unix_timestamp" and parts):
        reader.reading.note_volatile(name, span)
    return _made(reader, name, parts, span)


def _function_by_unit(
    reader: ExprReader, node: exp.Anonymous, name: str, span: Span | None
) -> Expr | None:
    """`timestampadd(HOUR, 3, at)` and `datediff(HOUR, since, until)`; None for calls of another
    form. Their first argument is a bare word."""
    if name not in UNIT_SUMS | UNIT_DIFFERENCES or len(node.expressions) != 3:
        return None
    unit, *rest = node.expressions
    if not isinstance(unit, exp.Column) or unit.name.lower() not in UNITS:
        return None
    parts = (parse_literal.constant(unit.name.upper(), span), *reader.read_all(rest))
    is_sum = name in UNIT_SUMS
    called = "timestampadd" if is_sum else "timestampdiff"
    # A timestamp stays one of its kind. What a DATE becomes is left to Spark.
    moment = type_of(parts[2])
    moment = moment if moment in (TIMESTAMP, TIMESTAMP_NTZ) else None
    return Call(called, parts, moment if is_sum else LONG, reader.reading.zone, span=span)


def _refuse_kinds(reader: ExprReader, node: exp.Anonymous, name: str) -> None:
    text = reader.text
    if name in FOREIGN:
        raise text.unsupported(
            f"function `{name}`", node, hint="remove it; impctl cannot know what it does"
        )
    if name in AGGREGATES:
        where = "inside another aggregate" if reader.in_aggregate else f"in {reader.clause}"
        raise text.error(
            f"Query `{text.name}` uses the aggregate function `{name}` {where}",
            node,
            hint="Spark does not allow it there; use HAVING or a subquery",
        )
    if name in WINDOW_ONLY:
        raise text.unsupported(f"`{name}` without OVER", node, hint="add OVER (...)")
    if name in GENERATORS:
        raise text.unsupported(f"the function `{name}`", node)
    if name not in SCALARS and name not in CAST_FUNCTIONS:
        raise text.error(
            f"Query `{text.name}` uses the function `{name}`, which Spark does not have",
            node,
            hint=did_you_mean(name, SCALARS | AGGREGATES)
            or "user-defined functions are not supported",
            code="function_unknown",
        )


def _call(
    reader: ExprReader, name: str, arguments: list[exp.Expression], span: Span | None
) -> Expr:
    return _made(reader, name, reader.read_all(arguments), span)


def _made(reader: ExprReader, name: str, parts: tuple[Expr, ...], span: Span | None) -> Expr:
    result = Call(name, parts, _result_type(name, parts), reader.reading.zone, span=span)
    return moments.computed(result)


def _result_type(name: str, parts: tuple[Expr, ...]) -> SqlType | None:
    for kind, names in _RESULT_TYPES:
        if name in names.split():
            return kind if kind != STRING or _is_plain_text(name, parts) else None
    if name in _SAME_TYPE and len(parts) == 1:
        result = type_of(parts[0])
        return result if result is not None and result.is_numeric else None
    if name in ("concat", "substring", "substr", "left", "right", "reverse"):
        first = parts if name == "concat" else parts[:1]
        return STRING if first and all(type_of(part) == STRING for part in first) else None
    return number_type(name, parts)


def _is_plain_text(name: str, parts: tuple[Expr, ...]) -> bool:
    """Whether a text function gives plain text: of collated text most of them give collated text,
    and padded bytes stay bytes."""
    types = [type_of(part) for part in parts]
    if name in ("lpad", "rpad") and BINARY in types:
        return False
    return all(result is not None and result.kind is not Kind.OTHER for result in types)


def _rewritten(name: str, parts: tuple[Expr, ...], zone: str, span: Span | None) -> Expr | None:
    """A function that has a node of its own; None where it has not."""
    null = parse_literal.constant(None, span)
    match name, parts:
        case "coalesce", (_, *_):
            return Coalesce(parts, span=span)
        case (("nvl" | "ifnull"), (_, _)):
            return Coalesce(parts, span=span)
        case "nvl2", (tested, present, absent):
            return Case(((Not(IsNull(tested)), present),), absent, span=span)
        case "nullif", (value, unwanted):
            value = uncounted(value, unwanted)
            return Case(
                ((Compare(CompareOp.EQUAL, value, unwanted, span=span), null),), value, span=span
            )
        case "if", (condition, yes, no):
            return Case(((condition, yes),), no, span=span)
        case "mod", (left, right):
            return Arithmetic(ArithmeticOp.REMAINDER, left, right, span=span)
        case "negative", (operand,):
            return Negate(operand, span=span)
        case "positive", (operand,):
            return _positive(operand, span)
        case "isnull", (operand,):
            return IsNull(operand, span=span)
        case "isnotnull", (operand,):
            return Not(IsNull(operand, span=span), span=span)
        case "equal_null", (left, right):
            return Compare(CompareOp.NULL_SAFE_EQUAL, left, right, span=span)
        case (("lcase" | "ucase"), (operand,)):
            name = "lower" if name == "lcase" else "upper"
            return Call(name, parts, _result_type(name, parts), span=span)
    if name in CAST_FUNCTIONS and len(parts) == 1:
        return moments.folded(Cast(parts[0], from_delta(CAST_FUNCTIONS[name]), zone, span=span))
    return None


def _positive(operand: Expr, span: Span | None) -> Expr | None:
    """`+x` of a number is the number, but a constant's digits do not count as those of a literal;
    None where it may be a cast."""
    result = type_of(operand)
    if result is None or not result.is_numeric:
        return None
    return Cast(operand, result, span=span) if isinstance(operand, Literal) else operand
