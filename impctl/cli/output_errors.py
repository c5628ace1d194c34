"""A failure as lines of text: what happened and where, then what to do.

Law: a place comes first in the form `file:line:column`, which editors and terminals can open;
every problem of a workload file has its own line; the code in brackets leads to the page of reason
codes. Out of scope: JSON; exit codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from impctl.app.results import Failure
from impctl.cli.wording import plain
from impctl.errors import Location, WorkloadError

Mark = Callable[[str, str], str]
"""Gives a word its colour where colour is on."""


def failure_lines(failure: Failure, mark: Mark) -> list[str]:
    """The lines for stderr."""
    error = failure.error
    head = mark("error", "31")
    if isinstance(error, WorkloadError) and error.problems:
        lines = [f"{head}: {plain(error.message)} [{error.code}]"]
        for problem in error.problems:
            lines.append(f"  {_placed(problem.message, problem.location)}")
            if problem.hint is not None:
                lines.append(f"    {mark('hint', '36')}: {plain(problem.hint)}")
        return lines
    lines = [f"{head}: {_placed(_with_query(failure), error.location)} [{error.code}]"]
    if error.hint is not None:
        lines.append(f"{mark('hint', '36')}: {plain(error.hint)}")
    return lines


def summary_line(failed: Sequence[str], total: int) -> str:
    """How many queries of a run failed, and which."""
    names = ", ".join(f"`{name}`" for name in failed)
    return plain(f"{len(failed)} of {total} queries failed: {names}")


def _with_query(failure: Failure) -> str:
    """The message, led by the query unless it names it."""
    message = failure.error.message
    if failure.query is None or f"`{failure.query}`" in message:
        return message
    return f"`{failure.query}`: {message}"


def _placed(message: str, location: Location | None) -> str:
    return plain(message if location is None else f"{location}: {message}")
