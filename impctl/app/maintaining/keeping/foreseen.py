"""What a plan says of state under a budget: each piece that may be left out, its mode, and why.

Law: the choice is the one that the next run which looks at the budget makes; without a budget
nothing is chosen, and nothing said.
Out of scope: when that is (`keeping.keep_to`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from impctl.aliases import QueryName
from impctl.app.maintaining.keeping.choice import Kept, kept_within
from impctl.app.results.foreseen import PlannedPiece, PlanResult
from impctl.app.workbench.settings import disk_of
from impctl.app.workbench.workbench import Workbench
from impctl.circuits.keeping.graph import Mode
from impctl.circuits.strategy import Strategy
from impctl.store.reader import StoreReader


def with_state(
    desk: Workbench, store: StoreReader | None, results: Sequence[PlanResult]
) -> list[PlanResult]:
    """The results, each of a stored query with what would be kept of it."""
    budget = disk_of(desk.settings, desk.workload)
    if store is None or budget is None:
        return list(results)
    kept = kept_within(desk, store, desk.sketched(None), budget)
    return [replace(each, state=tuple(_pieces(kept, each.query))) for each in results]


def _pieces(kept: Kept, query: QueryName) -> Iterator[PlannedPiece]:
    """What files can be read for, in the circuit's order."""
    if query not in kept.queries:
        return
    compiled = kept.queries[query].compiled
    readable = {side.side for side in compiled.pieces if Strategy.FILES in side.readers}
    read = compiled.sides_by(Strategy.FILES)
    for piece in kept.choice.queries[query].pieces.values():
        if piece.name in readable and piece.kept_bytes is not None:
            mode, now = str(piece.mode), str(Mode.READ if piece.name in read else Mode.KEPT)
            yield PlannedPiece(piece.name, mode, now, piece.bytes, piece.kept_bytes, piece.reason)
