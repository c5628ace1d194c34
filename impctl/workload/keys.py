"""How models declare the keys of the workload file; the reader and the JSON Schema derive from it.

A field of a struct whose annotation has a `key` is a key of the file, under the field's name or
the one of `field(name=...)`. Its type says what the file may hold, `Meta` what limits it. Other
fields are filled in by the reader. Struct docstrings describe the mappings in the JSON Schema.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from msgspec import NODEFAULT, Meta, Struct

from impctl.workload.scalars import YamlScalar

JsonSchema = dict[str, object]
Reader = str | Callable[[YamlScalar], Any]

_LIMITS = ("ge", "le", "min_length", "max_length", "extra_json_schema", "description")


def key(description: str = "", **said: Any) -> Meta:
    """A key of the file. Without a description, the docstring of its struct is the description.

    - `reader`: as of `spelled`, for a type that the file spells as usual.
    - `old_name`: accepted as well.
    - `is_required`: overrides that keys without a default, or None as one, are required.
    - `min_length`, `max_length`: limits of a list or a mapping.
    """
    limits = {name: said.pop(name) for name in _LIMITS if name in said}
    return Meta(description=description or None, extra={"is_key": True, **said}, **limits)


def whole(most: int, hint: str) -> Meta:
    """A whole number from 1 to `most`; `hint` is what to write instead of another one."""
    return Meta(ge=1, le=most, extra={"hint": hint})


def spelled(reader: Reader, written: Any, expected: str = "text") -> Meta:
    """A value that the file spells in a way of its own. `reader` is a function of a scalar, which
    `expected` describes in messages, or else the name of a reader of nodes in `workload.sections`;
    `written` is the type in the file."""
    return Meta(extra={"reader": reader, "written": written, "expected": expected})


class ValueKind(Struct, frozen=True):
    """The type of a value, with what its `Meta`s say together."""

    options: tuple[Any, ...]
    """The types of a union, without None."""
    is_optional: bool
    limits: dict[str, Any]
    """Arguments of `Meta`, the outermost first."""
    extra: dict[str, Any]


class Key(Struct, frozen=True):
    name: str
    field: str
    kind: ValueKind
    is_required: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The key and its old name."""
        old = self.kind.extra.get("old_name")
        return (self.name,) if old is None else (self.name, old)


def kind_of(annotation: Any) -> ValueKind:
    limits: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    options, is_optional = (annotation,), False
    while len(options) == 1:
        (inner,) = options
        if get_origin(inner) is Annotated:
            # The outermost says most about this value.
            for meta in reversed(inner.__metadata__):
                said = {name: getattr(meta, name) for name in _LIMITS}
                limits = {**{k: v for k, v in said.items() if v is not None}, **limits}
                extra = {**(meta.extra or {}), **extra}
            options = (inner.__origin__,)
        elif get_origin(inner) in (Union, UnionType):
            parts = get_args(inner)
            is_optional = NoneType in parts
            options = tuple(part for part in parts if part is not NoneType)
        else:
            break
    return ValueKind(options, is_optional, limits, extra)


@cache
def keys_of(model: type[Struct]) -> tuple[Key, ...]:
    """The keys that the fields of a struct declare, in their order; inherited ones come last."""
    encoded = dict(zip(model.__struct_fields__, model.__struct_encode_fields__, strict=True))
    with_default = {
        name
        for name, default in zip(
            reversed(model.__struct_fields__), reversed(model.__struct_defaults__), strict=False
        )
        if default is not NODEFAULT
    }
    result: list[Key] = []
    for base in model.__mro__:
        for name, annotation in getattr(base, "__annotations__", {}).items():
            kind = kind_of(annotation)
            if "is_key" in kind.extra:
                is_optional = kind.is_optional or name in with_default
                is_required = kind.extra.get("is_required", not is_optional)
                result.append(Key(encoded[name], name, kind, is_required))
    return tuple(result)
