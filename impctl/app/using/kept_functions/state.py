"""The state of a query whose recursion is kept by absorption, taken up to be asked.

Law: only of the very commit that the query was brought up to, and only where the query as it is
asked reads tables through that recursion alone; else there is none, and tables are read.
Out of scope: what is asked (`row`, `without`).
"""

from __future__ import annotations

from impctl.app.capturing.meta import StateMeta
from impctl.app.capturing.reopened import reopened
from impctl.app.using.fresh_sketch import Fresh
from impctl.app.workbench.workbench import Workbench
from impctl.compile.session import MaintainedQuery
from impctl.plan.nodes import Fixpoint, Plan, nodes_of, scans_of
from impctl.provenance.absorbed import AbsorbedRows


def absorbed_rows(desk: Workbench, result: Fresh, root: Plan) -> AbsorbedRows | None:
    """The recursion of a plan, with its state; None where there is none that tells all of it."""
    spec, store = result.prepared.spec, desk.reading_store()
    if spec.provenance is None or store is None or not result.sketches or result.reuse is not None:
        return None
    fixpoint = _only_fixpoint(root)
    stored = store.load(spec.name)
    if fixpoint is None or stored is None or dict(stored.versions) != dict(result.versions):
        return None
    if not StateMeta.read(stored.query, stored.state_meta).provenance:
        return None
    again = reopened(desk, spec, stored)
    kept, compiled = again.way.core, again.way.compiled
    plan = again.prepared.core if kept is None else kept
    if compiled is None or len(compiled.absorbed) != 1 or fixpoint not in [*nodes_of(plan)]:
        return None
    session = MaintainedQuery(compiled)
    session.restore(store.load_runs(spec.name), again.meta.counters)
    now = store.load(spec.name)
    if now is None or now.generation != stored.generation:
        return None
    (absorbed,) = compiled.absorbed
    return absorbed


def files_left_out(desk: Workbench, result: Fresh) -> int:
    """How many files the tables have, none of which is read."""
    return sum(len(desk.tables.snapshot(*pinned).files) for pinned in result.versions.items())


def _only_fixpoint(root: Plan) -> Fixpoint | None:
    """The fixpoint below which a plan reads all its tables."""
    result = [node for node in nodes_of(root) if isinstance(node, Fixpoint)]
    if len(result) != 1 or len(scans_of(root)) != len(scans_of(result[0])):
        return None
    return result[0]
