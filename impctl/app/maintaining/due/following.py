"""The queries of a process that follows, as their triggers have them.

Law: queries on `commit` are run whenever something is new, as ever; the others when the timetable
says, from what the last look found. After each run there is a look at the versions it pinned, so
that nothing which a run saw is new to nobody. A look that fails changes nothing.
Out of scope: whether anything is new (`app.maintaining.watch`), running (`app.follow`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from impctl.app.maintaining.due.looking import looked_at, now_of
from impctl.app.maintaining.due.pending import CommitLog
from impctl.app.maintaining.due.timetable import Timetable
from impctl.app.maintaining.due.when import Due, shortest_bounds
from impctl.app.workbench.settings import DEFAULT_MAX_WAIT, FollowRequest
from impctl.app.workbench.workbench import Workbench
from impctl.errors import ImpctlError
from impctl.types import QueryName
from impctl.workload.models import ON_COMMIT, QuerySpec, Trigger

MAX_WAIT_DEPRECATED = "max_wait_deprecated"
_DEPRECATED = (
    "`--max-wait` is deprecated: write `trigger: {fresh_within: ...}` in the workload file"
    f" [{MAX_WAIT_DEPRECATED}]"
)


def followed_trigger(spec: QuerySpec, request: FollowRequest) -> Trigger:
    """The query's trigger: its own, else what the flags say, else each commit."""
    if spec.trigger is not None:
        return spec.trigger
    if request.pending_rows is None and request.max_wait is None:
        return ON_COMMIT
    wait = DEFAULT_MAX_WAIT if request.max_wait is None else request.max_wait
    return Trigger(rows=request.pending_rows, fresh_within=wait)


class Followed:
    """Queries on `commit`, and the timetable of the others."""

    def __init__(self, specs: Sequence[QuerySpec], request: FollowRequest) -> None:
        self._triggers = {spec.name: followed_trigger(spec, request) for spec in specs}
        self._timed = [spec for spec in specs if not self._triggers[spec.name].is_on_commit]
        self._look = request.interval
        self._log = CommitLog()
        self._timetable = Timetable(request.interval)
        self._warned: set[tuple[str, str]] = set()
        self._warnings = [] if request.max_wait is None else [_DEPRECATED]
        self._untold = list(self._warnings)
        self.on_commit = tuple(n for n, trigger in self._triggers.items() if trigger.is_on_commit)
        self.timed = frozenset(spec.name for spec in self._timed)

    @property
    def has_timed(self) -> bool:
        """Whether any query waits for something else than a commit."""
        return bool(self._timed)

    def told(self) -> str:
        """What the queries wait for, in a few words."""
        return "; ".join(f"{spec.name}: {self._triggers[spec.name].text}" for spec in self._timed)

    def look(self, desk: Workbench) -> bool:
        """See what is pending at the versions that `desk` has pinned; whether that went well."""
        try:
            waiting = looked_at(desk, self._timed, self._look, self._log, self._triggers)
        except ImpctlError:
            return False
        self._timetable.saw(waiting)
        for one in waiting:
            for code, text in shortest_bounds(one, self._timetable.pace):
                if (code, one.query) not in self._warned:
                    self._warned.add((code, one.query))
                    self._warnings.append(f"{text} [{code}]")
                    self._untold.append(self._warnings[-1])
        return True

    def due(self, desk: Workbench, put_off: Collection[QueryName]) -> list[Due]:
        """What is due by the timetable, the earliest deadline first."""
        return self._timetable.due(now_of(desk), put_off) if self._timed else []

    def pause(self, desk: Workbench) -> float | None:
        """Seconds until the next start; None where none is in sight. Never less than 0."""
        now = now_of(desk)
        start = self._timetable.next_start(now)
        return None if start is None else max(0.0, start - now)

    def ran(
        self,
        desk: Workbench,
        done: Sequence[Due],
        took: float,
        *,
        failed: Collection[QueryName],
        put_off: Collection[QueryName],
    ) -> float | None:
        """Note a run that is over; milliseconds it was late, None where nothing had a bound.

        What is `put_off` of what `failed` is tried again at a time of its own.
        """
        now = now_of(desk)
        late = self._timetable.ran(done, now, took, failed=failed, put_off=put_off)
        return None if late is None else late * 1000

    def untold(self) -> list[str]:
        """The same warnings for who reads along, each as soon as it is known."""
        result, self._untold = self._untold, []
        return result

    def warnings(self) -> tuple[str, ...]:
        """What is to be told since this was asked last."""
        result, self._warnings = tuple(self._warnings), []
        return result
