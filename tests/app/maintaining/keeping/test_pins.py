"""`state: keep` and `state: least` hold whatever the budget, and cost a query no capture."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from impctl.app.maintaining.keeping.bounds import BOUND_IMPOSSIBLE
from impctl.app.workbench.sessions import OwnSession
from tests.behaviour.typed_joins import QUERIES, change, write_workload
from tests.support.kept_workload import stored
from tests.support.run_cli import Cli


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    def no_spark(*_: object) -> None:
        raise AssertionError("Spark was asked for")

    monkeypatch.setattr(OwnSession, "open", no_spark)
    asked = [
        ("kept", QUERIES["two"], "auto, state: keep"),
        ("least", QUERIES["two"], "auto, state: least"),
        ("free", QUERIES["two"], "auto"),
        ("twin", QUERIES["two"], "index"),
    ]
    return Cli(capsys, write_workload(tmp_path, asked))


def say(cli: Cli, before: str, after: str) -> None:
    text = cli.workload.read_text()
    assert before in text
    cli.workload.write_text(text.replace(before, after))


def read_sides(folder: Path, name: str) -> int:
    """How many of its two sides and one grouping."""
    return len(stored(folder, name).state_meta.get("from_files", []))


def fragments(folder: Path, name: str) -> dict[str, set[int]]:
    return {one.access: set(one.fragments.ids) for one in stored(folder, name).sketches}


def assert_alike(folder: Path) -> None:
    for name in ("kept", "least", "free"):
        assert stored(folder, name).versions == stored(folder, "twin").versions
        assert fragments(folder, name) == fragments(folder, "twin")


def test_the_word_of_the_file_holds_with_and_without_a_budget(cli: Cli, tmp_path: Path) -> None:
    cli.good("capture")
    assert (read_sides(tmp_path, "kept"), read_sides(tmp_path, "least")) == (0, 3)
    rng = random.Random(1)
    for turn, words in enumerate(([], ["--disk", "0"], ["--disk", "1GB"])):
        change(tmp_path, rng, turn)
        ran = cli.good("maintain", *words)
        assert {result["action"] for result in ran.results} == {"exact"}
        assert (read_sides(tmp_path, "kept"), read_sides(tmp_path, "least")) == (0, 3)
        if words == ["--disk", "0"]:
            assert read_sides(tmp_path, "free") == 3
        assert_alike(tmp_path)
    cli.good("capture", "--disk", "1GB")
    assert (read_sides(tmp_path, "kept"), read_sides(tmp_path, "least")) == (0, 3)


def test_what_is_to_be_kept_is_built_by_the_capture(cli: Cli, tmp_path: Path) -> None:
    cli.good("capture", "--disk", "0")
    assert (read_sides(tmp_path, "kept"), read_sides(tmp_path, "least")) == (0, 3)
    for name in ("kept", "least"):
        (entry,) = cli.good("status", "--query", name).results
        assert [run["action"] for run in entry["runs"]] == ["capture"], "and not converted after it"


def test_another_word_is_carried_out_by_the_next_run(cli: Cli, tmp_path: Path) -> None:
    cli.good("capture", "--disk", "1GB")
    say(cli, "state: least", "state: keep")
    ran = cli.good("maintain", "--disk", "1GB")
    assert {result["action"] for result in ran.results} == {"none"}, "no capture is asked for"
    assert read_sides(tmp_path, "least") == 0
    say(cli, "state: keep", "state: least")
    cli.good("maintain", "--disk", "1GB")
    assert (read_sides(tmp_path, "kept"), read_sides(tmp_path, "least")) == (3, 3)
    change(tmp_path, random.Random(1), 1)
    cli.good("maintain")
    assert_alike(tmp_path)


def test_without_a_budget_another_word_waits_for_a_capture(cli: Cli, tmp_path: Path) -> None:
    cli.good("capture")
    say(cli, "state: least", "state: keep")
    cli.good("maintain")
    assert read_sides(tmp_path, "least") == 3
    cli.good("capture", "--query", "least")
    assert read_sides(tmp_path, "least") == 0


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
    assert read_sides(tmp_path, "free") == 0


def test_without_a_bound_what_does_not_pay_stays(cli: Cli, tmp_path: Path) -> None:
    for name in ("t", "u"):
        coming = "changes: {every: 10d, rows: 10, deletes: 50%}"
        say(cli, f"{name}: {{path: {name}}}", f"{name}: {{path: {name}, {coming}}}")
    cli.good("capture", "--disk", "0")
    cli.good("maintain", "--disk", "1GB")
    assert read_sides(tmp_path, "free") == 3
