"""Two results as bags, doubles with a tolerance."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import permutations

import pytest

from impctl.service.results import RowValue
from impctl.service.verify import same_rows

Rows = list[tuple[RowValue, ...]]
ONE: Rows = [
    (1, "a", 0.1 + 0.2, None),
    (1, "a", 0.1 + 0.2, None),
    (2, None, math.nan, date(2022, 1, 17)),
    (None, "", -math.inf, datetime(2022, 1, 17, tzinfo=UTC)),
]


def test_order_does_not_matter() -> None:
    assert all(same_rows(ONE, rows) for rows in permutations(ONE))
    assert same_rows([], [])


def test_how_often_a_row_occurs_matters() -> None:
    assert not same_rows(ONE, ONE[1:])
    assert not same_rows(ONE, [*ONE, ONE[0]])
    assert not same_rows([(1,), (1,), (2,)], [(1,), (2,), (2,)])
    assert not same_rows([(0.5,), (0.5,), (1.5,)], [(0.5,), (1.5,), (1.5,)])
    assert not same_rows([], [()])


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, 2),
        (None, 0),
        (None, ""),
        (None, math.nan),
        ("a", "A"),
        (b"a", "a"),
        (Decimal("1.10"), Decimal("1.11")),
        (Decimal("1e-30"), Decimal("2e-30")),
        (date(2022, 1, 17), date(2022, 1, 18)),
        (datetime(2022, 1, 17, microsecond=1), datetime(2022, 1, 17)),
        (2**60, 2**60 + 1),
        (math.inf, -math.inf),
        (math.inf, 1e308),
        (math.nan, 0.0),
        (1.0, 1.0 + 1e-6),
        (1e15, 1e15 + 1e8),
        (0.0, 1e-9),
        (True, False),
    ],
)
def test_other_values_are_other_rows(left: RowValue, right: RowValue) -> None:
    assert not same_rows([(left,)], [(right,)])
    assert not same_rows([(7, left), (8, right)], [(7, right), (8, left)])


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (0.1 + 0.2, 0.3),
        (1e300, 1e300 * (1 + 1e-12)),
        (0.0, -0.0),
        (0.0, 1e-17),
        (math.nan, -math.nan),
        (math.inf, math.inf),
        (Decimal("1.0"), Decimal("1.00")),
        (date(2022, 1, 17), date(2022, 1, 17)),
    ],
)
def test_what_the_order_of_a_sum_can_make_is_the_same(left: RowValue, right: RowValue) -> None:
    assert same_rows([("k", left)], [("k", right)])
    assert same_rows([("k", left), ("l", right)], [("l", left), ("k", right)])


def test_a_close_double_does_not_excuse_another_column() -> None:
    assert not same_rows([("a", 0.1 + 0.2)], [("b", 0.3)])
    assert not same_rows([("a", 0.1 + 0.2, 1.0)], [("a", 0.3, 2.0)])


def test_groups_are_compared_with_their_own_sums() -> None:
    sums = [0.1 * k for k in range(20)]
    left: Rows = [(k, value) for k, value in enumerate(sums)]
    right: Rows = [(k, value * (1 + 1e-14)) for k, value in reversed(list(enumerate(sums)))]
    assert same_rows(left, right)
    right[3] = (right[3][0], 100.0)
    assert not same_rows(left, right)


def test_near_doubles_find_their_partners() -> None:
    close = 1.0000001 * (1 + 1e-15)
    assert same_rows([(1.0000001,), (1.0000002,)], [(1.0000002,), (close,)])
    assert same_rows([(0.0,), (0.05,)], [(7e-17,), (0.05,)])
    assert same_rows([(1.0, 5.0), (1.0 + 1e-15, 2.0)], [(1.0, 2.0), (1.0, 5.0)])
    assert not same_rows([(1.0, 5.0), (1.0, 2.0)], [(1.0, 2.0), (1.0, 2.0)])
