"""What comes out of a call: results returned, warnings warned, failures raised.

Law: every query has run before anything is raised, and what worked goes with the exception; a
call for one query raises that query's own error. An unsound sketch is raised, never just returned.
Out of scope: exit codes of a process (`cli.boundary`).
"""

from __future__ import annotations

import warnings
from typing import TypeVar

from impctl.errors import ImpctlError, ImpctlWarning, QueriesFailedError
from impctl.service.outcome import for_report, gravest
from impctl.service.results import Outcome

R = TypeVar("R")


def settled(outcome: Outcome, kind: type[R], asked: int) -> tuple[R, ...]:
    """The results, all of one kind; `asked` is the number of queries that were to run."""
    whole = for_report(outcome)
    worst = gravest(whole)
    results = tuple(result for result in whole.results if isinstance(result, kind))
    assert len(results) == len(whole.results)
    if worst is None:
        # Up from here: this function, the method that runs, the one that was called, the caller.
        warned(outcome.warnings, depth=5)
        return results
    # Notes, since a program that turns warnings into exceptions would lose results and failures.
    for text in outcome.warnings:
        worst.error.add_note(f"warning: {text}")
    if asked == 1:
        raise worst.error
    failures: dict[str, ImpctlError] = {}
    for failure in (worst, *whole.failures):
        failures.setdefault(failure.query or "", failure.error)
    names = ", ".join(f"`{name}`" for name in failures)
    raise QueriesFailedError(
        f"{len(failures)} of {asked} queries failed ({names}): {worst.error.message}",
        results=results,
        failures=failures,
        gravest=worst.error,
    ) from worst.error


def warned(texts: tuple[str, ...], *, depth: int) -> None:
    """Python warnings at a line of the caller's program, `depth` frames up from the warning."""
    for text in texts:
        warnings.warn(text, ImpctlWarning, stacklevel=depth)
