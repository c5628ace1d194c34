"""Measure `deadlines`: what bounds on a sketch's age save, and how many steps miss them.

Options: `tables` that change; `share` of their rows in each commit; `steps` that are maintained in
earnest first, of one, four and sixteen such commits in turn, whose recorded times tell what later
ones take, of few commits or of many; then `commits`, `every` so many
seconds in the mean, in virtual time; `bounds`, such as `10m`; `look`, seconds between looks.

Law: the schedule is that of `maintain --follow`; steps take what is thought of them times a noise
(lognormal, one in a hundred eightfold), the same for all bounds. The sketch is checked after the
steps in earnest; in virtual time there is none.
Out of scope: the replay (`service.schedule`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random

import numpy as np
from msgspec import Struct

from benchmarks.figures import SuiteCase
from benchmarks.state.held_back import commit, moving_tables, reduced_copy, share_of_each
from benchmarks.state.kept_by import captured_under
from impctl.bench.record import Cell
from impctl.errors import UsageError
from impctl.forecast import Commit, History
from impctl.measure.kinds import single
from impctl.measure.scratch import AgainstRecapture, MeasuredQuery
from impctl.service.context import Context
from impctl.service.prepare import prepare
from impctl.service.results import SimulatedSetting
from impctl.service.schedule.simulate import Model, Replay, Setting, commits_of, trigger_from
from impctl.types import TableName

ON_COMMIT = "commit"
_SIZES = (1, 4, 16)


class _Options(Struct, frozen=True, kw_only=True):
    tables: tuple[TableName, ...]
    share: float
    steps: int
    commits: int
    every: float
    bounds: tuple[str, ...]
    look: float


def measure_deadlines(case: SuiteCase) -> Iterator[Cell]:
    """A cell for every commit, and one per bound."""
    case.only("tables", "share", "steps", "commits", "every", "bounds", "look")
    tables = moving_tables(case)
    steps = case.whole_number("steps", 6)
    options = _Options(
        tables=tables,
        share=share_of_each(case, 0.0005, sum(_sizes(steps))),
        steps=steps,
        commits=case.whole_number("commits", 2000),
        every=case.numbers("every", (60.0,), least=0.001)[0],
        bounds=case.texts("bounds", ("1m", "10m", "1h")),
        look=case.numbers("look", (5.0,), least=0.001)[0],
    )
    for bound in options.bounds:
        try:
            trigger_from(f"fresh_within: {bound}")
        except UsageError:
            raise case.refuse("bounds", "durations such as `10m`") from None
    return _cells(case, options)


def _cells(case: SuiteCase, options: _Options) -> Iterator[Cell]:
    spec = case.query
    shares = tuple(options.share * size for size in _sizes(options.steps))
    with reduced_copy(case, options.tables, shares) as (scratch, _, changes):
        with scratch.writing("bench"):
            captured_under(scratch, spec, None)
            follower = MeasuredQuery(scratch, prepare(scratch, spec))
            for change in changes:
                commit(scratch, change)
                follower.follow()
            checked = follower.checked()
        rows = {table: len(part.comes) for table, part in changes[0].items()}
        for trigger in (ON_COMMIT, *(f"fresh_within: {bound}" for bound in options.bounds)):
            case.step(trigger)
            replayed = _replayed(case, scratch, options, rows, trigger)
            yield _cell(case, trigger, replayed, checked)


def _sizes(steps: int) -> Sequence[int]:
    """Of how many commits each of the first steps is: of one size no line could be told."""
    return [_SIZES[index % len(_SIZES)] for index in range(steps)]


def _replayed(
    case: SuiteCase,
    scratch: Context,
    options: _Options,
    rows: Mapping[TableName, int],
    trigger: str,
) -> SimulatedSetting:
    spec = case.query
    store = scratch.store()
    stored = store.load(spec.name)
    assert stored is not None, "it was captured"
    model = Model(
        scratch,
        store,
        [spec],
        _arrivals(options, tuple(stored.versions), rows, case.seed),
        options.look,
        lambda: _noisy(Random(case.seed)),
    )
    return model.run(Setting(None, trigger_from(trigger)))


def _noisy(random: Random) -> Callable[[], float]:
    """Factors of the times that steps take on a busy machine: 1% of steps take 8 times as long."""

    def factor() -> float:
        spread = random.lognormvariate(0.0, 0.35)
        return spread * (8.0 if random.random() < 0.01 else 1.0)

    return factor


def _arrivals(
    options: _Options, tables: Sequence[TableName], rows: Mapping[TableName, int], seed: int
) -> Replay:
    """Commits at random times, of all tables that move together."""
    gaps = np.random.default_rng(seed).exponential(options.every, options.commits)
    times = np.cumsum(gaps).tolist()
    arrivals_of = {
        table: [
            Commit(version, time_ms, rows[table], 0, 1, 0, "WRITE")
            for version, time_ms in enumerate(times, start=1)
            if table in rows
        ]
        for table in tables
    }
    since, until = min(times, default=0.0), max(times, default=0.0)
    commits = {name: commits_of(arrivals, since, until) for name, arrivals in arrivals_of.items()}
    histories = {
        name: History("", len(arrivals), since, tuple(arrivals))
        for name, arrivals in arrivals_of.items()
    }
    return Replay(since, until, commits, histories)


def _cell(
    case: SuiteCase,
    trigger: str,
    simulated_setting: SimulatedSetting,
    checked: AgainstRecapture,
) -> Cell:
    metrics = {
        "runs_count": float(simulated_setting.runs),
        "work_ms": simulated_setting.work_ms,
        "age_ms": 1000 * (simulated_setting.age_s or 0.0),
        "late_share": simulated_setting.late / max(1, simulated_setting.steps),
    }
    return case.cell(single(metrics), {"trigger": trigger}, checked=checked)
