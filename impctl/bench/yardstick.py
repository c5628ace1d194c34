"""A fixed piece of work, timed before every figure and at the end: how steady the machine is.

Law: the work never changes from run to run and has a share of each thing that measurements rest
on: numbers, a file, a sync. What its medians differ by is noise, whatever the code measured does.
Out of scope: what the noise means for a comparison (`bench.band`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from impctl.bench.clock import median_of

UNSTEADY = 0.25
"""Noise from which on whoever reads the numbers is warned."""

_NUMBERS = 400_000
_BYTES = 1 << 20
_RUNS = 5


def yardstick(folder: Path) -> float:
    """Median milliseconds of the work, its file in `folder`."""
    numbers = np.random.default_rng(0).random(_NUMBERS)
    file = folder / ".impctl-yardstick"
    try:
        return median_of(lambda: _work(numbers, file), _RUNS)
    finally:
        file.unlink(missing_ok=True)


def noise_of(medians: Sequence[float]) -> float:
    """The share by which these medians of the yardstick differ; 0 for fewer than two."""
    return max(medians) / min(medians) - 1 if len(medians) > 1 else 0.0


def _work(numbers: npt.NDArray[np.float64], file: Path) -> None:
    # The default sort is ten times as fast on processors with AVX-512, a stable one is not.
    held = np.sort(numbers, kind="stable")
    with file.open("wb") as stream:
        stream.write(held.tobytes()[:_BYTES])
        stream.flush()
        os.fsync(stream.fileno())
