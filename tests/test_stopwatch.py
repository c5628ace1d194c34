"""One clock for all that is timed."""

from __future__ import annotations

import time

from impctl.stopwatch import Stopwatch


def test_it_counts_milliseconds_and_goes_on() -> None:
    before = time.perf_counter()
    watch = Stopwatch()
    time.sleep(0.002)
    first = watch.ms
    most = (time.perf_counter() - before) * 1000
    assert 2.0 <= first <= most
    assert watch.ms > first
