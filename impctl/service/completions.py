"""Names that a shell completes from a workload file; separate so that it loads fast."""

from __future__ import annotations

from pathlib import Path

from impctl.workload.load import names_in


def query_names(file: Path) -> tuple[str, ...]:
    return names_in(file, "queries")


def update_names(file: Path) -> tuple[str, ...]:
    return names_in(file, "updates")
