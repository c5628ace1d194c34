"""The yardstick: it leaves no file, and its noise is how far medians lie apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from impctl.bench.yardstick import noise_of, yardstick


@pytest.mark.slow
def test_it_measures_and_leaves_nothing(tmp_path: Path) -> None:
    assert yardstick(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("medians", "noise"), [([], 0.0), ([5.0], 0.0), ([4.0, 5.0, 4.5], 0.25), ([2.0, 2.0], 0.0)]
)
def test_noise(medians: list[float], noise: float) -> None:
    assert noise_of(medians) == pytest.approx(noise)
