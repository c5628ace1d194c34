"""How rows of a fixpoint come and go where its step is one join (`plain_step`).

Law: as `moves` has it, without stepping the operators: the rows of the table that join rows which
go are looked for once, and stand ready for when these come in again; what such a row took part in
is told only if it stays out. The join's rows of the fixpoint are brought up to date at the end, by
what has changed. Fronts of few rows are followed row by row (`thin_fronts`). Cost: a look-up per
row that goes or comes and has not done so in this step, and the derivations.
Out of scope: which rows go and come, and in which order (`engine.operators.fixpoint`).
"""

from __future__ import annotations

import numpy as np

from impctl.aliases import AttributeId
from impctl.data.keys import key_codes, normalise
from impctl.data.ragged import slice_positions
from impctl.data.sorted_rows import distinct_values
from impctl.data.vector import Ints, Vector
from impctl.engine.batch import Batch
from impctl.engine.fixpoint.moves import Admit, Dismiss, Told, slots_for
from impctl.engine.fixpoint.plain_step import PlainStep
from impctl.engine.fixpoint.touched_rows import FIRST, LAST, TouchedRows
from impctl.engine.row_index import Found
from impctl.engine.tags import Tags
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Derived:
    """Derivations: which row asked for is the body of each, the slots of their heads, the rest."""

    owners: Ints
    heads: Ints
    weights: Ints
    tags: tuple[Tags, ...]


class Partners:
    """The derivations of rows that went, one after the other; shapes (count,).

    `source` and `place` tell where in `tags` a derivation has its tags.
    """

    def __init__(self) -> None:
        self.count = 0
        self.heads, self.weights, self.source, self.place = np.zeros((4, 0), dtype=np.int64)
        self.tags: list[tuple[Tags, ...]] = []

    def add(self, heads: Ints, weights: Ints, source: Ints | int, place: Ints) -> None:
        """More of them."""
        start, self.count = self.count, self.count + len(heads)
        if self.count > len(self.heads):
            grown = np.empty((4, 2 * self.count), dtype=np.int64)
            grown[:, :start] = [
                held[:start] for held in (self.heads, self.weights, self.source, self.place)
            ]
            self.heads, self.weights, self.source, self.place = grown
        part = slice(start, self.count)
        self.heads[part], self.weights[part] = heads, weights
        self.source[part], self.place[part] = source, place


class JoinedMoves:
    """Front by front, by looking up the table's rows."""

    def __init__(
        self, plain: PlainStep, rank: AttributeId, touched: TouchedRows, told: Told
    ) -> None:
        self._plain = plain
        self._rank = rank
        self._touched = touched
        self._told = told
        self._partners = Partners()
        self._pairs = 0

    def out(self, slots: Ints, may_go: Dismiss) -> Ints:
        if not may_go(len(slots)):
            return slots
        touched, partners = self._touched, self._partners
        ranks = touched.ranks[slots]
        touched.leave(slots)
        found = self._derived(slots)
        sizes = np.bincount(found.owners, minlength=len(slots))
        ends = np.cumsum(sizes) + partners.count
        touched.values[FIRST, slots], touched.values[LAST, slots] = ends - sizes, ends
        order = np.argsort(found.owners, kind="stable")
        source = len(partners.tags)
        partners.add(found.heads[order], found.weights[order], source, order)
        partners.tags.append(found.tags)
        is_low = ranks[found.owners] < touched.ranks[found.heads]
        touched.count_in(found.heads, -found.weights, is_low)
        return distinct_values(touched.groundless(found.heads[is_low]))

    def come(self, slots: Ints, admit: Admit) -> Ints:
        touched, partners = self._touched, self._partners
        touched.enter(slots, admit(len(slots)))
        first = touched.values[FIRST, slots]
        is_known = first >= 0
        known, others = slots[is_known], slots[~is_known]
        places, _ = slice_positions(first[is_known], touched.values[LAST, known])
        heads, weights = partners.heads[places], partners.weights[places]
        if len(others):
            found = self._derived(others)
            self._told.of_step(found.weights, found.tags)
            heads, weights = (
                np.concatenate([heads, found.heads]),
                np.concatenate([weights, found.weights]),
            )
        touched.count_in(heads, weights, None)
        return distinct_values(touched.derived(heads))

    def end(self) -> None:
        """Tell what rows that stay out took part in, and bring the join's rows up to date."""
        touched, join = self._touched, self._plain.join
        gone = touched.gone()
        places, _ = slice_positions(touched.values[FIRST, gone], touched.values[LAST, gone])
        if len(places) and any(self._told.accesses):
            self._tell_gone(places)
        moved = touched.moved(self._rank)
        if len(moved):
            columns = {
                name: moved.columns[self._name_of(place)]
                for name, place in self._plain.rows.items()
            }
            join.take_in(self._plain.side, Batch(columns, moved.weights, ()), self._pairs)

    def _name_of(self, place: int) -> AttributeId:
        return self._rank if place < 0 else self._touched.held.columns[place][0]

    def _tell_gone(self, places: Ints) -> None:
        """Tell that these derivations went."""
        partners = self._partners
        source = partners.source[places]
        order = np.argsort(source, kind="stable")
        places, source = places[order], source[order]
        borders = np.flatnonzero(np.diff(source, prepend=-1))
        for start, end in zip(borders, [*borders[1:], len(places)], strict=True):
            some = places[start:end]
            tags = partners.tags[source[start]]
            taken = [tag.take(partners.place[some]) for tag in tags]
            self._told.of_step(-partners.weights[some], taken)

    def _derived(self, slots: Ints) -> Derived:
        """What these rows derive, by the table's rows."""
        plain, columns = self._plain, self._touched.columns
        join, table = plain.join, plain.table
        keys = [normalise(columns[place].take(slots)) for place in plain.key_places]
        known = join.known(keys)
        rows = None if known is None else known.nonzero()[0]
        if rows is not None:
            keys = [key.take(rows) for key in keys]
        found = table.find(key_codes(keys, len(slots) if rows is None else len(rows)), keys)
        return self._with_heads(slots, found, found.owners if rows is None else rows[found.owners])

    def _with_heads(self, slots: Ints, found: Found, owners: Ints) -> Derived:
        """The rows found as derivations; `owners[i]` of the slots is the i-th one's body."""
        rows = found.rows
        self._pairs += len(rows)
        columns: list[Vector] = []
        for place, name in self._plain.heads if len(owners) else ():
            if name is None:
                columns.append(self._touched.columns[place].take(slots[owners]))
            else:
                columns.append(rows.columns[name])
        heads = slots_for(self._touched, columns, len(owners)) if columns else owners
        return Derived(owners, heads, rows.weights, rows.tags)
