"""Queries taken up again from what a store would hold of their state, and their sketches told."""

from __future__ import annotations

import pyarrow as pa

from impctl.circuits.compile import Compiled
from impctl.circuits.session import MaintainedQuery


class Stored:
    """What a store would hold of a query's state."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[int, pa.Table]] = {}

    def taken_up(self, query: MaintainedQuery, compiled: Compiled) -> MaintainedQuery:
        """A fresh session that goes on from what is stored of this one."""
        for keeper in query.keepers():
            held, change = self.runs.setdefault(keeper.name, {}), keeper.changes()
            for sequence in change.drop:
                del held[sequence]
            held.update(change.put)
        query.saved()
        fresh = MaintainedQuery(compiled)
        runs = {name: sorted(held.items()) for name, held in self.runs.items()}
        fresh.restore(runs, query.circuit.counters())
        return fresh


def sketches_of(query: MaintainedQuery) -> dict[str, set[int]]:
    return {access: set(found) for access, found in query.fragments().items()}
