"""Sides that may not fit into the memory there is are read; states that do not fit are dropped."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from impctl.errors import WorkloadError
from impctl.service import kept_states
from impctl.service.context import SilentReporter
from impctl.service.kept_states import KeptStates
from impctl.service.memory_limit import largest_side, machine_memory, memory_of
from impctl.service.schedule import daemon as follow_case
from impctl.service.settings import FollowRequest, Settings
from impctl.workload.load import load_workload
from tests.app.maintaining.keeping.stored_pieces import fragments, read_pieces
from tests.behaviour.typed_joins import QUERIES, change, write_workload
from tests.support.kept_workload import stored
from tests.support.run_cli import Cli


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    asked = [(name, QUERIES["two"], join) for name, join in (("two", "auto"), ("twin", "index"))]
    return Cli(capsys, write_workload(tmp_path, asked))


def test_a_side_that_may_not_fit_is_read(cli: Cli, tmp_path: Path) -> None:
    text = cli.workload.read_text()
    cli.workload.write_text(text + "budget: {memory: 50MB, disk: 1GB}\n")
    cli.good("capture")
    assert len(read_pieces(tmp_path, "two")) == 2
    # What the workload pins is kept all the same, and no choice under a budget builds the other.
    assert not read_pieces(tmp_path, "twin")
    reasons = stored(tmp_path, "two").state_meta["side_reasons"]
    of_sides = {reasons[side] for side in read_pieces(tmp_path, "two")}
    assert of_sides == {"building it may need more memory than is available"}
    rng = random.Random(1)
    for turn in range(2):
        change(tmp_path, rng, turn)
        cli.good("maintain")
        assert fragments(tmp_path, "two") == fragments(tmp_path, "twin")
    assert len(read_pieces(tmp_path, "two")) == 2
    # A flag wins over the file.
    cli.workload.write_text(text + "budget: {memory: 50MB}\n")
    cli.good("capture", "--memory", "1GB")
    assert not read_pieces(tmp_path, "two")


def test_what_is_no_size_is_refused_with_its_place(cli: Cli) -> None:
    """Memory may be a share of the machine's, too."""
    text = cli.workload.read_text()
    for name, right, wrong in (
        ("disk", ("0", "1GB"), ("1XB", "-1", "many", "1.5.2GB", "9" * 400 + "TB", "25%")),
        ("memory", ("2GB", "25%", "100 %", "1"), ("0", "0%", "101%", "-5%", "1XB", "25%%")),
    ):
        for given in right:
            cli.workload.write_text(f"{text}budget: {{{name}: '{given}'}}\n")
            load_workload(cli.workload, {})
        for given in wrong:
            cli.workload.write_text(f"{text}budget: {{{name}: '{given}'}}\n")
            with pytest.raises(WorkloadError) as caught:
                load_workload(cli.workload, {})
            (problem,) = caught.value.problems
            assert f"`budget.{name}` must be a size" in problem.message
            assert problem.location is not None
            assert problem.location.line == text.count("\n") + 1
    cli.workload.write_text(text)
    assert cli("maintain", "--disk", "many").code == 2


def test_the_run_comes_before_the_file(cli: Cli) -> None:
    text = cli.workload.read_text()
    plain = load_workload(cli.workload, {})
    assert memory_of(Settings(cli.workload), plain) is None
    cli.workload.write_text(text + "budget: {memory: 25%}\n")
    said = load_workload(cli.workload, {})
    assert memory_of(Settings(cli.workload, memory=7), said) == 7
    whole = machine_memory()
    assert whole is not None
    assert memory_of(Settings(cli.workload), said) == whole // 4


def test_what_fits_takes_no_more_than_there_is() -> None:
    assert largest_side(None) is None
    for memory in (0, 1, 49_999_999, 50_000_000):
        assert largest_side(memory) == 0
    for memory in (50_000_004, 10**9, 10**12):
        result = largest_side(memory)
        assert result is not None
        assert memory - 4 <= 50_000_000 + 4 * result <= memory


def kept_after(
    monkeypatch: pytest.MonkeyPatch, over: int, sizes: dict[str, int], order: str
) -> list[str]:
    """The queries whose states are kept after these steps, the last of which is over by so much."""
    monkeypatch.setattr(kept_states, "_forms", lambda *_: ())
    held = [500] * (len(order) - 1) + [500 + over]
    kept = KeptStates(memory=500, held=lambda: held.pop(0))
    for name in order:
        state = SimpleNamespace(state_bytes=partial(sizes.get, name))
        taken: Any = SimpleNamespace(stored=SimpleNamespace(query=name, pins=()), state=state)
        desk: Any = SimpleNamespace(tables=None)
        kept.keep(desk, taken)
    return sorted(kept._kept)


def test_states_that_take_most_for_their_uses_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"a": 100, "b": 60, "c": 10}
    # Used once each, the largest goes; used twice as often as its neighbour, that one does.
    assert kept_after(monkeypatch, 0, sizes, "abc") == ["a", "b", "c"]
    assert kept_after(monkeypatch, 1, sizes, "abc") == ["b", "c"]
    assert kept_after(monkeypatch, 1, sizes, "abac") == ["a", "c"]
    assert kept_after(monkeypatch, 100, sizes, "abc") == ["b", "c"]
    assert kept_after(monkeypatch, 101, sizes, "abc") == ["c"]
    assert kept_after(monkeypatch, 10**9, sizes, "abc") == []
    assert kept_after(monkeypatch, -1, sizes, "abc") == ["a", "b", "c"]


def test_without_a_bound_nothing_is_measured() -> None:
    kept = KeptStates(held=Mock(side_effect=AssertionError("asked for what the process holds")))
    kept._drop_to_memory()


def test_a_process_that_follows_has_the_bound_of_its_run(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Told(Exception):
        """What the states are bounded by."""

    def states(*, memory: int | None) -> KeptStates:
        raise Told(memory)

    monkeypatch.setattr(follow_case, "KeptStates", states)
    nothing: Any = None
    for settings, memory in ((Settings(cli.workload, memory=7), 7), (Settings(cli.workload), None)):
        with pytest.raises(Told) as told:
            follow_case.follow(
                settings,
                None,
                FollowRequest(),
                batch_rows=None,
                reporter=SilentReporter(),
                stop=nothing,
                show=nothing,
            )
        assert told.value.args == (memory,)
