"""`impctl simulate` against real runs: commits, settings, late rows, stored pieces."""

from __future__ import annotations

import itertools
import random
import time
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec.structs import replace

from impctl import stopwatch
from impctl.costs import STATE
from impctl.errors import UsageError
from impctl.forecast import Commit, History
from impctl.placement import Modes, PieceMode, StateModel, choose, evaluate, per_day
from impctl.service.budget.choice import Bound, WeighedState
from impctl.service.context import OwnSession
from impctl.service.cost_model import estimated
from impctl.service.schedule.due import LEAST_MARGIN, UNKNOWN_S
from impctl.service.schedule.forecast import Expected
from impctl.service.schedule.simulate import (
    CommitStream,
    CostsBy,
    Pieces,
    Price,
    Replay,
    StepCosts,
    commits_of,
    disks_from,
    price_of_step,
    quantile,
    runs_in,
    settings_of,
    trigger_from,
)
from impctl.store.records import RunCost, RunKind, RunRecord
from impctl.store.store import Store
from impctl.tables.log import ChangeSize
from impctl.workload.models import ON_COMMIT, Trigger
from tests.behaviour.typed_joins import QUERIES, some, write_workload
from tests.placement.models import drawn_model, largest
from tests.service.budget.test_choice import frequent_and_rare
from tests.support.kept_workload import run_record, set_time
from tests.support.random_cases import random_seeds
from tests.support.run_cli import Capsys, Cli, MadeOnce, MonkeyPatch, Words, spied

NAMES, START = ("l", "s", "two"), 1_790_000_000.0


class FakeClock:
    """A fake clock, also for commit times."""

    def __init__(self) -> None:
        self.now = START

    def commit(self, folder: Path, table: str, rows: Any) -> None:
        write_deltalake(str(folder / table), rows, mode="append")
        self.stamp(folder, table)

    def stamp(self, folder: Path, table: str) -> None:
        """Set the time of the table's latest commit to now."""
        set_time(folder / table, DeltaTable(str(folder / table)).version(), self.now)


@pytest.fixture
def clock(monkeypatch: MonkeyPatch) -> FakeClock:
    result = FakeClock()
    monkeypatch.setattr(time, "time", lambda: result.now)
    # Tests compare measured times, so each stopwatch reading takes a millisecond.
    ticks = itertools.count()
    monkeypatch.setattr(stopwatch, "perf_counter", lambda: next(ticks) / 1000)
    return result


NO_SPARK = Mock(side_effect=AssertionError("Spark was asked for"))


def write_three(folder: Path) -> Path:
    return write_workload(folder, [(name, QUERIES[name], "auto") for name in NAMES])


@pytest.fixture
def cli(tmp_path: Path, capsys: Capsys, monkeypatch: MonkeyPatch) -> Cli:
    monkeypatch.setattr(OwnSession, "open", NO_SPARK)
    return Cli(capsys, write_three(tmp_path))


def set_step_times(folder: Path, rng: random.Random) -> None:
    """Set the recorded time of each query's latest step to a noisy function of its rows."""
    with Store.open(folder / ".impctl") as store, store.lock(1.0, "test"):
        for name in NAMES:
            (record,), costs = store.history(name, 1), store.costs(name)
            if record.action == "exact":
                elapsed = (20.0 + 3.0 * record.changes) * rng.uniform(0.8, 1.25)
                cost = replace(costs[0], elapsed_ms=elapsed)
                store.amend_record(name, replace(record, elapsed_ms=elapsed, cost=cost))


@pytest.fixture
def followed(
    capsys: Capsys, monkeypatch: MonkeyPatch, made_once: MadeOnce, clock: FakeClock
) -> Cli:
    """Captured after one commit, then maintained 3 s after each of six, a minute apart."""

    def follow(folder: Path) -> None:
        rng, cli = random.Random(5), Cli(capsys, write_three(folder))
        for table in ("t", "u"):
            clock.stamp(folder, table)
        clock.now += 30.0
        clock.commit(folder, "t", some(rng, 5, "x"))
        clock.now += 30.0
        cli.good("capture")
        for step in range(6):
            clock.now += 60.0
            clock.commit(folder, "t", some(rng, rng.randrange(1, 9), "x"))
            if step % 3 == 2:
                clock.commit(folder, "u", some(rng, 2, "y"))
            clock.now += 3.0
            cli.good("maintain")
            set_step_times(folder, rng)

    monkeypatch.setattr(OwnSession, "open", NO_SPARK)
    folder = made_once.folder("followed", follow)
    clock.now = START + 60.0 + 6 * 63.0 + 30.0
    return Cli(capsys, folder / "w.yaml")


def simulated(cli: Cli, *words: str) -> dict[str, Any]:
    return cli.one("simulate", *words)


def values_of(setting: dict[str, Any], *names: str) -> list[Any]:
    return [setting[name] for name in names]


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_present_setting_matches_the_record(followed: Cli) -> None:
    result = simulated(followed, "--interval", "6s")
    recorded, (present,) = result["recorded"], result["settings"]
    # Commits before the capture are replayed, but have no recorded run.
    assert recorded["runs"] == recorded["model_runs"] == present["runs"] - 1 == 6
    assert recorded["steps"] == recorded["model_steps"] == present["steps"] - 3 == 18
    assert (recorded["runs_off"], recorded["steps_off"]) == (0.0, 0.0)
    assert abs(recorded["work_off"]) < 0.3
    work_off = recorded["model_work_ms"] / recorded["work_ms"] - 1
    assert recorded["work_off"] == pytest.approx(work_off)
    assert result["costs_by"] == dict.fromkeys(NAMES, "runs")
    assert result["commits"] == {"t": 7, "u": 2}
    assert (present["late"], present["conversions"], present["reads"]) == (0, 0, 0.0)
    assert 0 < present["age_s"] <= present["age_99_s"] <= present["age_worst_s"] < 6 + 2


@pytest.mark.slow
def test_budgets_read_and_bounds_run_less(followed: Cli) -> None:
    flags = ("--disk", "0,all", "--trigger", "commit", "--trigger", "fresh_within: 4m")
    result = simulated(followed, *flags)
    by_name = {setting["setting"]: setting for setting in result["settings"]}
    assert list(by_name) == [
        "as it is",
        *("0 B, commit", "0 B, fresh_within 4m"),
        *("all kept, commit", "all kept, fresh_within 4m"),
    ]
    as_it_is, kept, least = by_name["as it is"], by_name["all kept, commit"], by_name["0 B, commit"]
    keys = ("runs", "steps", "work_ms", "age_s", "state_bytes", "conversions", "reads")
    assert values_of(as_it_is, *keys) == values_of(kept, *keys)
    assert least["state_bytes"] < kept["state_bytes"]
    assert (bool(least["over_budget"]), bool(kept["over_budget"])) == (True, False)
    assert least["conversions"] == 3
    assert least["reads"] > 0
    assert least["work_ms"] > kept["work_ms"]
    for name in ("0 B", "all kept"):
        on_commit, bound = by_name[f"{name}, commit"], by_name[f"{name}, fresh_within 4m"]
        assert bound["runs"] < on_commit["runs"] / 2
        assert bound["work_ms"] < on_commit["work_ms"]
        assert bound["late"] == 0
        assert on_commit["age_worst_s"] < 10 < 200 < bound["age_s"] <= bound["age_worst_s"] <= 240


@pytest.mark.slow
def test_replay_is_repeatable_and_writes_nothing(followed: Cli) -> None:
    before = contents(followed.folder)
    command = ("simulate", "--disk", "0,all", "--trigger", "every: 2m", "--since", "3m")
    first, second = followed.good(*command), followed.good(*command)
    assert contents(followed.folder) == before
    assert first.document == second.document
    assert first.results[0]["commits"] == {"t": 3, "u": 1}


def test_file_defines_the_present(followed: Cli) -> None:
    head = 'budget: {disk: 0}\ndefaults: {trigger: "use"}\n'
    followed.edit("queries:", f"{head}queries:")
    result = simulated(followed, "--query", "l", "--trigger", "{every: 5m, rows: 1000}")
    present, other = result["settings"]
    assert (present["runs"], present["age_s"], present["disk_bytes"]) == (0, None, 0)
    assert present["age_worst_s"] == pytest.approx(30 + 6 * 63 + 30, abs=1)
    assert other["setting"] == "0 B, rows 1000, every 5m"
    assert present["conversions"] == other["conversions"] == 1
    assert result["costs_by"] == {"l": "runs"}


def test_variable_applies_to_the_present(followed: Cli, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("IMPCTL_DISK", "0")
    present, other = simulated(followed, "--trigger", "commit")["settings"]
    assert present["conversions"] == 3
    assert {**other, "setting": "", "present": True, "trigger": None} == {**present, "setting": ""}


def test_nothing_to_replay_gives_a_hint(cli: Cli) -> None:
    assert not (cli.folder / ".impctl").exists()
    for hint in ("impctl capture", "--since"):
        ran = cli("simulate")
        assert ran.refusal == (2, "nothing_to_replay")
        assert hint in ran.error["hint"]
        assert (cli.folder / ".impctl").exists() is (hint == "--since")
        cli.good("capture", "--query", "l")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--disk", "much"), "--disk"),
        (("--trigger", "fresh_within: 10"), "duration such as 10m"),
        (("--trigger", "fresh_within: 10m, rows: 5"), ""),
        (("--trigger", ""), "--trigger"),
        (("--trigger", "sometimes"), "must be one of"),
    ],
)
def test_invalid_flags_are_refused(cli: Cli, flags: Words, message: str) -> None:
    ran = cli("simulate", *flags)
    assert ran.refusal == (2, "usage")
    assert message in ran.error["message"]
    assert ran.error["hint"]


def test_budgets_are_compared_with_the_present_modes(cli: Cli, clock: FakeClock) -> None:
    cli.good("capture", "--disk", "0")
    rng = random.Random(9)
    for _ in range(3):
        clock.now += 60.0
        clock.commit(cli.folder, "t", some(rng, 3, "x"))
        cli.good("maintain")
        set_step_times(cli.folder, rng)
    present, least, kept = simulated(cli, "--disk", "0,all")["settings"]
    keys = ("runs", "steps", "work_ms", "state_bytes", "reads", "conversions")
    assert values_of(present, *keys) == values_of(least, *keys)
    assert present["reads"] > kept["reads"] == 0
    assert (present["conversions"], kept["conversions"]) == (0, 3)
    assert kept["work_ms"] < present["work_ms"]
    assert kept["state_bytes"] > present["state_bytes"]


def test_choice_uses_the_bounds_of_the_setting(followed: Cli, monkeypatch: MonkeyPatch) -> None:
    calls = spied(monkeypatch, Pieces, "within")

    def arguments() -> list[tuple[int | None, dict[str, float]]]:
        return [
            (budget, {name: bound.ms for name, bound in bounds.items()})
            for _, budget, bounds in calls
        ]

    flags = ("--disk", "0", "--trigger", "commit", "--trigger", "fresh_within: 4m")
    simulated(followed, *flags, "--query", "l", "--query", "s")
    assert arguments() == [(0, {}), (0, {"l": 240_000.0, "s": 240_000.0})]
    calls.clear()
    text = followed.workload.read_text()
    followed.workload.write_text(f"defaults: {{trigger: {{fresh_within: 1m}}}}\n{text}")
    simulated(followed, "--disk", "0", "--query", "l")
    assert arguments() == [(0, {"l": 60_000.0})]


SIZES = 6
"""Number of change sizes that have a price."""


def pieces(
    model: StateModel,
    modes: Modes,
    chance: float = 0.0,
    ms: float = 0.0,
    *,
    must_convert: bool = False,
) -> Pieces:
    """State of one query. Each piece takes `ms` to convert; each kind of change comes with
    probability `chance` within a day. `must_convert`: the present modes are not allowed."""
    tables = {table: 0 for kind in model.kinds for table in kind.tables}
    query = cast(Any, SimpleNamespace(stored=SimpleNamespace(versions=tables)))
    conversion = dict.fromkeys(PieceMode, ms)
    model = model.with_pieces(lambda piece: replace(piece, conversion=conversion))
    expected = tuple(
        Expected(kind.tables, kind.rate, dict.fromkeys(kind.tables, 10.0), chance=chance)
        for kind in model.kinds
    )
    state = WeighedState({"q": query}, 0, {}, expected, {"q": model}, {"q": modes})
    return Pieces(state, ({"q": model},) * SIZES, must_convert)


def test_bounds_favor_rare_changes() -> None:
    conversions_seen = 0
    for seed in range(8):
        model = frequent_and_rare(seed)
        now = {"left": PieceMode.READ, "right": PieceMode.KEPT}
        result = pieces(model, now, 0.06)
        unbounded = result.within(11, {})
        assert (unbounded.conversions, unbounded.bytes) == (0, 11)
        # Both kinds are likely and only one bound can be met, so work decides.
        assert result.within(11, {"q": Bound(1.0, "fresh_within 1ms")}).conversions == 0
        frequent, rare = evaluate(model, {"left": PieceMode.READ, "right": PieceMode.READ}).per_kind
        if frequent < rare:
            # The frequent one meets the bound even if it reads.
            bound = Bound(LEAST_MARGIN * (frequent + rare) / 2, "fresh_within")
            with_bound = result.within(11, {"q": bound})
            assert (with_bound.conversions, with_bound.bytes) == (1, 11)
            kept = evaluate(model, {"left": PieceMode.KEPT, "right": PieceMode.READ}).per_kind
            assert with_bound.prices["q"][frozenset("s")].ms == (kept[1],) * SIZES
            assert pieces(model, now, 0.05).within(11, {"q": bound}).conversions == 0
            conversions_seen += 1
        # The bounds of one trigger do not affect another.
        assert result.within(11, {}) == unbounded
    assert conversions_seen > 2


@random_seeds(12, 36, 200)
def test_unprofitable_choice_keeps_present_modes(seed: int) -> None:
    rng = Random(seed)
    model = drawn_model(rng)
    now = {piece.name: rng.choice(piece.modes) for piece in model.pieces}
    least = sum(min(piece.sizes.values()) for piece in model.pieces)
    budget = rng.randint(least, largest(model))
    chosen = choose({"q": model}, budget).queries["q"].modes
    saved = per_day(model, now) - per_day(model, chosen)
    converted = sum(now[name] != mode for name, mode in chosen.items())
    is_over = model.bytes_of(now) > budget
    for days in (6.9, 7.1):
        ms = max(0.0, (days * saved - STATE.conversion_ms) / converted) if converted else 0.0
        conversion_ms = STATE.conversion_ms + ms * converted
        pays = saved > 0 and saved >= 0.2 * per_day(model, now) and conversion_ms <= 7.0 * saved
        within = pieces(model, now, ms=ms).within(budget, {})
        assert within.conversions == (1 if converted and (is_over or pays) else 0)
        assert within.bytes == model.bytes_of(chosen if is_over or pays else now)
        assert not within.exceeds


def test_disallowed_modes_change_at_any_cost() -> None:
    rng = Random(3)
    for _ in range(15):
        model = drawn_model(rng)
        now = {piece.name: rng.choice(piece.modes) for piece in model.pieces}
        chosen = choose({"q": model}, 10**9).queries["q"].modes
        if now == chosen:
            continue
        assert pieces(model, now, ms=1e12).within(10**9, {}).conversions == 0
        assert pieces(model, now, ms=1e12, must_convert=True).within(10**9, {}).conversions == 1


def appended(committed: float | None, rows: int | None, size: int = 0) -> Commit:
    deleted = None if rows is None else 0
    return Commit(0, committed, rows, deleted, 1, size, "WRITE")


def test_unknown_rows_are_guessed_from_bytes() -> None:
    commits = [appended(1, 10, 100), appended(2, 30, 300), appended(3, None, 50), appended(4, None)]
    assert [commit.rows for commit in commits_of(commits, 0.0, 9.0)] == [10, 30, 5, 20]
    histories = {"t": History("", 0, 0.0, (*commits, appended(10, None)))}
    assert Replay(0.0, 9.0, {}, histories).guessed == 2
    (commit,) = commits_of([appended(1, None, 7)], 0.0, 9.0)
    assert commit.rows == 100


def test_commits_outside_the_period_are_ignored() -> None:
    entries = [appended(1, 1), appended(5, 2), appended(4, 4), appended(None, 8), appended(9, 16)]
    commits = [(commit.at, commit.rows) for commit in commits_of(entries, 5.0, 8.0)]
    assert commits == [(5.0, 2), (5.0, 4), (5.0, 8)]
    assert commits_of(entries, 6.0, 8.0) == []


def test_commits_of_several_tables_are_merged() -> None:
    one = commits_of([appended(1, 1), appended(4, 2)], 0.0, 9.0)
    other = commits_of([appended(2, 4, 7), appended(4, 8)], 0.0, 9.0)
    result = CommitStream.of({"b": one, "a": other})
    assert (result.times, result.tables) == ([1, 2, 4, 4], [*"baab"])
    assert (result.rows, result.bytes) == ([0, 1, 5, 13, 15], [0, 0, 7, 7, 7])
    assert [result.until(moment) for moment in (0.9, 1, 3.9, 4)] == [0, 1, 2, 4]


def test_settings_combine_budgets_and_triggers_once() -> None:
    bound, on_commit = Trigger(fresh_within=600.0), ON_COMMIT
    all_names = ["500 MB, fresh_within 10m", "500 MB, commit"]
    all_names += ["all kept, fresh_within 10m", "all kept, commit"]
    for disk, disks, triggers, names in (
        (None, [], [], []),
        (10**9, disks_from(["500MB, all", "500MB"]), [bound, on_commit, bound], all_names),
        (10**9, [], [bound], ["1 GB, fresh_within 10m"]),
        (None, [0], [], ["0 B"]),
    ):
        settings = settings_of(disk, disks, triggers)
        assert [setting.name for setting in settings] == ["as it is", *names]
    assert settings_of(10**9, [], [])[0].disk == 10**9


def test_trigger_is_read_as_in_the_file() -> None:
    assert trigger_from("commit") == ON_COMMIT
    assert trigger_from("fresh_within: 10m") == Trigger(fresh_within=600.0)
    assert trigger_from("{rows: 5, every: 1h}") == Trigger(rows=5, every=3_600.0)
    with pytest.raises(UsageError) as caught:
        trigger_from("{rows: 5, evry: 1h}")
    assert str(caught.value.location) == "--trigger:1:11"
    assert "every" in (caught.value.hint or "")


def record(ended: float, step_ms: float, commit_ms: float = 0.0) -> RunRecord:
    half = {"read_ms": step_ms / 2, "engine_ms": step_ms / 2, "commit_ms": commit_ms}
    return run_record("exact", started_at=ended, elapsed_ms=step_ms + commit_ms, changes=1, **half)


@pytest.mark.parametrize(
    ("later_steps", "pause", "count"),
    [
        pytest.param(None, 1.0, 0, id="none"),
        pytest.param([("b", 13.0, 1_000.0)], 1.2, 1, id="close together"),
        # `b` began 1.1 s after the commit of `a` was over.
        pytest.param([("b", 13.0, 1_000.0)], 1.0, 2, id="apart"),
        pytest.param([("a", 10.1, 50.0)], 1.2, 2, id="no query comes twice in a run"),
    ],
)
def test_steps_close_together_are_one_run(later_steps: Any, pause: float, count: int) -> None:
    steps = [] if later_steps is None else [("a", record(10.0, 500.0, 900.0))]
    steps += [(name, record(*times)) for name, *times in later_steps or ()]
    assert runs_in(steps, pause) == count


def test_quantile_is_one_of_the_numbers() -> None:
    assert quantile([], 0.5) is None
    assert quantile([3.0], 0.99) == 3.0
    hundred = [float(number) for number in range(1, 101)]
    assert [quantile(hundred, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 50.0, 99.0, 100.0]


SETS = [frozenset(), frozenset("a"), frozenset("b"), frozenset("ab"), frozenset("abc")]


def runs(rng: random.Random) -> list[RunCost]:
    """Noisy runs of any kind over any tables, some with Spark."""
    kinds = rng.choice([[RunKind.MAINTAIN], [RunKind.RECAPTURE], list(RunKind), []])
    return [
        RunCost(
            rng.choice(kinds),
            rng.choice([0, 1, 40, 5_000]),
            rng.choice([0, 900, 70_000]),
            rng.uniform(0, 900) * rng.choice([1, 1, 1, 20]),
            rng.random() < 0.2,
            rng.choice([0.0, 4_000.0]),
            tuple(sorted(rng.choice(SETS))),
        )
        for _ in range(rng.randrange(0, 12) if kinds else 0)
    ]


@random_seeds(5, 33, 60)
def test_lines_match_the_estimates(seed: int) -> None:
    rng = random.Random(seed)
    known = runs(rng)
    costs, size_of = StepCosts.of(known, {}), ChangeSize
    for moved in SETS[1:]:
        for rows, size in [(0, 0), (3, 100), (70_000, 10), (2, 10**8), (10**7, 10**9)]:
            arguments = {"has_spark": True, "table_rows": lambda: 0, "moved": sorted(moved)}
            expected = estimated(
                known, RunKind.MAINTAIN, size_of(rows, size), **arguments
            ).maintain_ms
            result = costs.ms(moved, rows, size)
            assert (result is None) == (expected is None)
            if result is not None:
                assert result == pytest.approx(expected, rel=1e-6, abs=1e-6)
    by_runs = any(run.kind is RunKind.MAINTAIN for run in known)
    assert (costs.by is CostsBy.RUNS) == by_runs
    assert (costs.by is CostsBy.PRIORS) == (costs.ms(frozenset("a"), 1, 1) is None)


def test_price_is_interpolated_between_sizes() -> None:
    price = Price((10.0, 20.0, 40.0), (1.0, 3.0, 7.0), (0.0, -1.0, 1.0), (0.5, 1.0, 1.0))
    prices = {frozenset("a"): price}
    for table, rows, expected in (
        *(("a", 3, (1.0, 0.0, 0.5)), ("a", 20, (3.0, -1.0, 1.0)), ("a", 30, (5.0, 0.0, 1.0))),
        *(("a", 1_000, (7.0, 1.0, 1.0)), ("b", 30, (0.0, 0.0, 0.0))),
    ):
        assert price_of_step(prices, frozenset(table), rows) == expected


def test_unpriced_sets_of_tables_use_the_largest_known_kinds() -> None:
    def flat(ms: float) -> Price:
        return Price((1.0,), (ms,), (ms,), (ms,))

    prices = {frozenset("a"): flat(1.0), frozenset("b"): flat(2.0), frozenset("ab"): flat(10.0)}
    prices[frozenset("c")] = flat(20.0)
    assert price_of_step(prices, frozenset("ab"), 5)[0] == 10.0
    assert price_of_step(prices, frozenset("abc"), 5)[0] == 30.0
    assert price_of_step({frozenset("abc"): flat(9.0)}, frozenset("ab"), 5)[0] == 0.0


def test_step_costs_its_line_plus_state_but_at_least_its_price() -> None:
    known = [RunCost(RunKind.MAINTAIN, rows, 0, 100.0) for rows in (1, 2, 3)]
    for more, ms, expected in [(30.0, 5.0, 0.13), (-60.0, 5.0, 0.04), (-99.0, 5.0, 0.005)]:
        costs = StepCosts.of(known, {frozenset("a"): Price((1.0,), (ms,), (more,), (0.0,))})
        assert costs.step(frozenset("a"), 2, 0).seconds == pytest.approx(expected)
    unknown = StepCosts.of([], {frozenset("a"): Price((1.0,), (7.0,), (2.0,), (0.0,))})
    assert unknown.step(frozenset("a"), 2, 0).seconds == pytest.approx(0.007)
    assert unknown.step(frozenset("b"), 2, 0).seconds == UNKNOWN_S
    assert not unknown.is_known
