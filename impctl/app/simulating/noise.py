"""How far steps are from what is thought of them, in virtual time.

Law: equal random states give equal times. Steps of a busy machine: lognormal about what is thought,
and one in a hundred takes eight times as long.
Out of scope: what is thought (`simulating.step_costs`).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

Noise = Callable[[], float]
"""Times by which the next step takes longer than thought."""

_SPREAD = 0.35
_SELDOM, _TIMES = 0.01, 8.0


def steady() -> float:
    """Every step takes what is thought of it."""
    return 1.0


def noisy(random: Random) -> Noise:
    """Steps of a busy machine."""

    def times() -> float:
        spread = random.lognormvariate(0.0, _SPREAD)
        return spread * (_TIMES if random.random() < _SELDOM else 1.0)

    return times
