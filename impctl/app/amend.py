"""A run's record put right once its commit is timed, where that took a part worth telling.

Law: a quick commit is left out of its record, because a second one would cost as much as it tells.
Out of scope: the record itself (`app.maintainer`, `app.capture`).
"""

from __future__ import annotations

from dataclasses import replace

from impctl.aliases import QueryName
from impctl.store.records import RunRecord
from impctl.store.store import Store

_WORTH_TELLING_MS = 20.0
"""Some hundred times as long as the second, unsynced commit takes."""


def amend(store: Store, query: QueryName, record: RunRecord, commit_ms: float) -> None:
    """Add a long commit to the latest record of the query, which is this one, and to its cost."""
    if commit_ms < _WORTH_TELLING_MS:
        return
    cost = record.cost
    if cost is not None:
        cost = replace(cost, elapsed_ms=cost.elapsed_ms + commit_ms)
    elapsed_ms = record.elapsed_ms + commit_ms
    store.amend_record(
        query, replace(record, elapsed_ms=elapsed_ms, commit_ms=commit_ms, cost=cost)
    )
