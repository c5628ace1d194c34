"""What every call on an opened workload is: a run of its own, on what file and tables are then.

Law: each call reads the workload file, pins the newest version of every table it needs, and closes
what it opened, so an object that lives for days never answers from old versions; what stays in
memory is held against file, tables and store before it is used. Calls of several threads on one
object run one after another.
Out of scope: the calls (`api.open_workload`), how failures are raised (`api.settle`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from impctl.api.settle import settled
from impctl.errors import UsageError
from impctl.service.context import (
    Memory,
    OpenTables,
    SessionBeside,
    ToldAnswers,
    Workbench,
    open_workbench,
)
from impctl.service.results import Outcome, Result
from impctl.service.settings import Settings
from impctl.types import QueryName

if TYPE_CHECKING:
    from impctl.service.decide import KeptStates

KEPT_BYTES = 256 << 20
"""State that stays in memory from one `maintain` to the next; larger state is loaded each time."""

R = TypeVar("R")
T = TypeVar("T")

Progress = Callable[[str, int, int], None]
"""Told what begins now: a short line, and which step of how many (0, 0 where that is not known)."""


class _Told:
    """A reporter that passes on what it is told."""

    spark_log = "off"

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    def step(self, message: str, done: int = 0, total: int = 0) -> None:
        if self._progress is not None:
            self._progress(message, done, total)

    def finished(self, result: Result, done: int, total: int) -> None:
        """Nothing: the call returns it."""


class Opened:
    """A workload file that is open: what its calls share, and how each is run."""

    def __init__(
        self, settings: Settings, sessions: SessionBeside, progress: Progress | None
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._reporter = _Told(progress)
        self._memory = Memory()
        self._answers = ToldAnswers()
        self._tables = OpenTables()
        self._states: KeptStates | None = None
        self._lock = threading.RLock()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<impctl workload {self._settings.workload}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def file(self) -> Path:
        """The workload file."""
        return self._settings.workload

    @property
    def queries(self) -> tuple[QueryName, ...]:
        """Names of the queries that the file has now."""
        return self._run(lambda desk: tuple(desk.workload.queries))

    def close(self) -> None:
        """End the use of this object; Spark goes on running, whoever started it."""
        with self._lock:
            self._is_closed = True
            self._states = None
            self._answers.write()

    def _kept_states(self) -> KeptStates:
        """State of the calls before; the engine is loaded when it is first needed."""
        from impctl.service.decide import KeptStates

        if self._states is None:
            self._states = KeptStates(KEPT_BYTES)
        return self._states

    def _each(
        self,
        kind: type[R],
        use_case: Callable[[Workbench], Outcome],
        queries: tuple[QueryName, ...] | Callable[[Workbench], int],
        *,
        dry_run: bool = False,
        changes: Path | None = None,
    ) -> tuple[R, ...]:
        """The records of the queries named (none: all), or of so many as that counts."""

        def work(desk: Workbench) -> tuple[Outcome, int]:
            result = use_case(desk)
            return result, queries(desk) if callable(queries) else len(desk.queries(queries))

        outcome, asked = self._run(work, dry_run=dry_run, changes=changes)
        return settled(outcome, kind, asked)

    def _one(self, kind: type[R], use_case: Callable[[Workbench], Outcome]) -> R:
        (result,) = settled(self._run(use_case), kind, 1)
        return result

    def _run(
        self,
        work: Callable[[Workbench], T],
        *,
        dry_run: bool = False,
        changes: Path | None = None,
    ) -> T:
        """One run on the workload as it is now, and on the tables as they are now."""
        settings = replace(self._settings, dry_run=dry_run, changes=changes)
        with self._lock, self._sessions.visit():
            if self._is_closed:
                raise UsageError(
                    f"Workload {self.file} was closed",
                    hint="open it again with `impctl.open`",
                    code="workload_closed",
                )
            run = open_workbench(
                settings, self._reporter, self._sessions, self._memory, self._answers
            )
            with run as desk:
                self._tables.lend(desk)
                result = work(desk)
                self._tables.take_back(desk)
                return result
