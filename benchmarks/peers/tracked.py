"""Peers that keep rows with provenance: what goes with a fact is told by what is left of it.

Each peer holds the rows of its nodes (Fixpoint), the facts they are joined with, and an outbox per
peer it derives rows for. A fact's end is told to all peers once; each of them sets its variable
false in all it holds, in rows by the variable, and forgets it in whatever comes later, since an
older message of another peer may speak of it still.
Law: a row that holds is derivable by facts that are there (what it carries is monotone and loses
what is gone), and every derivable row holds: whoever derives one has sent what holds of it, or
sends the next. So rows may vanish and come back while messages are on their way: what counts is
what holds when none is.
The paper passes on `new and not old`, which is not monotone; here what came is passed on.
Out of scope: provenance (`provenance`), what is sent when (`outbox`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from benchmarks.peers.network import NUMBER_BYTES, Kind, Message, Network
from benchmarks.peers.outbox import Outbox
from benchmarks.peers.programs import Fact, Program, Row
from benchmarks.peers.provenance import Provenance

_VARIABLE_BYTES = 4


class TrackedPeer:
    """One peer, by its number."""

    def __init__(
        self, number: int, network: Network, program: Program, algebra: Provenance, window: int
    ) -> None:
        self._number = number
        self._network = network
        self._program = program
        self._algebra = algebra
        self._window = window
        self._since = 0
        self._home: dict[Fact, int] = {}
        self._met: dict[int, dict[Fact, int]] = defaultdict(dict)
        self._met_by: dict[int, Fact] = {}
        self._rows: dict[Row, int] = {}
        self._held: set[Row] = set()
        self._at: dict[int, set[Row]] = defaultdict(set)
        self._groups: dict[Row, set[Row]] = defaultdict(set)
        self._behind: set[Row] = set()
        """Rows of which something was held back, as they were beaten."""
        self._mentions: dict[int, set[Row]] = defaultdict(set)
        self._removed: set[int] = set()
        self._outbox = Outbox(program, algebra, self._ship, is_eager=window > 0)

    def insert(self, fact: Fact, variable: int) -> None:
        """A fact of this peer's comes; one that is there already is not asked for."""
        self._home[fact] = variable
        for row in self._program.bases(fact):
            self._receive(row, self._algebra.base(variable, row))
        target = self._network.peer_of(self._program.meets(fact))
        self._send(target, Message(Kind.FACT, fact, variable), _VARIABLE_BYTES)

    def delete(self, fact: Fact) -> None:
        """A fact of this peer's goes: every peer hears of it."""
        variable = self._home.pop(fact)
        for target in range(self._network.peers):
            if target != self._number:
                self._send(target, Message(Kind.GONE, (), variable), _VARIABLE_BYTES)
        self._forget({variable})

    def handle(self, message: Message) -> None:
        """What a message changes."""
        if message.kind is Kind.FACT:
            self._meet(message.row, message.value)
        elif message.kind is Kind.GONE:
            self._forget({message.value})
        else:
            self._receive(message.row, message.value)
        self._since += 1
        if 0 < self._window <= self._since:
            self.flush()

    def flush(self) -> None:
        """Send what an eager peer has gathered."""
        self._since = 0
        self._outbox.flush()

    def rows(self) -> Iterator[Row]:
        """The rows that hold."""
        return iter(self._held)

    def provenance_bytes(self) -> int:
        """Of the rows that hold."""
        return sum(self._algebra.size(row, self._rows[row]) for row in self._held)

    def provenance(self) -> Iterator[tuple[Row, int]]:
        """All that is held, of rows and of what is sent."""
        yield from self._rows.items()
        yield from self._outbox.provenance()

    def state_bytes(self) -> int:
        """Of rows, facts on both sides and the outbox, with their provenance."""
        stored = list(self.provenance())
        provenance = sum(self._algebra.size(row, value) for row, value in stored)
        facts = [*self._home, *(fact for met in self._met.values() for fact in met)]
        numbers = sum(map(len, facts)) + sum(len(row) for row, _ in stored)
        return provenance + NUMBER_BYTES * numbers + _VARIABLE_BYTES * len(facts)

    def _meet(self, fact: Fact, variable: int) -> None:
        """A fact arrives where its partners are; its end comes later, by the same channel."""
        self._met[self._program.meets(fact)][fact] = variable
        self._met_by[variable] = fact
        for row in sorted(self._at[self._program.meets(fact)]):
            if row in self._held and row not in self._behind:
                self._derive(fact, variable, row, self._rows[row])

    def _receive(self, row: Row, value: int) -> None:
        """Provenance comes for a row: from a fact of its own, or from who derived it."""
        if not self._removed.isdisjoint(self._algebra.variables(row, value)):
            value = self._algebra.without(row, value, self._removed)
        old = self._rows.get(row, 0)
        new = self._algebra.either(old, value)
        if new == old:
            return
        self._rows[row] = new
        for variable in self._algebra.variables(row, value):
            self._mentions[variable].add(row)
        if not self._algebra.holds(row, new):
            return
        if row not in self._held:
            self._held.add(row)
            self._at[row[0]].add(row)
            value = new
        if self._program.prunes:
            self._behind.add(row)
            self._groups[self._program.group(row)].add(row)
            self._pass_best(row)
        else:
            self._pass(row, value)

    def _pass_best(self, row: Row) -> None:
        """Pass on what was held back of the best rows of the group; beaten ones wait."""
        best = self._program.best(self._groups[self._program.group(row)])
        for one in sorted(self._behind.intersection(best)):
            self._behind.discard(one)
            self._pass(one, self._rows[one])

    def _pass(self, row: Row, value: int) -> None:
        for fact, variable in list(self._met[row[0]].items()):
            self._derive(fact, variable, row, value)

    def _derive(self, fact: Fact, variable: int, body: Row, value: int) -> None:
        for head in self._program.heads(fact, body):
            self._outbox.put(head, self._algebra.derived(variable, head, body, value))

    def _forget(self, removed: AbstractSet[int]) -> None:
        """Facts are gone: first the alternatives of what was sent, then rows of one's own."""
        self._removed |= removed
        for variable in removed & self._met_by.keys():
            fact = self._met_by.pop(variable)
            del self._met[self._program.meets(fact)][fact]
        self._outbox.forget(removed)
        hit = {row for variable in removed for row in self._mentions.pop(variable, ())}
        for row in hit & self._rows.keys():
            left = self._algebra.without(row, self._rows.pop(row), removed)
            if left:
                self._rows[row] = left
        lost = [row for row in hit & self._held if not self._still_holds(row)]
        for row in lost:
            self._held.discard(row)
            self._at[row[0]].discard(row)
            self._behind.discard(row)
            self._groups[self._program.group(row)].discard(row)
        if self._program.prunes:
            for row in sorted(lost):
                self._pass_best(row)

    def _still_holds(self, row: Row) -> bool:
        return row in self._rows and self._algebra.holds(row, self._rows[row])

    def _ship(self, row: Row, value: int) -> None:
        target = self._network.peer_of(row[0])
        self._send(target, Message(Kind.ROW, row, value), self._algebra.size(row, value))

    def _send(self, target: int, message: Message, carried: int) -> None:
        self._network.send(self._number, target, message, carried)


def provenance_of_row(peers: Iterable[TrackedPeer]) -> float:
    """Bytes of provenance per row that holds, over all peers."""
    listed = list(peers)
    rows = sum(1 for peer in listed for _ in peer.rows())
    return sum(peer.provenance_bytes() for peer in listed) / rows if rows else 0.0
