"""What a plan says of state under a budget: each piece that may be left out, its mode, and why.

Law: the choice is the one that the next run which looks at the budget makes, and what is kept now
where that run would leave it; without a budget nothing is chosen, and nothing said.
Out of scope: when that is (`keeping.keep_to`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from impctl.app.maintaining.keeping.bounds import unheld_text
from impctl.app.maintaining.keeping.choice import Kept, kept_within
from impctl.app.maintaining.keeping.opened import state_bytes
from impctl.app.maintaining.keeping.worth import is_worth
from impctl.app.results.foreseen import PlannedPiece, PlanResult
from impctl.app.workbench.settings import disk_of
from impctl.app.workbench.workbench import Workbench
from impctl.compile.flows import Strategy
from impctl.placement.graph import Mode
from impctl.store.reader import StoreReader
from impctl.types import QueryName

_STAYS = "converting saves too little: "


def with_state(
    desk: Workbench, store: StoreReader | None, results: Sequence[PlanResult]
) -> tuple[list[PlanResult], list[str]]:
    """The results, each of a stored query with what would be kept of it; and warnings of bounds
    that this would not hold."""
    budget = disk_of(desk.settings, desk.workload)
    if store is None or budget is None:
        return list(results), []
    specs = desk.sketched(None)
    kept = kept_within(desk, store, specs, budget)
    is_over = state_bytes(store, [spec.name for spec in specs]) > budget
    stays = not is_worth(kept, is_over=is_over)
    told = [replace(each, state=tuple(_pieces(kept, each.query, stays))) for each in results]
    return told, [] if stays else [unheld_text(one, kept.fixed) for one in kept.unheld]


def _pieces(kept: Kept, query: QueryName, stays: bool) -> Iterator[PlannedPiece]:
    """What files can be read for, or can be bounded, in the circuit's order; `stays`: as it is kept
    now."""
    if query not in kept.queries:
        return
    opened = kept.queries[query]
    left_out = {side.side for side in opened.compiled.pieces if Strategy.FILES in side.readers}
    left_out |= kept.sizes[query].keys()
    known = {piece.name: piece for piece in kept.graphs[query].pieces}
    for piece in kept.choice.queries[query].pieces.values():
        if piece.name in left_out and piece.kept_bytes is not None:
            mode, now = piece.mode, kept.now[query][piece.name]
            size, reason, buffer = piece.bytes, piece.reason, kept.sizes[query].get(piece.name)
            if stays and mode is not now:
                size = known[piece.name].sizes[now]
                mode, reason = now, f"{_STAYS}{reason}"
            if stays:
                buffer = opened.as_stored.meta.buffers.get(piece.name)
            yield PlannedPiece(
                piece.name,
                known[piece.name].word(mode),
                known[piece.name].word(now),
                size,
                piece.kept_bytes,
                reason,
                buffer if mode is Mode.BOUNDED else None,
            )
