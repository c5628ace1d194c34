"""In which order the tables of a side are read for some keys, and by which values each.

Law: a row that is left out is in no row of the side that has one of the keys. Of a relation whose
column is the key the rows with these keys are enough; of one that is joined to relations read
before, those with values that these have (`rules.joined_columns`: the side yields the same
without the others).
First comes what the keys narrow, then what is tied to it; where nothing is found of what the side
is nothing without (`plan.properties`), the rest is not read at all.
Out of scope: reading (`app.capturing.partners.by_files`), joining what was read
(`circuits.reading.transient`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from impctl.circuits.flows import Source
from impctl.circuits.moving import passing
from impctl.circuits.reading.readable import Readable
from impctl.data.vector import Vector
from impctl.engine.batch import Batch
from impctl.plan.properties import indispensable
from impctl.rules.joined_columns import Tied, column_behind, tied_columns
from impctl.types import AccessId, ColumnName

ReadRows = Callable[[Source, Mapping[ColumnName, Sequence[Vector]]], pa.Table]
"""Rows of a source's table with one of each list's values in each of these columns; more may come
along. The columns that it scans come in any order."""

_MOST_VALUES = 2_000_000
"""So many values are not worth being held against; the relation is read as it is."""


def read_in_turn(
    wanted: Readable,
    sources: Mapping[AccessId, Source],
    keys: Sequence[Vector],
    sizes: Mapping[AccessId, int],
    read: ReadRows,
) -> Mapping[AccessId, pa.Table] | None:
    """Rows of every access of the side for these keys; without any, for all. None where one without
    which the side is empty yields none.

    `sizes` are about how many rows each access has: of those that can be narrowed equally the
    smallest is read first.
    """
    by_keys, vital = _behind_keys(wanted, keys), indispensable(wanted.rows)
    ties = [tied for tied in tied_columns(wanted.rows) if _is_comparable(tied)]
    result: dict[AccessId, pa.Table] = {}
    batches: dict[AccessId, Batch] = {}
    while len(result) < len(sources):
        asked = {
            access: _asked(access, by_keys, ties, batches)
            for access in sources
            if access not in result
        }
        # What something narrows before what nothing does, then the smaller one.
        access = min(asked, key=lambda one: (not asked[one], sizes[one]))
        source = sources[access]
        rows = read(source, asked[access])
        batch = source.came(rows)
        kept = passing(tuple(reversed(source.conditions)), batch)
        if access in vital and not bool(kept.any()):
            return None
        result[access] = rows.filter(pa.array(kept))
        batches[access] = batch.keep(kept)
    return result


def _behind_keys(
    wanted: Readable, keys: Sequence[Vector]
) -> Mapping[AccessId, Mapping[ColumnName, Vector]]:
    """Per access the values of the keys that are its own columns."""
    result: dict[AccessId, dict[ColumnName, Vector]] = {}
    for key, values in zip(wanted.keys, keys, strict=bool(keys)):
        column = column_behind(wanted.rows, key)
        if column is not None and column.attribute.type == values.type:
            result.setdefault(column.access, {})[column.attribute.name] = values
    return result


def _is_comparable(tied: Tied) -> bool:
    return tied.column.attribute.type == tied.to.attribute.type


def _asked(
    access: AccessId,
    by_keys: Mapping[AccessId, Mapping[ColumnName, Vector]],
    ties: Sequence[Tied],
    batches: Mapping[AccessId, Batch],
) -> Mapping[ColumnName, Sequence[Vector]]:
    """What a relation is read by."""
    asked: dict[ColumnName, list[Vector]] = {
        name: [values] for name, values in by_keys.get(access, {}).items()
    }
    for name, values in _tied_values(access, ties, batches):
        if len(values) <= _MOST_VALUES:
            asked.setdefault(name, []).append(values)
    return asked


def _tied_values(
    access: AccessId, ties: Sequence[Tied], batches: Mapping[AccessId, Batch]
) -> Iterator[tuple[ColumnName, Vector]]:
    for tied in ties:
        if tied.column.access == access and tied.to.access in batches:
            values = batches[tied.to.access].columns[tied.to.attribute.id]
            yield tied.column.attribute.name, values
