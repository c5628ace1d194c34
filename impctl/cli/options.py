"""The options of commands, each with its help text, default and variable.

Law: the file is written whole after the run, one that failed included; where it cannot be written,
that is a failure of the run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.application import (
    INPUT,
    LIMITS,
    MAINTENANCE,
    OUTPUT,
    SAFETY,
    SCHEDULE,
    STORE_AND_SPARK,
    complete_query,
    left_to_shell,
)
from impctl.errors import ImpctlError, StorageError, UsageError
from impctl.service.memory_limit import memory_from
from impctl.service.settings import (
    BY,
    DEFAULT_FILE,
    DISK,
    IMBALANCE,
    LARGE_CHANGE,
    LOCK_TIMEOUT,
    MEMORY,
    NOW,
    POLICY,
    SHARED_STORE,
    SKETCH,
    SPARK_PROFILE,
    STORE,
    AnsweredBy,
    Policy,
    Settings,
    SketchUse,
    disk_from,
    is_shared_store,
    seconds_in,
    store_folder,
)

if TYPE_CHECKING:
    from impctl.service.context import Workbench
    from impctl.service.results import Outcome
    from impctl.service.settings import DueRequest


def seconds(text: str | float) -> float:
    """The seconds that `text` means; typer.BadParameter (usage error) for anything else."""
    value = seconds_in(str(text))
    if value is None:
        raise typer.BadParameter(
            f"`{text}` is not a duration; write one as 500ms, 5s, 2m, 1h or 7d"
        )
    return value


WORKLOAD_HELP = "Workload file (YAML)."

WorkloadFile = Annotated[
    Path,
    typer.Argument(
        metavar="WORKLOAD",
        help=f"{WORKLOAD_HELP} Default: {DEFAULT_FILE}.",
        show_default=False,
        autocompletion=left_to_shell,
        rich_help_panel=INPUT,
    ),
]

QueryNames = Annotated[
    list[str] | None,
    typer.Option(
        "--query",
        metavar="NAME",
        help="Only this query; can be repeated. Default: all queries.",
        autocompletion=complete_query,
        rich_help_panel=INPUT,
    ),
]

OneQuery = Annotated[
    list[str] | None,
    typer.Option(
        "--query",
        metavar="NAME",
        help="The query to use. Default: the only query in the workload file.",
        autocompletion=complete_query,
        rich_help_panel=INPUT,
    ),
]

Params = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="NAME=VALUE",
        help="Set a named parameter of the query; can be repeated. "
        "Default: the value in the workload file.",
        rich_help_panel=INPUT,
    ),
]

MovingParams = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="NAME=VALUE",
        help="Set a time-dependent parameter; can be repeated. "
        "Default: computed from the current time.",
        rich_help_panel=INPUT,
    ),
]

SqlGiven = Annotated[
    str | None,
    typer.Option(
        "--sql",
        metavar="TEXT",
        show_default=False,
        help="Use this SQL over the workload's tables instead of a query in the file.",
        rich_help_panel=INPUT,
    ),
]

AtGiven = Annotated[
    list[str] | None,
    typer.Option(
        "--at",
        metavar="VERSION",
        help="Use the sketch stored for this table version. "
        "With several tables, repeat the option with TABLE=VERSION.",
        rich_help_panel=INPUT,
    ),
]

StoreFolder = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="FOLDER",
        envvar=STORE,
        show_default=False,
        help="Folder for sketches and state. Default: `store` in the workload file, or .impctl.",
        autocompletion=left_to_shell,
        rich_help_panel=STORE_AND_SPARK,
    ),
]

PolicyName = Annotated[
    Policy | None,
    typer.Option(
        "--policy",
        metavar="POLICY",
        envvar=POLICY,
        show_default=False,
        help="Maintenance policy for all queries: auto, incremental (never recapture), strict "
        "(exact maintenance only) or full (always recapture). "
        "Default: `policy` in the workload file, or auto.",
        rich_help_panel=MAINTENANCE,
    ),
]

SketchUsed = Annotated[
    SketchUse,
    typer.Option(
        "--sketch",
        metavar="WHEN",
        envvar=SKETCH,
        show_default=False,
        help="When to use the sketch: auto (if it saves more than it costs), always or never. "
        "Default: auto.",
        rich_help_panel=MAINTENANCE,
    ),
]

SketchWritten = Annotated[
    SketchUse,
    typer.Option(
        "--sketch",
        metavar="WHEN",
        show_default=False,
        help="When to put the sketch into the SQL: auto (if it saves more than it costs), always "
        "or never. Default: always.",
        rich_help_panel=MAINTENANCE,
    ),
]

AnswerFrom = Annotated[
    AnsweredBy,
    typer.Option(
        "--by",
        metavar="SOURCE",
        envvar=BY,
        show_default=False,
        help="What answers the query: state (the materialized result), engine, spark or auto "
        "(the fastest of these). Default: auto.",
        rich_help_panel=MAINTENANCE,
    ),
]

Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="CONDITION",
        show_default=False,
        help="Return only result rows that meet this condition on result columns, "
        "such as `key = 5`. Default: all rows.",
        rich_help_panel=OUTPUT,
    ),
]

SketchRequired = Annotated[
    bool,
    typer.Option(
        "--require-sketch",
        help="Fail if there is no sketch. Default: continue without one and print a warning.",
        rich_help_panel=SAFETY,
    ),
]

LockTimeout = Annotated[
    float | None,
    typer.Option(
        "--lock-timeout",
        metavar="SECONDS",
        min=0,
        envvar=LOCK_TIMEOUT,
        show_default=False,
        help="Wait this long for another writer. Default: 10.",
        rich_help_panel=LIMITS,
    ),
]

SparkProfile = Annotated[
    Path | None,
    typer.Option(
        "--spark-profile",
        metavar="FILE",
        envvar=SPARK_PROFILE,
        show_default=False,
        help="YAML file with Spark settings. They override `spark` in the workload file.",
        autocompletion=left_to_shell,
        rich_help_panel=STORE_AND_SPARK,
    ),
]

Imbalance = Annotated[
    float | None,
    typer.Option(
        "--imbalance",
        metavar="FACTOR",
        min=1,
        envvar=IMBALANCE,
        show_default=False,
        help="Warn when the skew of ranges exceeds FACTOR times that at capture. Default: 4.",
        rich_help_panel=MAINTENANCE,
    ),
]

LargeChange = Annotated[
    int | None,
    typer.Option(
        "--large-change",
        metavar="MB",
        min=0,
        envvar=LARGE_CHANGE,
        show_default=False,
        help="Let Spark pre-aggregate a change with more MB of changed files. Default: 512.",
        rich_help_panel=LIMITS,
    ),
]

DiskGiven = Annotated[
    str | None,
    typer.Option(
        "--disk",
        metavar="SIZE",
        envvar=DISK,
        show_default=False,
        help="Disk limit for the state of all queries, such as 500MB or 2GB. Beyond it, the least "
        "valuable state is not stored and is read from the tables instead. "
        "Default: `budget` in the workload file, or no limit.",
        rich_help_panel=LIMITS,
    ),
]

_MEMORY_HELP = (
    "Memory limit for the engine, such as 2GB or 25%. Beyond it, Spark takes over, and large sides "
    "of joins are read from the tables. Default: `budget` in the workload file, or half of the "
    "machine's memory."
)

MemoryGiven = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        envvar=MEMORY,
        show_default=False,
        help=_MEMORY_HELP,
        rich_help_panel=LIMITS,
    ),
]

FollowMemory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        envvar=MEMORY,
        show_default=False,
        help=f"{_MEMORY_HELP} With --follow, state beyond the limit is dropped, and the default is "
        "no limit.",
        rich_help_panel=LIMITS,
    ),
]

Now = Annotated[
    str | None,
    typer.Option(
        "--now",
        metavar="TIME",
        envvar=NOW,
        show_default=False,
        help="Override the current time, used for expiry, `current_date` and the like: 2026-11-25 "
        "or 2026-11-25T13:00:00Z. Default: the system time.",
        rich_help_panel=INPUT,
    ),
]

DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Show what would be done, without writing anything.",
        rich_help_panel=SAFETY,
    ),
]

DetailedExitcode = Annotated[
    bool,
    typer.Option(
        "--detailed-exitcode",
        help="Exit with 2 instead of 0 if there is something to do. Errors keep their codes.",
        rich_help_panel=SAFETY,
    ),
]

Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Fail with exit code 3 if a query cannot have a sketch.",
        rich_help_panel=SAFETY,
    ),
]

AsJson = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON document, even on failure.", rich_help_panel=OUTPUT
    ),
]

Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print only results and errors.", rich_help_panel=OUTPUT),
]

Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        show_default=False,
        help="Print each step to stderr; -vv adds error traces and Spark's log.",
        rich_help_panel=OUTPUT,
    ),
]


def settings_of(
    workload: Path,
    *,
    store: Path | None = None,
    policy: Policy | None = None,
    lock_timeout: float | None = None,
    spark_profile: Path | None = None,
    dry_run: bool = False,
    imbalance: float | None = None,
    large_change: int | None = None,
    scrub: int | None = None,
    params: Sequence[str] | None = None,
    changes: Path | None = None,
    memory: str | None = None,
    disk: str | None = None,
    now: str | None = None,
) -> Settings:
    """The settings of a run, from its flags and variables."""
    return Settings(
        workload,
        store=None if store is None else store_folder(store),
        policy=policy,
        lock_timeout=lock_timeout,
        spark_profile=spark_profile,
        dry_run=dry_run,
        imbalance=imbalance,
        large_change=large_change,
        scrub=scrub,
        memory=None if memory is None else _memory(memory),
        disk=None if disk is None else disk_from(disk),
        shared_store=is_shared_store(os.environ.get(SHARED_STORE)),
        params=tuple(params or ()),
        now=now or os.environ.get(NOW) or None,
        changes=changes,
    )


def _memory(text: str) -> int:
    try:
        return memory_from(text)
    except ValueError:
        raise UsageError(
            f"`--memory` cannot be: {text}", hint="write a size such as 500MB, 2GB or 25%"
        ) from None


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
            from impctl.service.schedule.daemon import maintain_point

            return maintain_point(desk, request.point, batch_rows)
        if request.due:
            from impctl.service.schedule.daemon import maintain_due

            return maintain_due(desk, request.queries, batch_rows, look=request.look)
        from impctl.service.maintain import maintain

        return maintain(desk, request.queries, batch_rows=batch_rows)

    return use_case


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
    from impctl.service.outcome import maintain_metrics

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
