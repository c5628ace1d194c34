"""A circuit: operators in the order in which a change passes them, sources below, merge on top.

Law: `step` takes the signed change of every source and leaves in every operator the state it would
have had if it had seen all input at once; the merge at the end tells which fragments entered or
left each sketch. An operator whose inputs did not change is not stepped. A failing step leaves the
circuit unusable: take it up again from its last checkpoint (state is only written by `store`, in
one transaction).
Out of scope: building circuits from plans (`maintain.compile`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from impctl.engine.batch import Batch
from impctl.engine.operators.merge import Merge, SketchDelta
from impctl.engine.run_log import RunChange


class Keeper(Protocol):
    """Keyed state that a checkpoint writes."""

    @property
    def name(self) -> str: ...

    @property
    def bytes_held(self) -> int: ...

    def load(self, tables: Sequence[tuple[int, pa.Table]]) -> None:
        """Take over stored runs; they count as saved."""
        ...

    def compact(self) -> None:
        """Make the state smaller if that is worth it."""
        ...

    def changes(self) -> RunChange:
        """What changed since the last `saved`."""
        ...

    def saved(self) -> None:
        """The last changes are safe now."""
        ...


class Operator(Protocol):
    """One step of a circuit: the change of its input, or of each, in; the change of its output out.

    Obligations (checked by the law tests over every operator): stepping two batches one after the
    other means the same as stepping their sum; an empty batch changes nothing; a batch and its
    negative leave the state as it was. Several inputs: None is an input without a change.
    """

    @property
    def step(self) -> Callable[..., Batch]:
        """Consume the change of each input and return the output's."""
        ...

    def arrangements(self) -> Sequence[Keeper]:
        """The keyed state to checkpoint; empty for a stateless operator."""
        ...


class Circuit:
    """Operators, each after those it reads, and the merge at their root."""

    def __init__(
        self,
        operators: Sequence[Operator],
        merge: Merge,
        inputs: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """`inputs[i]` are the positions operator i reads, -1 - s for source s; default: a chain."""
        self.operators = tuple(operators)
        self.merge = merge
        chain = [(position - 1,) for position in range(len(self.operators))]
        self.inputs = tuple(tuple(wires) for wires in (chain if inputs is None else inputs))

    def step(self, *sources: Batch | None) -> tuple[SketchDelta, ...]:
        """One change of all sources through all operators; a sketch delta per sketched access."""
        known = {-1 - number: batch for number, batch in enumerate(sources) if batch is not None}
        return self._run(known, 0)

    def resume(self, batch: Batch, position: int) -> tuple[SketchDelta, ...]:
        """The change of what lies below `position` through all above that reads it."""
        return self._run({position - 1: batch}, position)

    def _run(self, known: dict[int, Batch], position: int) -> tuple[SketchDelta, ...]:
        for at in range(position, len(self.operators)):
            batches = [known.get(wire) for wire in self.inputs[at]]
            if any(batch is not None for batch in batches):
                known[at] = self.operators[at].step(*batches)
        root = known.get(len(self.operators) - 1)
        return self.merge.nothing() if root is None else self.merge.step(root)

    def arrangements(self) -> Iterator[Keeper]:
        """All keyed state, in circuit order."""
        for operator in self.operators:
            yield from operator.arrangements()
        yield from self.merge.arrangements()
