"""Steps that touch more tuples than are worked on at once: any lots mean the same."""

from __future__ import annotations

import pytest

from impctl.engine.jointree import node
from tests.engine.trees.test_against_reference import run
from tests.support.random_cases import random_cases
from tests.support.tree_cases import random_case


@pytest.mark.parametrize(
    ("length", "most", "expected"),
    [
        (0, 2, []),
        (2, 2, [(0, 2)]),
        (5, 4, [(0, 3), (3, 5)]),
        (5, 1, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]),
    ],
)
def test_more_than_there_may_be_are_divided(
    length: int, most: int, expected: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "LOT", 3)
    assert list(node.lots(length, most)) == expected


@random_cases(4, 8, 100, first=200)
def test_sketches_and_groups_equal_brute_force_in_any_lots(
    cases: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in cases:
        case = random_case(seed)
        whole = run(case, seed, restarts=False)
        with monkeypatch.context() as patched:
            patched.setattr(node, "MOST", 1 + seed % 2)
            said = run(case, seed, restarts=seed % 3 == 0)
        # The same tuples are touched, flip and are told, in whatever lots.
        for number in ("sketch", "touched", "flips", "pairs"):
            assert said[number] == whole[number], (seed, number)
