"""A choice is made anew once what it was made by has moved, and prices are learned from runs."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from impctl.costs import STATE
from impctl.placement import (
    KindOfChange,
    Modes,
    OperatorCosts,
    Piece,
    PieceMode,
    StateChoice,
    StateModel,
    choose,
    evaluate,
    per_day,
    restricted,
)
from impctl.service.budget import choice as keep_to
from impctl.service.budget.choice import (
    BOUND_IMPOSSIBLE,
    Bound,
    BoundChecks,
    WeighedState,
    bounds_of,
    chosen_within,
    have_moved,
    is_known_to_exceed,
    is_worth,
    missed_bound_text,
    modes_of,
    needs_choice,
)
from impctl.service.budget.costs import FEWEST, priced
from impctl.service.context import open_context
from impctl.service.cost_model import recorded
from impctl.service.maintain import maintain
from impctl.service.schedule.due import LEAST_MARGIN, CommitLog, pending_of
from impctl.service.settings import Settings
from impctl.store.records import RunCost, RunKind, RunParts, SideRead, StateChoiceBasis
from impctl.store.store import Store
from impctl.workload.load import load_workload
from tests.behaviour.typed_joins import QUERIES, change, write_workload
from tests.placement.models import (
    BOUNDED,
    KEPT,
    READ,
    drawn_model,
    every_option,
    largest,
    model_of,
    piece_of,
)
from tests.service.budget.test_keep_to import read_pieces
from tests.support.kept_workload import stored
from tests.support.random_cases import random_seeds
from tests.support.run_cli import Capsys, Cli, CliOnce, MonkeyPatch, Ran, spied, write_files

RATES = {("t",): 24.0, ("t", "u"): 0.5}
MADE = StateChoiceBasis(
    budget=100, rates=tuple(RATES.items()), bytes=200, pins={}, least=200, settled=True
)
SEEN = replace(MADE, least=0, settled=False)


def test_state_that_could_not_be_brought_within_its_budget_is_only_told() -> None:
    for size in (190, 200, 210):
        assert is_known_to_exceed(MADE, replace(SEEN, bytes=size))
    moved = ({"bytes": 189}, {"bytes": 211}, {"budget": 101}, {"pins": {"q": "keep"}})
    for other in (*moved, {"rates": (*MADE.rates[1:], (("t",), 48.0))}, {"rates": MADE.rates[:1]}):
        assert not is_known_to_exceed(MADE, replace(SEEN, **other))
        assert needs_choice(MADE, replace(SEEN, **other))
    for made in (None, replace(MADE, settled=False), replace(MADE, bytes=90)):
        assert not is_known_to_exceed(made, SEEN)
        assert needs_choice(made, SEEN)
    fits = replace(SEEN, budget=300)
    assert not is_known_to_exceed(replace(MADE, budget=300), fits)
    assert not needs_choice(replace(MADE, budget=300), fits)


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


def weighed(
    model: StateModel, now: Mapping[str, PieceMode], choice: StateChoice, ms: float = 0.0
) -> WeighedState:
    """Of one query, whose pieces take so many milliseconds each to convert."""
    takes = dict.fromkeys(PieceMode, ms)
    converting = model.with_pieces(lambda piece: replace(piece, conversion=takes))
    return WeighedState({}, 0, {}, (), {"q": converting}, {"q": now}, choice=choice)


@pytest.mark.slow
@random_seeds(10, 35, 300)
def test_choices_do_not_take_turns(seed: int) -> None:
    """What was carried out stays while rates and prices move a little to and fro."""
    rng = Random(seed)
    model = drawn_model(rng)
    least = sum(min(piece.sizes.values()) for piece in model.pieces)
    budget = rng.randint(least, largest(model))
    now = {piece.name: rng.choice(piece.modes) for piece in model.pieces}
    changes = 0
    for _ in range(8):
        kinds = tuple(replace(k, rate=k.rate * rng.uniform(0.96, 1.04)) for k in model.kinds)
        moved = replace(model, kinds=kinds)
        choice = choose({"q": moved}, budget)
        if is_worth(weighed(moved, now, choice), is_over=moved.bytes_of(now) > budget):
            assert choice.queries["q"].modes != now
            now = dict(choice.queries["q"].modes)
            changes += 1
    assert changes <= 1


@random_seeds(10, 25, 100)
def test_what_does_not_pay_back_within_a_week_stays(seed: int) -> None:
    rng = Random(seed)
    model = drawn_model(rng)
    now = {piece.name: rng.choice(piece.modes) for piece in model.pieces}
    choice = choose({"q": model}, None)
    saved = per_day(model, now) - choice.ms_per_day
    moved = sum(now[name] != mode for name, mode in choice.queries["q"].modes.items())
    pays = saved > 0 and saved >= 0.2 * per_day(model, now)
    for days, is_soon in ((6.9, True), (7.1, False)):
        each = (days * saved - STATE.conversion_ms) / moved if moved else 0.0
        worth = is_worth(weighed(model, now, choice, each), is_over=False)
        assert worth == (pays and is_soon), (saved, moved)
        assert is_worth(weighed(model, now, choice, each), is_over=True)


def test_what_a_query_pins_is_carried_out_whatever_it_costs() -> None:
    rng = Random(3)
    model = next(g for g in (drawn_model(rng) for _ in range(99)) if _has_two_modes(g))
    name = _has_two_modes(model)[0]
    now = dict(choose({"q": model}, None).queries["q"].modes)
    (piece,) = (one for one in model.pieces if one.name == name)
    other = next(mode for mode in piece.modes if mode is not now[name])
    asked = restricted(model, {name: (other,)})
    choice = choose({"q": asked}, None)
    assert is_worth(weighed(asked, now, choice, 1e12), is_over=False)


def _has_two_modes(model: StateModel) -> list[str]:
    return [piece.name for piece in model.pieces if len(piece.modes) > 1]


@pytest.fixture
def looks(monkeypatch: MonkeyPatch) -> list[Any]:
    return spied(monkeypatch, keep_to, "choose_state")


def write_two(folder: Path) -> None:
    """Tables whose rates the file says, so that they do not move with the clock."""
    file = write_workload(folder, [(name, QUERIES[name], "auto") for name in ("two", "l")])
    text = file.read_text().replace("path: t}", "path: t, changes: {every: 1h, rows: 6}}")
    said = "path: u, changes: {every: 5h, rows: 4, deletes: 50%}}"
    file.write_text(text.replace("path: u}", said))


@pytest.fixture
def cli(cli_once: CliOnce) -> Cli:
    return cli_once("two", write_two)


@pytest.fixture
def captured(cli_once: CliOnce) -> Cli:
    return cli_once("two, captured", write_two, Cli.captured)


def paced(table: str, pause: str) -> str:
    return f"{table}: {{path: {table}, changes: {{every: {pause}"


def exceeds(ran: Ran) -> bool:
    return any("[budget_exceeded]" in one for one in ran.document["warnings"])


def test_a_tight_budget_is_tried_once(
    captured: Cli, looks: list[Any], monkeypatch: MonkeyPatch
) -> None:
    # Of so little state a few rows are many.
    monkeypatch.setattr(keep_to, "_ALIKE", 1.0)
    rng = random.Random(1)
    for turn in (0, 2):
        change(captured.folder, rng, turn)
        assert exceeds(captured.good("maintain", "--disk", "0"))
        assert (len(looks), bool(read_pieces(captured.folder, "two"))) == (1, True)
    captured.good("maintain", "--disk", "0")
    assert len(looks) == 1, "nothing to do, and the budget is the same"
    captured.edit("every: 5h", "every: 50h")
    change(captured.folder, rng, 6)
    assert exceeds(captured.good("maintain", "--disk", "0"))
    assert len(looks) == 2, "a rate that moved"


@pytest.mark.slow
def test_a_run_with_nothing_to_do_looks_at_another_budget(cli: Cli, looks: list[Any]) -> None:
    cli.good("capture", "--disk", "1GB")
    assert len(looks) == 1
    cli.good("maintain", "--disk", "1GB")
    assert len(looks) == 1
    ran = cli.good("maintain", "--disk", "0")
    assert {result["action"] for result in ran.results} == {"none"}
    assert exceeds(ran)
    assert (len(looks), bool(read_pieces(cli.folder, "two"))) == (2, True)
    cli.good("maintain")
    cli.good("maintain", "--disk", "0")
    assert len(looks) == 2

    def times() -> list[int]:
        return sorted(file.stat().st_mtime_ns for file in (cli.folder / ".impctl").rglob("*"))

    before = times()
    cli.good("maintain", "--disk", "1GB", "--dry-run")
    assert (len(looks), times()) == (2, before)


@pytest.mark.slow
def test_a_use_tries_no_budget(cli: Cli, looks: list[Any], monkeypatch: MonkeyPatch) -> None:
    """It would have to wait for whoever writes."""
    cli.good("capture")
    with open_context(Settings(cli.workload, disk=0)) as ctx:
        no_lock = AssertionError("asked for the writer's lock")
        monkeypatch.setattr(ctx, "writing", Mock(side_effect=no_lock))
        assert maintain(ctx, None, for_use=True).results
    assert not looks


def test_a_late_run_leaves_the_choice_to_the_next_one(captured: Cli, looks: list[Any]) -> None:
    captured.edit("join: auto", "join: auto, trigger: {fresh_within: 1ms}")
    change(captured.folder, random.Random(1), 0)
    (said,) = captured.warnings("maintain", "--disk", "0")
    assert "this run was late" in said
    assert not looks
    assert not read_pieces(captured.folder, "two")
    captured.good("maintain", "--disk", "0")
    assert len(looks) == 1
    assert read_pieces(captured.folder, "two")
    # By a budget that was looked at, too: then nothing but that it was late says so.
    captured.edit("every: 5h", "every: 50h")
    change(captured.folder, random.Random(1), 2)
    for count in (1, 2):
        captured.good("maintain", "--disk", "0")
        assert len(looks) == count


def test_what_is_about_as_good_stays(cli: Cli, looks: list[Any]) -> None:
    cli.good("capture", "--disk", "0")
    kept_ones = read_pieces(cli.folder, "two")
    assert kept_ones
    # Once in a year: nothing that is saved then pays for reading sides whole.
    for name, pause in (("t", "1h"), ("u", "5h")):
        cli.edit(paced(name, pause), paced(name, "365d"))
    cli.good("maintain", "--disk", "1GB")
    assert len(looks) == 2
    assert read_pieces(cli.folder, "two") == kept_ones
    for plan in cli.good("plan", "--disk", "1GB").results:
        assert {one["mode"] for one in plan["state"]} == {"read"}
        assert any("converting saves too little" in one["reason"] for one in plan["state"])
    for name in ("t", "u"):
        cli.edit(paced(name, "365d"), paced(name, "1m"))
    change(cli.folder, random.Random(1), 1)
    looks.clear()
    cli.good("maintain", "--disk", "1GB")
    assert len(looks) == 1
    assert read_pieces(cli.folder, "two") != kept_ones


OF_L = "WHERE name = 'l'"


@pytest.mark.parametrize(
    ("altered", "is_converted"),
    [
        (f"query SET sql = 'SELECT 1' {OF_L}", False),
        (f"pin SET path = 'x' WHERE query_id = (SELECT id FROM query {OF_L})", True),
    ],
)
def test_an_altered_query_fails_no_other_run(
    captured: Cli, altered: str, is_converted: bool
) -> None:
    """What its state takes cannot be told in one case, in the other only how it is kept."""
    path = captured.folder / ".impctl" / "catalog.sqlite"
    with closing(sqlite3.connect(path)) as catalog, catalog:
        catalog.execute(f"UPDATE {altered}")
    change(captured.folder, random.Random(1), 0)
    for turn in range(2):
        ran = captured.good("maintain", "--query", "two", "--disk", "0")
        assert {result["action"] for result in ran.results} == {"none" if turn else "exact"}
        assert turn or any("does not change" in one for one in ran.document["warnings"])
    assert bool(read_pieces(captured.folder, "two")) == is_converted


def frequent_and_rare(seed: int) -> StateModel:
    """A side that a frequent change asks for and one that a rare one does; room for one of them."""
    rng = Random(seed)
    kinds = (KindOfChange(frozenset("r"), 100.0), KindOfChange(frozenset("s"), 1.0))

    def side(name: str, asked_by: int) -> Piece:
        read = tuple(float(rng.randint(100, 900)) if at == asked_by else 0.0 for at in range(2))
        return piece_of(name, {KEPT: 10, READ: 1}, read=read, hit=(1.0, 1.0), source=(name,))

    return model_of(side("left", 1), side("right", 0), kinds=kinds)


@random_seeds(12, 44, 300)
def test_a_budget_out_of_reach_leaves_out_only_what_its_bytes_are_worth(seed: int) -> None:
    """Against all choices there are: the share of all bytes that is saved beside that of work."""
    rng = Random(seed)
    model, fixed = drawn_model(rng, 5), rng.choice([0, 7, 1000])
    every = every_option(model)
    least = min(option.bytes for option in every) + fixed

    def chosen(budget: int) -> StateChoice:
        return chosen_within({"q": model}, budget, {}, [1.0] * len(model.kinds), fixed)[0]

    assert (chosen(least).exceeds, chosen(least).bytes + fixed) == (False, least)
    assert chosen(0).bytes + fixed == least, "asked for the least"
    if least < 2:
        return
    result = chosen(rng.randint(1, least - 1))
    assert (result.exceeds, result.least + fixed) == (True, least)
    work = min(option.cost for option in every)
    usual = choose({"q": model}, None)
    assert usual.ms_per_day == pytest.approx(work, rel=0.01)
    weight = usual.ms_per_day / max(1, usual.bytes + fixed)

    counted = min(option.cost + weight * option.bytes for option in every)
    assert result.ms_per_day + weight * result.bytes <= counted * 1.01
    assert result.ms_per_day <= 2.02 * work
    # What is kept stays.
    now = {piece.name: rng.choice(piece.modes) for piece in model.pieces}
    held = chosen_within({"q": model}, 1, {}, [1.0] * len(model.kinds), fixed, {"q": now})[0]
    assert (held.least, held.exceeds) == (result.least, True)
    then = held.queries["q"].modes
    assert all(then[name] is KEPT for name, mode in now.items() if mode is KEPT)


@pytest.mark.parametrize(
    ("now", "has_captured", "expected"),
    [
        pytest.param((100, 1000.0), False, False, id="grows"),
        pytest.param((100, 1000.0), True, True, id="after a capture"),
        pytest.param((950, 110.0), True, False, id="saves little"),
        pytest.param((3000, 100.0), False, False, id="shrinks"),
    ],
)
def test_state_that_exceeds_its_budget_in_any_case_stays_but_after_a_capture(
    now: tuple[int, float], has_captured: bool, expected: bool
) -> None:
    """The choice takes 1,000 bytes and 100 ms a day, each byte counting for 0.1 ms."""
    sizes = {KEPT: 1000, READ: now[0]}
    right = piece_of("p.right", sizes, stored=100.0, read=now[1], hit=1.0, source=("u",))
    model = model_of(piece_of("p.left"), right, kinds=(KindOfChange(frozenset({"t"}), 1.0),))
    chosen = choose({"q": restricted(model, {"p.right": (KEPT,)})}, None)
    choice = replace(chosen, exceeds=True, least=900, per_byte=0.1)
    modes = {"p.left": KEPT, "p.right": READ}
    kept = replace(weighed(model, modes, choice), budget=50)
    assert is_worth(kept, is_over=True, has_captured=has_captured) == expected
    assert is_worth(replace(kept, budget=0), is_over=True), "the least was asked for"


@random_seeds(5, 13, 20)
def test_a_rare_change_gets_its_state_where_a_bound_needs_it(seed: int) -> None:
    models = {"q": frequent_and_rare(seed)}
    plain = choose(models, 11)
    assert plain.queries["q"].modes == {"left": READ, "right": KEPT}
    bound = {"q": Bound(1.0, "fresh_within 1ms")}
    costs = evaluate(models["q"], plain.queries["q"].modes).per_kind
    assert BoundChecks(models, bound, (1.0, 0.06)).late(modes_of(plain)) == [("q", 1)]
    # Only one of the two can be held; the frequent one would be late then.
    held, unheld = chosen_within(models, 11, bound, (0.0, 0.06))
    assert held.queries["q"].modes == {"left": KEPT, "right": READ}
    assert not unheld
    # Told is what comes of it by how often changes come, not by how often they were thought to.
    assert held.ms_per_day == per_day(models["q"], held.queries["q"].modes)
    assert "s changes once a day" in held.queries["q"].reasons["left"]
    for chances in ((1.0, 0.05), (1.0, 0.0)):
        again, nothing = chosen_within(models, 11, bound, chances)
        assert again.queries["q"].modes == plain.queries["q"].modes
        assert not nothing
    both, (one,) = chosen_within(models, 11, bound, (1.0, 0.06))
    assert both.queries["q"].modes == plain.queries["q"].modes, "as many late, and less work"
    assert (one.query, one.tables, one.ms) == ("q", ("s",), costs[1])
    assert (one.enough, one.enough_ms) == (11, 0.0)


@pytest.mark.slow
@random_seeds(12, 36, 150)
def test_what_is_chosen_holds_what_the_plain_choice_does_and_tells_enough(seed: int) -> None:
    rng = Random(seed)
    model = drawn_model(rng, 5)
    models = {"q": model}
    most = largest(model)
    budget = rng.randint(0, most)
    plain = choose(models, budget)
    costs = evaluate(model, plain.queries["q"].modes).per_kind
    bound = Bound(LEAST_MARGIN * max(costs) * rng.choice([0.01, 0.3, 0.9, 1.0, 1.1]), "b")
    chances = [rng.choice([0.0, 0.05, 0.06, 1.0]) for _ in model.kinds]
    result, unheld = chosen_within(models, budget, {"q": bound}, chances)

    def late(modes: Modes) -> list[int]:
        took = evaluate(model, modes).per_kind
        each = zip(took, chances, strict=True)
        return [at for at, (ms, chance) in enumerate(each) if chance > 0.05 and 1.5 * ms > bound.ms]

    mine, before = late(result.queries["q"].modes), late(plain.queries["q"].modes)
    told = BoundChecks(models, {"q": bound}, chances).late(modes_of(result))
    assert told == [("q", kind) for kind in mine]
    assert len(mine) <= len(before)
    assert result.exceeds == plain.exceeds
    assert result.bytes <= max(budget, plain.bytes) or (plain.exceeds and budget)
    assert bool(unheld) == bool(mine)
    every = every_option(model)
    for one in unheld:
        doing = [option.bytes for option in every if not set(late(option.modes)) & set(mine)]
        assert one.ms == max(evaluate(model, result.queries["q"].modes).per_kind[k] for k in mine)
        if one.enough is None:
            assert not doing
        else:
            # So many bytes do; fewer may, where a choice with less work in all takes more of them.
            assert min(doing) <= one.enough <= most


def test_no_choice_is_made_for_what_no_state_helps(monkeypatch: MonkeyPatch) -> None:
    made = spied(monkeypatch, keep_to, "choose")
    model = frequent_and_rare(1)
    slower = OperatorCosts(work=(9.0, 9.0))
    slow = replace(model, operators=(*model.operators, slower))
    _, (one,) = chosen_within({"q": slow}, 11, {"q": Bound(13.0, "fresh_within 13ms")}, (1, 1))
    assert (len(made), one.enough) == (1, None)
    assert "with all of it" in missed_bound_text(one, 0)
    made.clear()
    chosen_within({"q": slow}, 2, {"q": Bound(14.0, "fresh_within 14ms")}, (1, 1))
    assert len(made) == 11, "ten times anew, where no choice fits"


def test_the_text_says_what_would_do() -> None:
    bound = {"q": Bound(1.0, "fresh_within 1ms")}
    _, (one,) = chosen_within({"q": frequent_and_rare(1)}, 11, bound, (1, 1))
    text = missed_bound_text(one, 4_989)
    assert "`q` may miss fresh_within 1ms: when s changes" in text
    assert "with 5 kB of state for all queries" in text
    assert text.endswith(f"[{BOUND_IMPOSSIBLE}]")


def test_the_shorter_bound_of_a_query_counts(tmp_path: Path) -> None:
    triggers = {
        "a": {"trigger": {"every": "1h", "ready_within": "5s"}},
        "b": {"trigger": {"fresh_within": "10m"}},
        "c": {},
        "d": {"trigger": "commit"},
    }
    queries = {name: {"sql": "SELECT x FROM t", **said} for name, said in triggers.items()}
    file = write_files(tmp_path, {"tables": "t", "queries": queries})
    specs = load_workload(file, {}).queries.values()
    assert {name: one.ms for name, one in bounds_of(specs).items()} == {"a": 5_000, "b": 600_000}


def _warning(cli: Cli, budget: str) -> str:
    (said,) = [one for one in cli.warnings("maintain", "--disk", budget) if EXCEEDED in one]
    return said


EXCEEDED = "[budget_exceeded]"


def test_a_budget_out_of_reach_drops_nothing_and_says_what_would_do(captured: Cli) -> None:
    change(captured.folder, random.Random(1), 0)
    said = _warning(captured, "100B")
    assert ", so no more of it is removed; raise the budget to " in said
    assert not read_pieces(captured.folder, "two")
    assert not read_pieces(captured.folder, "l")
    enough = said.split("raise the budget to ")[1].split(", or ")[0].replace(" ", "")
    captured.good("maintain", "--disk", enough)
    assert read_pieces(captured.folder, "two"), "within reach"


@pytest.mark.slow
def test_a_first_capture_keeps_again_what_a_budget_out_of_reach_was_to_leave_out(cli: Cli) -> None:
    """What may take a good part of the budget is not built at first; with changes as frequent as
    the file says it is worth more than its bytes."""
    for pause in ("1h", "5h"):
        cli.edit(f"every: {pause}", "every: 1m")
    assert exceeds(cli.good("capture", "--disk", "100B"))
    assert not read_pieces(cli.folder, "two")
    # A lower budget does not make state larger, whatever it would save.
    change(cli.folder, random.Random(1), 0)
    cli.good("maintain", "--disk", "0")
    least = read_pieces(cli.folder, "two")
    change(cli.folder, random.Random(2), 1)
    assert exceeds(cli.good("maintain", "--disk", "100B"))
    assert read_pieces(cli.folder, "two") == least != []


def test_the_result_whose_rows_exceed_the_budget_is_named(tmp_path: Path, capsys: Capsys) -> None:
    asked = [("two", QUERIES["two"], "index"), ("l", QUERIES["l"], "index, answer: true")]
    cli = Cli(capsys, write_workload(tmp_path, asked)).captured()
    assert _warning(cli, "0").endswith("or store the state of fewer queries [budget_exceeded]")
    with Store.open(tmp_path / ".impctl", create=False) as store:
        size = sum(run.bytes for name in ("two", "l") for run in store.run_refs(name))
    assert "or drop the result of query `l` (" in _warning(cli, f"{size - 1}B")


def known_runs(folder: Path) -> tuple[list[str], list[RunCost]]:
    """How the state of `two` was kept in its runs, and those that tell something of it now."""
    with Store.open(folder / ".impctl", create=False) as store:
        costs, told = store.costs("two"), recorded(store, store.load("two"))
    return [one.layout for one in costs if one.kind is RunKind.MAINTAIN], told


def test_what_runs_cost_tells_nothing_of_state_that_is_kept_otherwise(captured: Cli) -> None:
    """Estimates, the choice to recapture, `plan` and `simulate` go by runs with the state as it is
    kept now; what a conversion took is added to what a capture did."""
    rng = random.Random(1)
    for turn in range(3):
        change(captured.folder, rng, turn)
        captured.good("maintain", *(["--disk", "0"] if turn else []))
    layouts, told = known_runs(captured.folder)
    assert [bool(layout) for layout in layouts] == [True, False, False], "the second was converted"
    assert [one.kind for one in told] == [RunKind.MAINTAIN, RunKind.RECAPTURE]
    assert {one.layout for one in told} == {layouts[0]}
    change(captured.folder, rng, 3)
    planned = captured.one("plan", "--query", "two")
    assert (planned["maintain_runs"], planned["recapture_runs"]) == (1, 1)
    captured.good("maintain", "--disk", "1GB")
    _, again = known_runs(captured.folder)
    assert {one.layout for one in again} == {""} or read_pieces(captured.folder, "two")


TABLES = tuple(f"t{number}" for number in range(5))


class World:
    """A model, modes its pieces have, and what runs of each kind truly take."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        drawn = drawn_model(self.random)
        self.model = drawn.with_pieces(lambda piece: replace(piece, sizes={KEPT: 9, READ: 1}))
        self.modes = {piece.name: self.random.choice((KEPT, READ)) for piece in self.model.pieces}
        kinds = range(len(self.model.kinds))
        self.rows = [self.random.uniform(1, 1e4) for _ in kinds]
        self.beside = [10 ** self.random.uniform(-2, 3) for _ in kinds]
        self.times = {
            (at, kind): 10 ** self.random.uniform(-1.2, 1.2)
            for at in range(len(self.model.operators))
            for kind in kinds
        }
        self.read_ms = {name: 10 ** self.random.uniform(-1, 3) for name in self.modes}

    def work(self, at: int, kind: int) -> float:
        """What the operator truly takes in a run of as many rows as are expected."""
        operator = self.model.operators[at]
        costs = [
            piece.noted if self.modes[piece.name] is READ else piece.stored
            for piece in operator.pieces
        ]
        return sum(cost[kind] for cost in (operator.work, *costs) if cost) * self.times[at, kind]

    def run(self, kind: int, *, asks: bool = True) -> RunCost:
        """A run of some other number of rows; with `asks` every side that is read has been."""
        share = self.random.uniform(0.2, 5)
        reads = tuple(
            SideRead(name, 3, 1, 7, self.read_ms[name]) if asks else SideRead(name)
            for name, mode in self.modes.items()
            if mode is READ
        )
        took = {one.side: one.ms for one in reads}
        operators = []
        for at, operator in enumerate(self.model.operators):
            lies = sum(took.get(piece.name, 0.0) for piece in operator.pieces)
            operators.append(self.work(at, kind) * (0.3 + 0.7 * share) + lies)
        elapsed = sum(operators) + self.beside[kind] * (0.5 + 0.5 * share)
        tables = tuple(sorted(self.model.kinds[kind].tables))
        rows = round(self.rows[kind] * share)
        self.rows[kind] = self.rows[kind] if rows else 0.0
        parts = RunParts(tuple(operators), reads)
        # What a line is through is whole rows; so small a part of them is not to matter.
        return RunCost(RunKind.MAINTAIN, rows, 0, elapsed, moved=tables, parts=parts)

    def learned(self, costs: Sequence[RunCost]) -> StateModel:
        return priced(self.model, TABLES, self.modes, costs, self.rows)


def alone(world: World) -> list[int]:
    """Kinds of change that no other kind has the tables of."""
    tables = [kind.tables for kind in world.model.kinds]
    return [at for at, one in enumerate(tables) if tables.count(one) == 1]


@random_seeds(10, 35, 200)
def test_an_estimate_is_what_runs_of_its_kind_took(seed: int) -> None:
    world = World(seed)
    world.rows = [1e6 for _ in world.rows]
    kinds = alone(world)
    costs = [world.run(kind) for kind in kinds for _ in range(FEWEST)]
    learned = world.learned(costs)
    for kind in kinds:
        expected = world.beside[kind]
        expected += sum(world.work(at, kind) for at in range(len(world.model.operators)))
        for piece in world.model.pieces:
            if world.modes[piece.name] is READ:
                hit = (FEWEST + piece.hit[kind]) / (FEWEST + 1)
                expected += hit * world.read_ms[piece.name]
        assert evaluate(learned, world.modes).per_kind[kind] == pytest.approx(expected, rel=1e-3)
        assert learned.runs[kind] == FEWEST


@random_seeds(4, 17, 30)
def test_too_few_runs_and_runs_over_other_tables_tell_nothing(seed: int) -> None:
    world = World(seed)
    runs = [world.run(kind) for kind in range(len(world.model.kinds))]
    other = [replace(one, moved=("elsewhere",)) for one in runs * FEWEST]
    without_parts = [replace(one, parts=None) for one in runs * FEWEST]
    old = [replace(one, moved=()) for one in runs * FEWEST]
    again = [replace(one, kind=RunKind.RECAPTURE) for one in runs * FEWEST]
    for told in (runs[:1] * (FEWEST - 1), without_parts, again):
        learned = world.learned(told)
        assert learned.operators == world.learned([]).operators
        assert not any(learned.runs)
    for told in (other, old):
        # A read of a side is the same read, whatever asked it; its chance is not.
        for before, after in zip(world.model.pieces, world.learned(told).pieces, strict=True):
            assert (after.hit, after.stored) == (before.hit, before.stored)


@random_seeds(8, 34, 60)
def test_runs_with_a_side_read_tell_nothing_of_keeping_it(seed: int) -> None:
    """After a conversion the operator's time was that of other modes; its neighbours' was not."""
    world = World(seed)
    kinds = alone(world)
    if not kinds or not world.model.pieces:
        return
    costs = [world.run(kind) for kind in kinds for _ in range(FEWEST)]
    turned = world.random.choice(world.model.pieces).name
    is_read = world.modes[turned] is READ
    world.modes[turned] = KEPT if is_read else READ
    operators = world.model.operators
    (at,) = (n for n, one in enumerate(operators) if turned in [p.name for p in one.pieces])
    learned = world.learned(costs)
    for kind in kinds:
        known = [
            world.times[place, kind]
            for place in range(len(operators))
            if place != at and world.work(place, kind) > 0
        ]
        low, high = (min(known), max(known)) if known else (1.0, 1.0)
        # As its neighbours', taken together.
        before, after = (
            sum(piece.stored[kind] for piece in model.operators[at].pieces if piece.stored)
            for model in (world.model, learned)
        )
        assert before * low * 0.99 <= after <= before * high * 1.01


def test_a_read_that_seldom_comes_keeps_some_of_its_chance() -> None:
    world = next(w for w in map(World, range(500)) if _has_certain_read(w))
    kind, name = _has_certain_read(world)[0]
    for count in range(FEWEST, 9):
        learned = world.learned([world.run(kind, asks=False) for _ in range(count)])
        (piece,) = (one for one in learned.pieces if one.name == name)
        assert piece.hit[kind] == pytest.approx(1 / (count + 1))


def _bounded_model() -> StateModel:
    sizes = {KEPT: 9, READ: 1, BOUNDED: 2}
    kinds = tuple(KindOfChange(frozenset({table}), 1.0) for table in "tu")
    keyed = OperatorCosts(pieces=(piece_of("p", sizes, kinds=2, stored=1.0, refill=(5.0, 0.0)),))
    return StateModel((OperatorCosts(), keyed), kinds)


def _bounded_runs(runs: int, filled: int) -> list[RunCost]:
    """Runs of which the first so many filled buffers again."""
    result = []
    for number in range(runs):
        read = SideRead("p.buffer", 2, 2, 50, 30.0) if number < filled else SideRead("p.buffer")
        parts = RunParts((0.0, 2.0 + read.ms), (read,))
        ms = sum(parts.times)
        result.append(RunCost(RunKind.MAINTAIN, 7, 0, ms, moved=("t",), parts=parts))
    return result


def test_buffers_that_are_filled_again_cost_what_that_took_as_often_as_it_came() -> None:
    model, rows = _bounded_model(), [7.0, 7.0]

    def learned(runs: int, filled: int) -> Piece:
        bounded = {"p": BOUNDED}
        (piece,) = priced(model, ("t", "u"), bounded, _bounded_runs(runs, filled), rows).pieces
        return piece

    piece = learned(5, 3)
    # What was thought of it counts as one run more.
    assert piece.refill == pytest.approx(((3 + 1) / (5 + 1) * 30.0, 0.0))
    assert piece.stored == pytest.approx((2.0, 1.0))
    assert learned(4, 0).refill == pytest.approx((5.0 / (4 + 1), 0.0))


@pytest.mark.parametrize("mode", [KEPT, READ])
def test_runs_with_a_piece_bounded_tell_nothing_of_other_modes(mode: PieceMode) -> None:
    model, costs = _bounded_model(), _bounded_runs(5, 3)
    learned = priced(model, ("t", "u"), {"p": mode}, costs, [7.0, 7.0])
    (piece,) = learned.pieces
    assert model.pieces == (replace(piece, refill=model.pieces[0].refill),)


def _has_certain_read(world: World) -> list[tuple[int, str]]:
    return [
        (kind, piece.name)
        for kind in alone(world)
        for piece in world.model.pieces
        if world.modes[piece.name] is READ and piece.hit[kind] == 1.0
    ]


@pytest.fixture
def cli_of_two(tmp_path: Path, capsys: Capsys) -> Cli:
    return Cli(capsys, write_workload(tmp_path, [("two", QUERIES["two"], "auto")]))


def costs_in(folder: Path) -> list[RunCost]:
    with Store.open(folder / ".impctl", create=False) as store:
        return [one for one in store.costs("two") if one.kind is RunKind.MAINTAIN]


@pytest.mark.slow
def test_each_run_records_its_operators_and_its_reads(cli_of_two: Cli) -> None:
    cli_of_two.good("capture")
    rng = random.Random(1)
    change(cli_of_two.folder, rng, 0)
    cli_of_two.good("maintain", "--disk", "0")
    (kept,) = costs_in(cli_of_two.folder)
    assert not kept.parts.reads
    assert 0 < sum(kept.parts.times) <= kept.elapsed_ms
    change(cli_of_two.folder, rng, 1)
    with open_context(Settings(cli_of_two.workload)) as ctx:
        (spec,), held = ctx.sketched(None), stored(cli_of_two.folder, "two")
        moved = pending_of(ctx, spec, held, 4e9, CommitLog()).moved
    cli_of_two.good("maintain")
    latest, *_ = costs_in(cli_of_two.folder)
    assert latest.moved == tuple(sorted(moved)) == ("t", "u")
    names = ["aggregate0", "join0.left", "join0.right"]
    assert [one.side for one in latest.parts.reads] == names
    for one in latest.parts.reads:
        assert (one.keys > 0) == (one.ms > 0)
        assert one.hits <= min(one.keys, one.rows)
    assert sum(one.rows for one in latest.parts.reads) > 0
    assert sum(one.ms for one in latest.parts.reads) <= sum(latest.parts.times)


@pytest.mark.slow
def test_a_plan_says_by_how_many_runs(cli_of_two: Cli) -> None:
    coming = "changes: {every: 1h, rows: 10, deletes: 50%}"
    for table in "tu":
        cli_of_two.edit(f"{table}: {{path: {table}}}", f"{table}: {{path: {table}, {coming}}}")
    cli_of_two.good("capture")
    rng = random.Random(1)
    for turn in range(FEWEST):
        change(cli_of_two.folder, rng, 2 * turn)
        cli_of_two.good("maintain")
        told = [one["reason"] for one in cli_of_two.one("plan", "--disk", "1GB")["state"]]
        is_known = turn == FEWEST - 1
        assert any(f"from {turn + 1} runs" in one for one in told) == is_known, told
