"""What captures and queries are left to read; bare rows; captures that stay within memory."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePath
from random import Random
from shutil import rmtree
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec import Struct, field

from benchmarks.layout import Order, layout_files
from impctl.engine.range_counts import DenseCounts
from impctl.errors import TableError
from impctl.service import capture, fill, filters, memory_limit, resolve
from impctl.service.context import open_context
from impctl.service.filters import Pruned, Slices, filters_of
from impctl.service.memory_limit import too_large
from impctl.service.prepare import prepare
from impctl.service.resolve import read_choice
from impctl.service.settings import Settings
from impctl.tables.write.maintenance import create_laid_out_table
from tests.support.kept_workload import duck, stored
from tests.support.random_cases import random_cases
from tests.support.run_cli import Capsys, Cli, CliOf, CliOnce, MonkeyPatch, write_files

START = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        *(("day", pa.int64()), ("g", pa.int32()), ("x", pa.int64()), ("d", pa.float64())),
        *(("s", pa.string()), ("w", pa.timestamp("us", tz="UTC"))),
    ]
)
SCHEMA_OF_TWO = pa.schema([("day", pa.int64()), ("g", pa.int64())])
OTHER = pa.schema([("k", pa.int32()), ("y", pa.int64())])
GROUPED = "SELECT g, SUM(x) v FROM t WHERE {0} GROUP BY g HAVING COUNT(*) > 1"
JOINED = "SELECT t.g, SUM(t.x) v FROM t {0} u ON t.g = u.k {1} GROUP BY t.g HAVING COUNT(*) > 1"
ONE_TABLE = {
    "late": ("SELECT g, SUM(d) v FROM t WHERE day >= 6 GROUP BY g HAVING SUM(x) > 4", "g"),
    "by_day": (GROUPED.format("day >= 6"), "day"),
    "absent": (GROUPED.format("day IS NULL OR day = 2"), "day"),
    "nothing": (GROUPED.format("day > 100"), "x"),
    "real": (GROUPED.format("d > 1.5"), "d"),
    "negated": (GROUPED.format("NOT (d <= 1.5) AND x <> 3"), "d"),
    "text": (GROUPED.format("s > 'b'"), "s"),
    "moment": (GROUPED.format("w < TIMESTAMP '2024-01-03 12:00:00 UTC'"), "x"),
    "cast": (GROUPED.format("CAST(day AS DOUBLE) >= 5.5"), "day"),
    "mixed": (GROUPED.format("day > 4.5 AND g IN (1, 2)"), "day"),
    "rows": ("SELECT x, g FROM t WHERE day BETWEEN 2 AND 3", "day"),
    "all": ("SELECT SUM(x) v FROM t WHERE d >= 0", "x"),
    "first": (GROUPED.format("day >= 4") + " ORDER BY v DESC, g LIMIT 2", "g"),
    "most": ("SELECT g, MAX(x) v FROM t WHERE day < 4 GROUP BY g HAVING MAX(x) > 2", "g"),
    "median": ("SELECT g, MEDIAN(x) v FROM t WHERE day >= 5 GROUP BY g HAVING MEDIAN(x) > 1", "g"),
}
SEVERAL = {
    "join": (JOINED.format("JOIN", "WHERE t.day >= 5 AND u.y < 3"), "x"),
    "tied": (JOINED.format("JOIN", "WHERE u.k >= 3"), "g"),
    "left": (JOINED.format("LEFT JOIN", "AND u.y > 3 WHERE t.day < 6"), "g"),
    "semi": (JOINED.format("LEFT SEMI JOIN", "AND u.k = 2"), "g"),
    "anti": (JOINED.format("LEFT ANTI JOIN", "AND u.y > 1 WHERE t.day > 3"), "g"),
    "twice": ("SELECT a.g FROM t a JOIN t b ON a.g = b.g WHERE a.day = 3 AND b.day > 6", "g"),
    "union": ("SELECT g FROM t WHERE day = 1 UNION ALL SELECT k FROM u WHERE y > 4", "g"),
    "best": (
        "SELECT u.y FROM (SELECT g, x FROM t WHERE day < 5 ORDER BY x DESC, g LIMIT 3) q"
        " JOIN u ON q.g = u.k WHERE u.k > 1",
        "g",
    ),
}
QUERIES = ONE_TABLE | SEVERAL


def drawn(rng: Random) -> list[pa.Table]:
    """Files of the rows of a day or two each, now and then with NULL, NaN and strange values."""

    def some(value: Any, *others: Any) -> Any:
        return rng.choice(others) if rng.random() < 0.1 else value

    files = []
    for day in range(9):
        rows = [
            {
                "day": some(day, None, day + 1),
                "g": some(rng.randint(0, 5), None),
                "x": rng.randint(-2, 6),
                "d": some(day / 2, None, math.nan, -0.0, 0.0, math.inf),
                "s": some("abc"[day // 3] * rng.choice((1, 40)), None, ""),
                "w": some(START + timedelta(hours=20 * day, microseconds=1), None),
            }
            for _ in range(rng.randint(1, 8))
        ]
        files.append(pa.Table.from_pylist(rows, schema=SCHEMA))
    return files


def others(rng: Random) -> list[pa.Table]:
    return [
        pa.Table.from_pylist(
            [{"k": key, "y": rng.randint(0, 5)} for _ in range(rng.randint(1, 3))], schema=OTHER
        )
        for key in (0, 1, 2, 3, 4, None)
    ]


def workload(folder: Path, store: str, names: Any, extra: str = "") -> Path:
    # Policy `auto` may recapture where a capture took long, as on a busy machine.
    kept = f"policy: incremental{extra}"
    lines = "".join(
        f'  {name}: {{sql: "{QUERIES[name][0]}", sketch: {{t: {QUERIES[name][1]}}}, {kept}}}\n'
        for name in names
    )
    ranges = ", ".join(f"{name}: {{ranges: 6}}" for name in "gxds")
    file = folder / f"{store}.yaml"
    file.write_text(
        f"version: 1\ntables: {{t: {{path: t}}, u: {{path: u}}}}\npartitions: {{t: {{{ranges}}}}}\n"
        f"queries:\n{lines}store: .{store}\nspark: {{master: 'local[2]'}}\n"
    )
    return file


@contextmanager
def reading_all() -> Iterator[None]:
    """As if no condition left out a file and no join did."""
    with MonkeyPatch.context() as patch:
        patch.setattr(filters, "_prune", lambda snapshot, *_: snapshot.files)
        patch.setattr(filters, "narrow", lambda *_: None)
        yield


def held(file: Path) -> dict[tuple[str, str], Any]:
    """Of every query the sketches and the whole state, by name."""
    with open_context(Settings(file)) as ctx:
        store = ctx.reading_store()
        result: dict[tuple[str, str], Any] = {}
        for name in store.queries():
            stored = store.load(name)
            result[name, "mode"] = stored.mode
            result[name, "sketches"] = [sketch.ranges for sketch in stored.sketches]
            for key, kept in store.load_runs(name).items():
                if key.startswith("rows."):
                    table = " ".join(key.split(".")[:3])
                    result[name, table] = result.get((name, table), 0) + rows_counted(kept)
                else:
                    result[name, key] = net_rows(kept)
            for key in ("counters", "unsure"):
                result[name, key] = stored.state_meta.get(key)
        return result


def net_rows(kept: list[tuple[int, pa.Table]]) -> Counter[str]:
    """The rows of all runs with their weights: how many runs there are depends on times."""
    counts: Counter[str] = Counter()
    for _, run in kept:
        for row in run.to_pylist():
            weight = row.pop("weight", 1)
            counts[repr(row)] += weight
    return Counter({row: weight for row, weight in counts.items() if weight})


def rows_counted(kept: list[tuple[int, pa.Table]]) -> int:
    """Rows in all ranges: how many are in each may be estimated where files are left out."""
    counts = DenseCounts("", 100, "")
    counts.arrangement.load(kept)
    counts.restore()
    return int(counts.counts.sum())


def commits(rng: Random, folder: Path) -> list[Callable[[], object]]:
    """Changes of rows that were read and of rows that were not."""
    table = str(folder / "t")
    return [
        lambda: DeltaTable(table).delete(f"day <= {rng.randint(0, 8)} AND x > 3"),
        lambda: DeltaTable(table).update(updates={"day": "day + 3"}, predicate="g = 2"),
        lambda: write_deltalake(table, drawn(rng)[rng.randint(0, 8)], mode="append"),
        lambda: DeltaTable(table).delete("day IS NULL OR d > 2.5"),
        lambda: write_deltalake(str(folder / "u"), others(rng)[0], mode="append"),
    ]


def write_tables(folder: Path, rng: Random) -> None:
    folder.mkdir()
    create_laid_out_table(str(folder / "t"), drawn(rng))
    create_laid_out_table(str(folder / "u"), others(rng))


def alike(
    folder: Path, capsys: Any, seed: int, names: Any, extra: str = "", batches: int = 3
) -> Cli:
    """Captures and maintains in both stores; the workload of the one that leaves files out."""
    rng, folder = Random(seed), folder / str(seed)
    write_tables(folder, rng)
    files = [workload(folder, name, names, extra) for name in ("some", "every")]
    some, every = (Cli(capsys, file) for file in files)

    def compared(command: str) -> None:
        some.good(command)
        with reading_all():
            every.good(command)
        mine, theirs = held(files[0]), held(files[1])
        assert mine.keys() == theirs.keys()
        assert [(key, mine[key], theirs[key]) for key in mine if mine[key] != theirs[key]] == []

    compared("capture")
    for number, commit in enumerate(rng.sample(commits(rng, folder), 3)):
        commit()
        if number >= 3 - batches:
            compared("maintain")
    return some


def some_of(queries: dict[str, Any], seed: int) -> list[str]:
    """A third of the queries, each case the next: Spark takes a second for each."""
    return sorted(queries)[seed % 3 :: 3]


@random_cases(1, 2, 8)
def test_the_engine_comes_to_the_same_state(tmp_path: Path, capsys: Capsys, cases: range) -> None:
    """Every second query, each case the others."""
    names = sorted(set(QUERIES) - {"median"})
    for seed in cases:
        buffer = ", buffer: 2" if seed % 4 > 1 else ""
        alike(tmp_path, capsys, seed, names[seed % 2 :: 2], buffer, batches=3 if seed else 1)


@pytest.mark.spark
@random_cases(1, 1, 3)
def test_spark_comes_to_the_same_state(
    tmp_path: Path, monkeypatch: MonkeyPatch, capsys: Capsys, spark: Any, cases: range
) -> None:
    monkeypatch.setattr(fill, "is_loaded_here", lambda _, compiled: compiled.chain is None)
    for seed in cases:
        names = some_of(ONE_TABLE, seed)
        cli = alike(tmp_path, capsys, seed, names, batches=1)
        assert all(result["covers"] for result in cli.good("verify").results)


@pytest.mark.spark
@random_cases(1, 1, 3)
def test_recapturing_finds_the_same_sketches(
    tmp_path: Path, capsys: Capsys, spark: Any, cases: range
) -> None:
    """Also where partners leave files out, which a circuit may not do without."""
    for seed in cases:
        write_tables(tmp_path / str(seed), Random(seed))
        cli = Cli(capsys, workload(tmp_path / str(seed), "st", some_of(QUERIES, seed))).captured()
        for result in cli.good("verify").results:
            assert (result["covers"], result["slack"]) == (True, 0), result


@pytest.mark.spark
@random_cases(1, 1, 2)
def test_distant_sides_give_the_same(
    tmp_path: Path, capsys: Capsys, spark: Any, cases: range
) -> None:
    for seed in cases:
        alike(tmp_path, capsys, seed, ["join", "tied"], ", join: spark", batches=1 + seed)


COUNTED = "SELECT g, COUNT(*) n FROM t WHERE day >= 18 GROUP BY g HAVING COUNT(*) > 1"


def counted_by(cli_of: CliOf, column: str, *boundaries: int) -> Cli:
    ranges = {"t": {column: {"boundaries": boundaries}}}
    queries = {"q": {"sql": COUNTED, "sketch": {"t": column}}}
    return cli_of({"tables": ["t"], "partitions": ranges, "queries": queries})


def test_files_that_are_left_out_are_not_opened(tmp_path: Path, cli_of: CliOf) -> None:
    """Their rows are counted by the log, so they may as well be gone."""
    days = [pa.table({"day": [day] * 5, "g": [1, 2, 3, 4, day]}) for day in range(20)]
    create_laid_out_table(str(tmp_path / "t"), days)
    cli = counted_by(cli_of, "day", 5, 10, 15)
    foreseen = cli.one("capture", "--dry-run")
    assert (foreseen["reads"][0]["files"], foreseen["reads"][0]["rows"]) == (2, 10)
    for day in range(18):
        (tmp_path / "t" / f"part-{day:05d}.parquet").unlink()
    assert cli.one("capture")["sketches"][0]["ranges"] == [3]
    (counted,) = cli.good("status").results[0]["ranges"]
    assert (counted["rows"], counted["largest"], counted["ranges"]) == (100, 25, 4)


@pytest.mark.slow
def test_what_is_left_out_is_spread_and_may_be_taken_back(tmp_path: Path, cli_of: CliOf) -> None:
    """No file tells how many of its rows are in which range of `g`, and most lie elsewhere."""
    mostly = {True: [1, 2, 9, 9, 9, 9, 9, 9], False: [1, 1, 1, 1, 1, 1, 2, 9]}
    days = (
        pa.table({"day": [day] * 8, "g": mostly[day < 18]}, schema=SCHEMA_OF_TWO)
        for day in range(20)
    )
    create_laid_out_table(str(tmp_path / "t"), days)
    cli = counted_by(cli_of, "g", 2, 9).captured()

    def counted() -> tuple[int, int]:
        (result,) = cli.good("status").results[0]["ranges"]
        return result["rows"], result["largest"]

    # Of 160 rows 16 are read, 12 of them in the first range.
    rows, largest = counted()
    assert (rows, 110 < largest < 125) == (160, True)
    cli.table("t").delete("g = 9 AND day < 18")
    assert cli.one("maintain")["action"] == "exact"
    # 108 are more than the 24 or so that were thought to be there, and no other range changes.
    assert (130 < counted()[0] < 140, counted()[1]) == (True, largest)
    cli.table("t").delete("g = 2")
    assert cli.one("maintain")["action"] == "exact"
    assert cli.one("status")["sketches"][0]["ranges"] == [0, 2]


OUTER = "SELECT q.x, v.y FROM (SELECT t.x, t.k FROM t CROSS JOIN u) q LEFT JOIN v ON q.k = v.k"
FEW = "SELECT t.x, COUNT(*) n FROM t CROSS JOIN u GROUP BY t.x HAVING COUNT(*) < 10"


def rows(name: str, *values: int) -> pa.Table:
    keys = pa.array([value % 10 for value in values], pa.int64())
    return pa.table({"k": keys, name: pa.array(values, pa.int64())})


@pytest.fixture(params=["index", "files", "auto"])
def cli(request: pytest.FixtureRequest, cli_of: CliOf) -> Cli:
    said = {"sketch": {"t": "x"}, "join": request.param, "answer": True, "policy": "incremental"}
    queries = {name: {"sql": sql, **said} for name, sql in (("outer", OUTER), ("few", FEW))}
    workload = {"queries": queries, "partitions": {"t": {"x": {"boundaries": [2, 3]}}}}
    tables = {"t": rows("x", 1, 2), "u": rows("z", 5, 6), "v": rows("y", 11)}
    return cli_of(workload, **tables).captured()


def answer(cli: Cli, name: str) -> list[tuple[int, int | None]]:
    result = cli.one("query", "--by", "state", "--query", name)
    return sorted((tuple(row) for row in result["rows"]), key=repr)


def sketch(cli: Cli, name: str) -> list[int]:
    (result,) = cli.one("status", "--query", name)["sketches"]
    return list(result["ranges"])


@pytest.mark.slow
def test_each_row_is_joined_once(cli: Cli) -> None:
    assert answer(cli, "few") == [(1, 2), (2, 2)]
    assert sketch(cli, "few") == [0, 1]
    assert answer(cli, "outer") == [(1, 11), (1, 11), (2, None), (2, None)]
    cli.append("v", rows("y", 12))
    cli.append("u", rows("z", 7))
    cli.table("t").delete("x = 1")
    cli.good("maintain")
    assert answer(cli, "few") == [(2, 3)]
    assert answer(cli, "outer") == [(2, 12), (2, 12), (2, 12)]
    cli.table("u").delete()
    cli.good("maintain")
    assert answer(cli, "few") == answer(cli, "outer") == []
    assert sketch(cli, "few") == sketch(cli, "outer") == []


ROWS = 3_000
SQL = "SELECT r.a, SUM(s.b) AS t FROM r JOIN s ON s.a = r.a GROUP BY r.a HAVING SUM(s.b) > 1"


class ShortMemory(Struct, dict=True):
    """Enough for two batches; an index join of these tables passes more slices."""

    bytes: int | None = None
    checked: int = 0

    def check(self, more: int = 0) -> None:
        self.checked += 1
        if self.checked > 2:
            raise too_large(10**6)


@pytest.fixture
def short(tmp_path: Path, cli_of: CliOf, monkeypatch: MonkeyPatch) -> Cli:
    monkeypatch.setattr(memory_limit, "MemoryLimit", lambda _: ShortMemory())
    ids = list(range(ROWS))
    for table in "rs":
        write_deltalake(str(tmp_path / table), pa.table({"id": ids, "a": ids, "b": ids}))
    queries = {"q": {"sql": SQL, "sketch": {"r": "id"}}}
    partitions = {"r": {"id": {"ranges": 20}}}
    return cli_of({"tables": "rs", "partitions": partitions, "queries": queries})


def asked(cli: Cli, **settings: Any) -> None:
    document = json.loads(cli.workload.read_text())
    document["queries"]["q"] |= settings
    cli.workload.write_text(json.dumps(document))


def captured_alone(cli: Cli) -> bool:
    """Whether capturing warns that the answer does not go along with the sketch."""
    ran = cli.good("capture")
    assert ran.results[0]["mode"] == "exact"
    return any("along with the sketch" in warning for warning in ran.document["warnings"])


@pytest.mark.slow
def test_what_cannot_be_kept_joined_is_kept_as_trees(short: Cli) -> None:
    """By their keys alone, each with one partner, an index was chosen."""
    (entry,) = short.one("explain")["trees"]
    assert not entry["used"]
    assert short.one("capture")["mode"] == "exact"
    held = stored(short.folder, "q").state_meta
    assert held["trees"]
    assert "its joins are trees, because" in held["way"]
    (entry,) = short.one("explain")["trees"]
    assert (entry["used"], entry["reason"]) == (True, "chosen: as captured")
    short.append("r", pa.table({"id": [ROWS], "a": [5], "b": [1]}))
    assert short.good("maintain").results[0]["action"] == "exact"


def test_an_answer_that_trees_tell_goes_along(short: Cli) -> None:
    asked(short, answer=True)
    assert not captured_alone(short)
    assert len(short.one("query", "--by", "state")["rows"]) == ROWS - 2


def test_an_answer_that_no_tree_tells_is_left_out_first(short: Cli) -> None:
    counted = "AS t, COUNT(DISTINCT s.b) + COUNT(DISTINCT r.b) AS n"
    asked(short, answer=True, sql=SQL.replace("AS t", counted))
    assert captured_alone(short)


@pytest.mark.slow
def test_trees_stay_where_the_answer_is_left_out(short: Cli, monkeypatch: MonkeyPatch) -> None:
    """A hundred partners a row: an index join without the answer would be the worse way."""
    limits = iter([ShortMemory(checked=2)])
    monkeypatch.setattr(
        memory_limit, "MemoryLimit", lambda _: next(limits, ShortMemory(checked=-(10**9)))
    )
    keys = [at % 30 for at in range(ROWS)]
    rows = pa.table({"id": list(range(ROWS)), "a": keys, "b": keys})
    for table in "rs":
        write_deltalake(short.path(table), rows, mode="overwrite")
    asked(short, answer=True)
    assert captured_alone(short)
    explained = short.one("explain")
    assert (explained["trees"][0]["used"], explained["answer"]["kept"]) == (True, False)
    assert "could not store it" in explained["answer"]["reason"]


def test_a_requested_index_leaves_the_sketch_alone(short: Cli, monkeypatch: MonkeyPatch) -> None:
    by_spark = Mock(side_effect=TableError("Spark was asked"))
    monkeypatch.setattr(capture, "capture_sketches_alone", by_spark)
    asked(short, join="index")
    assert short("capture").error["message"] == "Spark was asked"


class Joining(Struct, dict=True):
    """A compiled query whose rows are joined to so many each."""

    partners: int
    writes_joins: bool = True
    circuit: Any = field(default_factory=lambda: SimpleNamespace(joined_rows=0))

    def slices(self, rows: int, limit: int | None) -> list[int]:
        result = []
        cut = Slices(cast(Any, self), limit, lambda: None)
        for part in cut.of(pa.table({"a": range(rows)})):
            result.append(len(part))
            self.circuit.joined_rows += len(part) * self.partners
        assert sum(result) == rows
        return result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("partners", "limit", "most"),
    [(1, None, 8_000_000), (200, None, 8_000_000), (200, 300 * 10**6, 187_500), (0, None, 10**9)],
)
def test_slices_join_to_what_there_is_room_for(partners: int, limit: int | None, most: int) -> None:
    first, *others = Joining(partners).slices(1_000_000, limit)
    assert first == 1_000
    assert all(size * partners <= most for size in others)
    # Each slice is at most eight times the one before.
    assert len(others) <= 1_000_000 * max(partners, 1) // most + 4


@pytest.mark.slow
def test_rows_that_are_not_joined_pass_whole() -> None:
    assert Joining(5, writes_joins=False).slices(1_000_000, 10**6) == [1_000_000]


FACTS = 200


@pytest.fixture
def joins(cli_once: CliOnce) -> Cli:
    return cli_once("joined days", write_days)


def write_days(folder: Path) -> None:
    """Sales by day, a file a day; days with their month, in files of a year or all in one."""
    days = np.arange(FACTS)
    sales = [pa.table({"day": np.full(50, day), "x": np.arange(50)}) for day in days]
    calendar = pa.table({"day": days, "month": days // 30, "odd": days % 2})
    parts = (calendar.slice(at, 20) for at in range(0, FACTS, 20))
    for name, files in (("sales", sales), ("calendar", parts), ("one", [calendar])):
        create_laid_out_table(str(folder / name), files)
    join = "SELECT c.month, SUM(s.x) AS x FROM sales s JOIN {0} c ON s.day = c.day WHERE {1}"
    queries = {
        "month": join.format("calendar", "c.month = 2 GROUP BY c.month"),
        "read": join.format("one", "c.month = 2 GROUP BY c.month"),
        "asked": join.format("one", "c.day >= 190 GROUP BY c.month"),
        "kept": "SELECT s.day FROM sales s LEFT JOIN calendar c ON s.day = c.day AND c.month = 2",
        "twice": "SELECT a.day FROM sales a JOIN sales b ON a.x = b.x WHERE a.day = 3",
    }
    write_files(folder, {"tables": ["sales", "calendar", "one"], "queries": queries})


def left(cli: Cli, query: str) -> dict[str, int]:
    """Files that are read without any sketch, by table."""
    with open_context(Settings(cli.workload)) as ctx:
        result = filters_of(ctx.tables, prepare(ctx, ctx.workload.queries[query]), (), {})
        return {table: len(files) for table, files in result.files.items()}


LEFT = {
    "month": {"sales": 40, "calendar": 2},
    "asked": {"sales": 10, "one": 1},
    "read": {"sales": FACTS, "one": 1},
    "kept": {"sales": FACTS, "calendar": 2},
    "twice": {"sales": FACTS},
}
"""Month 2 has the days from 60 to 89, in files of the days 60-79 and 80-99."""


def test_files_that_are_left_of_both_sides(joins: Cli, monkeypatch: MonkeyPatch) -> None:
    """Each side narrows the other one, but one that keeps its rows is read whole, and so is a
    table of which only one access has a condition. Few keys are read of the smaller side."""
    for query, expected in LEFT.items():
        assert left(joins, query) == expected, query
    monkeypatch.setattr(filters, "_TIMES_AS_LARGE", 1)
    for query in ("read", "month"):
        assert left(joins, query) == LEFT[query]


VALUES: dict[str, list[Any]] = {
    "whole": [None, *range(-3, 12)],
    "real": [None, math.nan, -0.0, 0.0, *(at / 2 for at in range(-3, 9)), math.inf, -math.inf],
    "text": [None, "", "a", "aa", "b", "\U0010ffff", "a" * 40, "a" * 39 + "b"],
}
TYPES = {"whole": pa.int64(), "real": pa.float64(), "text": pa.string()}


WAYS = {"keys": 0, "spans": 10**9}
"""How many times as large a side must be for keys of the other one to be read."""


def drawn_joins(rng: Random, name: str) -> list[pa.Table]:
    """Files of rows whose keys, one of each kind, lie close together more often than not."""
    files = []
    for _ in range(rng.randint(1, 6)):
        size = rng.randint(1, 4)
        rows = {name: pa.array([rng.randint(0, 5) for _ in range(size)])}
        for kind, values in VALUES.items():
            start = rng.randrange(len(values))
            near = values[start : start + rng.randint(1, 4)] + rng.sample(values, rng.randint(0, 1))
            rows[kind] = pa.array([rng.choice(near) for _ in range(size)], TYPES[kind])
        files.append(pa.table(rows))
    return files


@pytest.mark.slow
@random_cases(10, 17, 200)
def test_no_file_with_a_row_that_has_a_partner_is_left_out(
    tmp_path: Path, monkeypatch: MonkeyPatch, cases: range
) -> None:
    """Two tables serve every kind of key and both ways: writing them is most of the cost."""
    saved = Counter[tuple[str, str]]()
    for seed in cases:
        rng, folder = Random(seed), tmp_path / str(seed)
        tables = {"t": drawn_joins(rng, "x"), "u": drawn_joins(rng, "y")}
        for name, files in tables.items():
            create_laid_out_table(str(folder / name), files)
        most = {kind: rng.randint(0, 5) for kind in VALUES}
        with open_context(Settings(workload_of(folder, most))) as ctx:
            for kind in VALUES:
                prepared = prepare(ctx, ctx.workload.queries[kind])
                for way, times in WAYS.items():
                    monkeypatch.setattr(filters, "_TIMES_AS_LARGE", times)
                    result = filters_of(ctx.tables, prepared, (), {})
                    kept = {name: files_kept(result, name, tables[name]) for name in tables}
                    sql = prepared.spec.sql
                    assert joined(sql, kept) == joined(sql, tables), (seed, kind, way)
                    saved[kind, way] += result.files_total - result.files_kept
        rmtree(folder)
    assert all(saved[kind, way] > len(cases) for kind in VALUES for way in WAYS), saved


def workload_of(folder: Path, most: dict[str, int]) -> Path:
    join = "SELECT t.x, u.y FROM t JOIN u ON t.{0} = u.{0} WHERE u.y < {1}"
    queries = {kind: join.format(kind, at) for kind, at in most.items()}
    return write_files(folder, {"tables": "tu", "queries": queries})


def joined(sql: str, tables: dict[str, list[pa.Table]]) -> Counter[tuple[Any, ...]]:
    """What DuckDB joins of the rows of these files: for it, too, NaN is NaN and -0.0 is 0.0."""
    with duck() as connection:
        for name, files in tables.items():
            connection.register(name, pa.concat_tables(files))
        return Counter(connection.sql(sql).fetchall())


def files_kept(pruned: Pruned, name: str, files: list[pa.Table]) -> list[pa.Table]:
    """These files of a table as they were written, and one without rows."""
    kept = {PurePath(file.uri).name for file in pruned.files[name]}
    return [
        files[0].slice(0, 0),
        *(rows for at, rows in enumerate(files) if f"part-{at:05d}.parquet" in kept),
    ]


FILES, JOINED_ROWS = 20, 200

JOINED_SQL = (
    "SELECT t.g, COUNT(u.y) AS n FROM t LEFT JOIN u ON t.k = u.k"
    " WHERE t.x > 0 GROUP BY t.g HAVING COUNT(*) > 2"
)


@pytest.mark.slow
def test_partners_are_of_rows_read(cli_of: CliOf, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "_FILTERED", 2.0)
    # Keys ascend in both; the groups of the first file of `t` are rare ones that fail, and
    # so are some between those that pass in the others, which must be asked for their ranges.
    random = np.random.default_rng(1)
    t, u = [], []
    for number in range(FILES):
        keys = np.arange(number * JOINED_ROWS, (number + 1) * JOINED_ROWS)
        often = random.integers(1, 100, JOINED_ROWS) * 1000
        rare = random.integers(1000, 100_000, JOINED_ROWS)
        g = -keys - 1 if number == 0 else np.where(random.random(JOINED_ROWS) < 0.97, often, rare)
        t.append(pa.table({"k": keys, "g": g, "x": np.ones(JOINED_ROWS, np.int64)}))
        u.append(pa.table({"k": keys, "y": keys}))
    for name, files in (("t", t), ("u", u)):
        create_laid_out_table(str(tmp_path / name), files)
    queries = {"q": {"sql": JOINED_SQL, "sketch": {"t": "g"}}}
    cli = cli_of({"tables": "tu", "queries": queries}).captured()
    with open_context(Settings(cli.workload)) as ctx:
        held = stored(tmp_path, "q")
        prepared = prepare(ctx, ctx.workload.queries["q"])
        by_sketch = filters_of(ctx.tables, prepared, held.sketches, held.versions)
        assert {name: len(files) for name, files in by_sketch.files.items()} == {"t": 19, "u": 19}
        read = read_choice(ctx.tables, prepared, held.sketches, held.versions)
    assert list(read.unused) == ["t"]
    assert {name: len(files) for name, files in read.pruned.files.items()} == {"t": 20, "u": 20}
    assert read.pruned.filters == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "column", "is_used"),
    [
        (Order.SORTED, "q", False),
        (Order.RANDOM, "q", True),
        (Order.SORTED, "p", True),
        (Order.ZORDER, "p", True),
    ],
)
def test_what_is_left_away(
    cli_of: CliOf, tmp_path: Path, order: Order, column: str, is_used: bool
) -> None:
    create_laid_out_table(str(tmp_path / "t"), layout_files(40_000, 10_000, order, 20, 1))
    sql = f"SELECT a, SUM(b) AS s FROM t GROUP BY a HAVING AVG({column}) < 9000"
    cli = cli_of({"tables": "t", "queries": {"q": sql}}).captured()
    with open_context(Settings(cli.workload)) as ctx:
        held = stored(tmp_path, "q")
        prepared = prepare(ctx, ctx.workload.queries["q"])
        read = read_choice(ctx.tables, prepared, held.sketches, held.versions)
    assert bool(read.pruned.filters) == is_used
    assert bool(read.unused) != is_used
