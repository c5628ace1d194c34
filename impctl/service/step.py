"""One maintenance step of a stored query: changes in, sketches and state committed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from impctl.compile.session import Checkpoint, MaintainedQuery, TableChange
from impctl.errors import count_text
from impctl.service.advice import depths
from impctl.service.capture import amend
from impctl.service.prepare import recheck
from impctl.service.result_changes import ChangeWriter, lead_of, may_change_answer
from impctl.service.results import TreeWork, work_text
from impctl.service.table_deltas import GroupedChange, refill_text, rows_with
from impctl.sql.parameters import RUN_INSTANT
from impctl.stopwatch import Stopwatch
from impctl.store.records import (
    MaintainCommit,
    RunCost,
    RunKind,
    RunParts,
    RunRecord,
    SideRead,
    buffer_name,
)
from impctl.types import AccessId, ColumnName, TableName, TableVersion

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.compile.compile import MaintenancePlan
    from impctl.compile.flows import Source
    from impctl.data.vector import Vector
    from impctl.service.clock import Move
    from impctl.service.context import Versions
    from impctl.service.decide import TableDelta
    from impctl.service.maintenance_plan import QueryState
    from impctl.service.partners import PartnersAt
    from impctl.service.stored import StateMeta
    from impctl.sketch.sketch import RangeSet
    from impctl.store.store import Store


class StepDone(Struct, frozen=True):
    """What one step did and cost; ranges by access."""

    action: str
    versions: Versions
    added: Mapping[AccessId, tuple[int, ...]] = field(default_factory=dict)
    removed: Mapping[AccessId, tuple[int, ...]] = field(default_factory=dict)
    changes: int = 0
    changed_bytes: int = 0
    read_ms: float = 0.0
    engine_ms: float = 0.0
    commit_ms: float = 0.0
    unsure: int = 0
    refilled: tuple[int, int] = (0, 0)
    """Groups whose bounded buffer was refilled, and the rows read for that."""
    tree: TreeWork | None = None
    """The work of its join trees, if any."""
    note: str = ""
    """What expired and what was read for that, and whether a recursion was recomputed."""
    may_change_answer: bool = True
    parts: RunParts | None = None
    """Rows of its operators and side reads, where the engine stepped a circuit."""


# Law: a step commits sketches, state and versions together or changes nothing. Assumptions are
# checked before anything is computed. Nothing here recaptures; RecaptureNeededError leaves that to
# the policy (`service.maintain`).

NextExpiry = Callable[[Mapping[TableName, TableVersion], str], str]
"""As of `service.expiry`."""

_RECOMPUTED = "most rows of the recursion were deleted, so they were recomputed from its state"


class Maintainer:
    """Maintains a restored query step by step."""

    def __init__(
        self,
        store: Store | None,
        state: QueryState,
        partners: PartnersAt | None,
        spark_start: Callable[[], float] = lambda: 0.0,
        move: Move | None = None,
        writer: ChangeWriter | None = None,
        next_expiry: NextExpiry = lambda versions, now: "",
    ) -> None:
        """`partners` reads rows that the circuit does not store. `spark_start` is the part of a
        step's time that started Spark. With a `move` the only step follows the clock too. The
        answer's changes go to `writer` before each commit. Without a `store` nothing is committed:
        only the state in memory moves. `next_expiry` finds that of versions, as of an instant."""
        self.store = store
        self.state = state
        self._partners = partners
        self._spark_start = spark_start
        self._move = move
        self._writer = writer
        self._next_expiry = next_expiry

    def step(
        self,
        moved: Mapping[TableName, TableDelta],
        *,
        read_ms: float,
        reason_code: str,
        reason: str,
        changed_bytes: int = 0,
    ) -> StepDone:
        """Maintain with these tables' changes and commit; other tables keep their versions."""
        watch = Stopwatch()
        state = self.state
        if state.stored.assumptions:
            for change in moved.values():
                changes = change.changes
                recheck(state.stored.assumptions, change.ending, changes.table, changes.weights)
        done = StepDone(
            str(state.plan.mode),
            self._versions_after(moved),
            changes=sum(change.rows for change in moved.values()),
            changed_bytes=changed_bytes,
            read_ms=read_ms,
        )
        if self._writer is not None:
            self._writer.begin()
        grouped = [change.grouped for change in moved.values() if change.grouped is not None]
        if state.session is not None and grouped:
            done, after = self._absorb_grouped(state.session, grouped[0], done)
        elif state.session is not None:
            done, after = self._compute(state.session, moved, done)
        else:
            after, count = self._touch(moved)
            done = replace(done, changes=done.changes + count)
            new = {
                access: ranges.minus(state.ranges[access]).ids for access, ranges in after.items()
            }
            done = replace(done, added=new)
        expired = ""
        if self._move is not None and self._move.is_of_expiry:
            count = done.changes - sum(change.rows for change in moved.values())
            files = self._move.files
            read = f"{files.read:,} of {count_text(files.total, 'file')}"
            verb = "was" if files.read == 1 else "were"
            expired = f"{count_text(count, 'row')} expired; {read} {verb} read for them"
        done = replace(done, note="; ".join(filter(None, (expired, done.note))))
        may_change = self._move is not None or may_change_answer(state, moved, after)
        done = replace(done, engine_ms=watch.ms, may_change_answer=may_change)
        return self._commit(done, after, moved, reason_code, reason)

    def _compute(
        self, session: MaintainedQuery, moved: Mapping[TableName, TableDelta], done: StepDone
    ) -> tuple[StepDone, Mapping[AccessId, RangeSet]]:
        reader = None if self._partners is None else self._partners(self._versions_after(moved))
        if reader is not None:
            session.read_by(reader)
        before = session.circuit.spent
        unsure, (groups, rows) = session.unsure_rows(), session.refilled()
        work, filled, anew = session.tree_work(), session.refills(), session.recomputations()
        changes = {
            table: TableChange(result.table, result.weights, result.shared)
            for table, change in moved.items()
            if (result := change.changes).rows
        }
        move, count = self._move, 0

        def table_rows(source: Source, keys: Mapping[ColumnName, Vector]) -> Iterable[pa.Table]:
            change = moved.get(source.table)
            if change is not None:
                return rows_with(change.reached(), source, keys)
            assert move is not None, "what did not change is not refilled"
            return rows_with(move.snapshot(source.table), source, keys)

        if move is None:
            deltas = session.step(changes, table_rows)
        else:
            deltas, count = session.move(
                changes, move.conditions, move.rows, table_rows, move.above
            )
        groups_after, rows_after = session.refilled()
        reads = [] if reader is None else list(reader.reads())
        for piece, after in session.refills().items():
            then = filled[piece]
            count_filled = after[0] - then[0]
            rows_read, ms = after[1] - then[1], after[2] - then[2]
            reads.append(SideRead(buffer_name(piece), count_filled, count_filled, rows_read, ms))
        done = replace(
            done,
            added={access: tuple(delta.added.tolist()) for access, delta in deltas.items()},
            removed={access: tuple(delta.removed.tolist()) for access, delta in deltas.items()},
            changes=done.changes + count,
            unsure=session.unsure_rows() - unsure,
            refilled=(groups_after - groups, rows_after - rows),
            note=_RECOMPUTED if session.recomputations() > anew else "",
            tree=_tree_work(self.state.plan, work, session.tree_work()),
            parts=RunParts(
                tuple(now - then for now, then in zip(session.circuit.spent, before, strict=True)),
                tuple(reads),
            ),
        )
        return done, session.ranges()

    def _absorb_grouped(
        self, session: MaintainedQuery, grouped: GroupedChange, done: StepDone
    ) -> tuple[StepDone, Mapping[AccessId, RangeSet]]:
        """The step with a change that Spark has grouped, and the sketches after it."""
        unsure, before = session.unsure_rows(), self.state.ranges
        session.absorb(grouped.pass_, grouped.came, grouped.went, grouped.partition)
        after = session.ranges()
        done = replace(
            done,
            added={access: after[access].minus(before[access]).ids for access in after},
            removed={access: before[access].minus(after[access]).ids for access in after},
            unsure=session.unsure_rows() - unsure,
        )
        return done, after

    def _versions_after(self, moved: Mapping[TableName, TableDelta]) -> Versions:
        return {**self.state.versions, **{table: change.until for table, change in moved.items()}}

    def _touch(
        self, moved: Mapping[TableName, TableDelta]
    ) -> tuple[Mapping[AccessId, RangeSet], int]:
        """The sketch with the ranges of all changed rows, and how many moved with the clock."""
        touched = self.state.touched
        assert touched is not None
        sketch = self.state.stored.sketches[0]
        if sketch.table in moved:
            changes = moved[sketch.table].changes
            touched.step(TableChange(changes.table, changes.weights))
        count = 0 if self._move is None else touched.move(self._move.moved_rows())
        return {sketch.access: touched.ranges}, count

    def _commit(
        self,
        done: StepDone,
        ranges: Mapping[AccessId, RangeSet],
        moved: Mapping[TableName, TableDelta],
        reason_code: str,
        reason: str,
    ) -> StepDone:
        watch = Stopwatch()
        state, stored = self.state, self.state.stored
        pins = tuple(
            pin
            if (change := moved.get(pin.table)) is None
            else replace(pin, version=change.until, schema_json=change.ending.schema_json)
            for pin in stored.pins
        )
        checkpoint: Checkpoint = state.maintained.checkpoint()
        meta = self._meta(done, moved, checkpoint)
        stored_meta = meta.as_stored()
        record = _record(done, reason_code, reason, self._cost(done, moved))
        commit = MaintainCommit(
            query=stored.query,
            expected_generation=stored.generation,
            pins=pins,
            sketches=tuple(ranges.items()),
            put_runs=checkpoint.put,
            drop_runs=checkpoint.drop,
            state_meta=stored_meta,
            basis=meta.basis(pins),
            record=record,
        )
        if self._writer is not None:
            self._writer.write(lead_of(stored, done.versions, meta.moments))
        generation = stored.generation
        if self.store is not None:
            generation = self.store.commit_maintain(commit)
        state.committed(generation, commit.at, pins, ranges, meta, stored_meta)
        commit_ms = watch.ms
        if self.store is not None:
            amend(self.store, stored.query, record, commit_ms)
        return replace(done, commit_ms=commit_ms)

    def _meta(
        self, done: StepDone, moved: Mapping[TableName, TableDelta], checkpoint: Checkpoint
    ) -> StateMeta:
        meta, move = self.state.meta, self._move
        work = meta.work
        if done.tree is not None:
            more = {"changes": done.changes, **asdict(done.tree)}
            work = {name: work.get(name, 0) + count for name, count in more.items()}
        now = (meta if move is None else move).moments.get(RUN_INSTANT)
        is_between = any(change.ending.version != change.until for change in moved.values())
        marks = {table: change.mark for table, change in moved.items()}
        files = {table: change.files for table, change in moved.items()}
        return replace(
            meta if move is None else replace(meta, moments=move.moments, circuit=move.circuit),
            # Not computed between two versions.
            expires="" if now is None or is_between else self._next_expiry(done.versions, now),
            # Tables without a new mark keep none.
            marks={t: m for t, m in {**meta.marks, **marks}.items() if m is not None},
            files={t: m for t, m in {**meta.files, **files}.items() if m is not None},
            counters=dict(checkpoint.counters),
            unsure=meta.unsure + done.unsure,
            depths=depths(self.state.range_rows, meta.depths),
            work=work,
        )

    def _cost(self, done: StepDone, moved: Mapping[TableName, TableDelta]) -> RunCost:
        """The time of the step, without starting Spark and its commit."""
        start_ms = self._spark_start()
        is_grouped = any(change.grouped is not None for change in moved.values())
        compiled = self.state.plan.compiled
        asks_spark = is_grouped or (compiled is not None and compiled.asks_spark)
        return RunCost(
            kind=RunKind.GROUPED if is_grouped else RunKind.MAINTAIN,
            rows=done.changes,
            bytes=done.changed_bytes,
            elapsed_ms=max(0.0, done.read_ms + done.engine_ms - start_ms),
            spark=asks_spark,
            start_ms=start_ms,
            moved=tuple(sorted(moved)),
            # What Spark was waited for is in some operator's time, its start too.
            parts=None if asks_spark else done.parts,
            layout=self.state.meta.layout,
        )


def _tree_work(
    plan: MaintenancePlan, before: tuple[int, int, int], after: tuple[int, int, int]
) -> TreeWork | None:
    if not plan.has_tree:
        return None
    touched, flips, pairs = (now - then for then, now in zip(before, after, strict=True))
    return TreeWork(touched, flips, pairs)


def _record(done: StepDone, reason_code: str, reason: str, cost: RunCost) -> RunRecord:
    """The step's history record; its own commit is not timed yet when it is written."""
    refilled = refill_text(*done.refilled)
    reason = "; ".join(filter(None, (reason, refilled, work_text(done.tree), done.note)))
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
        added=sum(len(result) for result in done.added.values()),
        removed=sum(len(result) for result in done.removed.values()),
        versions=dict(done.versions),
        cost=cost,
    )
