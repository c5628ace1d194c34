"""Joins whose sides are read from files or by Spark; tables with deletion vectors."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from impctl.compile.flows import Readable
from impctl.measure.scratch import changed_table
from impctl.plan.nodes import Join, JoinKind, Plan, Scan
from impctl.service import context, fill
from impctl.service.context import Context, OwnSession, open_context
from impctl.service.fill import PartnerReader
from impctl.service.pinned import PinnedTables
from impctl.service.settings import Settings
from impctl.store.store import Store
from impctl.tables.snapshot import Snapshot
from tests.behaviour.typed_joins import QUERIES, change, write_workload
from tests.store.builders import Crash, FailingDisk
from tests.support.kept_workload import fragments_by_access, stored
from tests.support.run_cli import Capsys, Cli
from tests.tables import handmade
from tests.tables.handmade import VectoredTable

TURNS = 2


@pytest.fixture
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnSession, "open", Mock(side_effect=AssertionError("Spark was asked for")))


def files_and_index(folder: Path, capsys: Capsys, names: Iterable[str]) -> Cli:
    """A CLI for each of these queries, with `join: files` and with `join: index`."""
    queries = [
        (f"{name}_{join}", QUERIES[name], join) for name in names for join in ("files", "index")
    ]
    return Cli(capsys, write_workload(folder, queries))


def check_equal(folder: Path) -> None:
    for name in QUERIES:
        by_files, by_index = (stored(folder, f"{name}_{join}") for join in ("files", "index"))
        assert by_files.versions == by_index.versions
        assert fragments_by_access(by_files) == fragments_by_access(by_index), name


@pytest.mark.usefixtures("_no_spark")
@pytest.mark.slow
def test_all_key_types_from_files(tmp_path: Path, capsys: Capsys) -> None:
    cli = files_and_index(tmp_path, capsys, QUERIES)
    captured = cli.good("capture").results
    assert {r["mode"] for r in captured} == {"exact"}
    check_equal(tmp_path)
    rng = random.Random(5)
    for turn in range(TURNS):
        change(tmp_path, rng, turn)
        for result in cli.good("maintain").results:
            assert result["action"] == "exact", result
        check_equal(tmp_path)
        if turn == 0:
            for table in ("t", "u"):
                DeltaTable(str(tmp_path / table)).optimize.compact()


@pytest.mark.usefixtures("_no_spark")
def test_sides_read_from_files_are_not_stored(tmp_path: Path, capsys: Capsys) -> None:
    cli = files_and_index(tmp_path, capsys, ["two"])
    cli.good("capture")
    explained = {r["query"]: r for r in cli.good("explain").results}
    assert {side["strategy"] for side in explained["two_files"]["joins"]} == {"files"}
    assert {side["strategy"] for side in explained["two_index"]["joins"]} == {"index"}
    assert stored(tmp_path, "two_files").state_meta["from_files"] == ["join0.left", "join0.right"]
    assert "from_files" not in stored(tmp_path, "two_index").state_meta


@pytest.fixture
def cli(tmp_path: Path, capsys: Capsys) -> Cli:
    queries = [
        *((name, sql, "spark") for name, sql in QUERIES.items()),
        ("kept", QUERIES["two"], "index"),
        ("unfiltered", QUERIES["two"], "spark_unfiltered"),
    ]
    return Cli(capsys, write_workload(tmp_path, queries))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
def test_all_key_types_through_spark(cli: Cli, tmp_path: Path, spark: Any) -> None:
    captured = cli.good("capture").results
    assert {r["mode"] for r in captured} == {"exact"}
    rng = random.Random(5)
    for turn in range(2):
        change(tmp_path, rng, turn)
        for result in cli.good("maintain").results:
            assert result["action"] == "exact", result
    cli.verified()


@pytest.mark.spark
def test_explain_shows_join_strategies(cli: Cli, spark: Any) -> None:
    result = {r["query"]: r["joins"] for r in cli.good("explain").results}
    assert {side["strategy"] for side in result["kept"]} == {"index"}
    assert {side["strategy"] for side in result["two"]} == {"spark"}
    assert all(side["rows"] and side["bytes"] for side in result["two"]), json.dumps(result["two"])


WORKLOAD = """
version: 1
tables: {small: {path: small}, large: {path: large}}
partitions: {small: {id: {boundaries: [2]}}}
queries: {q: {sql: "SELECT id, COUNT(*) n FROM small GROUP BY id HAVING COUNT(*) > 1"}}
"""
LARGE = 32_000_000


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    """A small table with statistics, a large one without."""
    schema = handmade.metadata([handmade.field("id", handmade.LONG)])
    for name, added in {
        "small": handmade.add("a.parquet", 1000, 900),
        "large": handmade.add("a.parquet", 0, LARGE, stats=None),
    }.items():
        handmade.commit(tmp_path / name, 0, handmade.protocol(), schema, added)
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    with open_context(Settings(tmp_path / "w.yaml")) as opened:
        yield opened


def test_table_without_statistics_counts_as_larger(ctx: Context) -> None:
    assert ctx.tables.rows_of(["small"]) == 1000
    assert ctx.tables.rows_of(["small", "large"]) > 100_000
    assert changed_table(ctx.tables, ["small", "large"]) == "large"


@pytest.mark.parametrize(("tables", "slices"), [(["small"], 1), (["small", "large"], 10)])
def test_large_joins_are_read_in_slices(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, tables: list[str], slices: int
) -> None:
    monkeypatch.setattr(fill, "_SLICE_ROWS", 100_000)
    monkeypatch.setattr(PartnerReader, "_spark_rows", lambda *_: "a slice")
    scans: list[Plan] = [Scan(table, table, ()) for table in tables]
    plan = reduce(lambda left, right: Join(JoinKind.INNER, left, right, None), scans)
    joined = Readable("join0", plan, plan, (), (), ())
    reader: Any = PartnerReader(ctx, None, {}, {})  # type: ignore[arg-type]  # not looked at
    assert list(reader.pairs(joined)) == ["a slice"] * slices


VECTORED_QUERIES = {
    "least": ("SELECT g, MIN(x) m FROM t GROUP BY g HAVING MIN(x) < 5", "g"),
    "greatest": ("SELECT p, MAX(x) m FROM t GROUP BY p HAVING MAX(x) > 7", "p"),
    "top": ("SELECT q.g FROM (SELECT g, x FROM t ORDER BY x LIMIT 3) q WHERE q.g > 0", "g"),
}
SPREAD = "SELECT g, COUNT(x) n FROM t GROUP BY g HAVING COUNT(x) > 4"


def some(rng: random.Random, count: int) -> pa.Table:
    values: tuple[list[Any], ...] = (
        [None, 0, 1, 2, 3, 4],
        [None, *range(10)],
        [None, "a", "b", "c/d", "é"],
    )
    drawn = [[rng.choice(some) for _ in range(count)] for some in values]
    return pa.table(drawn, schema=pa.schema({"g": pa.int32(), "x": pa.int64(), "p": pa.string()}))


def change_vectored(rng: random.Random, table: VectoredTable) -> None:
    """Commit once: delete rows with vectors, update or append rows."""
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
    queries: dict[str, dict[str, Any]] = {}
    for name, (sql, sketched) in VECTORED_QUERIES.items():
        common = {"sql": sql, "sketch": {"t": sketched}, "policy": "incremental"}
        queries[name] = {**common, "buffer": 1}
        queries[f"{name}_all"] = common
        queries[f"{name}_eager"] = {**common, "buffer": 1, "maintain": "eager"}
    if spread:
        queries["spread"] = {"sql": SPREAD, "sketch": {"t": "x"}, "policy": "incremental"}
    ranges = {"g": {"boundaries": [1, 3]}, "p": {"ranges": 3}, "x": {"ranges": 4}}
    cli = Cli.asking(capsys, folder, queries, partitions={"t": ranges})
    assert {r["mode"] for r in cli.good("capture").results} == {"exact"}
    return cli


def sketches(cli: Cli) -> dict[str, Any]:
    results = cli.good("status").results
    return {r["query"]: (r["versions"], r["sketches"], r["stale"]) for r in results}


def check_agreement(state: dict[str, Any]) -> None:
    for name in VECTORED_QUERIES:
        assert state[name] == state[f"{name}_all"] == state[f"{name}_eager"]


@pytest.mark.slow
@pytest.mark.parametrize("by", [("p",), pytest.param((), marks=pytest.mark.slow)])
def test_bounded_and_unbounded_sketches_agree(
    by: tuple[str, ...], tmp_path: Path, capsys: Capsys
) -> None:
    rng = random.Random(len(by) + 1)
    table = VectoredTable(tmp_path / "t", some(rng, 40), by=by)
    cli = workload(tmp_path, capsys)
    refilled = 0
    for _ in range(4):
        change_vectored(rng, table)
        change_vectored(rng, table)
        refilled += sum(r["refilled_groups"] for r in cli.good("maintain").results)
        check_agreement(sketches(cli))
    assert refilled > 2


@contextmanager
def writing_on(disk: FailingDisk | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All stores that a run opens use this disk."""

    def opened(path: Path, *, create: bool = True, is_shared: bool = False) -> Store:
        return Store.open(path, create=create, disk=disk, is_shared=is_shared)

    class OnDisk(Store):
        open = staticmethod(opened)  # type: ignore[assignment]  # one disk for all

    with monkeypatch.context() as patched:
        patched.setattr(context, "Store", OnDisk)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("command", [("maintain",), ("capture", "--rebalance")])
def test_crashed_run_is_resumed_at_every_step(
    command: tuple[str, ...], tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(1)
    table = VectoredTable(tmp_path / "t", some(rng, 60), by=("p",))
    cli = workload(tmp_path, capsys, spread=True)
    for _ in range(3):
        change_vectored(rng, table)
    high = pa.array(rng.choices(range(9, 13), k=60), pa.int64())
    table.append(some(rng, 60).set_column(1, "x", high))
    store, before = tmp_path / ".impctl", tmp_path / "before"
    shutil.copytree(store, before)
    disk = FailingDisk(Crash)
    with writing_on(disk, monkeypatch):
        cli.good(*command)
    steps, expected = len(disk.steps), sketches(cli)
    check_agreement(expected)
    crashes = 0
    for step in range(0, steps, max(1, steps // 6)):
        shutil.rmtree(store)
        shutil.copytree(before, store)
        disk = FailingDisk(Crash, late=bool(step % 2))
        disk.arm(step)
        with writing_on(disk, monkeypatch), pytest.raises(Crash):
            cli(*command)
        crashes += 1
        cli.good(*command)
        assert sketches(cli) == expected, step
    assert crashes > 3, steps


@pytest.mark.slow
def test_concurrent_writer_during_refill(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(4)
    table = VectoredTable(tmp_path / "t", some(rng, 40), by=("p",))
    cli = workload(tmp_path, capsys)
    refilled = 0
    for _ in range(3):
        change_vectored(rng, table)
        change_vectored(rng, table)
        pinned = table.version
        with monkeypatch.context() as patched:
            patched.setattr(
                PinnedTables, "snapshot", snapshot_after(lambda: change_vectored(rng, table))
            )
            results = cli.good("maintain").results
        refilled += sum(r["refilled_groups"] for r in results)
        assert {r["versions"]["t"] for r in results} == {pinned}
        assert table.version > pinned
        check_agreement(sketches(cli))
        cli.good("maintain")
        check_agreement(sketches(cli))
    assert refilled > 1


def snapshot_after(write: Callable[[], None]) -> Callable[..., Snapshot]:
    """`PinnedTables.snapshot`, with another writer's commit before each of the first four calls."""
    original, remaining = PinnedTables.snapshot, iter(range(4))

    def snapshot(tables: PinnedTables, table: str, version: int | None = None) -> Snapshot:
        tables.source(table)
        if next(remaining, None) is not None:
            write()
        return original(tables, table, version)

    return snapshot


IN_SPARK = {
    "sums": ("SELECT g, SUM(x) s FROM t GROUP BY g HAVING SUM(x) > 9", "g", "auto"),
    "spread": (SPREAD, "x", "auto"),
    "joined": ("SELECT a.x FROM t a JOIN t b ON a.p <=> b.p AND a.g = b.x", "x", "spark"),
}
REUSED_QUERY = "SELECT g, COUNT(*) n FROM t WHERE x >= :low GROUP BY g HAVING COUNT(*) >= 2"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
def test_spark_over_deletion_vectors_and_partitions(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    rng = random.Random(6)
    table = VectoredTable(tmp_path / "t", some(rng, 40), by=("p",))
    queries: dict[str, dict[str, Any]] = {
        name: {"sql": sql, "sketch": {"t": sketched}, "join": join}
        for name, (sql, sketched, join) in IN_SPARK.items()
    }
    queries["asked"] = {"sql": REUSED_QUERY, "sketch": {"t": "g"}, "params": {"low": 2}}
    ranges = {"g": {"boundaries": [1, 3]}, "p": {"boundaries": ["b"]}, "x": {"ranges": 4}}
    cli = Cli.asking(capsys, tmp_path, queries, partitions={"t": ranges}).captured()
    for command in (("maintain", "--large-change", "0"), ("capture", "--rebalance")):
        for _ in range(3):
            change_vectored(rng, table)
        with monkeypatch.context() as patched:
            if command[0] == "maintain":
                patched.setattr(
                    PinnedTables, "snapshot", snapshot_after(lambda: change_vectored(rng, table))
                )
            codes = {r.get("reason_code") for r in cli.good(*command).results}
        assert command[0] == "capture" or "grouped_by_spark" in codes
        cli.verified()
    answer = cli.one("query", "--query", "asked", "--param", "low=4")
    assert answer["reuse"]["query"] == "asked"
    selected = table.rows().filter(pc.greater_equal(table.rows()["x"], 4))
    counts = selected.group_by("g").aggregate([([], "count_all")]).to_pylist()
    expected = [[row["g"], row["count_all"]] for row in counts if row["count_all"] >= 2]
    assert sorted(answer["rows"], key=str) == sorted(expected, key=str)
