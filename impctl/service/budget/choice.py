"""Choose which state is kept under the budget, and convert state to a choice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from msgspec import Struct, field
from msgspec.structs import replace

from impctl.costs import STATE
from impctl.data.memory import give_back
from impctl.errors import ImpctlError, RecaptureNeededError
from impctl.placement import (
    KindOfChange,
    Modes,
    PieceMode,
    StateChoice,
    StateModel,
    choose,
    evaluate,
    frontier_of,
    per_day_together,
    restricted,
    state_model,
)
from impctl.service.memory_limit import largest_side, memory_of
from impctl.service.results import PlannedPiece, PlanResult
from impctl.service.schedule.forecast import Expectations, Expected, expectations
from impctl.service.stored import (
    StateMeta,
    check_not_replaced_meanwhile,
    has_new_requirements,
    pins_of,
    result_bytes,
)
from impctl.service.text import duration_text, size_text
from impctl.stopwatch import Stopwatch
from impctl.store.records import MaintainCommit, RunCost, RunKind, RunRecord, StateChoiceBasis
from impctl.types import QueryName, TableName
from impctl.workload.models import JoinStrategy, QuerySpec, StateKept
from impctl.workload.scalars import written

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.compile.flows import Source
    from impctl.compile.session import Checkpoint, MaintainedQuery
    from impctl.data.vector import Vector
    from impctl.placement import Piece
    from impctl.service.budget.costs import OpenedQuery
    from impctl.service.context import Context
    from impctl.store.reader import StoreReader
    from impctl.store.store import Store
    from impctl.types import ColumnName


def enough_text(size: int) -> str:
    """A budget of at least `size` bytes, rounded up to three digits: at most 1% more."""
    digit = 10 ** max(0, len(str(size)) - 3)
    return size_text(-(-size // digit) * digit)


# Law: only kinds of change with a chance above 5% within a day count, and queries with
# `fresh_within` or `ready_within`. Where such a change is estimated to exceed the bound, with a
# margin, the choice is repeated as if it occurred twice as often, ten times at most. Kinds of
# change that exceed it with any state are ignored. Missed bounds are reported, with the bytes that
# would meet them.

BOUND_IMPOSSIBLE = "bound_impossible"

_LIKELY = 0.05
_REPETITIONS = 10


class Bound(Struct, frozen=True):
    """How long a run for a query may take: milliseconds, and its text in the workload file."""

    ms: float
    text: str


Models = Mapping[QueryName, StateModel]
Bounds = Mapping[QueryName, Bound]
ModesByQuery = Mapping[QueryName, Modes]


class MissedBound(Struct, frozen=True):
    """A bound that changes of these tables miss: they take `ms`, estimated from `runs`. With
    `enough` bytes for all pieces they would take `enough_ms`; None if no state meets the bound."""

    query: QueryName
    bound: Bound
    tables: tuple[TableName, ...]
    ms: float
    runs: int
    enough: int | None = None
    enough_ms: float = 0.0


Late = tuple[QueryName, int]
"""A query, and a kind of change by number that misses its bound."""


def bounds_of(specs: Iterable[QuerySpec]) -> dict[QueryName, Bound]:
    """The bound of each query that has one, the shorter of two."""
    result = {}
    for spec in specs:
        trigger = spec.trigger
        if trigger is None:
            continue
        limits = {"fresh_within": trigger.fresh_within, "ready_within": trigger.ready_within}
        bounds = [Bound(s * 1000, f"{name} {written(s)}") for name, s in limits.items() if s]
        if bounds:
            result[spec.name] = min(bounds, key=lambda bound: bound.ms)
    return result


def chosen_within(
    models: Models,
    budget: int | None,
    bounds: Bounds,
    chances: Sequence[float],
    fixed: int = 0,
    now: ModesByQuery = MappingProxyType({}),
) -> tuple[StateChoice, tuple[MissedBound, ...]]:
    """Choose within `budget` bytes, `fixed` of which no choice changes; also returns missed bounds.
    `chances` are the probabilities of each kind of change within a day. Of choices that meet the
    same number of bounds, the one with the least expected work wins. A budget of 0 requests the
    fewest bytes. If the budget is out of reach, what is kept `now` stays, and another piece is
    dropped only if its share of the bytes exceeds its share of the work: work at most doubles."""
    checks = BoundChecks(models, bounds, chances)
    within = _within_reach(models, budget, fixed, now)
    best = choice = within(())
    fewest = late = checks.late(modes_of(choice))
    urgency = [1.0] * len(chances)
    for _ in range(_REPETITIONS):
        urged = {kind for name, kind in late if checks.least(name, [kind]) is not None}
        if not urged:
            break
        urgency = [2 * times if kind in urged else times for kind, times in enumerate(urgency)]
        choice = within(urgency)
        late = checks.late(modes_of(choice))
        if (len(late), choice.ms_per_day) < (len(fewest), best.ms_per_day):
            best, fewest = choice, late
    return best, tuple(checks.missed(best, fewest))


def _within_reach(
    models: Models, budget: int | None, fixed: int, now: ModesByQuery
) -> Callable[[Sequence[float]], StateChoice]:
    """How to choose under this budget, by the urgency of each kind of change."""
    left = None if budget is None else max(0, budget - fixed)
    usual = choose(models, left)

    def within(urgency: Sequence[float]) -> StateChoice:
        return choose(models, left, urgency=urgency) if urgency else usual

    if not budget or (budget >= fixed and not usual.exceeds):
        return within
    cheapest = choose(models, None)
    per_byte = cheapest.ms_per_day / max(1, cheapest.bytes + fixed)
    with_kept = {name: _with_kept(model, now.get(name, {})) for name, model in models.items()}

    def beyond(urgency: Sequence[float]) -> StateChoice:
        choice = choose(with_kept, None, urgency=urgency, per_byte=per_byte)
        return replace(choice, exceeds=True, least=usual.least)

    return beyond


def _with_kept(model: StateModel, now: Modes) -> StateModel:
    kept = {
        piece.name: (PieceMode.KEPT,)
        for piece in model.pieces
        if now.get(piece.name) is PieceMode.KEPT and PieceMode.KEPT in piece.modes
    }
    return restricted(model, kept)


def modes_of(choice: StateChoice) -> dict[QueryName, Modes]:
    return {name: query.modes for name, query in choice.queries.items()}


class BoundChecks:
    """Which runs of likely kinds of change miss the bounds of these queries."""

    def __init__(self, models: Models, bounds: Bounds, chances: Sequence[float]) -> None:
        self._models = models
        self._bounds = {name: bounds[name] for name in models if name in bounds}
        self._likely = [kind for kind, chance in enumerate(chances) if chance > _LIKELY]
        self._least: dict[tuple[QueryName, tuple[int, ...]], Modes | None] = {}

    def late(self, modes: ModesByQuery) -> list[Late]:
        return [
            (name, kind)
            for name in self._bounds
            for kind, ms in enumerate(evaluate(self._models[name], modes[name]).per_kind)
            if kind in self._likely and self._is_too_long(name, ms)
        ]

    def least(self, name: QueryName, kinds: Sequence[int]) -> Modes | None:
        """Modes with the fewest bytes that meet the bound for these kinds; None if none do."""
        key = (name, tuple(kinds))
        if key not in self._least:
            self._least[key] = self._fewest_bytes(name, kinds)
        return self._least[key]

    def _fewest_bytes(self, name: QueryName, kinds: Sequence[int]) -> Modes | None:
        model = self._models[name]
        # As if nothing else changed, so that more bytes mean less work for these kinds.
        alone = tuple(
            replace(kind, rate=1.0 if number in kinds else 0.0)
            for number, kind in enumerate(model.kinds)
        )
        frontier = frontier_of([replace(model, kinds=alone)])
        for point in range(len(frontier)):
            (modes,) = frontier.modes(point, [model])
            costs = evaluate(model, modes).per_kind
            if not any(self._is_too_long(name, costs[kind]) for kind in kinds):
                return modes
        return None

    def missed(self, choice: StateChoice, late: Sequence[Late]) -> Iterator[MissedBound]:
        for name in dict.fromkeys(name for name, _ in late):
            kinds = [kind for query, kind in late if query == name]
            model, chosen = self._models[name], choice.queries[name]
            costs = evaluate(model, chosen.modes).per_kind
            kind = max(kinds, key=costs.__getitem__)
            runs = model.runs[kind] if model.runs else 0
            tables = tuple(sorted(model.kinds[kind].tables))
            missed = MissedBound(name, self._bounds[name], tables, costs[kind], runs)
            modes = self.least(name, kinds)
            if modes is not None:
                enough = choice.bytes - chosen.bytes + model.bytes_of(modes)
                ms = evaluate(model, modes).per_kind[kind]
                missed = replace(missed, enough=enough, enough_ms=ms)
            yield missed

    def _is_too_long(self, name: QueryName, ms: float) -> bool:
        from impctl.service.schedule.due import LEAST_MARGIN

        return LEAST_MARGIN * ms > self._bounds[name].ms


def missed_bound_text(missed: MissedBound, fixed: int) -> str:
    """Describe a missed bound; `fixed` are the bytes that no choice changes."""
    verb = "changes" if len(missed.tables) == 1 else "change"
    by = f" (from {missed.runs} runs)" if missed.runs else ""
    text = (
        f"query `{missed.query}` may miss {missed.bound.text}: when {', '.join(missed.tables)} "
        f"{verb}, maintaining is estimated to take {duration_text(missed.ms)}{by} with the "
        "state that is stored"
    )
    if missed.enough is None:
        return f"{text}, and would take too long with all of it [{BOUND_IMPOSSIBLE}]"
    return (
        f"{text}; with {enough_text(missed.enough + fixed)} of state for all queries it would "
        f"take {duration_text(missed.enough_ms)} [{BOUND_IMPOSSIBLE}]"
    )


# State in a plan: each piece that can be read or bounded, its mode, and why. Law: the plan shows
# the choice of the next run that makes one, or the present modes if that run would change nothing.
# It shows no pieces without a budget.

_STAYS = "converting saves too little: "


def with_state(
    ctx: Context, store: StoreReader | None, results: Sequence[PlanResult]
) -> tuple[list[PlanResult], list[str]]:
    """Add the pieces of state to the results of stored queries; also returns missed bounds."""
    from impctl.service.budget.costs import state_bytes

    budget = ctx.disk
    if store is None or budget is None:
        return list(results), []
    specs = ctx.sketched(None)
    weighed = choose_state(ctx, store, specs, budget)
    is_over = state_bytes(store, [spec.name for spec in specs]) > budget
    stays = not is_worth(weighed, is_over=is_over)
    with_pieces = [
        replace(result, state=tuple(_pieces(weighed, result.query, stays))) for result in results
    ]
    texts = [missed_bound_text(missed, weighed.fixed) for missed in weighed.missed]
    return with_pieces, [] if stays else texts


def _pieces(weighed: WeighedState, query: QueryName, stays: bool) -> Iterator[PlannedPiece]:
    """Pieces that can be read or bounded, in circuit order. With `stays`, none is converted."""
    from impctl.compile.flows import Strategy

    if query not in weighed.queries:
        return
    opened, choice = weighed.queries[query], weighed.choice.queries[query]
    optional = {side.side for side in opened.compiled.pieces if Strategy.FILES in side.readers}
    optional |= weighed.sizes[query].keys()
    for piece in weighed.models[query].pieces:
        kept_bytes = piece.sizes.get(PieceMode.KEPT)
        if piece.name not in optional or kept_bytes is None:
            continue
        mode, now = choice.modes[piece.name], weighed.now[query][piece.name]
        reason, buffer = choice.reasons[piece.name], weighed.sizes[query].get(piece.name)
        if stays and mode is not now:
            mode, reason = now, f"{_STAYS}{reason}"
        if stays:
            buffer = opened.reopened.meta.buffers.get(piece.name)
        yield PlannedPiece(
            piece.name,
            piece.word(mode),
            piece.word(now),
            piece.sizes[mode],
            kept_bytes,
            reason,
            buffer if mode is PieceMode.BOUNDED else None,
        )


# Whether to choose state again. Law: a new choice is made if the budget or what queries specify
# changed, if the rate of a kind of change moved by a factor of two, or if state exceeds the budget
# and the last choice did not already fail to reduce it. Kinds of change rarer than once in thirty
# days do not count.

_FACTOR = 2.0
_LEAST_PER_DAY = 1 / 30
_ALIKE = 0.05
"""Relative difference of bytes that counts as equal."""

Rates = Mapping[tuple[TableName, ...], float]
"""Runs per day, by the tables that change in one."""


def needs_choice(basis: StateChoiceBasis | None, now: StateChoiceBasis) -> bool:
    return (
        basis is None
        or has_new_requirements(basis, now.budget, now.pins)
        or now.bytes > now.budget
        or have_moved(dict(basis.rates), dict(now.rates))
    )


def is_known_to_exceed(basis: StateChoiceBasis | None, now: StateChoiceBasis) -> bool:
    """Whether state exceeds a budget that the last choice could not meet either."""
    return (
        basis is not None
        and basis.settled
        and now.bytes > now.budget
        and basis.bytes > now.budget
        and not has_new_requirements(basis, now.budget, now.pins)
        and abs(now.bytes - basis.bytes) <= _ALIKE * basis.bytes
        and not have_moved(dict(basis.rates), dict(now.rates))
    )


def have_moved(before: Rates, now: Rates) -> bool:
    for kind in before.keys() | now.keys():
        low, high = sorted((before.get(kind, 0.0), now.get(kind, 0.0)))
        if high >= _LEAST_PER_DAY and high >= _FACTOR * low:
            return True
    return False


# Whether to carry out a new choice. Law: state that exceeds its budget is reduced to it, and what a
# query specifies is followed. If nothing meets the budget, state changes only after a capture. Else
# a choice is carried out if it saves a fifth of the expected work and the conversion pays back
# within a week, or if it meets more bounds: choices that are about equal do not alternate.

_LEAST_SAVED = 0.2
_DAYS = 7.0


def is_worth(weighed: WeighedState, *, is_over: bool, has_captured: bool = False) -> bool:
    """Whether to carry out the choice. `is_over`: state exceeds the budget. `has_captured`: a first
    capture does not store what may be large, since its size is unknown."""
    pieces = ((name, piece) for name, model in weighed.models.items() for piece in model.pieces)
    if any(weighed.now[name][piece.name] not in piece.modes for name, piece in pieces):
        return True
    is_better = weighed.holds_more or _pays(weighed)
    return has_captured and is_better if weighed.is_out_of_reach else is_over or is_better


def _pays(weighed: WeighedState) -> bool:
    names = list(weighed.models)
    before = per_day_together([weighed.models[n] for n in names], [weighed.now[n] for n in names])
    after = weighed.choice.ms_per_day
    if weighed.choice.per_byte:
        before += weighed.choice.per_byte * sum(
            weighed.models[n].bytes_of(weighed.now[n]) for n in names
        )
        after += weighed.choice.per_byte * weighed.choice.bytes
    saved = before - after
    takes = 0.0
    for name in names:
        now, then = weighed.now[name], weighed.choice.queries[name].modes
        moved = [
            piece.conversion.get(then[piece.name], 0.0)
            for piece in weighed.models[name].pieces
            if now[piece.name] != then[piece.name]
        ]
        takes += STATE.conversion_ms + sum(moved) if moved else 0.0
    return saved > 0 and saved >= _LEAST_SAVED * before and takes <= _DAYS * saved


# The choice of state for all queries, by expected changes. Law: the choice follows from stored
# state, recorded runs and histories; nothing is written. These keep their mode: sides of queries
# whose constants move with the clock, pieces that the workload pins (`join: index`, `files`,
# `spark`, `state`, `buffer`), trees, groupings that cannot be read (`compile.flows`), and
# materialized results. Every other side and grouping is kept or read, whole if no key narrows the
# read. First rows, and groupings with MIN or MAX, may be bounded if their buffers can be refilled
# (`compile.buffers`).


class WeighedState(Struct, frozen=True):
    """The weighed queries, the bytes that no choice changes (`fixed`), and why other queries could
    not be opened (`troubles`): their state does not change. `models` are for the `expected`
    changes, `now` has the present modes, `sizes` the buffer sizes of bounded pieces. `choice` is
    empty until it is made; it misses the bounds in `missed`, and with `holds_more` meets more than
    the present state."""

    queries: Mapping[QueryName, OpenedQuery]
    fixed: int
    troubles: Mapping[QueryName, str]
    expected: Sequence[Expected]
    models: Mapping[QueryName, StateModel]
    now: Mapping[QueryName, Modes]
    sizes: Mapping[QueryName, Mapping[str, int]] = field(default_factory=dict)
    choice: StateChoice = StateChoice({}, 0, 0.0, exceeds=False)
    missed: Sequence[MissedBound] = ()
    holds_more: bool = False
    budget: int | None = None

    def chosen(self, budget: int | None, bounds: Bounds) -> Self:
        """With the choice within a budget."""
        models, chances = self.models, [kind.chance for kind in self.expected]
        choice, missed = chosen_within(models, budget, bounds, chances, self.fixed, self.now)
        checks = BoundChecks(models, bounds, chances)
        holds_more = len(checks.late(modes_of(choice))) < len(checks.late(self.now))
        return replace(self, choice=choice, missed=missed, holds_more=holds_more, budget=budget)

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


def choose_state(
    ctx: Context,
    store: StoreReader,
    specs: Sequence[QuerySpec],
    budget: int,
    coming: Expectations | None = None,
) -> WeighedState:
    """Choose for those of the queries that are stored. `coming` are the expectations of their
    tables, if known."""
    return weigh_state(ctx, store, specs, coming).chosen(budget, bounds_of(specs))


def weigh_state(
    ctx: Context, store: StoreReader, specs: Sequence[QuerySpec], coming: Expectations | None = None
) -> WeighedState:
    """The same without a choice."""
    queries, troubles, fixed = _all_opened(ctx, store, specs)
    tables = {table for query in queries.values() for table in query.stored.versions}
    if coming is None:
        coming = expectations(ctx, store, sorted(tables))
    expected = coming.expected(tables)
    models, now, sizes = {}, {}, {}
    for name, query in queries.items():
        models[name], now[name], sizes[name] = _weighed(ctx, store, expected, query)
        pieces = {piece.name for piece in models[name].pieces}
        fixed += sum(size.bytes for run, size in query.sizes.items() if not _is_of(run, pieces))
    return WeighedState(queries, fixed, troubles, expected, models, now, sizes)


def models_of(
    ctx: Context,
    store: StoreReader,
    queries: Mapping[QueryName, OpenedQuery],
    expected: Sequence[Expected],
) -> dict[QueryName, StateModel]:
    """Models of the queries under these expected kinds of change."""
    return {name: _weighed(ctx, store, expected, query)[0] for name, query in queries.items()}


def _all_opened(
    ctx: Context, store: StoreReader, specs: Sequence[QuerySpec]
) -> tuple[dict[QueryName, OpenedQuery], dict[QueryName, str], int]:
    """The stored queries, why others could not be opened, and the bytes of those."""
    from impctl.service.budget.costs import opened, state_bytes

    queries: dict[QueryName, OpenedQuery] = {}
    troubles: dict[QueryName, str] = {}
    fixed = 0
    for spec in specs:
        query = None
        try:
            stored = store.load(spec.name)
            with suppress(RecaptureNeededError):  # The next capture replaces its state.
                query = None if stored is None else opened(ctx, store, spec, stored)
        except ImpctlError as error:
            # Another run reports it by its exit code: this one has done its work.
            troubles[spec.name] = error.message
        if query is None:
            fixed += state_bytes(store, [spec.name])
        else:
            queries[spec.name] = query
    return queries, troubles, fixed


def _weighed(
    ctx: Context, store: StoreReader, expected: Sequence[Expected], query: OpenedQuery
) -> tuple[StateModel, Modes, dict[str, int]]:
    """The model priced by recorded runs, with pieces pinned that have no choice; the present modes;
    and the buffer sizes of bounded pieces."""
    from impctl.service.budget.costs import numbers_of, priced, rows_of_change

    tables = query.stored.versions
    numbers = numbers_of(query, ctx.tables, expected)
    kinds = tuple(KindOfChange(kind.tables, kind.per_day) for kind in expected)
    by_priors = state_model(query.compiled, kinds, numbers)
    now = _modes_now(query, by_priors)
    rows = [rows_of_change(kind, tables) for kind in expected]
    model = priced(by_priors, tables, now, store.costs(query.stored.query), rows)
    allowed = {p.name: _allowed(query, p) for p in model.pieces if len(p.modes) > 1}
    fits = largest_side(memory_of(ctx.settings, ctx.workload))
    for piece in model.pieces:
        mode = now[piece.name]
        is_open = mode in allowed.get(piece.name, ()) and len(allowed[piece.name]) > 1
        is_built = mode is PieceMode.READ and piece.is_whole
        if mode is PieceMode.KEPT or is_built or not is_open:
            continue
        if fits is not None and piece.sizes[PieceMode.KEPT] > fits:
            # There may not be enough memory to build it. Kept pieces need none, and rebuilt ones
            # need the same each time.
            allowed[piece.name] = (mode,)
    sizes = {name: bounded.size for name, bounded in numbers.bounded.items()}
    return restricted(model, allowed), now, sizes


def _modes_now(query: OpenedQuery, model: StateModel) -> dict[str, PieceMode]:
    """The present mode of each piece of the query's state."""
    from impctl.compile.flows import Strategy

    read = set(query.compiled.sides_by(Strategy.FILES) + query.compiled.sides_by(Strategy.SPARK))
    now = dict.fromkeys((piece.name for piece in model.pieces), PieceMode.KEPT)
    now |= dict.fromkeys(query.reopened.meta.buffers, PieceMode.BOUNDED)
    return now | dict.fromkeys(read, PieceMode.READ)


def _allowed(query: OpenedQuery, piece: Piece) -> tuple[PieceMode, ...]:
    """The modes that workload and engine leave open. Only `least` reads whole pieces."""
    from impctl.compile.flows import Strategy

    compiled, prepared = query.compiled, query.reopened.prepared
    is_side = any(side.side == piece.name for side in compiled.sides)
    choice = next((choice for choice in compiled.pieces if choice.side == piece.name), None)
    spec, strategy = prepared.spec, JoinStrategy.AUTO
    is_least = spec.state is StateKept.LEAST
    # Constants that move with the clock may be above a join, and need kept state to move.
    is_moving = prepared.moves_above and (not is_side or spec.join is JoinStrategy.AUTO)
    if is_moving or spec.state is StateKept.KEEP:
        strategy = JoinStrategy.INDEX
    elif is_least:
        strategy = JoinStrategy.FILES
    elif is_side or spec.join is JoinStrategy.INDEX:
        strategy = spec.join
    is_files, can_keep, can_read = strategy is JoinStrategy.FILES, True, True
    if choice is None or Strategy.FILES not in choice.readers or strategy is JoinStrategy.INDEX:
        can_read = False
    elif choice.strategy is Strategy.SPARK or (is_files and (is_least or not choice.is_whole)):
        can_keep = False
    if PieceMode.BOUNDED in piece.modes and is_files and (piece.is_whole or not can_read):
        return (PieceMode.BOUNDED,)
    is_open = {
        PieceMode.KEPT: can_keep,
        PieceMode.READ: can_read,
        PieceMode.BOUNDED: strategy is JoinStrategy.AUTO,
    }
    return tuple(mode for mode in piece.modes if is_open[mode])


def _is_of(arrangement: str, pieces: set[str]) -> bool:
    parts = arrangement.split(".")
    return any(".".join(parts[:count]) in pieces for count in range(1, len(parts) + 1))


# State reduced to the budget at the end of a run. Law: the captured or maintained state is
# committed before; a query that cannot be opened or converted stays unchanged, with a warning. A
# choice is made after captures, and after other runs if `needs_choice`; it is carried out if
# `is_worth`. A late run leaves the choice to the next run. Cost: none without a budget; with one, a
# sum over the catalog's list of runs and the rates of kinds of change, until a choice is made.

BUDGET_EXCEEDED = "budget_exceeded"


def keep_to_budget(
    ctx: Context, store: Store, *, has_captured: bool, is_late: bool = False
) -> list[str]:
    """Convert state as the budget requires; returns warnings."""
    budget = ctx.disk
    if budget is None:
        return []
    specs = ctx.sketched(None)
    try:
        present, coming = _present_input(ctx, store, specs, budget)
        basis = store.chosen()
        if basis is not None and is_known_to_exceed(basis, present) and not has_captured:
            return [_exceeded(store, specs, present.bytes, budget, basis.least)]
        if not (has_captured or needs_choice(basis, present)):
            return []
        if is_late:
            # Then the next run chooses, even if it has nothing else to do.
            store.save_chosen(None)
            postponed = (
                f"state uses {size_text(present.bytes)}, more than its budget of "
                f"{size_text(budget)}: this run was late, so the next run that is on time will "
                f"reduce it [{BUDGET_EXCEEDED}]"
            )
            return [postponed] if present.bytes > budget else []
        return _choose_again(ctx, store, specs, present, coming, has_captured=has_captured)
    except ImpctlError as error:
        return [f"the state does not change, whatever its budget: {error.message}"]


def _present_input(
    ctx: Context, store: Store, specs: Sequence[QuerySpec], budget: int
) -> tuple[StateChoiceBasis, Expectations]:
    from impctl.service.budget.costs import state_bytes

    tables = set[TableName]()
    for spec in specs:
        # The choice reports the error, and so does the run of the query.
        with suppress(ImpctlError):
            stored = store.load(spec.name)
            tables.update(() if stored is None else stored.versions)
    coming = expectations(ctx, store, sorted(tables))
    rates = {tuple(sorted(kind.tables)): kind.per_day for kind in coming.expected(tables)}
    size = state_bytes(store, [spec.name for spec in specs])
    present = StateChoiceBasis(
        budget=budget, rates=tuple(rates.items()), bytes=size, pins=pins_of(specs)
    )
    return present, coming


def _choose_again(
    ctx: Context,
    store: Store,
    specs: Sequence[QuerySpec],
    present: StateChoiceBasis,
    coming: Expectations,
    *,
    has_captured: bool,
) -> list[str]:
    from impctl.service.budget.costs import state_bytes

    names = [spec.name for spec in specs]
    weighed = choose_state(ctx, store, specs, present.budget, coming)
    warnings = [_unchanged(name, why) for name, why in weighed.troubles.items()]
    if is_worth(weighed, is_over=present.bytes > present.budget, has_captured=has_captured):
        for name in weighed.queries:
            warnings += converted(ctx, store, weighed, name)
            give_back()
    size = state_bytes(store, names)
    least = weighed.fixed + weighed.choice.least
    store.save_chosen(replace(present, bytes=size, least=least, settled=not warnings))
    warnings += [missed_bound_text(missed, weighed.fixed) for missed in weighed.missed]
    if size > present.budget:
        warnings.append(_exceeded(store, specs, size, present.budget, least))
    return warnings


def _exceeded(store: Store, specs: Sequence[QuerySpec], size: int, budget: int, least: int) -> str:
    needed, why = size, "the rest cannot be read from tables or rebuilt"
    if 0 < budget < least < size:
        needed = least
        why = f"even the minimum uses {size_text(least)}, so no more of it is removed"
    return (
        f"state uses {size_text(size)}, more than its budget of {size_text(budget)}: {why}; "
        f"raise the budget to {enough_text(needed)}, or "
        f"{_how_to_free(store, specs, needed - budget)} [{BUDGET_EXCEEDED}]"
    )


def _how_to_free(store: Store, specs: Sequence[QuerySpec], excess: int) -> str:
    """How to free that many bytes of state: the largest materialized results first."""
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


def converted(ctx: Context, store: Store, weighed: WeighedState, name: str) -> list[str]:
    """Convert a query to the choice if needed; returns a warning if that fails."""
    query, choice = weighed.queries[name], weighed.choice.queries[name]
    target = weighed.wanted(name)
    if not target.moved(StateTarget.now(query)):
        return []
    sides = [side.side for side in query.compiled.pieces]
    sides += [buffer.piece for buffer in query.compiled.buffers if buffer.piece not in sides]
    reasons = {side: choice.reasons[side] for side in sides if side in choice.reasons}
    ctx.reporter.step(f"reducing the state of {name} to the budget")
    try:
        convert(ctx, store, query, target, reasons)
    except ImpctlError as error:
        return [_unchanged(name, error.message)]
    return []


def _unchanged(name: str, why: str) -> str:
    return f"the state of query `{name}` does not change: {why}"


# Conversion of one query's state, in one commit. Law: sketch, versions and counts stay the same
# (`compile.session`); after a kill the store has the old state or the new one.

CONVERTED = "state_converted"


class StateTarget(Struct, frozen=True):
    """How to keep a query's state: join sides and groups read from files, and the buffer sizes of
    bounded pieces. All others are kept, except sides that Spark reads."""

    from_files: tuple[str, ...] = ()
    buffers: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def now(cls, query: OpenedQuery) -> Self:
        from impctl.compile.flows import Strategy

        return cls(query.compiled.sides_by(Strategy.FILES), query.reopened.meta.buffers)

    def moved(self, other: StateTarget) -> set[str]:
        """The pieces that differ."""
        left, right = (
            {**dict.fromkeys(target.from_files, 0), **target.buffers} for target in (self, other)
        )
        return {name for name in left.keys() | right.keys() if left.get(name) != right.get(name)}


def convert(
    ctx: Context, store: Store, query: OpenedQuery, target: StateTarget, reasons: Mapping[str, str]
) -> None:
    """Convert the query's state to `target`. `reasons` say why, by piece; those of converted pieces
    are recorded. HistoryGoneError if a piece must be rebuilt from tables that cannot be read,
    RetryableError if a table was replaced."""
    from impctl.compile.flows import StoredChoices, Strategy
    from impctl.compile.session import MaintainedQuery, transfer_state
    from impctl.service.fill import PartnerReader, refill_rows
    from impctl.service.maintenance_plan import QueryState, buffer_sizes, chosen_plan

    watch, started_at = Stopwatch(), time.time()
    reopened = query.reopened
    runs = store.load_runs(query.stored.query)
    state = QueryState(reopened.plan, query.stored, runs)
    assert state.session is not None
    by_spark = query.compiled.sides_by(Strategy.SPARK)
    recorded = reopened.chooser.sides
    sides = StoredChoices(by_spark, recorded.has_filter, target.from_files, reasons)
    buffers = buffer_sizes(reopened.prepared.spec, target.buffers)
    chooser = replace(reopened.chooser, sides=sides, buffers=buffers)
    plan = chosen_plan(reopened, chooser, has_answer=reopened.meta.answer)
    assert plan.compiled is not None
    after = MaintainedQuery(plan.compiled)
    after.restore(runs, reopened.meta.counters, is_converted=True)
    partners = PartnerReader(ctx, query.compiled, reopened.partitions, query.stored.versions)
    state.session.read_by(partners)

    def table_rows(source: Source, keys: Mapping[ColumnName, Vector]) -> Iterator[pa.Table]:
        table = source.table
        return refill_rows(ctx.tables.snapshot(table, query.stored.versions[table]), source, keys)

    transfer_state(state.session, after, partners.whole, table_rows)
    check_not_replaced_meanwhile(query.stored, ctx.tables)
    _commit(store, query, state.session, after, (watch, started_at), reasons)


def _commit(
    store: Store,
    query: OpenedQuery,
    before: MaintainedQuery,
    after: MaintainedQuery,
    started: tuple[Stopwatch, float],
    reasons: Mapping[str, str],
) -> None:
    from impctl.compile.flows import Strategy
    from impctl.service.maintenance_plan import chosen_buffers

    checkpoint, stored = after.checkpoint(), query.stored
    names = {keeper.name for keeper in after.keepers()}
    refs = store.run_refs(stored.query)
    dropped = [(run.arrangement, run.sequence) for run in refs if run.arrangement not in names]
    buffers = chosen_buffers(query.reopened.prepared.spec, after.compiled)
    target = StateTarget(after.compiled.sides_by(Strategy.FILES), buffers)
    meta = replace(_meta(query, before, target, checkpoint), side_reasons=dict(reasons))
    moved = target.moved(StateTarget.now(query))
    bounded = {name: f" bounded to the best {size:,}" for name, size in buffers.items()}
    reason = "; ".join(
        f"{side}{bounded.get(side, '')}: {why}" for side, why in reasons.items() if side in moved
    )
    watch, started_at = started
    ms = watch.ms
    commit = MaintainCommit(
        query=stored.query,
        expected_generation=stored.generation,
        pins=stored.pins,
        put_runs=checkpoint.put,
        drop_runs=(*checkpoint.drop, *dropped),
        state_meta=meta.as_stored(),
        basis=meta.basis(stored.pins),
        record=RunRecord(
            action="convert",
            reason_code=CONVERTED,
            reason=reason,
            started_at=started_at,
            elapsed_ms=ms,
            engine_ms=ms,
            versions=dict(stored.versions),
            cost=_recapture(store, query, meta, ms),
        ),
        # Nothing was maintained: this time shows how long changes have waited.
        at=stored.maintained_at,
    )
    store.commit_maintain(commit)


def _meta(
    query: OpenedQuery, before: MaintainedQuery, target: StateTarget, checkpoint: Checkpoint
) -> StateMeta:
    from impctl.compile.session import buffer_groups, sides_of
    from impctl.engine.trace import RowIndex

    meta = query.reopened.meta
    rows = dict(meta.read_rows)
    sizes = dict(meta.group_bytes)
    rows |= {name: i.rows for name, i in sides_of(before).items() if isinstance(i, RowIndex)}
    for operator in before.circuit:
        if not operator.piece or operator.reads:
            continue
        if operator.piece in target.from_files:
            rows[operator.piece] = len(operator.group_codes())
        if operator.piece not in meta.buffers:
            sizes[operator.piece] = query.bytes_of(operator)
    reduced = {*target.from_files, *target.buffers}
    return replace(
        meta,
        from_files=target.from_files,
        buffers=target.buffers,
        buffer_groups=buffer_groups(before),
        read_rows={name: rows[name] for name in target.from_files if name in rows},
        group_bytes={name: size for name, size in sizes.items() if name in reduced},
        counters=dict(checkpoint.counters),
    )


def _recapture(store: Store, query: OpenedQuery, after: StateMeta, ms: float) -> RunCost | None:
    """An upper bound of a recapture with the new state: one with the old state, plus this
    conversion. None if one was recorded for the new state, or none for the old one."""
    costs = [cost for cost in store.costs(query.stored.query) if cost.kind is RunKind.RECAPTURE]
    before = [cost for cost in costs if cost.layout == query.reopened.meta.layout]
    if not before or any(cost.layout == after.layout for cost in costs):
        return None
    return replace(before[0], elapsed_ms=before[0].elapsed_ms + ms, layout=after.layout)
