"""One query's state brought to another choice of what is kept, in one commit.

Law: sketch, versions and counts stay as they are (`circuits.reading.handed_over`); a process that
is killed leaves the old choice whole or the new one.
Out of scope: which choice (`keeping.choice`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace

from impctl.app.capturing.chosen_way import chosen_way
from impctl.app.capturing.join_choice import JoinChooser
from impctl.app.capturing.meta import StateMeta
from impctl.app.capturing.partners.by_files import FilePartners
from impctl.app.capturing.pins import check_not_replaced_meanwhile
from impctl.app.capturing.taken_up import TakenUp
from impctl.app.maintaining.keeping.opened import Opened
from impctl.app.workbench.workbench import Workbench
from impctl.circuits.checkpoint import Checkpoint
from impctl.circuits.reading.handed_over import hand_over, sides_of
from impctl.circuits.session import MaintainedQuery
from impctl.circuits.strategy import AsRecorded, Strategy
from impctl.engine.row_index import RowIndex
from impctl.stopwatch import Stopwatch
from impctl.store.records import MaintainCommit, RunRecord
from impctl.store.store import Store

CONVERTED = "state_converted"


def convert(
    desk: Workbench,
    store: Store,
    query: Opened,
    from_files: Collection[str],
    reasons: Mapping[str, str],
) -> None:
    """Keep all sides of the query's joins and all groups but those `from_files`, and sides that
    Spark reads.

    `reasons` say why, by piece; those of what is kept otherwise now go into the history.
    Raises HistoryGoneError where a piece is to be kept again whose tables cannot be read any more,
    RetryableError where another took the place of one.
    """
    watch, at = Stopwatch(), time.time()
    held = query.as_stored
    runs = store.load_runs(query.stored.query)
    taken = TakenUp(held.way, query.stored, runs)
    assert taken.session is not None
    by_spark = query.compiled.sides_by(Strategy.SPARK)
    recorded = held.chooser.sides
    sides = AsRecorded(by_spark, recorded.has_filter, tuple(from_files), reasons)
    chooser = JoinChooser(sides, held.chooser.trees)
    way = chosen_way(
        held.prepared, held.verdict, held.partitions, chooser, has_answer=held.meta.answer
    )
    assert way.compiled is not None
    after = MaintainedQuery(way.compiled)
    after.restore(runs, held.meta.counters)
    partners = FilePartners(desk, query.compiled, held.partitions, query.stored.versions)
    hand_over(taken.session, after, partners.whole)
    check_not_replaced_meanwhile(query.stored, desk.tables)
    _commit(store, query, taken.session, after, (watch, at), reasons)


def _commit(
    store: Store,
    query: Opened,
    before: MaintainedQuery,
    after: MaintainedQuery,
    begun: tuple[Stopwatch, float],
    reasons: Mapping[str, str],
) -> None:
    checkpoint, stored = after.checkpoint(), query.stored
    kept = {keeper.name for keeper in after.keepers()}
    refs = store.run_refs(stored.query)
    gone = [(run.arrangement, run.sequence) for run in refs if run.arrangement not in kept]
    from_files = after.compiled.sides_by(Strategy.FILES)
    meta = replace(_meta(query, before, from_files, checkpoint), side_reasons=dict(reasons))
    moved = set(from_files) ^ set(query.compiled.sides_by(Strategy.FILES))
    reason = "; ".join(f"{side}: {why}" for side, why in reasons.items() if side in moved)
    commit = MaintainCommit(
        query=stored.query,
        expected_generation=stored.generation,
        pins=stored.pins,
        put_runs=checkpoint.put,
        drop_runs=(*checkpoint.drop, *gone),
        state_meta=meta.as_stored(),
        basis=meta.basis(stored.pins),
        record=_record(query, begun, reason),
        # Nothing was maintained: when that was tells how long changes may have waited.
        at=stored.maintained_at,
    )
    store.commit_maintain(commit)


def _meta(
    query: Opened, before: MaintainedQuery, from_files: Collection[str], checkpoint: Checkpoint
) -> StateMeta:
    """What is told of the state, with the rows of sides and the groups that were kept."""
    held = {name: one.rows for name, one in sides_of(before).items() if isinstance(one, RowIndex)}
    groups = [one for one in before.circuit if one.piece in from_files and not one.reads]
    held |= {one.piece: len(one.group_codes()) for one in groups}
    meta = query.as_stored.meta
    rows = {**meta.read_rows, **held}
    sizes = {**meta.group_bytes, **{one.piece: query.bytes_of(one) for one in groups}}
    return replace(
        meta,
        from_files=tuple(from_files),
        read_rows={name: rows[name] for name in from_files if name in rows},
        group_bytes={name: sizes[name] for name in from_files if name in sizes},
        counters=dict(checkpoint.counters),
    )


def _record(query: Opened, begun: tuple[Stopwatch, float], reason: str) -> RunRecord:
    watch, at = begun
    return RunRecord(
        action="convert",
        reason_code=CONVERTED,
        reason=reason,
        started_at=at,
        elapsed_ms=watch.ms,
        read_ms=0.0,
        engine_ms=watch.ms,
        commit_ms=0.0,
        changes=0,
        added=0,
        removed=0,
        versions=dict(query.stored.versions),
    )
