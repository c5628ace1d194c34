"""Frozen records of what clustering a table does for its sketches.

Law: as for `app.results.results`, whose documents they are part of.
Out of scope: how it is done (`app.cluster`).
"""

from __future__ import annotations

from impctl.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteredSketch:
    """Files and bytes that one query reads of the table through its sketch and its conditions.

    `files_after` and `bytes_after` are None where nothing was written.
    """

    query: str
    attribute: str
    files: int
    bytes: int
    files_expected: int
    bytes_expected: int
    files_after: int | None = None
    bytes_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterResult:
    """One table: `action` is cluster, or none (a dry run, or nothing to gain: see `reason`).

    `bytes` is the size of the table's files, all of which are written again.
    """

    table: str
    action: str
    by: tuple[str, ...]
    reason: str
    files: int
    bytes: int = 0
    files_after: int | None = None
    version: int | None = None
    elapsed_ms: float = 0.0
    sketches: tuple[ClusteredSketch, ...] = ()
    foreseen: bool = False

    @property
    def losers(self) -> tuple[ClusteredSketch, ...]:
        """The sketches that are expected to read more than now."""
        return tuple(one for one in self.sketches if one.bytes_expected > one.bytes)

    @property
    def winners(self) -> tuple[ClusteredSketch, ...]:
        """Those that are expected to read less."""
        return tuple(one for one in self.sketches if one.bytes_expected < one.bytes)
