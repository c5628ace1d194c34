"""Three-valued logic over sets of outcomes, tried for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, combinations, product

import numpy as np
import pytest

from impctl.data.schema import BOOLEAN
from impctl.data.vector import Vector
from impctl.expr.compare import Truth, certain, conjoin, disjoin, negate, of_vector

Outcome = bool | None
Outcomes = frozenset[Outcome]

SETS: list[Outcomes] = [
    frozenset(result)
    for result in chain.from_iterable(combinations((True, False, None), size) for size in (1, 2, 3))
]


def truth_of(rows: Sequence[Outcomes]) -> Truth:
    def flag(outcome: Outcome) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.array([outcome in row for row in rows], dtype=np.bool_)

    return Truth(flag(True), flag(False), flag(None))


def rows_of(truth: Truth) -> list[Outcomes]:
    flags = zip(truth.may_true, truth.may_false, truth.may_null, strict=True)
    return [
        frozenset(o for o, is_set in zip((True, False, None), row, strict=True) if is_set)
        for row in flags
    ]


def kleene_and(parts: Iterable[Outcome]) -> Outcome:
    known = set(parts)
    return False if False in known else None if None in known else True


def kleene_or(parts: Iterable[Outcome]) -> Outcome:
    known = set(parts)
    return True if True in known else None if None in known else False


@pytest.mark.parametrize("operands", [1, 2, 3])
@pytest.mark.parametrize(
    ("join", "kleene"), [(conjoin, kleene_and), (disjoin, kleene_or)], ids=["and", "or"]
)
def test_connectives_over_all_sets_of_outcomes(
    operands: int,
    join: Callable[[Sequence[Truth]], Truth],
    kleene: Callable[[Iterable[Outcome]], Outcome],
) -> None:
    """The outcomes of the whole are those of every choice of outcomes of its parts."""
    cases = list(product(SETS, repeat=operands))
    parts = [truth_of([case[place] for case in cases]) for place in range(operands)]
    expected = [frozenset(kleene(choice) for choice in product(*case)) for case in cases]
    assert rows_of(join(parts)) == expected


def test_not_over_all_sets_of_outcomes() -> None:
    expected = [frozenset(None if o is None else not o for o in row) for row in SETS]
    assert rows_of(negate(truth_of(SETS))) == expected


def test_unsure_is_more_than_one_outcome() -> None:
    assert truth_of(SETS).is_unsure.tolist() == [len(row) > 1 for row in SETS]
    assert len(truth_of(SETS)) == len(SETS) == 7


def test_columns_and_back() -> None:
    values, valid = np.array([True, False, True, False]), np.array([True, True, False, False])
    for truth in (of_vector(Vector(BOOLEAN, values, valid)), certain(values, valid)):
        assert rows_of(truth) == [{True}, {False}, {None}, {None}]
        vector = truth.to_vector()
        assert vector.type == BOOLEAN
        assert vector.validity().tolist() == valid.tolist()
        assert vector.values[:2].tolist() == [True, False]
    sure = certain(values, None)
    assert not sure.may_null.any()
    assert sure.to_vector().valid is None
