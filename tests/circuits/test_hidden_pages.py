"""State of which only what was looked at is right gives what any other state gives.

The random plans, trees and circles of other files, restarted over pages that hold other bytes until
they are looked at (`tests.support.hidden_pages`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.circuits import test_plans_against_reference as plans
from tests.circuits.trees import test_answers as answers
from tests.circuits.trees import test_built as trees
from tests.engine.probing.test_probe import run as circle
from tests.support.hidden_pages import hiding, open_share

Case = Callable[[int, Counter[str]], object]
CASES: dict[str, tuple[Case, int]] = {
    "plans": (plans.one_case, 40),
    "trees": (trees.one_case, 25),
    "answers": (answers.one_case, 10),
    "circles": (lambda seed, _: circle(seed), 15),
}


@pytest.mark.parametrize("are_codes_shown", [True, False])
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("times", [1, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.long])])
def test_nothing_is_used_that_was_not_looked_at(
    kind: str, times: int, *, are_codes_shown: bool
) -> None:
    case, count = CASES[kind]
    seen: Counter[str] = Counter()
    with hiding(are_codes_shown=are_codes_shown) as loaded:
        for seed in range(count * times):
            case(seed, seen)
    assert len(loaded) > count
    assert open_share(loaded) > 0.1
