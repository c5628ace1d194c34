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

from impctl.aliases import AttributeId
from impctl.data.keys import key_codes, normalise
from impctl.data.vector import Ints, Vector
from impctl.engine.batch import Batch
from impctl.engine.probing.spec import Circle, Class
from impctl.engine.probing.stores import View
from impctl.engine.tags import Tags
from impctl.values import dataclass

LOT = 1_000_000
"""Rows that are looked for at once, unless one row has more."""


@dataclass(frozen=True, slots=True)
class Partial:
    """Rows of the inputs in `joined` put together: what is asked for of their columns, the value of
    each class that is bound, their weights multiplied, and the tags of each input."""

    joined: frozenset[int]
    columns: Mapping[AttributeId, Vector]
    bound: Mapping[Class, Vector]
    weights: Ints
    tags: Mapping[int, tuple[Tags, ...]]

    def __len__(self) -> int:
        return len(self.weights)

    def take(self, positions: Ints) -> Partial:
        """Those at these positions, in that order."""
        return Partial(
            self.joined,
            {name: column.take(positions) for name, column in self.columns.items()},
            {one: column.take(positions) for one, column in self.bound.items()},
            self.weights[positions],
            {at: tuple(tag.take(positions) for tag in tags) for at, tags in self.tags.items()},
        )

    def batch(self) -> Batch:
        """The rows, with the tags of the inputs in their order."""
        tags = tuple(tag for at in sorted(self.tags) for tag in self.tags[at])
        return Batch(self.columns, self.weights, tags)


def beginning(circle: Circle, at: int, rows: Batch) -> Partial:
    """Rows of one input by themselves."""
    own = circle.inputs[at]
    names = [name for name, _ in own.columns]
    bound = {one: normalise(rows.columns[names[place]]) for one, place in own.classes}
    columns = {name: rows.columns[name] for name in names if name in circle.outputs}
    found = Partial(frozenset({at}), columns, bound, rows.weights, {at: rows.tags})
    return _known(circle, found, own.bound)


def joined(partial: Partial, view: View) -> Iterator[Batch]:
    """All joined rows that begin with these, some at a time."""
    circle = view.stores.circle
    if not len(partial):
        return
    following = circle.following(partial.joined)
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
    if len(following) == 1 and _is_bound(partial, following[0], view):
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


def _is_bound(partial: Partial, at: int, view: View) -> bool:
    """Whether the rows have all that the input is joined by."""
    return view.stores.circle.inputs[at].bound <= partial.bound.keys()


def _counts(partial: Partial, at: int, view: View) -> Ints:
    """How many rows of the input each row may go on with."""
    classes, places = view.stores.circle.inputs[at].asked_by(frozenset(partial.bound))
    keys = [partial.bound[one] for one in classes]
    return view.count(at, places, key_codes(keys, len(partial)))


def _extended(partial: Partial, at: int, view: View) -> Partial:
    """Each row with every row of the input that has its values."""
    circle = view.stores.circle
    own = circle.inputs[at]
    classes, places = own.asked_by(frozenset(partial.bound))
    keys = [partial.bound[one] for one in classes]
    found = view.find(at, places, key_codes(keys, len(partial)), keys)
    grown = partial.take(found.owners)
    if not len(grown):
        return grown
    fresh = own.bound - partial.bound.keys()
    names = [name for name, _ in own.columns]
    bound = {one: normalise(found.rows.columns[names[p]]) for one, p in own.classes if one in fresh}
    columns = {name: found.rows.columns[name] for name in names if name in circle.outputs}
    grown = Partial(
        partial.joined | {at},
        {**grown.columns, **columns},
        {**grown.bound, **bound},
        grown.weights * found.rows.weights,
        {**grown.tags, at: found.rows.tags},
    )
    return _known(circle, grown, fresh)


def _known(circle: Circle, partial: Partial, fresh: frozenset[Class]) -> Partial:
    """Without rows that have NULL in one of these classes, unless it is a value there."""
    known = np.ones(len(partial), dtype=np.bool_)
    for one in fresh:
        valid = partial.bound[one].valid
        if valid is not None and not circle.null_safe[one]:
            known &= valid
    return partial if bool(known.all()) else partial.take(known.nonzero()[0])
