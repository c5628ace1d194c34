"""Options that ask for what is due (`--due`, `--point`), and what they go with.

Law: what cannot hold together is refused by who reads them (`service.settings`).
Out of scope: what is due (`service.schedule.maintain_due`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.durations import seconds
from impctl.cli.help import SCHEDULE

if TYPE_CHECKING:
    from impctl.service.context import Workbench
    from impctl.service.results import Outcome
    from impctl.service.settings import DueRequest

DueOnly = Annotated[
    bool,
    typer.Option(
        "--due",
        help="Maintain only queries that are due now, according to their triggers.",
        rich_help_panel=SCHEDULE,
    ),
]

DueTold = Annotated[
    bool,
    typer.Option(
        "--due", help="Show when each query is due next, and why.", rich_help_panel=SCHEDULE
    ),
]

PointName = Annotated[
    str | None,
    typer.Option(
        "--point",
        metavar="NAME",
        show_default=False,
        help="Maintain only queries whose trigger has this event (`point`).",
        rich_help_panel=SCHEDULE,
    ),
]

Look = Annotated[
    float | None,
    typer.Option(
        "--interval",
        metavar="DURATION",
        parser=seconds,
        show_default=False,
        help="With --due: time until the next run of `maintain --due`, such as 1m or 1h. "
        "Default: 1m.",
        rich_help_panel=SCHEDULE,
    ),
]


def due_use_case(request: DueRequest, batch_rows: int | None) -> Callable[[Workbench], Outcome]:
    """What maintains all that is asked for, on a workbench."""

    def use_case(desk: Workbench) -> Outcome:
        if request.point is not None:
            from impctl.service.schedule.maintain_due import maintain_point

            return maintain_point(desk, request.point, batch_rows)
        if request.due:
            from impctl.service.schedule.maintain_due import maintain_due

            return maintain_due(desk, request.queries, batch_rows, look=request.look)
        from impctl.service.maintain import maintain

        return maintain(desk, request.queries, batch_rows=batch_rows)

    return use_case
