"""A stale query opened: its state loaded, or what keeps it from being maintained.

Law: opening reads the store, the tables' logs and the SQL; it reads no change and writes nothing.
Out of scope: what is done with an open task (`app.maintaining.decide`).
"""

from __future__ import annotations

from impctl.app.capturing.chosen_way import check_circuit
from impctl.app.capturing.definition import check_definition
from impctl.app.capturing.moments import check_clock, moved_moments
from impctl.app.capturing.pins import check_pins
from impctl.app.capturing.reopened import reopened
from impctl.app.capturing.taken_up import TakenUp
from impctl.app.maintaining.changes import Need, need_of
from impctl.app.maintaining.kept_states import KeptStates
from impctl.app.maintaining.move import Move, move_of
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.workbench.pinned import PinnedTables
from impctl.app.workbench.recursion_limits import limited
from impctl.app.workbench.workbench import Workbench
from impctl.errors import ImpctlError, RecaptureNeededError
from impctl.sketch.sketch import Mode
from impctl.store.reader import StoreReader
from impctl.store.records import StoredQuery
from impctl.tables.changes import check_same_columns, check_same_order
from impctl.tables.schema import read_schema
from impctl.types import ColumnName, TableName
from impctl.values import dataclass
from impctl.workload.models import MaintainMode, Policy, QuerySpec


@dataclass(slots=True)
class Task:
    """One stale query: its stored sketch and what will be done with it."""

    spec: QuerySpec
    stored: StoredQuery
    taken: TakenUp | None = None
    trouble: ImpctlError | None = None
    move: Move | None = None
    """How the sketch moves on with the clock in the same step, if it does."""

    @property
    def is_eager(self) -> bool:
        """Whether it wants a sketch for every version passed."""
        return self.spec.maintain is MaintainMode.EAGER


def open_task(
    desk: Workbench,
    store: StoreReader,
    spec: QuerySpec,
    stored: StoredQuery,
    kept: KeptStates | None = None,
) -> Task:
    """The task, with what keeps it from being maintained incrementally.

    State that an earlier run of the process has `kept` need not be loaded.
    """
    task = Task(spec, stored)
    try:
        check_definition(desk, spec, stored)
        check_clock(desk, stored)
        if desk.policy(spec) is not Policy.FULL:
            check_pins(stored, desk.tables)
            known = None if kept is None else kept.take(desk, stored)
            moves = _moves_now(desk, task)
            if known is not None and not moves:
                task.taken = known
            else:
                task.taken, task.move = _taken_up(desk, store, spec, stored, moves=moves)
    except RecaptureNeededError as trouble:
        task.trouble = trouble
    return task


def _moves_now(desk: Workbench, task: Task) -> bool:
    """Whether the clock moved on for the sketch and it follows in this step.

    An eager query gets a sketch for every version passed first, all with the values it stands for.
    """
    versions = task.stored.versions.items()
    has_change = any(desk.tables.source(table).version != at for table, at in versions)
    return bool(moved_moments(desk, task.stored)) and not (task.is_eager and has_change)


def needs_of(tables: PinnedTables, task: Task) -> list[Need]:
    """What has to be read of every table that moved on."""
    if task.taken is None:
        return []
    needs = []
    for table, version in task.taken.versions.items():
        until = tables.source(table).version
        if until != version:
            needs.append(need_of(task.taken, table, until, per_version=task.is_eager))
    return needs


def _taken_up(
    desk: Workbench, store: StoreReader, spec: QuerySpec, stored: StoredQuery, *, moves: bool
) -> tuple[TakenUp, Move | None]:
    """The state loaded, for the plan as it reads now; RecaptureNeededError where it cannot be.

    Where it `moves`, taken up into the circuit after the move, which is still to be made.
    """
    result = reopened(desk, spec, stored)
    prepared, way = result.prepared, result.way
    try:
        check_circuit(desk, prepared, way, stored)
    except RecaptureNeededError:
        _check_columns_and_order(desk.tables, prepared, stored)
        raise
    if way.mode is Mode.RECAPTURE:
        raise RecaptureNeededError(
            f"Query `{spec.name}` cannot be maintained incrementally: {way.reason}",
            code="not_incremental",
            hint="use policy `auto` to let `maintain` recapture it",
            location=prepared.place(way.span),
        )
    if way.mode is Mode.TOUCH:
        _check_columns_read(desk.tables, prepared, stored)
    move = move_of(desk, spec, stored, prepared, way) if moves else None
    way = way if move is None else move.way
    reads = {pin.table: tuple(_columns_read(prepared, pin.table)) for pin in stored.pins}
    if way.compiled is not None:
        limited(desk, way.compiled)
    return TakenUp(way, stored, store.load_runs(stored.query), reads), move


def _check_columns_read(tables: PinnedTables, prepared: PreparedQuery, stored: StoredQuery) -> None:
    """SchemaChangedError where a column that the query reads is another one than it was.

    Changes are read in the sketched column alone, and no row need change for another column to
    take a name over.
    """
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
    """SchemaChangedError where a column the query reads, or their order, makes another circuit."""
    for pin in stored.pins:
        read = _columns_read(prepared, pin.table)
        before, after = (
            tables.snapshot(pin.table, pin.version),
            tables.snapshot(pin.table),
        )
        check_same_columns(before.columns, before.version, after, read)
        check_same_order(before, after, read)
