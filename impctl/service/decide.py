"""What to do with each stale query: decided once, then run or explained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from impctl.compile.build import with_answer
from impctl.compile.session import (
    MovedAbove,
    Moves,
    Moving,
    differing_rows,
    judged_alone,
    moved_above,
    touched_source,
    why_not_computable,
)
from impctl.errors import (
    EvaluationError,
    ImpctlError,
    PolicyRefusedError,
    RecaptureNeededError,
    SchemaChangedError,
    TableError,
)
from impctl.plan.lineage import moved_conditions
from impctl.plan.nodes import Plan
from impctl.service.context import Context, Isolated, Reporter, limited
from impctl.service.cost_model import if_recapture_is_cheaper, reason_text, recorded
from impctl.service.filters import files_satisfying
from impctl.service.maintenance_plan import QueryState, Reopened, check_circuit, reopened
from impctl.service.prepare import PreparedQuery, prepare, recheck
from impctl.service.results import ENGINE, SPARK, Failure
from impctl.service.stored import (
    check_clock,
    check_definition,
    check_pins,
    mark_at,
    moved_moments,
    moved_text,
)
from impctl.sketch.sketch import MaintenanceMode, RangePartition
from impctl.sql.parameters import RUN_INSTANT
from impctl.stopwatch import Stopwatch
from impctl.store.records import RunKind, StoredQuery
from impctl.tables.changes import Changes, check_same_columns, check_same_order, read_changes
from impctl.tables.log import ChangeSize, commits_of, size_of
from impctl.tables.rows import read_batches
from impctl.tables.snapshot import FilesMark, Snapshot, read_schema
from impctl.types import ColumnName, TableName, TableVersion
from impctl.workload.models import MaintainMode, Policy, QuerySpec

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.compile.compile import Dataflow, MaintenancePlan
    from impctl.compile.flows import Source
    from impctl.engine.batch import Batch
    from impctl.rules.finalize import FinalSteps
    from impctl.service.fill import GroupedChange
    from impctl.service.pinned import PinnedTables
    from impctl.service.state_cache import StateCache
    from impctl.store.reader import StoreReader


# Law: per table and span of versions, the change feed is read once, with the columns that any query
# of the run needs, and every query sees the same rows. If a column of one query is unreadable, each
# query reads its own, so that only that one fails.

Span = tuple[TableName, TableVersion, TableVersion]
"""A table's change: after one version, up to another."""


class ChangeRequest(Struct, frozen=True):
    """What one query reads: columns of a table between two versions. `mark` is that of the table's
    files when its sketch reached `since`. `net_by` are all columns of the table that the query
    reads, output ones included: a row with equal values in these did not change. None if unknown.
    """

    table: TableName
    table_id: str
    since: TableVersion
    until: TableVersion
    columns: tuple[ColumnName, ...]
    mark: FilesMark | None = None
    net_by: tuple[ColumnName, ...] | None = None

    @property
    def span(self) -> Span:
        return self.table, self.since, self.until


def needs_of(tables: PinnedTables, state: QueryState) -> tuple[ChangeRequest, ...]:
    """What has to be read of every table that changed, to maintain a restored query."""
    return tuple(
        ChangeRequest(
            pin.table,
            pin.table_id,
            pin.version,
            until,
            state.columns_of(pin.table),
            state.meta.files.get(pin.table),
            state.reads.get(pin.table),
        )
        for pin in state.stored.pins
        if (until := tables.source(pin.table).version) != pin.version
    )


class TableDelta(Struct, frozen=True, kw_only=True):
    """A table's change up to `until`, with the marks of that commit and its files. `ending` is the
    run's newest version, which a batch may stop before. With `grouped`, Spark has grouped the
    change, and `changes` has no rows. `read_ms` is 0 if it was read for another query."""

    table: TableName
    changes: Changes
    until: TableVersion
    ending: Snapshot
    mark: str | None
    files: FilesMark | None
    grouped: GroupedChange | None = None
    read_ms: float = 0.0

    @property
    def rows(self) -> int:
        return self.changes.rows if self.grouped is None else self.grouped.rows


def change_up_to(
    tables: PinnedTables,
    table: TableName,
    changes: Changes,
    until: TableVersion,
    read_ms: float = 0.0,
    grouped: GroupedChange | None = None,
) -> TableDelta:
    ending = tables.snapshot(table)
    return TableDelta(
        table=table,
        changes=changes,
        until=until,
        ending=ending,
        mark=mark_at(tables, table, until),
        # Between two batches of versions the log's entry has to suffice.
        files=ending.mark if ending.version == until else None,
        grouped=grouped,
        read_ms=read_ms,
    )


class SharedChanges(Struct):
    """Changes read so far in this run, and those announced."""

    tables: PinnedTables
    reporter: Reporter
    _columns: dict[Span, dict[ColumnName, None]] = field(default_factory=dict)
    _net_by: dict[Span, frozenset[ColumnName] | None] = field(default_factory=dict)
    """The columns that count for any query; None where one does not say."""
    _apart: set[Span] = field(default_factory=set)
    """Spans of which each query reads its own columns."""
    _read: dict[tuple[Span, FilesMark | None], Changes] = field(default_factory=dict)
    _sizes: dict[Span, ChangeSize | None] = field(default_factory=dict)
    _log_ms: dict[Span, float] = field(default_factory=dict)
    """Time for entries of the log, which the first reading of the change does not read again."""

    def announce(self, needs: Iterable[ChangeRequest]) -> None:
        """Announce reads, so that one read serves all."""
        for need in needs:
            self._columns.setdefault(need.span, {}).update(dict.fromkeys(need.columns))
            known = self._net_by.get(need.span, frozenset())
            if known is None or need.net_by is None:
                self._net_by[need.span] = None
            else:
                self._net_by[need.span] = known | set(need.net_by)

    def size(self, span: Span) -> ChangeSize | None:
        """The change's size by the log; None where an entry of it cannot be read."""
        if span not in self._sizes:
            table, since, until = span
            watch, source = Stopwatch(), self.tables.source(table)
            entries = source.entries(since, until)
            self._sizes[span] = None if entries is None else size_of(commits_of(source, entries))
            self._log_ms[span] = watch.ms
        return self._sizes[span]

    def delta(self, need: ChangeRequest) -> TableDelta:
        """The change as a step takes it, read once for all queries of the run."""
        changes, read_ms = self.read(need)
        return change_up_to(self.tables, need.table, changes, need.until, read_ms)

    def read(self, need: ChangeRequest) -> tuple[Changes, float]:
        """The change and the milliseconds that reading it took; 0 if it was read before."""
        span = need.span
        before = self._net_by.get(span)
        self.announce([need])
        if (span, need.mark) in self._read and self._net_by[span] == before:
            return self._read[span, need.mark], 0.0
        self.reporter.step(f"reading changes of {need.table}")
        watch = Stopwatch()
        columns, changes = tuple(self._columns[span]), None
        if span not in self._apart:
            try:
                changes = self._read_columns(need, columns)
                self._read[span, need.mark] = changes
            except (SchemaChangedError, TableError):
                if set(columns) == set(need.columns):
                    raise
                # A column that only others need cannot be read.
                self._apart.add(span)
        if changes is None:
            changes = self._read_columns(need, need.columns)
        return changes, watch.ms + self._log_ms.pop(span, 0.0)

    def _read_columns(self, need: ChangeRequest, columns: tuple[ColumnName, ...]) -> Changes:
        net_by, shared = need.net_by, self._net_by[need.span]
        if need.span not in self._apart:
            net_by = None if shared is None else tuple(sorted(shared))
        return read_changes(
            self.tables.source(need.table),
            need.since,
            need.until,
            columns,
            table_id=need.table_id,
            stored_mark=need.mark,
            net_by=net_by,
        )


# Law: a decision is all that a run acts on and all that `plan` and `--dry-run` show, so the two
# cannot differ. Making one writes nothing and starts no Spark.

CLOCK_MOVED = "clock_moved"
EXPIRED = "expired"
GROUPED_BY_SPARK = "grouped_by_spark"
RECAPTURE_CHEAPER = "recapture_cheaper"


class StaleQuery(Struct):
    """A query opened to be maintained: its restored state, or the `trouble` that prevents it."""

    spec: QuerySpec
    stored: StoredQuery
    state: QueryState | None = None
    trouble: ImpctlError | None = None
    move: Move | None = None
    """How the sketch moves with the clock in the same step."""

    @property
    def is_eager(self) -> bool:
        return self.spec.maintain is MaintainMode.EAGER


class Decision(Struct, frozen=True):
    """What to do with a query: `action` is exact, touch or recapture; `by` computes it, None if not
    yet decided. `needs` are the changes to maintain, `deltas` those read; a change that Spark
    groups is not read here."""

    task: StaleQuery
    action: str
    reason_code: str
    reason: str
    by: str | None = None
    needs: tuple[ChangeRequest, ...] = ()
    deltas: tuple[TableDelta, ...] = ()

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


# Law: opening a query reads the store, the tables' logs and the SQL, but no change.


def open_task(
    ctx: Context,
    store: StoreReader,
    spec: QuerySpec,
    stored: StoredQuery,
    cache: StateCache | None = None,
) -> StaleQuery:
    """Open the task, noting what prevents maintenance; uses the `cache` of earlier runs."""
    task = StaleQuery(spec, stored)
    try:
        check_definition(ctx, spec, stored)
        check_clock(ctx, stored)
        if ctx.policy(spec) is not Policy.FULL:
            check_pins(stored, ctx.tables)
            known = None if cache is None else cache.take(ctx, stored)
            moves = _moves_now(ctx, task)
            if known is not None and not moves:
                task.state = known
            else:
                task.state, task.move = _restored(ctx, store, spec, stored, moves=moves)
    except RecaptureNeededError as trouble:
        task.trouble = trouble
    return task


def _moves_now(ctx: Context, task: StaleQuery) -> bool:
    """Whether the sketch follows the clock in this step. An eager query first gets a sketch for
    every version, with the clock's values of its capture."""
    versions = task.stored.versions.items()
    has_change = any(ctx.tables.source(table).version != version for table, version in versions)
    return bool(moved_moments(ctx, task.stored)) and not (task.is_eager and has_change)


def _restored(
    ctx: Context, store: StoreReader, spec: QuerySpec, stored: StoredQuery, *, moves: bool
) -> tuple[QueryState, Move | None]:
    """Load the state for the current plan; RecaptureNeededError if impossible. If it `moves`,
    restored into the circuit after the move, which is still to be made."""
    result = reopened(ctx, spec, stored)
    prepared, plan = result.prepared, result.plan
    try:
        check_circuit(ctx, result, stored)
    except RecaptureNeededError:
        for pin in stored.pins:
            # Columns or their order may require another circuit.
            read = _columns_read(prepared, pin.table)
            before = ctx.tables.snapshot(pin.table, pin.version)
            after = ctx.tables.snapshot(pin.table)
            check_same_columns(before.columns, before.version, after, read)
            check_same_order(before, after, read)
        raise
    if plan.mode is MaintenanceMode.RECAPTURE:
        raise RecaptureNeededError(
            f"Query `{spec.name}` cannot be maintained incrementally: {plan.reason}",
            code="not_incremental",
            hint="use policy `auto` to let `maintain` recapture it",
            location=prepared.place(plan.span),
        )
    if plan.mode is MaintenanceMode.TOUCH:
        # Changes are read in the sketched column alone, and another column can take over a name
        # without any row changing.
        for pin in stored.pins:
            after = ctx.tables.snapshot(pin.table)
            # As the table is mapped now: before that, physical names were the names.
            columns = read_schema(pin.schema_json, is_mapped=after.column_mapping is not None)
            check_same_columns(columns, pin.version, after, _columns_read(prepared, pin.table))
    move = move_of(ctx, spec, stored, result) if moves else None
    plan = plan if move is None else move.plan
    reads = {pin.table: tuple(_columns_read(prepared, pin.table)) for pin in stored.pins}
    if plan.compiled is not None:
        limited(ctx, plan.compiled)
    return QueryState(plan, stored, store.load_runs(stored.query), reads), move


def _columns_read(prepared: PreparedQuery, table: TableName) -> list[ColumnName]:
    return [a.name for scan in prepared.scans if scan.table == table for a in scan.attributes]


# Sketches that move on with the clock. Law: moved are conditions right above scans, and in exact
# mode constants above rows that the state can list; a constant elsewhere, another circuit or
# another verdict requires a recapture by name. Rows are read from the newest version, except from
# files whose statistics prove that no row comes or goes.

_KEPT_OTHERWISE = "the new value requires another way to maintain the query"
_READS_OTHERWISE = "the new value changes what the query groups, sums or joins"
_NO_GROUPS = (
    "it occurs outside conditions on rows of a table, and conservative maintenance "
    "stores no groups to evaluate it on: {}"
)


class Move(Struct, frozen=True):
    """What moves with the clock. `conditions` are by access. `plan` has the circuit after the move,
    which the earlier state fits. `above` are its operators whose constants moved (exact mode);
    `touched` reads what moves (touch mode). `answer` is the materialized result before the move.
    `names` are the moments that moved. `files_read` are URIs, each file counted once, and `files`
    all files of each table that was read."""

    plan: MaintenancePlan
    conditions: Moves
    above: MovedAbove | None
    touched: Source | None
    moments: Mapping[str, str]
    circuit: str
    reason: str
    tables: PinnedTables
    names: frozenset[str]
    answer: FinalSteps | None = None
    files_read: set[str] = field(default_factory=set)
    files: dict[TableName, int] = field(default_factory=dict)

    @property
    def is_of_expiry(self) -> bool:
        return self.names == {RUN_INSTANT}

    def rows(self, moving: Sequence[Moving]) -> Iterator[pa.Table]:
        snapshot = self.tables.snapshot(moving[0][0].table)
        meeting = (files_satisfying(snapshot, source, m.rows_that_move) for source, m in moving)
        uris = {file.uri for result in meeting for file in result}
        files = tuple(file for file in snapshot.files if file.uri in uris)
        self.files_read.update(uris)
        self.files[snapshot.table] = len(snapshot.files)
        columns = dict.fromkeys(name for source, _ in moving for name in source.scan.table_columns)
        yield from read_batches(snapshot, tuple(columns), files)

    def moved_rows(self) -> Iterator[Batch]:
        """In touch mode, the rows that come or go, with their ranges."""
        if self.touched is not None:
            moved = self.conditions[self.touched.access]
            for table in self.rows([(self.touched, moved)]):
                yield differing_rows(self.touched, moved, table)[0]


def move_of(ctx: Context, spec: QuerySpec, stored: StoredQuery, before: Reopened) -> Move:
    """The move of a sketch captured for the query as `before`; RecaptureNeededError if none."""
    after = reopened(ctx, spec, stored, is_of_now=True)
    moments = moved_moments(ctx, stored)
    reason = moved_text(moments)
    plan, new = before.plan, after.plan
    if plan.mode is not new.mode or before.core_verdict != after.core_verdict:
        raise _stays(spec, reason, _KEPT_OTHERWISE)
    assert plan.core is not None
    assert new.core is not None
    is_exact = plan.mode is MaintenanceMode.EXACT
    conditions = moved_conditions(plan.core, new.core, is_open_above=is_exact)
    if conditions is None:
        raise _stays(spec, reason, _READS_OTHERWISE if is_exact else _NO_GROUPS.format(plan.reason))
    circuit, above, touched = ctx.memory.circuit(new.core), None, None
    circuit = circuit if new.answer is None else with_answer(circuit)
    names = frozenset(moments)
    if is_exact:
        above = _above(spec, reason, plan, new, conditions, names)
    else:
        (partition,) = after.partitions.values()
        conditions, touched = _touched(spec, reason, new.core, conditions, partition)
    return Move(
        plan=new,
        conditions=conditions,
        above=above,
        touched=touched,
        moments=after.prepared.moments,
        circuit=circuit,
        reason=reason,
        tables=ctx.tables,
        names=names,
        answer=None if plan.answer is None else plan.answer.ending,
    )


def _above(
    spec: QuerySpec,
    reason: str,
    plan: MaintenancePlan,
    new: MaintenancePlan,
    conditions: Moves,
    names: frozenset[str],
) -> MovedAbove:
    """What moved above conditions on rows of a table; nothing if only rows expire."""
    assert plan.compiled is not None
    assert new.compiled is not None
    if new.has_tree and names != {RUN_INSTANT}:
        raise _stays(spec, reason, "its joins are a tree (`join: tree`)")
    above = moved_above(plan.compiled, new.compiled, conditions)
    if above is None:
        raise _stays(spec, reason, _KEPT_OTHERWISE)
    why = why_not_computable(new.compiled.circuit, above)
    if why is not None:
        raise _stays(spec, reason, why)
    return above


def _touched(
    spec: QuerySpec, reason: str, core: Plan, moves: Moves, partition: RangePartition
) -> tuple[Moves, Source | None]:
    (scan,) = core.scans
    if scan.access not in moves:
        return {}, None
    moved = judged_alone(moves[scan.access])
    source = None if moved is None else touched_source(scan, moved, partition)
    if moved is None or source is None:
        raise _stays(spec, reason, "only Spark can evaluate the condition that contains it")
    return {scan.access: moved}, source


def _stays(spec: QuerySpec, moved: str, why: str) -> RecaptureNeededError:
    return RecaptureNeededError(
        f"{moved}, and the sketch of query `{spec.name}` cannot be updated for that: {why}",
        code="clock_not_followed",
        hint="a condition such as `day >= current_date - INTERVAL 30 DAYS` can be maintained; "
        "with policy `auto`, `maintain` recaptures other queries",
    )


# Law: deciding reads the store (by its reading half), the tables' logs and changes. Queries are
# opened first, so that each table's change is read once for all. What a policy forbids is refused
# before anything is written; a recapture says why it was chosen.

_MEGABYTE = 1 << 20

Stale = Sequence[tuple[QuerySpec, StoredQuery]]
NOT_INCREMENTALLY = (RecaptureNeededError, EvaluationError, TableError)
"""What prevents maintenance. Only `auto` recaptures for the last two: the failing row may be
deleted by now, and Spark may read what impctl cannot."""


class Decider:
    """The decider of one run; failures go to the caller's list."""

    def __init__(
        self,
        ctx: Context,
        store: StoreReader,
        failures: list[Failure],
        cache: StateCache | None = None,
    ) -> None:
        self.ctx = ctx
        self.store = store
        self.failures = failures
        self.cache = cache
        self.shared = SharedChanges(ctx.tables, ctx.reporter)

    def opened(self, stale: Stale) -> list[StaleQuery]:
        """Open the tasks and announce their changes; failing queries are recorded."""
        tasks: list[StaleQuery] = []
        for spec, stored in stale:
            with Isolated(self.failures, spec):
                task = open_task(self.ctx, self.store, spec, stored, self.cache)
                if task.state is not None:
                    self.shared.announce(needs_of(self.ctx.tables, task.state))
                tasks.append(task)
        return tasks

    def decide_all(self, stale: Stale) -> list[Decision]:
        """What would be done with each; failing queries are recorded."""
        from impctl.service.capture_plan import plan_capture

        result: list[Decision] = []
        for task in self.opened(stale):
            with Isolated(self.failures, task.spec):
                decision = self.decide(task, is_checked=True)
                if decision.is_recapture:
                    capture = plan_capture(self.ctx, prepare(self.ctx, task.spec))
                    decision = replace(decision, by=capture.by(self.ctx))
                result.append(decision)
        return result

    def decide(self, task: StaleQuery, *, is_checked: bool = False) -> Decision:
        """Decide, and read the change; `is_checked` also checks it as a run would."""
        policy = self.ctx.policy(task.spec)
        _refuse(task, policy)
        if task.trouble is None and policy is not Policy.FULL:
            try:
                return self._incremental(task, policy, is_checked)
            except NOT_INCREMENTALLY as trouble:
                return self.instead(task, trouble)
        return _recapture_of(task)

    def instead(self, task: StaleQuery, trouble: ImpctlError) -> Decision:
        """The recapture after `trouble`, noted in the task; raises if the policy forbids it."""
        policy = self.ctx.policy(task.spec)
        if not isinstance(trouble, RecaptureNeededError) and policy is not Policy.AUTO:
            raise trouble
        task.trouble = trouble
        _refuse(task, policy)
        return _recapture_of(task)

    def size(self, needs: Sequence[ChangeRequest]) -> ChangeSize | None:
        """Size of these changes by the log; None if it cannot be read."""
        result = [self.shared.size(need.span) for need in needs]
        sizes = [size for size in result if size is not None]
        if len(sizes) < len(result):
            return None
        rows = [size.rows for size in sizes if size.rows is not None]
        counted = sum(rows) if len(rows) == len(sizes) else None
        return ChangeSize(counted, sum(size.bytes for size in sizes))

    def changed_bytes(self, decision: Decision) -> int:
        """Bytes of the changes to maintain by the log, 0 if it cannot be read."""
        size = self.size(decision.needs)
        return 0 if size is None else size.bytes

    def _incremental(self, task: StaleQuery, policy: Policy, is_checked: bool) -> Decision:
        """Exact or touch; or recapture if it is cheaper and the policy allows it."""
        assert task.state is not None
        needs = needs_of(self.ctx.tables, task.state)
        decision = self._carried(task, task.state.plan, needs)
        cheaper = self._cheaper(decision) if policy is Policy.AUTO else None
        if cheaper is not None:
            return cheaper
        if decision.is_grouped:
            return decision
        deltas = tuple(map(self.shared.delta, needs))
        if is_checked:
            check_assumptions(task.stored, deltas)
        return replace(decision, deltas=deltas)

    def _carried(
        self, task: StaleQuery, plan: MaintenancePlan, needs: tuple[ChangeRequest, ...]
    ) -> Decision:
        move = task.move
        code = "incremental" if plan.mode is MaintenanceMode.EXACT else "touch_keyed"
        decision = Decision(task, str(plan.mode), code, plan.reason, ENGINE, needs)
        if move is not None and move.is_of_expiry:
            # With new versions their change is maintained, at another instant.
            if not needs:
                decision = replace(decision, reason_code=EXPIRED, reason=move.reason)
        elif move is not None:
            decision = replace(
                decision, reason_code=CLOCK_MOVED, reason=f"{move.reason}; {plan.reason}"
            )
        elif self._is_large(plan.compiled, needs):
            reason = "a large change, grouped by Spark first"
            return replace(decision, reason_code=GROUPED_BY_SPARK, reason=reason, by=SPARK)
        if plan.compiled is not None and plan.compiled.asks_spark:
            return replace(decision, by=f"{ENGINE} and {SPARK}")
        return decision

    def _is_large(self, compiled: Dataflow | None, needs: Sequence[ChangeRequest]) -> bool:
        """Whether Spark groups the change first: enough bytes changed, and the plan allows it."""
        if compiled is None or compiled.chain is None or len(needs) != 1:
            return False
        size = self.shared.size(needs[0].span)
        return size is not None and size.bytes > self.ctx.settings.large_change * _MEGABYTE

    def _cheaper(self, decision: Decision) -> Decision | None:
        """A recapture if that is estimated to be clearly cheaper. An eager query needs a sketch for
        every version, which no recapture gives."""
        task = decision.task
        if task.is_eager:
            return None
        result = if_recapture_is_cheaper(
            recorded(self.store, task.stored),
            decision.cost_kind,
            lambda: self.size(decision.needs),
            has_spark=self.ctx.has_spark,
            table_rows=lambda: self.ctx.tables.rows_of(tuple(task.stored.versions)),
            moved=[need.table for need in decision.needs],
        )
        if result is None:
            return None
        return Decision(task, "recapture", RECAPTURE_CHEAPER, reason_text(result))


def _refuse(task: StaleQuery, policy: Policy) -> None:
    trouble = task.trouble
    if policy is Policy.INCREMENTAL and trouble is not None:
        raise trouble
    if policy is not Policy.STRICT:
        return
    reason = trouble.message if trouble is not None else None
    if reason is None and task.state is not None and task.state.plan.mode is MaintenanceMode.TOUCH:
        reason = task.state.plan.reason
    if reason is not None:
        raise PolicyRefusedError(
            f"Policy `strict` allows exact maintenance only: {reason}",
            # What only a recapture mends, `incremental` does not do either.
            hint="set the query's policy to `auto`"
            + (" or `incremental`" if trouble is None else "")
            + ", or capture it again",
            location=None if trouble is None else trouble.location,
        )


def check_assumptions(stored: StoredQuery, deltas: Iterable[TableDelta]) -> None:
    """AssumptionBrokenError if an inserted row breaks an assumption of the sketch."""
    for delta in deltas if stored.assumptions else ():
        recheck(stored.assumptions, delta.ending, delta.changes.table, delta.changes.weights)


def _recapture_of(task: StaleQuery) -> Decision:
    if task.trouble is None:
        return Decision(task, "recapture", "policy_full", "policy `full` always recaptures")
    return Decision(task, "recapture", task.trouble.code, task.trouble.message)
