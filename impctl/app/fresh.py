"""The stored sketch of one query, brought up to date first: what using a sketch starts from.

Law: a sketch is only used at the versions it stands for, and only while its query is safe; the
lazy maintenance happens here, under the query's own policy.
Out of scope: rewriting (`app.rewrite`), running (`app.query`).
"""

from __future__ import annotations

from dataclasses import dataclass

from impctl.app.maintain import maintain
from impctl.app.prepared import PreparedQuery, prepare
from impctl.app.restored import restored_verdict
from impctl.app.results import MaintainResult
from impctl.app.stored import check_definition, is_current, moved_meanwhile, stored_query
from impctl.app.workbench import Workbench
from impctl.errors import UsageError
from impctl.plan.nodes import Query
from impctl.store.records import StoredQuery


@dataclass(frozen=True, slots=True)
class Fresh:
    """A current sketch, its query, and what bringing it up to date took."""

    prepared: PreparedQuery
    stored: StoredQuery
    maintained: MaintainResult
    warnings: tuple[str, ...]

    @property
    def query(self) -> Query:
        return self.prepared.query


def fresh(bench: Workbench, query: str | None) -> Fresh:
    """The query named (or the only one of the file) with its sketch at the pinned versions."""
    name = query if query is not None else _only(bench)
    outcome = maintain(bench, [name])
    if outcome.failures:
        raise outcome.failures[0].error
    spec = bench.workload.queries[name]
    stored = stored_query(bench, bench.reading_store(), spec)
    check_definition(bench, spec, stored)
    if not is_current(stored, bench):
        raise moved_meanwhile(name)
    prepared = prepare(bench, spec)
    restored_verdict(bench, prepared, stored)
    first = outcome.results[0]
    assert isinstance(first, MaintainResult)
    return Fresh(prepared, stored, first, outcome.warnings)


def _only(bench: Workbench) -> str:
    names = tuple(bench.workload.queries)
    if len(names) != 1:
        raise UsageError(
            f"{bench.workload.file} has {len(names)} queries",
            hint=f"choose one with `--query`: {', '.join(names)}",
            code="query_ambiguous",
        )
    return names[0]
