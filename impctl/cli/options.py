"""The options that commands share, each with its help text, default and variable.

Law: an option that can be unset is None then; the flag wins over the variable.
Out of scope: options of one command only (they stand in its file).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from impctl.app.workbench.envvars import (
    BY,
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
)
from impctl.app.workbench.memory_limit import memory_from
from impctl.app.workbench.settings import (
    DEFAULT_FILE,
    AnsweredBy,
    Policy,
    Settings,
    SketchUse,
    disk_from,
    is_shared_store,
    store_folder,
)
from impctl.cli.completion import complete_query, left_to_shell
from impctl.errors import UsageError

WORKLOAD_HELP = "Workload file (YAML)."

WorkloadFile = Annotated[
    Path,
    typer.Argument(
        metavar="WORKLOAD",
        help=f"{WORKLOAD_HELP} Default: {DEFAULT_FILE}.",
        show_default=False,
        autocompletion=left_to_shell,
    ),
]

QueryNames = Annotated[
    list[str] | None,
    typer.Option(
        "--query",
        metavar="NAME",
        help="Only this query; repeat for more. Default: all.",
        autocompletion=complete_query,
    ),
]

OneQuery = Annotated[
    list[str] | None,
    typer.Option(
        "--query",
        metavar="NAME",
        help="The query. Default: the only one of the workload.",
        autocompletion=complete_query,
    ),
]

Params = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="NAME=VALUE",
        help="Another value for a named parameter of the query; repeat for more.",
    ),
]

MovingParams = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="NAME=VALUE",
        help="The value of a parameter that moves; repeat for more. Default: as the clock says.",
    ),
]

SqlGiven = Annotated[
    str | None,
    typer.Option(
        "--sql",
        metavar="TEXT",
        show_default=False,
        help="A query over the workload's tables, instead of one of the file.",
    ),
]

AtGiven = Annotated[
    list[str] | None,
    typer.Option(
        "--at",
        metavar="VERSION",
        help="Use the sketch stored for this table version; of several tables each: TABLE=VERSION.",
    ),
]

StoreFolder = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="FOLDER",
        envvar=STORE,
        show_default=False,
        help="Folder of sketches and state. Default: `store` of the workload file, else .impctl.",
        autocompletion=left_to_shell,
    ),
]

PolicyName = Annotated[
    Policy | None,
    typer.Option(
        "--policy",
        envvar=POLICY,
        show_default=False,
        help="What maintaining may do, for every query of this run. Default: as the file says.",
    ),
]

SketchUsed = Annotated[
    SketchUse,
    typer.Option(
        "--sketch",
        envvar=SKETCH,
        help="Whether to read through the sketch; auto: where it saves more than it costs.",
    ),
]

SketchWritten = Annotated[
    SketchUse,
    typer.Option(
        "--sketch",
        help="Whether the text has the sketch; auto: where it saves more than it costs.",
    ),
]

AnswerFrom = Annotated[
    AnsweredBy,
    typer.Option(
        "--by",
        envvar=BY,
        help="Who answers: kept rows (state), the engine, or Spark; auto: the quickest that can.",
    ),
]

Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="CONDITION",
        show_default=False,
        help="Rows of the answer to give: a condition on its columns, such as `key = 5`.",
    ),
]

SketchRequired = Annotated[
    bool,
    typer.Option(
        "--require-sketch",
        help="Fail where there is no sketch, instead of going without one with a warning.",
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
        help="How long to wait for another writer. Default: 10.",
    ),
]

SparkProfile = Annotated[
    Path | None,
    typer.Option(
        "--spark-profile",
        metavar="FILE",
        envvar=SPARK_PROFILE,
        show_default=False,
        help="YAML file with Spark settings that win over `spark` of the workload file.",
        autocompletion=left_to_shell,
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
        help="Tell when ranges are so many times as uneven as when they were chosen. Default: 4.",
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
        help="Megabytes of changed files from which on Spark groups a change first. Default: 512.",
    ),
]

DiskGiven = Annotated[
    str | None,
    typer.Option(
        "--disk",
        metavar="SIZE",
        envvar=DISK,
        show_default=False,
        help="What the state of all queries may take, such as 500MB or 2GB; what is worth least is "
        "read from the tables' files instead. Default: the workload's `budget`, else no bound.",
    ),
]

MemoryGiven = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        envvar=MEMORY,
        show_default=False,
        help="What the engine may take to answer or capture, such as 2GB or 25%; beyond, Spark "
        "goes on; sides of joins that may not fit are read from the tables' files, and "
        "--follow drops states beyond it. Default: the workload's `budget`, else half of the "
        "machine's to answer and capture, and no bound to follow.",
    ),
]

Now = Annotated[
    str | None,
    typer.Option(
        "--now",
        metavar="TIME",
        envvar=NOW,
        show_default=False,
        help="What the clock is to say, for expiries, `current_date` and the like: 2026-11-25 or "
        "2026-11-25T13:00:00Z. Default: the machine's time.",
    ),
]

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; write nothing.")]

DetailedExitcode = Annotated[
    bool,
    typer.Option(
        "--detailed-exitcode",
        help="Exit with 2 instead of 0 when there is something to do; errors keep their codes.",
    ),
]

Strict = Annotated[
    bool,
    typer.Option("--strict", help="Fail (exit code 3) where a query can have no sketch."),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document, on failure too.")]

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors only.")]

Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        show_default=False,
        help="Say each step on stderr; -vv also shows the trace of an error and Spark's log.",
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
