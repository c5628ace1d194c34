"""Sides and groups over other joins are left out of state where a budget has no room for them.

Sketches stay those of all state kept, through changes and conversions both ways; what no key
narrows is told as rebuilt.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.app.maintaining.keeping.stored_pieces import assert_alike
from tests.behaviour.typed_joins import OTHERS, change, write_workload
from tests.support.run_cli import Cli

REBUILT = {"padded", "groups", "merged", "left"}
"""Queries in which no key narrows a piece that can be left out."""


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    asked = [(name, sql, "auto") for name, sql in OTHERS.items()]
    pinned = [(f"{name}_kept", sql, "index") for name, sql in OTHERS.items()]
    return Cli(capsys, write_workload(tmp_path, [*asked, *pinned]))


def changed(cli: Cli, folder: Path, rng: random.Random, turn: int, *flags: str) -> None:
    change(folder, rng, turn)
    assert {result["action"] for result in cli.good("maintain", *flags).results} == {"exact"}
    assert_alike(folder, OTHERS)


def modes(cli: Cli) -> dict[str, set[str]]:
    results = cli.good("explain", *(f"--query={name}" for name in OTHERS)).results
    return {one["query"]: {x["mode"] for x in (*one["joins"], *one["groups"])} for one in results}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("turns", "each"), [(2, 1), pytest.param(4, 2, marks=pytest.mark.long)], ids=["few", "many"]
)
def test_sketches_stay_those_of_all_state_kept(
    cli: Cli, tmp_path: Path, turns: int, each: int
) -> None:
    cli.good("capture", "--disk", "1GB")
    assert all(result == {"kept"} for result in modes(cli).values())
    free = cli.workload.read_text()
    least = free.replace("join: auto}", "join: auto, state: least}")
    assert least != free
    rng = random.Random(5)
    for turn in range(turns):
        cli.workload.write_text(
            least if turn % 2 == 0 else free.replace("auto}", "auto, state: keep}")
        )
        changed(cli, tmp_path, rng, each * turn, "--disk", "1GB")
        result = modes(cli)
        if turn % 2 == 0:
            assert {name for name, each in result.items() if "rebuilt" in each} == REBUILT
            assert all(each & {"read", "rebuilt"} for each in result.values()), result
        else:
            assert all(each == {"kept"} for each in result.values()), result
        for more in range(1, each):
            changed(cli, tmp_path, rng, 2 * turn + more, "--disk", "1GB")


@pytest.mark.slow
def test_a_plan_tells_what_is_rebuilt(cli: Cli, tmp_path: Path) -> None:
    asked = [f"--query={name}" for name in ("merged", "groups", "own")]
    cli.good("capture", "--disk", "0", *asked)
    change(tmp_path, random.Random(3), 1)
    plans = cli.good("plan", "--disk", "0", *asked).results
    pieces = [piece for one in plans for piece in one["state"]]
    assert {"read", "rebuilt"} <= {piece["mode"] for piece in pieces}
    reasons = [piece["reason"] for piece in pieces if piece["mode"] == "rebuilt"]
    assert any("because it is rebuilt" in reason for reason in reasons), reasons
