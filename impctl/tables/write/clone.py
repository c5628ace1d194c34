"""A copy of a whole table directory that costs almost no space, for demo and bench runs.

Law: the table cloned from is never touched. Data files are immutable and become hard links; the
log is copied, so that nothing written through the clone can reach the table it came from.
Out of scope: tables that are not on the local disk.
"""

from __future__ import annotations

import os
import shutil

from impctl.errors import StorageError, TableError, UsageError
from impctl.tables.storage import local_path

_LOG = "_delta_log"


def clone_table(path: str, target: str) -> None:
    """Make the table at `path` stand at `target` too; UsageError where something is there."""
    origin, goal = _local(path), _local(target)
    if not os.path.isdir(os.path.join(origin, _LOG)):
        raise TableError(
            f"There is no Delta table to clone: {path}",
            hint="the path must contain a `_delta_log` folder",
            code="table_not_delta",
        )
    if os.path.lexists(goal):
        raise UsageError(f"The path already exists: {target}", hint="choose another path")
    if os.path.commonpath([os.path.abspath(origin), os.path.abspath(goal)]) == os.path.abspath(
        origin
    ):
        raise UsageError(
            f"A table cannot be cloned into itself: {target}", hint="choose another path"
        )
    try:
        shutil.copytree(origin, goal, copy_function=_link_or_copy)
    except (OSError, shutil.Error) as error:
        raise StorageError(
            f"Cloning the table failed: {error}", hint=f"remove `{target}`, then try again"
        ) from error


def _local(path: str) -> str:
    result = local_path(path)
    if result is None:
        raise UsageError(
            f"Only tables on the local disk can be cloned: {path}", hint="copy the table instead"
        )
    return result


def _link_or_copy(source: str, target: str) -> None:
    if _LOG in os.path.dirname(source).split(os.sep):
        shutil.copy2(source, target)
        return
    try:
        os.link(source, target)
    except OSError:
        # Another device, or a file system without hard links.
        shutil.copy2(source, target)
