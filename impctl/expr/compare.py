"""Comparisons of columns as Spark does them, and three-valued logic that can be unsure.

Law: NaN equals NaN and is greater than all other values, -0.0 equals 0.0, a comparison with NULL is
NULL except with `<=>`. Doubles closer than their error bounds compare as unsure.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from impctl.data.schema import BOOLEAN, Kind
from impctl.data.vector import Bools, Vector
from impctl.errors import NotExactError
from impctl.expr.nodes import CompareOp
from impctl.expr.numeric import both_valid, rescale, to_double


class Truth(Struct, frozen=True):
    """All outcomes of a predicate that Spark might reach, per row; three masks of shape (n,).
    Exactly one is set where the outcome is certain. Connectives are Kleene's, lifted to sets of
    outcomes, so that an unsure HAVING stays unsure and the caller can keep the group."""

    may_true: Bools
    may_false: Bools
    may_null: Bools

    def __len__(self) -> int:
        return len(self.may_true)

    @property
    def is_unsure(self) -> Bools:
        """Rows with more than one possible outcome."""
        outcomes = (self.may_true, self.may_false, self.may_null)
        return np.asarray(sum(mask.astype(np.int8) for mask in outcomes) > 1)

    def sure_true(self) -> Bools:
        """Rows that are true; NotExactError if some row is unsure."""
        if bool(self.is_unsure.any()):
            raise NotExactError(
                "A condition whose value is used further compares doubles that are too close to "
                "decide",
                hint="recapture with `impctl capture`, or compare with a decimal in the query",
            )
        return self.may_true

    def to_vector(self) -> Vector:
        """The outcome as a BOOLEAN column; NotExactError if some row is unsure."""
        return Vector(BOOLEAN, self.sure_true(), ~self.may_null if self.may_null.any() else None)


def of_vector(vector: Vector) -> Truth:
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


_WILDCARDS = {"%": ".*", "_": "."}
_ORDER: dict[CompareOp, tuple[Callable[[Any, Any], Any], str]] = {
    CompareOp.EQUAL: (operator.eq, "equal"),
    CompareOp.NOT_EQUAL: (operator.ne, "not_equal"),
    CompareOp.LESS: (operator.lt, "less"),
    CompareOp.LESS_EQUAL: (operator.le, "less_equal"),
    CompareOp.GREATER: (operator.gt, "greater"),
    CompareOp.GREATER_EQUAL: (operator.ge, "greater_equal"),
}
"""Operators over NumPy arrays, and their names in Arrow."""


def compare(op: CompareOp, left: Vector, right: Vector) -> Truth:
    """Outcomes of `left op right` per row; shape (n,)."""
    if op is CompareOp.NULL_SAFE_EQUAL:
        return _null_safe(left, right)
    valid = both_valid(left, right)
    compare_arrays, arrow_name = _ORDER[op]
    if left.is_textual:
        return certain(_mask(pc.call_function(arrow_name, [left.values, right.values])), valid)
    if left.type.is_fractional or right.type.is_fractional:
        return _doubles(op, to_double(left), to_double(right), valid)
    a, b = left.values, right.values
    if Kind.DECIMAL in (left.type.kind, right.type.kind):
        scale = max(left.type.scale, right.type.scale)
        a, b = rescale(a, left.type.scale, scale), rescale(b, right.type.scale, scale)
    return certain(np.asarray(compare_arrays(a, b), dtype=np.bool_), valid)


def _null_safe(left: Vector, right: Vector) -> Truth:
    truth = compare(CompareOp.EQUAL, left, right)
    one_null = left.validity() != right.validity()
    both_null = ~left.validity() & ~right.validity()
    never = np.zeros(len(left), dtype=np.bool_)
    return Truth(truth.may_true | both_null, truth.may_false | one_null, never)


def _mask(outcomes: Any) -> Bools:
    return np.asarray(pc.fill_null(outcomes, False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def _doubles(op: CompareOp, left: Vector, right: Vector, valid: Bools | None) -> Truth:
    a, b = left.values, right.values
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    with np.errstate(invalid="ignore"):
        equal = (a == b) | (nan_a & nan_b)
        less = (a < b) | (~nan_a & nan_b)
    match op:
        case CompareOp.EQUAL | CompareOp.NULL_SAFE_EQUAL:
            result = equal
        case CompareOp.NOT_EQUAL:
            result = ~equal
        case CompareOp.LESS:
            result = less
        case CompareOp.LESS_EQUAL:
            result = less | equal
        case CompareOp.GREATER:
            result = ~(less | equal)
        case CompareOp.GREATER_EQUAL:
            result = ~less
    truth = certain(result, valid)
    if left.error is None and right.error is None:
        return truth
    unsure = _too_close(left, right)
    if valid is not None:
        unsure &= valid
    return Truth(truth.may_true | unsure, truth.may_false | unsure, truth.may_null)


def _too_close(left: Vector, right: Vector) -> Bools:
    error = np.zeros(len(left))
    for side in (left, right):
        if side.error is not None:
            error = error + side.error
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(left.values - right.values)
        return np.asarray((error > 0) & ~(gap > error), dtype=np.bool_)


def like(vector: Vector, pattern: str, escape: str) -> Truth:
    """`LIKE pattern ESCAPE escape`, for patterns without a `like_objection`."""
    regex = f"(?s)^(?:{''.join(_as_regex(pattern, escape))})\\z"
    return certain(_mask(pc.match_substring_regex(pa.array(vector.values), regex)), vector.valid)


def like_objection(pattern: str, escape: str) -> str | None:
    """Why Spark may refuse the pattern; None if it does not."""
    if len(escape) != 1:
        return "the engine does not support LIKE with this escape"
    position = 0
    while position < len(pattern):
        if pattern[position] == escape:
            position += 1
            if position == len(pattern) or pattern[position] not in ("%", "_", escape):
                return (
                    "the engine does not support LIKE with an escape before an ordinary character"
                )
        position += 1
    return None


def _as_regex(pattern: str, escape: str) -> Iterator[str]:
    is_escaped = False
    for character in pattern:
        if character == escape and not is_escaped:
            is_escaped = True
            continue
        is_wild = character in _WILDCARDS and not is_escaped
        yield _WILDCARDS[character] if is_wild else f"\\x{{{ord(character):x}}}"
        is_escaped = False
