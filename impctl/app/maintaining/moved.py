"""A table's change as one step takes it.

Law: what is moved on by one step is read from one span of versions.
Out of scope: reading it (`app.maintaining.changes`), the step (`app.maintaining.step`).
"""

from __future__ import annotations

from collections.abc import Callable

from impctl.aliases import TableVersion
from impctl.app.maintaining.grouped_change import GroupedChange
from impctl.tables.change.changes import Changes
from impctl.tables.change.files_mark import FilesMark
from impctl.tables.snapshot import Snapshot
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Moved:
    """A table's change up to `until`, where it ends, and the marks of that commit and its files.

    `ending` is the newest version of the run, which a batch of versions may stop before; `reached`
    takes the snapshot of `until` itself, if it is asked for. With `grouped` the change is there,
    and `changes` has no rows.
    """

    changes: Changes
    until: TableVersion
    ending: Snapshot
    mark: str | None
    files: FilesMark | None
    reached: Callable[[], Snapshot]
    grouped: GroupedChange | None = None

    @property
    def rows(self) -> int:
        """Changed rows."""
        return self.changes.rows if self.grouped is None else self.grouped.rows
