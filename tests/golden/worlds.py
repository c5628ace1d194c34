"""Folders to run commands in: small Delta tables, made once and copied for each run, and changes.

Rows follow formulas, so that answers over them can be worked out by hand and are the same on every
machine.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from impctl.store.store import Store
from impctl.tables.write.maintenance import create_table
from tests.support.small_workload import ROWS

NOW = datetime(2024, 5, 17, 12, 0, tzinfo=UTC)
"""The present of all scripts. It is long past, because `transcript` filters later years."""


class Worlds:
    """Makes each folder once, below `root`, and restores it from a copy from then on.

    All folders are used at the same path, because a store identifies tables by their path.
    """

    def __init__(self, root: Path) -> None:
        self._work = root / "work"
        self._saved = root / "saved"

    def folder(self, world: str) -> Path:
        """The working folder with the tables of a world, and nothing else."""
        return self.prepared(world, lambda: _WORLDS[world](self._work))

    def prepared(self, name: str, prepare: Callable[[], object], base: str | None = None) -> Path:
        """The working folder of the world `base`, after `prepare` was called in it.

        `name` identifies the result, which is reused.
        """
        saved = self._saved / name
        if not saved.exists():
            if base is None:
                shutil.rmtree(self._work, ignore_errors=True)
                self._work.mkdir(parents=True)
            else:
                self.folder(base)
            with chdir(self._work):
                prepare()
            shutil.copytree(self._work, saved)
        shutil.rmtree(self._work, ignore_errors=True)
        shutil.copytree(saved, self._work)
        return self._work


# Tables -------------------------------------------------------------------------------------------


def _nothing(folder: Path) -> None:
    """For scripts whose first commands make the tables."""


def _small(folder: Path) -> None:
    """The table of ten rows that many tests of the command line use."""
    create_table(str(folder / "t"), ROWS)


def _shops(folder: Path) -> None:
    """Forty sales in four files, eight shops, a network of nine links, and twelve visits."""
    numbers = range(1, 41)
    sales = pa.table(
        {
            "id": list(numbers),
            "shop": [n * 7 % 8 for n in numbers],
            "brand": ["abcd"[n // 3 % 4] for n in numbers],
            "price": [n * 13 % 50 for n in numbers],
        }
    )
    _in_files(folder / "sales", sales, 10)
    cities = ["Graz", "Linz", "Wien", "Graz", "Linz", "Wien", "Graz", "Wels"]
    create_table(str(folder / "shops"), pa.table({"shop": list(range(8)), "city": cities}))
    links = ["AB", "BC", "CA", "CB", "CD", "DE", "XY", "YX", "YZ"]
    lengths = [7, 3, 9, 3, 4, 6, 2, 2, 5]
    ends = {"src": [link[0] for link in links], "dst": [link[1] for link in links]}
    _in_files(folder / "links", pa.table({**ends, "km": lengths}), 6)
    visits = {
        "shop": [n % 5 for n in range(12)],
        "day": [date(2024, 5, 17) - timedelta(days=n // 4) for n in range(12)],
        "seen_at": [NOW - timedelta(minutes=7 * n) for n in range(12)],
    }
    create_table(str(folder / "visits"), pa.table(visits))


def _in_files(path: Path, rows: pa.Table, size: int) -> None:
    """A table of several commits, each with a file of `size` rows."""
    create_table(str(path), rows.slice(0, size))
    for start in range(size, len(rows), size):
        write_deltalake(str(path), rows.slice(start, size), mode="append")


def _crimes(folder: Path) -> None:
    """The table of `workloads/crimes.yaml` and a day of changes, with made-up incidents."""
    kinds = ["THEFT", "BATTERY", "HOMICIDE", "ARSON", "NON-CRIMINAL"]

    def incidents(first: int, count: int) -> pa.Table:
        numbers = range(first, first + count)
        return pa.table(
            {
                "Date": [NOW + timedelta(minutes=n) for n in numbers],
                "Block": [f"{n % (60 if n % 2 else 4):03}XX W 7TH ST" for n in numbers],
                "Primary Type": [kinds[n % 13 % 5] for n in numbers],
                "Arrest": [n % 13 % 4 == 2 for n in numbers],
                "Community Area": [71 if n % 10 < 8 else n % 77 for n in numbers],
            }
        )

    create_table(str(folder / "crimes"), incidents(0, 6500))
    (folder / "crimes-batches").mkdir()
    pq.write_table(incidents(6500, 20), folder / "crimes-batches" / "day-1.parquet")


_WORLDS: dict[str, Callable[[Path], None]] = {
    "empty": _nothing,
    "small": _small,
    "shops": _shops,
    "crimes": _crimes,
}


# Changes ------------------------------------------------------------------------------------------


def change(entries: Mapping[str, Any]) -> None:
    """Change the current folder, entry by entry: a verb and what it takes."""
    for verb, argument in entries.items():
        _CHANGES[verb](argument)


@contextmanager
def lock_held(store: str) -> Iterator[None]:
    """Hold the writer's lock of a store, as another process would."""
    with Store.open(Path(store)) as opened, opened.lock(5.0, "another command"):
        yield


def _edit(replacements: Mapping[str, str]) -> None:
    """Replace texts in the workload file, each of which occurs there once."""
    (file,) = Path().glob("*.yaml")
    text = file.read_text(encoding="utf-8")
    for old, new in replacements.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    file.write_text(text, encoding="utf-8")


def _sql(queries: Mapping[str, str]) -> None:
    """Replace the SQL of queries in the workload file."""
    (file,) = Path().glob("*.yaml")
    text = file.read_text(encoding="utf-8")
    for name, sql in queries.items():
        before, line, after = text.partition(f"\n  {name}:\n    sql: ")
        assert line, name
        text = f"{before}{line}{sql}\n{after.partition(chr(10))[2]}"
    file.write_text(text, encoding="utf-8")


def _write(files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())


def _remove(pattern: str) -> None:
    paths = list(Path().glob(pattern))
    assert paths, pattern
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _create(tables: Mapping[str, Mapping[str, list[Any]]]) -> None:
    """Create tables with these columns, in place of existing ones."""
    for name, columns in tables.items():
        shutil.rmtree(name, ignore_errors=True)
        create_table(name, pa.table(columns))


def _append(tables: Mapping[str, Mapping[str, list[Any]]]) -> None:
    for name, columns in tables.items():
        write_deltalake(name, pa.table(columns), mode="append")


def _overwrite(tables: Mapping[str, Mapping[str, list[Any]]]) -> None:
    """Replace the rows and columns of tables, as a new version."""
    for name, columns in tables.items():
        write_deltalake(name, pa.table(columns), mode="overwrite", schema_mode="overwrite")


def _delete(tables: Mapping[str, str]) -> None:
    for name, condition in tables.items():
        DeltaTable(name).delete(condition)


def _vacuum(name: str) -> None:
    """Remove every data file that the latest version of a table does not need."""
    needed = set(DeltaTable(name).file_uris())
    for file in Path(name).glob("**/*.parquet"):
        if str(file.resolve()) not in needed:
            file.unlink()


def _log(tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Add a version to the log of a table that consists of this one action."""
    for name, action in tables.items():
        log = Path(name) / "_delta_log"
        version = len(list(log.glob("*.json")))
        (log / f"{version:020d}.json").write_text(json.dumps(action), encoding="utf-8")


def _catalog(statement: str) -> None:
    """Run an SQL statement on the catalog of the store."""
    connection = sqlite3.connect(".impctl/catalog.sqlite")
    connection.execute(statement)
    connection.commit()
    connection.close()


def _spoil_state(_: object) -> None:
    """Flip a byte in the middle of every stored run of state."""
    connection = sqlite3.connect(".impctl/catalog.sqlite")
    contents = connection.execute("SELECT DISTINCT content FROM run").fetchall()
    assert contents
    for (content,) in contents:
        spoiled = bytearray(content)
        spoiled[len(spoiled) // 2] ^= 0xFF
        connection.execute("UPDATE run SET content = ? WHERE content = ?", (spoiled, content))
    connection.commit()
    connection.close()


def _java(home: str) -> None:
    """A folder that looks like the home of a Java, so that `doctor` reports the same everywhere."""
    java = Path(home) / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    (Path(home) / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="21.0.4"\n')


_CHANGES: dict[str, Callable[[Any], object]] = {
    "edit": _edit,
    "sql": _sql,
    "write": _write,
    "remove": _remove,
    "create": _create,
    "append": _append,
    "overwrite": _overwrite,
    "delete": _delete,
    "vacuum": _vacuum,
    "log": _log,
    "catalog": _catalog,
    "spoil_state": _spoil_state,
    "java": _java,
    "open_to_all": lambda path: Path(path).chmod(0o777),
    "folder": lambda path: Path(path).mkdir(),
}
