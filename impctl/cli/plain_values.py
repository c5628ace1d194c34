"""Values of flags that are taken as they are, without the library that the parser checks with.

Newer ones of Typer have every value, absent ones too, checked by pydantic, which takes longer to
load than all of impctl that a run with nothing to do needs.
Law: a value goes past the check only where it has the type of its flag already, is one of its words
or a path of which nothing is asked, and lies within its bounds. All others are left to Typer, as is
all where Typer is another one: so what a command gets, and every message, is Typer's.
Out of scope: what the flags are (`cli.options`).
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

_LEFT: Any = object()
"""For Typer to say."""


class LightCommand(TyperCommand):
    """A command whose flags take plain values without a check."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its flags, and that for help."""
        return _lightened(super().get_params(ctx))


class LightGroup(TyperGroup):
    """The same for what stands before the command."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its flags, and that for help."""
        return _lightened(super().get_params(ctx))


def _lightened(params: list[Any]) -> list[Any]:
    for param in params:
        # The place where this Typer keeps what checks a value, made when it is first asked.
        if getattr(param, "_runtime_param", _LEFT) is None:
            param._runtime_param = _Plain(param)
    return params


class _Plain:
    """Stands for Typer's own check of one flag, which is made when a value needs it."""

    def __init__(self, param: Any) -> None:
        self._param = param

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as the command gets it."""
        result = self._plain(value)
        if result is not _LEFT:
            return result
        self._param._runtime_param = None
        return self._param.get_runtime_param().coerce(value, param=param, ctx=ctx)

    def _plain(self, value: Any) -> Any:
        descriptor = self._param.type_descriptor
        asked, info = descriptor.annotation, descriptor.parameter_info
        is_list = self._param.multiple or self._param.nargs == -1
        if value is None:
            return () if is_list else None
        if info.parser is not None:
            return _LEFT
        if asked == list[str] and isinstance(value, list | tuple):
            return list(value) if all(type(item) is str for item in value) else _LEFT
        if is_list or self._param.nargs != 1:
            return _LEFT
        if asked is str:
            return value if type(value) is str else _LEFT
        if asked is int:
            return value if type(value) is int and _is_within(value, info) else _LEFT
        if isinstance(asked, type) and issubclass(asked, Enum):
            return _member(value, asked)
        is_path = asked is Path and isinstance(value, str | Path)
        return _path(value, info) if is_path else _LEFT


def _member(value: Any, asked: type[Enum]) -> Any:
    """The member of this value, where it is written as the member's is."""
    if type(value) is asked:
        return value
    return next((one for one in asked if type(value) is str and one.value == value), _LEFT)


def _is_within(value: int, info: Any) -> bool:
    return (info.min is None or value >= info.min) and (info.max is None or value <= info.max)


def _path(value: Any, info: Any) -> Any:
    """The path, where nothing is asked of it but that what is there can be read."""
    is_free = info.file_okay and info.dir_okay and info.path_type is None
    if not is_free or info.exists or info.writable or info.resolve_path or info.allow_dash:
        return _LEFT
    path = Path(value)
    return path if os.access(path, os.R_OK) or not path.exists() else _LEFT
