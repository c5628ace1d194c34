"""What is kept in a setting: chosen, urged by bounds, and left as it is, as runs would have it."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from impctl.placement.graph import PRIORS, Graph, Mode
from impctl.placement.search import Modes, choose, evaluate, per_day
from impctl.service.budget.bounds import Bound
from impctl.service.budget.choice import Kept
from impctl.service.schedule.due import LEAST_MARGIN
from impctl.service.schedule.forecast import Expected
from impctl.service.schedule.simulate import Pieces
from tests.app.maintaining.keeping.test_looks import frequent_and_rare
from tests.circuits.keeping.drawn import tree
from tests.support.random_cases import random_seeds

SIZES = 6
"""Of changes, that prices are asked for."""


def pieces(
    graph: Graph, now: Modes, chance: float = 0.0, ms: float = 0.0, before: Modes | None = None
) -> Pieces:
    """Of one query, whose pieces take so many milliseconds each to convert; each kind of change
    comes with this chance within a day. `before` is how they are kept, where that may not stay."""
    tables = {table: 0 for kind in graph.kinds for table in kind.tables}
    query = cast(Any, SimpleNamespace(stored=SimpleNamespace(versions=tables)))
    takes = {name: dict.fromkeys(Mode, ms) for name in now}
    choice = choose({"q": graph}, None)
    then: Mapping[str, Modes] = {"q": now if before is None else before}
    kept = Kept({"q": query}, choice, 0, {}, {"q": graph}, then, {"q": takes})
    expected = tuple(
        Expected(kind.tables, kind.rate, dict.fromkeys(kind.tables, 10.0), chance=chance)
        for kind in graph.kinds
    )
    return Pieces(kept, expected, ({"q": graph},) * SIZES, {"q": now})


@pytest.mark.slow
def test_bounds_urge_what_a_rare_change_needs() -> None:
    urged_ones = 0
    for seed in range(20):
        graph = frequent_and_rare(seed)
        now = {"left": Mode.READ, "right": Mode.KEPT}
        result = pieces(graph, now, 0.06)
        none = result.within(11, {})
        assert (none.conversions, none.bytes) == (0, 11)
        # Both kinds are likely, and only one of them can be held: it goes by the work.
        assert result.within(11, {"q": Bound(1.0, "fresh_within 1ms")}).conversions == 0
        frequent, rare = evaluate(graph, {"left": Mode.READ, "right": Mode.READ}).per_kind
        if frequent < rare:
            # The frequent one is in time when it reads, too.
            bound = Bound(LEAST_MARGIN * (frequent + rare) / 2, "fresh_within")
            urged = result.within(11, {"q": bound})
            assert (urged.conversions, urged.bytes) == (1, 11)
            kept = evaluate(graph, {"left": Mode.KEPT, "right": Mode.READ}).per_kind
            assert urged.prices["q"][frozenset("s")].ms == (kept[1],) * SIZES
            assert pieces(graph, now, 0.05).within(11, {"q": bound}).conversions == 0
            urged_ones += 1
        # What bounds of one trigger urge is not told for another.
        assert result.within(11, {}) == none
    assert urged_ones > 5


@random_seeds(12, 36, 200)
def test_what_is_kept_stays_where_another_choice_does_not_pay(seed: int) -> None:
    rng = Random(seed)
    graph = tree(rng)
    now = {piece.name: rng.choice(piece.modes) for piece in graph.pieces}
    least = sum(min(piece.sizes.values()) for piece in graph.pieces)
    most = sum(max(piece.sizes.values()) for piece in graph.pieces)
    budget = rng.randint(least, most)
    then = choose({"q": graph}, budget).queries["q"].modes
    saved = per_day(graph, now) - per_day(graph, then)
    moved = sum(now[name] != mode for name, mode in then.items())
    is_over = graph.bytes_of(now) > budget
    for days in (6.9, 7.1):
        ms = max(0.0, (days * saved - PRIORS.conversion_ms) / moved) if moved else 0.0
        takes = PRIORS.conversion_ms + ms * moved
        pays = saved > 0 and saved >= 0.2 * per_day(graph, now) and takes <= 7.0 * saved
        within = pieces(graph, now, ms=ms).within(budget, {})
        assert within.conversions == (1 if moved and (is_over or pays) else 0)
        assert within.bytes == graph.bytes_of(then if is_over or pays else now)
        assert not within.exceeds


@pytest.mark.slow
def test_what_may_not_stay_as_it_is_goes_whatever_it_costs() -> None:
    rng = Random(3)
    for _ in range(15):
        graph = tree(rng)
        now = {piece.name: rng.choice(piece.modes) for piece in graph.pieces}
        then = choose({"q": graph}, 10**9).queries["q"].modes
        before = dict.fromkeys(now, Mode.BOUNDED)
        if now in (then, before):
            continue
        assert pieces(graph, now, ms=1e12).within(10**9, {}).conversions == 0
        assert pieces(graph, now, ms=1e12, before=before).within(10**9, {}).conversions == 1
