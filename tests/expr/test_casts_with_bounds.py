"""A cast of a sum of doubles: beyond the type at both ends an error, at one end only unsure."""

from __future__ import annotations

import numpy as np
import pytest

from impctl.data.schema import DOUBLE, INTEGER
from impctl.data.vector import Vector
from impctl.errors import EvaluationError, NotExactError
from impctl.expr.cast import cast

LIMIT = 2.0**31


def bounded(value: float, error: float) -> Vector:
    return Vector(DOUBLE, np.array([value]), None, np.array([error]))


@pytest.mark.parametrize("value", [LIMIT - 0.5, LIMIT, -LIMIT - 1])
def test_at_one_end_spark_may_not_fail(value: float) -> None:
    with pytest.raises(NotExactError):
        cast(bounded(value, 1.0), INTEGER)


@pytest.mark.parametrize("value", [LIMIT + 10, -LIMIT - 10])
def test_at_both_ends_it_fails(value: float) -> None:
    with pytest.raises(EvaluationError) as caught:
        cast(bounded(value, 1.0), INTEGER)
    assert caught.value.code == "cast_overflow"


def test_within_both_ends_it_is_cast() -> None:
    assert cast(bounded(7.5, 0.25), INTEGER).values.tolist() == [7]
