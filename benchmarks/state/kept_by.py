"""A query captured and brought to what a way of choosing keeps of its state, under a budget.

Law: what is expected is what a workload file would say (`changes:`); choosing and converting are
those of `capture` and `maintain`, whoever chose. Ways: `chosen`, as impctl does; `kept`, all of it;
`read`, the least; `recapture`, nothing, so that every change costs a recapture; and the simpler
choices of `state.simpler_choices`.
Out of scope: what is measured of it (`measures`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.state.simpler_choices import SIMPLER_CHOICES, SimplerChoice
from impctl.bench.timing import milliseconds
from impctl.errors import StateCorruptError
from impctl.measure.scratch import MeasuredQuery
from impctl.placement import explained
from impctl.service.budget.choice import WeighedState, choose_state, converted, weigh_state
from impctl.service.budget.costs import state_bytes
from impctl.service.capture import capture_query
from impctl.service.context import Context
from impctl.service.prepare import prepare
from impctl.stopwatch import Stopwatch
from impctl.types import TableName
from impctl.workload.models import ExpectedChanges, QuerySpec

CHOSEN, KEPT, READ, RECAPTURE = "chosen", "kept", "read", "recapture"
WAYS = (CHOSEN, KEPT, READ, RECAPTURE, *SIMPLER_CHOICES)
BOUNDED = (CHOSEN, *SIMPLER_CHOICES)
"""Those that a budget means something to."""

_EVERY = 3600.0


class Declared(Struct, frozen=True):
    """What the workload file says of a table's changes: rows, and how many are deletions."""

    rows: int
    deletes: float = 0.0


@contextmanager
def expecting(ctx: Context, expected: Mapping[TableName, Declared]) -> Iterator[Context]:
    """A workbench on the same tables and store whose file expects these changes, once an hour, and
    no others."""
    tables = {name: replace(table, coming=()) for name, table in ctx.workload.tables.items()}
    for table, each in expected.items():
        one = ExpectedChanges(_EVERY, each.rows, each.deletes, None, None)
        tables[table] = replace(tables[table], coming=(one,))
    result = Context(ctx.settings, replace(ctx.workload, tables=tables), ctx.reporter)
    try:
        yield result
    finally:
        result.close()


def captured_under(ctx: Context, spec: QuerySpec, budget: int | None) -> float:
    """Capture as under this budget, without looking at the choice; milliseconds.

    The caller holds the store's lock.
    """
    settings = replace(ctx.settings, disk=budget)
    under = Context(settings, ctx.workload, ctx.reporter)
    watch = Stopwatch()
    try:
        capture_query(under, ctx.store(), prepare(under, spec), code="asked", reason="bench")
    finally:
        under.close()
    return watch.ms


def brought_to(ctx: Context, spec: QuerySpec, way: str, budget: int | None) -> float:
    """Convert the captured query to what the way keeps; milliseconds.

    StateCorruptError where it could not be: what follows would be measured of something else.
    """
    if way in (KEPT, RECAPTURE):
        return 0.0
    watch = Stopwatch()
    simpler = SIMPLER_CHOICES.get(way)
    if simpler is None:
        assert way == READ or budget is not None
        kept = choose_state(ctx, ctx.store(), [spec], 0 if way == READ else budget or 0)
    else:
        assert budget is not None
        kept = _chosen_by(simpler, weigh_state(ctx, ctx.store(), [spec]), budget)
    problems = [*kept.troubles.values()]
    for name in kept.queries:
        problems += converted(ctx, ctx.store(), kept, name)
    if problems:
        raise StateCorruptError(problems[0], hint="run the suite again")
    return watch.ms


def stored_bytes(ctx: Context, spec: QuerySpec, way: str = KEPT) -> int:
    """The size of the query's stored state, which a recapture does not use."""
    return 0 if way == RECAPTURE else state_bytes(ctx.store(), [spec.name])


def step_ms(follower: MeasuredQuery, way: str) -> float:
    """What bringing the sketch up to date takes."""
    step = follower.follow()
    assert step is not None, "every change is a commit"
    return recapture_ms(follower) if way == RECAPTURE else step.total_ms


def recapture_ms(follower: MeasuredQuery) -> float:
    """The second of two recaptures, without state."""
    follower.recapture()
    return milliseconds(follower.recapture)


def _chosen_by(simpler: SimplerChoice, weighed: WeighedState, budget: int) -> WeighedState:
    left = max(0, budget - weighed.fixed)
    modes = {name: simpler(model, left) for name, model in weighed.models.items()}
    return replace(weighed, choice=explained(weighed.models, modes, left), budget=budget)
