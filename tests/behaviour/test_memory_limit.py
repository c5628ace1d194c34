"""Queries of many shapes keep to `--memory`, and out of memory is an error with a code.

What NumPy and Arrow hold is counted, so that neither the allocators nor other tests matter.
"""

from __future__ import annotations

import errno
import gc
import json
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from impctl.data import keys, memory
from impctl.engine.circuit import Circuit
from impctl.errors import TableError
from impctl.service import context, memory_limit, query
from impctl.service.context import OwnSession
from impctl.tables import rows, source
from tests.support.run_cli import Capsys, Cli

ROWS, FILES = 30_000, 3
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
FAST = ("self_join", "groups", "wide")
CHECKED = ("dimension", "recursion", "sorted")
"""More of them in `make check`; the rest by hand."""


def facts(rows: int) -> pa.Table:
    draw = np.random.default_rng(7)
    keys = draw.integers(0, rows // 2, rows)
    return pa.table(
        {
            "id": np.arange(rows),
            "k": keys,
            "g": draw.integers(0, 200, rows),
            "x": draw.random(rows).round(2),
            "s": [f"name-{key:012d}" for key in keys],
            "t": draw.permutation(rows),
        }
    )


@pytest.fixture
def cli(tmp_path: Path, capsys: Capsys) -> Cli:
    whole = facts(ROWS)
    for at in range(FILES):
        part = whole.slice(at * ROWS // FILES, ROWS // FILES)
        write_deltalake(str(tmp_path / "f"), part, mode="append")
    numbers = np.arange(ROWS // 2)
    write_deltalake(str(tmp_path / "d"), pa.table({"k": numbers, "c": numbers // 2}))
    document = {
        "version": 1,
        "store": "store",
        "tables": {name: {"path": name} for name in "fd"},
        "queries": {name: {"sql": sql, "sketch": "none"} for name, sql in SHAPES.items()},
    }
    return Cli.over(capsys, tmp_path, json.dumps(document))


class Counted:
    """What NumPy and Arrow hold, and the most that they held since it was asked for first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._start: int | None = None
        self._arrow = 0
        self.most = 0
        monkeypatch.setattr(memory_limit, "held_memory", self.held)

    def held(self) -> int:
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
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is true of some megabytes of hundreds is so of kilobytes of some megabytes."""
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


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    "shape",
    [pytest.param(one, marks=_marks(one)) for one in SHAPES],
)
def test_queries_keep_to_their_limit(cli: Cli, monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    """By a quarter at most they exceed it; where it suffices, the answer is the same."""
    call = ("query", "--query", shape, "--by", "engine", "--limit", "50", "--memory")
    (whole,) = cli.good(*call, "10GB").results
    for limit in LIMITS:
        gc.collect()  # what runs before left behind is no start
        counted = Counted(monkeypatch)
        ran = cli(*call, str(limit))
        counted.held()
        assert counted.most <= 1.25 * limit
        if ran.code:
            assert ran.refusal == (3, "memory_exceeded")
            assert counted.most > limit / 3, "it gave up early"
        else:
            assert ran.results[0]["rows"] == whole["rows"]


def failing(error: BaseException) -> Callable[..., Any]:
    """What raises it when it is called."""

    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


REFUSED = {
    "numpy": (Circuit, "step", MemoryError("Unable to allocate 9. EiB")),
    "reading": (pq.ParquetFile, "iter_batches", pa.ArrowMemoryError("malloc of size 7 failed")),
    "log": (source, "_load", OSError(errno.ENOMEM, "Cannot allocate memory")),
    "output": (query, "told", MemoryError()),
}


@pytest.mark.parametrize("place", REFUSED)
def test_out_of_memory_has_a_code_of_its_own(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """It says nothing about a table, a file or the query."""
    owner, name, error = REFUSED[place]
    monkeypatch.setattr(owner, name, failing(error))
    ran = cli("query", "--query", "top", "--by", "engine")
    assert ran.refusal == (3, "out_of_memory")
    assert ran.error["hint"]


def test_state_that_finds_no_memory_is_not_corrupt(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is recaptured for it."""
    cli.edit('"sketch": "none"', '"answer": true')
    cli.good("capture", "--query", "groups")
    monkeypatch.setattr(pa.ipc, "open_stream", failing(pa.ArrowMemoryError("realloc failed")))
    write_deltalake(str(cli.workload.parent / "f"), facts(10), mode="append")
    ran = cli("maintain", "--query", "groups")
    assert ran.refusal == (3, "out_of_memory")


@pytest.mark.usefixtures("traced")
def test_what_the_engine_took_is_freed_before_spark_starts(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the circuit that exceeded the limit nothing is left, and its pages go to the machine."""
    circuits: list[weakref.ref[Circuit]] = []
    left: list[int] = []
    made = Circuit.__init__

    def remember(self: Circuit, *arguments: Any) -> None:
        made(self, *arguments)
        circuits.append(weakref.ref(self))

    monkeypatch.setattr(Circuit, "__init__", remember)
    monkeypatch.setattr(OwnSession, "open", failing(TableError("Spark was asked")))
    # Another test of this process may have started Spark.
    monkeypatch.setattr("impctl.service.context._is_up", lambda: False)
    given_back = context.give_back

    def count() -> None:
        left.append(sum(one() is not None for one in circuits))
        given_back()

    monkeypatch.setattr(context, "give_back", count)
    Counted(monkeypatch)
    gc.disable()
    try:
        ran = cli("query", "--query", "groups", "--limit", "1", "--memory", "2MB")
    finally:
        gc.enable()
    assert ran.error["message"] == "Spark was asked"
    assert circuits
    assert left == [0]


@pytest.mark.usefixtures("traced")
def test_a_capture_that_gives_up_leaves_no_state(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans refer to the circuit, so that it lives on while Spark captures the sketch."""
    circuits: list[Circuit] = []
    made = Circuit.__init__

    def remember(self: Circuit, *arguments: Any) -> None:
        made(self, *arguments)
        circuits.append(self)

    monkeypatch.setattr(Circuit, "__init__", remember)
    monkeypatch.setattr(OwnSession, "open", failing(TableError("Spark was asked")))
    cli.edit('"sketch": "none"', '"answer": true')
    Counted(monkeypatch)
    ran = cli("capture", "--query", "groups", "--memory", "2500000")
    assert ran.error["message"] == "Spark was asked"
    assert circuits
    assert sum(one.bytes_held for circuit in circuits for one in circuit.arrangements()) == 0
