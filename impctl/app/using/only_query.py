"""The query that is meant where none is named.

Law: it is never guessed: a file of several queries has none.
Out of scope: names of queries (`app.workbench`).
"""

from __future__ import annotations

from impctl.app.workbench.workbench import Workbench
from impctl.errors import UsageError
from impctl.types import QueryName


def only_query(desk: Workbench) -> QueryName:
    """The one query of the file; UsageError where it has several."""
    names = tuple(desk.workload.queries)
    if len(names) != 1:
        raise UsageError(
            f"{desk.workload.file} has {len(names)} queries",
            hint=f"choose one with `--query`: {', '.join(names)}",
            code="query_ambiguous",
        )
    return names[0]
