"""State is chosen again when its inputs change, and prices are learned from runs."""

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
RECORDED = StateChoiceBasis(
    budget=100, rates=tuple(RATES.items()), bytes=200, pins={}, least=200, settled=True
)
CURRENT = replace(RECORDED, least=0, settled=False)


def test_unreachable_budget_is_reported_without_a_new_choice() -> None:
    for size in (190, 200, 210):
        assert is_known_to_exceed(RECORDED, replace(CURRENT, bytes=size))
    changes = ({"bytes": 189}, {"bytes": 211}, {"budget": 101}, {"pins": {"q": "keep"}})
    for fields in (
        *changes,
        {"rates": (*RECORDED.rates[1:], (("t",), 48.0))},
        {"rates": RECORDED.rates[:1]},
    ):
        assert not is_known_to_exceed(RECORDED, replace(CURRENT, **fields))
        assert needs_choice(RECORDED, replace(CURRENT, **fields))
    for basis in (None, replace(RECORDED, settled=False), replace(RECORDED, bytes=90)):
        assert not is_known_to_exceed(basis, CURRENT)
        assert needs_choice(basis, CURRENT)
    fits = replace(CURRENT, budget=300)
    assert not is_known_to_exceed(replace(RECORDED, budget=300), fits)
    assert not needs_choice(replace(RECORDED, budget=300), fits)


@random_seeds(8, 34, 200)
def test_rates_move_by_a_factor_of_two(seed: int) -> None:
    rng = Random(seed)
    before = {(f"t{number}",): 10 ** rng.uniform(-1, 3) for number in range(rng.randint(1, 5))}
    near = {kind: rate * rng.uniform(0.51, 1.99) for kind, rate in before.items()}
    # Changes rarer than once in thirty days are ignored.
    near[("rare",)] = rng.uniform(0, 0.033)
    assert not have_moved(before, near)
    assert not have_moved(near, before)
    far = {**near, rng.choice(list(before)): 0.0}
    far = {kind: rate or before[kind] * rng.choice([0.5, 2.0, 17.0]) for kind, rate in far.items()}
    assert have_moved(before, far)
    assert have_moved(before, {kind: near[kind] for kind in list(before)[1:]})


def weighed(
    model: StateModel, modes: Mapping[str, PieceMode], choice: StateChoice, ms: float = 0.0
) -> WeighedState:
    """The state of one query, each of whose pieces takes `ms` to convert."""
    conversion = dict.fromkeys(PieceMode, ms)
    converting = model.with_pieces(lambda piece: replace(piece, conversion=conversion))
    return WeighedState({}, 0, {}, (), {"q": converting}, {"q": modes}, choice=choice)


@pytest.mark.slow
@random_seeds(10, 35, 300)
def test_choices_do_not_alternate(seed: int) -> None:
    """An applied choice stays while rates fluctuate slightly."""
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
def test_conversion_must_pay_back_within_a_week(seed: int) -> None:
    rng = Random(seed)
    model = drawn_model(rng)
    now = {piece.name: rng.choice(piece.modes) for piece in model.pieces}
    choice = choose({"q": model}, None)
    saved = per_day(model, now) - choice.ms_per_day
    converted = sum(now[name] != mode for name, mode in choice.queries["q"].modes.items())
    pays = saved > 0 and saved >= 0.2 * per_day(model, now)
    for days, is_soon in ((6.9, True), (7.1, False)):
        conversion_ms = (days * saved - STATE.conversion_ms) / converted if converted else 0.0
        result = is_worth(weighed(model, now, choice, conversion_ms), is_over=False)
        assert result == (pays and is_soon), (saved, converted)
        assert is_worth(weighed(model, now, choice, conversion_ms), is_over=True)


def test_pinned_modes_are_applied_at_any_cost() -> None:
    rng = Random(3)
    model = next(drawn for drawn in (drawn_model(rng) for _ in range(99)) if _has_two_modes(drawn))
    name = _has_two_modes(model)[0]
    now = dict(choose({"q": model}, None).queries["q"].modes)
    (piece,) = (one for one in model.pieces if one.name == name)
    pinned_mode = next(mode for mode in piece.modes if mode is not now[name])
    pinned = restricted(model, {name: (pinned_mode,)})
    choice = choose({"q": pinned}, None)
    assert is_worth(weighed(pinned, now, choice, 1e12), is_over=False)


def _has_two_modes(model: StateModel) -> list[str]:
    return [piece.name for piece in model.pieces if len(piece.modes) > 1]


@pytest.fixture
def choices(monkeypatch: MonkeyPatch) -> list[Any]:
    return spied(monkeypatch, keep_to, "choose_state")


def write_two(folder: Path) -> None:
    """Tables with change rates in the file, so that they do not depend on the clock."""
    file = write_workload(folder, [(name, QUERIES[name], "auto") for name in ("two", "l")])
    text = file.read_text().replace("path: t}", "path: t, changes: {every: 1h, rows: 6}}")
    u_settings = "path: u, changes: {every: 5h, rows: 4, deletes: 50%}}"
    file.write_text(text.replace("path: u}", u_settings))


@pytest.fixture
def cli(cli_once: CliOnce) -> Cli:
    return cli_once("two", write_two)


@pytest.fixture
def captured(cli_once: CliOnce) -> Cli:
    return cli_once("two, captured", write_two, Cli.captured)


def change_interval(table: str, interval: str) -> str:
    return f"{table}: {{path: {table}, changes: {{every: {interval}"


def is_over_budget(ran: Ran) -> bool:
    return any("[budget_exceeded]" in warning for warning in ran.document["warnings"])


def test_a_tight_budget_is_tried_once(
    captured: Cli, choices: list[Any], monkeypatch: MonkeyPatch
) -> None:
    # In such small state, a few rows are a large share.
    monkeypatch.setattr(keep_to, "_ALIKE", 1.0)
    rng = random.Random(1)
    for step in (0, 2):
        change(captured.folder, rng, step)
        assert is_over_budget(captured.good("maintain", "--disk", "0"))
        assert (len(choices), bool(read_pieces(captured.folder, "two"))) == (1, True)
    captured.good("maintain", "--disk", "0")
    assert len(choices) == 1, "nothing to do, and the budget is the same"
    captured.edit("every: 5h", "every: 50h")
    change(captured.folder, rng, 6)
    assert is_over_budget(captured.good("maintain", "--disk", "0"))
    assert len(choices) == 2, "a rate that moved"


@pytest.mark.slow
def test_a_run_with_nothing_to_do_looks_at_another_budget(cli: Cli, choices: list[Any]) -> None:
    cli.good("capture", "--disk", "1GB")
    assert len(choices) == 1
    cli.good("maintain", "--disk", "1GB")
    assert len(choices) == 1
    ran = cli.good("maintain", "--disk", "0")
    assert {result["action"] for result in ran.results} == {"none"}
    assert is_over_budget(ran)
    assert (len(choices), bool(read_pieces(cli.folder, "two"))) == (2, True)
    cli.good("maintain")
    cli.good("maintain", "--disk", "0")
    assert len(choices) == 2

    def times() -> list[int]:
        return sorted(file.stat().st_mtime_ns for file in (cli.folder / ".impctl").rglob("*"))

    before = times()
    cli.good("maintain", "--disk", "1GB", "--dry-run")
    assert (len(choices), times()) == (2, before)


@pytest.mark.slow
def test_use_makes_no_choice(cli: Cli, choices: list[Any], monkeypatch: MonkeyPatch) -> None:
    """It would have to wait for the writer's lock."""
    cli.good("capture")
    with open_context(Settings(cli.workload, disk=0)) as ctx:
        no_lock = AssertionError("asked for the writer's lock")
        monkeypatch.setattr(ctx, "writing", Mock(side_effect=no_lock))
        assert maintain(ctx, None, for_use=True).results
    assert not choices


def test_late_run_postpones_the_choice(captured: Cli, choices: list[Any]) -> None:
    captured.edit("join: auto", "join: auto, trigger: {fresh_within: 1ms}")
    change(captured.folder, random.Random(1), 0)
    (warning,) = captured.warnings("maintain", "--disk", "0")
    assert "this run was late" in warning
    assert not choices
    assert not read_pieces(captured.folder, "two")
    captured.good("maintain", "--disk", "0")
    assert len(choices) == 1
    assert read_pieces(captured.folder, "two")
    # Also under a budget that was tried before, where only the lateness shows it.
    captured.edit("every: 5h", "every: 50h")
    change(captured.folder, random.Random(1), 2)
    for count in (1, 2):
        captured.good("maintain", "--disk", "0")
        assert len(choices) == count


def test_similar_choice_is_kept(cli: Cli, choices: list[Any]) -> None:
    cli.good("capture", "--disk", "0")
    before = read_pieces(cli.folder, "two")
    assert before
    # At one change a year, no savings pay for reading whole sides.
    for name, interval in (("t", "1h"), ("u", "5h")):
        cli.edit(change_interval(name, interval), change_interval(name, "365d"))
    cli.good("maintain", "--disk", "1GB")
    assert len(choices) == 2
    assert read_pieces(cli.folder, "two") == before
    for plan in cli.good("plan", "--disk", "1GB").results:
        assert {piece["mode"] for piece in plan["state"]} == {"read"}
        assert any("converting saves too little" in piece["reason"] for piece in plan["state"])
    for name in ("t", "u"):
        cli.edit(change_interval(name, "365d"), change_interval(name, "1m"))
    change(cli.folder, random.Random(1), 1)
    choices.clear()
    cli.good("maintain", "--disk", "1GB")
    assert len(choices) == 1
    assert read_pieces(cli.folder, "two") != before


WHERE_L = "WHERE name = 'l'"


@pytest.mark.parametrize(
    ("update", "is_converted"),
    [
        (f"query SET sql = 'SELECT 1' {WHERE_L}", False),
        (f"pin SET path = 'x' WHERE query_id = (SELECT id FROM query {WHERE_L})", True),
    ],
)
def test_altered_query_fails_no_other_run(captured: Cli, update: str, is_converted: bool) -> None:
    """In one case the cost of its state is unknown, in the other only its modes."""
    path = captured.folder / ".impctl" / "catalog.sqlite"
    with closing(sqlite3.connect(path)) as catalog, catalog:
        catalog.execute(f"UPDATE {update}")
    change(captured.folder, random.Random(1), 0)
    for repeat in range(2):
        ran = captured.good("maintain", "--query", "two", "--disk", "0")
        assert {result["action"] for result in ran.results} == {"none" if repeat else "exact"}
        assert repeat or any("does not change" in warning for warning in ran.document["warnings"])
    assert bool(read_pieces(captured.folder, "two")) == is_converted


def frequent_and_rare(seed: int) -> StateModel:
    """One side read by a frequent change and one by a rare change, with room for one of them."""
    rng = Random(seed)
    kinds = (KindOfChange(frozenset("r"), 100.0), KindOfChange(frozenset("s"), 1.0))

    def side(name: str, kind: int) -> Piece:
        read = tuple(float(rng.randint(100, 900)) if number == kind else 0.0 for number in range(2))
        return piece_of(name, {KEPT: 10, READ: 1}, read=read, hit=(1.0, 1.0), source=(name,))

    return model_of(side("left", 1), side("right", 0), kinds=kinds)


@random_seeds(12, 44, 300)
def test_unreachable_budget_weighs_bytes_against_work(seed: int) -> None:
    """Compare with all possible choices, weighing relative bytes against relative work."""
    rng = Random(seed)
    model, fixed = drawn_model(rng, 5), rng.choice([0, 7, 1000])
    every = every_option(model)
    least = min(option.bytes for option in every) + fixed

    def chosen(budget: int) -> StateChoice:
        return chosen_within({"q": model}, budget, {}, [1.0] * len(model.kinds), fixed)[0]

    assert (chosen(least).exceeds, chosen(least).bytes + fixed) == (False, least)
    assert chosen(0).bytes + fixed == least, "a budget of 0 gets the least"
    if least < 2:
        return
    result = chosen(rng.randint(1, least - 1))
    assert (result.exceeds, result.least + fixed) == (True, least)
    work = min(option.cost for option in every)
    usual = choose({"q": model}, None)
    assert usual.ms_per_day == pytest.approx(work, rel=0.01)
    weight = usual.ms_per_day / max(1, usual.bytes + fixed)

    best = min(option.cost + weight * option.bytes for option in every)
    assert result.ms_per_day + weight * result.bytes <= best * 1.01
    assert result.ms_per_day <= 2.02 * work
    # Stored pieces stay stored.
    now = {piece.name: rng.choice(piece.modes) for piece in model.pieces}
    unchanged = chosen_within({"q": model}, 1, {}, [1.0] * len(model.kinds), fixed, {"q": now})[0]
    assert (unchanged.least, unchanged.exceeds) == (result.least, True)
    modes = unchanged.queries["q"].modes
    assert all(modes[name] is KEPT for name, mode in now.items() if mode is KEPT)


@pytest.mark.parametrize(
    ("now", "has_captured", "expected"),
    [
        pytest.param((100, 1000.0), False, False, id="grows"),
        pytest.param((100, 1000.0), True, True, id="after a capture"),
        pytest.param((950, 110.0), True, False, id="saves little"),
        pytest.param((3000, 100.0), False, False, id="shrinks"),
    ],
)
def test_state_over_an_unreachable_budget_may_grow_after_a_capture(
    now: tuple[int, float], has_captured: bool, expected: bool
) -> None:
    """The choice costs 1,000 bytes and 100 ms a day; a byte counts as 0.1 ms."""
    sizes = {KEPT: 1000, READ: now[0]}
    right = piece_of("p.right", sizes, stored=100.0, read=now[1], hit=1.0, source=("u",))
    model = model_of(piece_of("p.left"), right, kinds=(KindOfChange(frozenset({"t"}), 1.0),))
    chosen = choose({"q": restricted(model, {"p.right": (KEPT,)})}, None)
    choice = replace(chosen, exceeds=True, least=900, per_byte=0.1)
    modes = {"p.left": KEPT, "p.right": READ}
    kept = replace(weighed(model, modes, choice), budget=50)
    assert is_worth(kept, is_over=True, has_captured=has_captured) == expected
    assert is_worth(replace(kept, budget=0), is_over=True), "a budget of 0 gets the least"


@random_seeds(5, 13, 20)
def test_bound_reserves_state_for_a_rare_change(seed: int) -> None:
    models = {"q": frequent_and_rare(seed)}
    plain = choose(models, 11)
    assert plain.queries["q"].modes == {"left": READ, "right": KEPT}
    bound = {"q": Bound(1.0, "fresh_within 1ms")}
    costs = evaluate(models["q"], plain.queries["q"].modes).per_kind
    assert BoundChecks(models, bound, (1.0, 0.06)).late(modes_of(plain)) == [("q", 1)]
    # Only one bound can be met; without its state the frequent change would be late.
    bounded, missed = chosen_within(models, 11, bound, (0.0, 0.06))
    assert bounded.queries["q"].modes == {"left": KEPT, "right": READ}
    assert not missed
    # Costs are reported for the real rates, not for the rates raised for the bound.
    assert bounded.ms_per_day == per_day(models["q"], bounded.queries["q"].modes)
    assert "s changes once a day" in bounded.queries["q"].reasons["left"]
    for chances in ((1.0, 0.05), (1.0, 0.0)):
        again, none_missed = chosen_within(models, 11, bound, chances)
        assert again.queries["q"].modes == plain.queries["q"].modes
        assert not none_missed
    unbounded, (miss,) = chosen_within(models, 11, bound, (1.0, 0.06))
    assert unbounded.queries["q"].modes == plain.queries["q"].modes, "as many late, and less work"
    assert (miss.query, miss.tables, miss.ms) == ("q", ("s",), costs[1])
    assert (miss.enough, miss.enough_ms) == (11, 0.0)


@pytest.mark.slow
@random_seeds(12, 36, 150)
def test_bounded_choice_is_no_worse_than_plain_and_reports_enough(seed: int) -> None:
    rng = Random(seed)
    model = drawn_model(rng, 5)
    models = {"q": model}
    most = largest(model)
    budget = rng.randint(0, most)
    plain = choose(models, budget)
    costs = evaluate(model, plain.queries["q"].modes).per_kind
    bound = Bound(LEAST_MARGIN * max(costs) * rng.choice([0.01, 0.3, 0.9, 1.0, 1.1]), "b")
    chances = [rng.choice([0.0, 0.05, 0.06, 1.0]) for _ in model.kinds]
    result, missed = chosen_within(models, budget, {"q": bound}, chances)

    def late(modes: Modes) -> list[int]:
        costs_of_modes = evaluate(model, modes).per_kind
        kinds = zip(costs_of_modes, chances, strict=True)
        return [
            kind for kind, (ms, chance) in enumerate(kinds) if chance > 0.05 and 1.5 * ms > bound.ms
        ]

    late_now, late_before = late(result.queries["q"].modes), late(plain.queries["q"].modes)
    reported = BoundChecks(models, {"q": bound}, chances).late(modes_of(result))
    assert reported == [("q", kind) for kind in late_now]
    assert len(late_now) <= len(late_before)
    assert result.exceeds == plain.exceeds
    assert result.bytes <= max(budget, plain.bytes) or (plain.exceeds and budget)
    assert bool(missed) == bool(late_now)
    every = every_option(model)
    for miss in missed:
        sufficient = [
            option.bytes for option in every if not set(late(option.modes)) & set(late_now)
        ]
        assert miss.ms == max(
            evaluate(model, result.queries["q"].modes).per_kind[k] for k in late_now
        )
        if miss.enough is None:
            assert not sufficient
        else:
            # `enough` bytes suffice. Fewer may, since the choice with the least work can be larger.
            assert min(sufficient) <= miss.enough <= most


def test_no_choice_is_made_where_state_is_no_help(monkeypatch: MonkeyPatch) -> None:
    choices_made = spied(monkeypatch, keep_to, "choose")
    model = frequent_and_rare(1)
    slower = OperatorCosts(work=(9.0, 9.0))
    slow = replace(model, operators=(*model.operators, slower))
    _, (miss,) = chosen_within({"q": slow}, 11, {"q": Bound(13.0, "fresh_within 13ms")}, (1, 1))
    assert (len(choices_made), miss.enough) == (1, None)
    assert "with all of it" in missed_bound_text(miss, 0)
    choices_made.clear()
    chosen_within({"q": slow}, 2, {"q": Bound(14.0, "fresh_within 14ms")}, (1, 1))
    assert len(choices_made) == 11, "ten more attempts, since no choice fits"


def test_text_says_what_is_needed() -> None:
    bound = {"q": Bound(1.0, "fresh_within 1ms")}
    _, (miss,) = chosen_within({"q": frequent_and_rare(1)}, 11, bound, (1, 1))
    text = missed_bound_text(miss, 4_989)
    assert "`q` may miss fresh_within 1ms: when s changes" in text
    assert "with 5 kB of state for all queries" in text
    assert text.endswith(f"[{BOUND_IMPOSSIBLE}]")


def test_shortest_bound_of_a_query_counts(tmp_path: Path) -> None:
    triggers = {
        "a": {"trigger": {"every": "1h", "ready_within": "5s"}},
        "b": {"trigger": {"fresh_within": "10m"}},
        "c": {},
        "d": {"trigger": "commit"},
    }
    queries = {name: {"sql": "SELECT x FROM t", **settings} for name, settings in triggers.items()}
    file = write_files(tmp_path, {"tables": "t", "queries": queries})
    specs = load_workload(file, {}).queries.values()
    assert {name: bound.ms for name, bound in bounds_of(specs).items()} == {
        "a": 5_000,
        "b": 600_000,
    }


def budget_warning(cli: Cli, budget: str) -> str:
    (warning,) = [text for text in cli.warnings("maintain", "--disk", budget) if EXCEEDED in text]
    return warning


EXCEEDED = "[budget_exceeded]"


def test_unreachable_budget_drops_nothing_and_suggests_one(captured: Cli) -> None:
    change(captured.folder, random.Random(1), 0)
    warning = budget_warning(captured, "100B")
    assert ", so no more of it is removed; raise the budget to " in warning
    assert not read_pieces(captured.folder, "two")
    assert not read_pieces(captured.folder, "l")
    enough = warning.split("raise the budget to ")[1].split(", or ")[0].replace(" ", "")
    captured.good("maintain", "--disk", enough)
    assert read_pieces(captured.folder, "two"), "within reach"


@pytest.mark.slow
def test_first_capture_keeps_valuable_state_over_an_unreachable_budget(cli: Cli) -> None:
    """Large state is not built at first. At the change rates in the file, it is worth its bytes."""
    for interval in ("1h", "5h"):
        cli.edit(f"every: {interval}", "every: 1m")
    assert is_over_budget(cli.good("capture", "--disk", "100B"))
    assert not read_pieces(cli.folder, "two")
    # A lower budget does not make state larger, whatever it would save.
    change(cli.folder, random.Random(1), 0)
    cli.good("maintain", "--disk", "0")
    least = read_pieces(cli.folder, "two")
    change(cli.folder, random.Random(2), 1)
    assert is_over_budget(cli.good("maintain", "--disk", "100B"))
    assert read_pieces(cli.folder, "two") == least != []


def test_result_larger_than_the_budget_is_named(tmp_path: Path, capsys: Capsys) -> None:
    queries = [("two", QUERIES["two"], "index"), ("l", QUERIES["l"], "index, answer: true")]
    cli = Cli(capsys, write_workload(tmp_path, queries)).captured()
    assert budget_warning(cli, "0").endswith(
        "or store the state of fewer queries [budget_exceeded]"
    )
    with Store.open(tmp_path / ".impctl", create=False) as store:
        size = sum(run.bytes for name in ("two", "l") for run in store.run_refs(name))
    assert "or drop the result of query `l` (" in budget_warning(cli, f"{size - 1}B")


def recorded_runs(folder: Path) -> tuple[list[str], list[RunCost]]:
    """The state layouts of the runs of `two`, and the runs usable for estimates now."""
    with Store.open(folder / ".impctl", create=False) as store:
        costs, usable = store.costs("two"), recorded(store, store.load("two"))
    return [cost.layout for cost in costs if cost.kind is RunKind.MAINTAIN], usable


def test_costs_of_runs_with_other_state_modes_are_ignored(captured: Cli) -> None:
    """Estimates, recapture decisions, `plan` and `simulate` use runs with the current state modes.
    The time of a conversion is added to that of the capture."""
    rng = random.Random(1)
    for step in range(3):
        change(captured.folder, rng, step)
        captured.good("maintain", *(["--disk", "0"] if step else []))
    layouts, usable = recorded_runs(captured.folder)
    assert [bool(layout) for layout in layouts] == [True, False, False], "the second was converted"
    assert [cost.kind for cost in usable] == [RunKind.MAINTAIN, RunKind.RECAPTURE]
    assert {cost.layout for cost in usable} == {layouts[0]}
    change(captured.folder, rng, 3)
    planned = captured.one("plan", "--query", "two")
    assert (planned["maintain_runs"], planned["recapture_runs"]) == (1, 1)
    captured.good("maintain", "--disk", "1GB")
    _, usable_again = recorded_runs(captured.folder)
    assert {cost.layout for cost in usable_again} == {""} or read_pieces(captured.folder, "two")


TABLES = tuple(f"t{number}" for number in range(5))


class World:
    """A model, the modes of its pieces, and the true times of each kind of run."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        drawn = drawn_model(self.random)
        self.model = drawn.with_pieces(lambda piece: replace(piece, sizes={KEPT: 9, READ: 1}))
        self.modes = {piece.name: self.random.choice((KEPT, READ)) for piece in self.model.pieces}
        kinds = range(len(self.model.kinds))
        self.rows = [self.random.uniform(1, 1e4) for _ in kinds]
        self.overhead = [10 ** self.random.uniform(-2, 3) for _ in kinds]
        self.times = {
            (index, kind): 10 ** self.random.uniform(-1.2, 1.2)
            for index in range(len(self.model.operators))
            for kind in kinds
        }
        self.read_ms = {name: 10 ** self.random.uniform(-1, 3) for name in self.modes}

    def work(self, index: int, kind: int) -> float:
        """The true time of the operator in a run with the expected number of rows."""
        operator = self.model.operators[index]
        costs = [
            piece.noted if self.modes[piece.name] is READ else piece.stored
            for piece in operator.pieces
        ]
        return sum(cost[kind] for cost in (operator.work, *costs) if cost) * self.times[index, kind]

    def run(self, kind: int, *, has_reads: bool = True) -> RunCost:
        """A run with another number of rows; with `has_reads`, it read every side in mode READ."""
        share = self.random.uniform(0.2, 5)
        reads = tuple(
            SideRead(name, 3, 1, 7, self.read_ms[name]) if has_reads else SideRead(name)
            for name, mode in self.modes.items()
            if mode is READ
        )
        side_ms = {read.side: read.ms for read in reads}
        operators = []
        for index, operator in enumerate(self.model.operators):
            read_ms = sum(side_ms.get(piece.name, 0.0) for piece in operator.pieces)
            operators.append(self.work(index, kind) * (0.3 + 0.7 * share) + read_ms)
        elapsed = sum(operators) + self.overhead[kind] * (0.5 + 0.5 * share)
        tables = tuple(sorted(self.model.kinds[kind].tables))
        rows = round(self.rows[kind] * share)
        self.rows[kind] = self.rows[kind] if rows else 0.0
        parts = RunParts(tuple(operators), reads)
        # Lines are fitted to whole rows, so rounding must not matter.
        return RunCost(RunKind.MAINTAIN, rows, 0, elapsed, moved=tables, parts=parts)

    def learned(self, costs: Sequence[RunCost]) -> StateModel:
        return priced(self.model, TABLES, self.modes, costs, self.rows)


def distinct_kinds(world: World) -> list[int]:
    """Kinds of change whose tables no other kind has."""
    tables = [kind.tables for kind in world.model.kinds]
    return [number for number, kind_tables in enumerate(tables) if tables.count(kind_tables) == 1]


@random_seeds(10, 35, 200)
def test_estimates_match_runs_of_the_same_kind(seed: int) -> None:
    world = World(seed)
    world.rows = [1e6 for _ in world.rows]
    kinds = distinct_kinds(world)
    costs = [world.run(kind) for kind in kinds for _ in range(FEWEST)]
    learned = world.learned(costs)
    for kind in kinds:
        expected = world.overhead[kind]
        expected += sum(world.work(index, kind) for index in range(len(world.model.operators)))
        for piece in world.model.pieces:
            if world.modes[piece.name] is READ:
                hit = (FEWEST + piece.hit[kind]) / (FEWEST + 1)
                expected += hit * world.read_ms[piece.name]
        assert evaluate(learned, world.modes).per_kind[kind] == pytest.approx(expected, rel=1e-3)
        assert learned.runs[kind] == FEWEST


@random_seeds(4, 17, 30)
def test_few_runs_and_runs_of_other_tables_are_ignored(seed: int) -> None:
    world = World(seed)
    runs = [world.run(kind) for kind in range(len(world.model.kinds))]
    other_tables = [replace(run, moved=("elsewhere",)) for run in runs * FEWEST]
    without_parts = [replace(run, parts=None) for run in runs * FEWEST]
    without_tables = [replace(run, moved=()) for run in runs * FEWEST]
    recaptures = [replace(run, kind=RunKind.RECAPTURE) for run in runs * FEWEST]
    for costs in (runs[:1] * (FEWEST - 1), without_parts, recaptures):
        learned = world.learned(costs)
        assert learned.operators == world.learned([]).operators
        assert not any(learned.runs)
    for costs in (other_tables, without_tables):
        # A read costs the same whatever change causes it, but its chance differs.
        for before, after in zip(world.model.pieces, world.learned(costs).pieces, strict=True):
            assert (after.hit, after.stored) == (before.hit, before.stored)


@random_seeds(8, 34, 60)
def test_runs_in_one_mode_do_not_price_the_other(seed: int) -> None:
    """After a conversion, only the operator's own past times are of other modes."""
    world = World(seed)
    kinds = distinct_kinds(world)
    if not kinds or not world.model.pieces:
        return
    costs = [world.run(kind) for kind in kinds for _ in range(FEWEST)]
    converted = world.random.choice(world.model.pieces).name
    is_read = world.modes[converted] is READ
    world.modes[converted] = KEPT if is_read else READ
    operators = world.model.operators
    (index,) = (
        number
        for number, operator in enumerate(operators)
        if converted in [p.name for p in operator.pieces]
    )
    learned = world.learned(costs)
    for kind in kinds:
        known = [
            world.times[other, kind]
            for other in range(len(operators))
            if other != index and world.work(other, kind) > 0
        ]
        low, high = (min(known), max(known)) if known else (1.0, 1.0)
        # The factor is the overall one of the other operators.
        before, after = (
            sum(piece.stored[kind] for piece in model.operators[index].pieces if piece.stored)
            for model in (world.model, learned)
        )
        assert before * low * 0.99 <= after <= before * high * 1.01


def test_rare_reads_keep_a_chance() -> None:
    world = next(w for w in map(World, range(500)) if _has_certain_read(w))
    kind, name = _has_certain_read(world)[0]
    for count in range(FEWEST, 9):
        learned = world.learned([world.run(kind, has_reads=False) for _ in range(count)])
        (piece,) = (one for one in learned.pieces if one.name == name)
        assert piece.hit[kind] == pytest.approx(1 / (count + 1))


def _bounded_model() -> StateModel:
    sizes = {KEPT: 9, READ: 1, BOUNDED: 2}
    kinds = tuple(KindOfChange(frozenset({table}), 1.0) for table in "tu")
    keyed = OperatorCosts(pieces=(piece_of("p", sizes, kinds=2, stored=1.0, refill=(5.0, 0.0)),))
    return StateModel((OperatorCosts(), keyed), kinds)


def _bounded_runs(runs: int, refilled: int) -> list[RunCost]:
    """Runs of which the first `refilled` ones refilled buffers."""
    result = []
    for number in range(runs):
        read = SideRead("p.buffer", 2, 2, 50, 30.0) if number < refilled else SideRead("p.buffer")
        parts = RunParts((0.0, 2.0 + read.ms), (read,))
        ms = sum(parts.times)
        result.append(RunCost(RunKind.MAINTAIN, 7, 0, ms, moved=("t",), parts=parts))
    return result


def test_refills_cost_their_time_times_their_frequency() -> None:
    model, rows = _bounded_model(), [7.0, 7.0]

    def learned(runs: int, refilled: int) -> Piece:
        bounded = {"p": BOUNDED}
        (piece,) = priced(model, ("t", "u"), bounded, _bounded_runs(runs, refilled), rows).pieces
        return piece

    piece = learned(5, 3)
    # The prior estimate counts as one more run.
    assert piece.refill == pytest.approx(((3 + 1) / (5 + 1) * 30.0, 0.0))
    assert piece.stored == pytest.approx((2.0, 1.0))
    assert learned(4, 0).refill == pytest.approx((5.0 / (4 + 1), 0.0))


@pytest.mark.parametrize("mode", [KEPT, READ])
def test_runs_with_a_bounded_piece_price_no_other_mode(mode: PieceMode) -> None:
    model, costs = _bounded_model(), _bounded_runs(5, 3)
    learned = priced(model, ("t", "u"), {"p": mode}, costs, [7.0, 7.0])
    (piece,) = learned.pieces
    assert model.pieces == (replace(piece, refill=model.pieces[0].refill),)


def _has_certain_read(world: World) -> list[tuple[int, str]]:
    return [
        (kind, piece.name)
        for kind in distinct_kinds(world)
        for piece in world.model.pieces
        if world.modes[piece.name] is READ and piece.hit[kind] == 1.0
    ]


@pytest.fixture
def cli_of_two(tmp_path: Path, capsys: Capsys) -> Cli:
    return Cli(capsys, write_workload(tmp_path, [("two", QUERIES["two"], "auto")]))


def costs_in(folder: Path) -> list[RunCost]:
    with Store.open(folder / ".impctl", create=False) as store:
        return [cost for cost in store.costs("two") if cost.kind is RunKind.MAINTAIN]


@pytest.mark.slow
def test_runs_record_operator_times_and_reads(cli_of_two: Cli) -> None:
    cli_of_two.good("capture")
    rng = random.Random(1)
    change(cli_of_two.folder, rng, 0)
    cli_of_two.good("maintain", "--disk", "0")
    (kept,) = costs_in(cli_of_two.folder)
    assert not kept.parts.reads
    assert 0 < sum(kept.parts.times) <= kept.elapsed_ms
    change(cli_of_two.folder, rng, 1)
    with open_context(Settings(cli_of_two.workload)) as ctx:
        (spec,), sketch = ctx.sketched(None), stored(cli_of_two.folder, "two")
        moved = pending_of(ctx, spec, sketch, 4e9, CommitLog()).moved
    cli_of_two.good("maintain")
    latest, *_ = costs_in(cli_of_two.folder)
    assert latest.moved == tuple(sorted(moved)) == ("t", "u")
    names = ["aggregate0", "join0.left", "join0.right"]
    assert [read.side for read in latest.parts.reads] == names
    for read in latest.parts.reads:
        assert (read.keys > 0) == (read.ms > 0)
        assert read.hits <= min(read.keys, read.rows)
    assert sum(read.rows for read in latest.parts.reads) > 0
    assert sum(read.ms for read in latest.parts.reads) <= sum(latest.parts.times)


@pytest.mark.slow
def test_plan_reports_run_count(cli_of_two: Cli) -> None:
    changes = "changes: {every: 1h, rows: 10, deletes: 50%}"
    for table in "tu":
        cli_of_two.edit(f"{table}: {{path: {table}}}", f"{table}: {{path: {table}, {changes}}}")
    cli_of_two.good("capture")
    rng = random.Random(1)
    for step in range(FEWEST):
        change(cli_of_two.folder, rng, 2 * step)
        cli_of_two.good("maintain")
        reasons = [piece["reason"] for piece in cli_of_two.one("plan", "--disk", "1GB")["state"]]
        is_known = step == FEWEST - 1
        assert any(f"from {step + 1} runs" in piece for piece in reasons) == is_known, reasons
