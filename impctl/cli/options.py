"""The options of commands, each with its help text, default and variable.

Law: the file of metrics is written whole after the run, even if that failed; if it cannot be
written, the run fails.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from impctl.cli.application import (
    INPUT,
    LIMITS,
    MAINTENANCE,
    OUTPUT,
    SAFETY,
    SCHEDULE,
    STORE_AND_SPARK,
    complete_path,
    complete_query,
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
    SketchPolicy,
    disk_from,
    is_shared_store,
    seconds_in,
    store_folder,
)

if TYPE_CHECKING:
    from impctl.service.context import Context
    from impctl.service.results import Outcome
    from impctl.service.settings import DueRequest


# Durations as flags take them: `500ms`, `5s`, `2m`, `1h`, `7d`, or seconds without a unit. Law: a
# flag means what a file means by the same text.


def seconds(text: str | float) -> float:
    """Parse a duration; typer.BadParameter (usage error) for anything else."""
    value = seconds_in(str(text))
    if value is None:
        raise typer.BadParameter(
            f"`{text}` is not a duration; write one as 500ms, 5s, 2m, 1h or 7d"
        )
    return value


def option(declaration: str, panel: str, text: str, **others: Any) -> Any:
    """Declare an option such as `--store FOLDER` (a flag without a value name) with its help."""
    flags = [word for word in declaration.split() if word.startswith("-")]
    metavar = declaration.removeprefix(" ".join(flags)).strip() or None
    return typer.Option(*flags, metavar=metavar, help=text, rich_help_panel=panel, **others)


def file_option(declaration: str, panel: str, text: str, **others: Any) -> Any:
    """Declare an option whose value is a path, which the shell completes."""
    return option(declaration, panel, text, autocompletion=complete_path, **others)


# The options that commands share, each with its help text, default and variable. Law: an option
# that can be unset is None then; the flag wins over the variable.

WORKLOAD_HELP = "Workload file (YAML)."

WorkloadFile = Annotated[
    Path,
    typer.Argument(
        metavar="WORKLOAD",
        help=f"{WORKLOAD_HELP} Default: {DEFAULT_FILE}.",
        autocompletion=complete_path,
        rich_help_panel=INPUT,
    ),
]

QueryNames = Annotated[
    list[str] | None,
    option(
        "--query NAME",
        INPUT,
        "Only this query; can be repeated. Default: all queries.",
        autocompletion=complete_query,
    ),
]

OneQuery = Annotated[
    list[str] | None,
    option(
        "--query NAME",
        INPUT,
        "The query to use. Default: the only query in the workload file.",
        autocompletion=complete_query,
    ),
]

Params = Annotated[
    list[str] | None,
    option(
        "--param NAME=VALUE",
        INPUT,
        "Set a named parameter of the query; can be repeated. "
        "Default: the value in the workload file.",
    ),
]

MovingParams = Annotated[
    list[str] | None,
    option(
        "--param NAME=VALUE",
        INPUT,
        "Set a time-dependent parameter; can be repeated. Default: computed from the current time.",
    ),
]

SqlGiven = Annotated[
    str | None,
    option(
        "--sql TEXT",
        INPUT,
        "Use this SQL over the workload's tables instead of a query in the file.",
    ),
]

AtGiven = Annotated[
    list[str] | None,
    option(
        "--at VERSION",
        INPUT,
        "Use the sketch stored for this table version. "
        "With several tables, repeat the option with TABLE=VERSION.",
    ),
]

StoreFolder = Annotated[
    Path | None,
    file_option(
        "--store FOLDER",
        STORE_AND_SPARK,
        "Folder for sketches and state. Default: `store` in the workload file, or .impctl.",
        envvar=STORE,
    ),
]

PolicyName = Annotated[
    Policy | None,
    option(
        "--policy POLICY",
        MAINTENANCE,
        "Maintenance policy for all queries: auto, incremental (never recapture), strict "
        "(exact maintenance only) or full (always recapture). "
        "Default: `policy` in the workload file, or auto.",
        envvar=POLICY,
    ),
]

SketchUsed = Annotated[
    SketchPolicy,
    option(
        "--sketch WHEN",
        MAINTENANCE,
        "When to use the sketch: auto (if it saves more than it costs), always or never. "
        "Default: auto.",
        envvar=SKETCH,
    ),
]

SketchWritten = Annotated[
    SketchPolicy,
    option(
        "--sketch WHEN",
        MAINTENANCE,
        "When to put the sketch into the SQL: auto (if it saves more than it costs), always "
        "or never. Default: always.",
    ),
]

AnswerFrom = Annotated[
    AnsweredBy,
    option(
        "--by SOURCE",
        MAINTENANCE,
        "What answers the query: state (the materialized result), engine, spark or auto "
        "(the fastest of these). Default: auto.",
        envvar=BY,
    ),
]

Where = Annotated[
    str | None,
    option(
        "--where CONDITION",
        OUTPUT,
        "Return only result rows that meet this condition on result columns, "
        "such as `key = 5`. Default: all rows.",
    ),
]

SketchRequired = Annotated[
    bool,
    option(
        "--require-sketch",
        SAFETY,
        "Fail if there is no sketch. Default: continue without one and print a warning.",
    ),
]

LockTimeout = Annotated[
    float | None,
    option(
        "--lock-timeout SECONDS",
        LIMITS,
        "Wait this long for another writer. Default: 10.",
        min=0,
        envvar=LOCK_TIMEOUT,
    ),
]

SparkProfile = Annotated[
    Path | None,
    file_option(
        "--spark-profile FILE",
        STORE_AND_SPARK,
        "YAML file with Spark settings. They override `spark` in the workload file.",
        envvar=SPARK_PROFILE,
    ),
]

Imbalance = Annotated[
    float | None,
    option(
        "--imbalance FACTOR",
        MAINTENANCE,
        "Warn when the skew of ranges exceeds FACTOR times that at capture. Default: 4.",
        min=1,
        envvar=IMBALANCE,
    ),
]

LargeChange = Annotated[
    int | None,
    option(
        "--large-change MB",
        LIMITS,
        "Let Spark pre-aggregate a change with more MB of changed files. Default: 512.",
        min=0,
        envvar=LARGE_CHANGE,
    ),
]

DiskGiven = Annotated[
    str | None,
    option(
        "--disk SIZE",
        LIMITS,
        "Disk limit for the state of all queries, such as 500MB or 2GB. Beyond it, the least "
        "valuable state is not stored and is read from the tables instead. "
        "Default: `budget` in the workload file, or no limit.",
        envvar=DISK,
    ),
]

_MEMORY_HELP = (
    "Memory limit for the engine, such as 2GB or 25%. Beyond it, Spark takes over, and large sides "
    "of joins are read from the tables. Default: `budget` in the workload file, or half of the "
    "machine's memory."
)

MemoryGiven = Annotated[
    str | None,
    option("--memory SIZE", LIMITS, _MEMORY_HELP, envvar=MEMORY),
]

FollowMemory = Annotated[
    str | None,
    option(
        "--memory SIZE",
        LIMITS,
        f"{_MEMORY_HELP} With --follow, state beyond the limit is dropped, and the default is "
        "no limit.",
        envvar=MEMORY,
    ),
]

Now = Annotated[
    str | None,
    option(
        "--now TIME",
        INPUT,
        "Override the current time, used for expiry, `current_date` and the like: 2026-11-25 "
        "or 2026-11-25T13:00:00Z. Default: the system time.",
        envvar=NOW,
    ),
]

DryRun = Annotated[
    bool,
    option("--dry-run", SAFETY, "Show what would be done, without writing anything."),
]

DetailedExitcode = Annotated[
    bool,
    option(
        "--detailed-exitcode",
        SAFETY,
        "Exit with 2 instead of 0 if there is something to do. Errors keep their codes.",
    ),
]

Strict = Annotated[
    bool,
    option("--strict", SAFETY, "Fail with exit code 3 if a query cannot have a sketch."),
]

AsJson = Annotated[
    bool,
    option("--json", OUTPUT, "Print one JSON document, even on failure."),
]

Quiet = Annotated[
    bool,
    option("--quiet -q", OUTPUT, "Print only results and errors."),
]

Verbose = Annotated[
    int,
    option(
        "--verbose -v",
        OUTPUT,
        "Print each step to stderr; -vv adds error traces and Spark's log.",
        count=True,
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
    """Make settings from options and variables."""
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


# Options that ask for what is due (`--due`, `--point`), and what they go with. Law: what cannot
# hold together is refused by who reads them (`service.settings`).

DueOnly = Annotated[
    bool,
    option(
        "--due", SCHEDULE, "Maintain only queries that are due now, according to their triggers."
    ),
]

ShowDue = Annotated[
    bool,
    option("--due", SCHEDULE, "Show when each query is due next, and why."),
]

PointName = Annotated[
    str | None,
    option(
        "--point NAME", SCHEDULE, "Maintain only queries whose trigger has this event (`point`)."
    ),
]

DueInterval = Annotated[
    float | None,
    option(
        "--interval DURATION",
        SCHEDULE,
        "With --due: time until the next run of `maintain --due`, such as 1m or 1h. Default: 1m.",
        parser=seconds,
    ),
]


def due_use_case(request: DueRequest, batch_rows: int | None) -> Callable[[Context], Outcome]:
    """Make the use case that maintains what the request selects."""

    def use_case(ctx: Context) -> Outcome:
        if request.point is not None:
            from impctl.service.schedule.daemon import maintain_point

            return maintain_point(ctx, request.point, batch_rows)
        if request.due:
            from impctl.service.schedule.daemon import maintain_due

            return maintain_due(ctx, request.queries, batch_rows, look=request.look)
        from impctl.service.maintain import maintain

        return maintain(ctx, request.queries, batch_rows=batch_rows)

    return use_case


# Options of `impctl simulate`: what is replayed, and in which settings. Law: what cannot hold
# together is refused by who reads them (`service.settings`).

Since = Annotated[
    float | None,
    option(
        "--since DURATION",
        INPUT,
        "Replay the commits of this period up to now, such as 12h or 30d. "
        "Default: all known commits.",
        parser=seconds,
    ),
]


Disks = Annotated[
    list[str] | None,
    option(
        "--disk SIZE",
        LIMITS,
        "Disk limit for the state, such as 500MB, or `all` for no limit; can be repeated. "
        "Default: `budget` in the workload file.",
    ),
]

Triggers = Annotated[
    list[str] | None,
    option(
        "--trigger TRIGGER",
        SCHEDULE,
        "Trigger for all queries, such as `fresh_within: 10m`; can be repeated. "
        "Default: the triggers in the workload file.",
    ),
]


ReportFile = Annotated[
    Path | None,
    file_option("--report FILE", OUTPUT, "Write a report with the figures to this file (HTML)."),
]

CheckInterval = Annotated[
    float | None,
    option(
        "--interval DURATION",
        SCHEDULE,
        "Time between checks of the tables, such as 1s or 1m. Default: 5s.",
        parser=seconds,
    ),
]


MetricsFile = Annotated[
    Path | None,
    option(
        "--metrics FILE",
        OUTPUT,
        "Write metrics for the textfile collector of Prometheus to this file.",
    ),
]


def check_metrics(path: Path, reserved: Mapping[str, str]) -> None:
    """Raise UsageError if the metrics must not be written there; `reserved` as for
    `check_output`."""
    from impctl.service.output import check_output

    check_output(path, reserved)


def with_metrics(outcome: Outcome, path: Path | None, text: Callable[[Outcome], str]) -> Outcome:
    """Write the metrics of the outcome; add a failure if that fails."""
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
def metrics_on_failure(path: Path | None) -> Iterator[None]:
    """Write the metrics of a run that fails, and raise its error."""
    from impctl.service.results import Failure, Outcome

    try:
        yield
    except ImpctlError as error:
        with_metrics(Outcome(failures=(Failure(None, error),)), path, maintained_now)
        raise
