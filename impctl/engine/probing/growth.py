"""Partial rows of a circle that grow, input by input, to joined rows.

Law: a partial row and its extensions stand for all joined rows that hold it; each row goes on with
the input that offers it the fewest rows by what it has bound, and an input of which everything is
bound is asked before any other, so a triangle costs the smaller of two degrees. Few are extended at
once (`LOT`), so what is on the way is small however many joined rows there are. Rows with NULL
where a class compares it as no value are dropped. Out of scope: which rows begin (`Probe`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from impctl.data.keys import key_codes, normalise
from impctl.data.vector import Bools, Ints, Vector
from impctl.engine.batch import Batch
from impctl.engine.probing.spec import Circle, Class
from impctl.engine.probing.stores import View
from impctl.engine.tags import Tags
from impctl.errors import InvariantError
from impctl.types import AttributeId
from impctl.values import dataclass

LOT = 1_000_000
"""Rows that are looked for at once, unless one row has more."""


@dataclass(frozen=True, slots=True)
class Partial:
    """Rows of some inputs put together: of each its rows, and which of them every partial row has
    (None: one after the other). Columns are only picked once it is asked for them, since most
    partial rows lead nowhere."""

    circle: Circle
    rows: Mapping[int, tuple[Batch, Ints | None]]
    length: int

    def __len__(self) -> int:
        return self.length

    @property
    def joined(self) -> frozenset[int]:
        return frozenset(self.rows)

    @property
    def bound(self) -> frozenset[Class]:
        """The classes that have a value."""
        return self.circle.bound_by(self.joined)

    def value_of(self, one: Class) -> Vector:
        """The value of a class that is bound."""
        for at, (rows, which) in self.rows.items():
            own = self.circle.inputs[at]
            if one in own.bound:
                column = rows.columns[own.column_of(one)]
                return normalise(column if which is None else column.take(which))
        raise InvariantError("a class is asked for that no row has a value of")

    def take(self, positions: Ints) -> Partial:
        """Those at these positions, in that order."""
        rows = {
            at: (batch, positions if which is None else which[positions])
            for at, (batch, which) in self.rows.items()
        }
        return Partial(self.circle, rows, len(positions))

    def beside(self, at: int, rows: Batch) -> Partial:
        """Each with the row of one more input at its place."""
        return Partial(self.circle, {**self.rows, at: (rows, None)}, self.length)

    def batch(self) -> Batch:
        """The rows, their weights multiplied, with the tags of the inputs in their order."""
        columns: dict[AttributeId, Vector] = {}
        weights = np.ones(self.length, dtype=np.int64)
        tags: list[Tags] = []
        for at in sorted(self.rows):
            rows, which = self.rows[at]
            names = [name for name, _ in self.circle.inputs[at].columns]
            wanted = {n: rows.columns[n] for n in names if n in self.circle.outputs}
            part = Batch(wanted, rows.weights, rows.tags)
            part = part if which is None else part.take(which)
            columns.update(part.columns)
            weights = weights * part.weights
            tags += part.tags
        return Batch(columns, weights, tuple(tags))


def beginning(circle: Circle, at: int, rows: Batch) -> Partial:
    """Rows of one input by themselves."""
    partial = Partial(circle, {at: (rows, None)}, len(rows))
    return _known(partial, partial.bound)


def joined(partial: Partial, view: View) -> Iterator[Batch]:
    """All joined rows that begin with these, some at a time."""
    if not len(partial):
        return
    following = partial.circle.following(partial.joined)
    if not following:
        yield partial.batch()
        return
    for at, rows in _divided(partial, following, view):
        some = partial if rows is None else partial.take(rows)
        yield from joined(_extended(some, at, view), view)


def _divided(
    partial: Partial, following: tuple[int, ...], view: View
) -> Iterator[tuple[int, Ints | None]]:
    """Which rows (None: all) go on with which input, a lot at a time; those that find none may be
    gone."""
    if len(following) == 1 and _is_bound(partial, following[0]):
        # Hardly any row has more than one such: not worth counting first.
        yield following[0], None
        return
    counts = np.stack([_counts(partial, at, view) for at in following])
    choice = counts.argmin(axis=0)
    fewest = counts.min(axis=0)
    for place, at in enumerate(following):
        rows = ((choice == place) & (fewest > 0)).nonzero()[0]
        if not len(rows):
            continue
        lots = np.cumsum(fewest[rows]) // LOT
        yield from ((at, rows[lots == lot]) for lot in np.unique(lots))


def _is_bound(partial: Partial, at: int) -> bool:
    """Whether the rows have all that the input is joined by."""
    return partial.circle.inputs[at].bound <= partial.bound


def _counts(partial: Partial, at: int, view: View) -> Ints:
    """How many rows of the input each row may go on with."""
    classes, places = partial.circle.inputs[at].asked_by(partial.bound)
    keys = [partial.value_of(one) for one in classes]
    return view.count(at, places, key_codes(keys, len(partial)))


def _extended(partial: Partial, at: int, view: View) -> Partial:
    """Each row with every row of the input that has its values."""
    own = partial.circle.inputs[at]
    classes, places = own.asked_by(partial.bound)
    keys = [partial.value_of(one) for one in classes]
    result = view.find(at, places, key_codes(keys, len(partial)), keys)
    grown = partial.take(result.owners).beside(at, result.rows)
    return _known(grown, own.bound - partial.bound) if len(grown) else grown


def _known(partial: Partial, fresh: frozenset[Class]) -> Partial:
    """Without rows that have NULL in one of these classes, unless it is a value there."""
    known: Bools | None = None
    for one in fresh:
        valid = partial.value_of(one).valid
        if valid is not None and not partial.circle.null_safe[one]:
            known = valid if known is None else known & valid
    if known is None or bool(known.all()):
        return partial
    return partial.take(known.nonzero()[0])
