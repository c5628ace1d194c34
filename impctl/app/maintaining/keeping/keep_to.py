"""State brought within the budget at the end of a run that wrote some.

Law: what was captured or maintained is committed before; a query that cannot be opened, or whose
conversion fails, stays as it was and is told. Looked at after captures, and after runs that leave
more than the budget.
Cost: without a budget none; else a sum over the catalog's list of runs.
Out of scope: the choice (`keeping.choice`).
"""

from __future__ import annotations

from impctl.app.maintaining.keeping.choice import Kept, kept_within
from impctl.app.maintaining.keeping.conversion import convert
from impctl.app.maintaining.keeping.opened import state_bytes
from impctl.app.results.amounts import size_text
from impctl.app.workbench.settings import disk_of
from impctl.app.workbench.workbench import Workbench
from impctl.circuits.strategy import Strategy
from impctl.data.given_back import give_back
from impctl.errors import ImpctlError
from impctl.store.store import Store

BUDGET_EXCEEDED = "budget_exceeded"


def keep_to_budget(desk: Workbench, store: Store, *, has_captured: bool) -> list[str]:
    """Convert what the budget asks for; warnings of what could not be."""
    budget = disk_of(desk.settings, desk.workload)
    specs = desk.sketched(None)
    names = [spec.name for spec in specs]
    if budget is None or not (has_captured or state_bytes(store, names) > budget):
        return []
    try:
        kept = kept_within(desk, store, specs, budget)
    except ImpctlError as error:
        return [f"the state stays as it is, whatever its budget: {error.message}"]
    warnings = [_left(name, why) for name, why in kept.troubles.items()]
    for name in kept.queries:
        warnings += _converted(desk, store, kept, name)
        give_back()
    size = state_bytes(store, names)
    if size > budget:
        warnings.append(
            f"state takes {size_text(size)}, more than its budget of {size_text(budget)}: the "
            f"rest cannot be read or made again; give it {_enough(size)}, or fewer queries"
            f" [{BUDGET_EXCEEDED}]"
        )
    return warnings


def _converted(desk: Workbench, store: Store, kept: Kept, name: str) -> list[str]:
    query, choice = kept.queries[name], kept.choice.queries[name]
    wanted = kept.from_files(name)
    before = query.compiled.sides_by(Strategy.FILES)
    if set(wanted) == set(before):
        return []
    sides = [side.side for side in query.compiled.sides]
    reasons = {side: choice.pieces[side].reason for side in sides if side in choice.pieces}
    desk.reporter.step(f"bringing the state of {name} within the budget")
    try:
        convert(desk, store, query, wanted, reasons)
    except ImpctlError as error:
        return [_left(name, error.message)]
    return []


def _left(name: str, why: str) -> str:
    return f"the state of query `{name}` stays as it is: {why}"


def _enough(size: int) -> str:
    """A budget that holds so many bytes: three digits, rounded up."""
    digit = 10 ** max(0, len(str(size)) - 3)
    return size_text(-(-size // digit) * digit)
