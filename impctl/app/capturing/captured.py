"""One query captured: its attribute chosen, its sketch and state found, both stored.

Law: the sketch covers the query's provenance at exactly the versions stored with it; sketch, state
and versions are stored in one transaction, or the store stays as it was. Where the query can be
maintained exactly, one pass gives both sketch and state.
Out of scope: which attribute (`app.preparing.choice`), what is about to be done
(`app.capturing.stage`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from impctl.app.capturing.commit import amend, commit_capture
from impctl.app.capturing.fill import best_filled
from impctl.app.capturing.fill_by_spark import touched
from impctl.app.capturing.recapture import recaptured
from impctl.app.capturing.stage import CaptureStage, capture_stage
from impctl.app.preparing.facts import assumption_of
from impctl.app.preparing.lineage_use import lineage_warnings
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.results.explanations import CandidateEntry
from impctl.app.workbench.pinned import PinnedTables
from impctl.app.workbench.workbench import Workbench
from impctl.compile.compile import Way
from impctl.compile.session import MaintainedQuery, TouchedQuery
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import FragmentSet, Mode
from impctl.stopwatch import Stopwatch
from impctl.store.records import Assumption, RunCost, RunKind, RunRecord, StoredSketch
from impctl.store.store import Store
from impctl.types import AccessId, QueryName, TableName, TableVersion
from impctl.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """What was stored for one query, and what it cost."""

    sketches: tuple[StoredSketch, ...]
    mode: Mode
    reason: str
    candidates: tuple[CandidateEntry, ...]
    assumptions: tuple[Assumption, ...]
    versions: Mapping[str, int]
    spark_ms: float
    engine_ms: float
    commit_ms: float
    elapsed_ms: float
    no_answer: str = ""
    """Why the answer is not kept, where it is to be."""
    no_provenance: str = ""
    """Why recursion is not kept by absorption, where it is to be."""
    lineage_warnings: Sequence[str] = ()
    """What to say of the lineage that is asked for."""


Tell = Callable[[Way, MaintainedQuery | TouchedQuery | None], None]
"""Told of what is about to be committed: how it is maintained, and its state."""


def capture_query(
    desk: Workbench,
    store: Store,
    prepared: PreparedQuery,
    *,
    code: str,
    reason: str,
    tell: Tell | None = None,
) -> Captured:
    """Choose, capture and store; replaces what the query had. `tell` is called right before."""
    whole, spark_started = Stopwatch(), desk.spark_start_ms
    stage = capture_stage(desk, prepared)
    chosen, partitions = stage.chosen, stage.partitions
    reading = Stopwatch()
    found_ = _found(desk, stage)
    result, way, pass_ms = found_.fragments, found_.way, reading.ms
    spark_ms, engine_ms = (pass_ms, 0.0) if found_.uses_spark else (0.0, pass_ms)
    sketches = stored_sketches(prepared, partitions, result)
    assumptions = tuple(assumption_of(fact) for fact in chosen.verdict.assumptions)
    versions = desk.tables.versions_of(prepared.tables)
    elapsed_ms, started_ms = whole.ms, desk.spark_start_ms - spark_started
    record = replace(
        _record(code, reason, result, versions),
        elapsed_ms=elapsed_ms,
        read_ms=spark_ms,
        engine_ms=engine_ms,
        cost=_cost(desk.tables, prepared, elapsed_ms, found_, started_ms),
    )
    committing = Stopwatch()
    if tell is not None:
        tell(way, found_.state)
    record = commit_capture(desk, store, prepared, way, found_.state, sketches, assumptions, record)
    commit_ms, elapsed_ms = committing.ms, whole.ms
    amend(store, prepared.spec.name, record, commit_ms)
    return Captured(
        sketches=sketches,
        mode=way.mode,
        reason=way.reason,
        candidates=chosen.candidates,
        assumptions=assumptions,
        versions=versions,
        spark_ms=spark_ms,
        engine_ms=engine_ms,
        commit_ms=commit_ms,
        elapsed_ms=elapsed_ms,
        no_answer=_no_answer(prepared, way),
        no_provenance=way.no_provenance,
        lineage_warnings=tuple(lineage_warnings(desk.tables, prepared, chosen)),
    )


def without_provenance(query: QueryName, why: str) -> str:
    """What to say of a query whose recursion is not kept by absorption."""
    return (
        f"no provenance is stored for query `{query}`: {why}; its sketch is the same "
        "without it, and `why` reads the tables"
    )


def _no_answer(prepared: PreparedQuery, way: Way) -> str:
    """Why the answer is not kept, where it is to be."""
    if not prepared.spec.answer or way.answer is not None:
        return ""
    return way.no_answer


def _record(
    code: str,
    reason: str,
    result: Mapping[AccessId, FragmentSet],
    versions: Mapping[TableName, TableVersion],
) -> RunRecord:
    """What is told of a capture; what it took is still to be said."""
    return RunRecord(
        action="capture" if code == "asked" else "recapture",
        reason_code=code,
        reason=reason,
        started_at=time.time(),
        elapsed_ms=0.0,
        read_ms=0.0,
        engine_ms=0.0,
        commit_ms=0.0,
        changes=0,
        added=sum(len(fragments) for fragments in result.values()),
        removed=0,
        versions=versions,
    )


def _cost(
    tables: PinnedTables,
    prepared: PreparedQuery,
    elapsed_ms: float,
    result: _Found,
    start_ms: float,
) -> RunCost:
    """What the capture took, without starting Spark, and from how much."""
    size = sum(tables.snapshot(table).bytes for table in prepared.tables)
    return RunCost(
        RunKind.RECAPTURE,
        tables.rows_of(prepared.tables),
        size,
        max(0.0, elapsed_ms - start_ms),
        result.uses_spark,
        start_ms,
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """The sketch of every access, the state to maintain it (if any), who found them."""

    way: Way
    fragments: Mapping[AccessId, FragmentSet]
    state: MaintainedQuery | TouchedQuery | None
    uses_spark: bool


def _found(desk: Workbench, stage: CaptureStage) -> _Found:
    prepared, chosen, partitions = stage.prepared, stage.chosen, stage.partitions
    way, filled = stage.way, None
    if way.mode is Mode.EXACT:
        way, filled = best_filled(desk, prepared, way, chosen.verdict, partitions)
    if filled is None:
        result = recaptured(desk, prepared, chosen.verdict, partitions)
        state = touched(desk, prepared, partitions, result) if way.mode is Mode.TOUCH else None
        return _Found(way, result, state, True)
    return _Found(way, filled.session.fragments(), filled.session, filled.uses_spark)


def stored_sketches(
    prepared: PreparedQuery,
    partitions: Mapping[AccessId, RangePartition],
    result: Mapping[AccessId, FragmentSet],
) -> tuple[StoredSketch, ...]:
    """The sketches as the store holds them."""
    tables = prepared.table_of
    return tuple(
        StoredSketch(access, tables[access], partition.attribute, partition, result[access])
        for access, partition in partitions.items()
    )
