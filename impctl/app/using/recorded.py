"""A use written into the ledger: what was read, and what would have been without a sketch.

Law: counted from the statistics of the files, never measured by reading; a use goes on whether it
could be written down or not.
Out of scope: the ledger itself (`store.ledger`), what is made of it (`app.gain`).
"""

from __future__ import annotations

import json
import time

from impctl.app.preparing.filters import Pruned
from impctl.app.using.fresh_sketch import Fresh
from impctl.app.workbench.workbench import Workbench
from impctl.store.disk import Layout
from impctl.store.ledger import Ledger, Use


def record_use(
    desk: Workbench,
    result: Fresh,
    read: Pruned,
    plain: Pruned,
    *,
    command: str,
    elapsed_ms: float = 0.0,
) -> None:
    """Write down one use of the sketches found, where there is a store to write it in.

    A use of another query's sketch counts for the query that it was captured for.
    """
    if not result.sketches or not Layout(desk.store_path).catalog.is_file():
        return
    lender = None if result.reuse is None else result.reuse.query
    (files, rows, size), (all_files, all_rows, total) = (sums_of(read), sums_of(plain))
    use = Use(
        query=lender or result.prepared.spec.name,
        at=time.time(),
        command=command,
        versions=json.dumps(dict(result.versions), sort_keys=True),
        is_used=bool(read.filters),
        files=files,
        files_plain=all_files,
        rows=rows,
        rows_plain=all_rows,
        bytes=size,
        bytes_plain=total,
        elapsed_ms=elapsed_ms,
    )
    if not Ledger(desk.store_path).record(use):
        desk.reporter.step("this use was not recorded, because the ledger could not be written")


def sums_of(pruned: Pruned) -> tuple[int, int, int]:
    """Files, rows as far as the log tells them, bytes."""
    files = [file for own in pruned.files.values() for file in own]
    return len(files), sum(file.rows or 0 for file in files), sum(file.size for file in files)
