"""Use case: run a query through its sketch.

Law: the answer is the query's own at the pinned versions; the sketch only decides what is read.
Out of scope: proving that (`app.verify`).
"""

from __future__ import annotations

import time

from impctl.app.answers import answer
from impctl.app.filters import filters_of
from impctl.app.fresh import fresh
from impctl.app.results import Outcome, QueryResult
from impctl.app.workbench import Workbench


def query(bench: Workbench, query: str | None) -> Outcome:
    """The answer of one query, its sketch maintained first where it is stale."""
    found = fresh(bench, query)
    pruned = filters_of(bench, found.prepared.scans, found.stored)
    bench.spark()
    bench.reporter.step(f"running {found.prepared.spec.name}")
    started = time.perf_counter()
    got = answer(bench, found.prepared, found.stored.versions, pruned)
    elapsed = (time.perf_counter() - started) * 1000
    result = QueryResult(
        found.prepared.spec.name,
        got.columns,
        got.rows,
        len(got.rows),
        found.stored.versions,
        pruned.files_kept,
        pruned.files_total,
        elapsed,
        found.maintained.action,
        found.maintained.reason,
    )
    return Outcome((result,), found.warnings)
