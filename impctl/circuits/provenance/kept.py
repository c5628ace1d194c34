"""What a fixpoint that is kept by absorption tells: its rows, rows of tables, all derivations.

Law: rows of tables have the numbers from 0 on, each different one a number, however many accesses
read it; rows of the fixpoint those from `first` on. What is told is of the state as it stands; no
table is read. Rows are the columns that are read of a table.
Out of scope: what is asked of it (`app.using.kept_functions`), keeping it
(`engine.fixpoint.absorption`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from impctl.circuits.answers import arrow_column, arrow_type
from impctl.circuits.provenance.absorbed import AbsorbedRows
from impctl.circuits.provenance.makings import MakingList
from impctl.data.vector import Ints, Vector, all_null
from impctl.engine.batch import Batch
from impctl.engine.fixpoint.absorption import Absorbs, Absorption, Grounded
from impctl.engine.fixpoint.rows import NUMBER
from impctl.errors import ImpctlError
from impctl.types import ColumnName, FixpointId, TableName
from impctl.values import dataclass

_ZONE = "UTC"
"""Of the times told: that of times in tables."""


@dataclass(frozen=True, slots=True)
class KnownRows:
    """Rows of a fixpoint with their numbers, shape (rows,), which are below `end`, and all makings
    of them: heads, shape (makings,), and bodies, shape (makings, most of one), -1 for none."""

    fixpoint: FixpointId
    columns: Sequence[Vector]
    numbers: Ints
    heads: Ints
    bodies: Ints
    end: int

    def tell(self, makings: MakingList) -> None:
        """Add all makings of its rows."""
        makings.add(self.heads, self.bodies)


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of one table: the number of each, how many copies there are, and its values."""

    columns: tuple[ColumnName, ...]
    numbers: Sequence[int]
    copies: Sequence[int]
    rows: pa.Table


class KeptDerivations:
    """All derivations of one fixpoint, of rows of `tables`, whose numbers are below `first`."""

    def __init__(self, absorbed: AbsorbedRows, tables: Mapping[TableName, TableRows]) -> None:
        self.absorbed = absorbed
        self.tables = tables
        self.first = sum(len(one.numbers) for one in tables.values())

    def known(self, number_of_leaf: Mapping[int, int]) -> KnownRows:
        """The rows with all derivations, leaves by the numbers of their rows."""
        operator = self.absorbed.operator
        matrix = operator.numbers()
        leaves = np.full(max(number_of_leaf, default=0) + 2, -1, dtype=np.int64)
        for leaf, number in number_of_leaf.items():
            leaves[leaf] = number
        heads = self._of_rows(matrix[:, 0])
        parts = matrix[:, 1:]
        is_leaf = (parts >= 0) & (parts % 2 == 1)
        of_leaves = leaves[np.where(is_leaf, parts, len(leaves) - 1)]
        bodies = np.where(parts >= 0, np.where(is_leaf, of_leaves, self._of_rows(parts)), -1)
        rows = operator.rows.whole()
        if len(rows):
            columns = [rows.columns[name] for name, _ in operator.columns]
            numbers = self._of_rows(rows.columns[NUMBER].values)
        else:
            columns = [all_null(kind, 0) for _, kind in operator.columns]
            numbers = np.zeros(0, dtype=np.int64)
        end = self.first + int(max(heads.max(initial=0), numbers.max(initial=0))) + 1
        return KnownRows(self.absorbed.fixpoint, columns, numbers, heads, bodies, end)

    def _of_rows(self, numbers: Ints) -> Ints:
        result: Ints = numbers // 2 + self.first
        return result


def derivations_of(absorbed: AbsorbedRows) -> tuple[KeptDerivations, KnownRows] | None:
    """What the fixpoint's state tells; None where some leaves are no rows of a table, or where rows
    of one table are read by different columns and cannot be told to be one."""
    read: dict[TableName, tuple[ColumnName, ...]] = {}
    for of, ingredient in zip(absorbed.of, absorbed.operator.ingredients, strict=True):
        if not ingredient.is_leaf:
            continue
        if of is None or set(read.setdefault(of.table, of.columns)) != set(of.columns):
            return None
    numbers, number_of_leaf = count(), dict[int, int]()
    tables = {
        table: _rows_of(absorbed, table, columns, numbers, number_of_leaf)
        for table, columns in read.items()
    }
    kept = KeptDerivations(absorbed, tables)
    return kept, kept.known(number_of_leaf)


def _rows_of(
    absorbed: AbsorbedRows,
    table: TableName,
    columns: tuple[ColumnName, ...],
    numbers: Iterable[int],
    number_of_leaf: dict[int, int],
) -> TableRows:
    """The rows of a table over all ingredients of it; notes which leaf is which row."""
    given = iter(numbers)
    known: dict[tuple[Any, ...], int] = {}
    copies: dict[int, int] = {}
    taken: list[pa.Table] = []
    for at, of in enumerate(absorbed.of):
        if of is None or of.table != table:
            continue
        held, leaves, weights = _held_leaves(absorbed, at)
        own = {column: held[column] for column in columns}
        new = []
        for place, row in enumerate(_keys(own.values())):
            number = known.get(row)
            if number is None:
                number = known[row] = next(given)
                new.append(place)
            copies[number] = max(weights[place], copies.get(number, 0))
            number_of_leaf[leaves[place]] = number
        taken.append(_shown(own).take(pa.array(new, pa.int64())))
    return TableRows(columns, [*known.values()], [*copies.values()], pa.concat_tables(taken))


def leaves_of(absorbed: AbsorbedRows, at: int) -> tuple[pa.Table, list[int], list[int]]:
    """The leaves of an ingredient: values by the columns of its table, numbers, and copies."""
    held, numbers, copies = _held_leaves(absorbed, at)
    return _shown(held), numbers, copies


def rows_without(absorbed: AbsorbedRows, leaves: Sequence[int]) -> tuple[Batch, Batch]:
    """All rows of the fixpoint, and those that are left without some leaves, by its functions."""
    operator = absorbed.operator
    gone = operator.absorption.gone_without(leaves)
    rows = operator.rows.whole()
    if not len(rows):
        return rows, rows
    left = rows.keep(~np.isin(rows.columns[NUMBER].values, [*gone]))
    names = [name for name, _ in operator.columns]
    whole, rest = (
        Batch({name: one.columns[name] for name in names}, one.weights, ()) for one in (rows, left)
    )
    return whole, rest


def _held_leaves(
    absorbed: AbsorbedRows, at: int
) -> tuple[dict[ColumnName, Vector], list[int], list[int]]:
    """As `leaves_of`, values as the state holds them."""
    of, ingredient = absorbed.of[at], absorbed.operator.ingredients[at]
    assert of is not None, "of a table"
    held = absorbed.operator.leaves[at].whole()
    # No rows may come without columns.
    vectors = [held.columns.get(name, all_null(kind, 0)) for name, kind in ingredient.columns]
    numbers = held.columns[NUMBER].values.tolist() if len(held) else []
    return dict(zip(of.columns, vectors, strict=True)), numbers, held.weights.tolist()


def _shown(columns: Mapping[ColumnName, Vector]) -> pa.Table:
    """Values as the table has them: days are dates, decimals have their point."""
    return pa.table(
        {
            name: arrow_column(
                column, np.ones(len(column), np.int64), arrow_type(column.type, _ZONE)
            )
            for name, column in columns.items()
        }
    )


def _keys(columns: Iterable[Vector]) -> Iterable[tuple[Any, ...]]:
    """Each row as what equals that of the same row alone: NaN is no equal of itself."""
    lists = [column.to_arrow().to_pylist() for column in columns]
    return (
        tuple("NaN" if part != part else part for part in row) for row in zip(*lists, strict=True)
    )


def smallest_by_functions(
    target: int, makings: Iterable[tuple[int, tuple[int, ...]]], first: int, absorbs: Absorbs
) -> frozenset[int] | None:
    """A smallest set of rows of tables that derives a row by these makings, by its function.

    None where functions take too many nodes. Rows of tables have numbers below `first`.
    """
    absorption = Absorption(absorbs.ship, absorbs.nodes)
    came = [
        Grounded(
            head,
            tuple(body for body in bodies if body >= first),
            tuple(body for body in bodies if body < first),
        )
        for head, bodies in makings
    ]
    try:
        absorption.step((), came)
        result, is_smallest = absorption.smallest(target)
    except ImpctlError:
        return None
    return result if is_smallest else None
