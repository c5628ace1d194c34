"""The frozen record of what `gc` removed.

Law: as for `app.results.results`, whose documents it is part of. Out of scope: removing it
(`app.gc`).
"""

from __future__ import annotations

from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class GcEntry:
    """Something that nothing needs any more.

    `kind` is versions (old sketch versions of query `name`), partitions (that no sketch uses),
    file (of state that no run refers to) or folder (scratch of a run that was killed); of the
    last two `name` is the path. `bytes` is what its removal gives back.
    """

    kind: str
    name: str
    count: int
    bytes: int
    removed: bool


@dataclass(frozen=True, slots=True)
class GcResult:
    """What was removed from the store and beside the tables; with `foreseen` it still is there."""

    store: str
    keep: int
    entries: tuple[GcEntry, ...]
    bytes: int
    foreseen: bool = False
