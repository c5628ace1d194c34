"""Whether the lineage of the answer alone, where it is asked for, makes sketches any smaller.

Law: where nothing is said, some sketch may hold less than with the lineage of all, or the file asks
for it by default only. What is said to change nothing has the sketches of all lineage; a table is
said to lack a sketch only where one is safe with that.
Out of scope: what each fixpoint's sketch holds (`plan.lineage`, told by `explain`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from impctl.app.preparing.choice import Chosen
from impctl.app.preparing.facts import facts_of
from impctl.app.preparing.occurrences import occurrences
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.results.explanations import CandidateEntry
from impctl.app.workbench.pinned import PinnedTables
from impctl.plan.lineage import for_all, why_unused
from impctl.plan.nodes import Fixpoint, nodes_of, scans_of
from impctl.safety.judge import Verdict, check_kept, states_of
from impctl.safety.lattice import Status
from impctl.types import AccessId, ColumnName, TableName
from impctl.workload.models import Lineage

LINEAGE_UNUSED = "lineage_unused"


def lineage_warnings(tables: PinnedTables, prepared: PreparedQuery, chosen: Chosen) -> list[str]:
    """What to say of `lineage: answer` that leaves a table without a sketch, or changes nothing."""
    spec = prepared.spec
    if spec.lineage is not Lineage.ANSWER:
        return []
    place = spec.lineage_place or spec.location
    what = f"{place}: `lineage: answer` of query `{spec.name}`"
    lost: dict[TableName, CandidateEntry] = {}
    for one in _lost(tables, prepared, chosen):
        lost.setdefault(one.table, one)
    if lost:
        table_of = prepared.table_of
        in_part = {table_of[access] for access in chosen.sketched}
        where = {t: f" ({one.occurrence})" if t in in_part else "" for t, one in lost.items()}
        return [
            f"{what} leaves `{table}`{where[table]} without a sketch: {one.reason}; with "
            f"`lineage: all`, a sketch on `{table}.{one.attribute}` is safe "
            f"[{LINEAGE_UNUSED}]"
            for table, one in lost.items()
        ]
    if spec.lineage_place is None:
        return []
    why = why_unused(prepared.root, *sketched_nodes(prepared, chosen.verdict, chosen.sketched))
    return [f"{what} has no effect: {why} [{LINEAGE_UNUSED}]"] if why else []


def sketched_nodes(
    prepared: PreparedQuery, verdict: Verdict, sketched: Mapping[AccessId, ColumnName]
) -> tuple[list[int], list[int]]:
    """Positions of the plan's nodes with a sketched access below: those not keyed, those keyed."""
    states = states_of(verdict, prepared.planned, sketched)
    result = [(at, s.status is Status.KEYED) for at, s in enumerate(states) if s.sketched]
    return [at for at, is_keyed in result if not is_keyed], [at for at, keyed in result if keyed]


def _lost(
    tables: PinnedTables, prepared: PreparedQuery, chosen: Chosen
) -> Iterator[CandidateEntry]:
    """Candidates that fixpoints could have beside what is chosen, were they sketched for all."""
    query = replace(prepared.planned, root=for_all(prepared.root))
    core = for_all(prepared.core)
    facts, names = facts_of(tables, prepared.scans), occurrences(prepared)
    nodes = nodes_of(prepared.root)
    inside = {s.access: s for n in nodes if isinstance(n, Fixpoint) for s in scans_of(n)}
    for access, scan in inside.items():
        for one in chosen.candidates if access not in chosen.sketched else ():
            is_of_it = (one.table, one.occurrence) == (scan.table, names[access])
            sketched = {**chosen.sketched, access: one.attribute}
            if is_of_it and not one.safe and check_kept(query, core, sketched, facts).safe:
                yield one
