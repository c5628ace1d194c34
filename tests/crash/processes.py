"""Runs of `impctl` in separate processes over small workloads, and checks of their results."""

from __future__ import annotations

import bisect
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from msgspec import Struct

from impctl.service.context import open_context
from impctl.service.prepare import prepare
from impctl.service.query import materialized_result
from impctl.service.results import rows_of
from impctl.service.settings import Settings
from impctl.store.records import StoredQuery
from impctl.store.store import Store
from impctl.tables.write.maintenance import create_table


class Done(Struct, frozen=True):
    """A finished process."""

    code: int
    document: dict[str, Any]
    stderr: str


def start(workload: Path, command: str, *words: str, **environment: str) -> subprocess.Popen[str]:
    """`impctl COMMAND WORKLOAD --json ...`, running."""
    arguments = [sys.executable, "-P", "-m", "impctl", command, str(workload), "--json", *words]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(arguments, text=True, env=env, **pipes)


def end(process: subprocess.Popen[str]) -> Done:
    """Wait for the exit code and the JSON document, which must be complete."""
    out, err = process.communicate(timeout=300)
    assert "Traceback" not in err, err
    return Done(process.returncode, json.loads(out), err)


def ran(workload: Path, command: str, *words: str) -> Done:
    """Run a command to its end."""
    return end(start(workload, command, *words))


def wait_until_open(process: subprocess.Popen[str], store: Path) -> float:
    """Wait until the process has opened the catalog or ended, and return the time.

    Loading takes most of a short run and writes nothing, so signals are sent after it.
    """
    catalog = str((store / "catalog.sqlite").resolve())
    while process.poll() is None:
        with suppress(OSError):
            for name in os.listdir(f"/proc/{process.pid}/fd"):
                if os.readlink(f"/proc/{process.pid}/fd/{name}") == catalog:
                    return time.monotonic()
        time.sleep(0.002)
    return time.monotonic()


WORKLOAD = """\
version: 1
tables:
  t: {path: t}
partitions:
  t:
    g: {ranges: 4}
    x: {boundaries: [10, 20, 30]}
queries:
  by_g:
    sql: SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY g HAVING COUNT(*) > 2
    sketch: {t: g}
    policy: incremental
  by_x:
    sql: SELECT x, MAX(g) AS m, MIN(g) AS l FROM t GROUP BY x HAVING COUNT(*) > 2
    sketch: {t: x}
    policy: incremental
    maintain: eager
    answer: true
store: .impctl
spark: {master: "local[2]"}
"""
"""Policy `incremental` for all queries, so that no recapture hides an error.

One query has a materialized result.
"""

_KEYS = {"by_g": "g", "by_x": "x"}
MATERIALIZED = "by_x"


def some_rows(count: int, seed: int, start: int = 0) -> pa.Table:
    """Rows with NULL keys and groups of about three, so that many are close to the HAVING limit."""
    draw = random.Random(seed)
    groups = draw.choices([*range(start, start + count // 3), None], k=count)
    values = draw.choices([*range(40), None], k=count)
    return pa.table({"g": pa.array(groups, pa.int64()), "x": pa.array(values, pa.int64())})


def write_workload(folder: Path, rows: int = 60) -> Path:
    """Create a table and a workload file."""
    create_table(str(folder / "t"), some_rows(rows, 1))
    file = folder / "w.yaml"
    file.write_text(WORKLOAD)
    return file


def change(table: Path, seed: int) -> None:
    """One commit: rows appended, or every seventh group deleted."""
    if seed % 3 == 2:
        DeltaTable(str(table)).delete(f"g % 7 = {seed % 7}")
    else:
        write_deltalake(str(table), some_rows(12, seed), mode="append")


def newest(table: Path) -> int:
    return int(DeltaTable(str(table)).version())


def check_store(store: Path, table: Path) -> dict[str, StoredQuery]:
    """Check that stored sketches are accurate at their versions and that their state is readable.

    The materialized result is checked too. The workload file is beside the table.
    """
    result = {}
    with Store.open(store, create=False) as open_store:
        for name in open_store.queries():
            stored = open_store.load(name)
            assert stored is not None
            assert open_store.load_runs(name)
            (sketch,) = stored.sketches
            expected = expected_ranges(stored, table)
            assert set(sketch.ranges.ids) == expected, (name, stored.versions)
            if name == MATERIALIZED:
                rows = Counter(materialized_rows(stored, table.parent / "w.yaml", store))
                assert rows == expected_rows(table, stored.versions["t"]), (name, stored.versions)
            result[name] = stored
    return result


def materialized_rows(
    stored: StoredQuery, workload: Path, store: Path | None = None
) -> list[tuple[Any, ...]]:
    """The materialized rows of the stored sketch, at its versions."""
    assert stored.state_meta.get("answer") is True
    with open_context(Settings(workload, store=store)) as ctx:
        (spec,) = ctx.queries([stored.query])
        reader = ctx.reading_store()
        assert reader is not None
        ending = ctx.memory.answer(prepare(ctx, spec).planned).ending
        answer = materialized_result(ctx, reader, spec.name, ending, stored.generation)
        assert answer is not None, (stored.query, stored.generation)
        return [*rows_of(answer)]


def expected_rows(table: Path, version: int) -> Counter[tuple[Any, ...]]:
    """The result of `by_x` at this version, computed from the table."""
    groups: dict[Any, list[Any]] = {}
    for row in DeltaTable(str(table), version=version).to_pyarrow_table().to_pylist():
        groups.setdefault(row["x"], []).append(row["g"])
    return Counter(
        (key, max(values, default=None), min(values, default=None))
        for key, group in groups.items()
        for values in [[value for value in group if value is not None]]
        if len(group) > 2
    )


def expected_ranges(stored: StoredQuery, table: Path) -> set[int]:
    """The ranges of all rows whose group passes HAVING, computed from the table."""
    (sketch,) = stored.sketches
    version = stored.versions["t"]
    name = _KEYS[stored.query]
    column = DeltaTable(str(table), version=version).to_pyarrow_table(columns=[name])[name]
    counts = {row["values"]: row["counts"] for row in column.value_counts().to_pylist()}
    boundaries, ranges = sketch.partition.boundaries, sketch.partition.ranges
    passing = [key for key, count in counts.items() if count > 2]
    return {ranges if key is None else bisect.bisect_right(boundaries, key) for key in passing}


def check_no_leftovers(store: Path) -> None:
    """Check that the store has only the state files that runs refer to, and no unknown files."""
    with Store.open(store, create=False) as open_store:
        refs = [ref for name in open_store.queries() for ref in open_store.run_refs(name)]
    folder = store / "state"
    files = list(folder.iterdir()) if folder.exists() else []
    assert len(files) == sum(ref.is_file for ref in refs)
    bases, ends = ("catalog.sqlite", "ledger.sqlite"), ("", "-wal", "-shm")
    allowed = {
        "lock",
        "lock.recovery",
        "state",
        *(f"{base}{end}" for base in bases for end in ends),
    }
    assert {path.name for path in store.iterdir()} <= allowed


BATCHES = """\
  - {name: first, insert: {table: t, rows: [{id: 100, x: 1}, {id: 101, x: 2}]}}
  - {name: file, insert: {table: u, file: more.csv}}
  - {name: grow, update: {table: t, set: {x: x + 1000}, where: id >= 100}}
  - {name: twice, update: {table: t, set: {x: x * 2}, where: id < 3}}
  - {name: gone, delete: {table: u, where: id = 200}}
  - {name: same, insert: {table: t, rows: [{id: 100, x: 1}, {id: 101, x: 2}]}}
"""
WANTED = {
    "t": [(0, 0), (1, 2), (2, 4), (3, 3), (100, 1), (100, 1001), (101, 2), (101, 1002)],
    "u": [(7, 7), (201, 2)],
}
VERSIONS = {"t": 4, "u": 2}


def write_batches(folder: Path) -> Path:
    """Create two tables and a workload whose batches have other effects if applied twice."""
    for name, ids in (("t", [0, 1, 2, 3]), ("u", [7])):
        create_table(str(folder / name), pa.table({"id": ids, "x": ids}))
    (folder / "more.csv").write_text("id,x\n200,1\n201,2\n")
    file = folder / "w.yaml"
    tables = "tables: {t: {path: t}, u: {path: u}}\n"
    query = 'queries: {q: {sql: "SELECT id, SUM(x) AS s FROM t GROUP BY id"}}\n'
    file.write_text(f"version: 1\n{tables}{query}updates:\n{BATCHES}store: .impctl\n")
    return file


def versions(folder: Path) -> dict[str, int]:
    return {name: newest_applied(folder / name) for name in WANTED}


def newest_applied(table: Path) -> int:
    return max(int(entry.stem) for entry in (table / "_delta_log").glob("*.json"))


def run_with_signal(workload: Path, number: signal.Signals, draw: random.Random) -> Counter[str]:
    """Send the signal to a run at a random time, and count the outcome."""
    folder = workload.parent
    before = versions(folder)
    process = start(workload, "apply", "--all")
    commits = draw.randrange(sum(VERSIONS.values()) + 1 - sum(before.values()) or 1)
    limit = time.monotonic() + 60
    # Before that, Python is starting up and its response to signals is undefined.
    maps = Path(f"/proc/{process.pid}/maps")
    while process.poll() is None and "deltalake" not in maps.read_text():
        time.sleep(0.002)
    while process.poll() is None and time.monotonic() < limit:
        if sum(versions(folder).values()) >= sum(before.values()) + commits:
            break
        time.sleep(0.0005)
    time.sleep(draw.choice([0.0, draw.uniform(0, 0.03), draw.uniform(0, 0.3), draw.uniform(0, 2)]))
    process.send_signal(number)
    return summarize(process, number, before, folder)


def summarize(
    process: subprocess.Popen[str], number: signal.Signals, before: dict[str, int], folder: Path
) -> Counter[str]:
    out, err = process.communicate(timeout=120)
    committed = {
        (name, version)
        for name, newest_one in versions(folder).items()
        for version in range(before[name] + 1, newest_one + 1)
    }
    if number is signal.SIGKILL or process.returncode < 0:
        return Counter(killed=1, commits_of_killed=len(committed))
    assert "Traceback" not in err, err
    assert process.returncode in (0, 130), err
    if not out:
        return Counter(silent=1, untold=len(committed))
    document = json.loads(out)
    results = document["results"]
    reported = {(r["table"], r["version"]) for r in results if not r["already_applied"]}
    assert reported <= committed
    code = (document["error"] or {"code": "none"})["code"]
    assert code == ("interrupted" if process.returncode == 130 else "none")
    if reported and process.returncode == 130:
        assert all(f"version {v} of `{t}`" in document["error"]["message"] for t, v in reported)
    return Counter(
        {
            f"exit_{process.returncode}": 1,
            "told": len(reported),
            "untold": len(committed - reported),
        }
    )


def rows(table: Path) -> list[tuple[int, int]]:
    data = DeltaTable(str(table)).to_pyarrow_table()
    return sorted(zip(data["id"].to_pylist(), data["x"].to_pylist(), strict=True))


def apply_with_signals(folder: Path, seed: int) -> Counter[str]:
    """Interrupt some `apply` runs, a third with SIGKILL, finish, check, and count the outcomes."""
    draw = random.Random(seed)
    workload = write_batches(folder)
    result: Counter[str] = Counter()
    for _ in range(draw.choice([1, 2, 4])):
        number = draw.choice([signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
        result += run_with_signal(workload, number, draw)
    process = start(workload, "apply", "--all")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    results = json.loads(out)["results"]
    assert [r["name"] for r in results] == ["first", "file", "grow", "twice", "gone", "same"]
    assert {name: rows(folder / name) for name in WANTED} == WANTED, (seed, result)
    assert versions(folder) == VERSIONS
    result["left_out_at_the_end"] += sum(r["already_applied"] for r in results)
    return result
