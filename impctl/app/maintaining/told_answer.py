"""What came and went of a query's answer in a step that is about to be committed.

Law: told of the very rows that the commit holds, against those of the commit before; a query whose
rows were not kept before, or are not after, is refused before anything is done, never told by half.
Out of scope: making changes of rows (`app.maintaining.answer_changes`), files (`app.maintaining.
change_files`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from impctl.app.capturing.chosen_way import is_same_circuit
from impctl.app.capturing.definition import check_definition
from impctl.app.capturing.moments import stored_moments
from impctl.app.maintaining.answer_changes import (
    RowsOf,
    changes_between,
    changes_by_rows,
)
from impctl.app.maintaining.change_files import ChangeFiles, Lead, answer_not_kept
from impctl.app.preparing.prepared import prepare
from impctl.app.workbench.workbench import Workbench
from impctl.compile.answers import kept_rows
from impctl.compile.compile import Way, compile_answer
from impctl.compile.session import MaintainedQuery, TouchedQuery
from impctl.engine.batch import Batch
from impctl.engine.result_rows import AnswerRows
from impctl.errors import RecaptureNeededError
from impctl.rules.finalize import Ending
from impctl.store.reader import StoreReader
from impctl.store.records import StoredQuery
from impctl.types import QueryName, TableName
from impctl.workload.models import QuerySpec

if TYPE_CHECKING:
    import pyarrow as pa


class Sink(Protocol):
    """Where changes go; `write` gives the file, if it is one."""

    def write(self, lead: Lead, changes: pa.Table) -> Path | None:
        """Take the changes of one step."""
        ...


class NotedStep:
    """One step watched: made before it, asked after it."""

    def __init__(self, kept: AnswerRows, before: Ending, after: Ending) -> None:
        """The answers differ where the step follows the clock."""
        self._kept = kept
        self._after = after
        is_compared = after.is_cut or before is not after
        self._before = RowsOf(before, _named_for(before, kept)) if is_compared else None
        self._change: Batch | None = None
        kept.note()

    def changes(self, zone: str) -> pa.Table:
        """What came and went."""
        change, kept = self._noted(), self._kept
        if self._before is None:
            return changes_by_rows(self._after, change, kept.bounded, zone)
        return changes_between(self._before, RowsOf(self._after, kept.whole(), kept.bounded), zone)

    def rows_before(self) -> Batch:
        """The rows kept before the step, which may have broken off."""
        return self._kept.before(self._noted())

    def _noted(self) -> Batch:
        if self._change is None:
            self._change = self._kept.noted()
        return self._change


class ToldAnswer:
    """Hands on what came and went of one query's answer, commit by commit."""

    def __init__(
        self, sink: Sink, zone: str, way: Way, before: Ending | None, written: list[str]
    ) -> None:
        """`way` is that of the steps; `before` the answer before the first one, if another.

        Files are added to those `written`.
        """
        assert way.answer is not None
        assert way.compiled is not None
        assert way.compiled.kept is not None
        self._sink, self._zone = sink, zone
        self._kept, self._ending = way.compiled.kept, way.answer.ending
        self._before = self._ending if before is None else before
        self.noted: NotedStep | None = None
        self._written = written

    def begin(self) -> None:
        """A step begins."""
        self.noted = NotedStep(self._kept, self._before, self._ending)
        self._before = self._ending

    def tell(self, lead: Lead) -> None:
        """The step is about to be committed."""
        assert self.noted is not None
        path = self._sink.write(lead, self.noted.changes(self._zone))
        if path is not None:
            self._written.append(str(path))


class ToldRecapture:
    """Writes what came and went of an answer that is captured anew."""

    def __init__(
        self, files: ChangeFiles, zone: str, before: RowsOf, lead: Lead, written: list[str]
    ) -> None:
        self._files, self._zone = files, zone
        self._before, self._lead = before, lead
        self._written = written

    def tell(self, way: Way, state: MaintainedQuery | TouchedQuery | None) -> None:
        """The capture is about to be committed."""
        # What filled the state may be another circuit than the way's, made alike.
        kept = state.compiled.kept if isinstance(state, MaintainedQuery) else None
        if way.answer is None or kept is None:
            raise not_told(self._lead.query, way.no_answer or way.reason)
        after = RowsOf(way.answer.ending, kept.whole(), kept.bounded)
        changes = changes_between(self._before, after, self._zone)
        self._written.append(str(self._files.write(self._lead, changes)))


def rows_kept(desk: Workbench, store: StoreReader, spec: QuerySpec, stored: StoredQuery) -> RowsOf:
    """The rows that are kept with the newest sketch of a query, and its answer as it stood then.

    UsageError where none are kept; RecaptureNeededError where they are of another reading of it.
    """
    check_kept(spec, stored)
    check_definition(desk, spec, stored)
    prepared = prepare(desk, spec, stored_moments(stored))
    if not is_same_circuit(desk, prepared, stored):
        raise not_told(spec.name, "its plan is different now")
    answer = desk.memory.answer(prepared.planned)
    trees: Mapping[TableName, int] | None = {} if stored.state_meta.get("trees") else None
    kept = compile_answer(answer, trees).kept
    assert kept is not None
    kept.load(store.load_runs(stored.query, kept.beginning))
    return RowsOf(answer.ending, kept.whole(), kept.bounded)


def check_kept(spec: QuerySpec, stored: StoredQuery) -> None:
    """UsageError where the store has no rows of the query's answer."""
    if not stored.state_meta.get("answer"):
        raise answer_not_kept(spec)


def not_told(query: QueryName, why: str) -> RecaptureNeededError:
    """The error for a commit that would leave out what came and went."""
    return RecaptureNeededError(
        f"The changes of the result of query `{query}` are unknown: {why}",
        code="changes_unknown",
        hint=f"run `impctl capture --query {query}`, read the whole result (`impctl changes "
        "--all`), and continue from there",
    )


def _named_for(ending: Ending, kept: AnswerRows) -> Batch:
    """The rows by the names of the answer whose circuit left the state that they come from."""
    rows = kept.whole()
    names = [name for name, _ in kept_rows(ending).columns]
    held = [rows.columns[name] for name, _ in kept.columns] if len(rows) else []
    return Batch(dict(zip(names, held, strict=True)) if held else {}, rows.weights, ())
