"""Whether random trials notice a rule that a test has broken.

Law: nothing but a wrong answer counts. Out of scope: trials themselves (`tests.plan.trials`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.plan.trials import Tally, Trial, Violation, run_trial


def is_found_out(
    seeds: Iterable[int], make: Callable[[int], Trial], *, barriers: bool = True
) -> bool:
    """Whether the trial of one of these seeds shows a wrong answer."""
    tally = Tally()
    for seed in seeds:
        try:
            run_trial(seed, tally, make=make, barriers=barriers)
        except Violation:
            return True
    return False
