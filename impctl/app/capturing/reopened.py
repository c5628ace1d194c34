"""A stored query read again: its plan, its verdict, and the circuit that its state belongs to.

Law: reads the SQL, the tables' metadata and what the store says of the state; no state is loaded
and no change read. The plan is the one that the file has now, with the moments of the capture and
its choices; whether the state fits it is another question (`chosen_way.check_circuit`).
Out of scope: loading the state (`app.capturing.taken_up`).
"""

from __future__ import annotations

from collections.abc import Mapping

from impctl.app.capturing.chosen_way import chosen_way, restored_verdict
from impctl.app.capturing.join_choice import JoinChooser, chooser_of
from impctl.app.capturing.meta import StateMeta
from impctl.app.capturing.moments import stored_moments
from impctl.app.preparing.prepared import PreparedQuery, prepare
from impctl.app.workbench.workbench import Workbench
from impctl.compile.compile import Way
from impctl.safety.judge import Verdict
from impctl.sketch.partition import RangePartition
from impctl.store.records import StoredQuery
from impctl.types import AccessId
from impctl.values import dataclass
from impctl.workload.models import QuerySpec


@dataclass(frozen=True, slots=True)
class Reopened:
    """The query, why its sketch is safe, its partitions by access, and how its state is kept."""

    prepared: PreparedQuery
    verdict: Verdict
    partitions: Mapping[AccessId, RangePartition]
    meta: StateMeta
    chooser: JoinChooser
    way: Way


def reopened(desk: Workbench, spec: QuerySpec, stored: StoredQuery) -> Reopened:
    """The stored query as it reads now; RecaptureNeededError where it is no longer safe."""
    prepared = prepare(desk, spec, stored_moments(stored))
    verdict, partitions = restored_verdict(desk.tables, prepared, stored)
    meta = StateMeta.read(stored.query, stored.state_meta)
    chooser = chooser_of(prepared, meta)
    way = chosen_way(prepared, verdict, partitions, chooser, has_answer=meta.answer)
    return Reopened(prepared, verdict, partitions, meta, chooser, way)
