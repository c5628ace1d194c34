"""A choice is made anew once what it was made by has moved, and carried out where that pays."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from impctl.app.maintain import maintain
from impctl.app.maintaining.keeping import keep_to
from impctl.app.maintaining.keeping import looks as looks_room
from impctl.app.maintaining.keeping.choice import Kept
from impctl.app.maintaining.keeping.looks import Seen, have_moved, is_known_to_exceed, is_to_look
from impctl.app.maintaining.keeping.worth import is_worth
from impctl.app.workbench.settings import Settings
from impctl.app.workbench.workbench import open_workbench
from impctl.circuits.keeping.choice import StateChoice, choose
from impctl.circuits.keeping.conversions import conversion_ms
from impctl.circuits.keeping.evaluated import per_day
from impctl.circuits.keeping.graph import Graph, Mode, Work, pinned
from impctl.circuits.keeping.priors import PRIORS
from impctl.store.records import Chosen
from tests.app.maintaining.keeping.stored_pieces import read_pieces, say
from tests.behaviour.typed_joins import QUERIES, change, write_workload
from tests.circuits.keeping.drawn import tree
from tests.support.random_cases import random_seeds
from tests.support.run_cli import Cli

RATES = {("t",): 24.0, ("t", "u"): 0.5}
MADE = Chosen(budget=100, rates=RATES, bytes=200, pins={}, is_least=True)
SEEN = Seen(budget=100, bytes=200, rates=RATES, pins={})


def test_state_that_could_not_be_brought_within_its_budget_is_only_told() -> None:
    for size in (190, 200, 210):
        assert is_known_to_exceed(MADE, replace(SEEN, bytes=size))
    for other in (
        replace(SEEN, bytes=189),
        replace(SEEN, bytes=211),
        replace(SEEN, budget=101),
        replace(SEEN, pins={"q": "keep"}),
        replace(SEEN, rates={**RATES, ("t",): 48.0}),
        replace(SEEN, rates={("t",): 24.0}),
    ):
        assert not is_known_to_exceed(MADE, other)
        assert is_to_look(MADE, other)
    for made in (None, replace(MADE, is_least=False), replace(MADE, bytes=90)):
        assert not is_known_to_exceed(made, SEEN)
        assert is_to_look(made, SEEN)
    fits = replace(SEEN, budget=300)
    assert not is_known_to_exceed(replace(MADE, budget=300), fits)
    assert not is_to_look(replace(MADE, budget=300), fits)


@random_seeds(8, 34, 200)
def test_rates_move_by_a_factor_of_two(seed: int) -> None:
    rng = Random(seed)
    before = {(f"t{at}",): 10 ** rng.uniform(-1, 3) for at in range(rng.randint(1, 5))}
    near = {kind: rate * rng.uniform(0.51, 1.99) for kind, rate in before.items()}
    # What comes less than once in thirty days comes and goes unnoticed.
    near[("rare",)] = rng.uniform(0, 0.033)
    assert not have_moved(before, near)
    assert not have_moved(near, before)
    far = {**near, rng.choice(list(before)): 0.0}
    far = {kind: rate or before[kind] * rng.choice([0.5, 2.0, 17.0]) for kind, rate in far.items()}
    assert have_moved(before, far)
    assert have_moved(before, {kind: near[kind] for kind in list(before)[1:]})


def kept_of(graph: Graph, now: Mapping[str, Mode], choice: StateChoice, ms: float = 0.0) -> Kept:
    takes = {name: dict.fromkeys(Mode, ms) for name in now}
    return Kept({}, choice, 0, {}, {"q": graph}, {"q": now}, {"q": takes})


@pytest.mark.slow
@random_seeds(10, 35, 300)
def test_choices_do_not_take_turns(seed: int) -> None:
    """What was carried out stays while rates and prices move a little to and fro."""
    rng = Random(seed)
    graph = tree(rng)
    least = sum(min(piece.sizes.values()) for piece in graph.pieces)
    most = sum(max(piece.sizes.values()) for piece in graph.pieces)
    budget = rng.randint(least, most)
    now = {piece.name: rng.choice(piece.modes) for piece in graph.pieces}
    changes = 0
    for _ in range(8):
        kinds = tuple(replace(k, rate=k.rate * rng.uniform(0.96, 1.04)) for k in graph.kinds)
        moved = Graph(graph.nodes, kinds)
        choice = choose({"q": moved}, budget)
        if is_worth(kept_of(moved, now, choice), is_over=moved.bytes_of(now) > budget):
            assert choice.queries["q"].modes != now
            now = dict(choice.queries["q"].modes)
            changes += 1
    assert changes <= 1


@random_seeds(10, 25, 100)
def test_what_does_not_pay_back_within_a_week_stays(seed: int) -> None:
    rng = Random(seed)
    graph = tree(rng)
    now = {piece.name: rng.choice(piece.modes) for piece in graph.pieces}
    choice = choose({"q": graph}, None)
    saved = per_day(graph, now) - choice.ms_per_day
    moved = sum(now[name] != mode for name, mode in choice.queries["q"].modes.items())
    pays = saved > 0 and saved >= 0.2 * per_day(graph, now)
    for days, is_soon in ((6.9, True), (7.1, False)):
        each = (days * saved - PRIORS.conversion_ms) / moved if moved else 0.0
        found = is_worth(kept_of(graph, now, choice, each), is_over=False)
        assert found == (pays and is_soon), (saved, moved)
        assert is_worth(kept_of(graph, now, choice, each), is_over=True)


def test_what_a_query_pins_is_carried_out_whatever_it_costs() -> None:
    rng = Random(3)
    graph = next(g for g in (tree(rng) for _ in range(99)) if _has_two_modes(g))
    name = _has_two_modes(graph)[0]
    now = dict(choose({"q": graph}, None).queries["q"].modes)
    (piece,) = (one for one in graph.pieces if one.name == name)
    other = next(mode for mode in piece.modes if mode is not now[name])
    asked = pinned(graph, {name: other})
    choice = choose({"q": asked}, None)
    assert is_worth(kept_of(asked, now, choice, 1e12), is_over=False)


def _has_two_modes(graph: Graph) -> list[str]:
    return [piece.name for piece in graph.pieces if len(piece.modes) > 1]


def test_a_piece_is_read_whole_to_be_kept_again() -> None:
    for seed in range(50):
        graph = tree(Random(seed))
        found = conversion_ms(graph)
        assert found.keys() == {piece.name for piece in graph.pieces}
        for node in graph.nodes:
            for piece in node.pieces:
                to, build = found[piece.name], max(piece.build, default=0.0)
                is_side = node.work is Work.JOIN
                assert to[Mode.READ] == (build if is_side else max(piece.stream, default=0.0))
                assert to[Mode.KEPT] >= build


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One entry for every choice that is made."""
    made: list[Any] = []
    chosen = keep_to.kept_within

    def counted(*arguments: Any, **named: Any) -> Kept:
        made.append(arguments)
        return chosen(*arguments, **named)

    monkeypatch.setattr(keep_to, "kept_within", counted)
    return made


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Tables whose rates the file says, so that they do not move with the clock."""

    cli = Cli(capsys, write_workload(tmp_path, [(n, QUERIES[n], "auto") for n in ("two", "l")]))
    say(cli, "t: {path: t}", "t: {path: t, changes: {every: 1h, rows: 6}}")
    say(cli, "u: {path: u}", "u: {path: u, changes: {every: 5h, rows: 4, deletes: 50%}}")
    return cli


def paced(table: str, pause: str) -> str:
    return f"{table}: {{path: {table}, changes: {{every: {pause}"


def exceeds(document: dict[str, Any]) -> bool:
    return any("[budget_exceeded]" in one for one in document["warnings"])


def test_a_budget_that_is_too_small_is_looked_at_once(
    cli: Cli, tmp_path: Path, looks: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of so little state a few rows are many.
    monkeypatch.setattr(looks_room, "_ALIKE", 1.0)
    cli.good("capture")
    assert not looks
    rng = random.Random(1)
    change(tmp_path, rng, 0)
    assert exceeds(cli.good("maintain", "--disk", "0").document)
    assert (len(looks), bool(read_pieces(tmp_path, "two"))) == (1, True)
    for turn in (2, 4):
        change(tmp_path, rng, turn)
        assert exceeds(cli.good("maintain", "--disk", "0").document)
    assert len(looks) == 1
    before = len(looks)
    cli.good("maintain", "--disk", "0")
    assert len(looks) == before, "nothing to do, and the budget is the same"
    say(cli, "every: 5h", "every: 50h")
    change(tmp_path, rng, 6)
    assert exceeds(cli.good("maintain", "--disk", "0").document)
    assert len(looks) == before + 1, "a rate that moved"


@pytest.mark.slow
def test_a_run_with_nothing_to_do_looks_at_another_budget(
    cli: Cli, tmp_path: Path, looks: list[Any]
) -> None:
    cli.good("capture", "--disk", "1GB")
    assert len(looks) == 1
    cli.good("maintain", "--disk", "1GB")
    assert len(looks) == 1
    ran = cli.good("maintain", "--disk", "0")
    assert [result["action"] for result in ran.results] == ["none"] * len(ran.results)
    assert exceeds(ran.document)
    assert (len(looks), bool(read_pieces(tmp_path, "two"))) == (2, True)
    cli.good("maintain")
    cli.good("maintain", "--disk", "0")
    assert len(looks) == 2
    before = sorted(file.stat().st_mtime_ns for file in (tmp_path / ".impctl").rglob("*"))
    cli.good("maintain", "--disk", "1GB", "--dry-run")
    assert len(looks) == 2
    assert sorted(file.stat().st_mtime_ns for file in (tmp_path / ".impctl").rglob("*")) == before


@pytest.mark.slow
def test_who_uses_a_sketch_looks_at_no_budget(
    cli: Cli, tmp_path: Path, looks: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would have to wait for whoever writes."""
    cli.good("capture")

    def no_lock(*_: Any, **__: Any) -> None:
        raise AssertionError("asked for the writer's lock")

    with open_workbench(Settings(cli.workload, disk=0)) as desk:
        monkeypatch.setattr(desk, "writing", no_lock)
        assert maintain(desk, None, for_use=True).results
    assert not looks


def test_a_late_run_leaves_the_choice_to_the_next_one(
    cli: Cli, tmp_path: Path, looks: list[Any]
) -> None:
    say(cli, "join: auto", "join: auto, trigger: {fresh_within: 1ms}")
    cli.good("capture")
    change(tmp_path, random.Random(1), 0)
    (said,) = cli.good("maintain", "--disk", "0").document["warnings"]
    assert "this run was late" in said
    assert not looks
    assert not read_pieces(tmp_path, "two")
    cli.good("maintain", "--disk", "0")
    assert len(looks) == 1
    assert read_pieces(tmp_path, "two")
    # By a budget that was looked at, too: then nothing but that it was late says so.
    say(cli, "every: 5h", "every: 50h")
    change(tmp_path, random.Random(1), 2)
    cli.good("maintain", "--disk", "0")
    assert len(looks) == 1
    cli.good("maintain", "--disk", "0")
    assert len(looks) == 2


def test_what_is_about_as_good_stays(cli: Cli, tmp_path: Path, looks: list[Any]) -> None:
    cli.good("capture", "--disk", "0")
    assert read_pieces(tmp_path, "two")
    kept_ones = read_pieces(tmp_path, "two")
    # Once in a year: nothing that is saved then pays for reading sides whole.
    for name, pause in (("t", "1h"), ("u", "5h")):
        say(cli, paced(name, pause), paced(name, "365d"))
    cli.good("maintain", "--disk", "1GB")
    assert len(looks) == 2
    assert read_pieces(tmp_path, "two") == kept_ones
    for plan in cli.good("plan", "--disk", "1GB").results:
        assert {one["mode"] for one in plan["state"]} == {"read"}
        assert any("converting saves too little" in one["reason"] for one in plan["state"])
    for name in ("t", "u"):
        say(cli, paced(name, "365d"), paced(name, "1m"))
    change(tmp_path, random.Random(1), 1)
    cli.good("maintain", "--disk", "1GB")
    assert len(looks) == 3
    assert read_pieces(tmp_path, "two") != kept_ones


@pytest.mark.parametrize(
    ("altered", "is_converted"),
    [
        ("UPDATE query SET sql = 'SELECT 1' WHERE name = 'l'", False),
        (
            "UPDATE pin SET path = 'x' WHERE query_id = (SELECT id FROM query WHERE name = 'l')",
            True,
        ),
    ],
)
def test_a_query_whose_row_was_altered_fails_no_run_of_others(
    cli: Cli, tmp_path: Path, altered: str, is_converted: bool
) -> None:
    """What its state takes cannot be told in one case, in the other only how it is kept."""
    cli.good("capture")
    connection = sqlite3.connect(tmp_path / ".impctl" / "catalog.sqlite")
    connection.execute(altered)
    connection.commit()
    connection.close()
    change(tmp_path, random.Random(1), 0)
    for turn in range(2):
        ran = cli.good("maintain", "--query", "two", "--disk", "0")
        assert {result["action"] for result in ran.results} == {"none" if turn else "exact"}
        if not turn:
            assert any("stays as it is" in one for one in ran.document["warnings"])
    assert bool(read_pieces(tmp_path, "two")) == is_converted
