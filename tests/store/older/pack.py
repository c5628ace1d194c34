"""Write a store with the current code and pack it with its tables, for tests of later code.

    python -m tests.store.older.pack NAME

Run it in a checkout of the release: it writes `NAME.tar.gz` beside this file. Archives are never
rewritten; `tests.store.test_older_store` continues from them. A store has a hash of its tables'
paths. Here these go through the working directory of the process, so the archive can be unpacked
and used anywhere.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

HERE = Path("/proc/self/cwd")
"""The working directory, under the same name on every Linux machine."""
STARTS = (7, 13, 25, 43)
"""Start nodes of the recursive queries, each in a separate region."""
WORKLOAD = Path(__file__).with_name("workload.yaml").read_text(encoding="utf-8")


def sales(start: int, stop: int) -> pa.Table:
    """Sales with these ids. Notes are so long that a materialized result needs a file."""
    ids = range(start, stop)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "shop": pa.array([i % 60 for i in ids], pa.int64()),
            "product": pa.array([i * i % 13 for i in ids], pa.int64()),
            "amount": pa.array([i * 7 % 11 + _bonus(i % 60) for i in ids], pa.int64()),
            "weight": pa.array([None if i % 7 == 3 else i % 16 / 4 for i in ids], pa.float64()),
            "note": pa.array([f"{i} {'.' * 3000}" for i in ids], pa.string()),
        }
    )


def _bonus(shop: int) -> int:
    """Twelve shops sell much more than the others."""
    return shop if 18 <= shop < 30 else 0


def shops(start: int, stop: int) -> pa.Table:
    """Shops with these numbers, in eight cities."""
    numbers = range(start, stop)
    cities = [f"city{number * number % 8}" for number in numbers]
    return pa.table({"shop": pa.array(numbers, pa.int64()), "city": pa.array(cities, pa.string())})


def links(step: int) -> pa.Table:
    """A link from each of sixty nodes to another one in its region of six."""
    targets = [node // 6 * 6 + (node * node + step) % 6 for node in range(60)]
    return pa.table({"src": list(range(60)), "dst": targets})


def branches(stem: int) -> pa.Table:
    """A link from each start to a separate node."""
    return pa.table({"src": list(STARTS), "dst": [stem + start for start in STARTS]})


def append(table: str, rows: pa.Table) -> None:
    """Append to the table. The first commit creates it with a change feed."""
    feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(str(HERE / table), rows, mode="append", configuration=feed)


def delete(table: str, predicate: str) -> None:
    DeltaTable(str(HERE / table)).delete(predicate)


def impctl(command: str, *arguments: str) -> None:
    words = ["-m", "impctl", command, "workload.yaml", *arguments]
    subprocess.run([sys.executable, *words], check=True)


def make() -> None:
    """Create tables, workload and store in the working directory."""
    Path("workload.yaml").write_text(WORKLOAD)
    append("sales", sales(0, 540))
    append("shops", shops(0, 55))
    append("links", pa.concat_tables([links(1), links(4), branches(100), branches(200)]))
    append("links", pa.table({"src": [70, 72, 73, 74], "dst": [71, 73, 75, 76]}))
    impctl("capture")
    append("sales", sales(540, 580))
    append("links", pa.concat_tables([links(2), branches(300)]))
    append("links", pa.table({"src": [71], "dst": [74]}))
    delete("sales", "id % 50 = 7")
    impctl("maintain", "--policy", "strict")
    append("shops", shops(55, 60))
    delete("links", "dst > 200 AND dst < 300 OR src = 72 OR src % 10 = 3 AND dst % 2 = 0")
    delete("sales", "shop IN (5, 24, 27) AND amount < 30")
    impctl("maintain", "--policy", "strict")
    impctl("query", "--query", "grouping")
    impctl("status")


def pack(folder: Path, archive: Path) -> None:
    """Pack all relevant files, sorted by name, without owners and times."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    files = [path for path in files if path.name != "lock" and not path.name.endswith("-shm")]
    with gzip.GzipFile(archive, "wb", mtime=0) as packed, tarfile.open(None, "w", packed) as tar:
        for file in files:
            info = tarfile.TarInfo(str(file.relative_to(folder)))
            info.size, info.mode = file.stat().st_size, 0o600
            with file.open("rb") as content:
                tar.addfile(info, content)


def main(name: str) -> None:
    archive = Path(__file__).with_name(f"{name}.tar.gz").absolute()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        make()
        pack(Path(folder), archive)
        os.chdir("/")
    print(f"{archive.name}: {archive.stat().st_size / 1000:.0f} kB")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
