"""Where a join finds the partners of a changed row: in an index of its own, or in the tables.

Law: a choice changes what a change costs and what is remembered, never a sketch. It is made once,
at capture, and stored with the state, because a circuit is made for its state. `index` keeps the
side's rows and answers in memory; `files` and `spark` keep no more than a filter of its keys and
have the partners of keys that may be there read from the tables: by the engine from their files, or
by Spark. A side is read from files where it can be read anew from the tables, by Spark where the
other side of the join can be, too, since Spark joins them at capture. A grouping keeps its groups
(`index`), or has the rows of those that change read from files.
Out of scope: reading (`app.capturing.partners`), the operator (`engine.join`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from enum import StrEnum
from typing import Protocol

from impctl.circuits.flows import Column
from impctl.data.schema import Kind
from impctl.types import TableName
from impctl.values import dataclass

LARGEST_INDEX = 4 << 30
"""Bytes of one side that is kept unasked: what a small machine maps with ease."""

_ROOM = 2
"""Times what a side may take to be kept at first that it may be found to take."""
_CODE_AND_WEIGHT = 16
_FRAGMENT = 4
_WIDTHS = {
    Kind.BOOLEAN: 1,
    Kind.STRING: 24,
    Kind.BINARY: 24,
    Kind.DECIMAL: 16,
}
_WIDTH = 8


_COMPUTED = "its rows are computed, so they cannot be read from tables"
_BY_SCALARS = (
    "a scalar value selects its rows; when the value changes, the rows that enter or leave are read"
)
_WHOLE = "kept unless it does not fit the budget, because no key limits what would be read instead"


class Strategy(StrEnum):
    """How partners of changed rows are found on one side of a join."""

    INDEX = "index"
    FILES = "files"
    SPARK = "spark"


@dataclass(frozen=True, slots=True)
class SideFacts:
    """One side of a join: its name in the circuit, the tables below it, the bytes of a row.

    `readers` can read its rows by their keys. Or a grouping and the rows below it; `pinned` says
    why its groups must be kept, where they must; `is_passed` that a pass of partial aggregates may
    fill them where they are kept. `is_whole`: no key narrows what would be read, so that it is all.
    """

    name: str
    tables: tuple[TableName, ...]
    row_bytes: int
    readers: tuple[Strategy, ...] = ()
    is_grouping: bool = False
    pinned: str = ""
    is_passed: bool = False
    is_whole: bool = False
    by_scalars: bool = False
    """Whether it is rows that are selected by scalars, and so need not be kept."""


@dataclass(frozen=True, slots=True)
class SideChoice:
    """What was chosen for a side or a grouping and why; `rows` and `bytes` are the most it can come
    to.

    `readers` could read its rows; `is_whole`: all of them each time, since no key narrows them.
    """

    side: str
    tables: tuple[TableName, ...]
    strategy: Strategy
    reason: str
    rows: int | None = None
    bytes: int | None = None
    readers: tuple[Strategy, ...] = ()
    room: int = 0
    """Bytes up to which its rows are kept all the same, once they are found to take no more."""
    is_whole: bool = False

    @property
    def mode(self) -> str:
        """What is done about its rows, in the words that users read: kept, read or rebuilt."""
        if self.strategy is Strategy.INDEX:
            return "kept"
        return "rebuilt" if self.is_whole else "read"


class Chooser(Protocol):
    """Chooses for every side of every join, and for every grouping."""

    @property
    def has_filter(self) -> bool:
        """Whether `spark` sides keep a filter of their keys."""
        ...

    def choose(self, facts: SideFacts) -> SideChoice:
        """The choice for this side or grouping."""
        ...


@dataclass(frozen=True, slots=True)
class AsRecorded:
    """The choices that are stored: Spark reads the rows of `distant` sides, the engine those of
    sides `from_files`, others are kept. `reasons` are by side, as far as they are stored.

    A circuit that `is_to_fill` keeps the groups that a pass may fill; they are read from then on.
    It keeps no rows that are selected by scalars, whatever an older one did.
    """

    distant: Collection[str] = ()
    has_filter: bool = True
    from_files: Collection[str] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    is_to_fill: bool = False

    def choose(self, facts: SideFacts) -> SideChoice:
        """What is stored."""
        strategy = Strategy.INDEX
        for names, reader in ((self.distant, Strategy.SPARK), (self.from_files, Strategy.FILES)):
            is_filled = self.is_to_fill and facts.is_passed
            if facts.name in names and reader in facts.readers and not is_filled:
                strategy = reader
        if facts.by_scalars and self.is_to_fill:
            strategy = Strategy.FILES
        reason = self.reasons.get(facts.name, facts.pinned or "as captured")
        return SideChoice(facts.name, facts.tables, strategy, reason)


@dataclass(frozen=True, slots=True)
class BySize:
    """As the workload asks; where it leaves that open, a side is kept while it is small enough.

    A side is kept, too, where nobody knows its size.
    """

    asked: Strategy | None
    rows_of: Callable[[TableName], int | None]
    has_filter: bool = True
    largest: int = LARGEST_INDEX
    from_files: int | None = None
    """Bytes beyond which a side is read from files; None is for no such reason."""
    fits: int | None = None
    """Bytes that may take more memory to build than there is; None is without bounds."""
    is_least: bool = False
    """Whether groups are read, too, unless a pass over their one table is to fill them, and what no
    key narrows is read whole."""

    def choose(self, facts: SideFacts) -> SideChoice:
        """The choice, with the sizes it goes by.

        A side over several tables is taken for as long as its longest table.
        """
        counts = [self.rows_of(table) for table in facts.tables]
        rows = None if None in counts else max((count or 0 for count in counts), default=0)
        size = None if rows is None else rows * facts.row_bytes
        strategy, reason = self._decided(facts, size)
        is_open = self.asked is None and strategy is Strategy.FILES
        room = _ROOM * (self.from_files or 0) if is_open else 0
        room = room if self.fits is None else min(room, self.fits)
        return SideChoice(facts.name, facts.tables, strategy, reason, rows, size, room=room)

    def _decided(self, facts: SideFacts, size: int | None) -> tuple[Strategy, str]:
        if facts.by_scalars and self.asked is not Strategy.INDEX:
            return Strategy.FILES, _BY_SCALARS
        if not facts.readers:
            return Strategy.INDEX, facts.pinned or _COMPUTED
        if facts.is_grouping and self.is_least and not facts.is_passed:
            return Strategy.FILES, "requested"
        if facts.is_grouping:
            return Strategy.INDEX, "groups are kept unless they do not fit the budget"
        if facts.is_whole and not self.is_least:
            return Strategy.INDEX, _WHOLE
        if self.asked is not None:
            return self._asked(facts, self.asked)
        if self.from_files is not None and size is not None and size > self.from_files:
            return Strategy.FILES, "it may take a large part of the budget"
        if self.fits is not None and size is not None and size > self.fits:
            return Strategy.FILES, "building it may need more memory than is available"
        if Strategy.SPARK not in facts.readers:
            return Strategy.INDEX, "the other side is computed, so Spark cannot join them"
        if size is None:
            return Strategy.INDEX, (
                "kept, because its size is unknown: a table's log does not count rows"
            )
        if size > self.largest:
            return Strategy.SPARK, "too large to keep"
        return Strategy.INDEX, "small enough to keep"

    @staticmethod
    def _asked(facts: SideFacts, asked: Strategy) -> tuple[Strategy, str]:
        if asked is Strategy.INDEX or asked in facts.readers:
            return asked, "requested"
        return Strategy.INDEX, "the other side is computed, so Spark cannot join them"


def row_bytes(columns: Collection[Column], accesses: int) -> int:
    """Bytes that a row of these columns takes in an index, text being taken for short."""
    values = sum(_WIDTHS.get(kind.kind, _WIDTH) for _, kind in columns)
    return values + _CODE_AND_WEIGHT + _FRAGMENT * accesses
