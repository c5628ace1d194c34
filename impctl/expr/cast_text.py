"""Casts to and from text, under ANSI rules.

Law: what is written is what Spark writes; text is read only in its plain form (digits with a sign,
yyyy-mm-dd), and any other is refused when it is met, because Spark accepts some other forms and
fails on the rest. Each is a loop over the rows of the batch.
Out of scope: doubles and timestamps as text, which depend on Java.
"""

from __future__ import annotations

import re
from datetime import date, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from impctl.data.schema import INTEGRAL, STRING, Kind, SqlType
from impctl.data.vector import Vector
from impctl.errors import NotExactError
from impctl.expr.numbers import fit_integers, narrow

_EPOCH = date(1970, 1, 1)
_FIRST_DAY, _LAST_DAY = (date.min - _EPOCH).days, (date.max - _EPOCH).days
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def has_text_form(kind: SqlType) -> bool:
    """Whether values of this type are written as Spark writes them."""
    return kind.kind in INTEGRAL | {Kind.BOOLEAN, Kind.DECIMAL, Kind.DATE}


def is_read_from_text(kind: SqlType) -> bool:
    """Whether the plain form of such values is read."""
    return kind.kind in INTEGRAL | {Kind.DATE}


def written(vector: Vector) -> Vector:
    """The column as text."""
    kind = vector.type
    texts = [
        _text(value, kind) if valid else None
        for value, valid in zip(vector.values.tolist(), vector.validity(), strict=True)
    ]
    return Vector(STRING, pa.array(texts, pa.large_string()), vector.valid)


def _text(value: Any, kind: SqlType) -> str:
    if kind.kind is Kind.BOOLEAN:
        return "true" if value else "false"
    if kind.kind is Kind.DATE:
        if not _FIRST_DAY <= value <= _LAST_DAY:
            raise _refused("a date outside the years 1 to 9999 to text")
        return (_EPOCH + timedelta(days=value)).isoformat()
    if not kind.scale:
        return str(value)
    digits = str(abs(value)).rjust(kind.scale + 1, "0")
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[: -kind.scale]}.{digits[-kind.scale :]}"


def read(vector: Vector, target: SqlType) -> Vector:
    """The values that text stands for; EvaluationError where one does not fit."""
    texts = vector.values.to_pylist()
    valid = vector.validity()
    take = _day if target.kind is Kind.DATE else _number
    numbers = np.array(
        [take(text) if ok else 0 for text, ok in zip(texts, valid, strict=True)], dtype=object
    )
    if target.kind is Kind.DATE:
        return Vector(target, numbers.astype(np.int64), vector.valid)
    return Vector(target, fit_integers(narrow(numbers), target), vector.valid)


def _number(text: str) -> int:
    if _WHOLE.fullmatch(text) is None:
        raise _refused("text that is not a plain number to a number")
    return int(text)


def _day(text: str) -> int:
    try:
        if _DATE.fullmatch(text) is not None:
            return (date.fromisoformat(text) - _EPOCH).days
    except ValueError:
        pass
    raise _refused("text that is not a plain date to a date")


def _refused(what: str) -> NotExactError:
    return NotExactError(
        f"A cast in the query converts {what}, which only Spark can do",
        hint="recapture with `impctl capture`, or cast another column",
    )
