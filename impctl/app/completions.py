"""Use case: what a shell may complete from a workload file.

Law: fast and silent: nothing but the file itself is opened, and what is wrong with it is no error.
Out of scope: the shells' protocols (`cli.completion`).
"""

from __future__ import annotations

from pathlib import Path

from impctl.workload.load import names_in


def query_names(file: Path) -> tuple[str, ...]:
    """Names of the file's queries."""
    return names_in(file, "queries")


def update_names(file: Path) -> tuple[str, ...]:
    """Names of the file's update batches."""
    return names_in(file, "updates")
