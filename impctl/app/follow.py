"""Use case: keep stored sketches up to date for as long as the process runs.

Law: each run is what `maintain` does, under the same policies, and takes the writer's lock only
while it works; between runs nothing is held but memory. A query that fails stops neither the others
nor the process: where the reason may pass (a lock, storage) it is tried again at a time of its own,
and the others go on meanwhile. A workload file that changes ends the process, so that nothing is
ever read anew in silence.
Out of scope: signals and lines (`cli`), state in memory (`app.maintaining.kept_states`), looking
(`app.maintaining.watch`), when a run is due (`app.maintaining.due`), and what failed
(`app.maintaining.retries`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from impctl.app.maintain import maintain
from impctl.app.maintaining.due.following import Followed
from impctl.app.maintaining.due.when import Due
from impctl.app.maintaining.kept_states import KeptStates
from impctl.app.maintaining.retries import Retries
from impctl.app.maintaining.watch import Watch
from impctl.app.results.amounts import duration_text
from impctl.app.results.ending import gravest
from impctl.app.results.followed_run import FollowedRun
from impctl.app.results.results import Failure, MaintainResult, Outcome
from impctl.app.workbench.memory_limit import memory_of
from impctl.app.workbench.reporter import Reporter
from impctl.app.workbench.settings import FollowRequest, Settings
from impctl.app.workbench.workbench import Workbench, open_workbench
from impctl.errors import ImpctlError, RetryableError, UsageError
from impctl.stopwatch import Stopwatch
from impctl.types import QueryName
from impctl.values import dataclass
from impctl.workload.models import QuerySpec


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
