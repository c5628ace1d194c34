"""Use case: tell what comes and goes of a kept answer for as long as the process runs.

Law: each look tells what came and went since the one before, so that all of them together lead from
the answer of the store's versions, at the start, to the newest one. Only reads, as `app.changes`
does. What may pass (storage, a table replaced while it is read) is tried again; anything else ends
the process, since what would be told after it would not follow from what was told before.
Out of scope: signals and lines (`cli`), looking (`app.maintaining.watch`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from impctl.app.changes import result_of
from impctl.app.follow import Files, Stop
from impctl.app.maintaining.watch import Watch
from impctl.app.results.amounts import duration_text
from impctl.app.results.changed import ChangesResult
from impctl.app.results.followed_run import FollowedRun
from impctl.app.using.changed import Answer, Changed
from impctl.app.using.only_query import only_query
from impctl.app.workbench.reporter import Reporter
from impctl.app.workbench.settings import FollowRequest, Settings
from impctl.app.workbench.workbench import Workbench, open_workbench
from impctl.errors import RetryableError
from impctl.stopwatch import Stopwatch
from impctl.types import QueryName

ShowChanges = Callable[[ChangesResult, FollowedRun], None]
"""Told of every look that found something, and of the whole answer where that is asked for."""


def follow_changes(
    settings: Settings,
    query: QueryName | None,
    request: FollowRequest,
    *,
    whole: bool,
    reporter: Reporter,
    stop: Stop,
    show: ShowChanges,
) -> None:
    """Tell of the changes of one query's answer until asked to end, after the answer if `whole`."""
    files = Files.of(settings)
    with open_workbench(settings, reporter) as desk:
        (spec,) = desk.queries([query if query is not None else only_query(desk)])
        looking = _Looking(desk, Answer(desk, spec), spec.name, request, show)
        reporter.step(
            f"following the result of {spec.name}, checking every "
            f"{duration_text(request.interval * 1000)}"
        )
        if whole:
            looking.tell(lambda answer: answer.whole(desk))
        while not stop.is_asked:
            files.check()
            if request.max_runs is not None and looking.told >= request.max_runs:
                return
            if looking.watch.is_due(desk):
                with stop.working():
                    looking.look()
            stop.wait(request.interval)


class _Looking:
    """The looks of one process."""

    def __init__(
        self,
        desk: Workbench,
        answer: Answer,
        query: QueryName,
        request: FollowRequest,
        show: ShowChanges,
    ) -> None:
        self.desk = desk
        self.answer = answer
        self.query = query
        self.watch = Watch()
        self.told = 0
        self._show = show

    def look(self) -> None:
        """Tell what came and went since the last look, if anything did."""
        desk = self.desk.next_run(self.watch.pinned())
        try:
            self.tell(lambda answer: answer.next(desk))
        except RetryableError as error:
            if error.code == "sketch_moved":
                raise
            self.desk.reporter.step(f"waiting to check again: {error.message}")
            return
        finally:
            desk.close()
        self.watch.saw(desk)

    def tell(self, find: Callable[[Answer], Changed]) -> None:
        """Show what is found."""
        at, watch = datetime.now(UTC), Stopwatch()
        result = find(self.answer)
        if not result.changes.num_rows:
            return
        self.told += 1
        elapsed = watch.ms
        started = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._show(
            result_of(self.query, result, elapsed), FollowedRun(self.told, started, elapsed, 0)
        )
