"""State whose pages are valid only once they are read gives the same results.
The random plans, trees and cycles of other files, restarted over pages that hold other bytes until
they are read (`tests.support.paged_tables`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product

import pytest

from tests.compile import test_plans as plans
from tests.compile.jointree import test_answers as answers
from tests.compile.jointree import test_build as trees
from tests.engine.jointree.test_cyclic import run as circle
from tests.support.paged_tables import hiding, open_share
from tests.support.random_cases import random_cases

Case = Callable[[int, Counter[str]], object]
CASES: dict[str, tuple[Case, int]] = {  # with the seeds that count as one
    "plans": (plans.one_case, 5),
    "trees": (trees.one_case, 3),
    "answers": (answers.one_case, 2),
    "circles": (lambda seed, _: circle(seed), 2),
}


@pytest.mark.parametrize("are_codes_shown", [True, False])
@pytest.mark.parametrize("kind", CASES)
@random_cases(0, 1, 100, also="1")
def test_unread_pages_do_not_affect_results(
    kind: str, cases: Sequence[int], *, are_codes_shown: bool
) -> None:
    case, count = CASES[kind]
    with hiding(are_codes_shown=are_codes_shown) as loaded:
        for part, offset in product(cases, range(count)):
            case(part * count + offset, Counter())
    assert len(loaded) > count * len(cases)
    assert open_share(loaded) > 0.1
