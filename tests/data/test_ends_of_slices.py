"""Ends of slices that are looked for step by step are those that a search finds."""

from __future__ import annotations

import numpy as np

from impctl.data.sorted_rows import ends_of


def test_ends_are_those_of_a_search() -> None:
    """Slices of any length, empty ones, and ones that reach the end of the codes or lie beyond."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        codes = np.sort(rng.integers(0, int(rng.choice([3, 30, 300])), int(rng.integers(0, 40))))
        low = rng.integers(-2, 310, 12)
        high = low + rng.integers(0, int(rng.choice([2, 20, 400])), 12)
        for side in ("left", "right"):
            first = codes.searchsorted(low, side)  # type: ignore[call-overload]
            found = ends_of(codes, first, high, side)  # type: ignore[arg-type]
            expected = codes.searchsorted(high, side)  # type: ignore[call-overload]
            assert found.tolist() == (expected.tolist() if len(codes) else first.tolist()), seed
