"""How long something has taken so far, on a clock that never goes back.

Law: imports nothing but the clock, so that a run with nothing to do may hold one.
Out of scope: repeats and medians (`bench.timing`).
"""

from time import perf_counter


class Stopwatch:
    """Runs from the moment it is made."""

    __slots__ = ("_started",)

    def __init__(self) -> None:
        self._started = perf_counter()

    @property
    def ms(self) -> float:
        """Milliseconds until now."""
        return (perf_counter() - self._started) * 1000
