"""Another query's sketch for a query that has none of its own: looked for, judged, told.

Law: a sketch is used only where `reuse.verdict` allows it at the very versions it stands for;
what was looked at comes with its reason. Where none serves, the query reads its whole tables:
slower, never wrong. Policy `strict` refuses that instead; where a sketch could not be brought up to
date for now, with what was in the way.
Out of scope: the rules (`reuse.verdict`), bringing a sketch up to date
(`app.using.fresh_sketch`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from impctl.app.capturing.definition import is_defined_alike
from impctl.app.capturing.entries import sketch_entry
from impctl.app.preparing.facts import fact_of, facts_of
from impctl.app.preparing.filters import filters_of
from impctl.app.preparing.prepared import PreparedQuery, prepare
from impctl.app.results.results import ReuseCandidate, ReuseEntry
from impctl.app.using.fresh_sketch import Fresh, fresh
from impctl.app.workbench.pinned import PinnedTables
from impctl.app.workbench.workbench import Workbench
from impctl.compile.build import template_id
from impctl.errors import (
    ImpctlError,
    PolicyRefusedError,
    RecaptureNeededError,
    RetryableError,
    UnsupportedError,
)
from impctl.plan.recursion import is_recursive
from impctl.reuse.verdict import ReuseVerdict, has_recursion_like
from impctl.store.records import Assumption, StoredQuery, StoredSketch
from impctl.values import dataclass
from impctl.version import is_stamped_alike
from impctl.workload.models import Lineage, Policy, QuerySpec

_OWN_TEXT_ALONE = {
    Lineage.WITNESS: "its sketch holds only witnesses (`lineage: witness`), "
    "so it serves only its own text",
    Lineage.ANSWER: "its sketch holds only the lineage of that query's result (`lineage: answer`)",
}
_NO_TEMPLATE = "no captured query has the same template"


@dataclass(frozen=True, slots=True)
class _Looked:
    """A stored query of the same template, or the one that was named."""

    candidate: ReuseCandidate
    rank: tuple[float, float]


def reused(desk: Workbench, spec: QuerySpec, own: QuerySpec | None) -> Fresh:
    """The query with the smallest sketch that serves it; `own` is the one it is an instance of."""
    prepared = prepare(desk, spec)
    looked = _looked_at(desk, prepared, own)
    order = sorted(range(len(looked)), key=lambda index: looked[index].rank)
    entries = [result.candidate for result in looked]
    passing: RetryableError | None = None
    for index in order:
        if not entries[index].allowed:
            continue
        try:
            result = _used(desk, prepared, entries[index].query)
        except RetryableError as error:
            # Another writer, or the disk of the store: the tables can be read all the same.
            passing, result = error, _not_fresh(error)
        if isinstance(result, str):
            entries[index] = replace(entries[index], allowed=False, reason=result)
            continue
        entries[index] = replace(
            entries[index],
            chosen=True,
            reason=result.reason,
            sketches=tuple(sketch_entry(sketch) for sketch in result.fresh.sketches),
        )
        reuse = ReuseEntry(entries[index].query, result.reason, _told(entries))
        return replace(result.fresh, reuse=reuse)
    return _without(desk, prepared, tuple(entries), passing)


def _told(entries: Sequence[ReuseCandidate]) -> tuple[ReuseCandidate, ...]:
    """The candidates, where one that would have served says that another was taken."""
    return tuple(
        replace(entry, reason="also usable, but a smaller one was chosen")
        if entry.allowed and not entry.chosen
        else entry
        for entry in entries
    )


def _without(
    desk: Workbench,
    prepared: PreparedQuery,
    candidates: tuple[ReuseCandidate, ...],
    passing: RetryableError | None,
) -> Fresh:
    """The query on its whole tables; `passing` is what the same command may not meet again."""
    spec = prepared.spec
    reason = "no stored sketch can be used" if candidates else _NO_TEMPLATE
    if desk.policy(spec) is Policy.STRICT:
        if passing is not None:
            raise passing
        why = "; ".join(f"`{entry.query}`: {entry.reason}" for entry in candidates)
        raise PolicyRefusedError(
            f"Policy `strict` does not run query `{spec.name}` without a sketch: {why or reason}",
            hint="capture it under its own name, or set the policy to `auto`",
            code="no_sketch_to_reuse",
            location=spec.location,
        )
    versions = desk.tables.versions_of(prepared.tables)
    warning = f"query `{spec.name}` runs without a sketch, because {reason}"
    return Fresh(
        prepared=prepared,
        sketches=(),
        versions=versions,
        warnings=(warning,),
        reuse=ReuseEntry(None, reason, candidates),
    )


def _looked_at(desk: Workbench, prepared: PreparedQuery, own: QuerySpec | None) -> list[_Looked]:
    """Every stored query of the workload with the same template, or with a recursion alike, and the
    one that was named.
    """
    store = desk.reading_store()
    wanted = template_id(prepared.core)
    looked = []
    for spec in desk.workload.queries.values():
        is_named = own is not None and spec.name == own.name
        is_looked_at = store is not None and spec.is_sketched
        stored = store.load(spec.name) if store is not None and is_looked_at else None
        if stored is None:
            if is_named:
                looked.append(_refused(spec, "it has not been captured"))
            continue
        try:
            result = _judged(desk, prepared, spec, stored, wanted, is_named=is_named)
        except ImpctlError as error:
            result = _refused(spec, error.message)
        if result is not None:
            looked.append(result)
    return looked


def _judged(
    desk: Workbench,
    prepared: PreparedQuery,
    spec: QuerySpec,
    stored: StoredQuery,
    wanted: str,
    *,
    is_named: bool,
) -> _Looked | None:
    """One stored query judged as it stands; None where it has another template."""
    known = stored.state_meta.get("template", "")
    is_known = is_stamped_alike(known, wanted)
    is_other = is_known and known != wanted and not is_named
    if is_other and not is_recursive(prepared.core):
        return None
    if not is_defined_alike(desk, spec, stored):
        is_told = is_known and not is_other
        return _refused(spec, "it changed since the capture") if is_told else None
    # As of now: before its sketch is used, that follows the clock, and is judged again.
    captured = _prepared(desk, spec, is_other=is_other)
    if captured is None or not (is_named or _is_alike(prepared, captured, wanted)):
        return None
    if spec.lineage in _OWN_TEXT_ALONE:
        return _refused(spec, _OWN_TEXT_ALONE[spec.lineage])
    verdict = verdict_of(desk, prepared, captured, stored.sketches, stored.assumptions)
    entries = tuple(sketch_entry(sketch) for sketch in stored.sketches)
    if not verdict.allowed:
        return _refused(spec, verdict.reason)
    own = mapped(stored.sketches, verdict)
    rows = _rows_left(desk.tables, prepared, own)
    share = sum(len(s.fragments) / s.partition.size for s in own) / max(len(prepared.scans), 1)
    bare = 1 - len(own) / max(len(prepared.scans), 1)
    candidate = ReuseCandidate(spec.name, True, False, verdict.reason, entries, rows)
    return _Looked(candidate, (float("inf") if rows is None else rows, share + bare))


def _prepared(desk: Workbench, spec: QuerySpec, *, is_other: bool) -> PreparedQuery | None:
    """The query; None where one of another template cannot be read: it is not asked about."""
    try:
        return prepare(desk, spec)
    except ImpctlError:
        if is_other:
            return None
        raise


def _is_alike(prepared: PreparedQuery, captured: PreparedQuery, wanted: str) -> bool:
    """Whether the queries have one template, or recursions that have."""
    return template_id(captured.core) == wanted or has_recursion_like(prepared.core, captured.core)


def _refused(spec: QuerySpec, reason: str) -> _Looked:
    return _Looked(ReuseCandidate(spec.name, False, False, reason), (0.0, 0.0))


def verdict_of(
    desk: Workbench,
    prepared: PreparedQuery,
    captured: PreparedQuery,
    sketches: Sequence[StoredSketch],
    assumptions: Sequence[Assumption],
) -> ReuseVerdict:
    """Judged with what is true of the pinned versions, the sketch's assumptions among it."""
    facts = [*facts_of(desk.tables, prepared.scans), *map(fact_of, assumptions)]
    sketched = tuple((sketch.access, sketch.attribute) for sketch in sketches)
    return desk.memory.reuse(prepared.planned, captured.planned, sketched, facts)


def mapped(sketches: Sequence[StoredSketch], verdict: ReuseVerdict) -> tuple[StoredSketch, ...]:
    """The sketches under the accesses of the query that is asked."""
    known = {sketch.access: sketch for sketch in sketches}
    return tuple(
        replace(known[other], access=access)
        for access, other in verdict.accesses.items()
        if other in known
    )


def _rows_left(
    tables: PinnedTables, prepared: PreparedQuery, sketches: Sequence[StoredSketch]
) -> int | None:
    """Rows of the files that the sketches leave to read now; None where a log does not say."""
    versions = tables.versions_of(prepared.tables)
    kept = filters_of(tables, prepared, sketches, versions, for_text=True).files
    rows = [file.rows for files in kept.values() for file in files]
    known = [count for count in rows if count is not None]
    return sum(known) if len(known) == len(rows) else None


@dataclass(frozen=True, slots=True)
class _Used:
    """The asked query with the sketches of another one, and why that is allowed."""

    fresh: Fresh
    reason: str


def _used(desk: Workbench, prepared: PreparedQuery, name: str) -> _Used | str:
    """The sketch of a query brought up to date and judged again; a text says why it cannot be.

    RetryableError where only something that passes is in the way.
    """
    try:
        current = fresh(desk, name)
    except (PolicyRefusedError, RecaptureNeededError, UnsupportedError) as error:
        return _not_fresh(error)
    verdict = verdict_of(desk, prepared, current.prepared, current.sketches, current.assumptions)
    if not verdict.allowed:
        return verdict.reason
    # Queries that share no more than a recursion may read other tables beside. An answer that is
    # kept is that of the other query's own constants.
    versions = {**desk.tables.versions_of(prepared.tables), **current.versions}
    result = replace(
        current,
        prepared=prepared,
        sketches=mapped(current.sketches, verdict),
        versions={table: versions[table] for table in prepared.tables},
        assumptions=(),
        generation=None,
    )
    return _Used(result, verdict.reason)


def _not_fresh(error: ImpctlError) -> str:
    return f"it could not be maintained: {error.message}"
