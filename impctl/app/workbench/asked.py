"""What flags and arguments of one run ask for together, and what of it excludes each other.

Law: the command line and programs are refused the same, in the same words, before anything is
opened. Out of scope: what one flag or argument may be (`cli.options`, `api.surroundings`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from impctl.app.workbench.settings import DEFAULT_INTERVAL, SimulateRequest
from impctl.errors import UsageError
from impctl.types import QueryName
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class DueRequest:
    """What is asked for: queries by name (none: all), of these what is due, or a point.

    `look` is the pause until the next look, None where nothing was said.
    """

    queries: tuple[QueryName, ...]
    due: bool
    point: str | None
    look: float | None

    @property
    def pause(self) -> float | None:
        """The pause of a process that goes on."""
        return None if self.due else self.look


def due_request(
    due: bool,
    point: str | None,
    interval: float | None,
    queries: tuple[QueryName, ...],
    *,
    follow: bool = False,
) -> DueRequest:
    """What `maintain` is asked for; UsageError for what excludes each other."""
    given = {"--follow": follow, "--due": due, "--point": point is not None}
    names = [name for name, is_given in given.items() if is_given]
    if len(names) > 1:
        hint = "`--follow` maintains whatever is due" if follow else "give one of them"
        raise UsageError(f"Options `{names[0]}` and `{names[1]}` exclude each other", hint=hint)
    if point is not None and queries:
        raise UsageError(
            "Options `--point` and `--query` exclude each other",
            hint="a named query is maintained regardless of its trigger",
        )
    if interval is not None and not follow and not due:
        raise UsageError(
            "Option `--interval` requires `--follow` or `--due`", hint="add one of them"
        )
    return DueRequest(queries, due, point, interval)


def check_planned_look(due: bool, interval: float | None) -> None:
    """UsageError where `plan` is told of a next look that it does not reckon with."""
    if interval is not None and not due:
        raise UsageError("Option `--interval` requires `--due`", hint="add it")


def simulate_request(
    since: float | None,
    arrivals: Path | None,
    disks: Sequence[str],
    triggers: Sequence[str],
    interval: float | None,
    report: Path | None,
    late: str | None,
) -> SimulateRequest:
    """What `simulate` is asked for; durations in seconds."""
    if since is not None and arrivals is not None:
        raise UsageError(
            "Options `--since` and `--arrivals` exclude each other",
            hint="with a file, all its commits are replayed",
        )
    look = DEFAULT_INTERVAL if interval is None else interval
    return SimulateRequest(since, arrivals, tuple(disks), tuple(triggers), look, report, late)
