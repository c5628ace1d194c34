"""Tables with deletion vectors and partitions: refills, crashes, writers, and what Spark does.

A query with a bound must come to the sketch of the same query without one; a run that dies at any
step of its commits is taken up again and comes to what it would have come to; a run reads the
versions it pinned, whatever another process writes meanwhile.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from impctl.service import context
from impctl.service.pinned import PinnedTables
from impctl.store.store import Store
from impctl.tables.snapshot import Snapshot
from tests.store.builders import Crash, FailingDisk
from tests.support.run_cli import Capsys, Cli
from tests.tables.vectored import VectoredTable

QUERIES = {
    "least": ("SELECT g, MIN(x) m FROM t GROUP BY g HAVING MIN(x) < 5", "g"),
    "greatest": ("SELECT p, MAX(x) m FROM t GROUP BY p HAVING MAX(x) > 7", "p"),
    "top": ("SELECT q.g FROM (SELECT g, x FROM t ORDER BY x LIMIT 3) q WHERE q.g > 0", "g"),
}
SPREAD = "SELECT g, COUNT(x) n FROM t GROUP BY g HAVING COUNT(x) > 4"


def some(rng: random.Random, count: int) -> pa.Table:
    def chosen(values: list[Any]) -> list[Any]:
        return [rng.choice(values) for _ in range(count)]

    return pa.table(
        {
            "g": pa.array(chosen([None, 0, 1, 2, 3, 4]), pa.int32()),
            "x": pa.array(chosen([None, *range(10)]), pa.int64()),
            "p": pa.array(chosen([None, "a", "b", "c/d", "é"]), pa.string()),
        }
    )


def change(rng: random.Random, table: VectoredTable) -> None:
    """One commit: rows deleted by vectors, moved to another value, or appended."""
    low, high = sorted(rng.choices(range(10), k=2))

    def between(rows: pa.Table) -> pa.ChunkedArray:
        return pc.and_(pc.greater_equal(rows["x"], low), pc.less_equal(rows["x"], high))

    match rng.randrange(3):
        case 0:
            table.delete(between)
        case 1:
            table.update(between, lambda rows: rows.set_column(1, "x", pc.add(rows["x"], 1)))
        case _:
            table.append(some(rng, 6))


def workload(folder: Path, capsys: Capsys, *, spread: bool = False) -> Cli:
    lines = ["version: 1", "tables: {t: {path: t}}", "store: .impctl", "queries:"]
    for name, (sql, sketched) in QUERIES.items():
        common = f'sql: "{sql}", sketch: {{t: {sketched}}}, policy: incremental'
        lines.append(f"  {name}: {{{common}, buffer: 1}}")
        lines.append(f"  {name}_all: {{{common}}}")
        lines.append(f"  {name}_eager: {{{common}, buffer: 1, maintain: eager}}")
    if spread:
        lines.append(f'  spread: {{sql: "{SPREAD}", sketch: {{t: x}}, policy: incremental}}')
    lines.append("partitions: {t: {g: {boundaries: [1, 3]}, p: {ranges: 3}, x: {ranges: 4}}}")
    cli = Cli.over(capsys, folder, "\n".join(lines) + "\n")
    assert {r["mode"] for r in cli.good("capture").results} == {"exact"}
    return cli


def sketches(cli: Cli) -> dict[str, Any]:
    results = cli.good("status").results
    return {r["query"]: (r["versions"], r["sketches"], r["stale"]) for r in results}


def agree(held: dict[str, Any]) -> None:
    for name in QUERIES:
        assert held[name] == held[f"{name}_all"] == held[f"{name}_eager"]


@pytest.mark.slow
@pytest.mark.parametrize("by", [("p",), pytest.param((), marks=pytest.mark.slow)])
def test_bounded_and_unbounded_agree_over_vectors_and_partitions(
    by: tuple[str, ...], tmp_path: Path, capsys: Capsys
) -> None:
    rng = random.Random(len(by) + 1)
    table = VectoredTable(tmp_path / "t", some(rng, 40), by=by)
    cli = workload(tmp_path, capsys)
    refilled = 0
    for _ in range(4):
        change(rng, table)
        change(rng, table)
        refilled += sum(r["refilled_groups"] for r in cli.good("maintain").results)
        agree(sketches(cli))
    assert refilled > 2


@contextmanager
def writing_on(disk: FailingDisk | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every store that a run opens lies on this disk."""

    def opened(path: Path, *, create: bool = True, is_shared: bool = False) -> Store:
        return Store.open(path, create=create, disk=disk, is_shared=is_shared)

    class OnDisk(Store):
        open = staticmethod(opened)  # type: ignore[assignment]  # one disk for all

    with monkeypatch.context() as patched:
        patched.setattr(context, "Store", OnDisk)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("command", [("maintain",), ("capture", "--rebalance")])
def test_a_run_that_dies_between_its_steps_is_taken_up_again(
    command: tuple[str, ...], tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(1)
    table = VectoredTable(tmp_path / "t", some(rng, 60), by=("p",))
    cli = workload(tmp_path, capsys, spread=True)
    for _ in range(3):
        change(rng, table)
    high = pa.array(rng.choices(range(9, 13), k=60), pa.int64())
    table.append(some(rng, 60).set_column(1, "x", high))
    store, before = tmp_path / ".impctl", tmp_path / "before"
    shutil.copytree(store, before)
    disk = FailingDisk(Crash)
    with writing_on(disk, monkeypatch):
        cli.good(*command)
    steps, expected = len(disk.steps), sketches(cli)
    agree(expected)
    died = 0
    for at in range(0, steps, max(1, steps // 6)):
        shutil.rmtree(store)
        shutil.copytree(before, store)
        disk = FailingDisk(Crash, late=bool(at % 2))
        disk.arm(at)
        with writing_on(disk, monkeypatch), pytest.raises(Crash):
            cli(*command)
        died += 1
        cli.good(*command)
        assert sketches(cli) == expected, at
    assert died > 3, steps


@pytest.mark.slow
def test_a_writer_beside_a_refill_changes_nothing(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(4)
    table = VectoredTable(tmp_path / "t", some(rng, 40), by=("p",))
    cli = workload(tmp_path, capsys)
    refilled = 0
    for _ in range(3):
        change(rng, table)
        change(rng, table)
        pinned = table.version
        with monkeypatch.context() as patched:
            patched.setattr(PinnedTables, "snapshot", _after(lambda: change(rng, table)))
            results = cli.good("maintain").results
        refilled += sum(r["refilled_groups"] for r in results)
        assert {r["versions"]["t"] for r in results} == {pinned}
        assert table.version > pinned
        agree(sketches(cli))
        cli.good("maintain")
        agree(sketches(cli))
    assert refilled > 1


def _after(write: Callable[[], None]) -> Callable[..., Snapshot]:
    """`PinnedTables.snapshot`, with a commit of somebody else just before the first few."""
    taken, left = PinnedTables.snapshot, iter(range(4))

    def snapshot(tables: PinnedTables, table: str, version: int | None = None) -> Snapshot:
        tables.source(table)
        if next(left, None) is not None:
            write()
        return taken(tables, table, version)

    return snapshot


IN_SPARK = {
    "sums": ("SELECT g, SUM(x) s FROM t GROUP BY g HAVING SUM(x) > 9", "g", ""),
    "spread": (SPREAD, "x", ""),
    "joined": ("SELECT a.x FROM t a JOIN t b ON a.p <=> b.p AND a.g = b.x", "x", "join: spark"),
}
ASKED = "SELECT g, COUNT(*) n FROM t WHERE x >= :low GROUP BY g HAVING COUNT(*) >= 2"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
def test_spark_groups_joins_and_reuses_over_vectors_and_partitions(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    rng = random.Random(6)
    table = VectoredTable(tmp_path / "t", some(rng, 40), by=("p",))
    lines = ["version: 1", "tables: {t: {path: t}}", "store: .impctl", "queries:"]
    for name, (sql, sketched, more) in IN_SPARK.items():
        lines.append(f'  {name}: {{sql: "{sql}", sketch: {{t: {sketched}}}, {more}}}')
    lines.append(f'  asked: {{sql: "{ASKED}", sketch: {{t: g}}, params: {{low: 2}}}}')
    lines.append("partitions: {t: {g: {boundaries: [1, 3]}, p: {boundaries: [b]}, x: {ranges: 4}}}")
    cli = Cli.over(capsys, tmp_path, "\n".join(lines) + "\n")
    cli.good("capture")
    for command in (("maintain", "--large-change", "0"), ("capture", "--rebalance")):
        for _ in range(3):
            change(rng, table)
        with monkeypatch.context() as patched:
            if command[0] == "maintain":
                patched.setattr(PinnedTables, "snapshot", _after(lambda: change(rng, table)))
            codes = {r.get("reason_code") for r in cli.good(*command).results}
        assert command[0] == "capture" or "grouped_by_spark" in codes
        cli.verified()
    (answer,) = cli.good("query", "--query", "asked", "--param", "low=4").results
    assert answer["reuse"]["query"] == "asked"
    kept = table.rows().filter(pc.greater_equal(table.rows()["x"], 4))
    counts = kept.group_by("g").aggregate([([], "count_all")]).to_pylist()
    expected = [[row["g"], row["count_all"]] for row in counts if row["count_all"] >= 2]
    assert sorted(answer["rows"], key=str) == sorted(expected, key=str)
