"""The pairs as Delta tables with a captured sketch of each, maintained after every commit.

`r` and `s` have an `id`, a key `a` and a number `b`. Only the largest groups pass, so many that
about 4,000 rows of a table are in them, whatever the partners: with 5,000 ranges of `id` a sketch
has about half of these. Rows that come to `s` have an `id` above all others, and one commit takes
them away again.

Law: what the sketches have to be is counted here by NumPy from all rows, without impctl.
Out of scope: what is asked beside (`recompute_in_duckdb`, `recapture_in_spark`).
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from msgspec import Struct, field

import impctl
from benchmarks.large_joins.partners import partners_table
from impctl.store.store import Store
from impctl.tables.write.maintenance import create_table

Integers = npt.NDArray[np.int64]
Sketches = Mapping[str, frozenset[int]]
"""Per table the ranges that its sketch has."""

QUERY = "q"
RANGES = 5_000
_PASSING_ROWS = 4_000
_WORKLOAD = """\
version: 1
tables: {{r: {{path: r}}, s: {{path: s}}}}
partitions:
  r: {{id: {{boundaries: {bounds}}}}}
  s: {{id: {{boundaries: {bounds}}}}}
queries:
  q:
    sql: {sql}
    sketch: {{r: id, s: id}}
    join: tree
    policy: incremental
store: .impctl
"""


class Wall(Struct, frozen=True):
    """Milliseconds on the wall, and of processor time of all threads of the process."""

    wall_ms: float
    cpu_ms: float

    @classmethod
    def middle(cls, times: Sequence[Wall]) -> Wall:
        """The medians."""
        walls, cpus = ([getattr(one, name) for one in times] for name in ("wall_ms", "cpu_ms"))
        return cls(statistics.median(walls), statistics.median(cpus))

    def text(self) -> str:
        return f"wall {self.wall_ms:,.1f} ms, processor {self.cpu_ms:,.1f} ms"

    def times(self, other: Wall) -> str:
        """How many times as long as the other this takes."""
        walls, cpus = self.wall_ms / other.wall_ms, self.cpu_ms / other.cpu_ms
        return f"{walls:,.1f} times on the wall, {cpus:,.1f} by processor time"


@contextmanager
def clocked(into: list[Wall]) -> Iterator[None]:
    """What the block takes, added to the list."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    into.append(Wall(wall * 1000.0, cpu * 1000.0))


class OnDisk(Struct, dict=True):
    """The folder with both tables, and what NumPy knows of them."""

    folder: Path
    rows: int
    partners: int
    least: int
    keys: dict[str, Integers]
    numbers: Integers
    """The `b` of `s`."""
    inserted: pa.Table | None = None
    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    @classmethod
    def written(cls, folder: Path, rows: int, partners: int) -> OnDisk:
        """Tables of so many rows, and the workload file."""
        keys = {}
        for seed, name in ((1, "r"), (2, "s")):
            table = partners_table(rows, partners, seed).drop_columns(["c"])
            create_table(str(folder / name), table)
            keys[name] = table.column("a").to_numpy()
        numbers = table.column("b").to_numpy()
        totals = _totals(keys, numbers)
        passing = max(_PASSING_ROWS // partners, 1)
        least = int(np.partition(totals, -passing - 1)[-passing - 1])
        result = cls(folder, rows, partners, least, keys, numbers)
        bounds = list(range(result.width, rows, result.width))
        result.workload.write_text(_WORKLOAD.format(bounds=bounds, sql=result.sql))
        return result

    @property
    def workload(self) -> Path:
        return self.folder / "w.yaml"

    @property
    def width(self) -> int:
        """How many values of `id` are in a range; the last range has all above as well."""
        return max(self.rows // RANGES, 1)

    @property
    def last(self) -> int:
        """The last range."""
        return -(-self.rows // self.width) - 1

    @property
    def sql(self) -> str:
        return (
            "SELECT r.a, SUM(s.b) AS total FROM s JOIN r ON s.a = r.a "
            f"GROUP BY r.a HAVING SUM(s.b) > {self.least}"
        )

    def change(self, size: int) -> None:
        """One commit: inserts rows like its own in `s`, or deletes those."""
        path = str(self.folder / "s")
        if self.inserted is not None:
            DeltaTable(path).delete(f"id >= {self.rows}")
            self.inserted = None
            return
        # Half of them in groups that nearly pass or just do, so that sketches change.
        near = np.argsort(_totals(self.keys, self.numbers))[-4 * _PASSING_ROWS // self.partners :]
        drawn = self._random.choice(self.keys["s"], size - size // 2)
        drawn = np.concatenate([drawn, self._random.choice(near, size // 2)])
        ids = self.rows + np.arange(size, dtype=np.int64)
        numbers = self._random.integers(0, 100, size, dtype=np.int64)
        self.inserted = pa.table({"id": ids, "a": drawn.astype(np.int64), "b": numbers})
        write_deltalake(path, self.inserted, mode="append")

    def now(self) -> dict[str, pa.Table]:
        """Rows of both tables as they stand, without reading them."""
        ids = pa.array(np.arange(self.rows, dtype=np.int64))
        r = pa.table({"id": ids, "a": self.keys["r"]})
        s = pa.table({"id": ids, "a": self.keys["s"], "b": self.numbers})
        return {"r": r, "s": s if self.inserted is None else pa.concat_tables([s, self.inserted])}

    def sketches(self) -> Sketches:
        """What the sketches have to be."""
        keys, numbers = dict(self.keys), self.numbers
        if self.inserted is not None:
            keys["s"] = np.concatenate([keys["s"], self.inserted.column("a").to_numpy()])
            numbers = np.concatenate([numbers, self.inserted.column("b").to_numpy()])
        passes = _totals(keys, numbers) > self.least
        # Inserted rows have the largest numbers, all in the last range.
        ranges = {
            name: np.flatnonzero(passes[values]) // self.width for name, values in keys.items()
        }
        return {
            name: frozenset(np.unique(np.minimum(values, self.last)).tolist())
            for name, values in ranges.items()
        }

    def stored(self) -> Sketches:
        """The sketches that the store has."""
        with Store.open(self.folder / ".impctl", create=False) as store:
            result = store.load(QUERY)
        assert result is not None
        return {one.partition.table: frozenset(one.ranges) for one in result.sketches}

    def afresh(self, changed: int) -> Wall:
        """The middle of three times so many changes, and `impctl maintain` after each."""
        times = []
        for _ in range(3):
            self.change(changed)
            times.append(self._afresh())
        return Wall.middle(times)

    def _afresh(self) -> Wall:
        """`impctl maintain` in a process of its own, from starting Python to its end."""
        command = [sys.executable, "-P", "-m", "impctl", "maintain", str(self.workload)]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        wall, used = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
        return Wall(wall * 1000.0, cpu * 1000.0)


def maintained(opened: impctl.OpenWorkload, into: list[Wall]) -> float:
    """One call of `maintain`, clocked, which has to be exact; milliseconds of it in the engine."""
    with clocked(into):
        maintain = opened.maintain()
    assert [one.action for one in maintain] == ["exact", "exact"], maintain
    return maintain[0].engine_ms


def _totals(keys: Mapping[str, Integers], numbers: Integers) -> Integers:
    """The sum of every group of the join, without joining: shape (keys,)."""
    size = int(max(values.max() for values in keys.values())) + 1
    times = np.bincount(keys["r"], minlength=size)
    # Exact: sums of some thousand numbers below 100.
    sums = np.bincount(keys["s"], weights=numbers, minlength=size).astype(np.int64)
    return times * sums
