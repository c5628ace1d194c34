"""State brought within the budget at the end of a run that wrote some, or is asked for another.

Law: what was captured or maintained is committed before; a query that cannot be opened, or whose
conversion fails, stays as it was and is told. A choice is made after captures, and after other runs
only where what the last one was made by has moved (`keeping.looks`); it is carried out where that
is worth it (`keeping.worth`). A run that is late itself makes none, and leaves it to the next one.
Cost: without a budget none; with one a sum over the catalog's list of runs and the rates of kinds
of change, as long as no choice is made.
Out of scope: the choice (`keeping.choice`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from impctl.app.capturing.kept_ending import result_bytes
from impctl.app.maintaining.expected import Expectations, expectations
from impctl.app.maintaining.keeping.bounds import unheld_text
from impctl.app.maintaining.keeping.choice import Kept, kept_within
from impctl.app.maintaining.keeping.conversion import Wanted, convert
from impctl.app.maintaining.keeping.enough import enough_text
from impctl.app.maintaining.keeping.looks import Seen, is_known_to_exceed, is_to_look, pins_of
from impctl.app.maintaining.keeping.opened import state_bytes
from impctl.app.maintaining.keeping.worth import is_worth
from impctl.app.results.amounts import size_text
from impctl.app.workbench.settings import disk_of
from impctl.app.workbench.workbench import Workbench
from impctl.data.memory import give_back
from impctl.errors import ImpctlError
from impctl.store.records import Chosen
from impctl.store.store import Store
from impctl.types import TableName
from impctl.workload.models import QuerySpec

BUDGET_EXCEEDED = "budget_exceeded"


def keep_to_budget(
    desk: Workbench, store: Store, *, has_captured: bool, is_late: bool = False
) -> list[str]:
    """Convert what the budget asks for; warnings of what could not be."""
    budget = disk_of(desk.settings, desk.workload)
    if budget is None:
        return []
    specs = desk.sketched(None)
    try:
        seen, coming = _seen(desk, store, specs, budget)
        made_by = store.chosen()
        if made_by is not None and is_known_to_exceed(made_by, seen) and not has_captured:
            return [_exceeded(store, specs, seen.bytes, budget, made_by.least)]
        if not (has_captured or is_to_look(made_by, seen)):
            return []
        if is_late:
            # Even a run with nothing to do looks then, if it is the next one.
            store.save_chosen(None)
            return [_put_off(seen)] if seen.bytes > budget else []
        return _looked(desk, store, specs, seen, coming, has_captured=has_captured)
    except ImpctlError as error:
        return [f"the state does not change, whatever its budget: {error.message}"]


def _seen(
    desk: Workbench, store: Store, specs: Sequence[QuerySpec], budget: int
) -> tuple[Seen, Expectations]:
    """What a choice would be made by, and what is expected of the tables of stored queries."""
    tables = {table for spec in specs for table in _tables(store, spec)}
    coming = expectations(desk, store, sorted(tables))
    rates = {tuple(sorted(one.tables)): one.per_day for one in coming.expected(tables)}
    size = state_bytes(store, [spec.name for spec in specs])
    return Seen(budget, size, rates, pins_of(specs)), coming


def _tables(store: Store, spec: QuerySpec) -> Iterable[TableName]:
    try:
        stored = store.load(spec.name)
    except ImpctlError:
        # The choice says what is wrong with it, and its own run by its exit code.
        return ()
    return () if stored is None else stored.versions


def _looked(
    desk: Workbench,
    store: Store,
    specs: Sequence[QuerySpec],
    seen: Seen,
    coming: Expectations,
    *,
    has_captured: bool,
) -> list[str]:
    """Make a choice, carry it out where that is worth it, and remember what it was made by."""
    names = [spec.name for spec in specs]
    kept = kept_within(desk, store, specs, seen.budget, coming)
    warnings = [_left(name, why) for name, why in kept.troubles.items()]
    if is_worth(kept, is_over=seen.bytes > seen.budget, has_captured=has_captured):
        for name in kept.queries:
            warnings += converted(desk, store, kept, name)
            give_back()
    size = state_bytes(store, names)
    least = kept.fixed + kept.choice.least
    made_by = Chosen(
        budget=seen.budget,
        rates=seen.rates,
        bytes=size,
        pins=seen.pins,
        least=least,
        settled=not warnings,
    )
    store.save_chosen(made_by)
    warnings += [unheld_text(one, kept.fixed) for one in kept.unheld]
    if size > seen.budget:
        warnings.append(_exceeded(store, specs, size, seen.budget, least))
    return warnings


def _put_off(seen: Seen) -> str:
    return (
        f"state uses {size_text(seen.bytes)}, more than its budget of "
        f"{size_text(seen.budget)}: this run was late, so the next run that is on time will "
        f"reduce it [{BUDGET_EXCEEDED}]"
    )


def _exceeded(store: Store, specs: Sequence[QuerySpec], size: int, budget: int, least: int) -> str:
    """That the budget is exceeded, and what would help: a larger one, or fewer results kept."""
    needed, why = size, "the rest cannot be read from tables or rebuilt"
    if 0 < budget < least < size:
        needed = least
        why = f"even the minimum uses {size_text(least)}, so no more of it is removed"
    return (
        f"state uses {size_text(size)}, more than its budget of {size_text(budget)}: {why}; "
        f"raise the budget to {enough_text(needed)}, or "
        f"{_less(store, specs, needed - budget)} [{BUDGET_EXCEEDED}]"
    )


def _less(store: Store, specs: Sequence[QuerySpec], excess: int) -> str:
    """How so many bytes of state could be done without: the largest kept results first."""
    results = [(result_bytes(store, spec.name), spec.name) for spec in specs if spec.answer]
    names, saved = list[str](), 0
    for size, name in sorted(results, reverse=True):
        if saved < excess and size:
            names.append(f"`{name}`")
            saved += size
    if not names or saved < excess:
        return "store the state of fewer queries"
    noun = "result of query" if len(names) == 1 else "results of queries"
    return f"drop the {noun} {', '.join(names)} ({size_text(saved)})"


def converted(desk: Workbench, store: Store, kept: Kept, name: str) -> list[str]:
    """Convert a query to what was chosen of it, if it is not so; why it stayed as it was."""
    query, choice = kept.queries[name], kept.choice.queries[name]
    wanted = kept.wanted(name)
    if not wanted.moved(Wanted.now(query)):
        return []
    sides = [side.side for side in query.compiled.pieces]
    sides += [one.piece for one in query.compiled.buffers if one.piece not in sides]
    reasons = {side: choice.pieces[side].reason for side in sides if side in choice.pieces}
    desk.reporter.step(f"reducing the state of {name} to the budget")
    try:
        convert(desk, store, query, wanted, reasons)
    except ImpctlError as error:
        return [_left(name, error.message)]
    return []


def _left(name: str, why: str) -> str:
    return f"the state of query `{name}` does not change: {why}"
