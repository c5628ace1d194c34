"""A program kept by several peers under a scheme, step by step, and what every step costs.

A step's facts come and go at once, then messages are delivered until none is left. Time is
processor time of this one process for all peers together: never how long a cluster would take.
Law: a step that reaches a limit is given up (CutOff), and so is the simulation.
Out of scope: which facts (`networks`), right answers (`answers`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from benchmarks.peers.network import Kind, Limits, Message, Network
from benchmarks.peers.programs import Fact, Program, Row
from benchmarks.peers.provenance import Absorption, Provenance, Relative
from benchmarks.peers.rederived import RederivingPeer
from benchmarks.peers.tracked import TrackedPeer, provenance_of_row

_DEPTH = 20_000
"""Calls within calls: diagrams are as deep as they have variables."""
_FREE_EVERY = 1000
"""Messages between two looks at what provenance is held by nobody."""


class Scheme(StrEnum):
    """How peers know what goes with a fact."""

    DRED = "dred"
    RELATIVE_EAGER = "relative_eager"
    RELATIVE_LAZY = "relative_lazy"
    ABSORPTION_EAGER = "absorption_eager"
    ABSORPTION_LAZY = "absorption_lazy"

    @property
    def is_eager(self) -> bool:
        """Whether every derivation is sent sooner or later."""
        return self in (Scheme.RELATIVE_EAGER, Scheme.ABSORPTION_EAGER)


class StepCost(Struct, frozen=True):
    """Tuples and bytes that crossed peers, and milliseconds of processor time."""

    messages: int
    bytes: int
    cpu_ms: float


class _Peer(Protocol):
    def handle(self, message: Message) -> None: ...

    def rows(self) -> Iterator[Row]: ...

    def state_bytes(self) -> int: ...


class Simulation:
    """All peers of a program.

    `window` is after how many messages an eager peer sends what it has gathered; with a `seed`
    channels are served in an order drawn by it, else in the order in which messages were sent.
    """

    def __init__(
        self,
        program: Program,
        scheme: Scheme,
        peers: int,
        *,
        window: int = 16,
        limits: Limits | None = None,
        seed: int | None = None,
    ) -> None:
        if scheme is Scheme.DRED and program.prunes:
            raise ValueError("DRed does not store rows that are not best")
        bounds = limits or Limits()
        self._program = program
        self._network = Network(peers, bounds, seed)
        self._facts: set[Fact] = set()
        self._variables = 0
        self._tracked: list[TrackedPeer] = []
        self._rederiving: list[RederivingPeer] = []
        self._algebra: Provenance | None = None
        if scheme is Scheme.DRED:
            self._rederiving = [
                RederivingPeer(number, self._network, program) for number in range(peers)
            ]
        else:
            self._algebra = algebra = _algebra(scheme, bounds)
            length = window if scheme.is_eager else 0
            self._tracked = [
                TrackedPeer(number, self._network, program, algebra, length)
                for number in range(peers)
            ]

    @property
    def facts(self) -> frozenset[Fact]:
        """The facts there are."""
        return frozenset(self._facts)

    def step(self, come: Collection[Fact], go: Collection[Fact] = ()) -> StepCost:
        """Facts go, others come; one that is there already, or gone, is no change."""
        before = self._network.messages, self._network.bytes
        began = time.process_time()
        self._network.begin()
        with _deep():
            deleted = [fact for fact in dict.fromkeys(go) if fact in self._facts]
            self._facts.difference_update(deleted)
            inserted = [fact for fact in dict.fromkeys(come) if fact not in self._facts]
            self._facts.update(inserted)
            if self._rederiving:
                self._step_rederiving(inserted, deleted)
            else:
                self._step_tracked(inserted, deleted)
        cpu_ms = (time.process_time() - began) * 1000.0
        messages, size = self._network.messages, self._network.bytes
        return StepCost(messages - before[0], size - before[1], cpu_ms)

    def rows(self) -> frozenset[Row]:
        """All rows that all peers have."""
        return frozenset(row for peer in self._peers for row in peer.rows())

    def answer(self) -> frozenset[Row]:
        """What the program asks for."""
        return self._program.answer(self.rows())

    def provenance_bytes(self) -> float:
        """Of a row, in the mean; 0 without provenance."""
        return provenance_of_row(self._tracked)

    def state_bytes(self) -> float:
        """Of a peer, in the mean."""
        return sum(peer.state_bytes() for peer in self._peers) / self._network.peers

    @property
    def _peers(self) -> list[_Peer]:
        return [*self._tracked, *self._rederiving]

    def _step_tracked(self, inserted: Collection[Fact], deleted: Collection[Fact]) -> None:
        for fact in deleted:
            self._tracked[self._at(fact)].delete(fact)
        for fact in inserted:
            self._variables += 1
            self._tracked[self._at(fact)].insert(fact, self._variables)
        self._deliver()
        while True:
            before = self._network.messages
            for peer in self._tracked:
                peer.flush()
            if not self._deliver() and self._network.messages == before:
                return

    def _step_rederiving(self, inserted: Collection[Fact], deleted: Collection[Fact]) -> None:
        for fact in deleted:
            self._rederiving[self._at(fact)].delete(fact)
        self._deliver()
        for peer in self._rederiving:
            peer.rederive()
        self._deliver()
        for fact in inserted:
            self._rederiving[self._at(fact)].insert(fact)
        self._deliver()

    def _at(self, fact: Fact) -> int:
        return self._network.peer_of(self._program.home(fact))

    def _deliver(self) -> bool:
        """Deliver until no message is left; whether there was one."""
        peers, handled = self._peers, 0
        while (arrived := self._network.arrived()) is not None:
            target, message = arrived
            peers[target].handle(message)
            handled += 1
            if handled % _FREE_EVERY == 0 and self._algebra is not None:
                self._algebra.keep(self._values())
        return handled > 0

    def _values(self) -> Iterator[int]:
        """All provenance that somebody holds, or that is on its way."""
        for peer in self._tracked:
            for _, value in peer.provenance():
                yield value
        for message in self._network.on_their_way():
            if message.kind is Kind.ROW:
                yield message.value


def _algebra(scheme: Scheme, limits: Limits) -> Provenance:
    if scheme in (Scheme.RELATIVE_EAGER, Scheme.RELATIVE_LAZY):
        return Relative()
    return Absorption(limits.nodes)


@contextmanager
def _deep() -> Iterator[None]:
    """Room for calls as deep as diagrams; what was allowed before is allowed again."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _DEPTH))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
