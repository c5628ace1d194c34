"""A failure as lines of text: what happened and where, then what to do.

Law: a place comes first in the form `file:line:column`, which editors and terminals can open;
every problem of a workload file has its own line; the code in brackets leads to the page of reason
codes. Out of scope: JSON; exit codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from impctl.app.results.results import Failure
from impctl.cli.output.wording import plain
from impctl.errors import Location, WorkloadError

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
