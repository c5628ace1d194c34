"""Names that a shell completes from a workload file; separate so that it loads fast.

Law: fast and silent: nothing but the file itself is opened, and what is wrong with it is no error.
"""

from __future__ import annotations

from pathlib import Path

from impctl.workload.load import names_in


def query_names(file: Path) -> tuple[str, ...]:
    return names_in(file, "queries")


def update_names(file: Path) -> tuple[str, ...]:
    return names_in(file, "updates")
