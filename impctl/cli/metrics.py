"""`--metrics FILE`: what a run came to, for Prometheus to collect.

Law: the file is written whole after the run, one that failed included; where it cannot be written,
that is a failure of the run. Out of scope: its text (`service.metrics`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.help import OUTPUT
from impctl.errors import ImpctlError, StorageError

if TYPE_CHECKING:
    from impctl.service.results import Outcome

MetricsFile = Annotated[
    Path | None,
    typer.Option(
        "--metrics",
        metavar="FILE",
        show_default=False,
        help="Write metrics for the textfile collector of Prometheus to this file.",
        rich_help_panel=OUTPUT,
    ),
]


def check_metrics(path: Path, reserved: Mapping[str, str]) -> None:
    """UsageError where metrics must not be written; `reserved` as for `check_output`."""
    from impctl.service.output import check_output

    check_output(path, reserved)


def with_metrics(outcome: Outcome, path: Path | None, text: Callable[[Outcome], str]) -> Outcome:
    """The outcome, its metrics written; one failure more where they could not be."""
    if path is None:
        return outcome
    from impctl.service.output import write_whole
    from impctl.service.results import Failure

    try:
        write_whole(path, text(outcome))
    except OSError as error:
        failed = StorageError(
            f"The metrics could not be written to `{path}`: {error.strerror}",
            hint="name a file in a folder with write access",
            code="metrics_not_written",
        )
        return replace(outcome, failures=(*outcome.failures, Failure(None, failed)))
    return outcome


def maintained_now(outcome: Outcome) -> str:
    """The metrics of a run of `maintain` that ends now."""
    from impctl.service.metrics import maintain_metrics

    return maintain_metrics(outcome, time.time())


@contextmanager
def failure_told(path: Path | None) -> Iterator[None]:
    """Metrics of a run that ends early, in an error that is raised on."""
    from impctl.service.results import Failure, Outcome

    try:
        yield
    except ImpctlError as error:
        with_metrics(Outcome(failures=(Failure(None, error),)), path, maintained_now)
        raise
