"""State brought within the budget at the end of a run that wrote some.

Law: what was captured or maintained is committed before; a conversion that fails leaves the query
as it was and is told. Looked at after captures, and after runs that leave more than the budget.
Cost: without a budget none; else a sum over the catalog's list of runs.
Out of scope: the choice (`keeping.choice`).
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.app.maintaining.keeping.choice import Kept, kept_within, told
from impctl.app.maintaining.keeping.conversion import convert
from impctl.app.results.amounts import size_text
from impctl.app.workbench.settings import disk_of
from impctl.app.workbench.workbench import Workbench
from impctl.circuits.strategy import Strategy
from impctl.errors import ImpctlError
from impctl.store.store import Store
from impctl.workload.models import QuerySpec


def keep_to_budget(desk: Workbench, store: Store, *, has_captured: bool) -> list[str]:
    """Convert what the budget asks for; warnings of what could not be."""
    budget = disk_of(desk.settings, desk.workload)
    specs = [spec for spec in desk.workload.queries.values() if spec.is_sketched]
    if budget is None or not (has_captured or _bytes(store, specs) > budget):
        return []
    warnings = []
    try:
        kept = kept_within(desk, store, specs, budget)
    except ImpctlError as error:
        return [f"the state stays as it is, whatever its budget: {error.message}"]
    for name in kept.queries:
        warnings += _converted(desk, store, kept, name)
    size = _bytes(store, specs)
    if size > budget:
        warnings.append(
            f"state takes {size_text(size)}, more than its budget of {size_text(budget)}: the "
            f"rest cannot be read or made again; give it {size_text(size)}, or fewer queries"
        )
    return warnings


def _converted(desk: Workbench, store: Store, kept: Kept, name: str) -> list[str]:
    query, choice = kept.queries[name], kept.choice.queries[name]
    wanted = kept.from_files(name)
    before = query.compiled.sides_by(Strategy.FILES)
    if set(wanted) == set(before):
        return []
    moved = [side for side in choice.pieces if (side in wanted) != (side in before)]
    desk.reporter.step(f"bringing the state of {name} within the budget")
    try:
        convert(desk, store, query, wanted, told(choice, moved))
    except ImpctlError as error:
        return [f"the state of query `{name}` stays as it is: {error.message}"]
    return []


def _bytes(store: Store, specs: Sequence[QuerySpec]) -> int:
    return sum(run.bytes for spec in specs for run in store.run_refs(spec.name))
