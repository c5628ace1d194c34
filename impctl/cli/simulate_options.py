"""Options of `impctl simulate`: what is replayed, and in which settings.

Law: what cannot hold together is refused by who reads them (`service.settings`).
Out of scope: what a setting is (`service.schedule.simulate`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from impctl.cli.completion import left_to_shell
from impctl.cli.durations import seconds
from impctl.cli.help import INPUT, LIMITS, OUTPUT, SCHEDULE

Since = Annotated[
    float | None,
    typer.Option(
        "--since",
        metavar="DURATION",
        parser=seconds,
        show_default=False,
        help="Replay the commits of this period up to now, such as 12h or 30d. "
        "Default: all known commits.",
        rich_help_panel=INPUT,
    ),
]

ArrivalsFile = Annotated[
    Path | None,
    typer.Option(
        "--arrivals",
        metavar="FILE",
        show_default=False,
        help="Replay commits from a CSV file instead, with the columns "
        "time,table,inserted,deleted.",
        autocompletion=left_to_shell,
        rich_help_panel=INPUT,
    ),
]

Disks = Annotated[
    list[str] | None,
    typer.Option(
        "--disk",
        metavar="SIZE",
        show_default=False,
        help="Disk limit for the state, such as 500MB, or `all` for no limit; can be repeated. "
        "Default: `budget` in the workload file.",
        rich_help_panel=LIMITS,
    ),
]

Triggers = Annotated[
    list[str] | None,
    typer.Option(
        "--trigger",
        metavar="TRIGGER",
        show_default=False,
        help="Trigger for all queries, such as `fresh_within: 10m`; can be repeated. "
        "Default: the triggers in the workload file.",
        rich_help_panel=SCHEDULE,
    ),
]

Late = Annotated[
    str | None,
    typer.Option(
        "--late",
        metavar="LATE",
        show_default=False,
        help="Let rows arrive late, such as `p: 0.9, every: 60s`: first 90% of the rows of a "
        "commit, then every 60s 90% of the remaining rows. Default: no row is late.",
        rich_help_panel=INPUT,
    ),
]

ReportFile = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE",
        show_default=False,
        help="Write a report with the figures to this file (HTML).",
        autocompletion=left_to_shell,
        rich_help_panel=OUTPUT,
    ),
]

Looks = Annotated[
    float | None,
    typer.Option(
        "--interval",
        metavar="DURATION",
        parser=seconds,
        show_default=False,
        help="Time between checks of the tables, such as 1s or 1m. Default: 5s.",
        rich_help_panel=SCHEDULE,
    ),
]
