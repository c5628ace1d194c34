"""What the writer of a scratch table leaves behind, so that no reader is charged for it.

Law: every tenth commit gets a checkpoint of the log, as Spark's writer makes it, and the disk is
synced: else our own first sync would wait for the table's data.
Out of scope: committing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from impctl.tables.write.maintenance import checkpoint

if TYPE_CHECKING:
    from impctl.service.pinned import PinnedTables
    from impctl.types import TableName

_CHECKPOINT_EVERY = 10


def settle(tables: PinnedTables, table: TableName, commits: int) -> None:
    """After a commit, the one of this number: the log checkpointed when it is time, all on disk."""
    if commits % _CHECKPOINT_EVERY == 0:
        checkpoint(tables.source(table).path)
    os.sync()
