"""Move a sketch on with the clock: which conditions move, and which rows come or go.

Law: moved are conditions right above scans, and in exact mode constants above rows that the state
can list; a constant elsewhere, another circuit or another verdict requires a recapture by name.
Rows are read from the newest version, except from files whose statistics prove that no row comes or
goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

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
from impctl.errors import RecaptureNeededError
from impctl.plan.lineage import moved_conditions
from impctl.plan.nodes import Plan
from impctl.service.filters import files_satisfying
from impctl.service.maintenance_plan import Reopened, reopened
from impctl.service.stored import moved_moments, moved_text
from impctl.sketch.sketch import MaintenanceMode
from impctl.sql.parameters import RUN_INSTANT
from impctl.tables.rows import read_batches

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.compile.compile import MaintenancePlan
    from impctl.compile.flows import Source
    from impctl.engine.batch import Batch
    from impctl.rules.finalize import FinalSteps
    from impctl.service.context import Context
    from impctl.service.pinned import PinnedTables
    from impctl.sketch.sketch import RangePartition
    from impctl.store.records import StoredQuery
    from impctl.tables.snapshot import DataFile, Snapshot
    from impctl.types import TableName
    from impctl.workload.models import QuerySpec

_KEPT_OTHERWISE = "the new value requires another way to maintain the query"
_READS_OTHERWISE = "the new value changes what the query groups, sums or joins"
_NO_GROUPS = (
    "it occurs outside conditions on rows of a table, and conservative maintenance "
    "stores no groups to evaluate it on: {}"
)


class FilesRead(Struct):
    """Files read for rows that move, each counted once."""

    uris: set[str] = field(default_factory=set)
    of: dict[TableName, int] = field(default_factory=dict)

    def add(self, snapshot: Snapshot, files: Iterable[DataFile]) -> None:
        self.uris.update(file.uri for file in files)
        self.of[snapshot.table] = len(snapshot.files)

    @property
    def read(self) -> int:
        return len(self.uris)

    @property
    def total(self) -> int:
        return sum(self.of.values())


class Move(Struct, frozen=True):
    """What moves with the clock. `conditions` are by access. `plan` has the circuit after the move,
    which the earlier state fits. `above` are its operators whose constants moved (exact mode);
    `touched` reads what moves (touch mode). `answer` is the materialized result before the move.
    `names` are the moments that moved; `files` counts what is read."""

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
    files: FilesRead = field(default_factory=FilesRead)

    @property
    def is_of_expiry(self) -> bool:
        return self.names == {RUN_INSTANT}

    def snapshot(self, table: TableName) -> Snapshot:
        return self.tables.snapshot(table)

    def rows(self, moving: Sequence[Moving]) -> Iterator[pa.Table]:
        snapshot = self.snapshot(moving[0][0].table)
        meeting = (files_satisfying(snapshot, source, m.rows_that_move) for source, m in moving)
        uris = {file.uri for result in meeting for file in result}
        files = tuple(file for file in snapshot.files if file.uri in uris)
        self.files.add(snapshot, files)
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
