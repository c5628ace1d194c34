"""What a bounded buffer asks for when deletions used it up.

Law: an operator that keeps only its best rows or values per group never guesses: where too few are
left and there may be more, it asks for all input rows of that group as they are after the change,
and goes on from these. Where they come from is none of the engine's business.
Out of scope: reading tables (`app`), which operators can be bounded (`maintain`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from impctl.data.keys import group_rows, normalise, start_of, starts_in
from impctl.data.vector import INT64_MAX, Ints, Vector, concat
from impctl.engine.batch import Batch
from impctl.engine.disagreement import disagreement
from impctl.errors import CountBelowZeroError, RecaptureNeededError


class Refill(Protocol):
    """Gives an operator its input again, for some groups."""

    def __call__(self, keys: Sequence[Vector]) -> Batch:
        """All input rows after the change whose keys are among these; others may come along.

        One vector per key column, all of one length; none at all asks for every row.
        """
        ...


def no_refill(keys: Sequence[Vector]) -> Batch:
    """RecaptureNeededError: nobody said where rows come from."""
    raise RecaptureNeededError(
        "Deletions exhausted a buffer, and the table cannot be read here",
        code="buffer_exhausted",
        hint="run `impctl capture`",
    )


def owners_of(
    asked: Sequence[Vector], groups: int, rows: Batch, keys: Sequence[str]
) -> tuple[Ints, Batch]:
    """The group asked for that each row belongs to, and the rows without those of no such group."""
    if not asked:
        return np.zeros(len(rows), dtype=np.int64), rows
    if len(rows) == 0:
        return np.zeros(0, dtype=np.int64), rows
    held = [normalise(rows.columns[name]) for name in keys]
    both = [concat([one, other]) for one, other in zip(asked, held, strict=True)]
    result = group_rows(both, groups + len(rows))
    index = result.index()
    owner = np.full(result.groups, -1, dtype=np.int64)
    owner[index[:groups]] = np.arange(groups)
    owners = owner[index[groups:]]
    kept = np.flatnonzero(owners >= 0)
    return owners[kept], rows.take(kept)


def refill_differs() -> CountBelowZeroError:
    """The error for a table that does not hold what the state counted."""
    return disagreement("A buffer was refilled with rows that do not match the stored state")


COMPLETE = INT64_MAX
"""The edge of a buffer that holds everything. Edges are stored reversed, so that 0 says this."""


def stored_edges(edges: Ints) -> Ints:
    """Edges as state keeps them, and state's as edges: the same turn both ways."""
    return edges ^ np.int64(COMPLETE)


def edge_after(
    owners: Ints, codes: Ints, counts: Ints, wanted: int, edges: Ints, beyond: int
) -> Ints:
    """Lower edges for groups that hold more than `beyond`: where `wanted` are reached.

    `owners` and `codes` are sorted, by owner first; counts are not negative.
    """
    if not len(owners):
        return edges
    sums = np.cumsum(counts)
    before = (sums - counts)[start_of(starts_in(owners))]
    reached = sums - before
    totals = np.zeros(len(edges), dtype=np.int64)
    np.maximum.at(totals, owners, reached)
    is_enough = (reached >= wanted) & (totals[owners] > beyond)
    result = edges.copy()
    np.minimum.at(result, owners[is_enough], codes[is_enough])
    return result
