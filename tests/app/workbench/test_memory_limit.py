"""Sizes as people write them, and a run that ends before it takes more."""

from __future__ import annotations

import re

import numpy as np
import pytest

from impctl.data.memory import held_memory, reserve
from impctl.errors import OutOfMemoryError
from impctl.service.memory_limit import MemoryLimit, held_to, machine_memory, memory_from


@pytest.mark.parametrize(
    ("text", "size"),
    [("500MB", 500_000_000), ("2 GiB", 2 << 30), ("1.5kb", 1500), ("77", 77)],
)
def test_sizes(text: str, size: int) -> None:
    assert memory_from(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1GB", "0", "2 TB of it", "0%", "101%", "GB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(text) + "$"):
        memory_from(text)


def test_a_share_is_of_this_machine() -> None:
    whole = machine_memory()
    assert whole is not None
    assert memory_from("50%") == whole // 2
    assert MemoryLimit(None).bytes == whole // 2


def test_what_is_taken_is_seen() -> None:
    before = held_memory()
    assert before is not None
    limit = MemoryLimit(50_000_000)
    limit.check()
    taken = b"x" * 120_000_000
    with pytest.raises(OutOfMemoryError, match="50 MB"):
        limit.check()
    assert len(taken) == 120_000_000


def test_what_would_be_too_much_is_not_made() -> None:
    limit = MemoryLimit(50_000_000)
    with held_to(limit):
        reserve(10_000_000)
        with held_to(MemoryLimit(None)), pytest.raises(OutOfMemoryError, match="50 MB"):
            reserve(90_000_000)
    reserve(90_000_000)


def test_what_the_system_refuses_has_a_code() -> None:
    with (
        pytest.raises(OutOfMemoryError, match="no more memory") as refused,
        held_to(MemoryLimit(None)),
    ):
        np.empty(1 << 62, dtype=np.int8)
    assert (refused.value.code, refused.value.exit_code) == ("out_of_memory", 3)
