"""What may name a query, an update or a table."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from impctl.workload.names import is_identifier, is_name


@pytest.mark.parametrize(
    ("is_good", "good", "bad"),
    [
        (
            is_name,
            ["q", "Q_1", "7", "a-b.c", "_x", "a" * 128],
            ["", "-q", ".", "..", "a b", "a/b", "a\n", "ü", "a" * 129],
        ),
        (
            is_identifier,
            ["t", "_t", "T1", "a" * 128],
            ["", "1t", "a-b", "a.b", "a b", "t\n", "tä", "a" * 129],
        ),
    ],
)
def test_names(is_good: Callable[[str], bool], good: list[str], bad: list[str]) -> None:
    assert all(map(is_good, good))
    assert not any(map(is_good, bad))
