"""What Parquet footers say of a data file and the Delta log does not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from impctl.data.schema import Column, Kind
from impctl.tables.rows import DataFiles, hybrid_columns, is_surely_modern, read_failure
from impctl.tables.schema import PHYSICAL_NAME
from impctl.tables.storage import READ_FAILURES

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from impctl.tables.snapshot import DataFile, Snapshot
    from impctl.types import ColumnName


# What Parquet footers say of a data file and the Delta log does not. Law: a column is named when
# the file stores it so that deltalake reads it wrongly (and writes it back wrongly), while Spark
# and `tables.rows` read it right: as INT96, wrong outside 1677..2262; in the hybrid calendar
# (`tables.rows`), whose mark is lost in the copy; or in other letters, of which it makes NULL.
# Cost: one small read per file.


class Miscopied(Struct, frozen=True):
    """The columns that deltalake would copy wrongly, by reason."""

    as_int96: frozenset[ColumnName] = frozenset()
    respelled: frozenset[ColumnName] = frozenset()
    in_old_calendar: frozenset[ColumnName] = frozenset()

    @property
    def columns(self) -> frozenset[ColumnName]:
        return self.as_int96 | self.respelled | self.in_old_calendar

    def __or__(self, other: Miscopied) -> Miscopied:
        return Miscopied(
            self.as_int96 | other.as_int96,
            self.respelled | other.respelled,
            self.in_old_calendar | other.in_old_calendar,
        )


def miscopied_columns(snapshot: Snapshot, files: Sequence[DataFile] | None = None) -> Miscopied:
    """The columns that deltalake would copy wrongly from these files (default: all). Raises
    HistoryGoneError for a file that is gone."""
    expected = ExpectedNames.of(snapshot)
    footers = _footers(snapshot, snapshot.files if files is None else files)
    result = (expected.miscopied(footer) for footer in footers)
    return reduce(Miscopied.__or__, result, Miscopied())


class ExpectedNames(Struct, frozen=True):
    """The names that a table's data files should use."""

    columns: Mapping[str, ColumnName]
    """The table's column by its physical name in lower case."""
    exact: frozenset[str]
    """The physical names."""
    fields: Mapping[ColumnName, Mapping[str, frozenset[str]]]
    """The spelling of the fields nested in a column, by their names in lower case."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> ExpectedNames:
        physical = snapshot.columns.physical
        fields: dict[ColumnName, dict[str, frozenset[str]]] = {}
        for column in json.loads(snapshot.schema_json)["fields"]:
            spelled = fields.setdefault(column["name"], {})
            for name in _field_names(column["type"]):
                key = name.lower()
                spelled[key] = spelled.get(key, frozenset()) | {name}
        columns = {stored.lower(): column for column, stored in physical.items()}
        return cls(columns, frozenset(physical.values()), fields)

    def miscopied(self, file: pq.FileMetaData) -> Miscopied:
        """The columns that deltalake would copy wrongly from this file; it may have others."""
        leaves = [file.schema.column(at) for at in range(len(file.schema))]
        old = hybrid_columns(file, [leaf.path for leaf in leaves])
        int96: set[ColumnName] = set()
        respelled: set[ColumnName] = set()
        in_old_calendar: set[ColumnName] = set()
        for at, leaf in enumerate(leaves):
            place = self._column(leaf.path)
            if place is None:
                continue
            column, is_exact = place
            if leaf.physical_type == "INT96":
                int96.add(column)
            if not is_exact:
                respelled.add(column)
            if leaf.path in old and not is_surely_modern(file, at):
                in_old_calendar.add(column)
        return Miscopied(frozenset(int96), frozenset(respelled), frozenset(in_old_calendar))

    def _column(self, path: str) -> tuple[ColumnName, bool] | None:
        """The table's column of a leaf, and whether all names on the path are spelled alike. A name
        with a dot looks nested. The levels that Parquet adds for lists and maps are no field
        names."""
        parts = path.split(".")
        tops = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        top = next((top for top in tops if top.lower() in self.columns), None)
        if top is None:
            return None
        column = self.columns[top.lower()]
        fields = self.fields.get(column, {})
        below = path[len(top) + 1 :].split(".")
        is_exact = all(name in fields.get(name.lower(), (name,)) for name in below)
        return column, is_exact and top in self.exact


def _field_names(kind: Any) -> Iterator[str]:
    """The names of all fields in a type of Delta's schema, nested and physical ones included."""
    if not isinstance(kind, dict):
        return
    for field in kind.get("fields", ()):
        yield field["name"]
        yield field["metadata"].get(PHYSICAL_NAME, field["name"])
        yield from _field_names(field["type"])
    for part in ("elementType", "keyType", "valueType"):
        yield from _field_names(kind.get(part))


def _footers(snapshot: Snapshot, files: Sequence[DataFile]) -> Iterator[pq.FileMetaData]:
    opened = DataFiles(snapshot, files)
    for file in files:
        try:
            yield opened.footer(file)
        except READ_FAILURES as error:
            raise read_failure(snapshot, file, error) from error


# Which columns Parquet's own filters may lose rows of, by the footers of the data files. Law: a
# column that is not named here holds, in these files, no value that minimum and maximum leave out
# though a comparison could ask for it. Three values of FLOAT and DOUBLE are such: NaN, greater
# than all others to Spark, which most writers leave out of minimum and maximum; zero, of which
# Spark compares both signs as one and a dictionary holds each as its own; and both in a Bloom
# filter. Older files of a column that had another type are not judged.

MAX_FOOTERS = 64
_READERS = 8
_COUNTS_NAN = re.compile(r"parquet-mr version (\d+)\.(\d+)")
_FIRST_COUNTING = (1, 10)
"""Since then NaN makes parquet-mr's statistics void; no other writer is known to report NaN."""
_PHYSICAL = {Kind.FLOAT: "FLOAT", Kind.DOUBLE: "DOUBLE"}


def hiding_columns(
    snapshot: Snapshot,
    columns: Iterable[ColumnName] | None = None,
    files: Sequence[DataFile] | None = None,
) -> frozenset[ColumnName]:
    """Those of `columns` by which a Parquet filter may lose rows in `files`. Both default to all. A
    file that cannot be read makes every column suspect; its reader reports it."""
    names = snapshot.schema.names if columns is None else columns
    partitions = set(snapshot.partition_columns)
    suspects = [
        column
        for column in map(snapshot.column, dict.fromkeys(names))
        if column.type.is_fractional and column.name not in partitions
    ]
    chosen = snapshot.files if files is None else tuple(files)
    every = frozenset(column.name for column in suspects)
    if not suspects or len(chosen) > MAX_FOOTERS:
        return every
    with ThreadPoolExecutor(_READERS) as readers:
        footers = list(readers.map(DataFiles(snapshot, chosen).try_footer, chosen))
    if None in footers:
        return every
    physical = snapshot.columns.physical
    return frozenset(
        column.name
        for column in suspects
        if any(_hides(footer, column, physical[column.name]) for footer in footers)
    )


def _hides(footer: pq.FileMetaData, column: Column, physical: str) -> bool:
    """Whether a filter on the column may skip a row of the file that it should keep."""
    leaves = [footer.schema.column(at) for at in range(len(footer.schema))]
    places = [at for at, leaf in enumerate(leaves) if leaf.path.lower() == physical.lower()]
    writer = _COUNTS_NAN.match(footer.created_by or "")
    counts_nan = writer is not None and (int(writer[1]), int(writer[2])) >= _FIRST_COUNTING
    return any(
        leaves[at].physical_type != _PHYSICAL[column.type.kind]
        or any(
            _chunk_hides(footer.row_group(group).column(at), counts_nan=counts_nan)
            for group in range(footer.num_row_groups)
        )
        for at in places
    )


def _chunk_hides(chunk: pq.ColumnChunkMetaData, *, counts_nan: bool) -> bool:
    stated = chunk.statistics
    if stated is not None and stated.has_null_count and stated.null_count == chunk.num_values:
        return False
    if not counts_nan:
        return True
    # Old releases of Arrow do not report Bloom filters: assume that there is one.
    if getattr(chunk, "bloom_filter_offset", 0) is not None:
        return True
    if not any("DICTIONARY" in encoding for encoding in chunk.encodings):
        return False
    if stated is None or not stated.has_min_max:
        return True
    return not (stated.min > 0 or stated.max < 0)
