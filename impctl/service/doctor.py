"""Check everything that impctl depends on; report problems and fixes."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import time
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from impctl.data.pages import whole_table
from impctl.engine.fixpoint.absorption import PACKAGE, missing_package
from impctl.errors import ImpctlError, StateCorruptError, TableError, UsageError, count_text
from impctl.forecast import Commit
from impctl.service.advice import ClusterForecasts, advice_of
from impctl.service.context import Context, Reporter, master_of, open_context
from impctl.service.results import Area, Failure, Finding, Level, Outcome, problems_error
from impctl.service.settings import ENVVARS, PREFIX, Settings
from impctl.service.stored import tree_record
from impctl.service.text import moment_text, size_text, span_text
from impctl.spark.session import JAVA_HINT, OLDEST_JAVA, java_candidates, released_version, shown
from impctl.store.disk import OTHERS_MAY_WRITE, translate_errors
from impctl.store.lock import lock_owner
from impctl.tables.log import commits_since, committed_at, duration_of, retention_of, why_gone
from impctl.tables.snapshot import CHANGE_FEED, Snapshot
from impctl.tables.write.apply import check_writable
from impctl.types import QueryName, Secrets, TableVersion
from impctl.workload.load import load_workload
from impctl.workload.models import SparkSpec

if TYPE_CHECKING:
    from impctl.store.reader import StoreReader
    from impctl.store.records import StoredQuery
    from impctl.tables.source import DeltaSource


class Checkup(Struct, frozen=True):
    """What the checks of a run look at; without `ctx` there is no workload. `every` is the time
    between runs of `maintain`, `stored` has the readable stored queries. With `starts_spark` a
    session is started; without `reads_state` only the heads of state files are read."""

    reporter: Reporter
    every: timedelta | None = None
    starts_spark: bool = False
    reads_state: bool = True
    ctx: Context | None = None
    stored: Sequence[StoredQuery] = ()

    @property
    def context(self) -> Context:
        """The context of a check that needs a workload."""
        assert self.ctx is not None, "only `OF_WORKLOAD` has checks that need a workload"
        return self.ctx

    @property
    def spark(self) -> SparkSpec:
        return SparkSpec(None, Secrets()) if self.ctx is None else self.ctx.spark_spec


Check = Callable[[Checkup], Iterable[Finding]]


# Law: writes nothing and starts no JVM unless requested; one problem hides no other. Problems exit
# with the code of the gravest (`service.results`), warnings with 0.


def doctor(
    settings: Settings | None, reporter: Reporter, every: str | None, *, spark: bool, state: bool
) -> Outcome:
    """Run all checks; with the settings of a workload also those of tables and store."""
    run = Checkup(reporter, None if every is None else schedule_of(every), spark, state)
    reporter.step("checking software")
    findings = list(_checked(OF_SOFTWARE, run))
    failures: list[Failure] = []
    if settings is None:
        findings += _checked(OF_SPARK, run)
    else:
        try:
            with open_context(settings, reporter) as ctx:
                findings += _checked(OF_WORKLOAD, replace(run, ctx=ctx, stored=_stored(ctx)))
        except ImpctlError as error:
            # A wrong workload file does not hide earlier findings.
            failures.append(Failure(None, error))
    sum_of_problems = problems_error(findings)
    if sum_of_problems is not None:
        failures.append(Failure(None, sum_of_problems))
    return Outcome(tuple(findings), (), tuple(failures))


def _checked(checks: Sequence[Check], run: Checkup) -> Iterator[Finding]:
    for check in checks:
        yield from check(run)


def _stored(ctx: Context) -> list[StoredQuery]:
    """The readable stored queries; unreadable ones are reported with the store."""
    result = []
    for name in ctx.workload.queries:
        try:
            store = ctx.reading_store()
            stored = None if store is None else store.load(name)
        except ImpctlError:
            continue
        if stored is not None:
            result.append(stored)
    return result


def schedule_of(text: str) -> timedelta:
    """The time between runs, as `1d`, `90m` or `2 hours`; UsageError otherwise."""
    every = duration_of(text)
    if every is None or not every:
        raise UsageError(
            f"`{text}` is not an interval between two runs",
            hint="write it as `15m`, `6h`, `1d` or `2 weeks`",
        )
    return every


class Subject(Struct, frozen=True):
    """Makes the findings about one thing."""

    area: Area
    name: str

    def ok(self, check: str, message: str) -> Finding:
        """Nothing to do."""
        return Finding(self.area, self.name, check, Level.OK, message)

    def warning(self, check: str, message: str, fix: str) -> Finding:
        """Works, but costs or may fail one day."""
        return Finding(self.area, self.name, check, Level.WARNING, message, fix)

    def problem(self, check: str, message: str, fix: str, exit_code: int) -> Finding:
        """A command fails, or the next run would."""
        return Finding(self.area, self.name, check, Level.PROBLEM, message, fix, exit_code)

    def failed(self, check: str, error: ImpctlError) -> Finding:
        """The problem of an error."""
        fix = error.hint or "run the command again with `-vv` and report it"
        return self.problem(check, error.message, fix, error.exit_code)


# Python and packages. Law: only installed metadata is read. The ranges are those of
# `pyproject.toml` in a checkout, else of the installed package.

_PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
_SHOWN = ("python", "pyspark", "deltalake", "pyarrow")
"""Always shown; other packages only if unsuitable."""


class Installed(Struct, frozen=True):
    """A requirement and the installed version, None if there is none."""

    name: str
    wanted: str
    version: str | None

    @property
    def is_supported(self) -> bool:
        """Whether the version is in the range, such as `>=4.1,<5`."""
        specifiers = SpecifierSet(self.wanted)
        return self.version is not None and specifiers.contains(self.version, prereleases=True)


def installed() -> tuple[Installed, ...]:
    """Python, then every required package; empty if nothing declares them."""
    python, packages = _declared()
    if python is None:
        return ()
    required = [
        requirement
        for requirement in map(Requirement, packages)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    ]
    return (
        Installed("python", python, platform.python_version()),
        *(Installed(r.name, str(r.specifier), _installed_version(r.name)) for r in required),
    )


def _installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _declared() -> tuple[str | None, Sequence[str]]:
    """The required Python and packages."""
    with suppress(OSError, tomllib.TOMLDecodeError):
        project = tomllib.loads(_PROJECT.read_text(encoding="utf-8")).get("project", {})
        # Another project's file may lie above an installed package.
        if project.get("name") == "impctl":
            return project["requires-python"], project["dependencies"]
    with suppress(PackageNotFoundError):
        return metadata("impctl")["Requires-Python"], requires("impctl") or ()
    return None, ()


def check_packages(run: Checkup) -> Iterator[Finding]:
    subject, result = Subject(Area.SOFTWARE, "packages"), installed()
    if not result:
        yield subject.warning(
            "supported_versions",
            "The supported versions are unknown, because impctl is not installed as a package",
            "run `pip install impctl`",
        )
        return
    good = [package for package in result if package.is_supported]
    named = [f"{package.name} {package.version}" for package in good if package.name in _SHOWN]
    others = len(good) - len(named)
    if good:
        more = f" and {others} more" if others else ""
        words = "are supported versions" if len(good) > 1 else "is a supported version"
        yield subject.ok("supported_versions", f"{', '.join(named)}{more} {words}")
    for package in result:
        if package.is_supported:
            continue
        fix = f'run `pip install "{package.name}{package.wanted}"`'
        if package.name == "python":
            python = f"Python {package.wanted}"
            fix = f"create a virtual environment with {python} and install impctl there"
        state = (
            "is not installed" if package.version is None else f"{package.version} is not supported"
        )
        message = f"{package.name} {state}: impctl needs {package.wanted}"
        yield Subject(Area.SOFTWARE, package.name).problem("supported_versions", message, fix, 2)


def check_variables(run: Checkup) -> Iterator[Finding]:
    subject, environment = Subject(Area.SOFTWARE, "variables"), os.environ
    known = {entry.name: entry for entry in ENVVARS}
    used = [entry for name, entry in known.items() if environment.get(name)]
    listed = ", ".join(
        f"`{entry.name}` ({entry.purpose[:1].lower()}{entry.purpose[1:]})" for entry in used
    )
    yield subject.ok(
        "variables", f"Variables that are set: {listed}" if used else "No impctl variable is set"
    )
    stems = [name.removeprefix(PREFIX) for name in known]
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known:
            for stem in get_close_matches(name.removeprefix(PREFIX), stems, n=1):
                fix = f"did you mean `{PREFIX}{stem}`?"
                yield subject.warning("variables", f"impctl has no variable `{name}`", fix)


def check_java(run: Checkup) -> Iterator[Finding]:
    """Check each Java's version in its `release` file."""
    subject = Subject(Area.SOFTWARE, "java")
    versions = []
    unstated = None
    for origin, program in java_candidates(os.environ):
        version = released_version(program)
        if version is not None and version >= OLDEST_JAVA:
            yield subject.ok("java", f"Java {version} at {program} ({origin})")
            return
        if version is None and program.exists():
            unstated = unstated or f"Java at {program} ({origin}) does not report its version"
        versions.append(f"{origin} has " + ("none" if version is None else f"Java {version}"))
    if unstated is not None:
        yield subject.warning("java", unstated, "run `impctl doctor --spark`, which starts Java")
        return
    tried = f" ({', '.join(versions)})" if versions else ""
    message = f"No Java {OLDEST_JAVA} or newer found{tried}; {_NO_JAVA}"
    yield subject.problem("java", message, JAVA_HINT, 2)


def check_extras(run: Checkup) -> Iterator[Finding]:
    """Check the optional package that queries of the workload need."""
    if all(spec.provenance is None for spec in run.context.workload.queries.values()):
        return
    subject, missing = Subject(Area.SOFTWARE, PACKAGE), missing_package()
    if missing is None:
        yield subject.ok("extras", f"`{PACKAGE}` is installed, for `provenance: absorption`")
    else:
        yield subject.failed("extras", missing)


# Spark and the Delta JAR. Law: nothing is imported or started that was not requested.

_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_JAR_SETTINGS = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
_NO_JAVA = (
    "capture and maintain usually work without it; `query`, `verify` and recapture with Spark fail"
)


def check_delta_jar(run: Checkup) -> Iterator[Finding]:
    """The Delta JAR is not needed; report if it is present."""
    conf, result = run.spark.conf, set[str]()
    spec = find_spec("pyspark")  # Its JARs are found without importing it.
    if spec is not None and spec.origin is not None:
        jars = (Path(spec.origin).parent / "jars").glob("delta-*.jar")
        result.update(jar.name for jar in jars)
    # Names of settings that use the JAR alone; their values may be secret.
    result.update(f"`{name}`" for name in _JAR_SETTINGS if "delta" in conf.get(name, ""))
    if _DELTA_EXTENSION in conf.get("spark.sql.extensions", ""):
        result.add("`spark.sql.extensions`")
    note = f"; it is installed ({', '.join(sorted(result))}) and does no harm" if result else ""
    yield Subject(Area.SPARK, "delta jar").ok(
        "delta_jar",
        "The Delta JAR is not needed: impctl reads Delta tables with deltalake, and "
        f"Spark reads their Parquet files{note}",
    )


def check_spark(run: Checkup) -> Iterator[Finding]:
    """If requested, start a session as the workload would, and read a file of each table."""
    if not run.starts_spark:
        return
    from impctl.spark.run import run_sql
    from impctl.spark.session import SparkSettings, open_session
    from impctl.spark.snapshots import rows_of_smallest_file

    run.reporter.step("starting Spark")
    subject, master = Subject(Area.SPARK, "session"), master_of(run.spark.master)
    start = time.perf_counter()
    try:
        session = open_session(SparkSettings(master, run.spark.conf, run.reporter.spark_log))
        answer = run_sql(session, "SELECT 1 AS one", {})
    except ImpctlError as error:
        yield subject.failed("spark_session", error)
        return
    took = time.perf_counter() - start
    assert answer.column("one").to_pylist() == [1]
    message = (
        f"Spark {session.version} on `{shown(master)}` started and answered within {took:.1f} s"
    )
    yield subject.ok("spark_session", message)
    if run.ctx is not None:
        run.reporter.step("reading a file of each table with Spark")
        # One finding for each table, whatever is wrong with the others.
        for table in run.ctx.workload.tables:
            subject = Subject(Area.TABLE, table)
            try:
                rows = rows_of_smallest_file(session, run.ctx.tables.snapshot(table))
            except ImpctlError as error:
                yield subject.failed("spark_reads", error)
                continue
            message = "the table has no file for Spark to read"
            if rows is not None:
                message = "Spark read a file of " + count_text(rows, "row")
            yield subject.ok("spark_reads", message)


# Statements that set an advised table property. Law: each names the table by its path, so that it
# runs as it stands: one for Spark, one for Python without it.


def setting_calls(path: str, setting: str, value: str) -> str:
    """Both calls that set a table property."""
    spark = f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{setting}' = '{value}')"
    python = f"DeltaTable({path!r}).alter.set_table_properties({{'{setting}': '{value}'}})"
    return f"in Spark {spark}, or with deltalake {python}"


# The tables: reachable, features, change feed, history. Law: reads logs and metadata, no data file.

_BY_FILES = "changes are found by comparing files, which reads each changed file completely"


def check_tables(run: Checkup) -> Iterator[Finding]:
    """Check each table."""
    run.reporter.step("checking tables")
    ctx = run.context
    for table in ctx.workload.tables:
        subject = Subject(Area.TABLE, table)
        try:
            snapshot = ctx.tables.snapshot(table)
            source = ctx.tables.source(table)
            stale = _stale(source, run.stored)
            history = list(_history(source, snapshot, stale, run.every))
        except ImpctlError as error:
            yield subject.failed("readable", error)
            continue
        yield subject.ok("readable", _described(snapshot))
        opaque = sorted(snapshot.columns.opaque.items())
        if opaque:
            named = ", ".join(f"`{name}` ({reason})" for name, reason in opaque)
            yield subject.warning(
                "columns",
                f"Columns that cannot be read without the Delta JAR: {named}",
                "do not use them in queries, or read the table with the Delta JAR",
            )
        if any(update.table == table for update in ctx.workload.updates):
            try:
                check_writable(snapshot)
                yield subject.ok("writable", "`apply` can write it")
            except ImpctlError as error:
                yield subject.failed("writable", error)
        yield _change_feed(subject, snapshot)
        yield from history
        yield from _commit_times(source)


def _described(snapshot: Snapshot) -> str:
    known = None if snapshot.rows is None else count_text(snapshot.rows, "row")
    rows = "an unknown number of rows" if known is None else known
    files = count_text(len(snapshot.files), "file")
    features = sorted(snapshot.reader_features)
    needs = f"; reader features {', '.join(features)}" if features else ""
    return f"Version {snapshot.version}, {rows} in {files}{needs}"


def _change_feed(subject: Subject, snapshot: Snapshot) -> Finding:
    if not snapshot.has_change_feed:
        message = f"The change feed is off: {_BY_FILES}"
        fix = setting_calls(snapshot.path, CHANGE_FEED, "true")
        return subject.warning("change_feed", message, fix)
    if snapshot.column_mapping is not None:
        return subject.warning(
            "change_feed",
            f"The change feed is on, but cannot be used because columns are mapped: {_BY_FILES}",
            "no action is needed; a table without `delta.columnMapping.mode` is maintained faster",
        )
    return subject.ok("change_feed", "The change feed is on")


def _stale(source: DeltaSource, stored: Sequence[StoredQuery]) -> dict[QueryName, TableVersion]:
    """The versions of outdated sketches of the table, by query."""
    return {
        query.query: pin.version
        for query in stored
        for pin in query.pins
        if pin.table == source.name
        and pin.table_id == source.table_id
        and pin.version < source.version
    }


# Impossible commit times: in the future, or before the previous commit. Law: by the log alone;
# equal times are fine. Triggers treat such a commit as simultaneous with the one before, or as made
# right after the last run, so queries may be maintained earlier than required.

_LATEST = 20
_TOLERATED = 5.0
"""Tolerated seconds between clocks of two machines."""

_FIX = "synchronize the clocks of the machines that write the table with a time server"


def _commit_times(source: DeltaSource) -> Iterator[Finding]:
    """Warn of implausible times of the latest commits."""
    subject = Subject(Area.TABLE, source.name)
    latest: Sequence[Commit] = ()
    with suppress(TableError):
        latest = commits_since(source, max(-1, source.version - _LATEST)) or ()
    timed = [(commit.version, commit.at) for commit in latest if commit.at is not None]
    ahead = [(version, time_of) for version, time_of in timed if time_of > time.time() + _TOLERATED]
    if ahead:
        last, time_of = ahead[-1]
        by = span_text(time_of - time.time())
        message = f"The commit of version {last} has a time {by} ahead of this machine's clock"
        yield subject.warning("commit_times", message, _FIX)
    for (last, time_of), (following, then) in zip(timed, timed[1:], strict=False):
        if then < time_of - _TOLERATED:
            message = (
                f"The commit of version {following} has the time {_moment(then)}, which is "
                f"before that of version {last}, {_moment(time_of)}"
            )
            yield subject.warning("commit_times", message, _FIX)
            return


def _moment(seconds: float) -> str:
    return moment_text(datetime.fromtimestamp(seconds, UTC))


# Whether a table's history lasts until the next run. Law: history is gone only if log or file are
# absent; a future loss is predicted from the retention settings and the oldest change not yet
# maintained.

_MARGIN = 2
"""Intervals that must fit, so that one missed run does not lose the history."""
_LONGER = "interval 30 days"


def _history(
    source: DeltaSource,
    snapshot: Snapshot,
    stale: Mapping[QueryName, TableVersion],
    every: timedelta | None,
) -> Iterator[Finding]:
    """History that is gone or will be before the next run; `stale` are outdated sketches."""
    subject = Subject(Area.TABLE, source.name)
    reasons = {query: why_gone(source, version) for query, version in stale.items()}
    for query, reason in reasons.items():
        if reason is not None:
            yield subject.problem(
                "history",
                f"The change since version {stale[query]}, which the sketch of `{query}` is at, "
                f"is no longer available: {reason}",
                f"run `impctl capture` with `--query {query}`, then `maintain` more often",
                7,
            )
    settings = retention_of(snapshot.configuration)
    for entry in settings:
        if entry.kept is None:
            yield subject.warning(
                "retention",
                f"`{entry.setting}` is not a duration that impctl understands: `{entry.text}`",
                "set it to a duration such as `interval 30 days`: "
                + setting_calls(source.path, entry.setting, _LONGER),
            )
    known = [(entry.kept, entry.setting) for entry in settings if entry.kept is not None]
    if known:
        waiting = [version for query, version in stale.items() if reasons[query] is None]
        oldest = committed_at(source, min(waiting) + 1) if waiting else None
        age = None if oldest is None else timedelta(seconds=max(time.time() - oldest, 0))
        span, setting = min(known, key=lambda pair: pair[0])
        raise_it = f"keep it longer: {setting_calls(source.path, setting, _LONGER)}"
        keeps = f"History is kept for {_text(span)} (`{setting}`)"
        yield _schedule(subject, span, keeps, raise_it, age, every)


def _schedule(
    subject: Subject,
    span: timedelta,
    keeps: str,
    raise_it: str,
    age: timedelta | None,
    every: timedelta | None,
) -> Finding:
    ago = "" if age is None else f"; the oldest change not yet maintained is {_text(age)} old"
    if age is not None and age >= span:
        return subject.warning(
            "schedule",
            f"{keeps}{ago}, and may be removed at any time",
            "run `impctl maintain` now, and more often from now on",
        )
    if every is None:
        return subject.ok("schedule", f"{keeps}{ago}; `--every 1d` compares a schedule with that")
    runs = f"a run every {_text(every)}"
    if every >= span:
        fix = f"run more often, or {raise_it}"
        return subject.problem("schedule", f"{keeps}, too short for {runs}{ago}", fix, 2)
    if age is not None and age + every >= span:
        return subject.warning(
            "schedule",
            f"{keeps}{ago}: the change may be gone at the next of {runs}",
            "run `impctl maintain` now",
        )
    if every * _MARGIN > span:
        return subject.warning(
            "schedule",
            f"{keeps}: with {runs}, a single failed run loses the change{ago}",
            f"run more often, or {raise_it}",
        )
    return subject.ok("schedule", f"{keeps}, enough for {runs}{ago}")


def _text(span: timedelta) -> str:
    return span_text(span.total_seconds())


# The store: format, checksums, leftovers, lock, rights, space. Law: only reads, takes no lock, and
# continues after damage, so that one run shows everything.

MOST_FILES = 100_000
"""Limit of files and folders inspected in a store, which has a few per query."""
_SCARCE = 1 << 30
"""Free bytes below which a large capture may not fit."""
_TOO_SCARCE = 64 << 20
"""Free bytes below which the catalog's log may not fit."""
_GROWTH = 2
"""A recapture writes the new state before it removes the old one."""


def check_store(run: Checkup) -> Sequence[Finding]:
    """Check the contents of the store; all its state only if requested."""
    run.reporter.step("checking the store")
    subject = _store(run)
    try:
        store = run.context.reading_store()
        if store is None:
            message = "No store yet; the first `impctl capture` creates it"
            return [subject.ok("store_opens", message)]
        return list(_contents(subject, store, run))
    except ImpctlError as error:
        return [subject.failed("store_opens", error)]


def _store(run: Checkup) -> Subject:
    return Subject(Area.STORE, str(run.context.store_path))


def _contents(subject: Subject, store: StoreReader, run: Checkup) -> Iterator[Finding]:
    file, with_state = run.context.workload.file, run.reads_state
    names = store.queries()
    queries = count_text(len(names), "query", "queries")
    errors = {name: _damage(store, name, with_state=with_state) for name in names}
    damaged = {name: error for name, error in errors.items() if error is not None}
    for name, error in damaged.items():
        yield Subject(Area.STORE, name).problem(
            "checksums",
            error.message,
            f"run `impctl capture {file} --query {name}`",
            error.exit_code,
        )
    if not damaged:
        contents = "rows and state" if with_state else "rows (state was not read)"
        yield subject.ok("checksums", f"Opens; {contents} of {queries} match their checksums")
    unknown = [name for name in names if name not in run.context.workload.queries]
    if unknown:
        yield subject.warning(
            "unknown_queries",
            f"Holds sketches of queries that the workload does not have: {', '.join(unknown)}",
            "no action is needed; they use space until the store is created again",
        )
    leftovers = store.collectable().files
    if leftovers:
        size = size_text(sum(file.bytes for file in leftovers))
        yield subject.warning(
            "leftovers",
            f"{len(leftovers)} files ({size}) that nothing refers to, left by an interrupted run",
            f"run `impctl gc {file}`, or let the next command that writes remove them",
        )


def _damage(store: StoreReader, name: QueryName, *, with_state: bool) -> ImpctlError | None:
    """What is wrong with a query's rows and state. Without `with_state` only the heads of files,
    which locate their columns, are read."""
    try:
        store.load(name)
        store.history(name, 1)
        for runs in store.load_runs(name).values():
            for _, stored in runs if with_state else ():
                whole_table(stored)
    except ImpctlError as error:
        return error
    return None


def check_lock(run: Checkup) -> Iterator[Finding]:
    subject = _store(run)
    try:
        owner = lock_owner(run.context.store_path)
    except ImpctlError as error:
        yield subject.failed("lock", error)
        return
    if owner is None:
        yield subject.ok("lock", "No process is writing")
    elif owner.is_dead:
        message = f"The lock was left by an interrupted run: {owner.describe()}"
        yield subject.warning("lock", message, "the next command that writes removes the lock")
    else:
        fix = (
            "wait for it to end; a second writer waits `--lock-timeout` seconds, then exits with 6"
        )
        yield subject.warning("lock", f"Locked by {owner.describe()}", fix)


def check_folder(run: Checkup) -> Iterator[Finding]:
    """Check rights and space of the store's folder, or of its nearest existing parent."""
    path, subject = run.context.store_path, _store(run)
    with translate_errors(path):
        existing = next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
    files = tuple(islice(_files(path), MOST_FILES + 1)) if existing == path else ()
    if len(files) > MOST_FILES:
        yield subject.warning(
            "store_folder",
            f"Holds more than {MOST_FILES:,} files; only the first were checked",
            "set `store` to a separate folder",
        )
    may_write = os.access(existing, os.W_OK | os.X_OK)
    may_write = may_write and all(os.access(file, os.W_OK) for file in files)
    if not may_write:
        yield subject.problem(
            "permissions",
            f"The current user cannot write everything below {existing}",
            "give the user who runs `maintain` write access there, or set `store` elsewhere",
            6,
        )
    stats: dict[Path, os.stat_result] = {}
    for file in files:
        with suppress(OSError):  # a writer may have removed it
            stats[file] = file.stat()
    exposed = [
        file
        for file, info in stats.items()
        if info.st_mode & OTHERS_MAY_WRITE and not file.is_symlink()
    ]
    if exposed:
        yield subject.problem(
            "permissions",
            f"Other users can change the store: {len(exposed)} files or folders are writable by "
            f"group or everybody, such as {exposed[0]}",
            f"run `chmod -R go-w {existing}`",
            2,
        )
    elif may_write:
        yield subject.ok("permissions", "Writable only by the current user")
    used = sum(info.st_size for info in stats.values() if stat.S_ISREG(info.st_mode))
    yield _room(subject, used, shutil.disk_usage(existing).free)


def _files(path: Path) -> Iterator[Path]:
    yield path
    for folder, folders, names in os.walk(path):
        for name in (*folders, *names):
            yield Path(folder) / name


def _room(subject: Subject, used: int, free: int) -> Finding:
    message = f"{size_text(free)} free, the store uses {size_text(used)}"
    if free < max(_TOO_SCARCE, used // 2):
        return subject.problem("disk_space", message, "free space on the disk of the store", 6)
    if free < max(_SCARCE, used * _GROWTH):
        return subject.warning(
            "disk_space",
            f"{message}; a recapture writes the new state before it removes the old one",
            "free space on the disk of the store",
        )
    return subject.ok("disk_space", message)


# Other workload files of this folder that use the same store. Law: only reads; an unreadable file
# is none.

_MOST_FILES = 100
"""A folder of more YAML files serves something else."""


def check_sharing(run: Checkup) -> Iterator[Finding]:
    """Warn of files that use the same store, and of equal query names."""
    ctx = run.context
    workload_file, store = Path(ctx.workload.file).absolute(), os.path.realpath(ctx.store_path)
    near = (file for pattern in ("*.yaml", "*.yml") for file in workload_file.parent.glob(pattern))
    result: dict[str, Collection[str]] = {}
    for file in sorted(near)[:_MOST_FILES]:
        if os.path.realpath(file) != os.path.realpath(workload_file):
            with suppress(ImpctlError, OSError):
                other = load_workload(file, os.environ)
                if os.path.realpath(other.store) == store:
                    result[file.name] = other.queries.keys()
    if not result:
        return
    query_names = {name.lower() for name in ctx.workload.queries}
    names = sorted(
        {name for names in result.values() for name in names if name.lower() in query_names}
    )
    named = ", ".join(f"`{name}`" for name in names)
    clash = f"; of {named} only the file captured last has a sketch" if names else ""
    yield Subject(Area.STORE, str(ctx.store_path)).warning(
        "shared_store",
        f"Other files use this store too: {', '.join(result)}{clash}",
        "give each file a separate `store`, as `impctl init` does",
    )


# Sketches. Law: by statistics alone, as after a capture (`service.advice`); an unreadable table is
# reported with the tables.


def check_skipping(run: Checkup) -> Iterator[Finding]:
    """Check whether sketches can skip files or rows."""
    if not run.stored:
        # An unreadable store is reported by `check_store`.
        return
    forecasts = ClusterForecasts(run.context, run.context.reading_store())
    for query in run.stored:
        subject = Subject(Area.STORE, query.query)
        try:
            result = advice_of(run.context.tables, forecasts, query.query, query.sketches)
        except ImpctlError:
            continue
        for advice in result:
            message = advice.message[0].upper() + advice.message[1:]
            yield subject.warning("skips_little", message, advice.fix)
        if not result and query.sketches:
            yield subject.ok("skips_little", "Its sketches can skip files or rows")


# Join trees: whether changes touch what the capture expected, by the counts of runs since. Trees
# that the user requested had no expectation and give no finding.

_FAR_MORE = 10
"""Ratio to the estimate from which the tables have changed fundamentally."""
_FEW = 100
"""With fewer changed rows the mean is meaningless."""


def check_trees(run: Checkup) -> Iterator[Finding]:
    """Check each query whose join trees were chosen by an estimate."""
    for query in run.stored:
        try:
            record = tree_record(query)
        except StateCorruptError:
            # Reported by `check_store`.
            continue
        if record is None or record.expected is None or record.changes < _FEW:
            continue
        mean = record.touched_each
        assert mean is not None
        subject = Subject(Area.STORE, query.query)
        message = (
            f"touched {mean:,.1f} tuples of its join trees; {record.expected:,.1f} were expected"
        )
        if mean > _FAR_MORE * record.expected:
            yield subject.warning(
                "tree_touches_more",
                f"On average, a changed row {message}",
                f"run `impctl capture --query {query.query}`, which counts the keys again",
            )
        else:
            yield subject.ok("tree_touches_more", f"On average, a changed row {message}")


OF_SOFTWARE: tuple[Check, ...] = (check_packages, check_variables, check_java)
OF_SPARK: tuple[Check, ...] = (check_delta_jar, check_spark)
OF_WORKLOAD: tuple[Check, ...] = (
    check_extras,
    *OF_SPARK,
    check_tables,
    check_store,
    check_lock,
    check_folder,
    check_sharing,
    check_skipping,
    check_trees,
)
"""In the order of the report."""
