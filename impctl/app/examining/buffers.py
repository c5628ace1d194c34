"""What is said of first rows and of values of MIN and MAX: kept whole or bounded, and why.

Law: what is stored is told as it is kept, and why is what the choice said that made it so; of what
nobody chose about it is what stands in the way of bounding it.
Out of scope: choosing (`app.maintaining.keeping`).
"""

from __future__ import annotations

from impctl.app.capturing.chosen_way import chosen_buffers, why_not_bounded
from impctl.app.capturing.meta import StateMeta
from impctl.app.examining.plan_lines import StoredPieces
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.results.explanations import BuffersEntry
from impctl.compile.buffers import BufferChoice
from impctl.compile.compile import Way
from impctl.compile.flows import Strategy

_OPEN = "all are stored unless a budget is too small"
_LEAST = "requested"


def buffer_entries(
    prepared: PreparedQuery, way: Way, kept: StoredPieces | None
) -> tuple[BuffersEntry, ...]:
    """Of each piece that has some, in the circuit's order; groups that are read have none."""
    if way.compiled is None:
        return ()
    read = way.sides_by(Strategy.FILES)
    chosen = chosen_buffers(prepared.spec, way.compiled)
    meta = None
    if kept is not None:
        meta = StateMeta.read(kept.stored.query, kept.stored.state_meta)
    return tuple(
        BuffersEntry(
            one.piece,
            one.tables,
            "kept" if one.size is None else "bounded",
            one.size,
            one.piece in chosen,
            _reason(prepared, meta, one, is_chosen=one.piece in chosen),
            None if kept is None else _bytes(kept, one.piece),
        )
        for one in way.compiled.buffers
        if one.piece not in read
    )


def _reason(
    prepared: PreparedQuery, meta: StateMeta | None, choice: BufferChoice, *, is_chosen: bool
) -> str:
    told = "" if meta is None else meta.side_reasons.get(choice.piece, "")
    if is_chosen:
        return told or _LEAST
    return why_not_bounded(prepared, meta, choice) or told or _OPEN


def _bytes(kept: StoredPieces, piece: str) -> int:
    names = (name for name in kept.pieces if name == piece or name.startswith(f"{piece}."))
    return sum(kept.pieces[name] for name in names)
