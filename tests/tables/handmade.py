"""Delta tables whose log is written by hand, for what deltalake itself would not write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

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
    """A protocol action; reader features make it a table of version 3 and 7."""
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
    """Statistics of a file: its rows, NULLs by column, the least and the greatest value of some."""
    least = {name: low for name, (low, _) in limits.items()}
    greatest = {name: high for name, (_, high) in limits.items()}
    told = {"numRecords": rows, "minValues": least, "maxValues": greatest}
    return json.dumps(told if nulls is None else {**told, "nullCount": nulls})


def remove(path: str, **more: Any) -> dict[str, Any]:
    return {"remove": {"path": path, "dataChange": True, "deletionTimestamp": 0, **more}}


def create(
    table: Path,
    columns: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *actions: Mapping[str, Any],
    features: Sequence[str] = (),
    **about: Any,
) -> str:
    """Write version 0 of a table, of columns by name and kind or of fields; returns its path."""
    fields = columns
    if isinstance(columns, Mapping):
        fields = [field(name, kind) for name, kind in columns.items()]
    commit(table, 0, protocol(*features), metadata(fields, **about), *actions)
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
    text = "".join(json.dumps(action) + "\n" for action in actions)
    file.write_text(text, encoding="utf-8")


def write_file(table: Path, name: str, data: pa.Table, **options: Any) -> str:
    """Write a data file; returns its name as the log spells it."""
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
    """Turns the checkpoint of a version into one with a side file (V2); the top may name another.

    The entries up to it are removed, so that nothing but the checkpoint tells what they told.
    """
    folder = table / "_delta_log"
    classic = folder / f"{version:020}.checkpoint.parquet"
    (folder / "_sidecars").mkdir()
    adds = pq.read_table(classic, columns=["add"])
    written = folder / "_sidecars" / "s.parquet"
    pq.write_table(adds.filter(pc.is_valid(adds.column("add"))), written)
    tops = [a for a in actions_of(table, 0) if "protocol" in a or "metaData" in a]
    (spoken,) = (action["protocol"] for action in tops if "protocol" in action)
    for kind in ("readerFeatures", "writerFeatures"):
        spoken[kind] = [*spoken[kind], "v2Checkpoint"]
    size = written.stat().st_size
    named = {"path": side_file, "sizeInBytes": size, "modificationTime": 0}
    name = f"{version:020}.checkpoint.{UUID(int=version)}.json"
    lines = [{"checkpointMetadata": {"version": version}}, *tops, {"sidecar": named}]
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    last = {"path": name, "sizeInBytes": 1, "modificationTime": 0, "sidecarFiles": []}
    about = {"version": version, "size": len(lines), "v2Checkpoint": last}
    (folder / "_last_checkpoint").write_text(json.dumps(about))
    classic.unlink()
    for at in range(version + 1):
        entry(table, at).unlink()
    commit(table, version + 1, {"commitInfo": {}})
