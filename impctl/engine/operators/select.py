"""Selection: rows whose predicate may be true.

Identity: d(select(R)) = select(dR); linear, no state, cost proportional to the batch. NULL and
FALSE drop a row, an unsure predicate keeps it (the sketch may be too large, never too small).
Negative weights pass like positive ones, because the decision depends on the row alone.
Below a grouping an unsure row is an error (`must_be_sure`), because there too many rows can make a
sketch too small. Not to be confused with a filter by the current sketch, which would be unsound.
"""

from __future__ import annotations

from impctl.data.vector import Bools, once
from impctl.engine.batch import Batch, difference
from impctl.engine.operator import Operator
from impctl.errors import NotExactError
from impctl.expr.compare import Truth
from impctl.expr.evaluate import Condition
from impctl.expr.nodes import Expr
from impctl.types import AttributeId


class Select(Operator):
    """Keeps the rows for which `predicate` is true or, where that is sound, unsure."""

    def __init__(self, predicate: Expr, *, must_be_sure: bool) -> None:
        self.predicate = predicate
        self.must_be_sure = must_be_sure
        self._condition = Condition(predicate)
        self._unsure_rows = 0

    def step(self, batch: Batch) -> Batch:
        """The part of the change that passes."""
        if len(batch) == 0:
            return batch
        question = (Select, self.predicate, self.must_be_sure)
        kept, unsure = once(batch.shared, question, lambda: self._kept(batch))
        self._unsure_rows += unsure
        return kept

    def _kept(self, batch: Batch) -> tuple[Batch, int]:
        """The rows that pass, and how many of the batch are unsure."""
        outcome = self.outcome(batch)
        return batch.shares(batch.keep(outcome.may_true)), int(outcome.is_unsure.sum())

    def passing(self, batch: Batch) -> Bools:
        """Which rows pass a `step`, without counting any as unsure."""
        return self.outcome(batch).may_true

    def says_like(self, other: Operator) -> bool:
        return isinstance(other, Select) and self.predicate == other.predicate

    def turned(self, rows: Batch, was: Operator) -> Batch:
        assert isinstance(was, Select)
        rows = rows.keep(was.passing(rows) != self.passing(rows))
        return difference(self.step(rows), was.step(rows))

    def outcome(self, batch: Batch) -> Truth:
        """What the predicate may be of each row; NotExactError where that must be sure, and is not
        of some."""
        outcome = self._condition.truth(batch.columns, len(batch))
        if self.must_be_sure and bool(outcome.is_unsure.any()):
            raise NotExactError(
                "A condition below a grouping compares doubles that are too close to decide",
                hint="recapture with `impctl capture`, or compare with a decimal in the query",
            )
        return outcome

    @property
    def unsure_rows(self) -> int:
        return self._unsure_rows

    @property
    def is_rowwise(self) -> bool:
        return True

    def passes(self, column: AttributeId) -> AttributeId | None:
        return column
