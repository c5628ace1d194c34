"""A circuit: operators in the order in which a batch passes them.

Law: `step` takes the signed change of the input and leaves in every operator the state it would
have had if it had seen all input at once; the merge at the end tells which fragments entered or
left the sketch. A failing step leaves the circuit unusable: take it up again from its last
checkpoint (state is only written by `store`, in one transaction).
Out of scope: building circuits from plans (`maintain.compile`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from impctl.engine.arrangement import Arrangement
from impctl.engine.batch import Batch
from impctl.engine.operators.merge import Merge, SketchDelta


class Operator(Protocol):
    """One step of a circuit: a batch in, the change of its output out.

    Obligations (checked by the law tests over every operator): stepping two batches one after the
    other means the same as stepping their sum; an empty batch changes nothing; a batch and its
    negative leave the state as it was.
    """

    def step(self, batch: Batch) -> Batch:
        """Consume the input's change and return the output's."""
        ...

    def arrangements(self) -> Sequence[Arrangement]:
        """The keyed state to checkpoint; empty for a stateless operator."""
        ...


class Circuit:
    """A chain of operators and the merge at its root."""

    def __init__(self, operators: Sequence[Operator], merge: Merge) -> None:
        self.operators = tuple(operators)
        self.merge = merge

    def step(self, batch: Batch) -> tuple[SketchDelta, ...]:
        """One change through all operators; a sketch delta per sketched access."""
        return self.resume(batch, 0)

    def resume(self, batch: Batch, position: int) -> tuple[SketchDelta, ...]:
        """The change through the operators from `position` on (used to fill a fresh circuit)."""
        for operator in self.operators[position:]:
            batch = operator.step(batch)
        return self.merge.step(batch)

    def arrangements(self) -> Iterator[Arrangement]:
        """All keyed state, in circuit order."""
        for operator in self.operators:
            yield from operator.arrangements()
        yield from self.merge.arrangements()
