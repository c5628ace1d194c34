"""Frozen records of what measuring writes: tables and files.

Law: as for `app.results.results`, whose documents they are part of.
Out of scope: what was measured (`bench.record`).
"""

from __future__ import annotations

from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """A table written for the demo or a benchmark."""

    table: str
    path: str
    rows: int
    version: int


@dataclass(frozen=True, slots=True)
class WrittenResult:
    """A file written beside the result: `kind` is record or report."""

    kind: str
    path: str
