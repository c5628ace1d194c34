"""What one operator costs in a run, by the modes of its pieces and what is asked of it.

Law: a demand contains the weaker ones. Rows of all or of some keys come *with* the change, so that
what is new among them can be told: whatever is paid for the change is paid then too, and some keys
never cost more than all. So a flow that is asked for more is never cheaper. A step reads sides as
of before it: what is asked is asked of the keys that were there, so `hit` is the chance for these.
Every operator asks as much of an input as it needs for itself or for what is asked of it; a kept
piece needs changes alone.

| operator, mode | costs | asks of the input |
|---|---|---|
| scan | nothing · a keyed read · a read of all | |
| row by row | per row | the same, of every input |
| side kept | opened if anything is asked of the join; upkeep if it changes; probe if the other does | changes |
| side read | filter if either changes; chance of a hit x read if the other does | changes, or keys of the flow below; all if the join is asked for more than changes |
| side rebuilt | build and probe if the other changes | all if it is built, else changes |
| join asked for more | one side streamed past the other, which is built unless kept | all of a side that is not kept |
| keyed kept | opened and upkeep if active; rows or look-ups if asked for more | changes |
| keyed bounded | the same, and refills | changes |
| keyed read | filter, and chance of a hit x read, if active; the same read again for keys; build if asked for all | changes; all if asked for all |
| keyed rebuilt | build if active or asked for more | all if it is built, else changes |

Out of scope: adding up over a graph (`evaluated`), the best choice (`state_choice`).
"""  # noqa: E501 - a table

from __future__ import annotations

from collections.abc import Sequence

from impctl.circuits.keeping.graph import Demand, Mode, Node, PerKind, Piece, Work
from impctl.types import TableName
from impctl.values import dataclass

Read = tuple[tuple[TableName, ...], float]
"""Tables that are read together, and the milliseconds."""


@dataclass(frozen=True, slots=True)
class Own:
    """What one operator costs in a run, without those below: work, reads of tables; and asks."""

    work: float
    reads: tuple[Read, ...]
    asks: tuple[Demand, ...]
    """One for each input."""

    @property
    def cost(self) -> float:
        """Milliseconds in all."""
        return self.work + sum(read for _, read in self.reads)


def own(
    node: Node, active: Sequence[bool], modes: Sequence[Mode], kind: int, demand: Demand
) -> Own:
    """What the node costs in a run of this kind of change.

    `active` tells of each input whether it changes in such a run (of a scan: of itself, once);
    `modes` are those of the node's pieces.
    """
    match node.work:
        case Work.SCAN:
            return _scan(node, kind, demand)
        case Work.ROWS:
            return _rows(node, active, kind, demand)
        case Work.JOIN:
            return _join(node, active, modes, kind, demand)
        case Work.KEYED:
            return _keyed(node, active, modes, kind, demand)


def chance_of_hit(asked: float, fresh: float, known: float) -> float:
    """The chance that a step has to read a side: that one of the keys it asks is there before it.

    Of the `asked` keys, `fresh` come to this side in the same step and were not there; each of the
    others is there with probability `known`. Numbers of keys are expected ones, so not whole.
    """
    old = max(0.0, asked - fresh)
    if known >= 1:
        return min(1.0, old)
    return float(1 - (1 - max(0.0, known)) ** old)


def at_kind(costs: PerKind, kind: int) -> float:
    """The cost for one kind of change."""
    return costs[kind] if costs else 0.0


def _scan(node: Node, kind: int, demand: Demand) -> Own:
    if demand is Demand.DELTA:
        return Own(0.0, (), ())
    cost = at_kind(node.whole, kind)
    if demand is Demand.KEYS:
        cost = min(cost, at_kind(node.keys, kind))
    return Own(0.0, (((node.table,), cost),), ())


def _rows(node: Node, active: Sequence[bool], kind: int, demand: Demand) -> Own:
    return Own(_shared_by_modes(node, active, kind, demand), (), (demand,) * len(node.inputs))


def _shared_by_modes(node: Node, active: Sequence[bool], kind: int, demand: Demand) -> float:
    """What a node costs in any mode."""
    work = at_kind(node.delta, kind) if any(active) else 0.0
    if demand is Demand.KEYS:
        work += min(at_kind(node.keys, kind), at_kind(node.whole, kind))
    if demand is Demand.FULL:
        work += at_kind(node.whole, kind)
    return work


def _join(
    node: Node, active: Sequence[bool], modes: Sequence[Mode], kind: int, demand: Demand
) -> Own:
    # What some keys of pairs are is not known by side, so a join makes all of them.
    makes_all = demand is not Demand.DELTA
    work = _shared_by_modes(node, active, kind, Demand.FULL if makes_all else demand)
    reads: list[Read] = []
    asks: list[Demand] = []
    is_built = [False, False]
    for at, (piece, mode) in enumerate(zip(node.pieces, modes, strict=True)):
        other_changes = active[1 - at]
        ask = Demand.FULL if makes_all and mode is not Mode.KEPT else Demand.DELTA
        if mode is Mode.KEPT and (makes_all or any(active)):
            work += at_kind(piece.opened, kind)
        if mode is Mode.KEPT and active[at]:
            work += at_kind(piece.upkeep, kind)
        if mode is Mode.READ and any(active):
            work += at_kind(piece.noted, kind)
        if other_changes and mode is Mode.READ:
            read, keys = _read(piece, kind)
            reads += read
            ask = max(ask, keys)
        elif other_changes:
            work += at_kind(piece.probe, kind)
        if other_changes and mode is Mode.REBUILT:
            work += at_kind(piece.build, kind)
            is_built[at] = True
            ask = Demand.FULL
        asks.append(ask)
    if makes_all:
        is_there = [mode is Mode.KEPT or is_built[at] for at, mode in enumerate(modes)]
        work += min(
            at_kind(streamed.stream, kind) + (0 if there else at_kind(passed.build, kind))
            for streamed, passed, there in zip(
                node.pieces, node.pieces[::-1], is_there[::-1], strict=True
            )
        )
    return Own(work, tuple(reads), tuple(asks))


def _read(piece: Piece, kind: int) -> tuple[list[Read], Demand]:
    """What a side that is read costs when the other changes: reads of tables, and what it asks.

    A read from the flow below is asked for whenever it may hit; that is more than is expected.
    """
    hit = _chance(piece, kind)
    cost = hit * at_kind(piece.read, kind)
    if not piece.reads_below:
        return [(piece.source, cost)], Demand.DELTA
    return [((), cost)], Demand.KEYS if hit > 0 else Demand.DELTA


def _chance(piece: Piece, kind: int) -> float:
    return piece.hit[kind] if piece.hit else 1.0


def _keyed(
    node: Node, active: Sequence[bool], modes: Sequence[Mode], kind: int, demand: Demand
) -> Own:
    (piece,), (mode,) = node.pieces, modes
    is_active = any(active)
    work = _shared_by_modes(node, active, kind, demand)
    build, stream = at_kind(piece.build, kind), at_kind(piece.stream, kind)
    reads: list[Read] = []
    is_built = mode is Mode.READ and demand is Demand.FULL
    if mode is Mode.REBUILT:
        is_built = is_active or demand is not Demand.DELTA
    elif mode is Mode.READ:
        work += at_kind(piece.noted, kind) if is_active else 0.0
        read = _chance(piece, kind) * at_kind(piece.read, kind)
        reads += [(piece.source, read)] * is_active
        reads += [(piece.source, min(read, build + stream))] * (demand is Demand.KEYS)
    else:
        if is_active:
            work += at_kind(piece.upkeep, kind)
            work += at_kind(piece.refill, kind) if mode is Mode.BOUNDED else 0.0
        if is_active or demand is not Demand.DELTA:
            work += at_kind(piece.opened, kind)
        if demand is Demand.KEYS:
            work += min(at_kind(piece.lookup, kind), stream)
    work += build if is_built else 0.0
    work += stream if demand is Demand.FULL else 0.0
    ask = Demand.FULL if is_built else Demand.DELTA
    return Own(work, tuple(reads), (ask,) * len(node.inputs))
