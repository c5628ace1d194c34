"""The context of a run: workload, pinned tables, store, Spark, progress."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, date, datetime
from functools import cache, cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from impctl.data.memory import give_back
from impctl.data.schema import name_parts
from impctl.errors import (
    ImpctlError,
    NotReadError,
    UnsafeSketchError,
    UsageError,
    is_panic,
    unexpected,
)
from impctl.service.output import check_output
from impctl.service.pinned import PinnedTables
from impctl.service.results import Failure, Outcome, Result
from impctl.service.settings import Settings
from impctl.stopwatch import Stopwatch
from impctl.store.disk import suppress_full
from impctl.store.ledger import Ledger
from impctl.store.store import Store
from impctl.tables.log import PinnedTable, commit_history
from impctl.tables.storage import local_path
from impctl.types import AccessId, ColumnName, QueryName, Secrets, TableName, TableVersion
from impctl.workload.load import load_spark_profile, read_text, workload_of
from impctl.workload.models import InsertSpec, Policy, QuerySpec, SparkSpec, Workload
from impctl.workload.yaml import sql_location, suggestion

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from impctl.compile.compile import Dataflow
    from impctl.engine.operator import Limits
    from impctl.forecast import History
    from impctl.plan.nodes import Plan, Query
    from impctl.reuse.verdict import ReuseVerdict
    from impctl.rules.finalize import AnswerPlan
    from impctl.rules.optimize import PlannedQueries
    from impctl.safety.facts import Fact
    from impctl.sketch.sketch import RangePartition, RangeSet
    from impctl.sql.parameters import Clock
    from impctl.store.reader import StoreReader
    from impctl.tables.source import DeltaSource

    Sketched = tuple[tuple[AccessId, ColumnName], ...]
    Partitions = Mapping[AccessId, RangePartition]
    RangesByAccess = Mapping[AccessId, RangeSet]


Versions = Mapping[TableName, TableVersion]


# Law: reporting never changes a result; a use case works the same with `SilentReporter`.


class Reporter(Protocol):
    """Receives each step before it begins, and its number among all if known."""

    @property
    def spark_log(self) -> str:
        """The level of Spark's own log: `off`, or one such as `warn`."""

    def step(self, message: str, number: int = 0, total: int = 0) -> None:
        """A step begins: item `number` of `total`, or a part of the last one if both are 0."""

    def finished(self, result: Result, done: int, total: int) -> None:
        """A result is ready, the last of `done`; the outcome has it too."""


class SilentReporter:
    """Reports nothing."""

    spark_log = "off"

    def step(self, message: str, number: int = 0, total: int = 0) -> None:
        """Nothing."""

    def finished(self, result: Result, done: int, total: int) -> None:
        """Nothing."""


# Law: engine and Spark get the same limits for recursive queries.


def limits_of(ctx: Context) -> Limits:
    """The workload file's limits, or the defaults."""
    from impctl.engine.operator import Limits

    limits = ctx.workload.limits
    return Limits(limits.rounds, limits.rows)


def limited(ctx: Context, compiled: Dataflow) -> Dataflow:
    compiled.circuit.end_by(limits_of(ctx))
    return compiled


_PACKAGES = (
    "compile",
    "data",
    "engine",
    "expr",
    "plan",
    "reuse",
    "rules",
    "safety",
    "sql",
    "workload",
)


# A mark of this program: of the packages that read SQL and compute answers, and sqlglot. Law: marks
# are equal only for the same files, by names, sizes and times, so a changed program of the same
# version does not trust what it wrote before. Without files there is no mark, and nothing is
# trusted.


@cache
def build_mark() -> str:
    """A hash of the program's files when a command begins; empty if the program is not in files."""
    package = Path(__file__).parents[1]
    reader = find_spec("sqlglot")
    if reader is None or reader.origin is None:
        return ""
    try:
        lines = [line for name in _PACKAGES for line in _lines(package / name)]
        lines.append(_line(reader.origin, os.stat(reader.origin)))
    except OSError:
        return ""
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _lines(folder: Path) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _lines(Path(entry.path))
            elif entry.name.endswith(".py"):
                yield _line(entry.path, entry.stat())


def _line(path: str, result: os.stat_result) -> str:
    return f"{path} {result.st_size} {result.st_mtime_ns}"


def known_histories(
    tables: PinnedTables, store: StoreReader | None, names: Iterable[TableName]
) -> dict[TableName, History]:
    """Histories of these tables up to their pinned versions, as far as they can be opened."""
    tables_named = tuple(dict.fromkeys(names))
    histories = {} if store is None else store.arrivals(tables_named)
    return extended_histories(tables, histories, tables_named)


def extended_histories(
    tables: PinnedTables, histories: Mapping[TableName, History], names: Iterable[TableName]
) -> dict[TableName, History]:
    """Extend these histories with later commits."""
    result = dict(histories)
    for name in names:
        try:
            source = tables.source(name)
        except ImpctlError:
            continue
        result[name] = commit_history(source, histories.get(name))
    return result


# Histories: commits of a run's tables as numbers, stored for later runs. Law: costs what is new;
# tables that no run opened are not opened for it. What could not be written, as on a full disk, is
# read again by the next run. A change that the file says never comes is reported once.

CHANGE_UNEXPECTED = "change_unexpected"


def remember_histories(ctx: Context, store: Store, before: Versions) -> list[str]:
    """Update the store's histories of the tables used; failures are warnings, since the run's work
    is committed. Also warns of each change to a table that the workload file declares unchanging,
    after the store's history or else the version in `before`."""
    warnings = []
    try:
        names = list(ctx.tables.seen)
        stored = store.arrivals(names, is_whole=False)
        result = extended_histories(ctx.tables, stored, names)
        new = {name: history for name, history in result.items() if history != stored.get(name)}
        if new:
            with suppress_full():
                store.save_arrivals(new)
        for name, history in new.items():
            known = stored.get(name)
            is_same = known is not None and known.table_id == history.table_id
            since = known.until if known is not None and is_same else before.get(name)
            if since is not None and ctx.workload.tables[name].never_changes:
                late = [arrival.version for arrival in history.arrivals if arrival.version > since]
                if late:
                    warnings.append(_unexpected(name, late[0], late[-1]))
    except ImpctlError as error:
        return [f"{error.message}; {error.hint}"]
    return warnings


def _unexpected(table: TableName, first: TableVersion, last: TableVersion) -> str:
    versions = f"version {first}" if first == last else f"versions {first} to {last}"
    return (
        f"table `{table}` changed in {versions}, but the workload file declares `changes: "
        "never`; sketches are maintained as usual, but remove that line "
        f"[{CHANGE_UNEXPECTED}]"
    )


# Answers from materialized rows, on their way into the ledger. Law: each counts once; a failed
# write is retried with the next answers. A killed process may lose those of its last second.

_APART = 1.0
"""Seconds between two writes, as each waits for the disk."""


class AnswerCounter:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._store: Path | None = None
        self._counts: Counter[QueryName] = Counter()
        self._written = float("-inf")

    def add(self, store: Path, query: QueryName) -> bool:
        if store != self._store:
            self.write()
            self._store, self._counts = store, Counter()
        self._counts[query] += 1
        return self._clock() - self._written < _APART or self.write()

    def write(self) -> bool:
        """Write the counts to the ledger; false if it could not be done at once."""
        if self._store is None or not self._counts:
            return True
        self._written = self._clock()
        if not Ledger(self._store).record_answers(self._counts, time.time()):
            return False
        self._counts = Counter()
        return True


# Where Spark comes from. Law: a program's running session is left untouched and the run works
# beside it. A session launched here stays with the process for the next run.

DEFAULT_MASTER = "local[*]"


class OwnSession:
    """The process's only session, which a command may configure; it may run already."""

    def __init__(self, log_level: str = "off") -> None:
        self._log_level = log_level

    @property
    def is_running(self) -> bool:
        """Whether a session exists without starting Spark."""
        if "pyspark.sql" not in sys.modules:
            return False
        from impctl.spark.session import running_session

        return running_session() is not None

    def open(self, spec: SparkSpec) -> SparkSession:
        """The session with these settings, when a step first needs it."""
        from impctl.spark.session import SparkSettings, open_session

        return open_session(SparkSettings(master_of(spec.master), spec.conf, self._log_level))


class SessionBeside(OwnSession):
    """A separate session beside the one given, or else the running one. Kept between runs while its
    Spark is up and the settings stay the same."""

    def __init__(self, session: SparkSession | None) -> None:
        super().__init__()
        if session is not None:
            from impctl.spark.session import require_session

            require_session(session)
        self._shared = session
        self._opened: tuple[object, SparkSpec, SparkSession] | None = None

    def open(self, spec: SparkSpec) -> SparkSession:
        from impctl.spark.session import home_of, session_beside

        base = self._base(spec)
        if self._opened is not None:
            context, made_for, session = self._opened
            if context is home_of(base) and made_for == spec:
                return session
        session = session_beside(base, spec.conf)
        self._opened = (home_of(base), spec, session)
        return session

    @contextmanager
    def visit(self) -> Iterator[None]:
        """A run after which the program's Spark is as before."""
        from impctl.spark.session import guest

        with guest():
            yield

    def _base(self, spec: SparkSpec) -> SparkSession:
        from impctl.spark.session import is_usable, running_session

        if self._shared is None:
            running = running_session()
            return super().open(spec) if running is None else running
        if not is_usable(self._shared):
            raise UsageError(
                "The given Spark session was stopped",
                code="spark_session_stopped",
                hint="open the workload again with a running session, or without one",
            )
        return self._shared


def spark_of(workload: Workload, profile: SparkSpec | None) -> SparkSpec:
    """Spark settings: the profile's keys take precedence over those of the workload file."""
    if profile is None:
        return workload.spark
    master = workload.spark.master if profile.master is None else profile.master
    return SparkSpec(master, Secrets(workload.spark.conf | profile.conf))


def master_of(requested: str | None) -> str:
    """Where Spark runs: `SPARK_REMOTE` first, then the setting."""
    from impctl.spark import session as connect

    return connect.master_of(requested, os.environ, DEFAULT_MASTER)


# Caches. Law: everything is a function of its key, so forgetting changes only time. A command-line
# run has its cache; a workload opened by a program keeps one. Reading SQL is imported with the
# first query, so a run with nothing to do never loads it.

_REMEMBERED = 256
"""Entries per kind, as many as plans (`rules.optimize.KEPT`); each holds tens of kilobytes."""


class Memory:
    def __init__(self) -> None:
        self._workload: tuple[tuple[object, ...], Workload] | None = None
        self._answers: dict[int, tuple[Query, AnswerPlan]] = {}
        self._circuits: dict[int, tuple[Plan, str]] = {}
        self._judge = lru_cache(maxsize=_REMEMBERED)(_judge)

    def workload(self, path: Path, env: Mapping[str, str]) -> Workload:
        text = read_text(path)
        # Paths in it are relative to its folder.
        key = (path, path.parent.resolve(), text, dict(env))
        if self._workload is None or self._workload[0] != key:
            self._workload = (key, workload_of(path, text, env))
        return self._workload[1]

    @cached_property
    def plans(self) -> PlannedQueries:
        from impctl.rules.optimize import PlannedQueries

        return PlannedQueries()

    def reuse(
        self, query: Query, captured: Query, sketched: Sketched, facts: Sequence[Fact]
    ) -> ReuseVerdict:
        return self._judge(query, captured, sketched, tuple(facts))

    def answer(self, query: Query) -> AnswerPlan:
        from impctl.rules.finalize import answer_plan

        return _by_identity(self._answers, query, answer_plan)

    def circuit(self, core: Plan) -> str:
        from impctl.compile.build import circuit_id

        return _by_identity(self._circuits, core, circuit_id)


def _judge(
    query: Query, captured: Query, sketched: Sketched, facts: tuple[Fact, ...]
) -> ReuseVerdict:
    from impctl.reuse.verdict import check_reuse

    return check_reuse(query, captured, dict(sketched), facts)


Key = TypeVar("Key")
Value = TypeVar("Value")


def _by_identity(
    known: dict[int, tuple[Key, Value]], key: Key, make: Callable[[Key], Value]
) -> Value:
    # To hash a plan, or compare two, takes as long as to name it. An entry holds its plan, so that
    # no other one can have its id.
    entry = known.get(id(key))
    if entry is None:
        if len(known) >= _REMEMBERED:
            known.clear()
        entry = known[id(key)] = (key, make(key))
    return entry[1]


# Law: Spark starts only when a step needs it; only a command that writes creates the store.
# Functions that need only the tables get `tables`, not the context.


class Context:
    """The collaborators of one run, opened on demand and closed together."""

    def __init__(
        self,
        settings: Settings,
        workload: Workload,
        reporter: Reporter,
        sessions: OwnSession | None = None,
        memory: Memory | None = None,
        answers: AnswerCounter | None = None,
    ) -> None:
        self.settings = settings
        self.workload = workload
        self.reporter = reporter
        self.memory = Memory() if memory is None else memory
        self.answers = AnswerCounter() if answers is None else answers
        self._sessions = OwnSession(reporter.spark_log) if sessions is None else sessions
        self.tables = PinnedTables(workload.tables, self._catalog_location)
        self._store: Store | None = None
        self._spark: SparkSession | None = None
        self._given: dict[str, date | datetime] = {}
        self._waited = 0.0
        """Seconds spent waiting for other writers."""
        self.spark_start_ms = 0.0
        """Milliseconds to start Spark in this run; 0 if not started."""
        # Before the program's files can change under a process that runs for days.
        build_mark()
        if settings.params:
            self.give(settings.params)

    def next_run(self, pinned: Iterable[DeltaSource]) -> Context:
        """A context for the process's next run with these tables; Spark is kept."""
        ctx = Context(
            self.settings, self.workload, self.reporter, memory=self.memory, answers=self.answers
        )
        for source in pinned:
            ctx.tables.pin(source)
        ctx._spark = self._spark
        return ctx

    def take_spark_of(self, run: Context) -> None:
        self._spark = run._spark

    @property
    def store_path(self) -> Path:
        """Folder of the store; a flag or variable is relative to the working directory."""
        store = self.settings.store
        return Path(self.workload.store) if store is None else store.absolute()

    @property
    def disk(self) -> int | None:
        """Bytes of state for all queries; None is unbounded."""
        disk = self.settings.disk
        return self.workload.budget.disk if disk is None else disk

    @property
    def reserved(self) -> dict[str, str]:
        """Paths that no output may have, by what they are: tables, store, input files."""
        result = {f"table `{name}`": spec.path for name, spec in self.workload.tables.items()}
        result["the store"] = str(self.store_path)
        result["the workload file"] = str(self.settings.workload)
        if self.settings.spark_profile is not None:
            result["the Spark profile"] = str(self.settings.spark_profile)
        batches = [update for update in self.workload.updates if isinstance(update, InsertSpec)]
        read = {f"update `{batch.name}`": batch.file for batch in batches if batch.file is not None}
        places = {owner: local_path(path) for owner, path in (result | read).items()}
        return {owner: path for owner, path in places.items() if path is not None}

    def store(self) -> Store:
        if self._store is not None and self._store.is_absent:
            # A reader saw the folder of a store whose creation was cut short, or an older format.
            self.close()
        if self._store is None:
            shared = self.settings.shared_store
            if not Store.exists(self.store_path, is_shared=shared):
                check_output(self.store_path)
            self._store = Store.open(self.store_path, is_shared=shared)
        return self._store

    def reading_store(self) -> StoreReader | None:
        shared = self.settings.shared_store
        if self._store is None and Store.exists(self.store_path, is_shared=shared):
            self._store = Store.open(self.store_path, create=False, is_shared=shared)
        return self._store

    def count_answer(self, query: QueryName) -> None:
        """Count an answer from materialized rows, even if that cannot be recorded."""
        if not self.answers.add(self.store_path, query):
            self.reporter.step(
                "this answer was not recorded yet, because the ledger could not be written"
            )

    @contextmanager
    def writing(self, command: str, *, sweep: bool = True) -> Iterator[Store]:
        """The store with the writer's lock; one lock timeout holds for the whole run."""
        store = self.store()
        patience = max(0.0, self.settings.lock_timeout - self._waited)
        with ExitStack() as stack:
            started = time.monotonic()
            try:
                recovered = stack.enter_context(store.lock(patience, command, sweep=sweep))
            finally:
                self._waited += time.monotonic() - started
            if recovered is not None:
                died = recovered.describe()
                self.reporter.step(f"Recovered the lock of a run that ended early: {died}")
            yield store

    @property
    def has_spark(self) -> bool:
        return self._spark is not None or self._sessions.is_running

    def spark(self) -> SparkSession:
        if self._spark is None:
            if not self.has_spark:
                self.reporter.step("starting Spark")
                # Its process needs memory, and the engine may hold all that is allowed.
                give_back()
            watch = Stopwatch()
            self._spark = self._sessions.open(self.spark_spec)
            self.spark_start_ms = watch.ms
        return self._spark

    def _catalog_location(self, written: str) -> str:
        from impctl.spark.snapshots import catalog_location

        parts = self.workload.names.completed(name_parts(written) or (written,))
        return catalog_location(self.spark(), parts)

    @cached_property
    def spark_spec(self) -> SparkSpec:
        """Spark's settings; the requested profile overrides the file."""
        profile = self.settings.spark_profile
        extra = None if profile is None else load_spark_profile(profile, os.environ)
        return spark_of(self.workload, extra)

    @property
    def session_zone(self) -> str:
        return self.spark_spec.conf.get("spark.sql.session.timeZone", "UTC")

    @cached_property
    def clock(self) -> Clock:
        return self.time()

    def time(self) -> Clock:
        from impctl.sql.parameters import Clock, instant_of

        written = self.settings.now
        zone = self.session_zone
        result = datetime.now(UTC) if written is None else instant_of(written, zone)
        return Clock(result, zone, given=self._given)

    def refresh_clock(self) -> None:
        """Move the run to the present instant, unless one was given: while this process waited,
        another one may have moved a sketch to a later instant."""
        if self.settings.now is None:
            self.clock = self.time()

    def now(self) -> float:
        """The present time, or that of `--now`, in seconds since 1970."""
        return time.time() if self.settings.now is None else self.clock.instant.timestamp()

    def give(self, params: Sequence[str]) -> None:
        """Set parameters NAME=VALUE before the clock is read; UsageError for an unknown one."""
        from impctl.sql.parameters import given_moment

        for text in params:
            name, _, written = text.partition("=")
            follows = {
                spec.follows[name] for spec in self.workload.queries.values() if name in spec.moves
            }
            if not follows:
                raise UsageError(
                    f"No query has a time-dependent parameter `{name}`",
                    hint="give other parameters to `query` and `rewrite`; write `--param "
                    "NAME=VALUE`",
                    code="parameter_unknown",
                )
            if len(follows) > 1:
                raise UsageError(
                    f"Parameter `{name}` changes daily in one query and hourly in another",
                    hint="use two names, or omit the value",
                    code="parameter_ambiguous",
                )
            (moment,) = follows
            self._given[f":{name}"] = given_moment(name, written, moment, self.session_zone)

    def policy(self, spec: QuerySpec) -> Policy:
        """The policy of the query in this run."""
        return spec.policy if self.settings.policy is None else self.settings.policy

    def queries(self, names: Sequence[QueryName] | None) -> tuple[QuerySpec, ...]:
        """The named queries, or all; UsageError for an unknown one."""
        known: Mapping[QueryName, QuerySpec] = self.workload.queries
        if not names:
            return tuple(known.values())
        for name in names:
            if name not in known:
                raise UsageError(
                    f"Query `{name}` is not in {self.workload.file}",
                    hint=suggestion(name, list(known), "the file has"),
                    code="query_unknown",
                )
        return tuple(known[name] for name in dict.fromkeys(names))

    def query(self, name: QueryName | None) -> QuerySpec:
        """The named query, or the only one; UsageError if unknown or ambiguous."""
        if name is None and len(self.workload.queries) != 1:
            names = tuple(self.workload.queries)
            raise UsageError(
                f"{self.workload.file} has {len(names)} queries",
                hint=f"choose one with `--query`: {', '.join(names)}",
                code="query_ambiguous",
            )
        (spec,) = self.queries(None if name is None else [name])
        return spec

    def sketched(self, names: Sequence[QueryName] | None) -> tuple[QuerySpec, ...]:
        return tuple(spec for spec in self.queries(names) if spec.is_sketched)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None


@contextmanager
def open_context(
    settings: Settings,
    reporter: Reporter | None = None,
    sessions: OwnSession | None = None,
    memory: Memory | None = None,
    answers: AnswerCounter | None = None,
) -> Iterator[Context]:
    """Open the context of one run; WorkloadError lists everything wrong with the file."""
    memory = Memory() if memory is None else memory
    workload = memory.workload(settings.workload, os.environ)
    ctx = Context(settings, workload, reporter or SilentReporter(), sessions, memory, answers)
    try:
        yield ctx
    finally:
        ctx.close()
        if answers is None:
            ctx.answers.write()


# Law: only an interrupt stops the whole run. An unexpected error is a bug on one query's path,
# reported as such (exit 1, with its trace under `-vv`); other sketches continue.


class Isolated:
    """A context in which an error becomes the failure of one query."""

    def __init__(self, failures: list[Failure], spec: QuerySpec) -> None:
        self.failures = failures
        self.spec = spec

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None or not (isinstance(error, Exception) or is_panic(error)):
            return False
        reported = error if isinstance(error, ImpctlError) else unexpected(error)
        self.failures.append(Failure(self.spec.name, located(reported, self.spec)))
        return True


def collect_results(
    specs: Iterable[QuerySpec], results_of: Callable[[QuerySpec], Iterable[Result]]
) -> Outcome:
    """The results of each query; an error after some of them is the failure of that query."""
    results: list[Result] = []
    failures: list[Failure] = []
    for spec in specs:
        with Isolated(failures, spec):
            results.extend(results_of(spec))
    return Outcome(tuple(results), (), tuple(failures))


def located(error: ImpctlError, spec: QuerySpec) -> ImpctlError:
    location = error.location
    if location is not None and location.file == f"query `{spec.name}`":
        return error.at(sql_location(spec, location.line, location.column))
    return error


# Tables that a program keeps open between calls. Law: each call works on the newest versions; this
# only avoids rereading logs. All are reopened from time to time, whatever their logs say.

_LONGEST = 600.0
"""Seconds after which tables are opened again."""


class OpenTables:
    def __init__(self) -> None:
        self._seen: dict[TableName, PinnedTable] = {}
        self._since = time.monotonic()

    def lend(self, ctx: Context) -> None:
        """Lend the open objects to one run until it returns them."""
        if time.monotonic() - self._since < _LONGEST:
            ctx.tables.recall(self._seen)
        else:
            self._since = time.monotonic()
        self._seen = {}

    def take_back(self, ctx: Context) -> None:
        self._seen = {**ctx.tables.unused, **ctx.tables.seen}


# Law: a query is refused if impctl cannot read a construct of it or finds no safe attribute; it is
# answered without a sketch. What Spark would refuse too, and a requested attribute that is not
# safe, are the user's mistakes.


def is_refused(spec: QuerySpec, error: ImpctlError) -> bool:
    if isinstance(error, UnsafeSketchError):
        return not spec.sketch
    return isinstance(error, NotReadError)


def split_refused(
    ctx: Context, failures: Iterable[Failure]
) -> tuple[list[tuple[QuerySpec, ImpctlError]], list[Failure]]:
    """The queries that can have no sketch, with their errors; and the other failures."""
    refused: list[tuple[QuerySpec, ImpctlError]] = []
    others: list[Failure] = []
    for failure in failures:
        spec = ctx.workload.queries.get(failure.query or "")
        if spec is not None and is_refused(spec, failure.error):
            refused.append((spec, failure.error))
        else:
            others.append(failure)
    return refused, others
