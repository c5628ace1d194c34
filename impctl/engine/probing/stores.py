"""Rows of a circle's inputs, each store once, by every set of columns that it is asked by.

Law: an index means the sum of all rows ever added, so what is found before a step's rows are added
are the old rows, and with a small index of these rows beside it the new ones. State is linear in
the rows: one copy per set of columns. Rows with NULL in a column that no input can use as NULL are
not kept. Out of scope: what is looked up (`engine.probing.growth`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from impctl.data.vector import Ints, Vector
from impctl.engine.batch import Batch, empty_batch, stacked_batches
from impctl.engine.probing.spec import Circle, Places, needed_places
from impctl.engine.row_index import Found, RowIndex
from impctl.values import dataclass


class Stores:
    """The rows of all inputs, as a few indexes of each store; `name` begins their names."""

    def __init__(self, name: str, circle: Circle) -> None:
        self.circle = circle
        self._name = name
        self._members = circle.stores()
        asked: dict[int, dict[Places, None]] = {at: {} for at in range(len(self._members))}
        for at, places in circle.asked():
            asked[circle.inputs[at].store][places] = None
        self._indexes = {
            store: {places: self._index(store, places) for places in sorted(sets)}
            for store, sets in asked.items()
        }

    def _index(self, store: int, places: Places) -> RowIndex:
        """An index that is empty; its columns go by the names of the store's first input."""
        first = self.circle.inputs[self._members[store][0]]
        keys = [first.columns[place][0] for place in places]
        name = f"{self._name}.{store}.by{'_'.join(map(str, places))}"
        return RowIndex(name, first.columns, keys, first.accesses)

    def keepers(self) -> tuple[RowIndex, ...]:
        """All indexes."""
        return tuple(index for sets in self._indexes.values() for index in sets.values())

    def index_of(self, at: int, places: Places) -> RowIndex:
        """The rows of an input by these columns."""
        return self._indexes[self.circle.inputs[at].store][places]

    def whole(self, at: int) -> Batch:
        """All rows of an input, each once. Cost: the rows, sorted."""
        index = next(iter(self._indexes[self.circle.inputs[at].store].values()))
        return self.renamed(at, index.whole())

    def renamed(self, at: int, rows: Batch) -> Batch:
        """Rows of a store with the names of one of its inputs."""
        if not len(rows):
            return empty_batch(self.circle.inputs[at].accesses)
        own = self.circle.inputs[at].columns
        first = self.circle.inputs[self._members[self.circle.inputs[at].store][0]].columns
        columns = {
            mine: rows.columns[name] for (mine, _), (name, _) in zip(own, first, strict=True)
        }
        return Batch(columns, rows.weights, rows.tags)

    def arriving(self, batches: Sequence[Batch | None]) -> Arriving:
        """The rows that batches, one per input, bring to the stores."""
        result: list[Batch | None] = []
        for store, members in enumerate(self._members):
            at = next((at for at in members if batches[at] is not None), None)
            batch = None if at is None else batches[at]
            rows = None
            if at is not None and batch is not None and len(batch):
                rows = self._kept(store, at, batch)
            result.append(rows if rows is not None and len(rows) else None)
        return Arriving(self, result)

    def _kept(self, store: int, at: int, batch: Batch) -> Batch:
        """The rows of some use, with the names of the store's first input."""
        members = self._members[store]
        own, first = self.circle.inputs[at].columns, self.circle.inputs[members[0]].columns
        columns = {
            name: batch.columns[mine] for (mine, _), (name, _) in zip(own, first, strict=True)
        }
        known = np.ones(len(batch), dtype=np.bool_)
        for place in needed_places(self.circle, members):
            valid = columns[first[place][0]].valid
            if valid is not None:
                known &= valid
        return Batch(columns, batch.weights, batch.tags).keep(known)


class Arriving:
    """The rows of one step per store, in indexes of their own until they are added."""

    def __init__(self, stores: Stores, rows: Sequence[Batch | None]) -> None:
        self._stores = stores
        self._rows = tuple(rows)
        self._made: dict[tuple[int, Places], RowIndex] = {}

    def rows_of(self, at: int) -> Batch | None:
        """The rows of an input under its own names; None for none."""
        rows = self._rows[self._stores.circle.inputs[at].store]
        return None if rows is None else self._stores.renamed(at, rows)

    def index_of(self, at: int, places: Places) -> RowIndex | None:
        """The same rows by these columns."""
        store = self._stores.circle.inputs[at].store
        rows = self._rows[store]
        if rows is None:
            return None
        key = store, places
        if key not in self._made:
            index = self._stores._index(store, places)
            index.add(rows, index.codes_of(rows))
            self._made[key] = index
        return self._made[key]

    def add(self) -> None:
        """Add the rows to the stores."""
        for index, rows in self._targets():
            index.add(rows, index.codes_of(rows))

    def _targets(self) -> Iterator[tuple[RowIndex, Batch]]:
        for store, rows in enumerate(self._rows):
            if rows is not None:
                for index in self._stores._indexes[store].values():
                    yield index, rows


@dataclass(frozen=True, slots=True)
class View:
    """The stores as they were, for inputs before `new` with what arrives."""

    stores: Stores
    arriving: Arriving | None = None
    new: int = 0

    def _indexes(self, at: int, places: Places) -> list[RowIndex]:
        result = [self.stores.index_of(at, places)]
        if self.arriving is not None and at < self.new:
            fresh = self.arriving.index_of(at, places)
            result += [] if fresh is None else [fresh]
        return result

    def count(self, at: int, places: Places, codes: Ints) -> Ints:
        """Rows of an input that each key may find at most; shape (n,)."""
        counts = np.zeros(len(codes), dtype=np.int64)
        for index in self._indexes(at, places):
            counts += index.count(codes)
        return counts

    def find(self, at: int, places: Places, codes: Ints, keys: Sequence[Vector]) -> Found:
        """The rows of an input with these keys, under its own names."""
        parts = [index.find(codes, keys) for index in self._indexes(at, places)]
        parts = [part for part in parts if len(part.owners)]
        if not parts:
            return Found(codes[:0], empty_batch(self.stores.circle.inputs[at].accesses))
        owners = np.concatenate([part.owners for part in parts])
        rows = stacked_batches([part.rows for part in parts])
        return Found(owners, self.stores.renamed(at, rows))
