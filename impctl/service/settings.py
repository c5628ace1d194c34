"""What a run may do: flags and environment variables, and how they go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from impctl.errors import UsageError
from impctl.types import QueryName
from impctl.workload.models import DEFAULT_FILE as DEFAULT_FILE
from impctl.workload.models import AnsweredBy as AnsweredBy
from impctl.workload.models import Policy as Policy
from impctl.workload.models import SketchPolicy as SketchPolicy
from impctl.workload.models import store_path_problem
from impctl.workload.scalars import SIZE_HINT, size_from
from impctl.workload.scalars import seconds_in as seconds_in

# Law: a variable that is not listed here is read nowhere; `docs/configuration.md` shows this table.

PREFIX = "IMPCTL_"

SCRUB = "IMPCTL_SCRUB"
CRIMES = "IMPCTL_CRIMES"
DISK = "IMPCTL_DISK"
SHARED_STORE = "IMPCTL_SHARED_STORE"
FUZZ = "IMPCTL_FUZZ"
SOAK = "IMPCTL_SOAK"
NOW = "IMPCTL_NOW"


class EnvVar(Struct, frozen=True):
    """One variable: what it sets, the flag that takes precedence (if any), and its release."""

    name: str
    purpose: str
    flag: str | None = None
    since: str = "0.1.0"


ENVVARS = (
    EnvVar("IMPCTL_STORE", "Folder of sketches and state", "--store"),
    EnvVar("IMPCTL_POLICY", "What `maintain` may do, for all queries of the run", "--policy"),
    EnvVar("IMPCTL_SKETCH", "Whether queries use their sketches", "--sketch"),
    EnvVar("IMPCTL_LOCK_TIMEOUT", "Seconds to wait for another writer", "--lock-timeout"),
    EnvVar("IMPCTL_SPARK_PROFILE", "YAML file with Spark settings", "--spark-profile"),
    EnvVar("IMPCTL_BATCH_ROWS", "Number of changes per eager batch", "--batch-rows"),
    EnvVar(
        "IMPCTL_BY",
        "Who answers queries: materialized results (state), the engine or Spark",
        "--by",
    ),
    EnvVar(
        "IMPCTL_MEMORY",
        "Memory limit of a process: to answer a query, to build the state of a capture, to follow",
        "--memory",
    ),
    EnvVar("IMPCTL_IMBALANCE", "Skew of ranges that causes a warning", "--imbalance"),
    EnvVar(
        "IMPCTL_LARGE_CHANGE",
        "Megabytes of a change above which Spark pre-aggregates it",
        "--large-change",
    ),
    EnvVar(SCRUB, "Megabytes of unused state that each run verifies", "--scrub"),
    EnvVar(DISK, "Disk budget for the state of all queries", "--disk"),
    EnvVar(SHARED_STORE, "`1`: other users may own and write the store"),
    EnvVar(NOW, "Override of the current time, for expiries, `current_date` and the like", "--now"),
    EnvVar(CRIMES, "Parquet file with the crimes data, for demo and tests", "--source"),
    EnvVar("IMPCTL_DATA", "Folder of the tables in `workloads/*.yaml`"),
    EnvVar("IMPCTL_FIXTURES", "Folder of Delta tables written by other programs, for tests"),
    EnvVar(FUZZ, "Factor for the number of random test cases"),
    EnvVar(SOAK, "Random operations of the soak test; `N@SEED` for another seed"),
    EnvVar(
        "IMPCTL_SPARK_MEMORY",
        "Driver memory in `configs/*.yaml`, and of the Spark session that the tests share",
    ),
)


# Law: the command line and programs are refused with the same words, before anything is opened.


def check_scheduled(
    due: bool,
    point: str | None,
    interval: float | None,
    queries: Sequence[QueryName],
    *,
    follow: bool = False,
) -> None:
    """UsageError where options of `maintain` exclude each other."""
    options = {"--follow": follow, "--due": due, "--point": point is not None}
    names = [name for name, is_given in options.items() if is_given]
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


def check_planned_look(due: bool, interval: float | None) -> None:
    """UsageError where `plan` gets a next look that it does not use."""
    if interval is not None and not due:
        raise UsageError("Option `--interval` requires `--due`", hint="add it")


# Law: a flag overrides an `IMPCTL_*` variable, which overrides the workload file, which overrides
# the default. None means "unset", so that an explicit empty or zero value counts. The first two are
# merged before a `Settings` exists (`cli.options`); functions here ask the workload file.

DEFAULT_BATCH_ROWS = 1
"""Changes after which an eager query is maintained: every version is its own batch."""

DEFAULT_INTERVAL = 5.0
"""Seconds between two looks at the tables, for `maintain --follow`."""

DEFAULT_MAX_WAIT = 60.0
"""Seconds after which a change is maintained although fewer rows than requested are pending."""


GivenValues = Sequence[str] | Mapping[str, object]
"""Texts NAME=VALUE, or Python values by name."""

AtVersions = Sequence[str] | int | Mapping[str, int]
"""Texts VERSION or TABLE=VERSION, or a version, or versions by table."""


class Settings(Struct, frozen=True):
    """The options of one run; `dry_run` promises that nothing at all is written."""

    workload: Path
    store: Path | None = None
    policy: Policy | None = None
    lock_timeout: float = 10.0
    """Seconds that a writing command waits for another writer."""
    spark_profile: Path | None = None
    dry_run: bool = False
    imbalance: float = 4.0
    """Imbalance of ranges that is reported, as a multiple of that when they were chosen
    (`service.stored`)."""
    large_change: int = 512
    """Megabytes of changed files from which on Spark groups a change for the engine: some ten
    million rows, for which the engine takes about as long as Spark takes to start and read."""
    scrub: int = 64
    """Megabytes of state that a run checks if nothing used them for a day."""
    memory: int | None = None
    """Bytes that the engine may use for a query; None: half of the machine's."""
    disk: int | None = None
    """Bytes of state for all queries; None: as the workload file says."""
    shared_store: bool = False
    params: tuple[str, ...] = ()
    """Values `NAME=VALUE` of moving parameters, for all queries of the run."""
    now: str | None = None
    """The clock's time, as written; None: the machine's."""
    changes: Path | None = None
    """Folder for the changes of answers that `maintain` writes; None: not written."""
    strict: bool = False
    """Whether a query that can have no sketch fails a run of `maintain`."""


class QueryRequest(Struct, frozen=True):
    """A query to be read: that named `query` (the only one if None) with other values for its
    parameters (`params`), or the text `sql`. `at` selects versions, read through their stored
    sketch without maintenance. A query without a sketch is read whole, unless one is `required`."""

    query: QueryName | None = None
    params: GivenValues = ()
    sql: str | None = None
    at: AtVersions | None = None
    sketch: SketchPolicy = SketchPolicy.AUTO
    required: bool = False


class FollowRequest(Struct, frozen=True):
    """The options of `maintain --follow`; durations in seconds. Tables are looked at every
    `interval`. `pending_rows` and `max_wait` give queries without a trigger one: so many rows, or
    `fresh_within`. `max_runs` counts runs that had something to do."""

    interval: float = DEFAULT_INTERVAL
    pending_rows: int | None = None
    max_wait: float | None = None
    max_runs: int | None = None


def names_in(file: Path, section: str) -> tuple[str, ...]:
    """Names of queries or updates (`section`) of a workload file, for completion."""
    from impctl.workload import load

    return load.names_in(file, section)


def store_folder(path: str | Path) -> Path:
    """The store from a flag, variable or argument; UsageError for a URI."""
    wrong = store_path_problem(str(path))
    if wrong is not None:
        raise UsageError(wrong[0], hint=wrong[1])
    return Path(path)


def is_shared_store(text: str | None) -> bool:
    """The value of `IMPCTL_SHARED_STORE`; UsageError for neither yes nor no."""
    if not text or text == "0":
        return False
    if text != "1":
        raise UsageError(
            f"Variable `IMPCTL_SHARED_STORE` is invalid: {text}", hint="set it to 1, or unset it"
        )
    return True


def disk_from(text: str) -> int:
    """Bytes of a budget such as `500MB`, 0 for the least; UsageError for invalid text."""
    try:
        return size_from(text)
    except ValueError:
        raise UsageError(f"`--disk` is invalid: {text}", hint=SIZE_HINT) from None


class SimulateRequest(Struct, frozen=True):
    """What `simulate` replays, and in which settings; texts are as the flags have them.

    Commits of the last `since` seconds; None: all that are known. Every one of `disks` by every one
    of `triggers`; `look` are the seconds between two looks; None: the default.
    """

    since: float | None = None
    disks: tuple[str, ...] = ()
    triggers: tuple[str, ...] = ()
    look: float | None = None


class Example(StrEnum):
    """The tables that `bench --generate` can write."""

    ORDERS = "orders"
    RUNNING = "running"
    SYNTHETIC = "synthetic"
    CRIMES = "crimes"
    TPCH = "tpch"


class GenerateRequest(Struct, frozen=True):
    """A table to write below `folder`; None leaves a choice to the example. `rows`, `groups`,
    `sort_rows` and `seed` shape the synthetic table, `rows` and `seed` the orders; `source` is what
    `crimes` and `tpch` are made from. The running example has no choices."""

    folder: Path
    example: Example
    table: str | None = None
    rows: int | None = None
    groups: int | None = None
    sort_rows: bool = False
    seed: int = 1
    source: Path | None = None


class MeasureRequest(Struct, frozen=True):
    """The figures that `bench` measures, repetitions, and the files of the record and its page;
    None leaves a choice to the workload."""

    only: tuple[str, ...] = ()
    repeat: int | None = None
    out: Path | None = None
    report: Path | None = None
