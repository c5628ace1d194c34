"""The choice for one query, compared with brute force; several queries under one budget."""

from __future__ import annotations

from itertools import product
from math import log, log1p
from random import Random

import pytest
from msgspec.structs import replace

from benchmarks.state.simpler_choices import SIMPLER_CHOICES
from impctl.placement import (
    THIN,
    Frontier,
    KindOfChange,
    OperatorCosts,
    PerKind,
    Piece,
    PieceMode,
    StateChoice,
    StateModel,
    added,
    choose,
    frontier_of,
    per_day,
    per_day_together,
)
from tests.placement import tpch
from tests.placement.models import (
    BOUNDED,
    KEPT,
    READ,
    drawn_model,
    every_option,
    largest,
    least_cost,
    model_of,
    piece_of,
)
from tests.support.random_cases import random_cases, random_seeds

CLOSE = {"rel": 1e-9, "abs": 1e-9}


@random_cases(25, 95, 10_000)
def test_best_choice_for_each_budget(cases: range) -> None:
    """Each point of the frontier has the reported size and cost. Thinned frontiers have fewer
    points, at slightly higher costs."""
    dropped = 0
    for seed in cases:
        model = drawn_model(Random(seed))
        options = every_option(model)
        frontier = frontier_of([model], thin=0.0)
        assert frontier.bytes[0] == min(option.bytes for option in options), seed
        for i, (size, cost) in enumerate(pairs(frontier)):
            (modes,) = frontier.modes(i, [model])
            assert modes.keys() == {piece.name for piece in model.pieces}
            assert model.bytes_of(modes) == size
            assert per_day(model, modes) == pytest.approx(cost, **CLOSE)
        for budget in {option.bytes for option in options}:
            cost = frontier.cost[frontier.best_within(budget)]
            assert cost == pytest.approx(least_cost(options, budget), **CLOSE), (seed, budget)
        for thin in (THIN, 0.2):
            thinned = frontier_of([model], thin=thin)
            dropped += len(frontier) - len(thinned)
            for size, cost in pairs(frontier):
                i = thinned.best_within(size)
                assert thinned.bytes[i] <= size
                assert thinned.cost[i] <= cost * (1 + thin) ** len(model.pieces) + 1e-9
    assert dropped > 0


def naive(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    return sorted(
        {
            (size, cost)
            for size, cost in points
            if not any((a <= size and b < cost) or (a < size and b <= cost) for a, b in points)
        }
    )


def pairs(frontier: Frontier) -> list[tuple[int, float]]:
    return list(zip(frontier.bytes.tolist(), frontier.cost.tolist(), strict=True))


def test_sums_of_points() -> None:
    """Including equal sizes and equal costs."""
    random = Random(3)
    for _ in range(50):
        drawn = [
            [(random.randint(0, 6), float(random.randint(0, 6)), mode) for mode in PieceMode]
            for _ in range(4)
        ]
        result = frontier_of([model_of(kinds=KINDS_OF_CHANGE)])
        points = [(0, 0.0)]
        for options in drawn:
            result = added(result, options, 0.0)
            points = [(a + c, b + d) for a, b in points for c, d, _ in options]
            assert pairs(result) == naive(points)


KINDS_OF_CHANGE = (KindOfChange(frozenset({"r"}), 2.0), KindOfChange(frozenset({"s"}), 0.1))


@random_seeds(12, 36, 120)
def test_best_choice_for_a_shared_budget(seed: int) -> None:
    """Including budgets one byte below a choice."""
    random = Random(seed)
    drawn = [drawn_model(random, 3) for _ in range(3)]
    kinds = drawn[0].kinds
    models = [_with_kinds(model, kinds) for model in drawn]
    every = [
        (sum(option.bytes for option in options), sum(option.cost for option in options))
        for options in product(*map(every_option, models))
    ]
    least, most = min(size for size, _ in every), sum(map(largest, models))
    close = {size - 1 for size, _ in random.sample(every, min(20, len(every))) if size}
    frontier = frontier_of(models, thin=0.0)
    for budget in {0, least, most // 7, most // 3, most // 2, most} | close:
        i = frontier.best_within(budget)
        assert frontier.bytes[i] <= max(budget, least)
        modes = frontier.modes(i, models)
        costs = [per_day(model, each) for model, each in zip(models, modes, strict=True)]
        sizes = [model.bytes_of(each) for model, each in zip(models, modes, strict=True)]
        assert sum(sizes) == frontier.bytes[i]
        assert sum(costs) == pytest.approx(frontier.cost[i], **CLOSE)
        fitting = [cost for size, cost in every if size <= max(budget, least)]
        assert sum(costs) == pytest.approx(min(fitting), **CLOSE)


def _with_kinds(model: StateModel, kinds: tuple[KindOfChange, ...]) -> StateModel:
    """The model with other kinds of change, reusing its costs in turn."""

    def moved(costs: PerKind) -> PerKind:
        return tuple(costs[i % len(costs)] for i in range(len(kinds))) if costs else ()

    def piece_under(piece: Piece) -> Piece:
        names = ("stored", "noted", "read", "hit", "refill")
        return replace(piece, **{name: moved(getattr(piece, name)) for name in names})

    operators = tuple(
        OperatorCosts(work=moved(each.work), pieces=tuple(map(piece_under, each.pieces)))
        for each in model.operators
    )
    return StateModel(operators, kinds)


@random_seeds(12, 36, 120)
def test_urgency_affects_choice_not_costs(seed: int) -> None:
    random = Random(seed)
    model = drawn_model(random)
    budget = random.randint(0, largest(model))
    urgency = [random.choice([1.0, 2.0, 1024.0]) for _ in model.kinds]
    result = choose({"q": model}, budget, urgency=urgency)
    kinds = zip(model.kinds, urgency, strict=True)
    often = replace(model, kinds=tuple(replace(kind, rate=kind.rate * u) for kind, u in kinds))
    query = result.queries["q"]
    assert query.modes == choose({"q": often}, budget).queries["q"].modes
    assert result.ms_per_day == pytest.approx(per_day(model, query.modes))
    assert query.ms_per_day == pytest.approx(per_day(model, query.modes))


def choices(models: list[StateModel], budget: int | None) -> StateChoice:
    return choose({f"q{i}": model for i, model in enumerate(models)}, budget, thin=0.0)


@random_cases(10, 25, 80)
def test_reported_values(cases: range) -> None:
    for seed in cases:
        model = drawn_model(Random(seed))
        best = frontier_of([model], thin=0.0)
        for budget in (0, largest(model) // 3, None):
            result = choices([model], budget)
            query = result.queries["q0"]
            assert result.bytes == query.bytes == model.bytes_of(query.modes)
            assert query.ms_per_day == pytest.approx(per_day(model, query.modes), **CLOSE)
            assert result.ms_per_day == pytest.approx(query.ms_per_day)
            assert result.exceeds == (budget is not None and result.bytes > budget)
            assert query.reasons.keys() == {piece.name for piece in model.pieces}
            assert all(query.reasons.values())
            i = len(best) - 1 if budget is None else best.best_within(budget)
            assert result.bytes == best.bytes[i]
            assert result.ms_per_day == pytest.approx(best.cost[i], **CLOSE)


def reading(name: str, size: int, read: float, rate: float = 2.0, table: str = "t") -> StateModel:
    """A query whose side for changes of `r` is kept or read from another table."""
    right = piece_of(
        f"{name}.right",
        {KEPT: size, READ: 0},
        stored=(1.0, 0.0),
        read=(read, 0.0),
        hit=(1.0, 1.0),
        source=(table,),
    )
    kinds = (KindOfChange(frozenset({"r"}), rate), KINDS_OF_CHANGE[1])
    return model_of(piece_of(f"{name}.left"), right, kinds=kinds)


def test_frontier_size_is_bounded_for_many_pieces() -> None:
    """Only costs bound the points. Ten times as many save less than two percent."""
    random = Random(5)
    pieces = [
        piece_of(
            f"p{i}",
            {KEPT: int(size), READ: int(size * random.uniform(0.01, 0.3))},
            stored=1.0,
            read=10 ** random.uniform(0, 4),
            hit=random.random(),
        )
        for i, size in enumerate(10 ** random.uniform(3, 9) for _ in range(100))
    ]
    model = model_of(*pieces, kinds=(KindOfChange(frozenset({"r"}), 2.0),))
    usual, exact = frontier_of([model]), frontier_of([model], thin=THIN / 10)
    assert 1000 < len(usual) <= log(usual.cost[0] / usual.cost[-1]) / log1p(THIN) + 2
    for budget in range(0, largest(model), largest(model) // 50):
        cost = usual.cost[usual.best_within(budget)]
        assert cost <= exact.cost[exact.best_within(budget)] * 1.02


def test_reads_that_are_shared_are_counted_once() -> None:
    """One read of `t` is more expensive than one of `u`, but three queries share it."""
    models = [reading(name, 10, 30.0) for name in ("a", "b", "c")]
    result = choices([*models, reading("d", 10, 25.0, table="u")], 10)
    modes = {name: mode for query in result.queries.values() for name, mode in query.modes.items()}
    kept = {name for name, mode in modes.items() if mode is KEPT}
    assert {name for name in kept if name.endswith("right")} == {"d.right"}
    assert result.ms_per_day == 2 * (30 + 1)
    assert sum(query.ms_per_day for query in result.queries.values()) == 2 * (3 * 30 + 1)


@pytest.mark.slow
def test_correction_is_used_only_if_cheaper() -> None:
    """Compared with the choice that ignores shared reads; two tables with random costs."""
    random = Random(3)
    better = 0
    for _ in range(25):
        models = [
            reading(f"q{i}", random.randint(1, 20), random.uniform(1, 60), table=table)
            for i, table in enumerate(random.choices("tu", k=6))
        ]
        budget = random.randint(0, 60)
        frontier = frontier_of(models, thin=0.0)
        first = frontier.modes(frontier.best_within(budget), models)
        alone = per_day_together(models, first)
        result = choices(models, budget)
        assert result.bytes <= budget
        assert result.ms_per_day <= alone * (1 + 1e-12)
        better += result.ms_per_day < alone
    assert better


def test_reasons_name_change_and_cost() -> None:
    def reported(name: str, *costs: float, budget: int | None = None) -> tuple[PieceMode, str]:
        query = choices([reading("a", 10, *costs)], budget).queries["q0"]
        return query.modes[name], query.reasons[name]

    assert reported("a.right", 41.0) == (
        KEPT,
        "r changes 2 times a day, and each change takes 40 ms more if it is read",
    )
    assert reported("a.right", 41.0, 0.5, budget=0) == (
        READ,
        "r changes once every 2 days, and each change takes 40 ms more because it is read",
    )
    assert reported("a.right", 0.0, 0.0) == (READ, "no change needs it")
    assert reported("a.left", 0.0)[1] == "nothing can replace it"
    whole = reading("a", 10, 41.0).with_pieces(lambda piece: replace(piece, is_whole=True))
    assert choices([whole], 0).queries["q0"].reasons["a.right"].endswith("because it is rebuilt")


@random_seeds(6, 12, 120)
def test_price_per_byte_without_budget(seed: int) -> None:
    model = drawn_model(Random(seed))
    for per_byte in (0.0, 0.01, 1.0, 100.0):
        result = choose({"q": model}, None, per_byte=per_byte)
        least = min(option.cost + per_byte * option.bytes for option in every_option(model))
        assert result.ms_per_day + per_byte * result.bytes == pytest.approx(least, **CLOSE)


def test_bad_arguments() -> None:
    model = reading("a", 10, 1.0)
    with pytest.raises(ValueError, match="below zero"):
        choices([model], -1)
    with pytest.raises(ValueError, match="different ways"):
        choices([model, reading("b", 10, 1.0, 7.0)], 1)
    assert choices([], 5) == StateChoice({}, 0, 0, exceeds=False)


def test_insufficient_budget_reports_least_size() -> None:
    model = model_of(piece_of("only", {KEPT: 50, BOUNDED: 30}), kinds=KINDS_OF_CHANGE)
    for budget, exceeds in ((59, True), (60, False)):
        result = choices([model, model], budget)
        assert (result.bytes, result.exceeds) == (60, exceeds)


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[] if one == "q3" else pytest.mark.slow) for one in tpch.NAMES]
)
def test_no_simpler_choice_is_cheaper_for_a_query(name: str) -> None:
    model = tpch.model(name)
    least = sum(min(piece.sizes.values()) for piece in model.pieces)
    for share in range(0, 21, 4):
        budget = least + (largest(model) - least) * share // 20
        result = choose({name: model}, budget)
        assert result.bytes <= budget
        for simpler, modes in SIMPLER_CHOICES.items():
            simpler_cost = per_day(model, modes(model, budget))
            assert result.ms_per_day <= simpler_cost * (1 + THIN), (simpler, share)
