"""`impctl apply --all` shot at any moment and run again, until all batches are in.

Law: the tables then hold what one undisturbed run would have made, whatever the shots were; a run
that could answer its signal told every version that it made.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from impctl.tables.write.maintenance import create_table
from tests.crash.processes import start

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
    """Two tables and a workload whose batches do something else when they are done twice."""
    for name, ids in (("t", [0, 1, 2, 3]), ("u", [7])):
        create_table(str(folder / name), pa.table({"id": ids, "x": ids}))
    (folder / "more.csv").write_text("id,x\n200,1\n201,2\n")
    file = folder / "w.yaml"
    tables = "tables: {t: {path: t}, u: {path: u}}\n"
    query = 'queries: {q: {sql: "SELECT id, SUM(x) AS s FROM t GROUP BY id"}}\n'
    file.write_text(f"version: 1\n{tables}{query}updates:\n{BATCHES}store: .impctl\n")
    return file


def versions(folder: Path) -> dict[str, int]:
    return {name: newest(folder / name) for name in WANTED}


def newest(table: Path) -> int:
    return max(int(entry.stem) for entry in (table / "_delta_log").glob("*.json"))


def shoot(workload: Path, number: signal.Signals, draw: random.Random) -> Counter[str]:
    """One run that gets the signal at some moment; what came of it."""
    folder = workload.parent
    before = versions(folder)
    process = start(workload, "apply", "--all")
    commits = draw.randrange(sum(VERSIONS.values()) + 1 - sum(before.values()) or 1)
    limit = time.monotonic() + 60
    # Before that Python itself is starting, and answers signals as it likes.
    while (
        process.poll() is None and "deltalake" not in Path(f"/proc/{process.pid}/maps").read_text()
    ):
        time.sleep(0.002)
    while process.poll() is None and time.monotonic() < limit:
        if sum(versions(folder).values()) >= sum(before.values()) + commits:
            break
        time.sleep(0.0005)
    time.sleep(draw.choice([0.0, draw.uniform(0, 0.03), draw.uniform(0, 0.3), draw.uniform(0, 2)]))
    process.send_signal(number)
    return told(process, number, before, folder)


def told(
    process: subprocess.Popen[str], number: signal.Signals, before: dict[str, int], folder: Path
) -> Counter[str]:
    out, err = process.communicate(timeout=120)
    made = {
        (name, version)
        for name, newest_one in versions(folder).items()
        for version in range(before[name] + 1, newest_one + 1)
    }
    if number is signal.SIGKILL or process.returncode < 0:
        return Counter(killed=1, commits_of_killed=len(made))
    assert "Traceback" not in err, err
    assert process.returncode in (0, 130), err
    if not out:
        return Counter(silent=1, untold=len(made))
    document = json.loads(out)
    results = document["results"]
    mine = {(r["table"], r["version"]) for r in results if not r["already_applied"]}
    assert mine <= made
    code = (document["error"] or {"code": "none"})["code"]
    assert code == ("interrupted" if process.returncode == 130 else "none")
    if mine and process.returncode == 130:
        assert all(f"version {v} of `{t}`" in document["error"]["message"] for t, v in mine)
    return Counter({f"exit_{process.returncode}": 1, "told": len(mine), "untold": len(made - mine)})


def rows(table: Path) -> list[tuple[int, int]]:
    data = DeltaTable(str(table)).to_pyarrow_table()
    return sorted(zip(data["id"].to_pylist(), data["x"].to_pylist(), strict=True))


def disturbed(folder: Path, seed: int) -> Counter[str]:
    """Shots until all is in; one of three from which no run can tell. What came of the runs."""
    draw = random.Random(seed)
    workload = write_batches(folder)
    result: Counter[str] = Counter()
    for _ in range(draw.choice([1, 2, 4])):
        number = draw.choice([signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
        result += shoot(workload, number, draw)
    process = start(workload, "apply", "--all")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    results = json.loads(out)["results"]
    assert [r["name"] for r in results] == ["first", "file", "grow", "twice", "gone", "same"]
    assert {name: rows(folder / name) for name in WANTED} == WANTED, (seed, result)
    assert versions(folder) == VERSIONS
    result["left_out_at_the_end"] += sum(r["already_applied"] for r in results)
    return result
