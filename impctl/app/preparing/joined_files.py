"""Files that no row of the other side of a join has a partner in, once that side is narrowed.

Law: as for `app.preparing.filters`: the answer over what is left is the answer. What an access may
see are all rows left of its table, so that is what its side of a tie is judged by; each tie is
applied to what the ties before it left.
Out of scope: which columns are tied (`rules.joined_columns`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from impctl.data.vector import Vector, from_arrow
from impctl.rules.joined_columns import ScanColumn, Tied
from impctl.tables.prune import key_spans, prune_to_values
from impctl.tables.rows import read_rows
from impctl.tables.snapshot import Snapshot, bytes_of
from impctl.tables.statistics import file_bounds
from impctl.types import AccessId, TableName
from impctl.values import dataclass

_FEW_ROWS = 50_000
"""Keys of so many rows are read: some milliseconds."""
_TIMES_AS_LARGE = 50
"""Where the other side is that many times as large, in bytes."""
_ROUNDS = 3

Uris = dict[AccessId, set[str]]
"""The files that each access may need."""


def narrow(ties: Sequence[Tied], snapshots: Mapping[AccessId, Snapshot], left: Uris) -> None:
    """Take files without partners out of what is left, by access."""
    joined = _Joined(snapshots, left)
    for _ in range(_ROUNDS):
        if not [tied for tied in ties if joined.narrowed_by(tied)]:
            return


@dataclass(frozen=True, slots=True)
class _Joined:
    snapshots: Mapping[AccessId, Snapshot]
    left: Uris

    def narrowed_by(self, tied: Tied) -> bool:
        """Apply one tie; whether it left files out."""
        mine, access = self.left[tied.column.access], tied.column.access
        if len(mine) < 2 or not self._is_told(tied.column) or not self._is_told(tied.to):  # noqa: PLR2004
            return False
        kept = self._meeting(tied)
        if kept is None or mine <= kept:
            return False
        self.left[access] = mine & kept
        return True

    def _is_told(self, column: ScanColumn) -> bool:
        """Whether the column is of the plan's type at this version, with statistics."""
        snapshot, attribute = self.snapshots[column.access], column.attribute
        result = snapshot.schema.find(attribute.name)
        if result is None or result.type != attribute.type:
            return False
        return result.name not in snapshot.columns.opaque

    def _meeting(self, tied: Tied) -> set[str] | None:
        """Files of the tied column that may hold a value of the other one; None for all."""
        snapshot, other = self.snapshots[tied.column.access], self.snapshots[tied.to.access]
        seen = self._seen(other.table)
        keys = self._keys(tied, other, seen)
        name = tied.column.attribute.name
        if keys is not None:
            return {file.uri for file in prune_to_values(snapshot, {name: keys})}
        is_seen = np.array([uri in seen for uri in other.uris], dtype=np.bool_)
        spans = key_spans(file_bounds(other, tied.to.attribute.name).keep(is_seen))
        if spans is None:
            return None
        meets = spans.meets(file_bounds(snapshot, name))
        return {snapshot.uris[at] for at in np.flatnonzero(meets).tolist()}

    def _seen(self, table: TableName) -> set[str]:
        """What is left of a table, whichever access needs it."""
        accesses = (access for access, result in self.snapshots.items() if result.table == table)
        return set[str]().union(*(self.left[access] for access in accesses))

    def _keys(self, tied: Tied, other: Snapshot, seen: set[str]) -> Vector | None:
        """The other column's values, read where that is little beside what it may leave out."""
        files = [file for file in other.files if file.uri in seen]
        rows = [file.rows for file in files]
        if None in rows or sum(count or 0 for count in rows) > _FEW_ROWS:
            return None
        mine = self.snapshots[tied.column.access].files
        size = bytes_of(file for file in mine if file.uri in self.left[tied.column.access])
        if size < _TIMES_AS_LARGE * bytes_of(files):
            return None
        attribute = tied.to.attribute
        column = read_rows(other, [attribute.name], files).column(0)
        vector = from_arrow(column, other.readable(attribute.name).type)
        return vector.take(np.flatnonzero(vector.validity()))
