"""Choose which state is kept under the budget, and convert state to a choice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from msgspec import Struct, field
from msgspec.structs import replace

from impctl.data.memory import give_back
from impctl.errors import ImpctlError, RecaptureNeededError
from impctl.placement.graph import PRIORS, Graph, KindOfChange, PieceMode, graph_of, restricted
from impctl.placement.search import StateChoice, conversion_ms, per_day_together, priced
from impctl.service.memory_limit import largest_side, memory_of
from impctl.service.results import PlannedPiece, PlanResult
from impctl.service.schedule.forecast import Expectations, Expected, expectations
from impctl.service.settings import disk_of
from impctl.service.stored import (
    StateMeta,
    check_not_replaced_meanwhile,
    has_new_requirements,
    pins_of,
    result_bytes,
)
from impctl.service.text import size_text
from impctl.stopwatch import Stopwatch
from impctl.store.records import MaintainCommit, RunCost, RunKind, RunRecord, StateChoiceBasis
from impctl.types import QueryName, TableName
from impctl.workload.models import JoinStrategy, QuerySpec, StateKept

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.compile.flows import SideChoice, Source
    from impctl.compile.session import Checkpoint, MaintainedQuery
    from impctl.data.vector import Vector
    from impctl.placement.graph import Piece
    from impctl.placement.search import Modes
    from impctl.service.budget.bounds import MissedBound
    from impctl.service.budget.costs import OpenedQuery
    from impctl.service.context import Context
    from impctl.service.prepare import PreparedQuery
    from impctl.store.records import StoreReader
    from impctl.store.store import Store
    from impctl.types import ColumnName


# What a plan says of state under a budget: each piece that may be left out, its mode, and why.
# Law: the choice is the one that the next run which looks at the budget makes, and what is kept
# now where that run would leave it; without a budget nothing is chosen, and nothing said.

_STAYS = "converting saves too little: "


def with_state(
    ctx: Context, store: StoreReader | None, results: Sequence[PlanResult]
) -> tuple[list[PlanResult], list[str]]:
    """Add what would be kept to stored queries' results; also returns missed bounds."""
    from impctl.service.budget.bounds import missed_bound_text
    from impctl.service.budget.costs import state_bytes

    budget = disk_of(ctx.settings, ctx.workload)
    if store is None or budget is None:
        return list(results), []
    specs = ctx.sketched(None)
    kept = choose_state(ctx, store, specs, budget)
    is_over = state_bytes(store, [spec.name for spec in specs]) > budget
    stays = not is_worth(kept, is_over=is_over)
    told = [replace(each, state=tuple(_pieces(kept, each.query, stays))) for each in results]
    return told, [] if stays else [missed_bound_text(one, kept.fixed) for one in kept.unheld]


def _pieces(kept: WeighedState, query: QueryName, stays: bool) -> Iterator[PlannedPiece]:
    """Pieces that can be read or bounded, in circuit order; `stays`: none is converted."""
    from impctl.compile.flows import Strategy

    if query not in kept.queries:
        return
    opened = kept.queries[query]
    left_out = {side.side for side in opened.compiled.pieces if Strategy.FILES in side.readers}
    left_out |= kept.sizes[query].keys()
    known = {piece.name: piece for piece in kept.graphs[query].pieces}
    for piece in kept.choice.queries[query].pieces.values():
        if piece.name in left_out and piece.kept_bytes is not None:
            mode, now = piece.mode, kept.now[query][piece.name]
            size, reason, buffer = piece.bytes, piece.reason, kept.sizes[query].get(piece.name)
            if stays and mode is not now:
                size = known[piece.name].sizes[now]
                mode, reason = now, f"{_STAYS}{reason}"
            if stays:
                buffer = opened.as_stored.meta.buffers.get(piece.name)
            yield PlannedPiece(
                piece.name,
                known[piece.name].word(mode),
                known[piece.name].word(now),
                size,
                piece.kept_bytes,
                reason,
                buffer if mode is PieceMode.BOUNDED else None,
            )


# Whether the choice of state is to be made again, by what the last one was made by. Law: it is
# where the budget or what queries pin changed, where rates of kinds of change moved by a factor
# of two, and where state exceeds the budget, but for one that the last choice could not be
# brought within either. Kinds of change that come less than once in thirty days move nothing.

_FACTOR = 2.0
_LEAST_PER_DAY = 1 / 30
_ALIKE = 0.05
"""Relative difference of bytes that counts as equal."""

Rates = Mapping[tuple[TableName, ...], float]
"""Runs per day, by the tables that change in one."""


class ChoiceInput(Struct, frozen=True):
    """Input of a choice: budget and state in bytes, rates, and pins."""

    budget: int
    bytes: int
    rates: Rates
    pins: Mapping[QueryName, str]


def is_to_look(made_by: StateChoiceBasis | None, now: ChoiceInput) -> bool:
    """Whether to choose again."""
    return (
        made_by is None
        or has_new_requirements(made_by, now.budget, now.pins)
        or now.bytes > now.budget
        or have_moved(dict(made_by.rates), now.rates)
    )


def is_known_to_exceed(made_by: StateChoiceBasis | None, now: ChoiceInput) -> bool:
    """Whether state exceeds a budget that the last choice could not meet either."""
    return (
        made_by is not None
        and made_by.settled
        and now.bytes > now.budget
        and made_by.bytes > now.budget
        and not has_new_requirements(made_by, now.budget, now.pins)
        and abs(now.bytes - made_by.bytes) <= _ALIKE * made_by.bytes
        and not have_moved(dict(made_by.rates), now.rates)
    )


def have_moved(before: Rates, now: Rates) -> bool:
    for kind in before.keys() | now.keys():
        low, high = sorted((before.get(kind, 0.0), now.get(kind, 0.0)))
        if high >= _LEAST_PER_DAY and high >= _FACTOR * low:
            return True
    return False


# Whether a new choice of state is worth carrying out, or what is kept stays as it is. Law: state
# that exceeds its budget is brought within it, and what a query pins is as it says. Where nothing
# would bring it within, it stays as it is but after a capture. Else a new choice is carried out
# where it saves a fifth of the work that is expected and what it takes to convert comes back
# within a week, or where it holds bounds that are not held now: choices that are about as good as
# each other do not take turns.

_LEAST_SAVED = 0.2
_DAYS = 7.0


def is_worth(kept: WeighedState, *, is_over: bool, has_captured: bool = False) -> bool:
    """Whether to carry out the choice; `is_over`: state exceeds the budget. `has_captured`: a first
    capture skips what may be large before its size is known."""
    pieces = ((name, piece) for name, graph in kept.graphs.items() for piece in graph.pieces)
    if any(kept.now[name][piece.name] not in piece.modes for name, piece in pieces):
        return True
    is_better = kept.holds_more or _pays(kept)
    return has_captured and is_better if kept.is_out_of_reach else is_over or is_better


def _pays(kept: WeighedState) -> bool:
    names = list(kept.graphs)
    before = per_day_together([kept.graphs[n] for n in names], [kept.now[n] for n in names])
    after = kept.choice.ms_per_day
    if kept.choice.per_byte:
        before += kept.choice.per_byte * sum(kept.graphs[n].bytes_of(kept.now[n]) for n in names)
        after += kept.choice.per_byte * kept.choice.bytes
    saved = before - after
    takes = 0.0
    for name in names:
        now, then, costs = kept.now[name], kept.choice.queries[name].modes, kept.conversions[name]
        moved = [to.get(then[at], 0.0) for at, to in costs.items() if now[at] != then[at]]
        takes += PRIORS.conversion_ms + sum(moved) if moved else 0.0
    return saved > 0 and saved >= _LEAST_SAVED * before and takes <= _DAYS * saved


# What is worth keeping of all queries under the budget, by what is expected to change. Law: a
# pure choice of what stored state, recorded runs and histories tell; nothing is written. Sides of
# queries whose constants move with the clock, those that the workload pins (`join: index`,
# `files`, `spark`, `state`, `buffer`), trees, groupings that cannot be read (`compile.flows`) and
# materialized results are kept as they are; of the other sides and groupings each is kept or
# read, whole where no key narrows what is read. First rows, and groupings with MIN or MAX, may be
# bounded where their buffers can be filled again (`keeping.buffers`).

_ALLOWED = (PieceMode.KEPT, PieceMode.READ, PieceMode.BOUNDED)


class WeighedState(Struct, frozen=True):
    """The weighed queries, the choice, and bytes that no choice changes. By query: `graphs` are its
    input, `now` the present modes, `conversions` the milliseconds to convert each piece to a mode,
    `sizes` the buffer sizes of bounded pieces. `unheld` are missed bounds; it `holds_more` of them
    than the present state. `troubles` says why queries could not be opened; their state counts
    unchanged."""

    queries: Mapping[QueryName, OpenedQuery]
    choice: StateChoice
    fixed: int
    troubles: Mapping[QueryName, str]
    graphs: Mapping[QueryName, Graph]
    now: Mapping[QueryName, Modes]
    conversions: Mapping[QueryName, Mapping[str, Mapping[PieceMode, float]]]
    sizes: Mapping[QueryName, Mapping[str, int]] = field(default_factory=dict)
    unheld: Sequence[MissedBound] = ()
    holds_more: bool = False
    budget: int | None = None

    @property
    def is_out_of_reach(self) -> bool:
        """Whether even the least exceeds the budget; a budget of 0 requests the least."""
        return bool(self.budget) and self.choice.exceeds

    def wanted(self, query: QueryName) -> StateTarget:
        """Pieces to read or bound; sides read by Spark and pieces read without a choice stay so."""
        from impctl.compile.flows import Strategy

        modes = self.choice.queries[query].modes
        compiled = self.queries[query].compiled
        by_spark = compiled.sides_by(Strategy.SPARK)
        read = [name for name, mode in modes.items() if mode is PieceMode.READ]
        read += [name for name in compiled.sides_by(Strategy.FILES) if name not in modes]
        sizes = self.sizes[query]
        bounded = {name: sizes[name] for name, mode in modes.items() if mode is PieceMode.BOUNDED}
        return StateTarget(tuple(name for name in read if name not in by_spark), bounded)


Choose = Callable[[Mapping[QueryName, Graph], int | None], StateChoice]
"""A way to choose modes for all pieces of these queries within so many bytes."""


def choose_state(
    ctx: Context,
    store: StoreReader,
    specs: Sequence[QuerySpec],
    budget: int | None,
    coming: Expectations | None = None,
    choose: Choose | None = None,
) -> WeighedState:
    """Choose for all of these queries that are stored. `coming` are expectations of their tables,
    if already known; `choose` replaces the choice by bounds, and ignores them."""
    from impctl.service.budget.bounds import bounds_of, chosen_within, late_runs

    queries, troubles, fixed = _all_opened(ctx, store, specs)
    tables = {table for one in queries.values() for table in one.stored.versions}
    if coming is None:
        coming = expectations(ctx, store, sorted(tables))
    weighed = _Weighed(ctx, store, coming.expected(tables))
    by_priors = {name: weighed.by_priors(query) for name, query in queries.items()}
    now = {name: modes_now(query, by_priors[name]) for name, query in queries.items()}
    graphs = {
        name: weighed.graph(query, by_priors[name], now[name]) for name, query in queries.items()
    }
    for name, query in queries.items():
        pieces = {piece.name for piece in graphs[name].pieces}
        fixed += sum(size.bytes for at, size in query.sizes.items() if not _is_of(at, pieces))
    bounds, chances = bounds_of(specs), weighed.chances
    if choose is None:
        choice, unheld = chosen_within(graphs, budget, bounds, chances, fixed, now)
    else:
        left = None if budget is None else max(0, budget - fixed)
        choice, unheld = choose(graphs, left), ()
    then = {name: one.modes for name, one in choice.queries.items()}
    late, late_now = (len(late_runs(graphs, modes, bounds, chances)) for modes in (then, now))
    costs = {name: conversion_ms(graph) for name, graph in by_priors.items()}
    sizes, holds_more = weighed.sizes, late < late_now
    return WeighedState(
        queries, choice, fixed, troubles, graphs, now, costs, sizes, unheld, holds_more, budget
    )


def graphs_of(
    ctx: Context,
    store: StoreReader,
    queries: Mapping[QueryName, OpenedQuery],
    expected: Sequence[Expected],
) -> dict[QueryName, Graph]:
    """Graphs of the queries under these expected kinds of change."""
    weighed = _Weighed(ctx, store, expected)
    result = {}
    for name, query in queries.items():
        by_priors = weighed.by_priors(query)
        result[name] = weighed.graph(query, by_priors, modes_now(query, by_priors))
    return result


def _all_opened(
    ctx: Context, store: StoreReader, specs: Sequence[QuerySpec]
) -> tuple[dict[QueryName, OpenedQuery], dict[QueryName, str], int]:
    from impctl.service.budget.costs import state_bytes

    queries: dict[QueryName, OpenedQuery] = {}
    troubles: dict[QueryName, str] = {}
    fixed = 0
    for spec in specs:
        try:
            result = _opened(ctx, store, spec)
        except ImpctlError as trouble:
            # Another run reports it by its exit code: this one has done its work.
            troubles[spec.name], result = trouble.message, None
        if result is None:
            fixed += state_bytes(store, [spec.name])
        else:
            queries[spec.name] = result
    return queries, troubles, fixed


def _opened(ctx: Context, store: StoreReader, spec: QuerySpec) -> OpenedQuery | None:
    from impctl.service.budget.costs import opened

    stored = store.load(spec.name)
    try:
        return None if stored is None else opened(ctx, store, spec, stored)
    except RecaptureNeededError:
        # The next capture replaces its state.
        return None


class _Weighed:
    def __init__(self, ctx: Context, store: StoreReader, expected: Sequence[Expected]) -> None:
        self._ctx = ctx
        self._store = store
        self._expected = expected
        self._kinds = tuple(KindOfChange(one.tables, one.per_day) for one in expected)
        self.chances = [one.chance for one in expected]
        self.sizes: dict[QueryName, dict[str, int]] = {}

    def by_priors(self, query: OpenedQuery) -> Graph:
        from impctl.service.budget.costs import numbers_of

        numbers = numbers_of(query, self._ctx.tables, self._expected)
        sizes = {name: one.size for name, one in numbers.bounded.items()}
        self.sizes[query.stored.query] = sizes
        return graph_of(query.compiled, self._kinds, numbers, allowed=_ALLOWED)

    def graph(self, query: OpenedQuery, by_priors: Graph, now: Modes) -> Graph:
        """The graph by recorded runs, with pieces pinned that have no choice."""
        from impctl.service.budget.costs import learned_of, rows_of_change

        tables = query.stored.versions
        rows = [rows_of_change(one, tables) for one in self._expected]
        costs = self._store.costs(query.stored.query)
        layout = query.as_stored.meta.layout
        graph = priced(by_priors, learned_of(by_priors, tables, now, costs, rows, layout))
        prepared = query.as_stored.prepared
        allowed = {
            piece.name: _allowed(query, piece, prepared)
            for piece in graph.pieces
            if len(piece.modes) > 1
        }
        fits = largest_side(memory_of(self._ctx.settings, self._ctx.workload))
        for piece in graph.pieces:
            mode = now[piece.name]
            is_open = mode in allowed.get(piece.name, ()) and len(allowed[piece.name]) > 1
            is_built = mode is PieceMode.READ and piece.is_whole
            if mode is PieceMode.KEPT or is_built or not is_open:
                continue
            if fits is not None and piece.sizes[PieceMode.KEPT] > fits:
                # There may not be enough memory to build it; kept pieces need none, and rebuilt
                # ones as much each time.
                allowed[piece.name] = (mode,)
        return restricted(graph, allowed)


def _asked(prepared: PreparedQuery) -> JoinStrategy:
    """The workload's join strategy of the query, whatever the budget."""
    spec = prepared.spec
    # Constants that move with the clock may be above a join, and move through kept state.
    is_moving = prepared.moves_above and spec.join is JoinStrategy.AUTO
    if is_moving or spec.state is StateKept.KEEP:
        return JoinStrategy.INDEX
    return JoinStrategy.FILES if spec.state is StateKept.LEAST else spec.join


def _asked_of_groups(prepared: PreparedQuery) -> JoinStrategy:
    """The same for groups: kept if constants move, which may be above them."""
    if prepared.moves_above or _asked(prepared) is JoinStrategy.INDEX:
        return JoinStrategy.INDEX
    return JoinStrategy.FILES if prepared.spec.state is StateKept.LEAST else JoinStrategy.AUTO


def modes_now(query: OpenedQuery, graph: Graph) -> dict[str, PieceMode]:
    """The present mode of each piece of the query's state."""
    from impctl.compile.flows import Strategy

    read = set(query.compiled.sides_by(Strategy.FILES) + query.compiled.sides_by(Strategy.SPARK))
    now = dict.fromkeys((piece.name for piece in graph.pieces), PieceMode.KEPT)
    now |= dict.fromkeys(query.as_stored.meta.buffers, PieceMode.BOUNDED)
    return now | dict.fromkeys(read, PieceMode.READ)


def _allowed(query: OpenedQuery, piece: Piece, prepared: PreparedQuery) -> tuple[PieceMode, ...]:
    compiled = query.compiled
    is_side = any(one.side == piece.name for one in compiled.sides)
    asked = _asked(prepared) if is_side else _asked_of_groups(prepared)
    side = next((one for one in compiled.pieces if one.side == piece.name), None)
    is_least = prepared.spec.state is StateKept.LEAST
    pinned = _pinned_mode(side, asked, is_least=is_least)
    modes = {PieceMode.KEPT, PieceMode.READ} if pinned is None else {pinned}
    is_left = pinned is PieceMode.KEPT or piece.is_whole
    if PieceMode.BOUNDED in piece.modes and asked is JoinStrategy.FILES and is_left:
        modes = {PieceMode.BOUNDED}
    elif asked is JoinStrategy.AUTO:
        modes.add(PieceMode.BOUNDED)
    return tuple(mode for mode in piece.modes if mode in modes)


def _pinned_mode(
    side: SideChoice | None, asked: JoinStrategy, *, is_least: bool
) -> PieceMode | None:
    """The mode required by workload or engine, or None. Whole pieces are read only for `least`."""
    from impctl.compile.flows import Strategy

    if side is None or Strategy.FILES not in side.readers or asked is JoinStrategy.INDEX:
        return PieceMode.KEPT
    is_asked = asked is JoinStrategy.FILES and (is_least or not side.is_whole)
    return PieceMode.READ if side.strategy is Strategy.SPARK or is_asked else None


def _is_of(stored: str, pieces: set[str]) -> bool:
    parts = stored.split(".")
    return any(".".join(parts[:count]) in pieces for count in range(1, len(parts) + 1))


# State brought within the budget at the end of a run that wrote some, or is asked for another.
# Law: what was captured or maintained is committed before; a query that cannot be opened, or
# whose conversion fails, stays as it was and is told. A choice is made after captures, and after
# other runs only where what the last one was made by has moved (`keeping.looks`); it is carried
# out where that is worth it (`keeping.worth`). A run that is late itself makes none, and leaves
# it to the next one. Cost: without a budget none; with one a sum over the catalog's list of runs
# and the rates of kinds of change, as long as no choice is made.

BUDGET_EXCEEDED = "budget_exceeded"


def keep_to_budget(
    ctx: Context, store: Store, *, has_captured: bool, is_late: bool = False
) -> list[str]:
    """Convert what the budget requires; returns warnings."""
    budget = disk_of(ctx.settings, ctx.workload)
    if budget is None:
        return []
    specs = ctx.sketched(None)
    try:
        seen, coming = _seen(ctx, store, specs, budget)
        made_by = store.chosen()
        if made_by is not None and is_known_to_exceed(made_by, seen) and not has_captured:
            return [_exceeded(store, specs, seen.bytes, budget, made_by.least)]
        if not (has_captured or is_to_look(made_by, seen)):
            return []
        if is_late:
            # Then the next run chooses, even if it has nothing else to do.
            store.save_chosen(None)
            put_off = (
                f"state uses {size_text(seen.bytes)}, more than its budget of "
                f"{size_text(budget)}: this run was late, so the next run that is on time will "
                f"reduce it [{BUDGET_EXCEEDED}]"
            )
            return [put_off] if seen.bytes > budget else []
        return _looked(ctx, store, specs, seen, coming, has_captured=has_captured)
    except ImpctlError as error:
        return [f"the state does not change, whatever its budget: {error.message}"]


def _seen(
    ctx: Context, store: Store, specs: Sequence[QuerySpec], budget: int
) -> tuple[ChoiceInput, Expectations]:
    from impctl.service.budget.costs import state_bytes

    tables = set[TableName]()
    for spec in specs:
        # The choice reports the error, and the query's own run by its exit code.
        with suppress(ImpctlError):
            stored = store.load(spec.name)
            tables.update(() if stored is None else stored.versions)
    coming = expectations(ctx, store, sorted(tables))
    rates = {tuple(sorted(one.tables)): one.per_day for one in coming.expected(tables)}
    size = state_bytes(store, [spec.name for spec in specs])
    return ChoiceInput(budget, size, rates, pins_of(specs)), coming


def _looked(
    ctx: Context,
    store: Store,
    specs: Sequence[QuerySpec],
    seen: ChoiceInput,
    coming: Expectations,
    *,
    has_captured: bool,
) -> list[str]:
    from impctl.service.budget.bounds import missed_bound_text
    from impctl.service.budget.costs import state_bytes

    names = [spec.name for spec in specs]
    kept = choose_state(ctx, store, specs, seen.budget, coming)
    warnings = [_left(name, why) for name, why in kept.troubles.items()]
    if is_worth(kept, is_over=seen.bytes > seen.budget, has_captured=has_captured):
        for name in kept.queries:
            warnings += converted(ctx, store, kept, name)
            give_back()
    size = state_bytes(store, names)
    least = kept.fixed + kept.choice.least
    made_by = StateChoiceBasis(
        budget=seen.budget,
        rates=tuple(seen.rates.items()),
        bytes=size,
        pins=seen.pins,
        least=least,
        settled=not warnings,
    )
    store.save_chosen(made_by)
    warnings += [missed_bound_text(one, kept.fixed) for one in kept.unheld]
    if size > seen.budget:
        warnings.append(_exceeded(store, specs, size, seen.budget, least))
    return warnings


def _exceeded(store: Store, specs: Sequence[QuerySpec], size: int, budget: int, least: int) -> str:
    from impctl.service.budget.bounds import enough_text

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
    """How to free so many bytes of state: the largest materialized results first."""
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


def converted(ctx: Context, store: Store, kept: WeighedState, name: str) -> list[str]:
    """Convert a query to the choice if needed; returns why it stayed unchanged."""
    query, choice = kept.queries[name], kept.choice.queries[name]
    wanted = kept.wanted(name)
    if not wanted.moved(StateTarget.now(query)):
        return []
    sides = [side.side for side in query.compiled.pieces]
    sides += [one.piece for one in query.compiled.buffers if one.piece not in sides]
    reasons = {side: choice.pieces[side].reason for side in sides if side in choice.pieces}
    ctx.reporter.step(f"reducing the state of {name} to the budget")
    try:
        convert(ctx, store, query, wanted, reasons)
    except ImpctlError as error:
        return [_left(name, error.message)]
    return []


def _left(name: str, why: str) -> str:
    return f"the state of query `{name}` does not change: {why}"


# One query's state brought to another choice of what is kept, in one commit. Law: sketch,
# versions and counts stay as they are (`compile.session`); a process that is killed leaves the
# old choice whole or the new one.

CONVERTED = "state_converted"


class StateTarget(Struct, frozen=True):
    """How to keep a query's state: join sides and groups read from files, and the buffer sizes of
    bounded pieces. All others are kept, except sides that Spark reads."""

    from_files: tuple[str, ...] = ()
    buffers: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def now(cls, query: OpenedQuery) -> Self:
        from impctl.compile.flows import Strategy

        return cls(query.compiled.sides_by(Strategy.FILES), query.as_stored.meta.buffers)

    def moved(self, other: StateTarget) -> set[str]:
        mine, theirs = (
            {**dict.fromkeys(one.from_files, 0), **one.buffers} for one in (self, other)
        )
        return {name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)}


def convert(
    ctx: Context, store: Store, query: OpenedQuery, wanted: StateTarget, reasons: Mapping[str, str]
) -> None:
    """Convert the query's state to `wanted`. `reasons` say why, by piece; those of converted pieces
    go into the history. Raises HistoryGoneError if a piece must be rebuilt from tables that cannot
    be read any more, RetryableError if a table was replaced."""
    from impctl.compile.flows import StoredChoices, Strategy
    from impctl.compile.session import MaintainedQuery, transfer_state
    from impctl.service.maintenance_plan import QueryState, chosen_way
    from impctl.service.partners import FilePartners
    from impctl.service.table_deltas import rows_with

    watch, at = Stopwatch(), time.time()
    held = query.as_stored
    runs = store.load_runs(query.stored.query)
    taken = QueryState(held.way, query.stored, runs)
    assert taken.session is not None
    by_spark = query.compiled.sides_by(Strategy.SPARK)
    recorded = held.chooser.sides
    sides = StoredChoices(by_spark, recorded.has_filter, wanted.from_files, reasons)
    chooser = replace(held.chooser, sides=sides, buffers=wanted.buffers, buffer=None)
    way = chosen_way(
        held.prepared, held.verdict, held.partitions, chooser, has_answer=held.meta.answer
    )
    assert way.compiled is not None
    after = MaintainedQuery(way.compiled)
    after.restore(runs, held.meta.counters, is_converted=True)
    partners = FilePartners(ctx, query.compiled, held.partitions, query.stored.versions)
    taken.session.read_by(partners)

    def table_rows(source: Source, keys: Mapping[ColumnName, Vector]) -> Iterator[pa.Table]:
        table = source.table
        return rows_with(ctx.tables.snapshot(table, query.stored.versions[table]), source, keys)

    transfer_state(taken.session, after, partners.whole, table_rows)
    check_not_replaced_meanwhile(query.stored, ctx.tables)
    _commit(store, query, taken.session, after, (watch, at), reasons)


def _commit(
    store: Store,
    query: OpenedQuery,
    before: MaintainedQuery,
    after: MaintainedQuery,
    begun: tuple[Stopwatch, float],
    reasons: Mapping[str, str],
) -> None:
    from impctl.compile.flows import Strategy
    from impctl.service.maintenance_plan import chosen_buffers

    checkpoint, stored = after.checkpoint(), query.stored
    kept = {keeper.name for keeper in after.keepers()}
    refs = store.run_refs(stored.query)
    gone = [(run.arrangement, run.sequence) for run in refs if run.arrangement not in kept]
    buffers = chosen_buffers(query.as_stored.prepared.spec, after.compiled)
    wanted = StateTarget(after.compiled.sides_by(Strategy.FILES), buffers)
    meta = replace(_meta(query, before, wanted, checkpoint), side_reasons=dict(reasons))
    moved = wanted.moved(StateTarget.now(query))
    told = {name: f" bounded to the best {size:,}" for name, size in buffers.items()}
    reason = "; ".join(
        f"{side}{told.get(side, '')}: {why}" for side, why in reasons.items() if side in moved
    )
    watch, at = begun
    ms = watch.ms
    commit = MaintainCommit(
        query=stored.query,
        expected_generation=stored.generation,
        pins=stored.pins,
        put_runs=checkpoint.put,
        drop_runs=(*checkpoint.drop, *gone),
        state_meta=meta.as_stored(),
        basis=meta.basis(stored.pins),
        record=RunRecord(
            action="convert",
            reason_code=CONVERTED,
            reason=reason,
            started_at=at,
            elapsed_ms=ms,
            read_ms=0.0,
            engine_ms=ms,
            commit_ms=0.0,
            changes=0,
            added=0,
            removed=0,
            versions=dict(stored.versions),
            cost=_recapture(store, query, meta, ms),
        ),
        # Nothing was maintained: the time of maintenance shows how long changes have waited.
        at=stored.maintained_at,
    )
    store.commit_maintain(commit)


def _meta(
    query: OpenedQuery, before: MaintainedQuery, wanted: StateTarget, checkpoint: Checkpoint
) -> StateMeta:
    from impctl.compile.session import buffer_groups, sides_of
    from impctl.engine.trace import RowIndex

    meta = query.as_stored.meta
    held = {name: one.rows for name, one in sides_of(before).items() if isinstance(one, RowIndex)}
    whole = [one for one in before.circuit if one.piece and not one.reads]
    held |= {one.piece: len(one.group_codes()) for one in whole if one.piece in wanted.from_files}
    rows = {**meta.read_rows, **held}
    whole = [one for one in whole if one.piece not in meta.buffers]
    sizes = {**meta.group_bytes, **{one.piece: query.bytes_of(one) for one in whole}}
    left_out = {*wanted.from_files, *wanted.buffers}
    return replace(
        meta,
        from_files=wanted.from_files,
        buffers=wanted.buffers,
        buffer_groups=buffer_groups(before),
        read_rows={name: rows[name] for name in wanted.from_files if name in rows},
        group_bytes={name: size for name, size in sizes.items() if name in left_out},
        counters=dict(checkpoint.counters),
    )


def _recapture(store: Store, query: OpenedQuery, after: StateMeta, ms: float) -> RunCost | None:
    """An upper bound of a recapture with the present state: the one before, and this conversion.
    None if one was recorded already, or none before."""
    costs = [one for one in store.costs(query.stored.query) if one.kind is RunKind.RECAPTURE]
    before = [one for one in costs if one.layout == query.as_stored.meta.layout]
    if not before or any(one.layout == after.layout for one in costs):
        return None
    return replace(before[0], elapsed_ms=before[0].elapsed_ms + ms, layout=after.layout)
