"""Peers that keep rows alone: deleting all that may be lost, then deriving again (DRed).

Law: a step's deletions are followed until nothing more is lost, whatever else derives it; when no
message is on its way, lost rows that facts alone derive return, and the others are asked for where
a body may be left: not where its loss was reported. Then insertions. Waiting for quiet between
the phases costs nothing here, which a real network would have to agree on.
No provenance: one row crosses once per fact that derives a head from it.
Out of scope: programs that prune, for which rows alone do not tell what the next best is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from benchmarks.peers.network import NUMBER_BYTES, Kind, Message, Network
from benchmarks.peers.programs import Fact, Program, Row


class RederivingPeer:
    """One peer, by its number."""

    def __init__(self, number: int, network: Network, program: Program) -> None:
        self._number = number
        self._network = network
        self._program = program
        self._home: dict[int, set[Fact]] = defaultdict(set)
        self._met: dict[int, set[Fact]] = defaultdict(set)
        self._rows: dict[int, set[Row]] = defaultdict(set)
        self._lost: set[Row] = set()
        """Rows lost in this step."""
        self._told: dict[Row, set[Row]] = defaultdict(set)
        """Bodies that are said to be lost, per head."""

    def insert(self, fact: Fact) -> None:
        """A fact of this peer's comes."""
        self._home[self._program.home(fact)].add(fact)
        for row in self._program.bases(fact):
            self._add(row)
        self._send(self._program.meets(fact), Message(Kind.FACT, fact))

    def delete(self, fact: Fact) -> None:
        """A fact of this peer's goes, and with it all that it may have derived."""
        self._home[self._program.home(fact)].discard(fact)
        for row in self._program.bases(fact):
            self._lose(row)
        self._send(self._program.meets(fact), Message(Kind.FACT_GONE, fact))

    def handle(self, message: Message) -> None:
        """What a message changes."""
        row, body = message.row, message.body
        match message.kind:
            case Kind.FACT:
                self._met[self._program.meets(row)].add(row)
                for one in sorted(self._rows[self._program.meets(row)]):
                    self._derive(Kind.ROW, row, one)
            case Kind.FACT_GONE:
                self._met[self._program.meets(row)].discard(row)
                for one in sorted(self._rows[self._program.meets(row)]):
                    self._derive(Kind.ROW_LOST, row, one)
            case Kind.ROW_LOST:
                self._told[row].add(body)
                self._lose(row)
            case Kind.ASK:
                self._answer(row, body)
            case _:
                self._add(row)

    def rederive(self) -> None:
        """When nothing more is lost: what may have another derivation."""
        for row in sorted(self._lost):
            facts = sorted(self._home[row[0]])
            if any(row in self._program.bases(fact) for fact in facts):
                self._add(row)
                continue
            for body in sorted({*self._program.bodies(row, facts)} - self._told[row]):
                self._send(body[0], Message(Kind.ASK, row, 0, body))
        self._lost.clear()
        self._told.clear()

    def rows(self) -> Iterator[Row]:
        """The rows there are."""
        for rows in self._rows.values():
            yield from rows

    def state_bytes(self) -> int:
        """Of rows, and of facts on both sides."""
        stored = [*self._rows.values(), *self._home.values(), *self._met.values()]
        return NUMBER_BYTES * sum(len(one) for several in stored for one in several)

    def _add(self, row: Row) -> None:
        if row not in self._rows[row[0]]:
            self._rows[row[0]].add(row)
            for fact in sorted(self._met[row[0]]):
                self._derive(Kind.ROW, fact, row)

    def _lose(self, row: Row) -> None:
        if row in self._rows[row[0]]:
            self._rows[row[0]].discard(row)
            self._lost.add(row)
            for fact in sorted(self._met[row[0]]):
                self._derive(Kind.ROW_LOST, fact, row)

    def _derive(self, kind: Kind, fact: Fact, body: Row) -> None:
        for head in self._program.heads(fact, body):
            reported = body if kind is Kind.ROW_LOST else ()
            self._send(head[0], Message(kind, head, 0, reported))

    def _answer(self, head: Row, body: Row) -> None:
        """Whether the body is here, and a fact that derives the head from it."""
        if body in self._rows[body[0]]:
            facts = self._met[body[0]]
            if any(head in self._program.heads(fact, body) for fact in facts):
                self._send(head[0], Message(Kind.ROW, head))

    def _send(self, node: int, message: Message) -> None:
        carried = NUMBER_BYTES * len(message.body)
        self._network.send(self._number, self._network.peer_of(node), message, carried)
