"""`maintain(due=True)`, `maintain(point=...)`, `plan` and `simulate` from Python: what the command
line says, as values, and its errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import impctl
from impctl.cli.output.json import to_json
from impctl.errors import (
    ImpctlError,
    ImpctlWarning,
    QueriesFailedError,
    RecaptureNeededError,
    UsageError,
)
from tests.api.conftest import write_folder
from tests.support.made_once import MadeOnce
from tests.support.refused import refused
from tests.support.run_cli import Cli
from tests.support.small_workload import ROWS

TRIGGERS = {
    "commit": "commit",
    "bound": "{fresh_within: 1h}",
    "five": "{rows: 5}",
    "nightly": "{point: nightly}",
    "night_too": "{point: nightly, cheap: true}",
    "noon": "{point: noon}",
    "used": "use",
}


@pytest.fixture
def timed(made_once: MadeOnce) -> Path:
    """The workload with a query per trigger, captured but for those of `q`, `many` and `none`."""
    return made_once.folder("triggers", capture) / "w.yaml"


def capture(folder: Path) -> None:
    write_folder(folder)
    file = folder / "w.yaml"
    head, _, tail = file.read_text().partition("store: .impctl")
    queries = "".join(
        f'  {name}: {{sql: "SELECT g, SUM(x) s FROM t GROUP BY g HAVING SUM(x) > {20 + at}", '
        f"sketch: {{t: g}}, policy: incremental, trigger: {said}}}\n"
        for at, (name, said) in enumerate(TRIGGERS.items())
    )
    file.write_text(f"{head}{queries}store: .impctl{tail}")
    with impctl.open(file) as opened:
        opened.capture(*TRIGGERS)


@pytest.fixture
def opened(timed: Path) -> Iterator[impctl.OpenWorkload]:
    with impctl.open(timed) as result:
        yield result


@pytest.fixture
def cli(timed: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys, timed)


def append(file: Path, rows: int) -> None:
    write_deltalake(str(file.parent / "t"), ROWS.slice(0, rows), mode="append")


def at(monkeypatch: pytest.MonkeyPatch, opened: impctl.OpenWorkload, seconds: float) -> None:
    """Have the clock of later calls stand so long after the latest commit."""
    (due,) = opened.plan("bound", due=True)
    assert due.oldest_at is not None
    moment = due.oldest_at + timedelta(seconds=seconds)
    monkeypatch.setenv("IMPCTL_NOW", moment.strftime("%Y-%m-%dT%H:%M:%S+00:00"))


def done(results: tuple[impctl.MaintainResult, ...]) -> set[str]:
    return {result.query for result in results if result.action != "none"}


def test_only_what_is_due_is_maintained(opened: impctl.OpenWorkload, timed: Path) -> None:
    append(timed, 3)
    maintain = opened.maintain(*TRIGGERS, due=True)
    assert done(maintain) == {"commit"}
    assert [result.query for result in maintain] == list(TRIGGERS)
    codes = {result.query: result.reason_code for result in maintain if result.query != "commit"}
    assert set(codes.values()) == {"not_due"}
    append(timed, 2)
    assert done(opened.maintain("five", "bound", due=True)) == {"five"}
    # Looked at again after two hours only, its bound is over by then.
    with pytest.warns(ImpctlWarning, match="fresh_impossible"):
        assert done(opened.maintain("bound", due=True, interval="2h", dry_run=True)) == {"bound"}
    with pytest.warns(ImpctlWarning, match="fresh_impossible"):
        assert done(opened.maintain("bound", due=True, interval=7_200)) == {"bound"}
    assert done(opened.maintain("five", "bound", due=True)) == set()


@pytest.mark.slow
def test_a_point_takes_its_queries_alone(opened: impctl.OpenWorkload, timed: Path) -> None:
    append(timed, 1)
    maintain = opened.maintain(point="nightly")
    assert [result.query for result in maintain] == ["nightly", "night_too"]
    assert done(maintain) == {"nightly", "night_too"}
    assert done(opened.maintain(point="nightly")) == set()
    assert done(opened.maintain(*TRIGGERS)) == set(TRIGGERS) - {"nightly", "night_too"}


@pytest.mark.slow
def test_values_are_those_of_the_command_line(
    opened: impctl.OpenWorkload, timed: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(timed, 5)
    at(monkeypatch, opened, 30.0)
    due = opened.plan(*TRIGGERS, due=True)
    assert {entry.query for entry in due if entry.due} == {"commit", "five"}
    words = [word for name in TRIGGERS for word in ("--query", name)]
    assert to_json(due) == cli.good("plan", "--due", *words).results
    late = opened.plan("bound", due=True, interval="1h")
    assert to_json(late) == cli.good("plan", "--due", "--interval", "1h", *words[2:4]).results
    assert late[0].due
    # Forecasts and dues of an ordinary plan are the same, too.
    plans = opened.plan(*TRIGGERS)
    assert to_json(plans) == cli.good("plan", *words).results
    assert {plan.query for plan in plans if plan.action == "exact"} == set(TRIGGERS)


def test_a_plan_is_strict_where_it_is_asked_to_be(opened: impctl.OpenWorkload, timed: Path) -> None:
    text = timed.read_text()
    more = '  no_sketch: {sql: "SELECT * FROM t TABLESAMPLE (5 ROWS)"}\nstore: .impctl'
    timed.write_text(text.replace("store: .impctl", more))
    (result,) = opened.plan("no_sketch")
    assert (result.action, result.versions) == ("refused", {})
    with refused(ImpctlError, result.reason_code):
        opened.plan("no_sketch", strict=True)


def simulated(simulate_result: impctl.SimulateResult) -> Any:
    """As JSON, without what goes by the time of the call."""
    told: Any = to_json(simulate_result)
    return {name: value for name, value in told.items() if name != "until"}


def test_simulated_settings_are_those_of_the_command_line(
    opened: impctl.OpenWorkload, timed: Path, cli: Cli
) -> None:
    append(timed, 3)
    with pytest.warns(ImpctlWarning, match="figures are rough"):
        simulate = opened.simulate(
            "five", disk=["0", "all"], trigger="fresh_within: 10m", interval=30
        )
    assert [one.trigger for one in simulate.settings] == [None, *["fresh_within 10m"] * 2]
    assert simulate.look_s == 30.0
    words = ["--query", "five", "--disk", "0,all"]
    words += ["--trigger", "fresh_within: 10m", "--interval", "30s"]
    told = cli.one("simulate", *words)
    by_time = {"until", "settings", "recorded"}
    same = {name: value for name, value in told.items() if name not in by_time}
    assert {name: simulated(simulate)[name] for name in same} == same
    assert [one["setting"] for one in told["settings"]] == [
        one.setting for one in simulate.settings
    ]
    with pytest.warns(ImpctlWarning) as warned:
        short = opened.simulate("five", since="30d")
    assert any("figures are rough" in str(one.message) for one in warned)
    assert short.rows == 3
    assert warned[0].filename == __file__


WRONG: dict[str, tuple[Callable[[impctl.OpenWorkload], object], str, list[str]]] = {
    "two": (
        lambda o: o.maintain(due=True, point="noon"),
        "maintain",
        ["--due", "--point", "noon"],
    ),
    "named": (lambda o: o.maintain("q", point="noon"), "maintain", ["--point=noon", "--query=q"]),
    "alone": (lambda o: o.maintain(interval="1m"), "maintain", ["--interval", "1m"]),
    "unknown": (lambda o: o.maintain(point="nigthly"), "maintain", ["--point", "nigthly"]),
    "look": (lambda o: o.plan(interval=60), "plan", ["--interval", "60"]),  # type: ignore[call-overload]
    "query": (lambda o: o.plan("qq", due=True), "plan", ["--due", "--query", "qq"]),
    "trigger": (
        lambda o: o.simulate(trigger="fresh_within: 10"),
        "simulate",
        ["--trigger", "fresh_within: 10"],
    ),
    "disk": (lambda o: o.simulate(disk=["1MB", "1XB"]), "simulate", ["--disk", "1MB,1XB"]),
    "nothing": (lambda o: o.simulate("q"), "simulate", ["--query", "q"]),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_errors_are_those_of_the_command_line(
    opened: impctl.OpenWorkload, cli: Cli, name: str
) -> None:
    call, command, words = WRONG[name]
    ran = cli(command, *words)
    with pytest.raises(ImpctlError) as caught:
        call(opened)
    error = caught.value
    assert (error.code, error.message, error.hint) == (
        ran.error["code"],
        ran.error["message"],
        ran.error["hint"],
    )
    assert to_json(error.location) == ran.error.get("location")
    assert ran.code == error.exit_code == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda o: o.maintain(due=True, interval="soon"),
        lambda o: o.maintain(due=True, interval=-1),
        lambda o: o.plan(due=True, interval=float("nan")),
        lambda o: o.simulate(since=True),
        lambda o: o.simulate(trigger=[{"rows": 5}]),
        lambda o: o.simulate(disk=5),
    ],
)
def test_what_is_no_duration_or_text_is_refused(
    opened: impctl.OpenWorkload, call: Callable[[Any], object]
) -> None:
    with pytest.raises(UsageError, match="Argument `") as caught:
        call(opened)
    assert caught.value.hint


def test_one_query_of_a_point_raises_its_own_error(
    opened: impctl.OpenWorkload, timed: Path
) -> None:
    write_deltalake(
        str(timed.parent / "t"),
        pa.table({"g": [1], "note": ["z"]}, schema=ROWS.schema.remove(1)),
        mode="overwrite",
        schema_mode="overwrite",
    )
    with pytest.raises(ImpctlError) as alone:
        opened.maintain(point="noon")
    assert not isinstance(alone.value, QueriesFailedError)
    with pytest.raises(QueriesFailedError, match="2 of 2 queries") as several:
        opened.maintain(point="nightly")
    assert set(several.value.failures) == {"nightly", "night_too"}
    with pytest.raises(RecaptureNeededError):
        opened.maintain("q")
