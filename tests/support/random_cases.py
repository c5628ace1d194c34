"""How many random cases a test tries: a few in a fast run, the rest only where long tests run.

Law: the two parts are together all the cases, and disjoint unless told otherwise; what a test asks
of their number is a share of the cases it was given. IMPCTL_FUZZ multiplies both parts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

TIMES = int(os.environ.get("IMPCTL_FUZZ", "1"))
_BY_HAND = (pytest.mark.slow, pytest.mark.long)


def few_then_rest(
    few: int, total: int, *, first: int = 0, anew: bool = False
) -> pytest.MarkDecorator:
    """Gives a test `cases`, a range of seeds: `few` of `total`, and those left over if long.

    `anew` makes the long part all of them, where only all together show what a test asks for.
    """
    start, middle, end = first, first + few * TIMES, first + total * TIMES
    return pytest.mark.parametrize(
        "cases",
        [
            pytest.param(range(start, middle), id="few"),
            pytest.param(range(start if anew else middle, end), id="rest", marks=_BY_HAND),
        ],
    )


def half_then_rest(values: Iterable[object]) -> list[Any]:
    """Values of a parameter, every second one of them by hand: Spark takes a second for each."""
    return [
        pytest.param(value, marks=_BY_HAND if number % 2 else ())
        for number, value in enumerate(values)
    ]


def few_seeds_then_rest(few: int, total: int) -> pytest.MarkDecorator:
    """Gives a test `seed`, one after the other; all but the first few of them if long."""
    first = [pytest.param(seed) for seed in range(few * TIMES)]
    rest = [pytest.param(s, marks=_BY_HAND) for s in range(few * TIMES, total * TIMES)]
    return pytest.mark.parametrize("seed", [*first, *rest])
