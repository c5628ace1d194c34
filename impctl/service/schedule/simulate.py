"""Simulate: what other budgets and triggers would have cost, by the commits of the past."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from itertools import accumulate, groupby
from math import ceil, floor, inf
from operator import itemgetter

from msgspec import Struct, field
from msgspec.structs import replace

from impctl.errors import UsageError, count_text
from impctl.forecast import Arrival, History, effective_times
from impctl.placement.graph import Graph, Piece, PieceMode, Work
from impctl.placement.search import Modes, evaluate
from impctl.service.budget.bounds import Bound, bounds_of, chosen_within, late_runs
from impctl.service.budget.choice import WeighedState, choose_state, graphs_of, is_worth
from impctl.service.budget.costs import ROWS_UNKNOWN, rows_of_change
from impctl.service.context import Context, known_histories
from impctl.service.cost_model import MaintenanceSize, recorded
from impctl.service.results import Outcome, RecordedRuns, SimulatedSetting, SimulateResult
from impctl.service.schedule.daemon import Timetable
from impctl.service.schedule.due import (
    OPENING_FIRST_S,
    OPENING_S,
    UNKNOWN_S,
    Costs,
    Due,
    Pace,
    PendingChange,
    PendingChanges,
    Waiting,
    last_moment,
    maintain_ms,
    next_moment,
    now_of,
    trigger_of,
)
from impctl.service.schedule.forecast import Expectations, Expected
from impctl.service.settings import SimulateRequest
from impctl.service.text import moment_text, size_text
from impctl.store.records import RunCost, RunKind, RunRecord, StoreReader
from impctl.types import QueryName, TableName
from impctl.workload.models import QuerySpec, Trigger
from impctl.workload.scalars import SIZE_HINT, size_from
from impctl.workload.sections import read_trigger
from impctl.workload.yaml import FileReading, Lines, YamlFault, compose

# Law: reads no row of a table, starts no Spark, writes only a requested report. The functions that
# decide real runs decide here, with a clock that is advanced. Queries never captured are omitted
# and reported.

NOTHING_TO_REPLAY = "nothing_to_replay"
_NO_EXPIRY = "the replay ignores rows that expire: figures cover commits only"
_FEW = 20
"""Commits below which a replay says little."""


def simulate(
    ctx: Context, queries: Sequence[QueryName] | None, request: SimulateRequest
) -> Outcome:
    """One result for all settings; UsageError where there is nothing to replay."""
    triggers = [trigger_from(text) for text in request.triggers]
    present = ctx.disk
    settings = settings_of(present, disks_from(request.disks), triggers)
    store = ctx.reading_store()
    specs, warnings = _captured(ctx, store, queries)
    assert store is not None, "what was captured is in a store"
    tables: dict[QueryName, tuple[TableName, ...]] = {}
    for spec in specs:
        stored = store.load(spec.name)
        assert stored is not None, "it was captured"
        tables[spec.name] = tuple(stored.versions)
    names = sorted({name for versions in tables.values() for name in versions})
    now = now_of(ctx)
    since = None if request.since is None else now - request.since
    replay = replay_of_store(ctx, store, names, since, now)
    if not replay.count:
        raise UsageError(
            "No commit is known in the requested time span",
            hint="`capture` and `maintain` store the history of commits from the tables' logs; "
            "give a longer `--since`",
            code=NOTHING_TO_REPLAY,
        )
    if replay.count < _FEW:
        warnings.append(
            f"only {count_text(replay.count, 'commit')} to replay, so figures are rough"
        )
    if any(ctx.workload.tables[name].expiry for name in names):
        warnings.append(_NO_EXPIRY)
    model = Model(ctx, store, specs, tables, replay, request.look)
    figures = []
    for number, setting in enumerate(settings, start=1):
        ctx.reporter.step(f"replaying {setting.name}", number, len(settings))
        figures.append(model.run(setting))
    result = SimulateResult(
        source=replay.source,
        since=datetime.fromtimestamp(replay.since, UTC),
        until=datetime.fromtimestamp(replay.until, UTC),
        look_s=request.look,
        commits={name: len(commits) for name, commits in replay.commits.items()},
        rows=replay.rows,
        costs_by=model.costs_by,
        settings=tuple(figures),
        recorded=_recorded(store, model, settings[0], request.look),
    )
    return Outcome((result,), (*warnings, *replay.warnings, *model.warnings))


def _captured(
    ctx: Context, store: StoreReader | None, queries: Sequence[QueryName] | None
) -> tuple[list[QuerySpec], list[str]]:
    specs = ctx.sketched(queries)
    known = frozenset[QueryName]() if store is None else frozenset(store.queries())
    result = [spec for spec in specs if spec.name in known]
    if not result:
        raise UsageError(
            "None of the queries has been captured, so the cost of maintaining them is unknown",
            hint="run `impctl capture`, and `impctl maintain` a few times",
            code=NOTHING_TO_REPLAY,
        )
    missing = [f"`{spec.name}`" for spec in specs if spec.name not in known]
    message = f"not replayed, because never captured: {', '.join(missing)}; run `impctl capture`"
    return result, [message] if missing else []


def _recorded(
    store: StoreReader, model: Model, present: Setting, look: float
) -> RecordedRuns | None:
    """The recorded runs of the replay, from when all queries existed, and the share by which the
    model says more (above 0) or less; None without any."""
    histories = {name: store.history(name, _ALL_RUNS) for name in model.costs_by}
    firsts = [records[-1].started_at for records in histories.values() if records]
    begin = max([model.replay.since, *firsts])
    steps = [
        (name, record)
        for name, records in histories.items()
        for record in records
        if record.action in _STEPS and begin < record.started_at <= model.replay.until
    ]
    if not steps:
        return None
    steps.sort(key=lambda step: step[1].started_at)
    figures = model.run(present, since=begin)
    runs, work = runs_in(steps, look / 2), sum(record.elapsed_ms for _, record in steps)
    return RecordedRuns(
        since=datetime.fromtimestamp(begin, UTC),
        runs=runs,
        steps=len(steps),
        work_ms=work,
        model_runs=figures.runs,
        model_steps=figures.steps,
        model_work_ms=figures.work_ms,
        runs_off=figures.runs / runs - 1,
        steps_off=figures.steps / len(steps) - 1,
        work_off=figures.work_ms / work - 1 if work else None,
    )


class ReplayedCommits(Struct, frozen=True):
    """The commits of one table: `times` ascending, `rows` and `bytes` of all before each, and of
    all. `guessed` counts those whose rows are not in the log."""

    times: Sequence[float]
    rows: Sequence[int]
    bytes: Sequence[int]
    guessed: int = 0

    def __len__(self) -> int:
        return len(self.times)

    def until(self, moment: float) -> int:
        return bisect_right(self.times, moment)

    def next_after(self, moment: float) -> float | None:
        result = bisect_right(self.times, moment)
        return self.times[result] if result < len(self.times) else None


# Commits to replay. Law: per table in order of their times (seconds since 1970, never decreasing),
# none after the end of the replay. Rows that a log does not count are estimated by the commit's
# bytes, like the table's other commits, and counted (`guessed`).


class Replay(Struct, frozen=True):
    """A replay from `since` to `until`; `source` is for people, `histories` for the choice of
    state."""

    since: float
    until: float
    commits: Mapping[TableName, ReplayedCommits]
    histories: Mapping[TableName, History]
    source: str
    warnings: tuple[str, ...] = field(default=())

    @property
    def count(self) -> int:
        return sum(len(commits) for commits in self.commits.values())

    @property
    def rows(self) -> int:
        return sum(commits.rows[-1] for commits in self.commits.values())


def commits_of(arrivals: Sequence[Arrival], since: float, until: float) -> ReplayedCommits:
    """The commits of a table from `since` to `until`."""
    known = [arrival for arrival in arrivals if arrival.at is None or arrival.at <= until]
    times = effective_times(known, until)
    first = bisect_left(times, since)
    replayed = known[first : bisect_right(times, until)]
    sizes = [(commit.rows, commit.bytes) for commit in known if commit.rows is not None]
    all_rows, all_bytes = sum(rows for rows, _ in sizes), sum(size for _, size in sizes)

    def guess(commit: Arrival) -> int:
        # By the rows per byte of commits that tell both.
        if not sizes:
            return ROWS_UNKNOWN
        if not all_bytes or not commit.bytes:
            return max(1, round(all_rows / len(sizes)))
        return max(1, round(commit.bytes * all_rows / all_bytes))

    rows = [guess(commit) if commit.rows is None else commit.rows for commit in replayed]
    return ReplayedCommits(
        times[first : first + len(replayed)],
        [0, *accumulate(rows)],
        [0, *accumulate(commit.bytes for commit in replayed)],
        sum(commit.rows is None for commit in replayed),
    )


def merged(of: Mapping[TableName, ReplayedCommits]) -> ReplayedCommits:
    """The commits of several tables in the order of their times, then of the tables' names."""
    commits = sorted(
        (
            moment,
            name,
            commits_of_table.rows[number + 1] - commits_of_table.rows[number],
            commits_of_table.bytes[number + 1] - commits_of_table.bytes[number],
        )
        for name, commits_of_table in of.items()
        for number, moment in enumerate(commits_of_table.times)
    )
    return ReplayedCommits(
        [moment for moment, _, _, _ in commits],
        [0, *accumulate(rows for _, _, rows, _ in commits)],
        [0, *accumulate(size for _, _, _, size in commits)],
    )


# Law: reads logs only. Replays no period in which commits of a table are known to be missing; a
# period shorter than requested is reported.

BY_STORE = "the histories of the tables"


def replay_of_store(
    ctx: Context,
    store: StoreReader | None,
    tables: Collection[TableName],
    since: float | None,
    now: float,
) -> Replay:
    """What is known of these tables from `since` on (None: of all of them together) until now."""
    histories = known_histories(ctx.tables, store, sorted(tables))
    # From when on all commits of a table are known; None where it never had one.
    known = {
        name: history.since
        if history.since is not None and history.since <= now
        else next(iter(effective_times(history.arrivals, now)), None)
        for name, history in histories.items()
    }
    start = max((moment for moment in known.values() if moment is not None), default=now)
    begin = start if since is None else max(since, start)
    warnings = list(_cut(known, begin, since)) + list(_gaps(histories, begin, now))
    result = {name: commits_of(past.arrivals, begin, now) for name, past in histories.items()}
    replayed = {name: _replayed(past, begin, now) for name, past in histories.items()}
    return Replay(begin, now, result, replayed, BY_STORE, tuple(warnings))


def _replayed(history: History, since: float, until: float) -> History:
    """The history without what is not replayed."""
    times = effective_times(history.arrivals, until)
    arrivals = history.arrivals[bisect_left(times, since) : bisect_right(times, until)]
    return replace(history, since=since, arrivals=arrivals)


def _cut(
    known: Mapping[TableName, float | None], begin: float, since: float | None
) -> Iterator[str]:
    """A warning if less is known than was requested."""
    if since is None or begin <= since:
        return
    names = [f"`{name}`" for name, moment in known.items() if moment == begin]
    yield (
        f"commits of {' and '.join(names)} are known only from "
        f"{moment_text(datetime.fromtimestamp(begin, UTC))}, where the replay begins"
    )


def _gaps(histories: Mapping[TableName, History], since: float, until: float) -> Iterator[str]:
    for name, history in histories.items():
        times = effective_times(history.arrivals, until)
        gaps = sum(
            arrival.is_after_gap and since < moment <= until
            for moment, arrival in zip(times, history.arrivals, strict=True)
        )
        if gaps or history.has_missed:
            yield f"some commits of `{name}` are unknown: its log was cleaned up in between"


# The figures of a setting. Law: the given share of ages are at most the quantile; without a step
# there is none. What is pending at the end counts toward the worst age.


def figures_of(setting: Setting, choice: ReplayedChoice, ran: RunTotals) -> SimulatedSetting:
    """The reported figures of a setting."""
    ages = sorted(ran.ages)
    return SimulatedSetting(
        setting=setting.name,
        present=setting.is_present,
        disk_bytes=setting.disk,
        trigger=None if setting.trigger is None else setting.trigger.text,
        runs=ran.runs,
        steps=ran.steps,
        work_ms=ran.work_s * 1000,
        age_s=quantile(ages, 0.5),
        age_99_s=quantile(ages, 0.99),
        age_worst_s=max([*ages[-1:], *ran.left], default=None),
        late=ran.late,
        state_bytes=choice.bytes,
        over_budget=choice.exceeds,
        reads=ran.reads,
        conversions=choice.conversions,
    )


def quantile(rising: Sequence[float], share: float) -> float | None:
    """The least number that a share of them does not exceed; None without numbers."""
    return rising[max(0, ceil(share * len(rising)) - 1)] if rising else None


# Law: settings are every requested budget by every requested trigger, the file's first, without
# duplicates; what is not requested is as in the file.

ALL = "all"
"""A budget that keeps all."""


class Setting(Struct, frozen=True):
    """Bytes for all state (None: all is kept), and a trigger for all queries (None: their own)."""

    disk: int | None
    trigger: Trigger | None
    is_present: bool = False

    @property
    def name(self) -> str:
        if self.is_present:
            return "as it is"
        budget = "all kept" if self.disk is None else size_text(self.disk)
        return budget if self.trigger is None else f"{budget}, {self.trigger.text}"


def settings_of(
    present: int | None, disks: Sequence[int | None], triggers: Sequence[Trigger]
) -> list[Setting]:
    result = [Setting(present, None, is_present=True)]
    result += [
        Setting(disk, trigger)
        for disk in (dict.fromkeys(disks) if disks else (present,))
        for trigger in (dict.fromkeys(triggers) if triggers else (None,))
        if trigger is not None or disks
    ]
    return result


def disks_from(texts: Sequence[str]) -> list[int | None]:
    """Budgets from flags: sizes, several with commas, or `all`; UsageError if invalid."""
    result: list[int | None] = []
    for word in (word.strip() for text in texts for word in text.split(",")):
        try:
            result.append(None if word.lower() == ALL else size_from(word))
        except ValueError:
            hint = f"{SIZE_HINT}, or `{ALL}`"
            raise UsageError(f"`--disk` is invalid: {word}", hint=hint) from None
    return result


def trigger_from(text: str) -> Trigger:
    """A trigger as in the file: a word or `key: value`; WorkloadError if invalid."""
    reading = FileReading(Lines("--trigger", text), {})
    try:
        root = compose(text)
    except YamlFault as fault:
        reading.report_index(fault.index, fault.message, fault.hint)
        root = None
    result = read_trigger(root, "`--trigger`", reading)
    problem = next(iter(reading.problems), None)
    if result is None or problem is not None:
        message = "`--trigger` is empty" if problem is None else problem.message
        hint = None if problem is None else problem.hint
        raise UsageError(
            message,
            hint=hint or "write `commit`, or `fresh_within: 10m`",
            location=None if problem is None else problem.location,
        )
    return result


Tables = frozenset[TableName]

_OTHERS = frozenset([""])
"""Tables that no run maintained, so that all runs count."""

_FAR = 1 << 40
"""Rows at which a line's slope is sampled."""


class CostsBy(StrEnum):
    """The source of a query's step costs."""

    RUNS = "runs"
    CAPTURE = "capture"
    PRIORS = "priors"


class _CostLine(Struct, frozen=True):
    """Milliseconds of a step of so many rows, and so many bytes."""

    fixed: float
    per_row: float
    per_byte: float = 0.0

    def at(self, rows: float, size: float) -> float:
        return self.fixed + max(self.per_row * rows, self.per_byte * size)


class QueryLines(Struct, dict=True):
    """The lines of one query, by the tables that moved: the estimates of `service.decide` in a
    process with everything loaded, computed once for many steps."""

    runs: Sequence[RunCost]
    by: CostsBy
    _lines: dict[Tables, _CostLine | None] = field(default_factory=dict)

    def ms(self, moved: Tables, rows: float, size: float) -> float | None:
        """Milliseconds of a step with so many rows of these tables; None if unknown."""
        if moved not in self._lines:
            self._lines[moved] = _line(self.runs, self.by, moved)
        line = self._lines[moved]
        return None if line is None else line.at(rows, size)

    def most_ms(self, rows: float, size: float) -> float:
        """No less than that for any tables."""
        return max([line.at(rows, size) for line in self._known], default=0.0)

    @cached_property
    def _known(self) -> Sequence[_CostLine]:
        table_sets = {frozenset(run.moved) for run in self.runs} | {_OTHERS}
        lines = [_line(self.runs, self.by, tables) for tables in table_sets]
        return [line for line in lines if line is not None]


def lines_of(runs: Sequence[RunCost]) -> QueryLines:
    if any(run.kind is RunKind.MAINTAIN for run in runs):
        by = CostsBy.RUNS
    else:
        by = CostsBy.PRIORS if _line(runs, CostsBy.CAPTURE, _OTHERS) is None else CostsBy.CAPTURE
    return QueryLines(runs, by)


def _line(runs: Sequence[RunCost], by: CostsBy, moved: Tables) -> _CostLine | None:
    """The line of the estimates, sampled at its ends."""
    fixed = maintain_ms(runs, MaintenanceSize(0, 0), moved)
    rows = maintain_ms(runs, MaintenanceSize(_FAR, 0), moved)
    if fixed is None or rows is None:
        return None
    size = maintain_ms(runs, MaintenanceSize(0, _FAR), moved) if by is CostsBy.CAPTURE else None
    per_byte = 0.0 if size is None else (size - fixed) / _FAR
    return _CostLine(fixed, (rows - fixed) / _FAR, per_byte)


_ChoiceKey = tuple[int | None, tuple[tuple[QueryName, float], ...]]
"""A budget, and the milliseconds of each bound."""

_SCALES = (0.25, 1.0, 4.0, 16.0, 64.0, 256.0)
"""Sizes of priced changes, as multiples of the expected one."""


class Price(Struct, frozen=True):
    """Price of a kind of change by ascending rows: milliseconds, those above now, and reads."""

    rows: tuple[float, ...]
    ms: tuple[float, ...]
    more_ms: tuple[float, ...]
    reads: tuple[float, ...]


Prices = Mapping[QueryName, Mapping[Tables, Price]]
"""Of each query, by the tables that move."""


class ReplayedChoice(Struct, frozen=True):
    """The modes of all pieces under one budget; `bytes` are those of all state. `prices` are one
    object for all choices of the same modes. `conversions` counts queries whose mode changes."""

    prices: Prices
    bytes: int
    exceeds: bool
    conversions: int


# Law: under a budget, the choice with the least expected work, by the graphs and prices of
# `keep_to_budget`, for the replayed changes; bounds of queries add urgency, and the present state
# stays where `keep_to_budget` would leave it. The choice is made once, before the replay. More rows
# make reads likelier: prices are computed for several sizes and interpolated linearly.


class Pieces(Struct, frozen=True, dict=True):
    """The queries whose state can be chosen, and their graphs for changes of all sizes."""

    state: WeighedState
    expected: tuple[Expected, ...]
    graphs: tuple[Mapping[QueryName, Graph], ...]
    now: Mapping[QueryName, Modes]
    _modes: dict[_ChoiceKey, Mapping[QueryName, Modes]] = field(default_factory=dict)
    _costs_now: dict[QueryName, Sequence[tuple[float, ...]]] = field(default_factory=dict)
    """Milliseconds in the present modes, by the sizes of changes and their kinds."""
    _prices_of: list[tuple[Mapping[QueryName, Modes], Prices]] = field(default_factory=list)

    def within(self, budget: int | None, bounds: Mapping[QueryName, Bound]) -> ReplayedChoice:
        """The choice under a budget, None keeps all; `bounds` are those of the queries."""
        key = (budget, tuple(sorted((name, bound.ms) for name, bound in bounds.items())))
        if key not in self._modes:
            self._modes[key] = self._modes_within(budget, bounds)
        return self._choice(self._modes[key], budget)

    def as_run(self, budget: int | None, bounds: Mapping[QueryName, Bound]) -> ReplayedChoice:
        """The state as it is now; where that is over a budget, the choice instead. Conversions of a
        run within the budget are not replayed."""
        now = self._choice(self.now, budget)
        return self.within(budget, bounds) if now.exceeds else now

    @cached_property
    def _usual(self) -> Mapping[QueryName, Graph]:
        return self.graphs[_SCALES.index(1.0)]

    def _modes_within(
        self, budget: int | None, bounds: Mapping[QueryName, Bound]
    ) -> Mapping[QueryName, Modes]:
        if budget is None:
            return {
                name: {piece.name: _kept_of(piece) for piece in graph.pieces}
                for name, graph in self._usual.items()
            }
        graphs, chances = self._usual, [query.chance for query in self.expected]
        fixed = self.state.fixed
        choice, missed = chosen_within(graphs, budget, bounds, chances, fixed, self.now)
        then = {name: query.modes for name, query in choice.queries.items()}
        late, late_now = (
            len(late_runs(graphs, modes, bounds, chances)) for modes in (then, self.now)
        )
        weighed = replace(
            self.state,
            choice=choice,
            graphs=graphs,
            now=self.now,
            missed=missed,
            holds_more=late < late_now,
            budget=budget,
        )
        is_over = self._choice(self.now, budget).exceeds
        # What may not be kept as it is now goes with the first run, whatever it saves.
        is_asked = any(self.state.now[name] != self.now[name] for name in self.now)
        return then if is_asked or is_worth(weighed, is_over=is_over) else self.now

    def _choice(self, modes: Mapping[QueryName, Modes], budget: int | None) -> ReplayedChoice:
        sizes = [self._usual[name].bytes_of(result) for name, result in modes.items()]
        size = self.state.fixed + sum(sizes)
        # One object for equal modes, so that identity compares two choices.
        prices = next((prices for known, prices in self._prices_of if known == modes), None)
        if prices is None:
            prices = {name: self._prices(name, chosen) for name, chosen in modes.items()}
            self._prices_of.append((modes, prices))
        return ReplayedChoice(
            prices,
            size,
            budget is not None and size > budget,
            sum(result != self.now[name] for name, result in modes.items()),
        )

    def _prices(self, name: QueryName, modes: Modes) -> dict[Tables, Price]:
        """Prices of the query by the tables of its own that move, the most frequent kind's."""
        tables = frozenset(self.state.queries[name].stored.versions)
        result: dict[Tables, Price] = {}
        after = [evaluate(graphs[name], modes).per_kind for graphs in self.graphs]
        if name not in self._costs_now:
            present = self.now[name]
            self._costs_now[name] = [evaluate(g[name], present).per_kind for g in self.graphs]
        before = self._costs_now[name]
        for index, kind in enumerate(self.expected):
            moved = kind.tables & tables
            if not moved or moved in result:
                continue
            ms = tuple(costs[index] for costs in after)
            more = tuple(cost - other[index] for cost, other in zip(ms, before, strict=True))
            reads = tuple(_reads(graphs[name], modes, index) for graphs in self.graphs)
            rows = tuple(rows_of_change(_scaled(kind, scale), moved) for scale in _SCALES)
            result[moved] = Price(rows, ms, more, reads)
        return result


def pieces_of(
    ctx: Context, store: StoreReader, specs: Sequence[QuerySpec], replay: Replay
) -> Pieces:
    """Of these stored queries, with the replayed changes as their history."""
    kept = choose_state(ctx, store, specs, None)
    tables = {table for query in kept.queries.values() for table in query.stored.versions}
    coming = Expectations(ctx.workload.tables, replay.histories, replay.until)
    expected = coming.expected(tables)
    graphs = tuple(
        graphs_of(ctx, store, kept.queries, [_scaled(kind, scale) for kind in expected])
        for scale in _SCALES
    )
    usual = graphs[_SCALES.index(1.0)]
    # The present modes of pieces, or allowed ones where these are not.
    now = {
        name: {
            piece.name: mode if mode in piece.sizes else _kept_of(piece)
            for piece in usual[name].pieces
            for mode in (kept.now[name][piece.name],)
        }
        for name in kept.queries
    }
    return Pieces(kept, expected, graphs, now)


def _scaled(kind: Expected, scale: float) -> Expected:
    rows = {name: None if rows is None else rows * scale for name, rows in kind.rows.items()}
    return replace(kind, rows=rows)


def _kept_of(piece: Piece) -> PieceMode:
    return PieceMode.KEPT if PieceMode.KEPT in piece.sizes else piece.modes[0]


def _reads(graph: Graph, modes: Modes, kind: int) -> float:
    """Table reads, for a side or for groups, that are expected in a run of this kind."""
    result = 0.0
    for node in graph.nodes:
        for index, piece in enumerate(node.pieces):
            # A side is read for the other one's change, groups for their own.
            asking = [node.inputs[1 - index]] if node.work is Work.JOIN else node.inputs
            is_asked = any(graph.active[wire][kind] for wire in asking)
            if is_asked and modes[piece.name] is PieceMode.READ and piece.read:
                result += piece.hit[kind] if piece.hit else 1.0
    return result


def price_of_step(prices: Mapping[Tables, Price], moved: Tables, rows: float) -> tuple[float, ...]:
    """Milliseconds of a step over so many rows of these tables, those above now, and reads. Unknown
    sets of tables are composed of the largest kinds."""
    exact = prices.get(moved)
    if exact is not None:
        return _at(exact, rows)
    left, parts = set(moved), [(0.0, 0.0, 0.0)]
    for tables, price in sorted(
        prices.items(), key=lambda entry: (-len(entry[0]), sorted(entry[0]))
    ):
        if tables <= left:
            left -= tables
            parts.append(_at(price, rows))
    return tuple(sum(column) for column in zip(*parts, strict=True))


class MostPriced(Struct, frozen=True):
    """Upper bounds of a step by its most rows, ascending: milliseconds, and those above now."""

    rows: tuple[float, ...]
    ms: tuple[float, ...]
    more_ms: tuple[float, ...]

    @classmethod
    def of(cls, prices: Iterable[Price]) -> MostPriced:
        """Over all kinds of change, as if all of them came together."""
        known = list(prices)
        rows = sorted({rows for price in known for rows in price.rows})
        ms, more = [0.0] * (len(rows) + 1), [0.0] * (len(rows) + 1)
        for price in known:
            for index, size in enumerate([*rows, inf]):
                # The first size that is no smaller, since prices lie on lines.
                last = min(len(price.rows) - 1, bisect_left(price.rows, size))
                ms[index] += max(price.ms[: last + 1])
                more[index] += max(0.0, *price.more_ms[: last + 1])
        return cls(tuple(rows), tuple(ms), tuple(more))

    def at(self, rows: float) -> tuple[float, float]:
        """The bounds for at most so many rows."""
        index = bisect_left(self.rows, rows)
        return self.ms[index], self.more_ms[index]


def _at(price: Price, rows: float) -> tuple[float, float, float]:
    """Linear interpolation between the sizes, constant beyond them."""
    index = bisect_left(price.rows, rows)
    if index in (0, len(price.rows)):
        index = min(index, len(price.rows) - 1)
        return price.ms[index], price.more_ms[index], price.reads[index]
    share = (rows - price.rows[index - 1]) / (price.rows[index] - price.rows[index - 1])
    between = [
        column[index - 1] + share * (column[index] - column[index - 1])
        for column in (price.ms, price.more_ms, price.reads)
    ]
    return between[0], between[1], between[2]


class Step(Struct, frozen=True):
    """Seconds of one step, and its expected side reads."""

    seconds: float
    reads: float


class StepCosts(Struct, frozen=True, dict=True):
    """Step costs of one query in one setting: by recorded runs, under the present state, plus what
    the choice of state adds, and never less than that choice estimates."""

    lines: QueryLines
    prices: Mapping[Tables, Price]
    _known: dict[tuple[Tables, float, float], Step] = field(default_factory=dict)

    def step(self, moved: Tables, rows: float, size: float) -> Step:
        key = (moved, rows, size)
        result = self._known.get(key)
        if result is None:
            ms, more, reads = price_of_step(self.prices, moved, rows)
            known = self.lines.ms(moved, rows, size)
            if known is not None:
                ms = max(known + more, ms)
            seconds = UNKNOWN_S if known is None and not ms else ms / 1000
            result = self._known[key] = Step(seconds, reads)
        return result

    @cached_property
    def _most_priced(self) -> MostPriced:
        return MostPriced.of(self.prices.values())

    @cached_property
    def is_known(self) -> bool:
        return self.lines.by is CostsBy.RUNS

    def most(self, rows: float, size: float) -> float:
        """No less than any step takes over at most so much."""
        ms, more = self._most_priced.at(rows)
        known = self.lines.most_ms(rows, size)
        least = UNKNOWN_S * 1000 if self.lines.by is CostsBy.PRIORS else 0.0
        return max(known + more, ms, least) / 1000


# Law: settings are independent; equal commits, runs and settings give equal figures.


class Model:
    """The queries over what is replayed, in any setting."""

    def __init__(
        self,
        ctx: Context,
        store: StoreReader,
        specs: Sequence[QuerySpec],
        tables: Mapping[QueryName, Sequence[TableName]],
        replay: Replay,
        look: float,
        noise: Callable[[], Callable[[], float]] = lambda: lambda: 1.0,
    ) -> None:
        """`noise` makes, for each run, the factor of each step's time."""
        self.replay = replay
        self._specs, self._look, self._noise = specs, look, noise
        self._pieces = pieces_of(ctx, store, specs, replay)
        stored_queries = {spec.name: store.load(spec.name) for spec in specs}
        self._lines = {
            name: lines_of(() if stored is None else recorded(store, stored))
            for name, stored in stored_queries.items()
        }
        self._ran: dict[tuple[tuple[Trigger, ...], int, float], RunTotals] = {}
        """By what decides a run; settings may be equivalent."""
        commits = replay.commits
        queries = {
            names: CommitStream.made({name: commits[name] for name in sorted(names)})
            for names in {frozenset(result) for result in tables.values()}
        }
        self._streams = {query: queries[frozenset(names)] for query, names in tables.items()}

    @property
    def costs_by(self) -> dict[QueryName, str]:
        return {name: str(lines.by) for name, lines in self._lines.items()}

    @property
    def warnings(self) -> tuple[str, ...]:
        guessed = sum(commits.guessed for commits in self.replay.commits.values())
        rough = (
            f"the log has no row count for {guessed:,} commits, so their rows are estimated "
            "from bytes"
        )
        troubles = (
            f"the replay uses the present state of `{name}`: {why}"
            for name, why in self._pieces.state.troubles.items()
        )
        return (*([rough] if guessed else []), *troubles)

    def run(self, setting: Setting, since: float | None = None) -> SimulatedSetting:
        """The figures of a setting, over the whole replay or what comes after `since`."""
        begin = self.replay.since if since is None else since
        choice = self._choice(setting)
        triggers = tuple(setting.trigger or trigger_of(spec) for spec in self._specs)
        key = (triggers, id(choice.prices), begin)
        if key not in self._ran:
            queries = [
                self._query(spec, trigger, choice, begin)
                for spec, trigger in zip(self._specs, triggers, strict=True)
            ]
            self._ran[key] = VirtualRun(queries, self._look, self._noise()).run(
                begin, self.replay.until
            )
        return figures_of(setting, choice, self._ran[key])

    def _choice(self, setting: Setting) -> ReplayedChoice:
        trigger = setting.trigger
        specs = self._specs
        if trigger is not None:
            specs = [replace(spec, trigger=trigger) for spec in specs]
        chosen = self._pieces.as_run if setting.is_present else self._pieces.within
        return chosen(setting.disk, bounds_of(specs))

    def _query(
        self, spec: QuerySpec, trigger: Trigger, choice: ReplayedChoice, since: float
    ) -> ReplayedQuery:
        stream = self._streams[spec.name]
        costs = StepCosts(self._lines[spec.name], choice.prices.get(spec.name, {}))
        span = self.replay.until - self.replay.since
        result = ReplayedQuery(
            spec.name, trigger, stream, costs, stream.all.rows[-1] / span if span > 0 else 0.0
        )
        if since > self.replay.since:
            result.pin(since)
        return result


# Law: the same `PendingChanges` and `Costs` as a real look finds, except that changes no trigger
# distinguishes are summed.


class PendingAmount(Struct, frozen=True):
    """Successive commits: the time of the first, their tables, rows and bytes."""

    oldest: float
    moved: frozenset[TableName]
    rows: int
    bytes: int


class CommitStream(Struct):
    """The commits of a query's tables in one order, and the table of each."""

    all: ReplayedCommits
    tables: Sequence[TableName]
    _last_key: tuple[int, float] = (-1, 0.0)
    _last: PendingAmount | None = None

    @classmethod
    def made(cls, of: Mapping[TableName, ReplayedCommits]) -> CommitStream:
        ordered = sorted((moment, name) for name, commits in of.items() for moment in commits.times)
        return cls(merged(of), [name for _, name in ordered])

    def pending(self, known: int, now: float) -> PendingAmount | None:
        """What came by now after the first `known` commits; None without any."""
        # Queries of one run ask the same, one after the other.
        if self._last_key != (known, now):
            self._last_key, self._last = (known, now), None
            commits, last = self.all, self.all.until(now)
            if last > known:
                self._last = PendingAmount(
                    commits.times[known],
                    frozenset(self.tables[known:last]),
                    commits.rows[last] - commits.rows[known],
                    commits.bytes[last] - commits.bytes[known],
                )
        return self._last


class ReplayedQuery(Struct):
    """A query over commits; its sketch has the first `seen`, all that came by `last`."""

    name: QueryName
    trigger: Trigger
    stream: CommitStream
    costs: StepCosts
    rows_per_s: float = 0.0
    seen: int = 0
    last: float | None = None

    @property
    def is_timed(self) -> bool:
        """Whether a timetable may start it by itself: not if only its use or a point may."""
        trigger = self.trigger
        bounds = (trigger.rows, trigger.fresh_within, trigger.ready_within)
        return self.is_on_clock or any(bound is not None for bound in bounds)

    @property
    def is_on_clock(self) -> bool:
        return self.trigger.every is not None or self.trigger.cron is not None

    def oldest(self, now: float) -> float | None:
        times = self.stream.all.times
        return times[self.seen] if self.seen < len(times) and times[self.seen] <= now else None

    def next_after(self, now: float) -> float | None:
        return self.stream.all.next_after(now)

    def pending(self, now: float) -> PendingAmount | None:
        """What its sketch lacks of what came; None if nothing."""
        return self.stream.pending(self.seen, now)

    def step(self, amount: PendingAmount, more_rows: float = 0.0) -> Step:
        return self.costs.step(amount.moved, amount.rows + more_rows, amount.bytes)

    def most(self, until: float, now: float) -> float:
        """No less than the estimate of a step at any time until then; 0 where nothing comes."""
        commits = self.stream.all
        last = commits.until(until)
        if last == self.seen:
            return 0.0
        rows = commits.rows[last] - commits.rows[self.seen]
        ready = self.trigger.ready_within is not None
        coming = self.rows_per_s * max(0.0, until - now) if ready else 0.0
        return self.costs.most(rows + coming, commits.bytes[last] - commits.bytes[self.seen])

    def pin(self, moment: float) -> None:
        """Bring its sketch to what came by then."""
        self.seen, self.last = self.stream.all.until(moment), moment

    def waiting(self, now: float) -> Waiting | None:
        """What waits for it; None where nothing can make it due by itself."""
        result = self.pending(now)
        if result is None:
            if not self.is_on_clock:
                return None
            return Waiting(self.name, self.trigger, PendingChanges(), Costs(0.0), self.last)
        cost = self.step(result).seconds
        more = 0.0
        if self.trigger.ready_within is not None:
            # The rows that usually come until the next moment.
            moment = next_moment(self.trigger, result.oldest)
            coming = 0.0 if moment is None else self.rows_per_s * max(0.0, moment - now)
            more = max(0.0, self.step(result, coming).seconds - cost)
        costs = Costs(cost, more, is_known=self.costs.is_known)
        changes: tuple[PendingChange, ...] = (PendingChange(result.oldest, result.rows),)
        enough = self.enough_at()
        if enough is not None and enough[0] <= now:
            # The change that reaches the trigger's rows counts apart.
            reached_at, before = enough
            changes = (
                PendingChange(result.oldest, before),
                PendingChange(reached_at, result.rows - before),
            )
        pending = PendingChanges(changes, None, result.oldest, self.last)
        return Waiting(self.name, self.trigger, pending, costs, self.last)

    def enough_at(self) -> tuple[float, int] | None:
        """When the trigger's rows are pending, and how many came before; None if never, or without
        it."""
        wanted, commits = self.trigger.rows, self.stream.all
        if wanted is None:
            return None
        result = bisect_left(commits.rows, commits.rows[self.seen] + wanted)
        if result == len(commits.rows):
            return None
        return commits.times[result - 1], commits.rows[result - 1] - commits.rows[self.seen]


# Recorded runs beside the model of the same period. Law: counts steps that maintained, and
# recaptures in their place, but no requested captures, conversions or verifications. The store has
# steps, not runs: steps within half a look of each other are one run, unless a query repeats.

_STEPS = frozenset({"exact", "touch", "recapture"})
_ALL_RUNS = 1_000_000


def runs_in(steps: Sequence[tuple[QueryName, RunRecord]], pause: float) -> int:
    """The number of runs with these steps."""
    runs, ended, in_run = 0, 0.0, set[QueryName]()
    for name, record in steps:
        # A record is made when its step is computed, and about to be committed.
        begun = record.started_at - (record.read_ms + record.engine_ms) / 1000
        if not runs or name in in_run or begun - ended > pause:
            runs, in_run = runs + 1, set()
        in_run.add(name)
        ended = record.started_at + record.commit_ms / 1000
    return runs


# The loop of `service.schedule.daemon` in virtual time. Law: looks, starts and durations follow the
# same timetable. Each run takes its estimate, except for requested noise, and pins what had come
# when it started. Looks at which nothing can start are skipped, by a bound on what can be pending,
# as are clock moments without work: the cost depends on runs, not on looks. Nothing sleeps or reads
# the wall clock.

_SLACK = 1e-6
"""Rounding error of sums of seconds."""


class RunTotals(Struct):
    """Results of the runs; an age is that of a step's oldest change at its end, in seconds. `late`
    counts steps that ended after their bound, `left` are ages of what was pending at the end."""

    runs: int = 0
    work_s: float = 0.0
    reads: float = 0.0
    late: int = 0
    ages: list[float] = field(default_factory=list)
    left: list[float] = field(default_factory=list)

    @property
    def steps(self) -> int:
        return len(self.ages)


class Idle(Struct, frozen=True):
    """A time before which nothing starts; `is_start`: the process wakes at it."""

    until: float
    is_start: bool

    def lets_sleep(self, now: float, look: float) -> bool:
        """Whether the next look, or start, is known without asking the timetable."""
        return self.until > now + look or (self.is_start and self.until > now)


class VirtualRun:
    """Queries on `commit`, which run at each look, and a timetable of the others."""

    def __init__(
        self,
        queries: Sequence[ReplayedQuery],
        look: float,
        noise: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self._noise = noise
        self._queries = {query.name: query for query in queries}
        self._on_commit = [query for query in queries if query.trigger.is_on_commit]
        self._timed = [query for query in queries if query.is_timed]
        self._has_bounds_alone = all(
            query.trigger == Trigger(fresh_within=query.trigger.fresh_within)
            for query in self._timed
        )
        self._timetable = Timetable(look)
        self._look = look
        self._opening = OPENING_FIRST_S
        self.ran = RunTotals()

    def run(self, since: float, until: float) -> RunTotals:
        """From one time to another, looking first at `since`."""
        now = since
        while now < until:
            ready = [query for query in self._on_commit if query.pending(now) is not None]
            idle = self._idle_until(now)
            due = [] if idle.lets_sleep(now, self._look) and not ready else self._due(now)
            if ready or due:
                now = self._works(ready, due, now)
                now += self._pause(now)
            else:
                moment = self._idle_moment(now, until)
                now = now + self._quiet(now, idle) if moment is None else moment
        for query in self._queries.values():
            pending = query.pending(until)
            if pending is not None:
                self.ran.left.append(until - pending.oldest)
        return self.ran

    def _due(self, now: float) -> list[Due]:
        result = (query.waiting(now) for query in self._timed)
        self._timetable.saw([waiting for waiting in result if waiting is not None])
        return self._timetable.due(now)

    def _works(self, ready: Sequence[ReplayedQuery], due: Sequence[Due], now: float) -> float:
        queries = [*ready, *(self._queries[start.query] for start in due)]
        oldest, took = [], []
        for query in queries:
            pending = query.pending(now)
            assert pending is not None, "nothing runs without something pending"
            step = query.step(pending)
            oldest.append(pending.oldest)
            took.append(step.seconds * self._noise())
            self.ran.reads += step.reads
            query.pin(now)
        end = now + self._opening + sum(took)
        self._opening = OPENING_S
        self.ran.runs += 1
        self.ran.work_s += sum(took)
        self.ran.late += sum(
            start.due_by is not None and end > start.due_by + _SLACK for start in due
        )
        self.ran.ages += [end - moment for moment in oldest]
        if due:
            opening = self._timetable.pace.opening
            self._timetable.ran(due, end, opening + sum(took[len(ready) :]))
        return end

    def _pause(self, now: float) -> float:
        start = self._timetable.next_start(now) if self._timed else None
        return self._look if start is None else min(self._look, max(0.0, start - now))

    def _quiet(self, now: float, idle: Idle) -> float:
        """The pause where nothing started now, over all looks at which nothing can start."""
        if idle.until <= now + self._look:
            is_known = idle.lets_sleep(now, self._look)
            pause = idle.until - now if is_known else self._pause(now)
            if pause < self._look:
                return pause
        event = self._event_after(now)
        looks = []
        if idle.until < inf:
            looks.append(floor((idle.until - now - _SLACK) / self._look))
        if event < inf:
            looks.append(ceil((event - now) / self._look))
        return self._look * max(1, min(looks)) if looks else inf

    def _idle_moment(self, now: float, until: float) -> float | None:
        """The last moment after now to which the clock alone wakes the process, of those queries of
        which nothing is pending then; None without one. Looks go on from there. It precedes
        anything else that may start a query, and the next commit of these."""
        idle, first = set[Trigger](), [self._event_after(now), until]
        for query in self._timed:
            if not query.is_on_clock:
                continue
            if query.oldest(now) is None:
                idle.add(query.trigger)
                first.append(query.next_after(now) or inf)
            else:
                first.append(self._moment(query, now))
        if not idle:
            return None
        end = min(*first, self._other_until(now, self._timetable.pace, min(first)))
        woken = []
        for trigger in idle:
            last = last_moment(trigger, now, end)
            # From a moment on the next thing is a look, which passes over moments that come sooner.
            if last is not None and last_moment(trigger, last - self._look, last) is None:
                woken.append(last)
        return max(woken, default=None)

    def _event_after(self, now: float) -> float:
        coming = (query.next_after(now) for query in self._on_commit)
        return min((moment for moment in coming if moment is not None), default=inf)

    def _idle_until(self, now: float) -> Idle:
        """A time before which no timed query starts, whatever comes until then. A start is a
        deadline less the work until it, and work is no more than all that is pending by the
        deadline takes."""
        pace = self._timetable.pace
        sure = self._first_start(now, pace) if self._has_bounds_alone else Idle(now, False)
        if sure.is_start:
            return sure
        moment = min((self._moment(query, now) for query in self._timed), default=inf)
        other = self._other_until(now, pace, moment)
        return Idle(max(sure.until, min(moment, other)), moment < other)

    def _other_until(self, now: float, pace: Pace, moment: float) -> float:
        """A time before which only a clock's moment starts any; beyond `moment` it need not be
        tight."""
        other = inf
        bounds: set[float] = set()
        for query in self._timed:
            other = min(other, *self._other_starts(query, now), inf)
            bounds.update(self._deadlines(query, now))
        in_order = sorted(bounds)
        longest = self._most_work(in_order[-1], now, pace) if in_order else 0.0
        for deadline in in_order:
            if deadline - longest - self._look >= min(moment, other):
                break
            other = min(other, deadline - self._most_work(deadline, now, pace) - self._look)
        return other

    def _most_work(self, until: float, now: float, pace: Pace) -> float:
        most = sum(query.most(until, now) for query in self._timed)
        return pace.margin * (pace.opening + most)

    def _first_start(self, now: float, pace: Pace) -> Idle:
        """The first start of what is pending, to the last digit that of the timetable; where
        something comes before it, when that comes. For queries whose triggers are bounds alone."""
        work, coming = [], inf
        for query in self._timed:
            assert query.trigger.fresh_within is not None
            result, following = query.pending(now), query.next_after(now)
            if following is not None:
                coming = min(coming, following)
            if result is not None:
                deadline = result.oldest + query.trigger.fresh_within
                work.append((deadline, query.step(result).seconds))
        start, sums = inf, 0.0
        for deadline, same in groupby(sorted(work), key=itemgetter(0)):
            for _, seconds in same:
                sums += seconds
            start = min(start, deadline - pace.margin * (pace.opening + sums) - self._look)
        return Idle(min(start, coming), is_start=start < coming)

    def _moment(self, query: ReplayedQuery, now: float) -> float:
        """The next moment of its clock; it wakes the process even if nothing is pending."""
        if not query.is_on_clock:
            return inf
        pending = query.pending(now)
        moment = next_moment(query.trigger, now if pending is None else pending.oldest)
        return inf if moment is None else moment

    def _deadlines(self, query: ReplayedQuery, now: float) -> Iterator[float]:
        """Ends of bounds of what is pending, or comes next."""
        trigger = query.trigger
        if trigger.fresh_within is None and trigger.ready_within is None:
            return
        pending = query.pending(now)
        oldest = query.next_after(now) if pending is None else pending.oldest
        if oldest is None:
            return
        if trigger.fresh_within is not None:
            yield oldest + trigger.fresh_within
        if trigger.ready_within is not None:
            moment = next_moment(trigger, oldest)
            if moment is not None:
                yield moment

    def _other_starts(self, query: ReplayedQuery, now: float) -> Iterator[float]:
        """When something else may start it: enough rows, idle time, a point far ahead."""
        trigger = query.trigger
        if trigger.rows is not None:
            enough = query.enough_at()
            if enough is not None:
                yield enough[0]
        is_ahead_of_point = trigger.ready_within is not None and trigger.point is not None
        if trigger.cheap or is_ahead_of_point:
            is_some = query.pending(now) is not None
            yield now if is_some else query.next_after(now) or inf
