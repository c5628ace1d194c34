"""What every use case works on: the workload, its tables pinned, the store, Spark when needed.

Law: the Spark session starts only when a step really needs it; the store is created only by a
command that writes. Who needs the tables alone is given those (`tables`), not the workbench.
Out of scope: which versions are pinned (`workbench.pinned`), what is done (one file per use case).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, date, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from impctl.app.workbench.build_mark import build_mark
from impctl.app.workbench.memory import Memory
from impctl.app.workbench.output import check_output
from impctl.app.workbench.pinned import PinnedTables
from impctl.app.workbench.reporter import Reporter, SilentReporter
from impctl.app.workbench.sessions import OwnSession, Sessions
from impctl.app.workbench.settings import Settings, lock_timeout_of, policy_of, spark_of, store_of
from impctl.app.workbench.told_answers import ToldAnswers
from impctl.data.memory import give_back
from impctl.data.schema import name_parts
from impctl.errors import UsageError
from impctl.stopwatch import Stopwatch
from impctl.store.reader import StoreReader
from impctl.store.store import Store
from impctl.tables.source import DeltaSource
from impctl.tables.storage import local_path
from impctl.types import QueryName
from impctl.workload.load import load_spark_profile
from impctl.workload.models import InsertSpec, Policy, QuerySpec, SparkSpec, Workload
from impctl.workload.yaml import suggestion

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from impctl.sql.parameters import Clock


class Workbench:
    """One run's collaborators, opened as they are needed and closed together."""

    def __init__(
        self,
        settings: Settings,
        workload: Workload,
        reporter: Reporter,
        sessions: Sessions | None = None,
        memory: Memory | None = None,
        answers: ToldAnswers | None = None,
    ) -> None:
        self.settings = settings
        self.workload = workload
        self.reporter = reporter
        self.memory = Memory() if memory is None else memory
        self.answers = ToldAnswers() if answers is None else answers
        self._sessions = OwnSession(reporter.spark_log) if sessions is None else sessions
        self.tables = PinnedTables(workload.tables, self._catalog_location)
        self._store: Store | None = None
        self._spark: SparkSession | None = None
        self._given: dict[str, date | datetime] = {}
        self._waited = 0.0
        """Seconds spent waiting for other writers."""
        self.spark_start_ms = 0.0
        """What starting Spark took in this run; 0 as long as it was not started."""
        # Before files of the program could change under a process that goes on for days.
        build_mark()
        if settings.params:
            self.give(settings.params)

    def next_run(self, pinned: Iterable[DeltaSource]) -> Workbench:
        """A workbench for another run of this process, with these tables pinned; Spark is kept."""
        desk = Workbench(
            self.settings, self.workload, self.reporter, memory=self.memory, answers=self.answers
        )
        for source in pinned:
            desk.tables.pin(source)
        desk._spark = self._spark
        return desk

    def take_spark_of(self, run: Workbench) -> None:
        """Keep the session that a run has started, for the next one."""
        self._spark = run._spark

    @property
    def store_path(self) -> Path:
        return Path(store_of(self.settings, self.workload))

    @property
    def reserved(self) -> dict[str, str]:
        """Local paths that no output may have, by what they are: tables, store, files read."""
        result = {f"table `{name}`": spec.path for name, spec in self.workload.tables.items()}
        result["the store"] = str(self.store_path)
        result["the workload file"] = str(self.settings.workload)
        if self.settings.spark_profile is not None:
            result["the Spark profile"] = str(self.settings.spark_profile)
        batches = [one for one in self.workload.updates if isinstance(one, InsertSpec)]
        read = {f"update `{one.name}`": one.file for one in batches if one.file is not None}
        places = {owner: local_path(path) for owner, path in (result | read).items()}
        return {owner: path for owner, path in places.items() if path is not None}

    def store(self) -> Store:
        """The store, created if need be (writing commands)."""
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
        """The store if there is one (reading commands)."""
        shared = self.settings.shared_store
        if self._store is None and Store.exists(self.store_path, is_shared=shared):
            self._store = Store.open(self.store_path, create=False, is_shared=shared)
        return self._store

    def count_answer(self, query: QueryName) -> None:
        """Count an answer from kept rows; it is told whether that can be written down or not."""
        if not self.answers.add(self.store_path, query):
            self.reporter.step(
                "this answer was not recorded yet, because the ledger could not be written"
            )

    @contextmanager
    def writing(self, command: str, *, sweep: bool = True) -> Iterator[Store]:
        """The store with the writer's lock held; the lock timeout is one for the whole run."""
        store = self.store()
        patience = max(0.0, lock_timeout_of(self.settings) - self._waited)
        with ExitStack() as stack:
            started = time.monotonic()
            try:
                held = stack.enter_context(store.lock(patience, command, sweep=sweep))
            finally:
                self._waited += time.monotonic() - started
            if held.note is not None:
                self.reporter.step(held.note)
            yield store

    @property
    def has_spark(self) -> bool:
        """Whether Spark is up already."""
        return self._spark is not None or self._sessions.is_running

    def spark(self) -> SparkSession:
        """The Spark session, started on first use."""
        if self._spark is None:
            if not self.has_spark:
                self.reporter.step("starting Spark")
                # Its process needs memory, of which the engine may have taken all that it may.
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
        """Spark's settings: those of the profile asked for before those of the file."""
        profile = self.settings.spark_profile
        extra = None if profile is None else load_spark_profile(profile, os.environ)
        return spark_of(self.workload, extra)

    @property
    def session_zone(self) -> str:
        """The time zone of the Spark session."""
        return self.spark_spec.conf.get("spark.sql.session.timeZone", "UTC")

    @cached_property
    def clock(self) -> Clock:
        """What time it is, for the whole run."""
        return self.time()

    def time(self) -> Clock:
        """What time it is at this moment."""
        from impctl.sql.parameters import Clock, instant_of

        written = self.settings.now
        zone = self.session_zone
        result = datetime.now(UTC) if written is None else instant_of(written, zone)
        return Clock(result, zone, given=self._given)

    def look_at_clock_again(self) -> None:
        """Have the run go on at the instant of now, unless it was told another.

        Another process may have brought a sketch to a later instant, while this one waited for it.
        """
        if self.settings.now is None:
            self.clock = self.time()

    def give(self, params: Sequence[str]) -> None:
        """Values NAME=VALUE for parameters that move; before anything asks the clock.

        UsageError for one that no query has.
        """
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
        """The policy that holds for a query in this run."""
        return policy_of(self.settings, spec)

    def queries(self, names: Sequence[QueryName] | None) -> tuple[QuerySpec, ...]:
        """The queries asked for, all without names; UsageError for one the file does not have."""
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

    def sketched(self, names: Sequence[QueryName] | None) -> tuple[QuerySpec, ...]:
        """Those of the queries asked for that are to have a sketch."""
        return tuple(spec for spec in self.queries(names) if spec.is_sketched)

    def close(self) -> None:
        """Close what was opened; the Spark session stays with the process."""
        if self._store is not None:
            self._store.close()
            self._store = None


@contextmanager
def open_workbench(
    settings: Settings,
    reporter: Reporter | None = None,
    sessions: Sessions | None = None,
    memory: Memory | None = None,
    answers: ToldAnswers | None = None,
) -> Iterator[Workbench]:
    """The workbench for one run; WorkloadError lists everything wrong with the file."""
    memory = Memory() if memory is None else memory
    workload = memory.workload(settings.workload, os.environ)
    desk = Workbench(settings, workload, reporter or SilentReporter(), sessions, memory, answers)
    try:
        yield desk
    finally:
        desk.close()
        if answers is None:
            desk.answers.write()
