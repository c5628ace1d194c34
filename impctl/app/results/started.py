"""The frozen record of what `init` wrote.

Law: as for `app.results.results`, whose documents it is part of. Out of scope: writing it
(`app.init`).
"""

from __future__ import annotations

from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class StartedResult:
    """What `init` wrote: a workload file with its tables and queries, and what to run next."""

    file: str
    tables: tuple[str, ...]
    queries: tuple[str, ...]
    next_commands: tuple[str, ...]
