"""What a run may do: flags and variables as given, and how they stand against the workload file.

Law: flag before `IMPCTL_*` variable before workload file before default; None means "unset" and is
tested as such, so that an empty or zero value given on purpose is not lost. The first two are
merged before a `Settings` exists (`cli.options`); the functions here decide the rest.
Out of scope: reading files; opening anything.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from enum import StrEnum
from pathlib import Path

from impctl.errors import UsageError
from impctl.values import dataclass
from impctl.workload.models import AnsweredBy as AnsweredBy
from impctl.workload.models import Policy as Policy
from impctl.workload.models import QuerySpec, SparkSpec, Workload
from impctl.workload.models import SketchUse as SketchUse
from impctl.workload.models import seconds_in as seconds_in
from impctl.workload.sections import DEFAULT_FILE as DEFAULT_FILE
from impctl.workload.sections import why_no_store
from impctl.workload.yaml import SIZE_HINT, size_from

DEFAULT_LOCK_TIMEOUT = 10.0
"""Seconds that a writing command waits for another writer."""

DEFAULT_BATCH_ROWS = 1
"""Changes after which an eager query is maintained: every version is a batch of its own."""


DEFAULT_IMBALANCE = 4.0
"""How many times as uneven as when they were chosen ranges may become before that is reported."""


DEFAULT_LARGE_CHANGE = 512
"""Megabytes of changed files from which on Spark groups a change before the engine sees it: some
ten million rows, which the engine takes about as long over as Spark takes to start and to read."""


DEFAULT_SCRUB = 64
"""Megabytes of state that a run looks at although nothing used them for a day."""


DEFAULT_INTERVAL = 5.0
"""Seconds between two looks at the tables, for `maintain --follow`."""


DEFAULT_MAX_WAIT = 60.0
"""Seconds after which a change is maintained although fewer rows than asked for are pending."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One run as asked for; `dry_run` promises that nothing at all is written."""

    workload: Path
    _: KW_ONLY
    store: Path | None = None
    policy: Policy | None = None
    lock_timeout: float | None = None
    spark_profile: Path | None = None
    dry_run: bool = False
    imbalance: float | None = None
    large_change: int | None = None
    scrub: int | None = None
    memory: int | None = None
    """Bytes that the engine may take to answer a query; None: half of the machine's."""
    disk: int | None = None
    """Bytes that the state of all queries may take; None: as the workload file says."""
    shared_store: bool = False
    params: tuple[str, ...] = ()
    """Values `NAME=VALUE` for parameters that move, of all queries of the run."""
    now: str | None = None
    """What the clock is to say, as written; None: the machine's time."""
    changes: Path | None = None
    strict: bool = False
    """Whether a query that can have no sketch fails a run of `maintain`."""
    """Where `maintain` writes what came and went of answers; None: nowhere."""


@dataclass(frozen=True, slots=True)
class FollowRequest:
    """How `maintain --follow` goes on; durations in seconds.

    Tables are looked at every `interval`. With `pending_rows` or `max_wait` queries without a
    trigger have one: so many rows, or `fresh_within`. `max_runs` counts runs that had something to
    do.
    """

    interval: float = DEFAULT_INTERVAL
    pending_rows: int | None = None
    max_wait: float | None = None
    max_runs: int | None = None


def store_of(settings: Settings, workload: Workload) -> str:
    """Folder of the store; a flag or variable is relative to the working directory."""
    return workload.store if settings.store is None else str(settings.store.absolute())


def store_folder(given: str | Path) -> Path:
    """The store as a flag, a variable or an argument gives it; UsageError for a URI."""
    wrong = why_no_store(str(given))
    if wrong is not None:
        raise UsageError(wrong[0], hint=wrong[1])
    return Path(given)


def is_shared_store(text: str | None) -> bool:
    """What `IMPCTL_SHARED_STORE` says; UsageError for what is neither yes nor no."""
    if not text or text == "0":
        return False
    if text != "1":
        raise UsageError(
            f"Variable `IMPCTL_SHARED_STORE` is invalid: {text}", hint="set it to 1, or unset it"
        )
    return True


def policy_of(settings: Settings, query: QuerySpec) -> Policy:
    """The policy that holds for `query` in this run."""
    return query.policy if settings.policy is None else settings.policy


def lock_timeout_of(settings: Settings) -> float:
    """Seconds to wait for another writer."""
    return DEFAULT_LOCK_TIMEOUT if settings.lock_timeout is None else settings.lock_timeout


def imbalance_of(settings: Settings) -> float:
    """How many times as uneven as at their choice ranges may become (`app.capturing.drift`)."""
    return DEFAULT_IMBALANCE if settings.imbalance is None else settings.imbalance


def large_change_of(settings: Settings) -> int:
    """Megabytes of changed files from which on Spark groups a change first."""
    return DEFAULT_LARGE_CHANGE if settings.large_change is None else settings.large_change


def scrub_of(settings: Settings) -> int:
    """Bytes of state to look at that nothing uses."""
    return (DEFAULT_SCRUB if settings.scrub is None else settings.scrub) * 1_000_000


def disk_of(settings: Settings, workload: Workload) -> int | None:
    """Bytes that the state of all queries may take; None is without bounds."""
    return workload.budget.disk if settings.disk is None else settings.disk


def disk_from(text: str) -> int:
    """Bytes of a budget such as `500MB`, 0 for the least; UsageError for what is none."""
    try:
        return size_from(text)
    except ValueError:
        raise UsageError(f"`--disk` is invalid: {text}", hint=SIZE_HINT) from None


def spark_of(workload: Workload, profile: SparkSpec | None) -> SparkSpec:
    """Spark settings: the profile asked for, key by key, before those of the workload file."""
    if profile is None:
        return workload.spark
    master = workload.spark.master if profile.master is None else profile.master
    return SparkSpec(master, {**workload.spark.conf, **profile.conf})


@dataclass(frozen=True, slots=True)
class SimulateRequest:
    """What `simulate` replays, and in which settings; texts are as the flags have them.

    Commits of the last `since` seconds, or of the file `arrivals`; None: all that are known. Every
    one of `disks` by every one of `triggers`; `look` are the seconds between two looks. Rows come
    as `late` as that says, None with their commits.
    """

    since: float | None = None
    arrivals: Path | None = None
    disks: tuple[str, ...] = ()
    triggers: tuple[str, ...] = ()
    look: float = DEFAULT_INTERVAL
    report: Path | None = None
    late: str | None = None


@dataclass(frozen=True, slots=True)
class DoctorRequest:
    """What `doctor` is to look at; without `settings` only at what impctl runs on.

    `every` is the time between two runs of `maintain`; `spark` starts a session; without `state`
    of files of state only the heads are read.
    """

    settings: Settings | None = None
    every: str | None = None
    spark: bool = False
    state: bool = True


@dataclass(frozen=True, slots=True)
class InitRequest:
    """The workload file to write: for `tables`, or with `demo`, the folder of a demo."""

    tables: tuple[str, ...] = ()
    out: Path | None = None
    demo: Path | None = None
    force: bool = False


class Example(StrEnum):
    """The tables that `bench --generate` can write."""

    ORDERS = "orders"
    RUNNING = "running"
    SYNTHETIC = "synthetic"
    CRIMES = "crimes"
    TPCH = "tpch"


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A table to write below `folder`; None leaves a choice to the example.

    `rows`, `groups`, `sort_rows` and `seed` shape the synthetic table, `rows` and `seed` the
    orders; `source` is what `crimes` and `tpch` are made from. The running example has no choices.
    """

    folder: Path
    example: Example
    _: KW_ONLY
    table: str | None = None
    rows: int | None = None
    groups: int | None = None
    sort_rows: bool = False
    seed: int = 1
    source: Path | None = None


@dataclass(frozen=True, slots=True)
class MeasureRequest:
    """Which figures `bench` measures, how often, and the files to write the record and its page to;
    None leaves a choice to the workload."""

    only: tuple[str, ...] = ()
    repeat: int | None = None
    out: Path | None = None
    report: Path | None = None
