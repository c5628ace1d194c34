"""Peers' channels: what is sent comes in the order it was sent, and what crosses is counted.

Law: of two messages from one peer to another the earlier one arrives first; between channels any
order may be asked for, by a seed. A message of a peer to itself is delivered alike, and not
counted. Bytes are those of the row's columns, of what else the message carries, and one for its
kind: no headers of a real network.
Out of scope: what messages mean.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

from msgspec import Struct

from benchmarks.peers.programs import Row

NUMBER_BYTES = 8
_KIND_BYTES = 1
_LOOK_EVERY = 256
"""Messages between two looks at the clock."""


class Kind(Enum):
    """What a message says of its row."""

    FACT = auto()
    FACT_GONE = auto()
    GONE = auto()
    ROW = auto()
    ROW_LOST = auto()
    ASK = auto()


class Message(NamedTuple):
    """`value` is a variable or provenance; `body` a row that the message speaks of besides."""

    kind: Kind
    row: Row
    value: int = 0
    body: Row = ()


class CutOff(Exception):  # noqa: N818  # a finding of a measurement, never an error of impctl
    """A limit was reached; the message says which."""


class Limits(Struct, frozen=True):
    """Where a step is given up: processor time, messages, nodes of all diagrams at once."""

    seconds: float = 60.0
    messages: int = 5_000_000
    nodes: int = 1_500_000


class Network:
    """Channels between so many peers, and what crossed them so far."""

    def __init__(self, peers: int, limits: Limits, seed: int | None = None) -> None:
        self.peers = peers
        self.messages = 0
        self.bytes = 0
        self._limits = limits
        self._random = None if seed is None else random.Random(seed)
        self._channels: dict[tuple[int, int], deque[Message]] = defaultdict(deque)
        self._due: deque[tuple[int, int]] = deque()
        self._waiting: list[tuple[int, int]] = []
        self._handled = 0
        self._began = (0.0, 0)

    def peer_of(self, node: int) -> int:
        """The peer with whom a node's rows lie."""
        return node % self.peers

    def begin(self) -> None:
        """From here on the limits count."""
        self._began = (time.process_time(), self.messages)

    def send(self, source: int, target: int, message: Message, carried: int = 0) -> None:
        """Put the message on its way; `carried` are the bytes beside its row."""
        if source != target:
            self.messages += 1
            self.bytes += _KIND_BYTES + NUMBER_BYTES * len(message.row) + carried
        self._channels[source, target].append(message)
        (self._due if self._random is None else self._waiting).append((source, target))

    def on_their_way(self) -> Iterator[Message]:
        """All messages that have not arrived."""
        for channel in self._channels.values():
            yield from channel

    def arrived(self) -> tuple[int, Message] | None:
        """The next message and whom it is for; None where none is on its way. Raises CutOff."""
        self._handled += 1
        if self._handled % _LOOK_EVERY == 0:
            self._look()
        if self._random is None:
            if not self._due:
                return None
            channel = self._due.popleft()
        else:
            if not self._waiting:
                return None
            # Which channel is drawn; the oldest of its messages comes.
            index = self._random.randrange(len(self._waiting))
            self._waiting[index], self._waiting[-1] = self._waiting[-1], self._waiting[index]
            channel = self._waiting.pop()
        return channel[1], self._channels[channel].popleft()

    def _look(self) -> None:
        began, before = self._began
        if time.process_time() - began > self._limits.seconds:
            raise CutOff(f"stopped after {self._limits.seconds:g} s")
        if self.messages - before > self._limits.messages:
            raise CutOff(f"stopped after {self._limits.messages:,} messages")
