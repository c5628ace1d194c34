"""What a commit writes of the state: new runs, dropped runs, counters.

Law: what `checkpoint_of` hands out is all that changed since the last one was saved.
Out of scope: committing it (`store`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from impctl.engine.operator import Keeper
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State to write: runs to put, as (arrangement, sequence, table), and to drop; counters."""

    put: tuple[tuple[str, int, pa.Table], ...]
    drop: tuple[tuple[str, int], ...]
    counters: Mapping[str, int]


def checkpoint_of(keepers: Iterable[Keeper], counters: Mapping[str, int]) -> Checkpoint:
    """The changes of all these."""
    put, drop = [], []
    for keeper in keepers:
        change = keeper.changes()
        put += [(keeper.name, sequence, table) for sequence, table in change.put]
        drop += [(keeper.name, sequence) for sequence in change.drop]
    return Checkpoint(tuple(put), tuple(drop), counters)
