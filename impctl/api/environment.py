"""Settings of a program's calls: its arguments, then the `IMPCTL_*` variables.

Law: variables mean the same as on the command line; an argument wins, and paths are made absolute
at once, so that a later change of directory changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from impctl.errors import UsageError
from impctl.service.memory_limit import memory_from
from impctl.service.settings import (
    BATCH_ROWS,
    BY,
    DISK,
    IMBALANCE,
    LARGE_CHANGE,
    LOCK_TIMEOUT,
    MEMORY,
    NOW,
    POLICY,
    SCRUB,
    SHARED_STORE,
    SKETCH,
    SPARK_PROFILE,
    STORE,
    AnsweredBy,
    Policy,
    Settings,
    SketchPolicy,
    disk_from,
    is_shared_store,
    seconds_in,
    store_folder,
)

T = TypeVar("T")


def settings_from(
    workload: str | os.PathLike[str], environ: Mapping[str, str], **given: object
) -> Settings:
    """Read the settings of every call; UsageError names a wrong argument or variable.

    A `given` argument that is None is left to its variable, the workload file or the default.
    """

    def pick(name: str, variable: str, read: Callable[[str], T]) -> T | None:
        return _picked(name, variable, given.get(name), environ, read)

    return Settings(
        Path(workload).absolute(),
        store=pick("store", STORE, lambda text: store_folder(text).absolute()),
        policy=pick("policy", POLICY, Policy),
        lock_timeout=pick("lock_timeout", LOCK_TIMEOUT, _at_least(0.0, float)),
        spark_profile=pick("spark_profile", SPARK_PROFILE, lambda text: Path(text).absolute()),
        imbalance=pick("imbalance", IMBALANCE, _at_least(1.0, float)),
        large_change=pick("large_change", LARGE_CHANGE, _at_least(0, int)),
        scrub=pick("scrub", SCRUB, _at_least(0, int)),
        memory=pick("memory", MEMORY, memory_from),
        disk=pick("disk", DISK, disk_from),
        shared_store=is_shared_store(environ.get(SHARED_STORE)),
        now=environ.get(NOW) or None,
    )


def batch_rows_from(given: int | None, environ: Mapping[str, str]) -> int | None:
    """Read the number of changes per batch of an eager query."""
    return _picked("batch_rows", BATCH_ROWS, given, environ, _at_least(1, int))


def sketch_use_from(given: str | None, environ: Mapping[str, str]) -> SketchPolicy:
    """Read when to use the sketch."""
    return _picked("sketch", SKETCH, given, environ, SketchPolicy) or SketchPolicy.AUTO


def answered_by_from(given: str | None, environ: Mapping[str, str]) -> AnsweredBy:
    """Read what answers a query."""
    return _picked("by", BY, given, environ, AnsweredBy) or AnsweredBy.AUTO


def seconds_from(name: str, given: float | str | None) -> float | None:
    """Read a duration: seconds, or a text as for options."""
    return None if given is None else _read(f"Argument `{name}`", given, _seconds)


def texts_from(name: str, given: object) -> tuple[str, ...]:
    """Read a string or a sequence of strings; UsageError for anything else."""
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    for text in several:
        if not isinstance(text, str):
            hint = "pass a string or a sequence of strings, as for the option of the same name"
            raise UsageError(f"Argument `{name}` has an invalid value: {text}", hint=hint)
    return tuple(several)


def _picked(
    name: str, variable: str, given: object, environ: Mapping[str, str], read: Callable[[str], T]
) -> T | None:
    """Read the argument, else its variable; None if neither is set."""
    if given is not None:
        return _read(f"Argument `{name}`", given, read)
    text = environ.get(variable)
    return None if not text else _read(f"Variable `{variable}`", text, read)


def _read(what: str, value: object, read: Callable[[str], T]) -> T:
    try:
        return read(str(value))
    except ValueError as error:
        raise UsageError(f"{what} has an invalid value: {value}", hint=_hint(read)) from error


def _hint(read: Callable[[str], object]) -> str:
    if read is _seconds:
        return "pass seconds, or a string such as 500ms, 5s, 2m, 1h or 7d"
    if isinstance(read, type) and issubclass(read, StrEnum):
        return f"use one of: {', '.join(read)}"
    return "see docs/configuration.md for the accepted values"


def _seconds(text: str) -> float:
    value = seconds_in(text)
    if value is None:
        raise ValueError(text)
    return value


def _at_least(least: T, kind: Callable[[str], T]) -> Callable[[str], T]:
    def read(text: str) -> T:
        number = kind(text)
        if not number >= least:  # type: ignore[operator]  # float or int; NaN is refused too
            raise ValueError(text)
        return number

    return read
