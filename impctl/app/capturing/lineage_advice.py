"""Whether the lineage of the answer alone is less than that of all rows, by what is stored.

Law: only what the store says of the sizes of its pieces; nothing is read, nothing refused. Where
all rows of a fixpoint lead to the answer, the sketch is that of all derivations, and what follows
them back is kept for nothing. Rows that changes have cancelled count until runs are merged.
Out of scope: what a sketch saves (`app.capturing.advice`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from impctl.app.results.amounts import size_text
from impctl.store.records import RunRef
from impctl.types import QueryName
from impctl.values import dataclass

_NEARLY_ALL = 0.9
"""Of so many rows that lead to the answer hardly a range is left out."""

_SMALL = 1 << 20
"""State of fewer bytes takes no room worth a word."""

_BACK, _USED, _ROWS = ".back.", ".used.", "rows"
"""The pieces that `circuits.backward` has: what follows back, and what arrives above."""


@dataclass(frozen=True, slots=True)
class Followed:
    """A fixpoint that is followed back: how many rows it has, how many of these lead to the answer,
    and the bytes that tell which."""

    name: str
    rows: int
    led: int
    bytes: int

    @property
    def is_nearly_all(self) -> bool:
        return self.led >= _NEARLY_ALL * self.rows > 0

    @property
    def note(self) -> str:
        """In one breath."""
        said = f"about {self.led:,} of its {self.rows:,} rows lead to the answer"
        if not self.is_nearly_all:
            return said
        return f"{said}, so `lineage: all` would need {size_text(self.bytes)} less state"


def followed(runs: Sequence[RunRef]) -> list[Followed]:
    """Each fixpoint of a query's state that is followed back."""
    sizes: dict[str, tuple[int, int]] = {}
    for run in runs:
        rows, size = sizes.get(run.arrangement, (0, 0))
        sizes[run.arrangement] = (rows + run.rows, size + run.bytes)
    names = [piece[: -len(_BACK + _ROWS)] for piece in sizes if piece.endswith(_BACK + _ROWS)]
    return [_followed(name, sizes) for name in sorted(names)]


def _followed(name: str, sizes: Mapping[str, tuple[int, int]]) -> Followed:
    rows, _ = sizes.get(f"{name}.{_ROWS}", (0, 0))
    # One number stands for what is derived from no row.
    led = min(rows, max(0, sizes[f"{name}{_BACK}{_ROWS}"][0] - 1))
    own = (f"{name}{_BACK}", f"{name}{_USED}")
    held = sum(size for piece, (_, size) in sizes.items() if piece.startswith(own))
    return Followed(name, rows, led, held)


def followed_warnings(query: QueryName, runs: Sequence[RunRef]) -> list[str]:
    """A warning where `lineage: answer` leaves next to nothing out, for state worth a word."""
    return [
        f"`lineage: answer` of query `{query}` skips almost nothing: {one.led:,} of "
        f"{one.rows:,} rows of its recursion lead to the answer. It needs "
        f"{size_text(one.bytes)} of the {size_text(sum(run.bytes for run in runs))} of "
        "state; `lineage: all` would need no such state and few more ranges"
        for one in followed(runs)
        if one.is_nearly_all and one.bytes >= _SMALL
    ]
