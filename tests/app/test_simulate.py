"""`impctl simulate` on real tables: against real runs, in other settings, and nothing written."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable, write_deltalake

from impctl import stopwatch
from impctl.service.budget.bounds import Bound
from impctl.service.context import OwnSession
from impctl.service.schedule.simulate import Choice, Pieces
from impctl.store.store import Store
from tests.behaviour.typed_joins import QUERIES, some, write_workload
from tests.support.commit_times import set_time
from tests.support.made_once import MadeOnce
from tests.support.run_cli import Cli

NAMES = ("l", "s", "two")


START = 1_790_000_000.0


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
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
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
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
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
def followed(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    made_once: MadeOnce,
    wall: Wall,
) -> Cli:
    """Captured after a commit, and maintained three seconds after each of twelve others, a minute
    apart."""

    def follow(folder: Path) -> None:
        rng, cli = random.Random(5), Cli(capsys, write_three(folder))
        for table in ("t", "u"):
            wall.stamp(folder, table)
        wall.now += 30.0
        wall.commit(folder, "t", some(rng, 5, "x"))
        wall.now += 30.0
        cli.good("capture")
        for turn in range(12):
            wall.now += 60.0
            wall.commit(folder, "t", some(rng, rng.randrange(1, 9), "x"))
            if turn % 3 == 2:
                wall.commit(folder, "u", some(rng, 2, "y"))
            wall.now += 3.0
            cli.good("maintain")
            taking(folder, rng)

    monkeypatch.setattr(OwnSession, "open", NO_SPARK)
    folder = made_once.folder("followed", follow)
    wall.now = START + 60.0 + 12 * 63.0 + 30.0
    return Cli(capsys, folder / "w.yaml")


def simulated(cli: Cli, *words: str) -> tuple[dict[str, Any], list[str]]:
    ran = cli.good("simulate", *words)
    (result,) = ran.results
    return result, ran.document["warnings"]


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_the_present_setting_is_what_was_recorded(followed: Cli) -> None:
    result, _ = simulated(followed, "--interval", "6s")
    recorded, (present,) = result["recorded"], result["settings"]
    # What came before the capture is replayed, but nothing to compare.
    assert recorded["runs"] == recorded["model_runs"] == present["runs"] - 1 == 12
    assert recorded["steps"] == recorded["model_steps"] == present["steps"] - 3 == 36
    assert (recorded["runs_off"], recorded["steps_off"]) == (0.0, 0.0)
    assert abs(recorded["work_off"]) < 0.3
    assert recorded["work_off"] == pytest.approx(
        recorded["model_work_ms"] / recorded["work_ms"] - 1
    )
    assert result["costs_by"] == dict.fromkeys(NAMES, "runs")
    assert result["commits"] == {"t": 13, "u": 4}
    assert (present["late"], present["conversions"], present["reads"]) == (0, 0, 0.0)
    assert 0 < present["age_s"] <= present["age_99_s"] <= present["age_worst_s"] < 6 + 2


@pytest.mark.slow
def test_a_budget_reads_and_a_bound_runs_less(followed: Cli) -> None:
    words = ("--disk", "0,all", "--trigger", "commit", "--trigger", "fresh_within: 4m")
    result, _ = simulated(followed, *words)
    match = {one["setting"]: one for one in result["settings"]}
    assert list(match) == [
        "as it is",
        *("0 B, commit", "0 B, fresh_within 4m"),
        *("all kept, commit", "all kept, fresh_within 4m"),
    ]
    as_it_is, kept, least = match["as it is"], match["all kept, commit"], match["0 B, commit"]
    same = ("runs", "steps", "work_ms", "age_s", "state_bytes", "conversions", "reads")
    assert [as_it_is[name] for name in same] == [kept[name] for name in same]
    assert least["state_bytes"] < kept["state_bytes"]
    assert least["over_budget"]
    assert not kept["over_budget"]
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
    before = contents(followed.workload.parent)
    words = ("simulate", "--disk", "0,all", "--trigger", "every: 2m", "--since", "8m")
    first, second = followed.good(*words), followed.good(*words)
    assert contents(followed.workload.parent) == before
    assert first.document == second.document
    assert first.results[0]["commits"] == {"t": 8, "u": 3}


def test_the_file_says_what_is_present(followed: Cli) -> None:
    text = followed.workload.read_text()
    head = 'budget: {disk: 0}\ndefaults: {trigger: "use"}\n'
    followed.workload.write_text(text.replace("queries:", f"{head}queries:"))
    result, _ = simulated(followed, "--query", "l", "--trigger", "{every: 5m, rows: 1000}")
    present, other = result["settings"]
    assert (present["runs"], present["age_s"], present["disk_bytes"]) == (0, None, 0)
    assert present["age_worst_s"] == pytest.approx(30 + 12 * 63 + 30, abs=1)
    assert other["setting"] == "0 B, rows 1000, every 5m"
    assert present["conversions"] == other["conversions"] == 1
    assert result["costs_by"] == {"l": "runs"}


def test_the_variable_holds_for_what_is_present(
    followed: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMPCTL_DISK", "0")
    result, _ = simulated(followed, "--trigger", "commit")
    present, other = result["settings"]
    assert present["conversions"] == 3
    assert {**other, "setting": "", "present": True, "trigger": None} == {**present, "setting": ""}


def test_with_nothing_to_replay_it_says_what_to_do(cli: Cli, tmp_path: Path) -> None:
    ran = cli("simulate")
    assert ran.refusal == (2, "nothing_to_replay")
    assert "impctl capture" in ran.error["hint"]
    assert not (tmp_path / ".impctl").exists()
    cli.good("capture", "--query", "l")
    ran = cli("simulate")
    assert ran.refusal == (2, "nothing_to_replay")
    assert "--since" in ran.error["hint"]


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
def test_what_makes_no_sense_is_refused(cli: Cli, words: tuple[str, ...], said: str) -> None:
    ran = cli("simulate", *words)
    assert ran.refusal == (2, "usage")
    assert said in ran.error["message"]
    assert ran.error["hint"]


def test_what_is_read_now_is_what_other_budgets_are_held_against(
    cli: Cli, tmp_path: Path, wall: Wall
) -> None:
    cli.good("capture", "--disk", "0")
    rng = random.Random(9)
    for _ in range(4):
        wall.now += 60.0
        wall.commit(tmp_path, "t", some(rng, 3, "x"))
        cli.good("maintain")
        taking(tmp_path, rng)
    result, _ = simulated(cli, "--disk", "0,all")
    present, least, kept = result["settings"]
    same = ("runs", "steps", "work_ms", "state_bytes", "reads", "conversions")
    assert [present[name] for name in same] == [least[name] for name in same]
    assert present["reads"] > kept["reads"] == 0
    assert (present["conversions"], kept["conversions"]) == (0, 3)
    assert kept["work_ms"] < present["work_ms"]
    assert kept["state_bytes"] > present["state_bytes"]


def test_a_choice_goes_by_the_bounds_of_the_setting(
    followed: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int | None, dict[str, float]]] = []
    within = Pieces.within

    def noted(self: Pieces, budget: int | None, bounds: Mapping[str, Bound]) -> Choice:
        asked.append((budget, {name: bound.ms for name, bound in bounds.items()}))
        return within(self, budget, bounds)

    monkeypatch.setattr(Pieces, "within", noted)
    words = ("--disk", "0", "--trigger", "commit", "--trigger", "fresh_within: 4m")
    simulated(followed, *words, "--query", "l", "--query", "s")
    assert asked == [(0, {}), (0, {"l": 240_000.0, "s": 240_000.0})]
    asked.clear()
    text = followed.workload.read_text()
    followed.workload.write_text(f"defaults: {{trigger: {{fresh_within: 1m}}}}\n{text}")
    simulated(followed, "--disk", "0", "--query", "l")
    assert asked == [(0, {"l": 60_000.0})]
