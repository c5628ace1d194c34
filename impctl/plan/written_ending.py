"""The end of a plan as JSON and back, so that a kept answer is told without reading SQL.

Law: reading gives back an equal value, or ValueError for all that was not written here; only the
classes listed are ever made. Places in the SQL text are left out: nobody is told of them from here.
Out of scope: whether what was written is still the query's (`app.using.at_once`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from functools import lru_cache
from typing import Any, get_args

from impctl.data.schema import Kind, SqlType
from impctl.expr.nodes import ArithmeticOp, CompareOp, Expr
from impctl.plan.ending import Ending, FirstRows
from impctl.plan.nodes import Attribute, ComputedColumn, SortKey

Written = Any
"""What JSON has: None, a truth value, a text, a list; numbers and records are lists by a name."""

_RECORDS: Mapping[str, type] = {
    record.__name__: record
    for record in (
        Ending,
        FirstRows,
        SortKey,
        Attribute,
        ComputedColumn,
        SqlType,
        *get_args(Expr),
    )
}
_NAMES: Mapping[str, type[StrEnum]] = {
    kind.__name__: kind for kind in (Kind, ArithmeticOp, CompareOp)
}


def written_ending(ending: Ending) -> Written:
    """The ending as JSON has it; TypeError where it holds a value of no known class."""
    return _written(ending)


def read_ending(written: Written) -> Ending:
    """The ending that was written; ValueError where none was."""
    try:
        result = _read(written)
    except (TypeError, ValueError, LookupError, InvalidOperation) as error:
        raise ValueError("not the end of a plan") from error
    if not isinstance(result, Ending):
        raise ValueError("not the end of a plan")
    return result


def _written(value: object) -> Written:
    name = type(value).__name__
    if type(value) is tuple:
        return ["tuple", *map(_written, value)]
    if _RECORDS.get(name) is type(value):
        return [name, *(_written(getattr(value, field)) for field in _fields(name))]
    if isinstance(value, StrEnum) and _NAMES.get(name) is type(value):
        return [name, value.value]
    match value:
        case None | bool():
            return value
        case str() if type(value) is str:
            return value
        case int() if type(value) is int:
            return ["int", str(value)]
        case float() if type(value) is float:
            return ["float", value.hex()]
        case Decimal():
            return ["Decimal", str(value)]
        case bytes():
            return ["bytes", value.hex()]
    raise TypeError(f"cannot write a {name}")


def _read(written: Written) -> Any:
    if written is None or isinstance(written, bool | str):
        return written
    if not isinstance(written, list):
        raise TypeError("neither a value nor a record")
    name, *parts = written
    if name == "tuple":
        return tuple(map(_read, parts))
    if name in _RECORDS:
        values = zip(_fields(name), map(_read, parts), strict=True)
        return _RECORDS[name](**dict(values))
    (text,) = parts
    if name in _NAMES:
        return _NAMES[name](text)
    return _SINGLE[name](text)


_SINGLE: Mapping[str, Callable[[str], Any]] = {
    "int": int,
    "float": float.fromhex,
    "Decimal": Decimal,
    "bytes": bytes.fromhex,
}


@lru_cache
def _fields(name: str) -> tuple[str, ...]:
    """What is written of a record."""
    return tuple(field.name for field in fields(_RECORDS[name]) if field.name != "span")
