"""`state: keep` and `state: least` hold whatever the budget, and cost a query no capture."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from impctl.app.maintaining.keeping.bounds import BOUND_IMPOSSIBLE
from tests.app.maintaining.keeping.stored_pieces import assert_alike, read_pieces, say
from tests.behaviour.typed_joins import QUERIES, change, write_workload
from tests.support.made_once import MadeOnce
from tests.support.run_cli import Cli


def write_pinned(folder: Path) -> Path:
    asked = [
        ("kept", QUERIES["two"], "auto, state: keep"),
        ("least", QUERIES["two"], "auto, state: least"),
        ("free", QUERIES["two"], "auto"),
        ("twin", QUERIES["two"], "index"),
    ]
    return write_workload(folder, asked)


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys, write_pinned(tmp_path))


@pytest.fixture
def captured(capsys: pytest.CaptureFixture[str], made_once: MadeOnce) -> Cli:
    """The same, captured without a budget."""
    made = made_once.folder("pinned", lambda to: Cli(capsys, write_pinned(to)).good("capture"))
    return Cli(capsys, made / "w.yaml")


def how_many(folder: Path, *names: str) -> tuple[int, ...]:
    """How many of their two sides and one grouping these queries read."""
    return tuple(len(read_pieces(folder, name)) for name in names)


@pytest.mark.slow
def test_the_word_of_the_file_holds_with_and_without_a_budget(captured: Cli) -> None:
    folder = captured.workload.parent
    assert how_many(folder, "kept", "least") == (0, 3)
    rng = random.Random(1)
    for turn, (words, free) in enumerate((([], 0), (["--disk", "0"], 3), (["--disk", "1GB"], 0))):
        change(folder, rng, turn)
        ran = captured.good("maintain", *words)
        assert {result["action"] for result in ran.results} == {"exact"}
        assert how_many(folder, "kept", "least") == (0, 3)
        if words != ["--disk", "1GB"]:
            assert how_many(folder, "free") == (free,)
        assert_alike(folder, ("kept", "least", "free"), "twin")


def test_what_is_to_be_kept_is_built_by_the_capture(cli: Cli, tmp_path: Path) -> None:
    cli.good("capture", "--disk", "0", "--query", "kept", "--query", "least")
    assert how_many(tmp_path, "kept", "least") == (0, 3)
    for name in ("kept", "least"):
        (entry,) = cli.good("status", "--query", name).results
        assert [run["action"] for run in entry["runs"]] == ["capture"], "and not converted after it"


@pytest.mark.slow
def test_another_word_is_carried_out_by_the_next_run_under_a_budget(captured: Cli) -> None:
    """Without one it waits for a capture."""
    folder = captured.workload.parent
    say(captured, "state: least", "state: keep")
    captured.good("maintain")
    assert how_many(folder, "least") == (3,)
    ran = captured.good("maintain", "--disk", "1GB")
    assert {result["action"] for result in ran.results} == {"none"}, "no capture is asked for"
    assert how_many(folder, "least") == (0,)
    say(captured, "state: keep", "state: least")
    captured.good("maintain", "--disk", "1GB")
    assert how_many(folder, "kept", "least") == (3, 3)
    change(folder, random.Random(1), 1)
    captured.good("maintain")
    assert_alike(folder, ("kept", "least", "free"), "twin")
    say(captured, "state: least", "state: keep")
    captured.good("capture", "--query", "least")
    assert how_many(folder, "least") == (0,)


@pytest.mark.slow
def test_a_bound_that_no_state_within_the_budget_holds_is_told(cli: Cli, tmp_path: Path) -> None:
    coming = "changes: {every: 1h, rows: 10, deletes: 50%}"
    say(cli, "t: {path: t}", f"t: {{path: t, {coming}}}")
    say(cli, "join: auto}", "join: auto, trigger: {fresh_within: 2ms}}")
    told = cli.good("capture", "--disk", "0").document["warnings"]
    (said,) = [one for one in told if f"[{BOUND_IMPOSSIBLE}]" in one]
    assert said in cli.good("plan", "--disk", "0").document["warnings"]
    assert said.startswith("query `free` may miss fresh_within 2ms: when ")
    assert "of state for all queries it would take" in said
    # Too seldom for it to pay, and yet it is kept again for the bound.
    say(cli, "every: 1h", "every: 10d")
    say(cli, "u: {path: u}", "u: {path: u, changes: {every: 10d, rows: 10, deletes: 50%}}")
    free = cli.good("maintain", "--disk", "1GB").document["warnings"]
    assert not any(BOUND_IMPOSSIBLE in one for one in free)
    assert how_many(tmp_path, "free") == (0,)


@pytest.mark.slow
def test_without_a_bound_what_does_not_pay_stays(cli: Cli, tmp_path: Path) -> None:
    for name in ("t", "u"):
        coming = "changes: {every: 10d, rows: 10, deletes: 50%}"
        say(cli, f"{name}: {{path: {name}}}", f"{name}: {{path: {name}, {coming}}}")
    cli.good("capture", "--disk", "0", "--query", "free")
    cli.good("maintain", "--disk", "1GB", "--query", "free")
    assert how_many(tmp_path, "free") == (3,)
