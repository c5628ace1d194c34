"""A Delta table whose rows are deleted by deletion vectors, as Spark writes them and deltalake not.

Files may lie in partitions, statistics are those of the whole file, and an update is one commit
that deletes rows by a vector and appends their new form.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tests.tables import handmade

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_NULL = "__HIVE_DEFAULT_PARTITION__"
_WRITER = {"commitInfo": {"engineInfo": "Apache-Spark/4.0.0 Delta-Lake/4.0.0"}}
_MAGIC = 1_681_511_377
_NO_RUNS = 12_346
_TYPES = {
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float64(): "double",
    pa.string(): "string",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp",
}
Doomed = Callable[[pa.Table], Any]
"""Says of each row (partition columns included) whether it goes."""


class VectoredTable:
    """A table on disk, its live files and the rows deleted of each."""

    def __init__(
        self, path: Path, rows: pa.Table, *, by: Sequence[str] = (), feed: bool = False
    ) -> None:
        self.path, self.by, self.schema = path, tuple(by), rows.schema
        self.version = 0
        self._count = 0
        self._files: dict[str, tuple[dict[str, Any], pa.Table, frozenset[int]]] = {}
        fields = [handmade.field(f.name, _TYPES[f.type]) for f in rows.schema]
        feeds = {"delta.enableChangeDataFeed": "true"} if feed else {}
        more = ["changeDataFeed"] if feed else []
        handmade.commit(
            path,
            0,
            handmade.protocol("deletionVectors", writer=more),
            handmade.metadata(
                fields,
                partition_columns=self.by,
                configuration={"delta.enableDeletionVectors": "true", **feeds},
            ),
            *self._added(rows),
        )

    def append(self, rows: pa.Table) -> None:
        """A commit of new files."""
        self._commit(self._added(rows))

    def delete(self, doomed: Doomed) -> None:
        """A commit of new deletion vectors; files without a row left are removed."""
        self._commit(self._deleted(doomed)[0])

    def update(self, doomed: Doomed, changed: Callable[[pa.Table], pa.Table]) -> None:
        """Rows in a new form: deleted by vectors and appended, in one commit."""
        actions, gone = self._deleted(doomed)
        self._commit([*actions, *self._added(changed(gone))])

    def drop(self, partition: str) -> None:
        """A commit that removes the files of a folder such as `p=a`, vectors or not."""
        gone = [name for name in self._files if name.startswith(f"{partition}/")]
        self._commit([_removed(self._files.pop(name)[0]["add"]) for name in gone])

    def remove_bare(self, partition: str, **told: Any) -> None:
        """A commit that removes the one file of a folder and tells no more of it than this."""
        (name,) = (name for name in self._files if name.startswith(f"{partition}/"))
        self._commit([handmade.remove(self._files.pop(name)[0]["add"]["path"], **told)])

    def rows(self) -> pa.Table:
        """All live rows."""
        parts = [_without(rows, gone) for _, rows, gone in self._files.values()]
        return pa.concat_tables([self.schema.empty_table(), *parts])

    def _commit(self, actions: Sequence[Mapping[str, Any]]) -> None:
        self.version += 1
        handmade.commit(self.path, self.version, _WRITER, *actions)

    def _added(self, rows: pa.Table) -> list[dict[str, Any]]:
        actions = []
        for values, part in _partitioned(rows, self.by):
            self._count += 1
            folders = [f"{key}={quote(value or _NULL, safe='')}" for key, value in values.items()]
            name = "/".join([*folders, f"part-{self._count}.parquet"])
            data = part.drop_columns(list(self.by))
            handmade.write_file(self.path, name, data, row_group_size=3)
            size = (self.path / name).stat().st_size
            stats = json.dumps(_statistics(data))
            action = handmade.add(quote(name), 0, size, partitionValues=values, stats=stats)
            self._files[name] = (action, part, frozenset())
            actions.append(action)
        return actions

    def _deleted(self, doomed: Doomed) -> tuple[list[dict[str, Any]], pa.Table]:
        actions: list[dict[str, Any]] = []
        lost = [self.schema.empty_table()]
        for name, (action, rows, gone) in list(self._files.items()):
            mask = np.asarray(pc.fill_null(doomed(rows), False))
            more = frozenset(np.flatnonzero(mask).tolist()) - gone
            if not more:
                continue
            lost.append(rows.take(sorted(more)))
            actions.append(_removed(action["add"]))
            if len(gone | more) == len(rows):
                del self._files[name]
                continue
            added = {"add": {**action["add"], "deletionVector": vector(sorted(gone | more))}}
            self._files[name] = (added, rows, gone | more)
            actions.append(added)
        return actions, pa.concat_tables(lost)


def _removed(added: Mapping[str, Any]) -> dict[str, Any]:
    """What Spark writes to remove a file: all that it knows of it, its vector too."""
    told = ("partitionValues", "size", "stats", "deletionVector")
    known = {key: added[key] for key in told if key in added}
    return handmade.remove(added["path"], extendedFileMetadata=True, **known)


def _partitioned(rows: pa.Table, by: Sequence[str]) -> list[tuple[dict[str, str | None], pa.Table]]:
    """The rows of each partition, with the text of its values."""
    keys = rows.select(list(by)).to_pylist() if by else [{}] * len(rows)
    result: dict[str, tuple[dict[str, str | None], list[int]]] = {}
    for at, key in enumerate(keys):
        values = {name: None if value is None else str(value) for name, value in key.items()}
        result.setdefault(repr(values), (values, []))[1].append(at)
    return [(values, rows.take(at)) for values, at in result.values()]


def _without(rows: pa.Table, gone: frozenset[int]) -> pa.Table:
    return rows.take([at for at in range(len(rows)) if at not in gone])


def _statistics(rows: pa.Table) -> dict[str, Any]:
    result: dict[str, Any] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        result["nullCount"][name] = column.null_count
        if pa.types.is_integer(column.type) and column.null_count < len(column):
            ends = pc.min_max(column).as_py()
            result["minValues"][name], result["maxValues"][name] = ends["min"], ends["max"]
    return {"numRecords": len(rows), "tightBounds": False, **result}


def bitmap_of(positions: Sequence[int], upper: int = 0) -> bytes:
    """One array container of a roaring bitmap; all positions are `upper` times 2^32 higher."""
    values = struct.pack(f"<{len(positions)}H", *positions)
    bitmap = struct.pack("<IIHHI", _NO_RUNS, 1, 0, len(positions) - 1, 16) + values
    return struct.pack("<iqi", _MAGIC, 1, upper) + bitmap


def z85(data: bytes) -> str:
    """The bytes as Base85."""
    text = ""
    for (word,) in struct.iter_unpack(">I", data + bytes(-len(data) % 4)):
        text += "".join(_DIGITS[word // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return text


def vector(positions: Sequence[int], upper: int = 0) -> dict[str, Any]:
    """An inline deletion vector of these positions."""
    data = bitmap_of(positions, upper)
    return {
        "storageType": "i",
        "pathOrInlineDv": z85(data),
        "sizeInBytes": len(data),
        "cardinality": len(positions),
    }
