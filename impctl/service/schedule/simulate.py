"""Simulate: what other budgets and triggers would have cost, by the commits of the past."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from itertools import accumulate, pairwise
from math import ceil, inf
from operator import itemgetter

from msgspec import Struct, field
from msgspec.structs import replace

from impctl.errors import UsageError, count_text
from impctl.forecast import Commit, History, effective_times
from impctl.placement import Modes, Piece, PieceMode, StateModel, at_kind, evaluate
from impctl.service.budget.choice import (
    Bound,
    WeighedState,
    bounds_of,
    is_worth,
    models_of,
    modes_of,
    weigh_state,
)
from impctl.service.budget.costs import ROWS_UNKNOWN, rows_of_change
from impctl.service.context import Context, known_histories
from impctl.service.cost_model import recorded
from impctl.service.results import Outcome, RecordedRuns, SimulatedSetting, SimulateResult
from impctl.service.schedule.daemon import FinishedRun, Scheduler
from impctl.service.schedule.due import (
    OPENING_FIRST_S,
    OPENING_S,
    UNKNOWN_S,
    Costs,
    Due,
    PendingChange,
    PendingChanges,
    Waiting,
    last_moment,
    maintain_ms,
    next_moment,
    trigger_of,
)
from impctl.service.schedule.forecast import Expectations, Expected, Tables
from impctl.service.settings import DEFAULT_INTERVAL, SimulateRequest
from impctl.service.text import moment_text, size_text
from impctl.store.reader import StoreReader
from impctl.store.records import RunCost, RunKind, RunRecord
from impctl.tables.log import ChangeSize
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
    """One result for all settings; UsageError if there is nothing to replay."""
    triggers = [trigger_from(text) for text in request.triggers]
    present = ctx.disk
    settings = settings_of(present, disks_from(request.disks), triggers)
    store = ctx.reading_store()
    specs, warnings = _captured(ctx, store, queries)
    assert store is not None, "what was captured is in a store"
    stored = [store.load(spec.name) for spec in specs]
    names = sorted({name for query in stored if query is not None for name in query.versions})
    now = ctx.now()
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
    look = DEFAULT_INTERVAL if request.look is None else request.look
    model = Model(ctx, store, specs, replay, look)
    figures = []
    for number, setting in enumerate(settings, start=1):
        ctx.reporter.step(f"replaying {setting.name}", number, len(settings))
        figures.append(model.run(setting))
    result = SimulateResult(
        source="the histories of the tables",
        since=datetime.fromtimestamp(replay.since, UTC),
        until=datetime.fromtimestamp(replay.until, UTC),
        look_s=look,
        commits={name: len(commits) for name, commits in replay.commits.items()},
        rows=replay.rows,
        costs_by=model.costs_by,
        settings=tuple(figures),
        recorded=_recorded(store, model, settings[0], look),
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


# Commits to replay. Law: per table in order of their times (seconds since 1970, never decreasing),
# none after the end of the replay. Rows that a log does not count are estimated by the commit's
# bytes, like the table's other commits, and counted (`guessed`).


class Replay(Struct, frozen=True):
    """A replay from `since` to `until`: the commits of each table, and its history in that time,
    for the choice of state."""

    since: float
    until: float
    commits: Mapping[TableName, Sequence[PendingChange]]
    histories: Mapping[TableName, History]
    warnings: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return sum(len(commits) for commits in self.commits.values())

    @property
    def rows(self) -> int:
        return sum(commit.rows or 0 for commits in self.commits.values() for commit in commits)

    @property
    def guessed(self) -> int:
        """How many commits have no number of rows in the log."""
        arrivals = [commit for history in self.histories.values() for commit in history.arrivals]
        return sum(
            commit.rows is None and (commit.at is None or commit.at <= self.until)
            for commit in arrivals
        )


def commits_of(arrivals: Sequence[Commit], since: float, until: float) -> Sequence[PendingChange]:
    """The commits of a table from `since` to `until`."""
    known = [arrival for arrival in arrivals if arrival.at is None or arrival.at <= until]
    times = effective_times(known, until)
    sizes = [(commit.rows, commit.bytes) for commit in known if commit.rows is not None]
    all_rows, all_bytes = sum(rows for rows, _ in sizes), sum(size for _, size in sizes)

    def rows_of(commit: Commit) -> int:
        if commit.rows is not None:
            return commit.rows
        # By the rows per byte of commits that tell both.
        if not sizes:
            return ROWS_UNKNOWN
        if not all_bytes or not commit.bytes:
            return max(1, round(all_rows / len(sizes)))
        return max(1, round(commit.bytes * all_rows / all_bytes))

    return [
        PendingChange(moment, rows_of(commit), commit.bytes)
        for moment, commit in zip(times, known, strict=True)
        if since <= moment <= until
    ]


# Law: reads logs only. Replays no period in which commits of a table are known to be missing; a
# period shorter than requested is reported.


def replay_of_store(
    ctx: Context,
    store: StoreReader | None,
    tables: Collection[TableName],
    since: float | None,
    now: float,
) -> Replay:
    """What is known of these tables from `since` on (None: of all of them together) until now."""
    histories = known_histories(ctx.tables, store, sorted(tables))
    times = {name: effective_times(history.arrivals, now) for name, history in histories.items()}
    # From when on all commits of a table are known; None where it never had one.
    known = {
        name: history.since
        if history.since is not None and history.since <= now
        else next(iter(times[name]), None)
        for name, history in histories.items()
    }
    start = max((moment for moment in known.values() if moment is not None), default=now)
    begin = start if since is None else max(since, start)
    warnings = []
    if since is not None and begin > since:
        names = " and ".join(f"`{name}`" for name, moment in known.items() if moment == begin)
        moment = moment_text(datetime.fromtimestamp(begin, UTC))
        warnings.append(f"commits of {names} are known only from {moment}, where the replay begins")
    commits, replayed = {}, {}
    for name, history in histories.items():
        first, end = bisect_left(times[name], begin), bisect_right(times[name], now)
        replayed[name] = replace(history, since=begin, arrivals=history.arrivals[first:end])
        commits[name] = commits_of(history.arrivals, begin, now)
        pairs = zip(times[name], history.arrivals, strict=True)
        if history.has_missed or any(c.is_after_gap and begin < at <= now for at, c in pairs):
            warnings.append(
                f"some commits of `{name}` are unknown: its log was cleaned up in between"
            )
    return Replay(begin, now, commits, replayed, tuple(warnings))


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


_OTHERS = frozenset([""])
"""Tables that no run maintained, so that all runs count."""

_FAR = 1 << 40
"""Rows at which a line's slope is sampled."""


class CostsBy(StrEnum):
    """The source of a query's step costs."""

    RUNS = "runs"
    CAPTURE = "capture"
    PRIORS = "priors"


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


# Law: under a budget, the choice with the least expected work, by the models and prices of
# `keep_to_budget`, for the replayed changes; bounds of queries add urgency, and the present state
# stays where `keep_to_budget` would leave it. The choice is made once, before the replay. More rows
# make reads likelier: prices are computed for several sizes and interpolated linearly.


class Pieces(Struct, frozen=True, dict=True):
    """The queries whose state can be chosen, and their models for changes of all sizes. `is_asked`:
    some piece may not stay in its present mode."""

    state: WeighedState
    models: tuple[Mapping[QueryName, StateModel], ...]
    is_asked: bool = False
    _modes: dict[object, Mapping[QueryName, Modes]] = field(default_factory=dict)
    """By the budget and the milliseconds of each bound."""
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
        now = self._choice(self.state.now, budget)
        return self.within(budget, bounds) if now.exceeds else now

    def _modes_within(
        self, budget: int | None, bounds: Mapping[QueryName, Bound]
    ) -> Mapping[QueryName, Modes]:
        state = self.state
        if budget is None:
            return {
                name: {piece.name: _kept_of(piece) for piece in model.pieces}
                for name, model in state.models.items()
            }
        weighed = state.chosen(budget, bounds)
        is_over = self._choice(state.now, budget).exceeds
        # What may not be kept as it is now goes with the first run, whatever it saves.
        is_made = self.is_asked or is_worth(weighed, is_over=is_over)
        return modes_of(weighed.choice) if is_made else state.now

    def _choice(self, modes: Mapping[QueryName, Modes], budget: int | None) -> ReplayedChoice:
        state = self.state
        size = state.fixed + sum(state.models[name].bytes_of(modes[name]) for name in modes)
        # One object for equal modes, so that identity compares two choices.
        prices = next((prices for known, prices in self._prices_of if known == modes), None)
        if prices is None:
            prices = {name: self._prices(name, chosen) for name, chosen in modes.items()}
            self._prices_of.append((modes, prices))
        return ReplayedChoice(
            prices,
            size,
            budget is not None and size > budget,
            sum(result != state.now[name] for name, result in modes.items()),
        )

    def _prices(self, name: QueryName, modes: Modes) -> dict[Tables, Price]:
        """Prices of the query by the tables of its own that move, the most frequent kind's."""
        tables = frozenset(self.state.queries[name].stored.versions)
        result: dict[Tables, Price] = {}
        before, after = (
            [evaluate(models[name], each).per_kind for models in self.models]
            for each in (self.state.now[name], modes)
        )
        for index, kind in enumerate(self.state.expected):
            moved = kind.tables & tables
            if not moved or moved in result:
                continue
            ms = tuple(costs[index] for costs in after)
            more = tuple(cost - other[index] for cost, other in zip(ms, before, strict=True))
            reads = tuple(_reads(models[name], modes, index) for models in self.models)
            rows = tuple(rows_of_change(_scaled(kind, scale), moved) for scale in _SCALES)
            result[moved] = Price(rows, ms, more, reads)
        return result


def pieces_of(
    ctx: Context, store: StoreReader, specs: Sequence[QuerySpec], replay: Replay
) -> Pieces:
    """Of these stored queries, with the replayed changes as their history."""
    coming = Expectations(ctx.workload.tables, replay.histories, replay.until)
    state = weigh_state(ctx, store, specs, coming)
    # The present modes of pieces, or allowed ones where these are not.
    now = {
        name: {
            piece.name: mode if mode in piece.sizes else _kept_of(piece)
            for piece in model.pieces
            for mode in (state.now[name][piece.name],)
        }
        for name, model in state.models.items()
    }
    models = tuple(
        models_of(ctx, store, state.queries, [_scaled(kind, scale) for kind in state.expected])
        for scale in _SCALES
    )
    return Pieces(replace(state, now=now), models, is_asked=state.now != now)


def _scaled(kind: Expected, scale: float) -> Expected:
    rows = {name: None if rows is None else rows * scale for name, rows in kind.rows.items()}
    return replace(kind, rows=rows)


def _kept_of(piece: Piece) -> PieceMode:
    return PieceMode.KEPT if PieceMode.KEPT in piece.sizes else piece.modes[0]


def _reads(model: StateModel, modes: Modes, kind: int) -> float:
    """Table reads, for a side or for groups, that are expected in a run of this kind."""
    read = (piece for piece in model.pieces if modes[piece.name] is PieceMode.READ)
    return sum(at_kind(piece.hit, kind) for piece in read)


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


_Line = tuple[float, float, float]
"""Milliseconds of a step that is empty, per row, and per byte."""


class StepCosts(Struct, frozen=True, dict=True):
    """Step costs of one query in one setting: by recorded runs, under the present state, plus what
    the choice of state adds, and never less than that choice estimates. The estimates are those of
    `service.decide` in a process with everything loaded; they are lines, computed once for all
    settings and many steps."""

    runs: Sequence[RunCost]
    by: CostsBy
    prices: Mapping[Tables, Price]
    _lines: dict[Tables, _Line | None] = field(default_factory=dict)
    """By the tables that moved; None where the estimate is unknown."""

    @classmethod
    def of(cls, runs: Sequence[RunCost], prices: Mapping[Tables, Price]) -> StepCosts:
        by = CostsBy.CAPTURE
        if any(run.kind is RunKind.MAINTAIN for run in runs):
            by = CostsBy.RUNS
        elif maintain_ms(runs, ChangeSize(0, 0), _OTHERS) is None:
            by = CostsBy.PRIORS
        return cls(runs, by, prices)

    @property
    def is_known(self) -> bool:
        return self.by is CostsBy.RUNS

    def priced(self, prices: Mapping[Tables, Price]) -> StepCosts:
        """The costs of the same query in another setting."""
        return replace(self, prices=prices)

    def ms(self, moved: Tables, rows: float, size: float) -> float | None:
        """Milliseconds by the runs of a step with so many rows of these tables; None if unknown."""
        if moved not in self._lines:
            self._lines[moved] = self._line(moved)
        line = self._lines[moved]
        return None if line is None else line[0] + max(line[1] * rows, line[2] * size)

    def _line(self, moved: Tables) -> _Line | None:
        """The line of the estimates, sampled at its ends."""
        fixed = maintain_ms(self.runs, ChangeSize(0, 0), moved)
        rows = maintain_ms(self.runs, ChangeSize(_FAR, 0), moved)
        if fixed is None or rows is None:
            return None
        is_sized = self.by is CostsBy.CAPTURE
        size = maintain_ms(self.runs, ChangeSize(0, _FAR), moved) if is_sized else None
        return fixed, (rows - fixed) / _FAR, 0.0 if size is None else (size - fixed) / _FAR

    def step(self, moved: Tables, rows: float, size: float) -> Step:
        ms, more, reads = price_of_step(self.prices, moved, rows)
        known = self.ms(moved, rows, size)
        if known is not None:
            ms = max(known + more, ms)
        return Step(UNKNOWN_S if known is None and not ms else ms / 1000, reads)


# Law: settings are independent; equal commits, runs and settings give equal figures.


class Model:
    """The queries over what is replayed, in any setting."""

    def __init__(
        self,
        ctx: Context,
        store: StoreReader,
        specs: Sequence[QuerySpec],
        replay: Replay,
        look: float,
        noise: Callable[[], Callable[[], float]] = lambda: lambda: 1.0,
    ) -> None:
        """`noise` makes, for each run, the factor of each step's time."""
        self.replay = replay
        self._specs, self._look, self._noise = specs, look, noise
        self._pieces = pieces_of(ctx, store, specs, replay)
        self._costs: dict[QueryName, StepCosts] = {}
        self._streams: dict[QueryName, CommitStream] = {}
        self._ran: dict[tuple[tuple[Trigger, ...], int, float], RunTotals] = {}
        """By what decides a run; settings may be equivalent."""
        streams: dict[Tables, CommitStream] = {}
        for spec in specs:
            stored = store.load(spec.name)
            assert stored is not None, "it was captured"
            names = frozenset(stored.versions)
            if names not in streams:
                streams[names] = CommitStream.of({name: replay.commits[name] for name in names})
            self._streams[spec.name] = streams[names]
            self._costs[spec.name] = StepCosts.of(recorded(store, stored), {})

    @property
    def costs_by(self) -> dict[QueryName, str]:
        return {name: str(costs.by) for name, costs in self._costs.items()}

    @property
    def warnings(self) -> tuple[str, ...]:
        guessed = self.replay.guessed
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
        costs = self._costs[spec.name].priced(choice.prices.get(spec.name, {}))
        span = self.replay.until - self.replay.since
        result = ReplayedQuery(
            spec.name, trigger, stream, costs, stream.rows[-1] / span if span > 0 else 0.0
        )
        if since > self.replay.since:
            result.pin(since)
        return result


# Law: the same `PendingChanges` and `Costs` as a real look finds, except that changes no trigger
# distinguishes are summed.


class CommitStream(Struct):
    """The commits of a query's tables by time, then by table: times ascending, the table of each,
    and `rows` and `bytes` of all before each, and of all."""

    times: Sequence[float]
    tables: Sequence[TableName]
    rows: Sequence[int]
    bytes: Sequence[int]

    @classmethod
    def of(cls, commits: Mapping[TableName, Sequence[PendingChange]]) -> CommitStream:
        ordered = sorted(
            ((change.at, name, change) for name in commits for change in commits[name]),
            key=itemgetter(0, 1),
        )
        return cls(
            [moment for moment, _, _ in ordered],
            [name for _, name, _ in ordered],
            [0, *accumulate(change.rows or 0 for _, _, change in ordered)],
            [0, *accumulate(change.bytes for _, _, change in ordered)],
        )

    def until(self, moment: float) -> int:
        return bisect_right(self.times, moment)

    def amount(self, first: int, until: int) -> tuple[int, int]:
        """Rows and bytes of the commits from one number to another."""
        return self.rows[until] - self.rows[first], self.bytes[until] - self.bytes[first]

    def between(self, first: int, enough: int, until: int) -> PendingChanges:
        """The commits from one number to another; those from `enough` on count apart."""
        parts = [first, enough, until] if first < enough < until else [first, until]
        changes = tuple(
            PendingChange(self.times[begin], *self.amount(begin, end))
            for begin, end in pairwise(parts)
        )
        moved = frozenset(self.tables[first:until])
        return PendingChanges(changes, None, changes[0].at, first, moved)


class ReplayedQuery(Struct):
    """A query over commits; its sketch has the first `seen`, all committed by `last`."""

    name: QueryName
    trigger: Trigger
    stream: CommitStream
    costs: StepCosts
    rows_per_s: float = 0.0
    seen: int = 0
    last: float | None = None
    step: Step | None = None
    """The step over changes pending at the last query."""
    _until: int = 0
    _pending: PendingChanges | None = None
    """What the first `_until` commits have above the sketch."""

    @property
    def is_timed(self) -> bool:
        """Whether the scheduler may start it by itself: not if only its use or a point may."""
        trigger = self.trigger
        bounds = (trigger.rows, trigger.fresh_within, trigger.ready_within)
        return self.is_on_clock or any(bound is not None for bound in bounds)

    @property
    def is_on_clock(self) -> bool:
        return self.trigger.every is not None or self.trigger.cron is not None

    def next_after(self, now: float) -> float:
        """The time of the next commit; infinite without one."""
        number = self.stream.until(now)
        return self.stream.times[number] if number < len(self.stream.times) else inf

    def pending(self, now: float) -> PendingChanges | None:
        """Commits that its sketch lacks; None if none."""
        until = self.stream.until(now)
        if until != self._until:
            # The change that reaches the trigger's rows counts apart.
            self._pending = self.stream.between(self.seen, self._enough(), until)
            self._until = until
            self.step = self._step()
        return self._pending

    def _step(self, coming: float = 0.0) -> Step:
        """The step over pending changes and `coming` rows."""
        assert self._pending is not None
        rows, size = self.stream.amount(self.seen, self._until)
        return self.costs.step(self._pending.moved, rows + coming, size)

    def _enough(self) -> int:
        """The number of the commit that reaches the trigger's rows; that of none without it."""
        needed, rows = self.trigger.rows, self.stream.rows
        if needed is None:
            return len(self.stream.times)
        return bisect_left(rows, rows[self.seen] + needed) - 1

    def pin(self, moment: float) -> None:
        """Update its sketch to that moment."""
        self.seen = self._until = self.stream.until(moment)
        self.last, self._pending, self.step = moment, None, None

    def waiting(self, now: float) -> Waiting | None:
        """What waits for it; None where nothing can make it due by itself."""
        pending = self.pending(now)
        if pending is None:
            if not self.is_on_clock:
                return None
            return Waiting(self.name, self.trigger, PendingChanges(), Costs(0.0), self.last)
        assert self.step is not None
        cost, more = self.step.seconds, 0.0
        if self.trigger.ready_within is not None:
            more = max(0.0, self._step(self._coming(now)).seconds - cost)
        costs = Costs(cost, more, is_known=self.costs.is_known)
        return Waiting(self.name, self.trigger, pending, costs, self.last)

    def _coming(self, now: float) -> float:
        """The rows that usually come until the next moment."""
        moment = next_moment(self.trigger, self.stream.times[self.seen])
        return 0.0 if moment is None else self.rows_per_s * max(0.0, moment - now)


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


# A scheduler in virtual time. Law: each run takes its estimate, except for requested noise, and
# pins what had come when it started. Looks at which nothing can be new or start are skipped, as are
# clock moments without work: the cost depends on commits and runs, not on looks. Nothing sleeps or
# reads the wall clock.

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


class VirtualRun:
    """Past commits, runs over them, and a clock that jumps to the next look that matters."""

    def __init__(
        self,
        queries: Sequence[ReplayedQuery],
        look: float,
        noise: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self._look, self._noise, self._all = look, noise, queries
        self._timed = [query for query in queries if query.is_timed]
        self._on_commit = [query for query in queries if query.trigger.is_on_commit]
        self._queries = {query.name: query for query in (*self._on_commit, *self._timed)}
        self._opening = OPENING_FIRST_S
        self.now = 0.0
        self.ran = RunTotals()
        triggers = {name: query.trigger for name, query in self._queries.items()}
        self.scheduler = Scheduler(triggers, look, lambda: self.now, self, self._work)

    def run(self, since: float, until: float) -> RunTotals:
        """From one time to another, looking first at `since`."""
        self.now = since
        while self.now < until:
            begun = self.now
            ready, due = self.scheduler.due()
            if ready or due:
                self.scheduler.run(ready, due)
            ran = self.now > begun
            self.now = self.now + self.scheduler.pause() if ran else self._next_look(until)
        for query in self._all:
            pending = query.pending(until)
            if pending is not None:
                self.ran.left.append(until - pending.changes[0].at)
        return self.ran

    def is_new(self) -> bool:
        on_commit = (query.pending(self.now) is not None for query in self._on_commit)
        return bool(self._timed) or any(on_commit)

    def waiting(self) -> Sequence[Waiting]:
        result = (query.waiting(self.now) for query in self._timed)
        return [waiting for waiting in result if waiting is not None]

    def _work(self, names: Sequence[QueryName], due: Sequence[Due]) -> FinishedRun:
        """Take the time of a run of those of which something is pending."""
        now, oldest, took = self.now, [], dict[QueryName, float]()
        for query in (self._queries[name] for name in names):
            pending = query.pending(now)
            if pending is not None:
                assert query.step is not None
                oldest.append(pending.changes[0].at)
                took[query.name] = query.step.seconds * self._noise()
                self.ran.reads += query.step.reads
                query.pin(now)
        if took:
            work = sum(took.values())
            self.now = now + self._opening + work
            self._opening = OPENING_S
            self.ran.runs += 1
            self.ran.work_s += work
            self.ran.ages += [self.now - moment for moment in oldest]
            self.ran.late += sum(
                query.due_by is not None and self.now > query.due_by + _SLACK for query in due
            )
        opening = self.scheduler.pace.opening
        return FinishedRun(self.now, opening + sum(took[query.query] for query in due))

    def _next_look(self, until: float) -> float:
        """After a look without a run: the next one that sees a commit; or the last one before a
        start, and then the start. Between commits a start only moves back, as fewer rows are
        expected until a moment, unless the query was run ahead of it."""
        now, look, start = self.now, self._look, self.scheduler.next_start()
        commit = min((query.next_after(now) for query in self._queries.values()), default=inf)
        upcoming = self.scheduler.upcoming
        if self._is_any_run_ahead():
            return now + self.scheduler.pause()
        pending = (due.start_at for due in upcoming if due.is_pending)
        end = min([commit, until, *(moment for moment in pending if moment is not None)])
        woken = []
        for trigger in {query.trigger for query in self._timed if query.is_on_clock}:
            last = last_moment(trigger, now, end)
            # From a moment on the next thing is a look, which passes over moments that come sooner.
            if last is not None and last_moment(trigger, last - look, last) is None:
                woken.append(last)
        if woken:
            return max(woken)
        idle = (due.start_at for due in upcoming if not due.is_pending)
        if any(moment is not None and moment <= now for moment in idle):
            # The moment after this one shows at the next look.
            return now + self.scheduler.pause()
        following = inf if commit == inf else now + look * max(1, ceil((commit - now) / look))
        if start is None:
            return following
        last = now + look * ((start - now) // look)
        return min(following, last if last > now else now + (start - now))

    def _is_any_run_ahead(self) -> bool:
        """Whether a query may have been run since it was to start ahead of its moment. That start
        moves back from look to look, and once it is after the run, the query is due again."""
        pace = self.scheduler.pace
        costs = {waiting.query: waiting.costs for waiting in self.scheduler.waiting}
        all_pending = sum(cost.pending for cost in costs.values())
        for due in self.scheduler.upcoming:
            query = self._queries[due.query]
            if not due.is_pending or query.trigger.ready_within is None or query.last is None:
                continue
            moment = next_moment(query.trigger, query.stream.times[query.seen])
            work = all_pending + costs[due.query].expected
            if moment is not None and query.last >= moment - pace.margin * (pace.opening + work):
                return True
        return False
