"""`impctl simulate` against real runs: commits made ready, settings, late rows, kept pieces."""

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


class Wall:
    """What the machine's clock says; commits say so, too."""

    def __init__(self) -> None:
        self.now = START

    def commit(self, folder: Path, table: str, rows: Any) -> None:
        write_deltalake(str(folder / table), rows, mode="append")
        self.stamp(folder, table)

    def stamp(self, folder: Path, table: str) -> None:
        """Have the table's latest commit say this time."""
        set_time(folder / table, DeltaTable(str(folder / table)).version(), self.now)


@pytest.fixture
def wall(monkeypatch: MonkeyPatch) -> Wall:
    result = Wall()
    monkeypatch.setattr(time, "time", lambda: result.now)
    # What was measured is compared below: each look at a stopwatch takes a millisecond.
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


def taking(folder: Path, rng: random.Random) -> None:
    """Have the latest step of each query have taken a time of its rows, about as long as it did."""
    with Store.open(folder / ".impctl") as store, store.lock(1.0, "test"):
        for name in NAMES:
            (record,), costs = store.history(name, 1), store.costs(name)
            if record.action == "exact":
                took = (20.0 + 3.0 * record.changes) * rng.uniform(0.8, 1.25)
                cost = replace(costs[0], elapsed_ms=took)
                store.amend_record(name, replace(record, elapsed_ms=took, cost=cost))


@pytest.fixture
def followed(capsys: Capsys, monkeypatch: MonkeyPatch, made_once: MadeOnce, wall: Wall) -> Cli:
    """Captured after a commit, and maintained three seconds after each of six others, a minute
    apart."""

    def follow(folder: Path) -> None:
        rng, cli = random.Random(5), Cli(capsys, write_three(folder))
        for table in ("t", "u"):
            wall.stamp(folder, table)
        wall.now += 30.0
        wall.commit(folder, "t", some(rng, 5, "x"))
        wall.now += 30.0
        cli.good("capture")
        for turn in range(6):
            wall.now += 60.0
            wall.commit(folder, "t", some(rng, rng.randrange(1, 9), "x"))
            if turn % 3 == 2:
                wall.commit(folder, "u", some(rng, 2, "y"))
            wall.now += 3.0
            cli.good("maintain")
            taking(folder, rng)

    monkeypatch.setattr(OwnSession, "open", NO_SPARK)
    folder = made_once.folder("followed", follow)
    wall.now = START + 60.0 + 6 * 63.0 + 30.0
    return Cli(capsys, folder / "w.yaml")


def simulated(cli: Cli, *words: str) -> dict[str, Any]:
    return cli.one("simulate", *words)


def those_of(setting: dict[str, Any], *names: str) -> list[Any]:
    return [setting[name] for name in names]


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_the_present_setting_is_what_was_recorded(followed: Cli) -> None:
    result = simulated(followed, "--interval", "6s")
    recorded, (present,) = result["recorded"], result["settings"]
    # What came before the capture is replayed, but nothing to compare.
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
def test_a_budget_reads_and_a_bound_runs_less(followed: Cli) -> None:
    words = ("--disk", "0,all", "--trigger", "commit", "--trigger", "fresh_within: 4m")
    result = simulated(followed, *words)
    match = {one["setting"]: one for one in result["settings"]}
    assert list(match) == [
        "as it is",
        *("0 B, commit", "0 B, fresh_within 4m"),
        *("all kept, commit", "all kept, fresh_within 4m"),
    ]
    as_it_is, kept, least = match["as it is"], match["all kept, commit"], match["0 B, commit"]
    same = ("runs", "steps", "work_ms", "age_s", "state_bytes", "conversions", "reads")
    assert those_of(as_it_is, *same) == those_of(kept, *same)
    assert least["state_bytes"] < kept["state_bytes"]
    assert (bool(least["over_budget"]), bool(kept["over_budget"])) == (True, False)
    assert least["conversions"] == 3
    assert least["reads"] > 0
    assert least["work_ms"] > kept["work_ms"]
    for name in ("0 B", "all kept"):
        each, bound = match[f"{name}, commit"], match[f"{name}, fresh_within 4m"]
        assert bound["runs"] < each["runs"] / 2
        assert bound["work_ms"] < each["work_ms"]
        assert bound["late"] == 0
        assert each["age_worst_s"] < 10 < 200 < bound["age_s"] <= bound["age_worst_s"] <= 240


@pytest.mark.slow
def test_nothing_is_written_and_the_same_comes_again(followed: Cli) -> None:
    before = contents(followed.folder)
    words = ("simulate", "--disk", "0,all", "--trigger", "every: 2m", "--since", "3m")
    first, second = followed.good(*words), followed.good(*words)
    assert contents(followed.folder) == before
    assert first.document == second.document
    assert first.results[0]["commits"] == {"t": 3, "u": 1}


def test_the_file_says_what_is_present(followed: Cli) -> None:
    head = 'budget: {disk: 0}\ndefaults: {trigger: "use"}\n'
    followed.edit("queries:", f"{head}queries:")
    result = simulated(followed, "--query", "l", "--trigger", "{every: 5m, rows: 1000}")
    present, other = result["settings"]
    assert (present["runs"], present["age_s"], present["disk_bytes"]) == (0, None, 0)
    assert present["age_worst_s"] == pytest.approx(30 + 6 * 63 + 30, abs=1)
    assert other["setting"] == "0 B, rows 1000, every 5m"
    assert present["conversions"] == other["conversions"] == 1
    assert result["costs_by"] == {"l": "runs"}


def test_the_variable_holds_for_what_is_present(followed: Cli, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("IMPCTL_DISK", "0")
    present, other = simulated(followed, "--trigger", "commit")["settings"]
    assert present["conversions"] == 3
    assert {**other, "setting": "", "present": True, "trigger": None} == {**present, "setting": ""}


def test_with_nothing_to_replay_it_says_what_to_do(cli: Cli) -> None:
    assert not (cli.folder / ".impctl").exists()
    for hint in ("impctl capture", "--since"):
        ran = cli("simulate")
        assert ran.refusal == (2, "nothing_to_replay")
        assert hint in ran.error["hint"]
        assert (cli.folder / ".impctl").exists() is (hint == "--since")
        cli.good("capture", "--query", "l")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--disk", "much"), "--disk"),
        (("--trigger", "fresh_within: 10"), "duration such as 10m"),
        (("--trigger", "fresh_within: 10m, rows: 5"), ""),
        (("--trigger", ""), "--trigger"),
        (("--trigger", "sometimes"), "must be one of"),
    ],
)
def test_what_makes_no_sense_is_refused(cli: Cli, words: Words, said: str) -> None:
    ran = cli("simulate", *words)
    assert ran.refusal == (2, "usage")
    assert said in ran.error["message"]
    assert ran.error["hint"]


def test_other_budgets_are_compared_with_what_is_read_now(cli: Cli, wall: Wall) -> None:
    cli.good("capture", "--disk", "0")
    rng = random.Random(9)
    for _ in range(3):
        wall.now += 60.0
        wall.commit(cli.folder, "t", some(rng, 3, "x"))
        cli.good("maintain")
        taking(cli.folder, rng)
    present, least, kept = simulated(cli, "--disk", "0,all")["settings"]
    same = ("runs", "steps", "work_ms", "state_bytes", "reads", "conversions")
    assert those_of(present, *same) == those_of(least, *same)
    assert present["reads"] > kept["reads"] == 0
    assert (present["conversions"], kept["conversions"]) == (0, 3)
    assert kept["work_ms"] < present["work_ms"]
    assert kept["state_bytes"] > present["state_bytes"]


def test_a_choice_uses_the_bounds_of_the_setting(followed: Cli, monkeypatch: MonkeyPatch) -> None:
    calls = spied(monkeypatch, Pieces, "within")

    def asked() -> list[tuple[int | None, dict[str, float]]]:
        return [(budget, {n: one.ms for n, one in bounds.items()}) for _, budget, bounds in calls]

    words = ("--disk", "0", "--trigger", "commit", "--trigger", "fresh_within: 4m")
    simulated(followed, *words, "--query", "l", "--query", "s")
    assert asked() == [(0, {}), (0, {"l": 240_000.0, "s": 240_000.0})]
    calls.clear()
    text = followed.workload.read_text()
    followed.workload.write_text(f"defaults: {{trigger: {{fresh_within: 1m}}}}\n{text}")
    simulated(followed, "--disk", "0", "--query", "l")
    assert asked() == [(0, {"l": 60_000.0})]


SIZES = 6
"""Of changes, that prices are asked for."""


def pieces(
    model: StateModel, now: Modes, chance: float = 0.0, ms: float = 0.0, *, is_asked: bool = False
) -> Pieces:
    """Of one query, whose pieces take so many milliseconds each to convert; each kind of change
    comes with this chance within a day. `is_asked`: it may not be kept like this."""
    tables = {table: 0 for kind in model.kinds for table in kind.tables}
    query = cast(Any, SimpleNamespace(stored=SimpleNamespace(versions=tables)))
    takes = dict.fromkeys(PieceMode, ms)
    model = model.with_pieces(lambda piece: replace(piece, conversion=takes))
    expected = tuple(
        Expected(kind.tables, kind.rate, dict.fromkeys(kind.tables, 10.0), chance=chance)
        for kind in model.kinds
    )
    state = WeighedState({"q": query}, 0, {}, expected, {"q": model}, {"q": now})
    return Pieces(state, ({"q": model},) * SIZES, is_asked)


def test_bounds_urge_what_a_rare_change_needs() -> None:
    urged_ones = 0
    for seed in range(8):
        model = frequent_and_rare(seed)
        now = {"left": PieceMode.READ, "right": PieceMode.KEPT}
        result = pieces(model, now, 0.06)
        none = result.within(11, {})
        assert (none.conversions, none.bytes) == (0, 11)
        # Both kinds are likely, and only one of them can be held: it goes by the work.
        assert result.within(11, {"q": Bound(1.0, "fresh_within 1ms")}).conversions == 0
        frequent, rare = evaluate(model, {"left": PieceMode.READ, "right": PieceMode.READ}).per_kind
        if frequent < rare:
            # The frequent one is in time when it reads, too.
            bound = Bound(LEAST_MARGIN * (frequent + rare) / 2, "fresh_within")
            urged = result.within(11, {"q": bound})
            assert (urged.conversions, urged.bytes) == (1, 11)
            kept = evaluate(model, {"left": PieceMode.KEPT, "right": PieceMode.READ}).per_kind
            assert urged.prices["q"][frozenset("s")].ms == (kept[1],) * SIZES
            assert pieces(model, now, 0.05).within(11, {"q": bound}).conversions == 0
            urged_ones += 1
        # What bounds of one trigger urge is not told for another.
        assert result.within(11, {}) == none
    assert urged_ones > 2


@random_seeds(12, 36, 200)
def test_what_is_kept_stays_where_another_choice_does_not_pay(seed: int) -> None:
    rng = Random(seed)
    model = drawn_model(rng)
    now = {piece.name: rng.choice(piece.modes) for piece in model.pieces}
    least = sum(min(piece.sizes.values()) for piece in model.pieces)
    budget = rng.randint(least, largest(model))
    then = choose({"q": model}, budget).queries["q"].modes
    saved = per_day(model, now) - per_day(model, then)
    moved = sum(now[name] != mode for name, mode in then.items())
    is_over = model.bytes_of(now) > budget
    for days in (6.9, 7.1):
        ms = max(0.0, (days * saved - STATE.conversion_ms) / moved) if moved else 0.0
        takes = STATE.conversion_ms + ms * moved
        pays = saved > 0 and saved >= 0.2 * per_day(model, now) and takes <= 7.0 * saved
        within = pieces(model, now, ms=ms).within(budget, {})
        assert within.conversions == (1 if moved and (is_over or pays) else 0)
        assert within.bytes == model.bytes_of(then if is_over or pays else now)
        assert not within.exceeds


def test_what_may_not_stay_as_it_is_goes_whatever_it_costs() -> None:
    rng = Random(3)
    for _ in range(15):
        model = drawn_model(rng)
        now = {piece.name: rng.choice(piece.modes) for piece in model.pieces}
        then = choose({"q": model}, 10**9).queries["q"].modes
        if now == then:
            continue
        assert pieces(model, now, ms=1e12).within(10**9, {}).conversions == 0
        assert pieces(model, now, ms=1e12, is_asked=True).within(10**9, {}).conversions == 1


def appended(at: float | None, rows: int | None, size: int = 0) -> Commit:
    gone = None if rows is None else 0
    return Commit(0, at, rows, gone, 1, size, "WRITE")


def test_rows_that_a_log_does_not_tell_go_by_bytes() -> None:
    told = [appended(1, 10, 100), appended(2, 30, 300), appended(3, None, 50), appended(4, None)]
    assert [commit.rows for commit in commits_of(told, 0.0, 9.0)] == [10, 30, 5, 20]
    known = {"t": History("", 0, 0.0, (*told, appended(10, None)))}
    assert Replay(0.0, 9.0, {}, known).guessed == 2
    (commit,) = commits_of([appended(1, None, 7)], 0.0, 9.0)
    assert commit.rows == 100


def test_commits_before_and_after_are_no_part_of_it() -> None:
    told = [appended(1, 1), appended(5, 2), appended(4, 4), appended(None, 8), appended(9, 16)]
    commits = [(commit.at, commit.rows) for commit in commits_of(told, 5.0, 8.0)]
    assert commits == [(5.0, 2), (5.0, 4), (5.0, 8)]
    assert commits_of(told, 6.0, 8.0) == []


def test_commits_of_several_tables_keep_their_order() -> None:
    one = commits_of([appended(1, 1), appended(4, 2)], 0.0, 9.0)
    other = commits_of([appended(2, 4, 7), appended(4, 8)], 0.0, 9.0)
    result = CommitStream.of({"b": one, "a": other})
    assert (result.times, result.tables) == ([1, 2, 4, 4], [*"baab"])
    assert (result.rows, result.bytes) == ([0, 1, 5, 13, 15], [0, 0, 7, 7, 7])
    assert [result.until(moment) for moment in (0.9, 1, 3.9, 4)] == [0, 1, 2, 4]


def test_every_budget_by_every_trigger_and_none_twice() -> None:
    fresh, each = Trigger(fresh_within=600.0), ON_COMMIT
    several = ["500 MB, fresh_within 10m", "500 MB, commit"]
    several += ["all kept, fresh_within 10m", "all kept, commit"]
    for disk, disks, triggers, names in (
        (None, [], [], []),
        (10**9, disks_from(["500MB, all", "500MB"]), [fresh, each, fresh], several),
        (10**9, [], [fresh], ["1 GB, fresh_within 10m"]),
        (None, [0], [], ["0 B"]),
    ):
        settings = settings_of(disk, disks, triggers)
        assert [one.name for one in settings] == ["as it is", *names]
    assert settings_of(10**9, [], [])[0].disk == 10**9


def test_a_trigger_is_read_as_in_the_file() -> None:
    assert trigger_from("commit") == ON_COMMIT
    assert trigger_from("fresh_within: 10m") == Trigger(fresh_within=600.0)
    assert trigger_from("{rows: 5, every: 1h}") == Trigger(rows=5, every=3_600.0)
    with pytest.raises(UsageError) as caught:
        trigger_from("{rows: 5, evry: 1h}")
    assert str(caught.value.location) == "--trigger:1:11"
    assert "every" in (caught.value.hint or "")


def record(ended: float, took_ms: float, commit_ms: float = 0.0) -> RunRecord:
    half = {"read_ms": took_ms / 2, "engine_ms": took_ms / 2, "commit_ms": commit_ms}
    return run_record("exact", started_at=ended, elapsed_ms=took_ms + commit_ms, changes=1, **half)


@pytest.mark.parametrize(
    ("others", "pause", "count"),
    [
        pytest.param(None, 1.0, 0, id="none"),
        pytest.param([("b", 13.0, 1_000.0)], 1.2, 1, id="close together"),
        # `b` began 1.1 s after the commit of `a` was over.
        pytest.param([("b", 13.0, 1_000.0)], 1.0, 2, id="apart"),
        pytest.param([("a", 10.1, 50.0)], 1.2, 2, id="no query comes twice in a run"),
    ],
)
def test_steps_close_together_are_one_run(others: Any, pause: float, count: int) -> None:
    steps = [] if others is None else [("a", record(10.0, 500.0, 900.0))]
    steps += [(name, record(*times)) for name, *times in others or ()]
    assert runs_in(steps, pause) == count


def test_a_quantile_is_one_of_the_numbers() -> None:
    assert quantile([], 0.5) is None
    assert quantile([3.0], 0.99) == 3.0
    hundred = [float(at) for at in range(1, 101)]
    assert [quantile(hundred, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 50.0, 99.0, 100.0]


SETS = [frozenset(), frozenset("a"), frozenset("b"), frozenset("ab"), frozenset("abc")]


def runs(rng: random.Random) -> list[RunCost]:
    """Of any kind, over any tables; noisy, some with Spark."""
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
def test_lines_are_those_of_the_estimates(seed: int) -> None:
    rng = random.Random(seed)
    known = runs(rng)
    costs, size_of = StepCosts.of(known, {}), ChangeSize
    for moved in SETS[1:]:
        for rows, size in [(0, 0), (3, 100), (70_000, 10), (2, 10**8), (10**7, 10**9)]:
            words = {"has_spark": True, "table_rows": lambda: 0, "moved": sorted(moved)}
            wanted = estimated(known, RunKind.MAINTAIN, size_of(rows, size), **words).maintain_ms
            result = costs.ms(moved, rows, size)
            assert (result is None) == (wanted is None)
            if result is not None:
                assert result == pytest.approx(wanted, rel=1e-6, abs=1e-6)
    by_runs = any(run.kind is RunKind.MAINTAIN for run in known)
    assert (costs.by is CostsBy.RUNS) == by_runs
    assert (costs.by is CostsBy.PRIORS) == (costs.ms(frozenset("a"), 1, 1) is None)


def test_a_price_lies_on_the_line_between_two_sizes() -> None:
    price = Price((10.0, 20.0, 40.0), (1.0, 3.0, 7.0), (0.0, -1.0, 1.0), (0.5, 1.0, 1.0))
    of = {frozenset("a"): price}
    for table, rows, wanted in (
        *(("a", 3, (1.0, 0.0, 0.5)), ("a", 20, (3.0, -1.0, 1.0)), ("a", 30, (5.0, 0.0, 1.0))),
        *(("a", 1_000, (7.0, 1.0, 1.0)), ("b", 30, (0.0, 0.0, 0.0))),
    ):
        assert price_of_step(of, frozenset(table), rows) == wanted


def test_tables_that_come_together_by_chance_are_priced_by_the_largest_kinds() -> None:
    def flat(ms: float) -> Price:
        return Price((1.0,), (ms,), (ms,), (ms,))

    of = {frozenset("a"): flat(1.0), frozenset("b"): flat(2.0), frozenset("ab"): flat(10.0)}
    of[frozenset("c")] = flat(20.0)
    assert price_of_step(of, frozenset("ab"), 5)[0] == 10.0
    assert price_of_step(of, frozenset("abc"), 5)[0] == 30.0
    assert price_of_step({frozenset("abc"): flat(9.0)}, frozenset("ab"), 5)[0] == 0.0


def test_a_step_is_its_line_and_what_state_adds_but_no_less_than_its_price() -> None:
    known = [RunCost(RunKind.MAINTAIN, rows, 0, 100.0) for rows in (1, 2, 3)]
    for more, ms, wanted in [(30.0, 5.0, 0.13), (-60.0, 5.0, 0.04), (-99.0, 5.0, 0.005)]:
        costs = StepCosts.of(known, {frozenset("a"): Price((1.0,), (ms,), (more,), (0.0,))})
        assert costs.step(frozenset("a"), 2, 0).seconds == pytest.approx(wanted)
    unknown = StepCosts.of([], {frozenset("a"): Price((1.0,), (7.0,), (2.0,), (0.0,))})
    assert unknown.step(frozenset("a"), 2, 0).seconds == pytest.approx(0.007)
    assert unknown.step(frozenset("b"), 2, 0).seconds == UNKNOWN_S
    assert not unknown.is_known
