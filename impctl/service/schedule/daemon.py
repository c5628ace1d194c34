"""Follow: keep stored sketches current for as long as the process runs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sortedcontainers import SortedKeyList

from impctl.errors import ImpctlError, RetryableError, UsageError
from impctl.service.context import Reporter, Workbench, open_workbench
from impctl.service.decide import KeptStates
from impctl.service.maintain import maintain
from impctl.service.memory_limit import memory_of
from impctl.service.outcome import gravest
from impctl.service.results import Failure, FollowedRun, MaintainResult, Outcome
from impctl.service.schedule.timetable import Followed
from impctl.service.stored import expires
from impctl.service.text import duration_text
from impctl.sql.parameters import HOUR, NEVER, RUN
from impctl.stopwatch import Stopwatch
from impctl.store.catalog import catalog_mark
from impctl.tables.log import Seen, has_new_log, log_end, pinned_anew
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.service.schedule.due import Due
    from impctl.service.settings import FollowRequest, Settings
    from impctl.tables.source import DeltaSource
    from impctl.types import QueryName, TableName
    from impctl.workload.models import QuerySpec

_LONGEST_PAUSE = 60.0
"""Seconds between two tries at most, unless the first pause is longer."""
_MOST_DOUBLINGS = 64


@dataclass(frozen=True, slots=True)
class _PutOff:
    """A query, when it is tried again, and how often in a row it has failed."""

    query: QueryName
    due: float
    tries: int


class Retries:
    """The queries put off; times are seconds of a clock that never goes back."""

    def __init__(self, first_pause: float) -> None:
        self._first = first_pause
        self._longest = max(_LONGEST_PAUSE, first_pause)
        self._of: dict[QueryName, _PutOff] = {}
        self._by_due = SortedKeyList(key=lambda held: held.due)

    def next_due(self) -> float | None:
        """When the first of them is tried again; None where all is well."""
        return self._by_due[0].due if self._by_due else None

    def waiting(self, now: float) -> frozenset[QueryName]:
        """Those whose time has not come."""
        later = self._by_due.irange_key(min_key=now, inclusive=(False, True))
        return frozenset(held.query for held in later)

    def went_well(self, query: QueryName) -> None:
        """The query is not put off any more."""
        held = self._of.pop(query, None)
        if held is not None:
            self._by_due.remove(held)

    def failed(self, queries: Iterable[QueryName], now: float) -> float | None:
        """Put these off; seconds until the first of them is tried again."""
        # Processes that failed at the same moment do not come back at the same moment.
        share = random.uniform(0.5, 1.0)
        pauses = []
        for query in queries:
            before = self._of.get(query)
            tries = 0 if before is None else min(before.tries, _MOST_DOUBLINGS)
            pauses.append(share * min(self._longest, self._first * 2.0**tries))
            self.went_well(query)
            self._of[query] = _PutOff(query, now + pauses[-1], tries + 1)
            self._by_due.add(self._of[query])
        return min(pauses, default=None)


_LONGEST_QUIET = 600.0
"""Seconds after which a run opens everything anew, whatever a look says: for tables in object
stores that were replaced, and for queries that failed and were mended from outside."""


class Watch:
    """Tables and store as the last run left them."""

    def __init__(self) -> None:
        self._seen: dict[TableName, Seen] = {}
        self._stuck: dict[TableName, object] = {}
        """How the logs end that the last run could not open; None of one that cannot be read."""
        self._ends: dict[TableName, object] = {}
        """How those end that could not be opened right before a run: the run may find others."""
        self._store: object = None
        self._hour = ""
        self._expires: str | None = None
        self._looked_anew: float | None = None

    def pinned(self) -> list[DeltaSource]:
        """The tables at their newest versions, for a run; one that cannot be read is left out.

        From time to time none, so that all are opened anew.
        """
        now, self._ends = time.monotonic(), {}
        if self._looked_anew is None or now - self._looked_anew >= _LONGEST_QUIET:
            self._looked_anew = now
            return []
        result = []
        for name, known in self._seen.items():
            try:
                result.append(pinned_anew(known))
            except ImpctlError:
                # The run opens it anew, and tells for the queries that read it what is wrong. What
                # was read of it here may be part of another log: nothing is added to that.
                self._seen[name] = replace(known, mark=None)
                self._ends[name] = _end(known)
        return result

    def saw(self, desk: Workbench) -> None:
        """Remember what a run worked on, once it is over, as it was when the run pinned it.

        Another log may have taken its place since; what is seen of that must not pass for it.
        """
        self._seen.update(desk.tables.seen)
        self._stuck = {
            name: end for name, end in self._ends.items() if name not in desk.tables.seen
        }
        self._hour = desk.clock.text(HOUR)
        # To read the store may change how its files lie there.
        self._expires = _next_expiry(desk)
        self._store = catalog_mark(desk.store_path)

    def is_due(self, desk: Workbench) -> bool:
        """Whether a run may have something to do."""
        now = time.monotonic()
        if self._looked_anew is None or now - self._looked_anew >= _LONGEST_QUIET:
            return True
        if self._store != catalog_mark(desk.store_path) or self._hour != desk.time().text(HOUR):
            return True
        if self._expires is not None and desk.time().text(RUN) >= self._expires:
            return True
        try:
            return any(self._has_moved(known) for known in self._seen.values())
        except ImpctlError:
            return True

    def _has_moved(self, known: Seen) -> bool:
        """Whether the table is another one than the last run worked on, or could not open."""
        name = known.source.name
        if name in self._stuck and self._stuck[name] == _end(known):
            return False
        return has_new_log(known)


def _next_expiry(desk: Workbench) -> str | None:
    """When the first row expires after the run's instant, as its queries have it; None for never.

    What is past that expired for a query that failed, and waits as other failures do.
    """
    if all(table.expiry is None for table in desk.workload.tables.values()):
        return None
    # That of the run may be closed.
    own, result = desk.next_run(()), []
    try:
        for spec in desk.sketched(None):
            # What cannot be read its own run tells.
            with suppress(ImpctlError):
                store = own.reading_store()
                stored = None if store is None else store.load(spec.name)
                result += [] if stored is None else [expires(stored)]
    finally:
        own.close()
    # Texts in one form and zone: in their order.
    later = [at for at in result if at not in ("", NEVER) and at > desk.clock.text(RUN)]
    return min(later, default=None)


def _end(known: Seen) -> object:
    try:
        return log_end(known)
    except ImpctlError:
        return None


class Stop(Protocol):
    """How the process is asked to end."""

    @property
    def is_asked(self) -> bool:
        """Whether it was asked."""

    def wait(self, seconds: float) -> None:
        """Wait; returns early when asked to end."""

    def working(self) -> AbstractContextManager[None]:
        """The time of one run, which may be finished after the process was asked to end."""


Show = Callable[[Outcome, FollowedRun], None]
"""Told of every run that had something to do."""


def follow(
    settings: Settings,
    queries: Sequence[QueryName] | None,
    request: FollowRequest,
    *,
    batch_rows: int | None,
    reporter: Reporter,
    stop: Stop,
    show: Show,
) -> None:
    """Maintain the queries named (default: all) whenever their tables change, until asked to end.

    RetryableError where the workload file changed; UsageError where it was wrong to begin with.
    """
    files = Files.of(settings)
    with open_workbench(settings, reporter) as desk:
        specs = desk.sketched(queries)
        kept = KeptStates(memory=memory_of(settings, desk.workload))
        following = _Following(desk, specs, batch_rows, request, kept=kept)
        reporter.step(
            f"following {', '.join(spec.name for spec in specs)} of {settings.workload}, "
            f"checking every {duration_text(request.interval * 1000)}{following.waits_for()}"
        )
        while not stop.is_asked:
            files.check()
            ready, due = following.due()
            if ready or due:
                with stop.working():
                    following.run(ready, due, show)
            if request.max_runs is not None and following.runs >= request.max_runs:
                return
            stop.wait(following.pause())


@dataclass(slots=True)
class _Following:
    """The runs of one process; `desk` is never run itself, each run has one of its own."""

    desk: Workbench
    specs: Sequence[QuerySpec]
    batch_rows: int | None
    request: FollowRequest
    watch: Watch = field(init=False)
    retries: Retries = field(init=False)
    followed: Followed = field(init=False)
    kept: KeptStates = field(default_factory=KeptStates)
    runs: int = 0
    has_looked: bool = False
    """Whether what the watch saw last is known to the timetable, too."""

    def __post_init__(self) -> None:
        self.watch = Watch()
        self.retries = Retries(self.request.interval)
        self.followed = Followed(self.specs, self.request)

    def waits_for(self) -> str:
        """What queries wait for that are not maintained after each commit."""
        return f" ({self.followed.told()})" if self.followed.has_timed else ""

    def due(self) -> tuple[list[QueryName], list[Due]]:
        """What to run now: queries on `commit` where something is new or is to be tried again, and
        what the timetable has.

        Of the former all but what is put off go with every run: the watch asks whether a table
        moved since the last one, so a run must leave none behind of which it would not hear again.
        """
        now, next_due = time.monotonic(), self.retries.next_due()
        waiting = self.retries.waiting(now)
        has_retry = next_due is not None and next_due <= now
        ready = [name for name in self.followed.on_commit if name not in waiting]
        is_asked = bool(ready) or self.followed.has_timed
        is_new = is_asked and (has_retry or self.watch.is_due(self.desk))
        if self.followed.has_timed and (is_new or not self.has_looked):
            self._look()
        due = self.followed.due(self.desk, waiting)
        for name in self.followed.timed.difference(waiting, (one.query for one in due)):
            # Put off no more, and yet not due: another process maintained it.
            self.retries.went_well(name)
        return (ready if is_new or due else []), due

    def pause(self) -> float:
        """Seconds until the next look, or the next start."""
        next_due, start = self.retries.next_due(), self.followed.pause(self.desk)
        pauses = [self.request.interval]
        if next_due is not None:
            pauses.append(max(0.0, next_due - time.monotonic()))
        if start is not None:
            pauses.append(start)
        return min(pauses)

    def run(self, ready: Sequence[QueryName], due: Sequence[Due], show: Show) -> None:
        """One run over these queries, shown if it had anything to do."""
        at, watch = datetime.now(UTC), Stopwatch()
        queries = [*ready, *(one.query for one in due)]
        outcome, retry, late_ms = self._maintained(queries, due)
        elapsed_ms = watch.ms
        done = tuple(r for r in outcome.results if not _is_nothing(r))
        if not done and not outcome.failures:
            self.desk.reporter.step("waiting for changes: nothing new")
            return
        self.runs += 1
        decisive = gravest(outcome)
        entry = FollowedRun(
            number=self.runs,
            started_at=at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            elapsed_ms=elapsed_ms,
            exit_code=0 if decisive is None else decisive.error.exit_code,
            retry_ms=None if retry is None else retry * 1000,
            late_ms=late_ms,
        )
        warnings = (*outcome.warnings, *self.followed.warnings())
        show(replace(outcome, results=done, warnings=warnings), entry)
        self.desk.reporter.step(f"waiting for changes, {self.runs} runs so far")

    def _look(self) -> None:
        """See what is pending, without a run; what could not be seen stays new."""
        desk = self.desk.next_run(self.watch.pinned())
        try:
            self.has_looked = self.followed.look(desk)
            if self.has_looked:
                self.watch.saw(desk)
            for text in self.followed.untold():
                self.desk.reporter.step(text)
        finally:
            desk.close()
            self.desk.take_spark_of(desk)

    def _maintained(
        self, queries: Sequence[QueryName], due: Sequence[Due]
    ) -> tuple[Outcome, float | None, float | None]:
        """What `maintain` does, with what stands against the whole run as its failure; then the
        pause before the next try, and by how much the run was late."""
        desk, watch = self.desk.next_run(self.watch.pinned()), Stopwatch()
        try:
            outcome = self._outcome(desk, queries)
            retry = self._put_off(queries, outcome)
            names = {one.query for one in due}
            others = _worked_ms(outcome, lambda query: query not in names)
            late_ms = self.followed.ran(
                self.desk,
                due,
                max(0.0, watch.ms - others) / 1000,
                failed=_failed(queries, outcome.failures),
                put_off=self.retries.waiting(time.monotonic()),
            )
            if self.followed.has_timed:
                self.has_looked = self.followed.look(desk)
            return outcome, retry, late_ms
        finally:
            desk.close()
            self.watch.saw(desk)
            self.desk.take_spark_of(desk)

    def _outcome(self, desk: Workbench, queries: Sequence[QueryName]) -> Outcome:
        try:
            return maintain(desk, queries, self.batch_rows, self.kept)
        except UsageError:
            raise
        except ImpctlError as error:
            return Outcome(failures=(Failure(None, error),))

    def _put_off(self, queries: Sequence[QueryName], outcome: Outcome) -> float | None:
        """Seconds before the next try; None where nothing failed that a later try may cure."""
        may_pass = [one for one in outcome.failures if isinstance(one.error, RetryableError)]
        failed = _failed(queries, may_pass)
        for name in queries:
            if name not in failed:
                self.retries.went_well(name)
        return self.retries.failed(failed, time.monotonic())


def _failed(queries: Sequence[QueryName], failures: Sequence[Failure]) -> list[QueryName]:
    """Which of the queries failed; what stands against the whole run stands against each."""
    told = {failure.query for failure in failures}
    return [name for name in queries if name in told or None in told]


def _worked_ms(outcome: Outcome, is_asked: Callable[[QueryName], bool]) -> float:
    """Milliseconds that the steps of some queries took; sketches of one query share theirs."""
    took = {
        result.query: result.elapsed_ms
        for result in outcome.results
        if isinstance(result, MaintainResult) and is_asked(result.query)
    }
    return sum(took.values())


def _is_nothing(result: object) -> bool:
    return isinstance(result, MaintainResult) and result.action == "none"


@dataclass(frozen=True, slots=True)
class Files:
    """The files that say what to do, as they were before they were read."""

    contents: tuple[tuple[Path, bytes | None], ...]

    @classmethod
    def of(cls, settings: Settings) -> Files:
        paths = (settings.workload, settings.spark_profile)
        return cls(tuple((path, _content(path)) for path in paths if path is not None))

    def check(self) -> None:
        """RetryableError where one of them is another one now."""
        for path, content in self.contents:
            if _content(path) != content:
                raise RetryableError(
                    f"File `{path}` changed while `--follow` was running",
                    code="workload_changed",
                    hint="start again to use the new file; a service manager can do this",
                )


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
