"""Which buffers a budget may bound, to how many rows or values, and what that takes and costs.

Law: only pieces that the engine can fill again and of which neither the workload nor the clock says
otherwise; a guess is only ever of a size and a cost. The size is a power of two, and stays while it
is enough and not four times what is needed. It holds what is wanted and what the deletions of one
run may take of one group: their mean and three times its root, as if each went for the best. What
is used up sooner is filled again, which costs a read.
Out of scope: whether a piece is bounded (`keeping.choice`), the buffers (`engine.lookups`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from impctl.app.capturing.chosen_way import why_not_bounded
from impctl.app.maintaining.keeping.opened import Opened
from impctl.compile.buffers import FEWEST, USUAL, BufferChoice
from impctl.placement.graph import PRIORS, Bounded, KindOfChange
from impctl.values import dataclass

_MS = 1e-6
_NUMBER = 8
"""Bytes of a number."""
_PAIR = 3 * _NUMBER
"""Bytes of a value of a group with its count, or of a group with its edge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a circuit: rows at a wire, changed rows at it in a run of each kind, and
    deleted ones among them."""

    rows: Callable[[int], float]
    changed: Callable[[int, KindOfChange], float]
    deleted: Callable[[int, KindOfChange], float]
    kinds: Sequence[KindOfChange]


def bounded_of(query: Opened, facts: Facts) -> Mapping[str, Bounded]:
    """What each piece that may be bounded takes and costs then, by its name."""
    prepared, meta = query.as_stored.prepared, query.as_stored.meta
    choices = [
        one
        for one in query.compiled.buffers
        if one.piece in meta.buffers or not why_not_bounded(prepared, meta, one)
    ]
    return {one.piece: _Piece(query, one, facts).bounded() for one in choices}


def size_for(wanted: int, deleted: float, now: int | None) -> int:
    """How many rows or values to keep of a group of which a run deletes so many in the mean."""
    needed = wanted + math.ceil(deleted + 3 * math.sqrt(deleted))
    size = max(FEWEST, 1 << (needed - 1).bit_length())
    size = min(size, max(USUAL.of_all or 0, wanted))
    return now if now is not None and needed <= now <= 4 * size else size


def chance_of_refill(changed: float, deleted: float, spare: float) -> float:
    """The chance that a run uses a buffer up, all groups together, in the long run.

    So many of its rows lie within buffers, of which a share is `deleted`; a buffer has so many to
    `spare`. Deletions that no new rows make up for use one up after `spare`; where they balance it
    goes up and down between none and twice as many, and takes some 3 times their square (the mean
    of such a walk from the middle to its lower end).
    """
    lost = changed * max(0.0, 2 * deleted - 1) / spare
    walked = changed * min(1.0, 2 * deleted) / (3 * spare * spare)
    return min(1.0, lost + walked)


def _place(query: Opened, choice: BufferChoice) -> int:
    operators = tuple(query.compiled.circuit)
    return next(at for at, one in enumerate(operators) if one.piece == choice.piece)


class _Piece:
    def __init__(self, query: Opened, choice: BufferChoice, facts: Facts) -> None:
        self._query, self._choice, self._facts = query, choice, facts
        compiled = query.compiled
        self._operators, self._wires = tuple(compiled.circuit), compiled.circuit.wires
        self._at = _place(query, choice)
        self._operator = self._operators[self._at]
        (self._wire,) = self._wires[self._at]
        meta = query.as_stored.meta
        self._rows = max(1.0, facts.rows(self._wire))
        groups = (
            facts.rows(self._at) if choice.is_values else meta.buffer_groups.get(choice.piece, 1)
        )
        self._groups = min(self._rows, max(1.0, groups))
        self._now = meta.buffers.get(choice.piece)

    def bounded(self) -> Bounded:
        most = max((self._deleted(kind) for kind in self._facts.kinds), default=0.0)
        size = size_for(self._choice.wanted, most / self._groups, self._now)
        held = float(self._held(size))
        is_best = min(1.0, held * self._groups / self._rows)
        spare = held - self._choice.wanted + 1

        def chance(kind: KindOfChange) -> float:
            return chance_of_refill(self._changed(kind) * is_best, self._share(kind), spare)

        return Bounded(self._bytes(size), chance, self._refill_ms(), self._kept_bytes(), size)

    def _held(self, size: int) -> int:
        """Rows or values of a group that is filled again."""
        if self._choice.is_values:
            return size
        wanted = self._choice.wanted
        return max(size, wanted + min(size, wanted))

    def _changed(self, kind: KindOfChange) -> float:
        return self._facts.changed(self._wire, kind)

    def _deleted(self, kind: KindOfChange) -> float:
        return self._facts.deleted(self._wire, kind)

    def _share(self, kind: KindOfChange) -> float:
        """Of the rows that change, those that are deleted."""
        return min(1.0, self._deleted(kind) / max(1.0, self._changed(kind)))

    def _bytes(self, size: int) -> int:
        """What it takes once it is bounded, at most: buffers grow to twice their size."""
        if self._now is not None:
            return self._query.bytes_of(self._operator)
        most = self._groups * 2 * self._held(size)
        if self._operator.reads:
            groups = self._groups * _NUMBER * (2 + len(self._operator.group_keys) + 6)
            return int(min(self._as_read(), groups + min(self._rows, most) * _PAIR))
        result = self._groups * _PAIR
        buffered = {keeper for keeper, _, _ in self._buffered()}
        result += sum(size for keeper, _, size in self._stored() if keeper not in buffered)
        for _, rows, size in self._buffered():
            result += size * min(1.0, most / max(1, rows))
        return int(result)

    def _kept_bytes(self) -> int | None:
        """What it would take if all were kept, where it is bounded; None where it is not."""
        if self._now is None:
            return None
        known = self._query.as_stored.meta.group_bytes.get(self._choice.piece)
        held = sum(rows for _, rows, _ in self._buffered())
        stored = self._query.bytes_of(self._operator)
        return int(stored * max(1.0, self._rows / max(1, held))) if known is None else known

    def _as_read(self) -> int:
        return self._query.as_stored.meta.group_bytes.get(self._choice.piece, 0)

    def _stored(self) -> Iterator[tuple[str, int, int]]:
        for keeper in self._operator.arrangements():
            size = self._query.sizes.get(keeper.name)
            if size is not None:
                yield keeper.name, size.rows, size.bytes

    def _buffered(self) -> Iterator[tuple[str, int, int]]:
        """What of it is bounded."""
        names = set(self._operator.buffered)
        return (one for one in self._stored() if one[0] in names)

    def _refill_ms(self) -> float:
        """Reading the table again, whose files may all hold rows of a group, or telling all groups
        below; and finding which are those asked for."""
        at = self._wire
        while at >= 0 and not self._operators[at].can_refill:
            (at,) = self._wires[at]
        result = self._facts.rows(at) * PRIORS.group_row_ns * _MS
        return result + (self._told_ms(at) if at >= 0 else self._whole_ms(at))

    def _told_ms(self, at: int) -> float:
        """All groups of a grouping told, as if it were read where it may be."""
        told = self._facts.rows(at) * PRIORS.row_ns * _MS
        chosen = {one.side: one for one in self._query.compiled.groupings}
        known = chosen.get(self._operators[at].piece)
        if known is not None and known.readers:
            told += sum(self._whole_ms(source) for source in self._sources(at))
        return told

    def _whole_ms(self, source: int) -> float:
        width = len(self._query.compiled.sources[-1 - source].scan.table_columns)
        each = PRIORS.read_value_ns * max(1, width) + PRIORS.tag_row_ns
        return self._facts.rows(source) * each * _MS

    def _sources(self, at: int) -> Iterator[int]:
        for wire in self._wires[at]:
            if wire < 0:
                yield wire
            else:
                yield from self._sources(wire)
