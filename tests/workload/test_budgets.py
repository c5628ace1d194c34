"""Sizes as people write them: whole bytes, exactly."""

from __future__ import annotations

import pytest

from impctl.workload.scalars import size_from


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1.5GB", 1_500_000_000),
        (" 2 GiB ", 2 << 30),
        ("0.1kb", 100),
        ("9007199254740993", 9_007_199_254_740_993),
    ],
)
def test_a_size_is_so_many_bytes(text: str, size: int) -> None:
    assert size_from(text) == size


@pytest.mark.parametrize(
    "text", ["", "GB", "-1", "1.5.2GB", "1XB", "1e3", "nan", "9" * 400, "9" * 5_000]
)
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the text itself is all it says
        size_from(text)
