"""A failure as lines of text: what happened and where, then what to do.

Law: a place comes first in the form `file:line:column`, which editors and terminals can open;
every problem of a workload file has its own line; the code in brackets leads to the page of reason
codes. Out of scope: JSON; exit codes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from impctl.errors import Location, WorkloadError
from impctl.service.results import Failure
from impctl.service.text import plain

_QUERY = re.compile(r"[Qq]uery `([^`]*)`")
_NUMBER = re.compile(r"(?<![\w`.@-])\d+(?:,\d{3})*(?:\.\d+)?%?(?![\w`@])")
"""A number on its own: not part of a name, a version or a path."""
_SHOWN = 5
"""Queries named in a warning that several share."""

Mark = Callable[[str, str], str]
"""Gives a word its colour where colour is on."""


def failure_lines(failures: Iterable[Failure], mark: Mark) -> list[str]:
    """The lines for stderr; what several queries met alike is told once, led by all of them."""
    alike: dict[tuple[object, ...], list[Failure]] = {}
    for failure in failures:
        error = failure.error
        is_problems = isinstance(error, WorkloadError)
        key = (error.code, error.message, error.hint, error.location, is_problems and id(error))
        alike.setdefault(key, []).append(failure)
    return [line for same in alike.values() for line in _lines(same, mark)]


def _lines(same: Sequence[Failure], mark: Mark) -> list[str]:
    """The lines of failures that differ in their query at most."""
    error = same[0].error
    head = mark("error", "31")
    if isinstance(error, WorkloadError) and error.problems:
        lines = [f"{head}: {plain(error.message)} [{error.code}]"]
        for problem in error.problems:
            lines.append(f"  {_placed(problem.message, problem.location)}")
            if problem.hint is not None:
                lines.append(f"    {mark('hint', '36')}: {plain(problem.hint)}")
        return lines
    lines = [f"{head}: {_placed(_with_queries(same), error.location)} [{error.code}]"]
    if error.hint is not None:
        lines.append(f"{mark('hint', '36')}: {plain(error.hint)}")
    return lines


def grouped_by_cause(warnings: Iterable[str]) -> list[str]:
    """The warnings, each once: those that differ in the query they name, and in numbers, as one."""
    alike: dict[str, list[str]] = {}
    for warning in dict.fromkeys(warnings):
        named = set(_QUERY.findall(warning))
        key = _NUMBER.sub("#", _QUERY.sub("each query", warning)) if len(named) == 1 else warning
        alike.setdefault(key, []).append(warning)
    return [same[0] if len(same) == 1 else _as_one(same) for same in alike.values()]


def _as_one(same: Sequence[str]) -> str:
    """`18 queries (a, b, ..): the sketch of each query holds 90 to 95 of 96 ranges`."""
    names = [f"`{match[1]}`" for match in map(_QUERY.search, same) if match is not None]
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    texts = [_QUERY.sub("each query", one) for one in same]
    numbers = iter(zip(*map(_NUMBER.findall, texts), strict=True))
    text = _NUMBER.sub(lambda _: _span(next(numbers)), texts[0])
    return f"{len(same)} queries ({shown}): {text}"


def _span(numbers: Sequence[str]) -> str:
    """One number, or the least and the greatest of them."""
    result = sorted(set(numbers), key=lambda text: float(text.replace(",", "").rstrip("%")))
    return result[0] if len(result) == 1 else f"{result[0]} to {result[-1]}"


def summary_line(failed: Sequence[str], total: int) -> str:
    """How many queries of a run failed, and which."""
    names = ", ".join(f"`{name}`" for name in failed)
    return plain(f"{len(failed)} of {total} queries failed: {names}")


def _with_queries(same: Sequence[Failure]) -> str:
    """The message, led by the queries unless it names the only one."""
    message = same[0].error.message
    names = dict.fromkeys(f"`{failure.query}`" for failure in same if failure.query is not None)
    if not names or (len(names) == 1 and next(iter(names)) in message):
        return message
    return f"{', '.join(names)}: {message}"


def _placed(message: str, location: Location | None) -> str:
    return plain(message if location is None else f"{location}: {message}")
