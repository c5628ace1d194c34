"""Random plans with a fixpoint, as those without: sketches equal the reference's lineage.

Fixpoints of UNION ALL have levels that end them.

By hand: `IMPCTL_FUZZ=10` and `-m slow` for 6,000 plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from tests.circuits.test_plans_against_reference import several_cases
from tests.plan.bag_plans import make_bag_trial
from tests.plan.fixpoint_plans import make_fixpoint_trial
from tests.plan.trials import Trial
from tests.support.random_cases import TIMES


@pytest.mark.parametrize("make", [make_fixpoint_trial, make_bag_trial], ids=["set", "bag"])
@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(range(150), id="few"),
        pytest.param(range(600 * TIMES), id="all", marks=pytest.mark.slow),
    ],
)
def test_sketches_of_random_plans_with_a_fixpoint(
    cases: Sequence[int], make: Callable[[int], Trial]
) -> None:
    seen: Counter[str] = Counter()
    several_cases(cases, seen, make)
    assert seen["exact"] > len(cases) // 3, seen
    for kind in ("Fixpoint", "inner", "Aggregate", "TopK", "union", "semi", "anti", "left"):
        assert seen[f"with {kind}"] > len(cases) // 50, seen
