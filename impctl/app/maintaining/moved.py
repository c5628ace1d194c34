"""A table's change as one step takes it.

Law: what is moved on by one step is read from one span of versions.
Out of scope: reading it (`app.maintaining.changes`), the step (`app.maintaining.step`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from impctl.app.capturing.pins import mark_at
from impctl.app.maintaining.grouped_change import GroupedChange
from impctl.app.maintaining.stage import ReadChange
from impctl.app.workbench.pinned import PinnedTables
from impctl.tables.changes import Changes, FilesMark
from impctl.tables.snapshot import Snapshot
from impctl.types import TableName, TableVersion
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


def moved_to(
    tables: PinnedTables, table: TableName, changes: Changes, until: TableVersion
) -> Moved:
    """A table's change as it was read, up to a version."""
    mark, ending = mark_at(tables, table, until), tables.snapshot(table)
    # Between two batches of versions the log's entry alone has to do.
    files = tables.files_mark(table) if ending.version == until else None
    return Moved(changes, until, ending, mark, files, partial(tables.snapshot, table, until))


def moved_at_once(tables: PinnedTables, read: Sequence[ReadChange]) -> dict[TableName, Moved]:
    """All tables' changes in one step."""
    return {
        one.need.table: moved_to(tables, one.need.table, one.changes, one.need.until)
        for one in read
    }
