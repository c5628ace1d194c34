"""The time that something has taken so far, on a clock that never goes back.

Law: imports nothing but the clock, so that a run with nothing to do may use one.
"""

from time import perf_counter


class Stopwatch:
    """Measures time from its construction."""

    __slots__ = ("_started",)

    def __init__(self) -> None:
        self._started = perf_counter()

    @property
    def ms(self) -> float:
        """Milliseconds so far."""
        return (perf_counter() - self._started) * 1000
