"""The stored sketch of one query, brought up to date first: what using a sketch starts from.

Law: a sketch is only used at the versions it stands for, only while its query is safe and reads as
it did at the capture; the lazy maintenance happens here, under the query's own policy.
Out of scope: rewriting (`app.rewrite`), running (`app.query`).
"""

from __future__ import annotations

from collections.abc import Mapping

from impctl.app.capturing.chosen_way import is_same_circuit, restored_verdict
from impctl.app.capturing.definition import check_definition, stored_query
from impctl.app.capturing.moments import moved_moments, still
from impctl.app.capturing.pins import catch_up, is_current, moved_meanwhile
from impctl.app.maintaining.maintained import maintain_queries
from impctl.app.preparing.prepared import PreparedQuery, prepare
from impctl.app.results.results import MaintainResult, Outcome, ReuseEntry
from impctl.app.using.only_query import only_query
from impctl.app.workbench.settings import DEFAULT_BATCH_ROWS
from impctl.app.workbench.workbench import Workbench
from impctl.errors import ImpctlError
from impctl.plan.nodes import Query
from impctl.store.records import Assumption, StoredQuery, StoredSketch
from impctl.types import TableName, TableVersion
from impctl.values import dataclass
from impctl.workload.models import QuerySpec

_ATTEMPTS = 10
"""Times that other processes may move a sketch on while it is being taken up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """A query with its current sketches, and what bringing them up to date took.

    `sketches` are by the query's own accesses, none where no sketch serves; `action` and `reason`
    say how they were maintained first. `reuse` is set where they may be those of another query.
    `generation` is the commit with which the query's own answer is kept, None where none is;
    `refusal` what kept the sketch of a query from being had whose answer is to be kept with it.
    """

    prepared: PreparedQuery
    sketches: tuple[StoredSketch, ...]
    versions: Mapping[TableName, TableVersion]
    assumptions: tuple[Assumption, ...] = ()
    action: str = "none"
    reason: str = ""
    warnings: tuple[str, ...] = ()
    reuse: ReuseEntry | None = None
    generation: int | None = None
    refusal: ImpctlError | None = None

    @property
    def query(self) -> Query:
        return self.prepared.query


def fresh(desk: Workbench, query: str | None) -> Fresh:
    """The query named (or the only one of the file) with its sketch at the pinned versions."""
    name = query if query is not None else only_query(desk)
    (spec,) = desk.queries([name])
    outcome, stored = _brought_up_to_date(desk, spec)
    prepared = prepare(desk, spec)
    restored_verdict(desk.tables, prepared, stored)
    first = outcome.results[0]
    assert isinstance(first, MaintainResult)
    return Fresh(
        prepared=prepared,
        sketches=stored.sketches,
        versions=stored.versions,
        assumptions=stored.assumptions,
        action=first.action,
        reason=first.reason,
        warnings=outcome.warnings,
        generation=stored.generation if stored.state_meta.get("answer") else None,
    )


def _brought_up_to_date(desk: Workbench, spec: QuerySpec) -> tuple[Outcome, StoredQuery]:
    """What maintaining did, and the sketch at the pinned versions.

    Another process may maintain the sketch past them in between: then they are pinned again.
    """
    # Without a sketch there is nothing to lock, nor a store to make.
    stored_query(desk, desk.reading_store(), spec)
    for _ in range(_ATTEMPTS):
        outcome = maintain_queries(desk, [spec], DEFAULT_BATCH_ROWS, for_use=True)
        if outcome.failures:
            raise outcome.failures[0].error
        stored = stored_query(desk, desk.reading_store(), spec)
        check_definition(desk, spec, stored)
        catch_up(desk.tables, stored)
        is_of_now = is_current(stored, desk.tables) and not moved_moments(desk, stored)
        if is_of_now and is_same_circuit(desk, prepare(desk, spec, still(stored)), stored):
            return outcome, stored
    raise moved_meanwhile(spec.name)
