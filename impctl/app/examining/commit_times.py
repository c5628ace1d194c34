"""The times of tables' commits as findings: clocks that cannot be right.

Law: reads logs only, and what the store knows of them. Forecasts and deadlines go by these times.
Out of scope: what is made of such times (`forecast.arrival`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from impctl.app.results.findings import Finding, Subject
from impctl.app.workbench.histories import known_histories
from impctl.app.workbench.workbench import Workbench
from impctl.errors import ImpctlError
from impctl.forecast.arrival import clock_faults


def commit_time_findings(desk: Workbench) -> Iterator[Finding]:
    """A warning for each table some of whose commits lie in the future or go back."""
    try:
        store = desk.reading_store()
    except ImpctlError:
        # What is wrong with the store is found with it.
        store = None
    try:
        histories = known_histories(desk.tables, store, desk.workload.tables)
    except ImpctlError:
        return
    for table, history in histories.items():
        faults = clock_faults(history.arrivals, time.time())
        said = [
            words
            for count, words in (
                (faults.ahead, f"{faults.ahead} in the future"),
                (faults.back, f"{faults.back} before the commit before"),
            )
            if count
        ]
        if said:
            yield Subject.of_table(table).warning(
                "commit_times",
                f"Of {len(history.arrivals):,} commits the time cannot be right: {', '.join(said)}",
                "set the clocks of the machines that write the table; until then such a commit "
                "counts as made with the one before",
            )
