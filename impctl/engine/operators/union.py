"""Union with all duplicates, and difference of weights.

Identity: d(R + S) = dR + dS; linear, no state, cost proportional to the change. An input that is
taken away counts with its weights reversed: so an anti join is the left side without its semi
join. Columns are renamed to the output's. Each input has tags for some of the accesses; its rows
carry no fragment of the others.
Not to be confused with UNION, which has a DISTINCT on top.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.engine.batch import Batch, stacked_batches
from impctl.engine.operator import Operator
from impctl.engine.tags import no_fragments
from impctl.types import AttributeId
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Branch:
    """One input: the column behind each output, its sign, and the tag behind each output tag."""

    columns: tuple[tuple[AttributeId, AttributeId], ...]
    """Pairs of output and input column."""
    tags: tuple[int | None, ...]
    """Position among the input's tags; None for an access the branch does not have."""
    sign: int = 1


class Union(Operator):
    """The sum of its inputs."""

    def __init__(self, branches: Sequence[Branch]) -> None:
        self.branches = tuple(branches)

    def step(self, *batches: Batch | None) -> Batch:
        """All changes, one after the other."""
        pairs = zip(self.branches, batches, strict=True)
        parts = [_moved(branch, batch) for branch, batch in pairs if batch is not None]
        filled = [part for part in parts if len(part)]
        return stacked_batches(filled) if filled else parts[0]

    @property
    def is_linear(self) -> bool:
        return True


def _moved(branch: Branch, batch: Batch) -> Batch:
    """The batch in the union's form."""
    columns = {}
    if len(batch):
        columns = {output: batch.columns[name] for output, name in branch.columns}
    tags = tuple(no_fragments(len(batch)) if at is None else batch.tags[at] for at in branch.tags)
    return Batch(columns, batch.weights * np.int64(branch.sign), tags)
