"""One query on a scratch copy whose sketch follows its tables, in one process.

Law: a step is what `maintain` does for one query once its process is up: finding the newest
versions, reading their changes, the engine, the durable commit. State stays in memory between steps
and the caller holds the store's lock; so starting a process, loading the state, taking the lock and
deciding by the policy do not count here (they do in `benchmarks.fresh_process`).
Out of scope: changing the tables, choosing when to follow (`measure.measured`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from impctl.errors import UnsupportedError
from impctl.service.capture import capture_query
from impctl.service.decide import Moved
from impctl.service.fill import needed, recaptured
from impctl.service.maintenance_plan import chooser_of, chosen_way, restored_verdict
from impctl.service.partners import partners_of
from impctl.service.prepare import PreparedQuery, prepare
from impctl.service.query_state import TakenUp
from impctl.service.step import Maintainer, StepDone
from impctl.service.stored import StateMeta
from impctl.service.table_deltas import need_of
from impctl.sketch.sketch import FragmentSet, Mode, compare
from impctl.stopwatch import Stopwatch
from impctl.tables.changes import read_changes
from impctl.tables.log import commit_mark
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.compile.compile import Way
    from impctl.service.context import Workbench
    from impctl.store.records import StoredQuery
    from impctl.tables.snapshot import Snapshot
    from impctl.types import AccessId, TableName
    from impctl.workload.models import QuerySpec


@dataclass(frozen=True, slots=True)
class Followed:
    """One step: its parts in milliseconds, and what it did."""

    read_ms: float
    done: StepDone

    @property
    def total_ms(self) -> float:
        """Reading, engine and commit."""
        return self.read_ms + self.done.engine_ms + self.done.commit_ms


@dataclass(frozen=True, slots=True)
class AgainstRecapture:
    """The sketches of a query against recapture."""

    covers: bool
    slack: int


def worse_of(one: AgainstRecapture, other: AgainstRecapture) -> AgainstRecapture:
    """What holds of both."""
    return AgainstRecapture(one.covers and other.covers, max(one.slack, other.slack))


class Follower:
    """A stored query taken up; `captured` makes one. What only recapture keeps has a sketch to use
    and to recapture; only `taken`, and with it `follow`, is refused."""

    def __init__(self, scratch: Workbench, prepared: PreparedQuery) -> None:
        self.scratch = scratch
        self.prepared = prepared
        stored = scratch.store().load(prepared.spec.name)
        assert stored is not None, "a follower loads the captured state"
        self.verdict, self.partitions = restored_verdict(scratch.tables, prepared, stored)
        self._captured = stored
        self._way = self._way_of(stored)
        self._taken = self._taken_up(stored)
        self._endings: dict[TableName, Snapshot] = {
            table: scratch.tables.snapshot(table, version)
            for table, version in stored.versions.items()
        }

    def _way_of(self, stored: StoredQuery) -> Way:
        meta = StateMeta.read(stored.query, stored.state_meta)
        chooser = chooser_of(self.prepared, meta)
        return chosen_way(self.prepared, self.verdict, self.partitions, chooser)

    def _taken_up(self, stored: StoredQuery) -> TakenUp | None:
        if self._way.mode is Mode.RECAPTURE:
            return None
        return TakenUp(self._way, stored, self.scratch.store().load_runs(stored.query))

    @property
    def taken(self) -> TakenUp:
        """The state that carries changes; UnsupportedError where only recapture keeps the query."""
        if self._taken is None:
            raise UnsupportedError(
                f"Query `{self._captured.query}` can only be recaptured, so there is nothing to "
                f"compare: {self._way.reason}",
                code="not_incremental",
                hint="`impctl explain` shows the reason",
                location=self.prepared.place(self._way.span),
            )
        return self._taken

    @property
    def stored(self) -> StoredQuery:
        """The query as it is stored now."""
        return self._captured if self._taken is None else self._taken.stored

    @property
    def has_state(self) -> bool:
        """Whether a capture fills operator state too."""
        return self._taken is not None and self._taken.session is not None

    def follow(self) -> Followed | None:
        """Bring the sketch to the newest versions; None where it stands at them."""
        watch = Stopwatch()
        moved = {}
        for table in self.taken.tables:
            source = self.scratch.tables.advance(table)
            if source.version != self.taken.versions[table]:
                moved[table] = self._moved(table)
        if not moved:
            return None
        read_ms = watch.ms
        partners = partners_of(self.scratch, self._way, self.partitions)
        maintainer = Maintainer(self.scratch.store(), self.taken, partners)
        done = maintainer.step(moved, read_ms=read_ms, reason_code="bench", reason="bench")
        return Followed(read_ms, done)

    def _moved(self, table: TableName) -> Moved:
        source = self.scratch.tables.source(table)
        until = source.version
        need = need_of(self.taken, table, until, per_version=False)
        known = self._endings[table]
        changes = read_changes(
            source, need.since, until, need.columns, table_id=need.table_id, known=known
        )
        assert changes.ending is not None
        self._endings[table] = changes.ending
        return Moved(
            changes,
            until,
            changes.ending,
            commit_mark(source, until),
            None,
            lambda: self.scratch.tables.snapshot(table, until),
        )

    def checked(self, accurate: Mapping[AccessId, FragmentSet] | None = None) -> AgainstRecapture:
        """The sketches against those given, else against recapture at their versions."""
        held = {sketch.access: sketch.fragments for sketch in self.stored.sketches}
        if accurate is None:
            sketches = {s.access: (s.partition, s.fragments) for s in self.stored.sketches}
            versions = self.stored.versions
            accurate = needed(self.scratch, self.prepared, self.verdict, sketches, versions)
        relations = [compare(fragments, accurate[a]) for a, fragments in held.items()]
        return AgainstRecapture(all(r.covers for r in relations), sum(r.slack for r in relations))

    def recapture(self) -> Mapping[AccessId, FragmentSet]:
        """The accurate sketches, by the fastest pass of Spark."""
        versions = self.stored.versions
        return recaptured(self.scratch, self.prepared, self.verdict, self.partitions, versions)

    @property
    def state_bytes(self) -> int:
        """Bytes of operator state in memory; 0 where there is none."""
        session = None if self._taken is None else self._taken.session
        return 0 if session is None else session.state_bytes()


def captured(scratch: Workbench, spec: QuerySpec) -> Follower:
    """The query captured at the pinned versions of its tables, and taken up."""
    prepared = prepare(scratch, spec)
    capture_query(scratch, scratch.store(), prepared, code="asked", reason="bench")
    return Follower(scratch, prepared)
