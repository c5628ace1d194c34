"""Exit codes and messages for bad input, broken environments and too little memory."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import tracemalloc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from deltalake import DeltaTable, write_deltalake

from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.data import keys, memory
from impctl.data.pages import whole_table
from impctl.engine.circuit import Circuit
from impctl.errors import TableError
from impctl.service import context, memory_limit, query
from impctl.service.context import OwnSession
from impctl.store.records import MaintainCommit
from impctl.store.store import Store
from impctl.tables import rows, source
from impctl.tables.write.maintenance import create_table
from tests.support.kept_workload import stored as stored_query
from tests.support.run_cli import ROWS, WORKLOAD, Capsys, Cli, MadeOnce, Ran
from tests.tables import handmade


def sketch(cli: Cli) -> tuple[list[int], dict[str, int]]:
    """The stored ranges and versions."""
    result = cli.one("status")
    return result["sketches"][0]["ranges"], result["versions"]


def check_refused(ran: Ran, code: int, name: str, *words: str) -> None:
    """Check exit code, error code, words in the message, and that there is a hint."""
    assert ran.refusal == (code, name)
    for word in words:
        assert word in ran.error["message"], ran.error
    assert ran.error["hint"], ran.error
    assert "\n" not in ran.error["message"]


def edit(cli: Cli, old: str, new: str) -> Cli:
    """The CLI, after a replacement in its workload file."""
    cli.edit(old, new)
    return cli


@pytest.fixture
def captured(cli: Cli) -> Cli:
    cli.good("capture")
    assert sketch(cli) == ([0, 1], {"t": 0})
    return cli


def large_group(rows: int = 3) -> pa.Table:
    """Rows that raise group 5 above the HAVING limit."""
    return pa.table({"g": [5] * rows, "x": [1] * rows, "note": ["z"] * rows})


@pytest.mark.spark
def test_count_below_zero(captured: Cli, table: str) -> None:
    """A data file is overwritten, so that rows are deleted that the state never had."""
    write_deltalake(table, large_group(), mode="append")
    captured.good("maintain")
    version = DeltaTable(table).version()
    (added,) = [one["add"] for one in handmade.actions_of(table, version) if "add" in one]
    strangers = large_group().set_column(0, "g", pa.array([7] * 3))
    pq.write_table(strangers, Path(table) / added["path"])
    handmade.commit(table, version + 1, handmade.remove(added["path"], deletionTimestamp=1))
    before = sketch(captured)
    check_refused(captured("maintain"), 7, "count_below_zero", "never contained")
    assert sketch(captured) == before


@pytest.mark.spark
def test_changed_definition_needs_a_capture(captured: Cli) -> None:
    edit(captured, "COUNT(*) > 2", "COUNT(*) > 1")
    check_refused(captured("maintain"), 7, "definition_changed", "`q`")
    check_refused(captured("verify"), 7, "definition_changed", "`q`")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        name
        for name, parsed in typer.main.get_command(build_app()).commands.items()  # type: ignore[attr-defined]
        if any("--query" in param.opts for param in parsed.params)
    ],
)
def test_unknown_query(cli: Cli, command: str) -> None:
    cli.good("capture")
    ran = cli(command, "--query", "totalz")
    check_refused(ran, 2, "query_unknown", "totalz")


@pytest.mark.parametrize(
    ("counters", "renamed"),
    [({}, {}), ({"aggregate0.next_group": 4, "other": 1}, {}), (None, {"rows": "count0"})],
    ids=["counter missing", "counter unknown", "column renamed"],
)
def test_state_of_another_release_is_recaptured_or_refused(
    captured: Cli, table: str, counters: dict[str, int] | None, renamed: dict[str, str]
) -> None:
    stored = stored_query(captured.workload.parent, "q")
    with Store.open(captured.workload.parent / ".impctl") as store:
        ((sequence, groups),) = store.load_runs("q")["aggregate0.groups"]
        names = [renamed.get(name, name) for name in whole_table(groups).column_names]
        meta = dict(stored.state_meta)
        assert meta["counters"].keys() == {"aggregate0.next_group"}
        if counters is not None:
            meta["counters"] = counters
        record = store.history("q")[0]
        runs = (("aggregate0.groups", sequence, groups.rename_columns(names)),)
        fields = {"put_runs": runs, "state_meta": meta, "basis": meta}
        store.commit_maintain(MaintainCommit("q", stored.generation, stored.pins, record, **fields))
    write_deltalake(table, large_group(), mode="append")
    assert captured("maintain").refusal == (7, "state_corrupt")
    assert captured("maintain", "--policy", "strict").refusal == (4, "policy_refused")
    assert captured("plan", "--policy", "auto").results[0]["reason_code"] == "state_corrupt"
    result = captured.one("maintain", "--policy", "auto")
    assert (result["action"], result["reason_code"]) == ("recapture", "state_corrupt")


@pytest.mark.parametrize("content", [b"", b"PAR1", bytes(4096)], ids=["empty", "cut", "zeros"])
def test_corrupt_data_file_is_reported(captured: Cli, table: str, content: bytes) -> None:
    before = set(Path(table).glob("*.parquet"))
    write_deltalake(table, large_group(), mode="append")
    (file,) = set(Path(table).glob("*.parquet")) - before
    file.write_bytes(content)
    for command in ("maintain", "capture"):
        ran = captured(command)
        check_refused(ran, 6, "storage_failed", "`t`")
        assert file.name in ran.error["hint"]


def test_corrupt_change_data_does_not_end_the_process(captured: Cli, table: str) -> None:
    """Reading the change feed, deltalake panics in a C function that cannot unwind."""
    DeltaTable(table).delete("g = 3 AND x = 5")
    (file,) = Path(table, "_change_data").iterdir()
    file.write_bytes(bytes(file.stat().st_size))
    ran = captured("maintain")
    check_refused(ran, 6, "storage_failed", "`t`")
    assert file.name in ran.error["hint"]


@pytest.mark.parametrize("command", ["check", "capture", "query", "explain"])
def test_folder_name_not_utf_8(capsys: Any, tmp_path: Path, command: str) -> None:
    folder = tmp_path / os.fsdecode(b"a\xff")
    folder.mkdir()
    create_table(str(tmp_path / "t"), ROWS)
    (tmp_path / "t").rename(folder / "t")
    (folder / "w.yaml").write_text(WORKLOAD.replace("POLICY", "incremental"))
    ran = Cli(capsys, folder / "w.yaml")(command)
    assert ran.error["code"] == "table_path_not_utf8", ran.document


def test_output_names_not_utf_8(captured: Cli, tmp_path: Path) -> None:
    name = str(tmp_path / os.fsdecode(b"o\xff"))
    captured.good("query", "--by", "engine", "--out", f"{name}.csv")
    captured.good("maintain", "--metrics", f"{name}.prom")
    captured.good("rewrite", "--files", f"{name}.json")
    assert len(list(tmp_path.glob("o*.*"))) == 3
    words = ["init", str(tmp_path / "t"), "--out", f"{name}.yaml", "--json"]
    assert run(build_app(), words) == 2
    assert "out_not_utf8" in captured.capsys.readouterr().out


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_devices_cannot_be_inserted(cli: Cli, tmp_path: Path, ending: str) -> None:
    (tmp_path / f"zero.{ending}").symlink_to("/dev/zero")
    update = f"updates: [{{name: a, insert: {{table: t, file: zero.{ending}}}}}]\nstore:"
    edit(cli, "store:", update)
    check_refused(cli("apply", "a"), 2, "usage", "not a regular file")


HOLDER = """
import sys, time
from pathlib import Path
from impctl.store.store import Store
with Store.open(Path(sys.argv[1])) as store, store.lock(5, "a test that waits"):
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def held_lock(store: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process holds the writer lock while the block runs."""
    command = [sys.executable, "-P", "-c", HOLDER, str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            yield holder
        finally:
            holder.kill()


LARGE_ROWS, FILES = 30_000, 3
SHAPES = {
    "self_join": "SELECT a.id, b.t FROM f a JOIN f b ON a.id = b.t",
    "many_pairs": "SELECT COUNT(*) AS n FROM f a JOIN f b ON a.g = b.g AND a.id < 500",
    "dimension": "SELECT d.c, SUM(f.t) AS t FROM f JOIN d ON f.k = d.k GROUP BY d.c",
    "groups": "SELECT k, s, COUNT(*) AS n, SUM(t) AS t, MIN(x) AS x FROM f GROUP BY k, s",
    "distinct": "SELECT DISTINCT k, g, s FROM f",
    "lag": "SELECT id, t - LAG(t) OVER (PARTITION BY g ORDER BY id) AS gap FROM f",
    "top": "SELECT id, s, t FROM f ORDER BY t DESC, id LIMIT 100",
    "sorted": "SELECT id, k, s, t FROM f ORDER BY t, id",
    "wide": "SELECT id, k, g, x, s, t, k + t AS a, id * 2 AS b, x * 2 AS c, g + 1 AS d FROM f",
    "union": "SELECT id, s FROM f WHERE g < 150 UNION SELECT t, s FROM f",
    "exists": "SELECT id, s FROM f WHERE EXISTS (SELECT 1 FROM f h WHERE h.t = f.id AND h.g < 9)",
    "recursion": "WITH RECURSIVE r AS (SELECT k, c FROM d WHERE k < 2000 UNION SELECT r.k, d.c "
    "FROM r JOIN d ON r.c = d.k) SELECT k, c FROM r",
}
LIMITS = (4_000_000, 8_000_000)
FAST = ("groups", "wide")
CHECKED = ("dimension", "recursion", "self_join", "sorted")
"""Further shapes for `make check`; the others run only with the long tests."""


def facts(rows: int) -> pa.Table:
    draw = np.random.default_rng(7)
    keys = draw.integers(0, rows // 2, rows)
    columns = {"id": np.arange(rows), "k": keys, "g": draw.integers(0, 200, rows)}
    columns |= {"x": draw.random(rows).round(2), "s": [f"name-{key:012d}" for key in keys]}
    return pa.table({**columns, "t": draw.permutation(rows)})


def write_large(folder: Path) -> None:
    table = facts(LARGE_ROWS)
    for index in range(FILES):
        part = table.slice(index * LARGE_ROWS // FILES, LARGE_ROWS // FILES)
        write_deltalake(str(folder / "f"), part, mode="append")
    numbers = np.arange(LARGE_ROWS // 2)
    write_deltalake(str(folder / "d"), pa.table({"k": numbers, "c": numbers // 2}))


@pytest.fixture
def large_cli(made_once: MadeOnce, capsys: Capsys) -> Cli:
    queries = {name: {"sql": sql, "sketch": "none"} for name, sql in SHAPES.items()}
    return Cli.asking(capsys, made_once.folder("large", write_large), queries, "fd")


class MemoryUsage:
    """Memory of NumPy and Arrow, and its peak since the first measurement."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._start: int | None = None
        self._arrow = 0
        self.most = 0
        monkeypatch.setattr(memory_limit, "held_memory", self.measure)

    def measure(self) -> int:
        now, peak = tracemalloc.get_traced_memory()
        arrow = pa.total_allocated_bytes()
        if self._start is None:
            self._start = now + arrow
        else:
            self.most = max(self.most, peak + max(arrow, self._arrow) - self._start)
        self._arrow = arrow
        tracemalloc.reset_peak()
        return now + arrow


@pytest.fixture
def traced_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trace allocations, with block sizes scaled down from megabytes to kilobytes."""
    monkeypatch.setattr(memory, "SMALL", 1 << 13)
    monkeypatch.setattr(memory_limit, "SMALL", 1 << 13)
    monkeypatch.setattr(rows, "_PART_ROWS", 1 << 10)
    monkeypatch.setattr(rows, "_WIDE", 1 << 7)
    monkeypatch.setattr(keys, "_TEXT_LOT", 1 << 11)
    tracemalloc.start()
    yield
    tracemalloc.stop()


def _marks(shape: str) -> tuple[pytest.MarkDecorator, ...]:
    if shape in FAST:
        return ()
    return (pytest.mark.slow,) if shape in CHECKED else (pytest.mark.slow, pytest.mark.long)


@pytest.mark.usefixtures("traced_memory")
@pytest.mark.parametrize("shape", [pytest.param(one, marks=_marks(one)) for one in SHAPES])
def test_memory_limits(large_cli: Cli, monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    """A query exceeds the limit by at most 25%. If memory suffices, the result is the same."""
    arguments = ("query", "--query", shape, "--by", "engine", "--limit", "50", "--memory")
    expected = large_cli.one(*arguments, "10GB")
    for limit in LIMITS:
        gc.collect()  # so that garbage of earlier runs is not counted
        usage = MemoryUsage(monkeypatch)
        ran = large_cli(*arguments, str(limit))
        usage.measure()
        assert usage.most <= 1.25 * limit
        if ran.code:
            assert ran.refusal == (3, "memory_exceeded")
            assert usage.most > limit / 3, "gave up too early"
        else:
            assert ran.results[0]["rows"] == expected["rows"]


def failing(error: BaseException) -> Mock:
    """A function that raises the error."""
    return Mock(side_effect=error)


REFUSED = {
    "numpy": (Circuit, "step", MemoryError("Unable to allocate 9. EiB")),
    "reading": (pq.ParquetFile, "iter_batches", pa.ArrowMemoryError("malloc of size 7 failed")),
    "log": (source, "_load", OSError(errno.ENOMEM, "Cannot allocate memory")),
    "output": (query, "_answer", MemoryError()),
}


@pytest.mark.parametrize("case", REFUSED)
def test_out_of_memory(large_cli: Cli, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """The error is not attributed to a table, a file or the query."""
    owner, name, error = REFUSED[case]
    monkeypatch.setattr(owner, name, failing(error))
    ran = large_cli("query", "--query", "top", "--by", "engine")
    assert ran.refusal == (3, "out_of_memory")
    assert ran.error["hint"]


def test_out_of_memory_in_state(large_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Running out of memory is not mistaken for corrupt state, so nothing is recaptured."""
    large_cli.edit('"sketch": "none"', '"answer": true')
    large_cli.good("capture", "--query", "groups")
    monkeypatch.setattr(pa.ipc, "open_stream", failing(pa.ArrowMemoryError("realloc failed")))
    write_deltalake(str(large_cli.workload.parent / "f"), facts(10), mode="append")
    ran = large_cli("maintain", "--query", "groups")
    assert ran.refusal == (3, "out_of_memory")


@pytest.mark.usefixtures("traced_memory")
def test_engine_memory_is_freed_before_spark_starts(
    large_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The circuit that exceeded the limit is freed, and its pages return to the system."""
    circuits: list[weakref.ref[Circuit]] = []
    live_circuits: list[int] = []
    original = Circuit.__init__

    def record(self: Circuit, *arguments: Any) -> None:
        original(self, *arguments)
        circuits.append(weakref.ref(self))

    monkeypatch.setattr(Circuit, "__init__", record)
    monkeypatch.setattr(OwnSession, "open", failing(TableError("Spark was asked")))
    # Another test of this process may have started Spark.
    monkeypatch.setattr(OwnSession, "is_running", False)
    give_back = context.give_back

    def count() -> None:
        live_circuits.append(sum(one() is not None for one in circuits))
        give_back()

    monkeypatch.setattr(context, "give_back", count)
    MemoryUsage(monkeypatch)
    gc.disable()
    try:
        ran = large_cli("query", "--query", "groups", "--limit", "1", "--memory", "2MB")
    finally:
        gc.enable()
    assert ran.error["message"] == "Spark was asked"
    assert circuits
    assert live_circuits == [0]


@pytest.mark.usefixtures("traced_memory")
def test_failed_capture_frees_state(large_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans refer to the circuit, so it outlives the failure while Spark captures."""
    circuits: list[Circuit] = []
    original = Circuit.__init__

    def record(self: Circuit, *arguments: Any) -> None:
        original(self, *arguments)
        circuits.append(self)

    monkeypatch.setattr(Circuit, "__init__", record)
    monkeypatch.setattr(OwnSession, "open", failing(TableError("Spark was asked")))
    large_cli.edit('"sketch": "none"', '"answer": true')
    MemoryUsage(monkeypatch)
    ran = large_cli("capture", "--query", "groups", "--memory", "2500000")
    assert ran.error["message"] == "Spark was asked"
    assert circuits
    assert sum(one.bytes_held for circuit in circuits for one in circuit.arrangements()) == 0
