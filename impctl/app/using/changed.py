"""What came and went of an answer: by the state carried on in memory, or by comparing two answers.

Law: nothing is written, and Spark is not started. The rows kept are carried on where `maintain`
could do so without help; else, and between older versions, the engine computes what is missing
from the tables' files. What neither can tell is an error, never a guess.
Out of scope: showing and writing it (`app.changes`), one step (`app.maintaining.ahead`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from impctl.app.capturing.moments import stored_moments
from impctl.app.capturing.pins import catch_up, moved_meanwhile
from impctl.app.capturing.uncaptured import captured_query
from impctl.app.maintaining.ahead import AnswerAhead, Moving, NotCarriedError
from impctl.app.maintaining.answer_changes import RowsOf, changes_between, whole_answer
from impctl.app.maintaining.told_answer import check_kept, rows_kept
from impctl.app.preparing.filters import filters_of
from impctl.app.preparing.prepared import PreparedQuery, prepare
from impctl.app.using.engine_answer import engine_rows
from impctl.app.using.older_versions import AtVersions, still_there, versions_at
from impctl.app.workbench.memory_limit import MemoryLimit, held_to, memory_of
from impctl.app.workbench.workbench import Workbench
from impctl.compile.flows import BlockedError
from impctl.errors import QueryError, UsageError
from impctl.store.reader import StoreReader
from impctl.types import TableName, TableVersion
from impctl.values import dataclass
from impctl.workload.models import AnsweredBy, QuerySpec

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Changed:
    """The changes, between which versions, at which values of the clock, by whom and why so."""

    changes: pa.Table
    since: Mapping[TableName, TableVersion]
    """None of them where the whole answer is told."""
    versions: Mapping[TableName, TableVersion]
    moments: Mapping[str, str]
    by: AnsweredBy
    why: str


class Answer:
    """A query's answer as it was told last, first as it is kept in the store, and what comes next.

    RetryableError where another process moves the store on while it is being read.
    """

    def __init__(self, desk: Workbench, spec: QuerySpec) -> None:
        """UsageError where no rows are kept."""
        self._spec = spec
        self._stored = captured_query(desk, desk.reading_store(), spec)
        check_kept(spec, self._stored)
        catch_up(desk.tables, self._stored)
        self._since: Mapping[TableName, TableVersion] = self._stored.versions
        self._ahead: AnswerAhead | None = None
        self._rows: RowsOf | None = None
        """What the last answer was made of, where no state tells."""
        self._why = ""

    def whole(self, desk: Workbench) -> Changed:
        """The answer as it is kept, as changes from nothing."""
        changes = whole_answer(self._kept(desk), desk.session_zone)
        moments, why = stored_moments(self._stored), "from the materialized result"
        return Changed(changes, {}, self._since, moments, AnsweredBy.STATE, why)

    def next(self, desk: Workbench) -> Changed:
        """What came and went since, up to the versions pinned."""
        if self._rows is None:
            is_first = self._ahead is None
            try:
                if self._ahead is None:
                    self._ahead = self._taken_up(desk)
                return self._carried(self._ahead.on(desk))
            except NotCarriedError as trouble:
                self._why = trouble.message
                # A first step may follow the clock: then what was taken up is of another time.
                self._rows = self._kept(desk) if is_first else self._told_last()
                self._ahead = None
        return self._compared(desk, self._rows)

    def _taken_up(self, desk: Workbench) -> AnswerAhead:
        store = desk.reading_store()
        assert store is not None
        ahead = AnswerAhead(desk, store, self._spec, self._stored)
        self._check_unmoved(store)
        return ahead

    def _kept(self, desk: Workbench) -> RowsOf:
        """The rows in the store."""
        store = desk.reading_store()
        assert store is not None
        rows = rows_kept(desk, store, self._spec, self._stored)
        self._check_unmoved(store)
        return rows

    def _check_unmoved(self, store: StoreReader) -> None:
        now = store.load(self._spec.name)
        if now is None or now.generation != self._stored.generation:
            raise moved_meanwhile(self._spec.name)

    def _told_last(self) -> RowsOf:
        assert self._ahead is not None
        return self._ahead.rows_before()

    def _carried(self, moving: Moving) -> Changed:
        self._since = moving.versions
        why = "from the materialized result, after maintaining it"
        by = AnsweredBy.STATE
        return Changed(moving.changes, moving.since, moving.versions, moving.moments, by, why)

    def _compared(self, desk: Workbench, before: RowsOf) -> Changed:
        """The answer told last against that which the engine computes at the versions pinned."""
        prepared = prepare(desk, self._spec)
        limit = MemoryLimit(memory_of(desk.settings, desk.workload))
        with held_to(limit):
            after = _by_engine(desk, limit, prepared)
        _check_same_columns(self._spec, before, after)
        changes = changes_between(before, after, desk.session_zone)
        since, versions = self._since, desk.tables.versions_of(prepared.tables)
        self._rows, self._since = after, versions
        why = f"the state could not be maintained: {self._why}"
        return Changed(changes, since, versions, prepared.moments, AnsweredBy.ENGINE, why)


def changed_since(desk: Workbench, spec: QuerySpec, at: AtVersions) -> Changed:
    """What came and went since older versions of the tables, by two answers of the engine."""
    prepared = prepare(desk, spec)
    wanted = versions_at(spec, prepared.tables, at, desk.workload.names, option="--since")
    past = desk.next_run(())
    for table, version in wanted.items():
        newest = desk.tables.source(table).version
        if version > newest:
            raise UsageError(
                f"Table `{table}` has no version {version} yet: it is at version {newest}",
                hint=f"give a version up to {newest}",
                code="since_newer",
            )
        with still_there("--since"):
            past.tables.pin_at(table, version)
    # At one instant: what is told is what commits changed.
    prepared_then = prepare(past, spec, prepared.moments)
    limit = MemoryLimit(memory_of(desk.settings, desk.workload))
    with held_to(limit):
        with still_there("--since"):
            before = _by_engine(past, limit, prepared_then)
        after = _by_engine(desk, limit, prepared)
        _check_same_columns(spec, before, after)
        changes = changes_between(before, after, desk.session_zone)
    versions = desk.tables.versions_of(prepared.tables)
    why = "no result is stored for these versions, so both results were computed"
    return Changed(changes, wanted, versions, prepared.moments, AnsweredBy.ENGINE, why)


def _by_engine(desk: Workbench, limit: MemoryLimit, prepared: PreparedQuery) -> RowsOf:
    """The rows of the answer over the tables as they are pinned; QueryError where it cannot."""
    versions = desk.tables.versions_of(prepared.tables)
    pruned = filters_of(desk.tables, prepared, (), versions)
    desk.reporter.step(f"running {prepared.spec.name}")
    try:
        return engine_rows(desk, limit, prepared, versions, pruned)
    except BlockedError as blocked:
        raise QueryError(
            f"The engine cannot run query `{prepared.spec.name}`: {blocked.message}",
            hint="materialize its result (`answer: true`) if `impctl explain` shows that this "
            "is possible, or compare the results of two runs of `impctl query --out`",
            code="engine_cannot",
            location=prepared.place(blocked.span),
        ) from None


def _check_same_columns(spec: QuerySpec, before: RowsOf, after: RowsOf) -> None:
    """UsageError where the answers have other columns, as after a column got another type."""
    forms = [
        [(one.attribute.name, one.attribute.type) for one in rows.ending.outputs]
        for rows in (before, after)
    ]
    if forms[0] != forms[1]:
        raise UsageError(
            f"The result of query `{spec.name}` has other columns now than at the older versions",
            hint="get the whole result with `impctl query`",
            code="answer_columns",
            location=spec.location,
        )
