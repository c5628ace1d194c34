"""Tuples, and state by the columns of a tuple or of its key.

Law: a `KeyedState` is an arrangement whose key is told by its code alone where that is possible: it
is one column of whole numbers that is never NULL. Then no key column is kept.
Out of scope: which columns these are, what is remembered (`engine.trees.node`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, Self

import numpy as np

from impctl.data.keys import group_rows, key_codes
from impctl.data.schema import INTEGRAL, TEMPORAL, Kind, SqlType
from impctl.data.vector import Bools, Ints, Vector, concat, from_stored
from impctl.engine.accumulators import Values
from impctl.engine.arrangement import Arrangement, Located
from impctl.engine.runs import Run, find_in
from impctl.types import AttributeId
from impctl.values import dataclass

_NARROW_DIGITS = 18
Columns = Mapping[AttributeId, Vector]


@dataclass(frozen=True, slots=True)
class Tuples:
    """Different tuples, ascending by the codes of their columns; `codes` of shape (n,)."""

    codes: Ints
    columns: Columns

    def __len__(self) -> int:
        return len(self.codes)

    def vectors(self, names: Sequence[AttributeId]) -> list[Vector]:
        """These columns, in this order."""
        return [self.columns[name] for name in names]

    def between(self, start: int, end: int) -> Tuples:
        """The tuples from one place to before another; nothing is copied."""
        columns = {name: column.between(start, end) for name, column in self.columns.items()}
        return Tuples(self.codes[start:end], columns)

    def take(self, positions: Ints) -> Tuples:
        """The tuples at these positions."""
        columns = {name: column.take(positions) for name, column in self.columns.items()}
        return Tuples(self.codes[positions], columns)


def stacked(lots: Sequence[Tuples]) -> Tuples:
    """Several lots, one after the other; at least one."""
    if len(lots) == 1:
        return lots[0]
    columns = {name: concat([lot.columns[name] for lot in lots]) for name in lots[0].columns}
    return Tuples(np.concatenate([lot.codes for lot in lots]), columns)


def different(
    names: Sequence[AttributeId], parts: Sequence[tuple[int, Columns]]
) -> tuple[Tuples, Ints]:
    """The different tuples among several lots of (length, columns), and each row's place there.

    Codes are those of `names` in this order. A tuple found twice counts once.
    """
    length = sum(size for size, _ in parts)
    filled = [columns for size, columns in parts if size]
    vectors = [concat([columns[name] for columns in filled]) for name in names] if filled else []
    grouping = group_rows(vectors, length)
    columns = {name: v.take(grouping.first) for name, v in zip(names, vectors, strict=False)}
    return Tuples(grouping.codes, columns), grouping.index()


class KeyedState:
    """An arrangement by columns of these types; `alive` and `columns` as in `Arrangement`."""

    def __init__(
        self,
        name: str,
        types: Sequence[SqlType],
        alive: str,
        columns: Callable[[], Mapping[str, Any]] | None = None,
        *,
        has_null: bool,
    ) -> None:
        """`has_null`: a key column may hold NULL."""
        self._is_told = len(types) == 0 or (
            len(types) == 1 and not has_null and _is_whole(types[0])
        )
        self._types = tuple(types)
        self.arrangement = Arrangement(name, () if self._is_told else types, alive, columns)

    def as_it_stands(self) -> Self:
        """The same state, to be read while this one goes on."""
        result = copy(self)
        result.arrangement = self.arrangement.as_it_stands()
        return result

    def find(self, codes: Ints, keys: Sequence[Vector]) -> Located:
        """The newest row of each key."""
        return self.arrangement.find(codes, () if self._is_told else keys)

    def read(self, located: Located, columns: Mapping[str, Any]) -> Values:
        """These state columns of located keys; zero where there is no row."""
        return {
            name: self.arrangement.gather(located, name, kind) for name, kind in columns.items()
        }

    def put(self, codes: Ints, keys: Sequence[Vector], values: Values, rows: Bools) -> None:
        """Replace the rows of those keys that are marked; `codes` ascending."""
        at = rows.nonzero()[0]
        if len(at) == len(codes):
            self.arrangement.put(codes, () if self._is_told else keys, values)
        elif len(at):
            kept = [] if self._is_told else [key.take(at) for key in keys]
            self.arrangement.put(codes[at], kept, {n: value[at] for n, value in values.items()})

    def places(self, among: Ints, held: Sequence[Vector], codes: Ints, keys: Any) -> Ints:
        """Where keys are among others, given by ascending codes; -1 where they are not."""
        if self._is_told:
            held, keys = (), ()
        run = Run(0, among, tuple(key.to_arrow() for key in held), {})
        return find_in(run, self.arrangement.key_types, codes, keys)

    def is_same(self, among: Ints, keys: Sequence[Vector]) -> bool:
        """Whether keys are those of the given codes, one by one; where that is cheap to tell."""
        if not self._is_told or len(keys) != 1 or len(keys[0]) != len(among):
            return False
        return bool((key_codes(keys, len(among)) == among).all())

    def whole(self, columns: Mapping[str, Any]) -> tuple[Ints, list[Vector], Values]:
        """All living rows: codes, key columns and state columns. Cost: the state."""
        run = self.arrangement.whole()
        if run is None:
            empty = Run(0, np.zeros(0, dtype=np.int64), (), {})
            return empty.codes, [], {}
        keys = [from_stored(k, t) for k, t in zip(run.keys, self._types, strict=False)]
        if self._is_told:
            keys = [Vector(kind, run.codes) for kind in self._types]
        values = {
            name: run.values.get(name, np.zeros(len(run), dtype=kind))
            for name, kind in columns.items()
        }
        return run.codes, keys, values


def _is_whole(kind: SqlType) -> bool:
    """Whether every value of the type is one whole number of 64 bits."""
    is_narrow = kind.kind is Kind.DECIMAL and kind.precision <= _NARROW_DIGITS
    return kind.kind in INTEGRAL or kind.kind in TEMPORAL or is_narrow
