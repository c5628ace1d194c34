"""Rows that one peer derives for others, and what of their provenance it has sent (MinShip).

Law: of each row `sent` is what its holder knows from here, less what is gone; `waiting` what it
does not. Lazily a row's first provenance is sent and the rest waits until what was sent does not
hold any more; eagerly all that waits is sent, when a window is full or nothing else happens.
Where a program prunes, only rows that are best among those derived here are sent: a row that is
beaten stays a right one for whoever has it already, so nothing is taken back.
As printed in the paper `sent` never shrinks, and a row that comes again is taken for known.
Out of scope: whom rows are sent to (`tracked`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

from benchmarks.peers.programs import Program, Row
from benchmarks.peers.provenance import Provenance

Ship = Callable[[Row, int], None]


class Outbox:
    """What one peer sends; `is_eager` sends all provenance sooner or later."""

    def __init__(
        self, program: Program, algebra: Provenance, ship: Ship, *, is_eager: bool
    ) -> None:
        self._program = program
        self._algebra = algebra
        self._ship = ship
        self._is_eager = is_eager
        self._sent: dict[Row, int] = {}
        self._waiting: dict[Row, int] = {}
        self._mentions: dict[int, set[Row]] = defaultdict(set)
        self._groups: dict[Row, set[Row]] = defaultdict(set)

    def put(self, head: Row, value: int) -> None:
        """A row was derived with this provenance."""
        sent, waiting = self._sent.get(head, 0), self._waiting.get(head, 0)
        if self._algebra.either(sent, value) == sent:
            return
        more = self._algebra.either(waiting, value)
        if more == waiting:
            return
        self._waiting[head] = more
        for variable in self._algebra.variables(head, value):
            self._mentions[variable].add(head)
        if self._program.prunes:
            self._groups[self._program.group(head)].add(head)
        if not self._is_eager:
            self._send_due(head)

    def forget(self, removed: AbstractSet[int]) -> None:
        """These facts are gone: alternatives are sent for what does not hold any more."""
        hit = {row for variable in removed for row in self._mentions.pop(variable, ())}
        for head in hit:
            for known in (self._sent, self._waiting):
                if head in known:
                    left = self._algebra.without(head, known.pop(head), removed)
                    if left:
                        known[head] = left
        if not self._is_eager:
            for head in sorted(hit):
                self._send_due(head)

    def flush(self) -> None:
        """Eagerly: send all that waits."""
        if self._is_eager:
            for head in list(self._waiting):
                if head in self._waiting and head in self._candidates(head):
                    self._send(head)

    def provenance(self) -> Iterable[tuple[Row, int]]:
        """All that is held, for counting it."""
        yield from self._sent.items()
        yield from self._waiting.items()

    def _send_due(self, head: Row) -> None:
        """Send the group's rows that are to be known and are not, or not any more."""
        for row in self._candidates(head):
            if row in self._waiting:
                is_known = self._algebra.holds(row, self._sent.get(row, 0))
                if not is_known and self._algebra.holds(row, self._whole(row)):
                    self._send(row)

    def _candidates(self, head: Row) -> Iterable[Row]:
        if not self._program.prunes:
            return (head,)
        group = self._groups[self._program.group(head)]
        valid = [row for row in group if self._algebra.holds(row, self._whole(row))]
        group.difference_update([row for row in group if not self._whole(row)])
        return sorted(self._program.best(valid))

    def _whole(self, row: Row) -> int:
        return self._algebra.either(self._sent.get(row, 0), self._waiting.get(row, 0))

    def _send(self, row: Row) -> None:
        waiting = self._waiting.pop(row)
        self._sent[row] = self._algebra.either(self._sent.get(row, 0), waiting)
        self._ship(row, waiting)
