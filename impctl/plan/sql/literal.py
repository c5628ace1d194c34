"""Constants of the SQL text, in the types Spark gives them.

Law: value and type are Spark's own (ANSI).
Out of scope: dates and times (`plan.sql.moments`), expressions over columns (`plan.sql.expr`).
"""

from __future__ import annotations

import re
from decimal import Decimal
from math import isinf

from sqlglot import exp

from impctl.data.schema import (
    BINARY,
    BOOLEAN,
    BYTE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    NULL,
    SHORT,
    STRING,
    SqlType,
    decimal,
)
from impctl.expr.nodes import Literal, Span
from impctl.expr.numeric import nearest_float
from impctl.expr.types import MAX_PRECISION
from impctl.plan.sql.text import SqlText

_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?(bd|[lsydf])?", re.IGNORECASE)
_STRING = re.compile(r"""(?P<quote>['"])(?P<body>.*)(?P=quote)""", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([01][0-7]{2})|(.))", re.DOTALL)
_SURROGATE = re.compile("[\\ud800-\\udfff]")
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_SUFFIX_TYPES = {"l": LONG, "s": SHORT, "y": BYTE}
_RANGES = {BYTE: 2**7, SHORT: 2**15, INTEGER: 2**31, LONG: 2**63}


def number(text: SqlText, node: exp.Expression, *, negative: bool = False) -> Literal | None:
    """A number, with its suffix if it has one; None for a node that is none.

    `negative` says that a minus stands before it, which belongs to it, as in Spark's grammar.
    """
    written = _written(text, node)
    result = None if written is None else _NUMBER.fullmatch(written)
    if result is None:
        return None
    span = text.span_of(node)
    if negative and span is not None:
        minus = text.token_before(span.start)
        span = span if minus is None else text.span(minus.start, span.end)
    digits, exponent, suffix = (
        result.group(1),
        result.group(2) or "",
        (result.group(3) or "").lower(),
    )
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


def string_value(text: SqlText, node: exp.Expression) -> str:
    """The value of a string literal, escapes read as Spark reads them."""
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
