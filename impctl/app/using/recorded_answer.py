"""An answer from kept rows, counted in the ledger.

Law: counted after the rows were had, and they are told whether it could be written down or not. It
loads nothing that telling kept rows does not need.
Out of scope: answers for which files are read (`app.using.recorded`).
"""

from __future__ import annotations

import time

from impctl.aliases import QueryName
from impctl.app.workbench.workbench import Workbench
from impctl.store.ledger import Ledger


def record_answer(desk: Workbench, query: QueryName) -> None:
    """Count one answer of the query."""
    if not Ledger(desk.store_path).record_answer(query, time.time()):
        desk.reporter.step("this answer is not in the ledger, which could not be written at once")
