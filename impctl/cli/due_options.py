"""Options that ask for what is due (`--due`, `--point`), and what they go with.

Law: what cannot hold together is a usage error before anything is opened.
Out of scope: what is due (`app.maintain_due`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.durations import seconds
from impctl.errors import UsageError
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.app.results.results import Outcome
    from impctl.app.workbench.workbench import Workbench

DueOnly = Annotated[
    bool,
    typer.Option("--due", help="Only what is due now, by the triggers of the workload file."),
]

DueTold = Annotated[
    bool,
    typer.Option("--due", help="Say when each query is due next, by its trigger, and why."),
]

PointName = Annotated[
    str | None,
    typer.Option(
        "--point",
        metavar="NAME",
        show_default=False,
        help="Only the queries whose trigger has this point.",
    ),
]

Look = Annotated[
    float | None,
    typer.Option(
        "--interval",
        metavar="DURATION",
        parser=seconds,
        show_default=False,
        help="With --due: when `maintain --due` is run next, as 1m or 1h. Default: 1m.",
    ),
]


@dataclass(frozen=True, slots=True)
class DueRequest:
    """What is asked for: queries by name (none: all), of these what is due, or a point.

    `look` is the pause until the next look, None where nothing was said.
    """

    queries: tuple[str, ...]
    due: bool
    point: str | None
    look: float | None

    @property
    def pause(self) -> float | None:
        """The pause of a process that goes on."""
        return None if self.due else self.look


def due_request(
    due: bool, point: str | None, interval: float | None, queries: tuple[str, ...], *, follow: bool
) -> DueRequest:
    """What the flags ask for; UsageError for flags that exclude each other."""
    given = {"--follow": follow, "--due": due, "--point": point is not None}
    names = [name for name, is_given in given.items() if is_given]
    if len(names) > 1:
        hint = "`--follow` maintains what is due by itself" if follow else "give one of them"
        raise UsageError(f"Options `{names[0]}` and `{names[1]}` exclude each other", hint=hint)
    if point is not None and queries:
        raise UsageError(
            "Options `--point` and `--query` exclude each other",
            hint="a query that is named is maintained, whatever its trigger",
        )
    if interval is not None and not follow and not due:
        raise UsageError(
            "Option `--interval` goes with `--follow` or `--due` only", hint="add one of them"
        )
    return DueRequest(queries, due, point, interval)


def due_use_case(request: DueRequest, batch_rows: int | None) -> Callable[[Workbench], Outcome]:
    """What maintains all that is asked for, on a workbench."""

    def use_case(desk: Workbench) -> Outcome:
        if request.point is not None:
            from impctl.app.maintain_due import maintain_point

            return maintain_point(desk, request.point, batch_rows)
        if request.due:
            from impctl.app.maintain_due import maintain_due

            return maintain_due(desk, request.queries, batch_rows, look=request.look)
        from impctl.app.maintain import maintain

        return maintain(desk, request.queries, batch_rows=batch_rows)

    return use_case
