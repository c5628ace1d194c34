"""What to do with each stale query: decided once, then run or explained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from impctl.errors import (
    EvaluationError,
    ImpctlError,
    PolicyRefusedError,
    RecaptureNeededError,
    TableError,
)
from impctl.service.clock import Move, move_of
from impctl.service.context import Context, Isolated, limited
from impctl.service.cost_model import MaintenanceSize, dearer, reason_text, recorded
from impctl.service.decision import capture_stage
from impctl.service.maintenance_plan import QueryState, check_circuit, reopened
from impctl.service.prepare import PreparedQuery, prepare, recheck
from impctl.service.results import ENGINE, SPARK, Failure
from impctl.service.stored import check_clock, check_definition, check_pins, mark_at, moved_moments
from impctl.service.table_deltas import (
    ChangeRequest,
    GroupedChange,
    SharedChanges,
    is_large,
    need_of,
)
from impctl.sketch.sketch import MaintenanceMode
from impctl.store.records import RunKind, StoredQuery
from impctl.tables.changes import Changes, check_same_columns, check_same_order
from impctl.tables.log import FilesMark
from impctl.tables.snapshot import read_schema
from impctl.workload.models import MaintainMode, Policy, QuerySpec

if TYPE_CHECKING:
    from impctl.service.kept_states import StateCache
    from impctl.service.pinned import PinnedTables
    from impctl.store.records import StoreReader
    from impctl.tables.snapshot import Snapshot
    from impctl.types import ColumnName, TableName, TableVersion


# What `maintain` is about to do with one stale query: decided once, then run or explained. Law: a
# stage is all that a run acts on and all that `plan` and `--dry-run` show, so the two cannot
# differ; making one writes nothing and starts no Spark.

CLOCK_MOVED = "clock_moved"
EXPIRED = "expired"
GROUPED_BY_SPARK = "grouped_by_spark"
RECAPTURE_CHEAPER = "recapture_cheaper"


class ReadChange(Struct, frozen=True):
    need: ChangeRequest
    changes: Changes
    elapsed_ms: float


class Stage(Struct, frozen=True):
    """`action` is exact, touch or recapture; `by` computes it, None if not yet decided. `needs` are
    the changes to maintain, `read` those already read; a change that Spark groups is not read."""

    action: str
    reason_code: str
    reason: str
    by: str | None = None
    needs: tuple[ChangeRequest, ...] = ()
    read: tuple[ReadChange, ...] = ()

    @property
    def is_recapture(self) -> bool:
        return self.action == "recapture"

    @property
    def is_grouped(self) -> bool:
        """Whether Spark groups the change before the engine reads it."""
        return self.reason_code == GROUPED_BY_SPARK

    @property
    def cost_kind(self) -> RunKind:
        return RunKind.GROUPED if self.is_grouped else RunKind.MAINTAIN

    @property
    def read_ms(self) -> float:
        return sum(result.elapsed_ms for result in self.read)


def recapture_stage(code: str, reason: str) -> Stage:
    return Stage("recapture", code, reason)


def changed_rows(read: Sequence[ReadChange]) -> int:
    return sum(result.changes.rows for result in read)


# A stale query opened: its state loaded, or what keeps it from being maintained. Law: opening
# reads the store, the tables' logs and the SQL; it reads no change and writes nothing.


class StaleQuery(Struct):
    spec: QuerySpec
    stored: StoredQuery
    taken: QueryState | None = None
    trouble: ImpctlError | None = None
    move: Move | None = None
    """How the sketch moves with the clock in the same step."""

    @property
    def is_eager(self) -> bool:
        return self.spec.maintain is MaintainMode.EAGER


def open_task(
    ctx: Context,
    store: StoreReader,
    spec: QuerySpec,
    stored: StoredQuery,
    kept: StateCache | None = None,
) -> StaleQuery:
    """Open the task, noting what prevents maintenance; uses state `kept` by earlier runs."""
    task = StaleQuery(spec, stored)
    try:
        check_definition(ctx, spec, stored)
        check_clock(ctx, stored)
        if ctx.policy(spec) is not Policy.FULL:
            check_pins(stored, ctx.tables)
            known = None if kept is None else kept.take(ctx, stored)
            moves = _moves_now(ctx, task)
            if known is not None and not moves:
                task.taken = known
            else:
                task.taken, task.move = _restored(ctx, store, spec, stored, moves=moves)
    except RecaptureNeededError as trouble:
        task.trouble = trouble
    return task


def _moves_now(ctx: Context, task: StaleQuery) -> bool:
    """Whether the sketch follows the clock in this step. An eager query first gets a sketch for
    every version, with the clock's values of its capture."""
    versions = task.stored.versions.items()
    has_change = any(ctx.tables.source(table).version != at for table, at in versions)
    return bool(moved_moments(ctx, task.stored)) and not (task.is_eager and has_change)


def needs_of(tables: PinnedTables, task: StaleQuery) -> list[ChangeRequest]:
    """What to read of every table that changed."""
    if task.taken is None:
        return []
    needs = []
    for table, version in task.taken.versions.items():
        until = tables.source(table).version
        if until != version:
            needs.append(need_of(task.taken, table, until, per_version=task.is_eager))
    return needs


def _restored(
    ctx: Context, store: StoreReader, spec: QuerySpec, stored: StoredQuery, *, moves: bool
) -> tuple[QueryState, Move | None]:
    """Load the state for the current plan; RecaptureNeededError if impossible. If it `moves`,
    restored into the circuit after the move, which is still to be made."""
    result = reopened(ctx, spec, stored)
    prepared, way = result.prepared, result.way
    try:
        check_circuit(ctx, prepared, way, stored)
    except RecaptureNeededError:
        _check_columns_and_order(ctx.tables, prepared, stored)
        raise
    if way.mode is MaintenanceMode.RECAPTURE:
        raise RecaptureNeededError(
            f"Query `{spec.name}` cannot be maintained incrementally: {way.reason}",
            code="not_incremental",
            hint="use policy `auto` to let `maintain` recapture it",
            location=prepared.place(way.span),
        )
    if way.mode is MaintenanceMode.TOUCH:
        _check_columns_read(ctx.tables, prepared, stored)
    move = move_of(ctx, spec, stored, prepared, way) if moves else None
    way = way if move is None else move.way
    reads = {pin.table: tuple(_columns_read(prepared, pin.table)) for pin in stored.pins}
    if way.compiled is not None:
        limited(ctx, way.compiled)
    return QueryState(way, stored, store.load_runs(stored.query), reads), move


def _check_columns_read(tables: PinnedTables, prepared: PreparedQuery, stored: StoredQuery) -> None:
    """SchemaChangedError if a column that the query reads is a different one now. Changes are read
    in the sketched column alone, and another column can take over a name without any row
    changing."""
    for pin in stored.pins:
        after = tables.snapshot(pin.table)
        # As the table is mapped now: before that, physical names were the names.
        before = read_schema(pin.schema_json, is_mapped=after.column_mapping is not None)
        check_same_columns(before, pin.version, after, _columns_read(prepared, pin.table))


def _columns_read(prepared: PreparedQuery, table: TableName) -> list[ColumnName]:
    return [a.name for scan in prepared.scans if scan.table == table for a in scan.attributes]


def _check_columns_and_order(
    tables: PinnedTables, prepared: PreparedQuery, stored: StoredQuery
) -> None:
    """SchemaChangedError if columns or their order require another circuit."""
    for pin in stored.pins:
        read = _columns_read(prepared, pin.table)
        before, after = tables.snapshot(pin.table, pin.version), tables.snapshot(pin.table)
        check_same_columns(before.columns, before.version, after, read)
        check_same_order(before, after, read)


# What is done with each stale query, decided in one place as a stage. Law: deciding reads the
# store, by its reading half alone, and the tables' logs and changes; a run carries out what a dry
# run and `plan` show, because both ask here. Tasks are opened first, so that each table's change
# is read once for all of them. What a policy forbids is refused before anything is written; a
# recapture says why it was chosen.

Stale = Sequence[tuple[QuerySpec, StoredQuery]]
NOT_INCREMENTALLY = (RecaptureNeededError, EvaluationError, TableError)
"""What prevents maintenance. Only `auto` recaptures for the last two: the failing row may be
deleted by now, and Spark may read what impctl cannot."""


class Decisions:
    """The decisions of one run; failures go to the caller's list."""

    def __init__(
        self,
        ctx: Context,
        store: StoreReader,
        failures: list[Failure],
        kept: StateCache | None = None,
    ) -> None:
        self.ctx = ctx
        self.store = store
        self.failures = failures
        self.kept = kept
        self.shared = SharedChanges(ctx.tables, ctx.reporter)

    def opened(self, stale: Stale) -> list[StaleQuery]:
        """Open the tasks and announce their changes; failing queries are recorded."""
        tasks: list[StaleQuery] = []
        for spec, stored in stale:
            with Isolated(self.failures, spec):
                task = open_task(self.ctx, self.store, spec, stored, self.kept)
                self.shared.announce(needs_of(self.ctx.tables, task))
                tasks.append(task)
        return tasks

    def stages(self, stale: Stale) -> list[tuple[StaleQuery, Stage]]:
        """What would be done with each; failing queries are recorded."""
        result: list[tuple[StaleQuery, Stage]] = []
        for task in self.opened(stale):
            with Isolated(self.failures, task.spec):
                stage = self.stage(task, is_checked=True)
                if stage.is_recapture:
                    capture = capture_stage(self.ctx, prepare(self.ctx, task.spec))
                    stage = replace(stage, by=capture.by(self.ctx))
                result.append((task, stage))
        return result

    def stage(self, task: StaleQuery, *, is_checked: bool = False) -> Stage:
        """Decide, and read the change; `is_checked` also checks it as a run would."""
        policy = self.ctx.policy(task.spec)
        _refuse(task, policy)
        if task.trouble is None and policy is not Policy.FULL:
            try:
                return self._incremental(task, policy, is_checked)
            except NOT_INCREMENTALLY as trouble:
                return self.instead(task, trouble)
        return _recapture_stage(task)

    def instead(self, task: StaleQuery, trouble: ImpctlError) -> Stage:
        """The recapture after `trouble`, noted in the task; raises if the policy forbids it."""
        policy = self.ctx.policy(task.spec)
        if not isinstance(trouble, RecaptureNeededError) and policy is not Policy.AUTO:
            raise trouble
        task.trouble = trouble
        _refuse(task, policy)
        return _recapture_stage(task)

    def size(self, needs: Sequence[ChangeRequest]) -> MaintenanceSize | None:
        """Size of these changes by the log; None if it cannot be read."""
        result = [self.shared.size(need.span) for need in needs]
        sizes = [size for size in result if size is not None]
        if len(sizes) < len(result):
            return None
        rows = [size.rows for size in sizes if size.rows is not None]
        counted = sum(rows) if len(rows) == len(sizes) else None
        return MaintenanceSize(counted, sum(size.bytes for size in sizes))

    def _incremental(self, task: StaleQuery, policy: Policy, is_checked: bool) -> Stage:
        """Exact or touch; or recapture if it is cheaper and the policy allows it."""
        assert task.taken is not None
        needs = tuple(needs_of(self.ctx.tables, task))
        stage = self._carried(task.taken, needs, task.move)
        cheaper = self._cheaper(task, stage) if policy is Policy.AUTO else None
        if cheaper is not None:
            return cheaper
        if stage.is_grouped:
            return stage
        read = tuple(ReadChange(need, *self.shared.read(need)) for need in needs)
        if is_checked and task.stored.assumptions:
            for result in read:
                ending = self.ctx.tables.snapshot(result.need.table)
                changes = result.changes
                recheck(task.stored.assumptions, ending, changes.table, changes.weights)
        return replace(stage, read=read)

    def _carried(
        self, taken: QueryState, needs: tuple[ChangeRequest, ...], move: Move | None
    ) -> Stage:
        way = taken.way
        code = "incremental" if way.mode is MaintenanceMode.EXACT else "touch_keyed"
        stage = Stage(str(way.mode), code, way.reason, ENGINE, needs)
        if move is not None and move.is_of_expiry:
            # With new versions their change is maintained, at another instant.
            stage = stage if needs else replace(stage, reason_code=EXPIRED, reason=move.reason)
        elif move is not None:
            stage = replace(stage, reason_code=CLOCK_MOVED, reason=f"{move.reason}; {way.reason}")
        elif is_large(self.shared, self.ctx.settings, way.compiled, needs):
            reason = "a large change, grouped by Spark first"
            return replace(stage, reason_code=GROUPED_BY_SPARK, reason=reason, by=SPARK)
        if way.compiled is not None and way.compiled.asks_spark:
            return replace(stage, by=f"{ENGINE} and {SPARK}")
        return stage

    def _cheaper(self, task: StaleQuery, stage: Stage) -> Stage | None:
        """A recapture if maintenance is estimated to be clearly dearer. An eager query wants a
        sketch for every version, which no recapture gives."""
        if task.is_eager:
            return None
        result = dearer(
            recorded(self.store, task.stored),
            stage.cost_kind,
            lambda: self.size(stage.needs),
            has_spark=self.ctx.has_spark,
            table_rows=lambda: self.ctx.tables.rows_of(tuple(task.stored.versions)),
            moved=[need.table for need in stage.needs],
        )
        return None if result is None else recapture_stage(RECAPTURE_CHEAPER, reason_text(result))


def _refuse(task: StaleQuery, policy: Policy) -> None:
    trouble = task.trouble
    if policy is Policy.INCREMENTAL and trouble is not None:
        raise trouble
    if policy is not Policy.STRICT:
        return
    reason = trouble.message if trouble is not None else None
    if reason is None and task.taken is not None and task.taken.way.mode is MaintenanceMode.TOUCH:
        reason = task.taken.way.reason
    if reason is not None:
        raise PolicyRefusedError(
            f"Policy `strict` allows exact maintenance only: {reason}",
            # What only a recapture mends, `incremental` does not do either.
            hint="set the query's policy to `auto`"
            + (" or `incremental`" if trouble is None else "")
            + ", or capture it again",
            location=None if trouble is None else trouble.location,
        )


def _recapture_stage(task: StaleQuery) -> Stage:
    if task.trouble is None:
        return recapture_stage("policy_full", "policy `full` always recaptures")
    return recapture_stage(task.trouble.code, task.trouble.message)


# A table's change as one step takes it. Law: what is moved on by one step is read from one span
# of versions.


class TableDelta(Struct, frozen=True):
    """A table's change up to `until`, with the marks of that commit and its files. `ending` is the
    run's newest version, which a batch may stop before; `reached` takes the snapshot of `until`.
    With `grouped`, Spark has grouped the change, and `changes` has no rows."""

    changes: Changes
    until: TableVersion
    ending: Snapshot
    mark: str | None
    files: FilesMark | None
    reached: Callable[[], Snapshot]
    grouped: GroupedChange | None = None

    @property
    def rows(self) -> int:
        return self.changes.rows if self.grouped is None else self.grouped.rows


def change_up_to(
    tables: PinnedTables, table: TableName, changes: Changes, until: TableVersion
) -> TableDelta:
    mark, ending = mark_at(tables, table, until), tables.snapshot(table)
    # Between two batches of versions the log's entry has to suffice.
    files = tables.files_mark(table) if ending.version == until else None
    return TableDelta(changes, until, ending, mark, files, partial(tables.snapshot, table, until))


def changes_by_table(
    tables: PinnedTables, read: Sequence[ReadChange]
) -> dict[TableName, TableDelta]:
    return {
        one.need.table: change_up_to(tables, one.need.table, one.changes, one.need.until)
        for one in read
    }
