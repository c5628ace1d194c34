"""How many random cases a test tries: a few in `make test`, more in `make check`, the rest by hand.

The parts are disjoint, so `make test-all` tries every case once. What a test asks of the number of
cases must be a share of those it was given. IMPCTL_FUZZ multiplies all parts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark.expression import Expression
from hypothesis import settings

TIMES = int(os.environ.get("IMPCTL_FUZZ", "1"))
FEW = settings(max_examples=20 * TIMES, deadline=None)
"""For tests by Hypothesis, which tries other examples in every run."""
_CHECK = (pytest.mark.slow,)
_LONG = (pytest.mark.slow, pytest.mark.long)


def random_cases(
    fast: int,
    check: int,
    total: int,
    *,
    first: int = 0,
    also: str = "",
    all_when_long: bool = False,
) -> pytest.MarkDecorator:
    """Parametrizes `cases`, seeds: the first `fast` and those in `also`, those up to `check`, the
    rest.

    Those in `also`, counted from `first`, execute branches that the first do not, or kill mutants.
    `all_when_long` makes the long part all of them, where only all together show what is asserted.
    """
    start, fast_end, check_end, end = (first + n * TIMES for n in (0, fast, check, total))
    chosen = [first + int(number) for number in also.split()]
    parts = [
        pytest.param([*range(start, fast_end), *chosen], id="fast"),
        pytest.param(range(fast_end, check_end), id="check", marks=_CHECK),
        pytest.param(range(start if all_when_long else check_end, end), id="long", marks=_LONG),
    ]
    return pytest.mark.parametrize("cases", [part for part in parts if part.values[0]])


def chosen_cases(chosen: str, check: int, total: int) -> pytest.MarkDecorator:
    """Parametrizes `cases`: seeds in `chosen` ("0-9 31 70"), `check` others, those up to `total`.

    The chosen ones together execute every branch that many seeds execute, and kill known mutants.
    """
    known = tuple(seed for part in chosen.split() for seed in _seeds(*part.split("-")))
    others = [seed for seed in range(total * TIMES) if seed not in known]
    parts = [
        pytest.param(known, id="fast"),
        pytest.param(others[: check * TIMES], id="check", marks=_CHECK),
        pytest.param(others[check * TIMES :], id="long", marks=_LONG),
    ]
    return pytest.mark.parametrize("cases", parts)


def _seeds(first: str, last: str = "") -> range:
    return range(int(first), int(last or first) + 1)


def random_seeds(fast: int, check: int, total: int) -> pytest.MarkDecorator:
    """Parametrizes `seed`, one at a time (`tests/conftest.py` does it: see `seeds_wanted`)."""
    return pytest.mark.random_seeds(fast, check, total)


def seeds_wanted(definition: pytest.Item, fast: int, check: int, total: int) -> list[Any]:
    """The seeds, without those that the marker expression of this run leaves out.

    Pytest would make an item for each before it leaves it out: 30,000 items take 5 s.
    """
    others = {mark.name for mark in definition.iter_markers()}
    wanted = Expression.compile(definition.config.getoption("markexpr") or "fast or not fast")
    parts = [
        (range(fast * TIMES), ()),
        (range(fast * TIMES, check * TIMES), _CHECK),
        (range(check * TIMES, total * TIMES), _LONG),
    ]
    return [
        pytest.param(seed, marks=marks)
        for seeds, marks in parts
        if wanted.evaluate((others | {mark.name for mark in marks}).__contains__)
        for seed in seeds
    ]


def half_then_rest(values: Iterable[object]) -> list[Any]:
    """Values of a parameter, every second one only when long: Spark takes a second for each."""
    return [
        pytest.param(value, marks=_LONG if number % 2 else ())
        for number, value in enumerate(values)
    ]
