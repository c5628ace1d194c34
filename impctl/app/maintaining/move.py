"""A sketch moved on with the clock: what has to move, and the rows that come or go by it.

Law: only conditions right above scans are moved; a constant anywhere else, another circuit or
another verdict asks for a recapture by name. Rows are read from the newest version's files, those
left out of which statistics prove that no row comes or goes.
Out of scope: the step itself (`circuits.session`), whether the clock moved
(`app.capturing.moments`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from impctl.aliases import TableName
from impctl.app.capturing.chosen_way import chooser_of, chosen_way, restored_verdict
from impctl.app.capturing.kept_plan import kept_plan
from impctl.app.capturing.meta import StateMeta
from impctl.app.capturing.moments import moved_moments, moved_text
from impctl.app.preparing.prepared import PreparedQuery, prepare
from impctl.app.preparing.wanted_files import files_meeting
from impctl.app.workbench.pinned import PinnedTables
from impctl.app.workbench.workbench import Workbench
from impctl.circuits.flows import Source
from impctl.circuits.moving import Moves
from impctl.circuits.way import Way
from impctl.errors import RecaptureNeededError
from impctl.plan.moved_conditions import MovedConditions, moved_conditions
from impctl.sketch.mode import Mode
from impctl.store.records import StoredQuery
from impctl.tables.rows import read_batches
from impctl.tables.snapshot import Snapshot
from impctl.workload.models import QuerySpec


@dataclass(frozen=True, slots=True)
class Move:
    """What moves: the conditions by access, the clock's values and the circuit's name after it.

    `way` has the circuit after the move, which the state of the one before fits.
    """

    way: Way
    conditions: Moves
    moments: Mapping[str, str]
    circuit: str
    reason: str
    tables: PinnedTables

    def snapshot(self, table: TableName) -> Snapshot:
        """The table as it is when the move is done."""
        return self.tables.snapshot(table)

    def rows(self, source: Source, moved: MovedConditions) -> Iterator[pa.Table]:
        """The rows of the files that may hold some that come or go."""
        snapshot = self.snapshot(source.table)
        files = files_meeting(snapshot, source, moved.rows_that_move)
        yield from read_batches(snapshot, source.scan.table_columns, files)


def move_of(
    desk: Workbench, spec: QuerySpec, stored: StoredQuery, before: PreparedQuery, way: Way
) -> Move:
    """The move of a sketch that stands for the query as it was `before`, in this way.

    RecaptureNeededError where it cannot be moved.
    """
    after = prepare(desk, spec)
    reason = moved_text(moved_moments(desk, stored))
    verdict, partitions = restored_verdict(desk.tables, after, stored)
    meta = StateMeta.read(stored.query, stored.state_meta)
    new = chosen_way(after, verdict, partitions, chooser_of(after, meta))
    if way.mode is not Mode.EXACT or new.mode is not Mode.EXACT:
        raise _stays(spec, reason, f"it is maintained by {way.mode}: {way.reason}")
    assert way.core is not None
    assert new.core is not None
    conditions = moved_conditions(way.core, new.core)
    if conditions is None:
        raise _stays(spec, reason, "it is asked elsewhere than in conditions on rows of a table")
    if new.compiled is not None and new.compiled.distant:
        raise _stays(spec, reason, "a side of a join is read by Spark")
    old_verdict, _ = restored_verdict(desk.tables, before, stored)
    sides = ((before, old_verdict), (after, verdict))
    old, now = (kept_plan(p, v, partitions).core_verdict(v, partitions) for p, v in sides)
    if old != now:
        raise _stays(spec, reason, "the query is kept otherwise with the new value")
    return Move(new, conditions, after.moments, desk.memory.circuit(new.core), reason, desk.tables)


def _stays(spec: QuerySpec, moved: str, why: str) -> RecaptureNeededError:
    return RecaptureNeededError(
        f"{moved}, and the sketch of query `{spec.name}` cannot follow: {why}",
        code="clock_not_followed",
        hint="a condition such as `day >= current_date - INTERVAL 30 DAYS` can be followed; with "
        "policy `auto` `maintain` recaptures others",
    )
