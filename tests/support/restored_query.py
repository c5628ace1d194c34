"""Queries taken up again from what a store would hold of their state, and what they tell."""

from __future__ import annotations

import pyarrow as pa

from impctl.compile.session import MaintainedQuery

Stored = dict[tuple[str, int], pa.Table]
"""What a store would hold of a query's state."""


def restored(session: MaintainedQuery, stored: Stored, fresh: MaintainedQuery) -> MaintainedQuery:
    """A session that takes up where another one stopped, by way of what a store would hold."""
    checkpoint = session.checkpoint()
    session.saved()
    for name, sequence in checkpoint.drop:
        del stored[name, sequence]
    stored.update({(name, sequence): table for name, sequence, table in checkpoint.put})
    runs: dict[str, list[tuple[int, pa.Table]]] = {}
    for (name, sequence), table in sorted(stored.items(), key=lambda item: item[0]):
        runs.setdefault(name, []).append((sequence, table))
    kept = {keeper.name for keeper in fresh.keepers()}
    for name, sequence in [key for key in stored if key[0] not in kept]:
        del stored[name, sequence]
    fresh.restore(runs, checkpoint.counters, is_converted=True)
    return fresh


def sketches_of(query: MaintainedQuery) -> dict[str, set[int]]:
    return {access: set(result) for access, result in query.fragments().items()}


def counts_of(query: MaintainedQuery) -> list[list[int]]:
    """The rows that carry each fragment, per access."""
    return [count.tolist() for count in query.merge.counts]
