"""Options of `impctl simulate`: what is replayed, and in which settings.

Law: what cannot hold together is refused by who reads them (`app.workbench.asked`).
Out of scope: what a setting is (`app.simulating.setting`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from impctl.cli.completion import left_to_shell
from impctl.cli.durations import seconds

Since = Annotated[
    float | None,
    typer.Option(
        "--since",
        metavar="DURATION",
        parser=seconds,
        show_default=False,
        help="Replay commits from so long ago, as 12h or 30d. Default: all that are known.",
    ),
]

ArrivalsFile = Annotated[
    Path | None,
    typer.Option(
        "--arrivals",
        metavar="FILE",
        show_default=False,
        help="Replay the commits of a CSV file instead: time,table,inserted,deleted.",
        autocompletion=left_to_shell,
    ),
]

Disks = Annotated[
    list[str] | None,
    typer.Option(
        "--disk",
        metavar="SIZE",
        show_default=False,
        help="A budget for the state, such as 500MB, or `all` of it; repeat for more. "
        "Default: as the file has it.",
    ),
]

Triggers = Annotated[
    list[str] | None,
    typer.Option(
        "--trigger",
        metavar="TRIGGER",
        show_default=False,
        help="A trigger for all queries, such as `fresh_within: 10m`; repeat for more. "
        "Default: those of the file.",
    ),
]

Late = Annotated[
    str | None,
    typer.Option(
        "--late",
        metavar="LATE",
        show_default=False,
        help="Have rows come late, such as `p: 0.9, every: 60s`: of each commit the share p is "
        "there at first, then every 60s the same share of what is left.",
    ),
]

ReportFile = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE",
        show_default=False,
        help="Write a page with the figures here (HTML).",
        autocompletion=left_to_shell,
    ),
]

Looks = Annotated[
    float | None,
    typer.Option(
        "--interval",
        metavar="DURATION",
        parser=seconds,
        show_default=False,
        help="Time between two looks at the tables, as 1s or 1m. Default: 5s.",
    ),
]
