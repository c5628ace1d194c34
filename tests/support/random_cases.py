"""How many random cases a test tries: a few in `make test`, more in `make check`, the rest by hand.

If a test asserts a number of cases, it must be a share of `cases`. IMPCTL_FUZZ multiplies all
parts.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.expression import Expression
from hypothesis import settings
from hypothesis import strategies as st

TIMES = int(os.environ.get("IMPCTL_FUZZ", "1"))
FEW = settings(max_examples=20 * TIMES, deadline=None)
"""For tests by Hypothesis, which tries other examples in every run."""
CHARACTERS = st.characters(exclude_categories=["Cs"])
"""All characters of UTF-8. `st.text()` asks the codec about each, which takes three seconds."""
_CHECK = (pytest.mark.slow,)
_LONG = (pytest.mark.slow, pytest.mark.long)


def random_cases(
    fast: int,
    check: int,
    total: int,
    *,
    also: str = "",
    first: int = 0,
    all_when_long: bool = False,
) -> pytest.MarkDecorator:
    """Parametrizes `cases` with seeds: some for `make test`, more for `make check`, the rest.

    The fast part is the first `fast` seeds and those in `also` ("3 7-9"), which execute branches
    that the first do not, or kill mutants. The check part has these seeds too, so that
    assertions about shares hold; a run that selects it skips the fast part. The long part has them
    only with `all_when_long`. Seeds are counted from `first`.
    """
    return pytest.mark.random_cases(fast, check, total, also, first, all_when_long)


def cases_wanted(
    definition: pytest.Item,
    fast: int,
    check: int,
    total: int,
    also: str,
    first: int,
    all_when_long: bool,
) -> list[Any]:
    """The parts that the marker expression of this run selects."""
    seeds = range(first, first + total * TIMES)
    known = {*seeds[: fast * TIMES], *(first + seed for seed in _numbers(also))}
    others = [seed for seed in seeds if seed not in known]
    more = (check - fast) * TIMES
    parts = [
        pytest.param(sorted(known), id="fast"),
        pytest.param(sorted([*known, *others[:more]]), id="check", marks=_CHECK),
        pytest.param(seeds if all_when_long else others[more:], id="long", marks=_LONG),
    ]
    is_wanted = _selection(definition)
    if is_wanted(_CHECK):
        del parts[0]
    return [part for part in parts if part.values[0] and is_wanted(part.marks)]


def seen_in(cases: Iterable[int], one_case: Callable[[int, Counter[str]], object]) -> Counter[str]:
    """The sum of the counts of all cases."""
    counts: Counter[str] = Counter()
    for case in cases:
        one_case(case, counts)
    return counts


def _numbers(text: str) -> Iterator[int]:
    for part in text.split():
        low, _, high = part.partition("-")
        yield from range(int(low), int(high or low) + 1)


@cache
def _listed_seeds() -> dict[str, str]:
    text = (Path(__file__).parent / "more_seeds.txt").read_text(encoding="utf-8")
    return dict(line.split(": ") for line in text.splitlines())


def more_seeds(name: str) -> str:
    """Seeds beyond the first ones, as `more_seeds.txt` lists them under a name."""
    return _listed_seeds()[name]


def random_seeds(fast: int, check: int, total: int) -> pytest.MarkDecorator:
    """Parametrizes `seed`, one at a time (`tests/conftest.py` does it: see `seeds_wanted`)."""
    return pytest.mark.random_seeds(fast, check, total)


def seeds_wanted(definition: pytest.Item, fast: int, check: int, total: int) -> list[Any]:
    """The seeds that the marker expression of this run selects.

    Pytest would create an item for each before deselecting it: 30,000 items take 5 s.
    """
    is_wanted = _selection(definition)
    parts = [
        (range(fast * TIMES), ()),
        (range(fast * TIMES, check * TIMES), _CHECK),
        (range(check * TIMES, total * TIMES), _LONG),
    ]
    return [
        pytest.param(seed, marks=marks)
        for seeds, marks in parts
        if is_wanted(marks)
        for seed in seeds
    ]


def _selection(definition: pytest.Item) -> Callable[[Iterable[pytest.MarkDecorator]], bool]:
    """Whether this run selects an item of this test that has these marks as well."""
    others = {mark.name for mark in definition.iter_markers()}
    expression = Expression.compile(definition.config.getoption("markexpr") or "fast or not fast")

    def is_wanted(marks: Iterable[pytest.MarkDecorator]) -> bool:
        return expression.evaluate((others | {mark.name for mark in marks}).__contains__)

    return is_wanted


def quarter_then_rest(values: Iterable[object]) -> list[Any]:
    """Values of a parameter, three of four only when long: Spark takes a second for each."""
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)), marks=_LONG if number % 4 else ()
        )
        for number, value in enumerate(values)
    ]
