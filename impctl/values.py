"""Classes of values, whose `__init__` is compiled when the first of their values is made.

Python's own `dataclass` compiles up to six methods of each class while its module loads. That took
half of the load time of impctl's modules, and most classes of a run never have a value.
Law: a class made here behaves like one of `dataclasses.dataclass`, with the same parameters;
`fields`, `replace`, `asdict` and `is_dataclass` accept it. Type checkers see that function alone.
It handles what this module does not: ordering, and bases that are such classes. No class here has
`InitVar`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

_KNOWN = {"frozen", "slots", "eq", "kw_only"}
"""Parameters that this module handles."""


class _FactoryDefault:
    """Default of a field with a factory."""

    def __repr__(self) -> str:
        return "<factory>"


_ABSENT: Any = _FactoryDefault()


def _dataclass(cls: type | None = None, /, **parameters: bool) -> Any:
    """Make the class a value class, like `dataclasses.dataclass`."""
    if cls is None:
        return lambda cls: _dataclass(cls, **parameters)
    is_derived = any(hasattr(base, "__dataclass_fields__") for base in cls.__mro__[1:])
    if is_derived or not parameters.keys() <= _KNOWN:
        return dataclasses.dataclass(cls, **parameters)
    return _made(cls, **parameters)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _dataclass


def _made(
    cls: type,
    *,
    frozen: bool = False,
    slots: bool = False,
    eq: bool = True,
    kw_only: bool = False,
) -> type:
    """Add fields and slots with `dataclasses`, and methods with this module."""
    own = dict(cls.__dict__)
    if cls.__doc__ is None:
        # Else `dataclasses` makes one of the signature, which is not there yet.
        cls.__doc__ = cls.__name__
    bare = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)
    made: Any = bare(cls)
    # What `dataclasses` asks a base, as which the class is no other than one of its own.
    made.__dataclass_params__.frozen = frozen
    fields = dataclasses.fields(made)
    methods = [_later(made, fields, frozen), _repr([field.name for field in fields if field.repr])]
    if eq:
        methods.append(_eq(_key([field.name for field in fields if field.compare])))
    if frozen:
        methods += _refusals(made, frozenset(field.name for field in fields))
        if slots:
            methods += _states()
    for method in methods:
        if method.__name__ not in own:
            _put(made, method)
    has_hash = "__hash__" in own and (own["__hash__"] is not None or "__eq__" not in own)
    if eq and not has_hash:
        if frozen:
            hashed = [f.name for f in fields if (f.compare if f.hash is None else f.hash)]
            _put(made, _hash(_key(hashed)))
        else:
            made.__hash__ = None
    finished: type = made
    return finished


def _put(made: type, method: Callable[..., Any]) -> None:
    method.__qualname__ = f"{made.__qualname__}.{method.__name__}"
    setattr(made, method.__name__, method)


def _later(
    made: type, fields: Sequence[dataclasses.Field[Any]], frozen: bool
) -> Callable[..., None]:
    """An `__init__` that replaces itself with the compiled one and calls that."""

    def __init__(_self: object, /, *args: object, **kwargs: object) -> None:
        written = _init(made, fields, frozen)
        _put(made, written)
        written(_self, *args, **kwargs)

    return __init__


def _init(made: type, fields: Sequence[dataclasses.Field[Any]], frozen: bool) -> Callable[..., Any]:
    """Compile the `__init__` of these fields."""
    scope: dict[str, Any] = {"_absent": _ABSENT, "_set": object.__setattr__}
    asked: list[str] = []
    named: list[str] = []
    body: list[str] = []
    for field in fields:
        name = field.name
        parameter, value = _parameter(field, scope)
        if field.init:
            (named if field.kw_only else asked).append(parameter)
        if value:
            body.append(f"_set(_self, {name!r}, {value})" if frozen else f"_self.{name} = {value}")
    if hasattr(made, "__post_init__"):
        body.append("_self.__post_init__()")
    every = ", ".join(["_self", "/", *asked, *(["*", *named] if named else [])])
    text = f"def __init__({every}):\n " + "\n ".join(body or ["pass"])
    exec(compile(text, f"<__init__ of {made.__qualname__}>", "exec"), scope)
    written: Callable[..., Any] = scope["__init__"]
    written.__module__ = made.__module__
    written.__annotations__ = {f.name: f.type for f in fields if f.init} | {"return": None}
    return written


def _parameter(field: dataclasses.Field[Any], scope: dict[str, Any]) -> tuple[str, str]:
    """The field's parameter and value; names that they need are added to the scope."""
    name = field.name
    if field.default is not dataclasses.MISSING:
        default = f"_d_{name}"
        scope[default] = field.default
        return f"{name}={default}", name if field.init else default
    if field.default_factory is not dataclasses.MISSING:
        factory = f"_f_{name}"
        scope[factory] = field.default_factory
        made = f"{factory}()"
        return f"{name}=_absent", f"{made} if {name} is _absent else {name}" if field.init else made
    return name, name if field.init else ""


def _key(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A function from a value to the tuple of these fields."""
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda value: ()
    get = attrgetter(names[0])
    return lambda value: (get(value),)


def _eq(key: Callable[[Any], tuple[Any, ...]]) -> Callable[..., Any]:
    def __eq__(self: object, other: object) -> Any:
        if other.__class__ is self.__class__:
            return key(self) == key(other)
        return NotImplemented

    return __eq__


def _hash(key: Callable[[Any], tuple[Any, ...]]) -> Callable[..., Any]:
    def __hash__(self: object) -> int:
        return hash(key(self))

    return __hash__


def _repr(names: Sequence[str]) -> Callable[..., Any]:
    def __repr__(self: object) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({shown})"

    return recursive_repr()(__repr__)


def _refusals(made: type[Any], names: frozenset[str]) -> list[Callable[..., Any]]:
    """Methods that refuse changes of fields; a derived class may have more attributes."""

    def __setattr__(self: object, name: str, value: object) -> None:
        if type(self) is made or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(made, self).__setattr__(name, value)

    def __delattr__(self: object, name: str) -> None:
        if type(self) is made or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(made, self).__delattr__(name)

    return [__setattr__, __delattr__]


def _states() -> list[Callable[..., Any]]:
    """Methods that copy and pickle a frozen value."""

    def __getstate__(self: Any) -> list[Any]:
        return [getattr(self, field.name) for field in dataclasses.fields(self)]

    def __setstate__(self: Any, state: Sequence[Any]) -> None:
        for field, value in zip(dataclasses.fields(self), state, strict=True):
            object.__setattr__(self, field.name, value)

    return [__getstate__, __setstate__]
