"""Sides and groups over other joins are left out of state where a budget has no room for them.

Sketches stay those of all state kept, through changes and conversions both ways; what no key
narrows is told as rebuilt.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from impctl.app.workbench.sessions import OwnSession
from tests.behaviour.typed_joins import OTHERS, change, write_workload
from tests.support.kept_workload import fragments_by_access, stored
from tests.support.run_cli import Cli

REBUILT = {"padded", "groups", "merged", "left"}
"""Queries in which no key narrows a piece that can be left out."""


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    def no_spark(*_: object) -> None:
        raise AssertionError("Spark was asked for")

    monkeypatch.setattr(OwnSession, "open", no_spark)
    asked = [(name, sql, "auto") for name, sql in OTHERS.items()]
    pinned = [(f"{name}_kept", sql, "index") for name, sql in OTHERS.items()]
    return Cli(capsys, write_workload(tmp_path, [*asked, *pinned]))


def changed(cli: Cli, folder: Path, rng: random.Random, turn: int, *flags: str) -> None:
    change(folder, rng, turn)
    for result in cli.good("maintain", *flags).results:
        assert result["action"] == "exact", result
    for name in OTHERS:
        one, twin = stored(folder, name), stored(folder, f"{name}_kept")
        assert one.versions == twin.versions
        mine, theirs = map(fragments_by_access, (one, twin))
        assert mine == theirs, name


def modes(cli: Cli) -> dict[str, set[str]]:
    found = cli.good("explain", *(f"--query={name}" for name in OTHERS)).results
    return {one["query"]: {x["mode"] for x in (*one["joins"], *one["groups"])} for one in found}


@pytest.mark.parametrize("turns", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_sketches_stay_those_of_all_state_kept(cli: Cli, tmp_path: Path, turns: int) -> None:
    cli.good("capture", "--disk", "1GB")
    assert all(found == {"kept"} for found in modes(cli).values())
    free = cli.workload.read_text()
    least = free.replace("join: auto}", "join: auto, state: least}")
    assert least != free
    rng = random.Random(5)
    for turn in range(turns):
        cli.workload.write_text(
            least if turn % 2 == 0 else free.replace("auto}", "auto, state: keep}")
        )
        changed(cli, tmp_path, rng, 2 * turn, "--disk", "1GB")
        found = modes(cli)
        if turn % 2 == 0:
            assert {name for name, each in found.items() if "rebuilt" in each} == REBUILT
            assert all(each & {"read", "rebuilt"} for each in found.values()), found
        else:
            assert all(each == {"kept"} for each in found.values()), found
        changed(cli, tmp_path, rng, 2 * turn + 1, "--disk", "1GB")


def test_a_plan_tells_what_is_rebuilt(cli: Cli, tmp_path: Path) -> None:
    cli.good("capture", "--disk", "0")
    change(tmp_path, random.Random(3), 1)
    found = {one["query"]: one["state"] for one in cli.good("plan", "--disk", "0").results}
    words = {piece["mode"] for name in OTHERS for piece in found[name]}
    assert {"read", "rebuilt"} <= words
    reasons = [p["reason"] for name in OTHERS for p in found[name] if p["mode"] == "rebuilt"]
    assert any("as it is rebuilt" in reason for reason in reasons), reasons
