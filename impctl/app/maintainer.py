"""One stored query taken up again: its changes in, its sketch and state committed.

Law: a step either commits sketch, state and version together or leaves all three as they were.
Assumptions are looked at before anything is computed. Nothing here recaptures; what cannot go on
incrementally raises RecaptureNeededError and the policy decides (`app.maintain`).
Out of scope: reading changes (`app.shared_changes`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from impctl.aliases import TableName, TableVersion
from impctl.app.facts import columns_assumed, recheck
from impctl.app.shared_changes import Need
from impctl.app.state_meta import StateMeta
from impctl.data.vector import from_arrow
from impctl.maintain.session import MaintainedQuery
from impctl.maintain.way import Mode, Way
from impctl.sketch.fragments import FragmentSet
from impctl.store.records import MaintainCommit, RunRecord, StoredQuery
from impctl.store.store import Store
from impctl.tables.changes import Changes
from impctl.tables.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class StepDone:
    """What one step did and cost."""

    action: str
    versions: Mapping[TableName, TableVersion]
    added: tuple[int, ...]
    removed: tuple[int, ...]
    changes: int
    read_ms: float
    engine_ms: float
    commit_ms: float
    unsure: int


class Maintainer:
    """A query whose sketch of one table access is maintained exactly or by touch."""

    def __init__(self, store: Store, way: Way, stored: StoredQuery) -> None:
        self.store = store
        self.way = way
        self.stored = stored
        self.meta = StateMeta.read(stored.query, stored.state_meta)
        self._session: MaintainedQuery | None = None
        if way.mode is Mode.EXACT:
            assert way.compiled is not None
            self._session = MaintainedQuery(way.compiled)
            runs = store.load_runs(stored.query)
            self._session.restore(runs, self.meta.counters)
        self._fragments = stored.sketches[0].fragments

    @property
    def table(self) -> TableName:
        return self.stored.pins[0].table

    @property
    def version(self) -> TableVersion:
        """The version the sketch stands at."""
        return self.stored.pins[0].version

    @property
    def fragments(self) -> FragmentSet:
        return self._fragments

    @property
    def session(self) -> MaintainedQuery | None:
        """The circuit, in exact mode."""
        return self._session

    def need(self, until: TableVersion, *, per_version: bool) -> Need:
        """What has to be read to reach `until`."""
        if self._session is not None:
            columns = self._session.compiled.scan.table_columns
        else:
            columns = (self.stored.sketches[0].attribute,)
        assumed = columns_assumed(self.stored.assumptions, self.table)
        pin = self.stored.pins[0]
        wanted = tuple(dict.fromkeys((*columns, *assumed)))
        return Need(self.table, pin.table_id, pin.version, until, wanted, per_version)

    def step(
        self,
        changes: Changes,
        until: TableVersion,
        *,
        snapshot: Snapshot,
        marks: Mapping[TableName, str],
        read_ms: float,
        reason_code: str,
        reason: str,
    ) -> StepDone:
        """Maintain with this change and commit; the sketch then stands at `until`.

        `snapshot` is the table at the end of the run, `marks` that of its commit `until`.
        """
        started = time.perf_counter()
        if self.stored.assumptions:
            recheck(self.stored.assumptions, snapshot, changes.table, changes.weights)
        before = self._fragments
        unsure = 0
        if self._session is not None:
            unsure_before = self._session.unsure_rows()
            delta = self._session.step(changes.table, changes.weights)
            after = self._session.fragments()
            unsure = self._session.unsure_rows() - unsure_before
            added, removed = tuple(delta.added.tolist()), tuple(delta.removed.tolist())
        else:
            after = before.union(self._touched(changes))
            added, removed = after.minus(before).ids, ()
        engine_ms = (time.perf_counter() - started) * 1000
        done = StepDone(
            str(self.way.mode),
            {self.table: until},
            added,
            removed,
            changes.rows,
            read_ms,
            engine_ms,
            0.0,
            unsure,
        )
        self.meta = self.meta.model_copy(update={"marks": dict(marks)})
        return self._commit(done, after, snapshot.schema_json, until, reason_code, reason)

    def _touched(self, changes: Changes) -> FragmentSet:
        """Fragments of all changed rows (pbds.md 7.8, M1)."""
        sketch = self.stored.sketches[0]
        column = from_arrow(changes.table.column(sketch.attribute), sketch.partition.type)
        mask = np.zeros(sketch.partition.size, dtype=np.bool_)
        mask[sketch.partition.fragments_of(column)] = True
        return FragmentSet.from_mask(mask)

    def _commit(
        self,
        done: StepDone,
        fragments: FragmentSet,
        schema_json: str,
        until: TableVersion,
        reason_code: str,
        reason: str,
    ) -> StepDone:
        started = time.perf_counter()
        pin = replace(self.stored.pins[0], version=until, schema_json=schema_json)
        counters = self.meta.counters
        put: tuple[Any, ...] = ()
        drop: tuple[tuple[str, int], ...] = ()
        if self._session is not None:
            checkpoint = self._session.checkpoint()
            put, drop = checkpoint.put, checkpoint.drop
            counters = dict(checkpoint.counters)
        unsure = self.meta.unsure + done.unsure
        meta = self.meta.model_copy(update={"counters": counters, "unsure": unsure})
        record = _record(done, reason_code, reason)
        commit = MaintainCommit(
            query=self.stored.query,
            expected_generation=self.stored.generation,
            pins=(pin,),
            sketches=((self.stored.sketches[0].access, fragments),),
            put_runs=put,
            drop_runs=drop,
            state_meta=meta.model_dump(),
            record=record,
        )
        generation = self.store.commit_maintain(commit)
        if self._session is not None:
            self._session.saved()
        self._fragments, self.meta = fragments, meta
        sketch = replace(self.stored.sketches[0], fragments=fragments)
        self.stored = replace(self.stored, pins=(pin,), sketches=(sketch,), generation=generation)
        return replace(done, commit_ms=(time.perf_counter() - started) * 1000)


def _record(done: StepDone, reason_code: str, reason: str) -> RunRecord:
    """The step as history keeps it; its own commit is not timed yet when it is written."""
    return RunRecord(
        action=done.action,
        reason_code=reason_code,
        reason=reason,
        started_at=time.time(),
        elapsed_ms=done.read_ms + done.engine_ms,
        read_ms=done.read_ms,
        engine_ms=done.engine_ms,
        commit_ms=0.0,
        changes=done.changes,
        added=len(done.added),
        removed=len(done.removed),
        versions=dict(done.versions),
    )
