"""Inner join of inputs that equal columns join in a circle, by look-ups and without joined rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from impctl.data.keys import key_codes, normalise
from impctl.engine.batch import Batch, consolidated, empty_batch, stacked_batches, stacked_or_empty
from impctl.engine.operator import Operator
from impctl.engine.trace import Found, RowIndex
from impctl.errors import InvariantError

if TYPE_CHECKING:
    from impctl.data.schema import SqlType
    from impctl.data.vector import Bools, Ints, Vector
    from impctl.engine.tags import Tags
    from impctl.types import AttributeId

# Inputs joined in a cycle, and the columns by which each is looked up. A *class* is a set of
# columns of several inputs that must be equal; a joined row *binds* a class once it has a row of an
# input with such a column. Law: the lookup columns depend on the classes alone, so the same inputs
# always have the same state.

Class = int
Places = tuple[int, ...]


class Probed(Struct, frozen=True):
    """One input: its columns, the class of some of them, and the number of its sketched accesses.
    `classes` are (class, place in `columns`), ascending, each class once. Inputs of one `store`
    have the same rows in every batch, with the same columns at the same positions."""

    columns: tuple[tuple[AttributeId, SqlType], ...]
    classes: tuple[tuple[Class, int], ...]
    accesses: int
    store: int

    @property
    def bound(self) -> frozenset[Class]:
        return frozenset(class_ for class_, _ in self.classes)

    def column_of(self, class_: Class) -> AttributeId:
        return next(
            self.columns[position][0] for other, position in self.classes if other == class_
        )

    def lookup_by(self, classes: frozenset[Class]) -> tuple[tuple[Class, ...], Places]:
        """The classes of `bound` that it has, and their columns, ascending by position."""
        shared = sorted((index, class_) for class_, index in self.classes if class_ in classes)
        return tuple(class_ for _, class_ in shared), tuple(position for position, _ in shared)


class Circle(Struct, frozen=True):
    """All inputs; `null_safe[c]` says that NULL equals NULL in class c, `outputs` names the columns
    of joined rows."""

    inputs: tuple[Probed, ...]
    null_safe: tuple[bool, ...]
    outputs: tuple[AttributeId, ...]

    def bound_by(self, joined: frozenset[int]) -> frozenset[Class]:
        """The classes that rows of these inputs bind."""
        return frozenset().union(*(self.inputs[index].bound for index in joined))

    def following(self, joined: frozenset[int]) -> tuple[int, ...]:
        """The inputs that may come next: one whose classes are all bound, else all that share one;
        InvariantError where none does."""
        bound = self.bound_by(joined)
        left = [index for index in range(len(self.inputs)) if index not in joined]
        bound_inputs = [index for index in left if self.inputs[index].bound <= bound]
        candidates = bound_inputs[:1] or [
            index for index in left if self.inputs[index].bound & bound
        ]
        if left and not candidates:
            raise InvariantError("inputs that are probed are connected by equal columns")
        return tuple(candidates)

    def lookups(self) -> Iterator[tuple[int, Places]]:
        """Every input with the columns of its lookups, each once."""
        result: set[tuple[int, Places]] = set()
        waiting = [frozenset({index}) for index in range(len(self.inputs))]
        seen = set(waiting)
        while waiting:
            joined = waiting.pop()
            bound = self.bound_by(joined)
            for index in self.following(joined):
                result.add((index, self.inputs[index].lookup_by(bound)[1]))
                more = joined | {index}
                if more not in seen:
                    seen.add(more)
                    waiting.append(more)
        yield from sorted(result)

    def stores(self) -> tuple[tuple[int, ...], ...]:
        """The inputs of each store, by its number."""
        count = 1 + max(probed.store for probed in self.inputs)
        members = [
            tuple(index for index, probed in enumerate(self.inputs) if probed.store == store)
            for store in range(count)
        ]
        for positions in members:
            kinds = {tuple(kind for _, kind in self.inputs[index].columns) for index in positions}
            if len(kinds) != 1 or len({self.inputs[index].accesses for index in positions}) != 1:
                raise InvariantError("inputs of one store have the same rows")
        return tuple(members)


def needed_places(circle: Circle, members: Sequence[int]) -> frozenset[int]:
    """The columns of a store whose NULLs exclude a row from every input."""
    plain = [
        frozenset(
            position
            for class_, position in circle.inputs[index].classes
            if not circle.null_safe[class_]
        )
        for index in members
    ]
    return frozenset.intersection(*plain)


# Rows of a cycle's inputs, indexed by every set of lookup columns. Law: an index is the sum of all
# rows added. Before a step's rows are added, a lookup gives the old rows, and with a small index of
# the step's rows the new ones. State: one copy of the rows per set of columns. Rows with NULL in a
# column where no input can match NULL are not kept.


class Stores:
    """The rows of all inputs, in a few indexes of each store; `name` begins their names."""

    def __init__(self, name: str, circle: Circle) -> None:
        self.circle = circle
        self._name = name
        self._members = circle.stores()
        lookups: dict[int, dict[Places, None]] = {index: {} for index in range(len(self._members))}
        for index, positions in circle.lookups():
            lookups[circle.inputs[index].store][positions] = None
        self.indexes = {
            store: {positions: self.index(store, positions) for positions in sorted(sets)}
            for store, sets in lookups.items()
        }

    def index(self, store: int, positions: Places) -> RowIndex:
        """A new index of a store by these columns."""
        first = self.circle.inputs[self._members[store][0]]
        keys = [first.columns[position][0] for position in positions]
        name = f"{self._name}.{store}.by{'_'.join(map(str, positions))}"
        return RowIndex(name, first.columns, keys, first.accesses)

    def keepers(self) -> tuple[RowIndex, ...]:
        return tuple(index for sets in self.indexes.values() for index in sets.values())

    def whole(self, position: int) -> Batch:
        """All rows of an input, each once. Cost: the rows, sorted."""
        index = next(iter(self.indexes[self.circle.inputs[position].store].values()))
        return self.renamed(position, index.whole())

    def renamed(self, index: int, rows: Batch) -> Batch:
        """Rows of a store with the names of one of its inputs."""
        if not len(rows):
            return empty_batch(self.circle.inputs[index].accesses)
        input_columns = self.circle.inputs[index].columns
        first = self.circle.inputs[self._members[self.circle.inputs[index].store][0]].columns
        columns = {
            column: rows.columns[name]
            for (column, _), (name, _) in zip(input_columns, first, strict=True)
        }
        return Batch(columns, rows.weights, rows.tags)

    def arriving(self, batches: Sequence[Batch | None]) -> Arriving:
        """The rows that batches, one per input, bring to the stores."""
        result: list[Batch | None] = []
        for store, members in enumerate(self._members):
            index = next((index for index in members if batches[index] is not None), None)
            batch = None if index is None else batches[index]
            rows = None
            if index is not None and batch is not None and len(batch):
                rows = self._kept(store, index, batch)
            result.append(rows if rows is not None and len(rows) else None)
        return Arriving(self, result)

    def _kept(self, store: int, index: int, batch: Batch) -> Batch:
        """The rows that some input can use, with the names of the store's first input."""
        members = self._members[store]
        input_columns, first = (
            self.circle.inputs[index].columns,
            self.circle.inputs[members[0]].columns,
        )
        columns = {
            name: batch.columns[column]
            for (column, _), (name, _) in zip(input_columns, first, strict=True)
        }
        known = np.ones(len(batch), dtype=np.bool_)
        for position in needed_places(self.circle, members):
            valid = columns[first[position][0]].valid
            if valid is not None:
                known &= valid
        return Batch(columns, batch.weights, batch.tags).keep(known)


class Arriving:
    """The stores as they were, for inputs before `new` including the rows of one step, which are in
    separate indexes until they are added."""

    def __init__(self, stores: Stores, rows: Sequence[Batch | None]) -> None:
        self.new = 0
        self._stores = stores
        self._rows = tuple(rows)
        self._new_indexes: dict[tuple[int, Places], RowIndex] = {}

    def rows_of(self, index: int) -> Batch | None:
        rows = self._rows[self._stores.circle.inputs[index].store]
        return None if rows is None else self._stores.renamed(index, rows)

    def add(self) -> None:
        for store, rows in enumerate(self._rows):
            if rows is not None:
                for index in self._stores.indexes[store].values():
                    index.add(rows, index.codes_of(rows))

    def _indexes(self, position: int, positions: Places) -> list[RowIndex]:
        store = self._stores.circle.inputs[position].store
        rows, result = self._rows[store], [self._stores.indexes[store][positions]]
        if rows is None or position >= self.new:
            return result
        key = store, positions
        if key not in self._new_indexes:
            index = self._new_indexes[key] = self._stores.index(store, positions)
            index.add(rows, index.codes_of(rows))
        return [*result, self._new_indexes[key]]

    def count(self, position: int, positions: Places, codes: Ints) -> Ints:
        """An upper bound on the rows of an input per key; shape (n,)."""
        counts = np.zeros(len(codes), dtype=np.int64)
        for index in self._indexes(position, positions):
            counts += index.count(codes)
        return counts

    def find(self, position: int, positions: Places, codes: Ints, keys: Sequence[Vector]) -> Found:
        parts = [index.find(codes, keys) for index in self._indexes(position, positions)]
        parts = [part for part in parts if len(part.owners)]
        if not parts:
            return Found(codes[:0], empty_batch(self._stores.circle.inputs[position].accesses))
        owners = np.concatenate([part.owners for part in parts])
        rows = stacked_batches([part.rows for part in parts])
        return Found(owners, self._stores.renamed(position, rows))


# Partial rows of a cycle that grow, input by input, to joined rows. Law: a partial row and its
# extensions represent all joined rows that contain it. Each row is extended by the input with the
# fewest matches; an input whose columns are all bound comes first. So a triangle costs the smaller
# of two degrees. At most `LOT` rows are extended at once, which bounds memory. Rows with NULL are
# dropped where the class does not match NULL.

LOT = 1_000_000  # Rows that are extended at once, unless one row has more matches


class Partial(Struct, frozen=True):
    """Joined rows of some inputs: of each its rows, and the row index of every partial row (None:
    in order). Columns are gathered on demand only, since most partial rows lead nowhere."""

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
        return self.circle.bound_by(self.joined)

    def value_of(self, class_: Class) -> Vector:
        for index, (rows, which) in self.rows.items():
            probed = self.circle.inputs[index]
            if class_ in probed.bound:
                column = rows.columns[probed.column_of(class_)]
                return normalise(column if which is None else column.take(which))
        raise InvariantError("a class is asked for that no row has a value of")

    def take(self, positions: Ints) -> Partial:
        rows = {
            index: (batch, positions if which is None else which[positions])
            for index, (batch, which) in self.rows.items()
        }
        return Partial(self.circle, rows, len(positions))

    def beside(self, index: int, rows: Batch) -> Partial:
        return Partial(self.circle, {**self.rows, index: (rows, None)}, self.length)

    def batch(self) -> Batch:
        """The rows, their weights multiplied, with the tags of the inputs in their order."""
        columns: dict[AttributeId, Vector] = {}
        weights = np.ones(self.length, dtype=np.int64)
        tags: list[Tags] = []
        for index in sorted(self.rows):
            rows, which = self.rows[index]
            names = [name for name, _ in self.circle.inputs[index].columns]
            outputs = {n: rows.columns[n] for n in names if n in self.circle.outputs}
            part = Batch(outputs, rows.weights, rows.tags)
            part = part if which is None else part.take(which)
            columns.update(part.columns)
            weights = weights * part.weights
            tags += part.tags
        return Batch(columns, weights, tuple(tags))


def beginning(circle: Circle, index: int, rows: Batch) -> Partial:
    partial = Partial(circle, {index: (rows, None)}, len(rows))
    return _known(partial, partial.bound)


def joined(partial: Partial, stores: Arriving) -> Iterator[Batch]:
    """All joined rows that extend these, in lots."""
    if not len(partial):
        return
    following = partial.circle.following(partial.joined)
    if not following:
        yield partial.batch()
        return
    for index, rows in _divided(partial, following, stores):
        some = partial if rows is None else partial.take(rows)
        yield from joined(_extended(some, index, stores), stores)


def _divided(
    partial: Partial, following: tuple[int, ...], stores: Arriving
) -> Iterator[tuple[int, Ints | None]]:
    """Which rows (None: all) are extended by which input, a lot at a time; those without matches
    may be dropped."""
    if len(following) == 1 and partial.circle.inputs[following[0]].bound <= partial.bound:
        # Hardly any row has more than one such: not worth counting first.
        yield following[0], None
        return
    counts = np.stack([stores.count(index, *_keyed(partial, index)[:2]) for index in following])
    choice = counts.argmin(axis=0)
    fewest = counts.min(axis=0)
    for position, index in enumerate(following):
        rows = ((choice == position) & (fewest > 0)).nonzero()[0]
        if not len(rows):
            continue
        lots = np.cumsum(fewest[rows]) // LOT
        yield from ((index, rows[lots == lot]) for lot in np.unique(lots))


def _keyed(partial: Partial, index: int) -> tuple[Places, Ints, list[Vector]]:
    """The columns by which the input joins the rows, and the codes and keys of the rows."""
    classes, places = partial.circle.inputs[index].lookup_by(partial.bound)
    keys = [partial.value_of(class_) for class_ in classes]
    return places, key_codes(keys, len(partial)), keys


def _extended(partial: Partial, index: int, stores: Arriving) -> Partial:
    result = stores.find(index, *_keyed(partial, index))
    grown = partial.take(result.owners).beside(index, result.rows)
    fresh = partial.circle.inputs[index].bound - partial.bound
    return _known(grown, fresh) if len(grown) else grown


def _known(partial: Partial, fresh: frozenset[Class]) -> Partial:
    """Without rows that have NULL in one of these classes, unless it is null-safe."""
    known: Bools | None = None
    for class_ in fresh:
        valid = partial.value_of(class_).valid
        if valid is not None and not partial.circle.null_safe[class_]:
            known = valid if known is None else known & valid
    if known is None or bool(known.all()):
        return partial
    return partial.take(known.nonzero()[0])


# Probe: inner join of inputs in a cycle, without partial joins. Identity: d(R1 join .. join Rm) is
# the sum over i of (R1 + dR1) join .. join dRi join .. join Rm: inputs before the i-th as after the
# step, those behind it as before. State: the rows of each input by each set of lookup columns,
# shared by inputs with the same rows. Cost: the changed rows, and for each the rows of its least
# frequent value, input by input. NULL has no partner, unless all equalities of its class compare it
# as a value. Weights multiply, tags of all rows are carried, rows that cancel in a step are
# dropped. While it fills it only consumes rows; all joined rows follow, in lots.


class Probe(Operator):
    """The joined rows of `circle`; its i-th input is that of the operator."""

    can_output = True

    def __init__(self, name: str, circle: Circle) -> None:
        self.circle = self.form = circle
        self._accesses = sum(input.accesses for input in circle.inputs)
        self._stores = Stores(name, circle)
        self._is_filling = False

    def step(self, *batches: Batch | None) -> Batch | None:
        """Joined rows inserted and deleted; None while the circuit fills."""
        arriving = self._stores.arriving(batches)
        if self._is_filling:
            arriving.add()
            return None
        parts: list[Batch] = []
        changed = takes_away = 0
        for index in range(len(self.circle.inputs)):
            rows = arriving.rows_of(index)
            if rows is not None:
                changed += 1
                takes_away += bool((rows.weights < 0).any())
                arriving.new = index
                parts += joined(beginning(self.circle, index, rows), arriving)
        arriving.add()
        result = stacked_or_empty(parts, self._accesses)
        # Rows that several inputs exchange meet in joined rows that cancel.
        return consolidated(result) if changed > 1 and takes_away else result

    def fill(self, is_filling: bool) -> None:
        self._is_filling = is_filling

    def filled(self) -> Iterator[Batch]:
        rows = self._stores.whole(0)
        if len(rows):
            nothing = self._stores.arriving([None] * len(self.circle.inputs))
            yield from joined(beginning(self.circle, 0, rows), nothing)

    def output(self) -> Batch:
        """All joined rows. Cost: the rows of one input, and their matches."""
        return stacked_or_empty(self.filled(), self._accesses)

    def arrangements(self) -> Sequence[RowIndex]:
        return self._stores.keepers()
