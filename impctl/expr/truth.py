"""Three-valued logic that also knows when it is not sure.

Law: for each row the flags name every outcome Spark might reach; exactly one is set where the
answer is certain. Connectives are Kleene's, lifted to sets of outcomes, so that an unsure HAVING
stays unsure and the caller can keep the row (MAYBE keeps the group in the sketch).
Out of scope: comparing values (`expr.compare`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.data.schema import BOOLEAN
from impctl.data.vector import Bools, Vector
from impctl.errors import NotExactError
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Truth:
    """Possible outcomes of a predicate per row; three masks of shape (n,)."""

    may_true: Bools
    may_false: Bools
    may_null: Bools

    def __len__(self) -> int:
        return len(self.may_true)

    @property
    def is_unsure(self) -> Bools:
        """Rows with more than one possible outcome."""
        return (
            self.may_true.astype(np.int8)
            + self.may_false.astype(np.int8)
            + self.may_null.astype(np.int8)
        ) > 1

    def sure_true(self) -> Bools:
        """Rows that are true; NotExactError where some row is unsure."""
        if bool(self.is_unsure.any()):
            raise NotExactError(
                "A condition whose value is used further compares doubles that are too close to "
                "decide",
                hint="recapture with `impctl capture`, or compare with a decimal in the query",
            )
        return self.may_true

    def to_vector(self) -> Vector:
        """The outcome as a BOOLEAN column; NotExactError where some row is unsure."""
        true = self.sure_true()
        return Vector(BOOLEAN, true, ~self.may_null if self.may_null.any() else None)


def of_vector(vector: Vector) -> Truth:
    """A BOOLEAN column as outcomes."""
    values = vector.values.astype(np.bool_, copy=False)
    if vector.valid is None:
        return Truth(values, ~values, np.zeros(len(values), dtype=np.bool_))
    return Truth(values & vector.valid, ~values & vector.valid, ~vector.valid)


def certain(values: Bools, valid: Bools | None) -> Truth:
    """A sure comparison: `values` where valid, NULL elsewhere."""
    return of_vector(Vector(BOOLEAN, values, valid))


def negate(truth: Truth) -> Truth:
    return Truth(truth.may_false, truth.may_true, truth.may_null)


def conjoin(parts: Sequence[Truth]) -> Truth:
    """AND: true needs all true, false needs one false, NULL in between."""
    result = parts[0]
    for part in parts[1:]:
        result = Truth(
            result.may_true & part.may_true,
            result.may_false | part.may_false,
            (result.may_null & (part.may_null | part.may_true)) | (result.may_true & part.may_null),
        )
    return result


def disjoin(parts: Sequence[Truth]) -> Truth:
    """OR, as the dual of AND."""
    return negate(conjoin([negate(part) for part in parts]))
