"""Delta tables with handwritten logs, rows as bags, and bounds by definition."""

from __future__ import annotations

import json
import os
import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from impctl.data.schema import DOUBLE, STRING, Kind, SqlType
from impctl.expr.nodes import CompareOp
from impctl.sketch.sketch import RangeFilter, RangePartition
from impctl.tables.changes import Changes, read_changes
from impctl.tables.rows import read_rows
from impctl.tables.snapshot import UNKNOWN, ColumnBounds, Snapshot, ValueBounds, as_array
from impctl.tables.source import DeltaSource, open_source

LONG = "long"


def field(name: str, kind: Any, *, nullable: bool = True, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def metadata(
    fields: Sequence[Mapping[str, Any]],
    *,
    partition_columns: Sequence[str] = (),
    configuration: Mapping[str, str] | None = None,
    table_id: str = "0b1c",
) -> dict[str, Any]:
    return {
        "metaData": {
            "id": table_id,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": list(fields)}),
            "partitionColumns": list(partition_columns),
            "configuration": dict(configuration or {}),
            "createdTime": 0,
        }
    }


def protocol(*reader: str, writer: Sequence[str] = ()) -> dict[str, Any]:
    """A protocol action. With features, it requires reader 3 and writer 7."""
    if not reader and not writer:
        return {"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}}
    return {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": list(reader),
            "writerFeatures": [*reader, *writer],
        }
    }


def add(path: str, rows: int, size: int = 1, **more: Any) -> dict[str, Any]:
    action = {
        "path": path,
        "partitionValues": {},
        "size": size,
        "modificationTime": 0,
        "dataChange": True,
        "stats": json.dumps({"numRecords": rows}),
    }
    return {"add": {**action, **more}}


def stats(rows: int, nulls: Mapping[str, int] | None = None, **limits: Sequence[Any]) -> str:
    """Statistics of a file: row count, NULLs by column, minima and maxima by column."""
    least = {name: low for name, (low, _) in limits.items()}
    greatest = {name: high for name, (_, high) in limits.items()}
    result = {"numRecords": rows, "minValues": least, "maxValues": greatest}
    return json.dumps(result if nulls is None else {**result, "nullCount": nulls})


def remove(path: str, **more: Any) -> dict[str, Any]:
    return {"remove": {"path": path, "dataChange": True, "deletionTimestamp": 0, **more}}


def create(
    table: Path,
    columns: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *actions: Mapping[str, Any],
    features: Sequence[str] = (),
    **options: Any,
) -> str:
    """Write version 0 of a table from column types or fields; returns its path."""
    fields = columns
    if isinstance(columns, Mapping):
        fields = [field(name, kind) for name, kind in columns.items()]
    commit(table, 0, protocol(*features), metadata(fields, **options), *actions)
    return str(table)


def entry(table: Path | str, version: int) -> Path:
    """The file of one commit of the log."""
    return Path(table) / "_delta_log" / f"{version:020}.json"


def actions_of(table: Path | str, version: int) -> list[dict[str, Any]]:
    text = entry(table, version).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


def commit(table: Path | str, version: int, *actions: Mapping[str, Any]) -> None:
    file = entry(table, version)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(action) + "\n" for action in actions), encoding="utf-8")


def write_file(table: Path, name: str, data: pa.Table, **options: Any) -> str:
    """Write a data file; returns its name as in the log."""
    table.mkdir(parents=True, exist_ok=True)
    target = table / name
    target.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(data, target, **options)
    return name


def added(
    table: Path, name: str, data: pa.Table, more: Mapping[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    """Write a data file; returns the action that adds it."""
    write_file(table, name, data, **options)
    return add(name, data.num_rows, (table / name).stat().st_size, **(more or {}))


def with_side_files(table: Path, version: int, side_file: str = "s.parquet") -> None:
    """Turn a version's checkpoint into one with a sidecar file (V2), at the path `side_file`.

    Log entries up to this version are removed, so only the checkpoint has their contents.
    """
    folder = table / "_delta_log"
    classic = folder / f"{version:020}.checkpoint.parquet"
    (folder / "_sidecars").mkdir()
    adds = pq.read_table(classic, columns=["add"])
    sidecar_path = folder / "_sidecars" / "s.parquet"
    pq.write_table(adds.filter(pc.is_valid(adds.column("add"))), sidecar_path)
    tops = [a for a in actions_of(table, 0) if "protocol" in a or "metaData" in a]
    (supported,) = (action["protocol"] for action in tops if "protocol" in action)
    for kind in ("readerFeatures", "writerFeatures"):
        supported[kind] = [*supported[kind], "v2Checkpoint"]
    sidecar = {"path": side_file, "sizeInBytes": sidecar_path.stat().st_size, "modificationTime": 0}
    name = f"{version:020}.checkpoint.{UUID(int=version)}.json"
    lines = [{"checkpointMetadata": {"version": version}}, *tops, {"sidecar": sidecar}]
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    last = {"path": name, "sizeInBytes": 1, "modificationTime": 0, "sidecarFiles": []}
    checkpoint = {"version": version, "size": len(lines), "v2Checkpoint": last}
    (folder / "_last_checkpoint").write_text(json.dumps(checkpoint))
    classic.unlink()
    for old_version in range(version + 1):
        entry(table, old_version).unlink()
    commit(table, version + 1, {"commitInfo": {}})


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
"""Returns for each row (with partition columns) whether to delete it."""


class VectoredTable:
    """A table on disk, its live files, and each file's deleted rows."""

    def __init__(
        self, path: Path, rows: pa.Table, *, by: Sequence[str] = (), feed: bool = False
    ) -> None:
        self.path, self.by, self.schema = path, tuple(by), rows.schema
        self.version = 0
        self._count = 0
        self._files: dict[str, tuple[dict[str, Any], pa.Table, frozenset[int]]] = {}
        fields = [field(f.name, _TYPES[f.type]) for f in rows.schema]
        feeds = {"delta.enableChangeDataFeed": "true"} if feed else {}
        more = ["changeDataFeed"] if feed else []
        commit(
            path,
            0,
            protocol("deletionVectors", writer=more),
            metadata(
                fields,
                partition_columns=self.by,
                configuration={"delta.enableDeletionVectors": "true", **feeds},
            ),
            *self._added(rows),
        )

    def append(self, rows: pa.Table) -> None:
        """Commit new files."""
        self._commit(self._added(rows))

    def delete(self, doomed: Doomed) -> None:
        """Commit new deletion vectors. Files without remaining rows are removed."""
        self._commit(self._deleted(doomed)[0])

    def update(self, doomed: Doomed, changed: Callable[[pa.Table], pa.Table]) -> None:
        """Update rows in one commit: delete the old ones by vectors and append the new ones."""
        actions, deleted = self._deleted(doomed)
        self._commit([*actions, *self._added(changed(deleted))])

    def drop(self, partition: str) -> None:
        """Commit the removal of all files of a folder such as `p=a`."""
        names = [name for name in self._files if name.startswith(f"{partition}/")]
        self._commit([_removed(self._files.pop(name)[0]["add"]) for name in names])

    def remove_bare(self, partition: str, **metadata: Any) -> None:
        """Commit the removal of a folder's only file, with only this metadata."""
        (name,) = (name for name in self._files if name.startswith(f"{partition}/"))
        self._commit([remove(self._files.pop(name)[0]["add"]["path"], **metadata)])

    def rows(self) -> pa.Table:
        """All live rows."""
        parts = [_without(rows, deleted) for _, rows, deleted in self._files.values()]
        return pa.concat_tables([self.schema.empty_table(), *parts])

    def _commit(self, actions: Sequence[Mapping[str, Any]]) -> None:
        self.version += 1
        commit(self.path, self.version, _WRITER, *actions)

    def _added(self, rows: pa.Table) -> list[dict[str, Any]]:
        actions = []
        for values, part in _partitioned(rows, self.by):
            self._count += 1
            folders = [f"{key}={quote(value or _NULL, safe='')}" for key, value in values.items()]
            name = "/".join([*folders, f"part-{self._count}.parquet"])
            data = part.drop_columns(list(self.by))
            write_file(self.path, name, data, row_group_size=3)
            size = (self.path / name).stat().st_size
            stats = json.dumps(_statistics(data))
            action = add(quote(name), 0, size, partitionValues=values, stats=stats)
            self._files[name] = (action, part, frozenset())
            actions.append(action)
        return actions

    def _deleted(self, doomed: Doomed) -> tuple[list[dict[str, Any]], pa.Table]:
        actions: list[dict[str, Any]] = []
        deleted_rows = [self.schema.empty_table()]
        for name, (action, rows, deleted) in list(self._files.items()):
            mask = np.asarray(pc.fill_null(doomed(rows), False))
            new = frozenset(np.flatnonzero(mask).tolist()) - deleted
            if not new:
                continue
            deleted_rows.append(rows.take(sorted(new)))
            actions.append(_removed(action["add"]))
            if len(deleted | new) == len(rows):
                del self._files[name]
                continue
            added = {"add": {**action["add"], "deletionVector": vector(sorted(deleted | new))}}
            self._files[name] = (added, rows, deleted | new)
            actions.append(added)
        return actions, pa.concat_tables(deleted_rows)


def _removed(added: Mapping[str, Any]) -> dict[str, Any]:
    """A remove action with all metadata, as Spark writes it."""
    keys = ("partitionValues", "size", "stats", "deletionVector")
    known = {key: added[key] for key in keys if key in added}
    return remove(added["path"], extendedFileMetadata=True, **known)


def _partitioned(rows: pa.Table, by: Sequence[str]) -> list[tuple[dict[str, str | None], pa.Table]]:
    """Rows by partition, with the partition values as text."""
    keys = rows.select(list(by)).to_pylist() if by else [{}] * len(rows)
    result: dict[str, tuple[dict[str, str | None], list[int]]] = {}
    for position, key in enumerate(keys):
        values = {name: None if value is None else str(value) for name, value in key.items()}
        result.setdefault(repr(values), (values, []))[1].append(position)
    return [(values, rows.take(position)) for values, position in result.values()]


def _without(rows: pa.Table, deleted: frozenset[int]) -> pa.Table:
    return rows.take([i for i in range(len(rows)) if i not in deleted])


def _statistics(rows: pa.Table) -> dict[str, Any]:
    result: dict[str, Any] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        result["nullCount"][name] = column.null_count
        if pa.types.is_integer(column.type) and column.null_count < len(column):
            ends = pc.min_max(column).as_py()
            result["minValues"][name], result["maxValues"][name] = ends["min"], ends["max"]
    return {"numRecords": len(rows), "tightBounds": False, **result}


def bitmap_of(positions: Sequence[int], upper: int = 0) -> bytes:
    """A roaring bitmap with one array container; positions are shifted by `upper` * 2^32."""
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
    """An inline deletion vector with these positions."""
    data = bitmap_of(positions, upper)
    return {
        "storageType": "i",
        "pathOrInlineDv": z85(data),
        "sizeInBytes": len(data),
        "cardinality": len(positions),
    }


Bag = dict[str, int]

_FALLBACK = Path(__file__).resolve().parents[3] / "shared" / "data" / "delta-fixtures"


def bag(table: pa.Table) -> Bag:
    """Each distinct row with the number of times it occurs."""
    return dict(Counter(_rows(table)))


def weighted_bag(table: pa.Table, weights: Iterable[int]) -> Bag:
    """Each distinct row with the sum of its weights, without zero sums."""
    total: Counter[str] = Counter()
    for row, weight in zip(_rows(table), weights, strict=True):
        total[row] += int(weight)
    return {row: weight for row, weight in total.items() if weight}


def minus(left: Bag, right: Bag) -> Bag:
    """The signed difference of two bags."""
    rows = left.keys() | right.keys()
    result = {row: left.get(row, 0) - right.get(row, 0) for row in rows}
    return {row: weight for row, weight in result.items() if weight}


def _rows(table: pa.Table) -> list[str]:
    return [repr(row) for row in zip(*(c.to_pylist() for c in table.columns), strict=True)]


def readable_columns(snapshot: Snapshot) -> list[str]:
    """The columns whose values impctl reads itself."""
    return [column.name for column in snapshot.schema if column.type.kind is not Kind.OTHER]


def fixture_folder() -> Path:
    return Path(os.environ.get("IMPCTL_FIXTURES", _FALLBACK))


def fixture_tables() -> Sequence[object]:
    """Parameters for the tables written by Spark and others; one skipped parameter if absent."""
    folder = fixture_folder()
    if not folder.is_dir():
        reason = f"no Delta fixture tables in {folder}; name their folder in IMPCTL_FIXTURES"
        return [pytest.param(folder, marks=pytest.mark.skip(reason=reason), id="absent")]
    return [pytest.param(path, id=path.name) for path in sorted(folder.iterdir())]


def fixture_table(name: str) -> Path:
    """The path of a fixture table. Skips the test if it is absent."""
    path = fixture_folder() / name
    if not path.is_dir():
        pytest.skip(f"no Delta fixture table {path}; name their folder in IMPCTL_FIXTURES")
    return path


def open_table(path: Path | str) -> DeltaSource:
    """Open the table at its newest version, as `t`."""
    return open_source("t", str(path))


def of_file(
    path: Path,
    columns: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    data: pa.Table,
    more: Mapping[str, Any] | None = None,
    **options: Any,
) -> Snapshot:
    """Create a table whose only file has these rows."""
    create(path, columns, added(path, "a.parquet", data, more, **options))
    return open_table(path).snapshot()


def write_table(path: Path, *files: pa.Table, **options: Any) -> Snapshot:
    """Write a table with deltalake, one file per Arrow table."""
    for rows in files:
        write_deltalake(str(path), rows, mode="append", **options)
    return open_table(path).snapshot()


def check(source: DeltaSource, since: int, until: int, method: str) -> Changes:
    """Check that changes are the difference of the snapshots and use the expected method."""
    before, after = source.snapshot(since), source.snapshot(until)
    columns = [name for name in readable_columns(after) if before.schema.find(name) is not None]
    expected = minus(bag(read_rows(after, columns)), bag(read_rows(before, columns)))
    result = read_changes(source, since, until, columns)
    assert weighted_bag(result.table, result.weights) == expected
    assert result.method == method
    assert result.rows == len(result.weights) == result.table.num_rows
    assert result.weights.dtype == np.int64
    return result


def may_match(row_filter: RangeFilter, bounds: ValueBounds) -> bool:
    """Whether a file with these bounds may hold a row that passes the filter."""
    if row_filter.includes_null and bounds.may_hold_null:
        return True
    if bounds.is_all_null:
        return False
    if bounds.may_be_nan and any(one.high is None for one in row_filter.intervals):
        return True
    low, high = _ends(bounds)
    return any(
        (low is None or one.high is None or low < one.high)
        and (high is None or one.low is None or high >= one.low)
        for one in row_filter.intervals
    )


def may_hold_some(values: Sequence[Any], bounds: ValueBounds) -> bool:
    """Whether a file with these bounds may hold one of the values (None: NULL)."""
    return any(_may_hold_one(value, bounds) for value in values)


def _may_hold_one(value: Any, bounds: ValueBounds) -> bool:
    if value is None:
        return bounds.may_hold_null
    if value != value:
        return bounds.may_be_nan
    low, high = _ends(bounds)
    is_between = (low is None or low <= value) and (high is None or value <= high)
    return is_between and not bounds.is_all_null


def meets(spans: Sequence[tuple[Any, Any]], may_be_nan: bool, bounds: ValueBounds) -> bool:
    """Whether a file with these bounds may hold a value in one of the spans."""
    low, high = _ends(bounds)
    touches = any(
        (low is None or low <= end) and (high is None or start <= high) for start, end in spans
    )
    return (may_be_nan and bounds.may_be_nan) or (touches and not bounds.is_all_null)


def may_compare(op: CompareOp, bounds: ValueBounds, value: Any) -> bool:
    """Whether a value between the bounds, or a possible NaN, may satisfy the comparison."""
    low, high = _ends(bounds)
    answers = {
        CompareOp.LESS: low is None or low < value,
        CompareOp.LESS_EQUAL: low is None or low <= value,
        CompareOp.GREATER: bounds.may_be_nan or high is None or high > value,
        CompareOp.GREATER_EQUAL: bounds.may_be_nan or high is None or high >= value,
        CompareOp.EQUAL: (low is None or low <= value) and (high is None or high >= value),
        CompareOp.NOT_EQUAL: bounds.may_be_nan or not low == value == high,
    }
    return bool(answers[op])


def _ends(bounds: ValueBounds) -> tuple[Any, Any]:
    return bounds.minimum, bounds.maximum


def span_of(partition: RangePartition, bounds: ValueBounds) -> tuple[int, int]:
    """The first and last range that the file may hold, except NULL's."""
    first = 0 if bounds.minimum is None else bisect_right(partition.boundaries, bounds.minimum)
    if bounds.is_all_null:
        return first, first - 1
    if bounds.maximum is None or bounds.may_be_nan:
        return first, partition.ranges - 1
    return first, bisect_right(partition.boundaries, bounds.maximum)


def column_bounds(files: Sequence[ValueBounds], kind: SqlType) -> ColumnBounds:
    """Bounds of several files as one column."""
    filler: Any = "" if kind is STRING else 0.0 if kind is DOUBLE else 0

    def side(values: list[Any]) -> tuple[Any, Any]:
        known = np.array([value is not None for value in values], np.bool_)
        return as_array([filler if value is None else value for value in values]), known

    def counts(values: list[int | None]) -> Any:
        return np.array([UNKNOWN if value is None else value for value in values], np.int64)

    return ColumnBounds(
        *side([one.minimum for one in files]),
        *side([one.maximum for one in files]),
        counts([one.null_count for one in files]),
        counts([one.rows for one in files]),
        np.array([one.may_be_nan for one in files], np.bool_),
    )
