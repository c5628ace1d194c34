"""Sizes as people write them, and a run that ends before it takes more."""

from __future__ import annotations

import re

import pytest

from impctl.app.workbench.memory_limit import (
    MemoryLimit,
    held_memory,
    machine_memory,
    memory_from,
)
from impctl.errors import EvaluationError


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
    with pytest.raises(EvaluationError, match="50 MB"):
        limit.check()
    assert len(taken) == 120_000_000
