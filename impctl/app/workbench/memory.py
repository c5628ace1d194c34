"""What a program need not find out twice: its workload file, plans, names of circuits, reuse.

Law: everything here is a function of the arguments it is remembered under, so forgetting it changes
nothing but time. A run of the command line has its own; a workload opened by a program keeps one.
Reading SQL is imported when a query is first read: a run with nothing to do never does.
Out of scope: state of the engine (`app.maintaining.kept_states`), anything that depends on rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from impctl.workload.load import read_text, workload_of
from impctl.workload.models import Workload

if TYPE_CHECKING:
    from impctl.plan.nodes import Plan, Query
    from impctl.reuse.verdict import ReuseVerdict
    from impctl.rules.finalize import AnswerPlan
    from impctl.rules.optimize import PlannedQueries
    from impctl.safety.facts import Fact
    from impctl.types import AccessId, ColumnName

    Sketched = tuple[tuple[AccessId, ColumnName], ...]

_REMEMBERED = 256
"""Entries of each kind, as many as there are plans (`rules.optimize.KEPT`): each keeps its
plans, some tens of kilobytes, also where they were let go."""


class Memory:
    """Workload, plans and verdicts of one program."""

    def __init__(self) -> None:
        self._workload: tuple[tuple[object, ...], Workload] | None = None

    def workload(self, path: Path, env: Mapping[str, str]) -> Workload:
        """The workload in the file, as it is now; errors are those of `workload.load`."""
        text = read_text(path)
        # Paths in it are relative to where it lies.
        told = (path, path.parent.resolve(), text, dict(env))
        if self._workload is None or self._workload[0] != told:
            self._workload = (told, workload_of(path, text, env))
        return self._workload[1]

    @cached_property
    def plans(self) -> PlannedQueries:
        """The queries planned so far."""
        from impctl.rules.optimize import PlannedQueries

        return PlannedQueries()

    def reuse(
        self, asked: Query, captured: Query, sketched: Sketched, facts: Sequence[Fact]
    ) -> ReuseVerdict:
        """The verdict of `reuse.verdict`; arguments as there."""
        return self._judged(asked, captured, sketched, tuple(facts))

    @cached_property
    def _judged(self) -> Callable[[Query, Query, Sketched, tuple[Fact, ...]], ReuseVerdict]:
        from impctl.reuse.verdict import check_reuse

        @lru_cache(maxsize=_REMEMBERED)
        def judge(
            asked: Query, captured: Query, sketched: Sketched, facts: tuple[Fact, ...]
        ) -> ReuseVerdict:
            return check_reuse(asked, captured, dict(sketched), facts)

        return judge

    def answer(self, query: Query) -> AnswerPlan:
        """The query's plan taken apart for its answer."""
        known = self._answers.get(id(query))
        if known is None:
            from impctl.rules.finalize import answer_plan

            if len(self._answers) >= _REMEMBERED:
                self._answers.clear()
            known = self._answers[id(query)] = (query, answer_plan(query))
        return known[1]

    @cached_property
    def _answers(self) -> dict[int, tuple[Query, AnswerPlan]]:
        return {}

    def circuit(self, core: Plan) -> str:
        """The name of the circuit that a plan compiles to, as of `app.capturing.meta`."""
        # By identity: to hash a plan, or compare two, takes as long as to name it. An entry holds
        # its plan, so that no other one can have its id.
        known = self._circuits.get(id(core))
        if known is None:
            from impctl.compile.build import circuit_id

            if len(self._circuits) >= _REMEMBERED:
                self._circuits.clear()
            known = self._circuits[id(core)] = (core, circuit_id(core))
        return known[1]

    @cached_property
    def _circuits(self) -> dict[int, tuple[Plan, str]]:
        return {}
