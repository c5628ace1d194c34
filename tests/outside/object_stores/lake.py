"""Tables in a bucket, workloads over them, and the same beside them on the local disk."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.fs import DeltaStorageHandler

from impctl.store.records import StoredQuery
from impctl.store.store import Store
from tests.support.object_store import ObjectStore
from tests.support.run_cli import Cli

FEED = {"delta.enableChangeDataFeed": "true"}
ROWS = pa.table(
    {
        "k": pa.array(range(400), pa.int64()),
        "g": pa.array([k // 40 for k in range(400)], pa.int64()),
        "x": pa.array([k * 7 % 50 for k in range(400)], pa.int64()),
    }
)
SQL = "SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 1005"

Batch = Mapping[str, Any]


def appends(count: int) -> list[Batch]:
    """Batches of one row each, into all groups."""
    return [
        {
            "name": f"b{at}",
            "insert": {"table": "t", "rows": [{"k": 1000 + at, "g": at % 12, "x": at}]},
        }
        for at in range(count)
    ]


def mixed(count: int) -> list[Batch]:
    """Of five batches three insert, one updates, one deletes."""
    result = appends(count)
    for at in range(3, count, 5):
        result[at] = {
            "name": f"b{at}",
            "update": {"table": "t", "set": {"x": "x + 90"}, "where": f"k = {at}"},
        }
    for at in range(4, count, 5):
        result[at] = {"name": f"b{at}", "delete": {"table": "t", "where": f"k = {at * 10 + 4}"}}
    return result


@dataclass(frozen=True)
class Lake:
    """A bucket of one test."""

    server: ObjectStore
    bucket: str
    folder: Path
    capsys: pytest.CaptureFixture[str]

    def uri(self, name: str) -> str:
        return f"s3://{self.bucket}/{name}"

    def make(self, name: str, rows: pa.Table = ROWS, **options: Any) -> str:
        """A table with a change feed."""
        write_deltalake(
            self.uri(name), rows, storage_options=self.options, configuration=FEED, **options
        )
        return self.uri(name)

    def empty(self, name: str) -> None:
        """Nothing of the table is left."""
        handler = DeltaStorageHandler(self.uri(name), self.options)
        store = pa_fs.PyFileSystem(handler)
        for result in store.get_file_info(pa_fs.FileSelector("", recursive=True)):
            if result.is_file:
                store.delete_file(result.path)

    @property
    def options(self) -> dict[str, str]:
        return dict(self.server.options)

    def delta(self, name: str) -> DeltaTable:
        """deltalake's own table, opened now."""
        return DeltaTable(self.uri(name), storage_options=self.options)

    def asked(self) -> list[str]:
        """The requests since this was last called."""
        return self.server.asked()

    def workload(self, path: str, batches: Sequence[Batch] = ()) -> Place:
        """A workload over the table at this path, in a folder of its own."""
        folder = self.folder / f"w{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        table = {"path": path}
        options = {"storage_options": self.options} if path.startswith("s3://") else {}
        document = {
            "version": 1,
            "tables": {"t": {**table, **options}},
            "partitions": {"t": {"g": {"boundaries": [*range(1, 10)]}}},
            "queries": {"q": {"sql": SQL, "sketch": {"t": "g"}}},
            "updates": list(batches),
            "store": ".impctl",
        }
        file = folder / "w.yaml"
        file.write_text(json.dumps(document))  # which is YAML, too
        return Place(folder, Cli(self.capsys, file))


@dataclass(frozen=True)
class Place:
    """A workload with its store."""

    folder: Path
    cli: Cli

    def stored(self) -> StoredQuery:
        with Store.open(self.folder / ".impctl", create=False) as store:
            result = store.load("q")
        assert result is not None
        return result

    def fragments(self) -> tuple[int, ...]:
        return tuple(self.stored().sketches[0].fragments.ids)


def apply_by_deltalake(delta: DeltaTable, batches: Iterable[Batch]) -> None:
    """What a user of deltalake alone would do: one table, opened once."""
    for batch in batches:
        if "insert" in batch:
            rows = pa.Table.from_pylist(batch["insert"]["rows"], schema=ROWS.schema)
            write_deltalake(delta, rows, mode="append")
        elif "update" in batch:
            spec = batch["update"]
            delta.update(updates=spec["set"], predicate=spec["where"])
        else:
            delta.delete(batch["delete"]["where"])
