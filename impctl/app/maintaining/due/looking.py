"""Looking at what is pending for each query, and when that makes it due.

Law: reads the store and the tables' logs, never a data file; where nothing is pending, no more than
a run with nothing to do reads, but for queries with `ready_within`: of their tables the histories,
too. Out of scope: what follows from it (`app.maintaining.due.when`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from impctl.app.maintaining.due.costs import costs_of
from impctl.app.maintaining.due.expected_rows import RowsToCome
from impctl.app.maintaining.due.pending import CommitLog, pending_of
from impctl.app.maintaining.due.when import Waiting
from impctl.app.maintaining.estimates import recorded
from impctl.app.results.due import FreshEntry
from impctl.app.workbench.workbench import Workbench
from impctl.errors import ImpctlError
from impctl.store.reader import StoreReader
from impctl.store.records import StoredQuery, TablePin
from impctl.types import QueryName
from impctl.workload.models import ON_COMMIT, QuerySpec, Trigger


def now_of(desk: Workbench) -> float:
    """What time it is, in seconds since 1970; as `IMPCTL_NOW` has it, where that is set."""
    return time.time() if desk.settings.now is None else desk.clock.instant.timestamp()


def trigger_of(spec: QuerySpec) -> Trigger:
    """The query's trigger; without one each commit is."""
    return ON_COMMIT if spec.trigger is None else spec.trigger


def looked_at(
    desk: Workbench,
    specs: Sequence[QuerySpec],
    look: float,
    log: CommitLog,
    triggers: Mapping[QueryName, Trigger] | None = None,
) -> list[Waiting]:
    """What waits for each of the queries, at the versions that are pinned when it is asked.

    `look` are the seconds until the next look; `triggers` are by query, None for their own.
    """
    store, now = desk.reading_store(), now_of(desk)
    held = {spec.name: _stored(store, spec) for spec in specs}
    own = {spec.name: trigger_of(spec) for spec in specs} if triggers is None else triggers
    coming = RowsToCome(
        desk,
        store,
        {
            name: stored.versions
            for name, stored in held.items()
            if stored is not None and own[name].ready_within is not None
        },
        now,
    )
    result: list[Waiting] = []
    pins: list[TablePin] = []
    for spec in specs:
        stored = held[spec.name]
        trigger = own[spec.name]
        pending = pending_of(desk, spec, stored, now, log)
        runs = recorded(store, stored) if store is not None and stored is not None else ()
        # Only who has to be ready at a moment asks for what is yet to come.
        expected = None if trigger.ready_within is None else coming
        costs = costs_of(spec.name, trigger, pending, runs, (now, now + look), expected)
        last = None if stored is None else stored.maintained_at
        result.append(Waiting(spec.name, trigger, pending, costs, last))
        pins += () if stored is None else stored.pins
    log.keep(pins)
    return result


def fresh_entry(desk: Workbench, spec: QuerySpec, stored: StoredQuery) -> FreshEntry | None:
    """How old what is pending is, against the query's bound; None where the logs do not tell."""
    now, bound = now_of(desk), trigger_of(spec).fresh_within
    pending = pending_of(desk, spec, stored, now, CommitLog())
    if pending.unsure is not None:
        return None
    age = 0.0 if pending.oldest is None else now - pending.oldest
    return FreshEntry(bound, age, bound is not None and age > bound)


def _stored(store: StoreReader | None, spec: QuerySpec) -> StoredQuery | None:
    """What the store has of the query; None where it cannot be read, which the run then tells."""
    try:
        return None if store is None else store.load(spec.name)
    except ImpctlError:
        return None
