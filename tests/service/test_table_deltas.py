"""Changes split into batches of whole versions, grouped by Spark, and refills of buffers."""

from __future__ import annotations

import math
import random
import shutil
import time
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from impctl.data.schema import DOUBLE, FLOAT, LONG, STRING, SqlType, decimal
from impctl.data.vector import from_arrow
from impctl.errors import SchemaChangedError
from impctl.expr.evaluate import Condition
from impctl.expr.nodes import ColumnRef
from impctl.safety.facts import FactKind, broken_by
from impctl.service import decide
from impctl.service.decide import ChangeRequest, SharedChanges
from impctl.service.step import by_version
from impctl.spark.expressions import DIALECT, render_expr
from impctl.spark.snapshots import guarded
from impctl.tables.changes import Changes
from impctl.tables.rows import bare_rows, read_rows
from impctl.tables.source import open_source
from impctl.tables.statistics import prune_to_values
from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Capsys, Cli, CliOnce, MonkeyPatch, write_files
from tests.tables import handmade


def change(versions: list[int] | None, rows: int | None = None) -> Changes:
    """Rows numbered 0, 1, ... of ascending versions, each with a different weight."""
    count = len(versions) if versions is not None else (rows or 0)
    table = pa.table({"row": pa.array(range(count), pa.int64())})
    ends = None if versions is None else {v: end for end, v in enumerate(versions, start=1)}
    return Changes(table, np.arange(count, dtype=np.int64) * 10, "change_feed", ends)


def rows_of(changes: Changes) -> list[int]:
    rows: list[int] = changes.table.column("row").to_pylist()
    assert changes.weights.tolist() == [10 * row for row in rows]
    assert changes.method == "change_feed"
    return rows


@pytest.mark.slow
@given(st.lists(st.integers(3, 9), min_size=1, max_size=30).map(sorted), st.integers(1, 12))
def test_batches_are_whole_versions_in_order(versions: list[int], batch_rows: int) -> None:
    all_rows: list[int] = []
    since = 0
    for version, changes in by_version(change(versions), 11, batch_rows):
        rows = rows_of(changes)
        expected = [row for row, v in enumerate(versions) if since < v <= version]
        assert rows == expected, "a version is in one batch, all of it"
        assert len(rows) >= batch_rows or version == 11
        batch_versions = [versions[row] for row in rows]
        assert sum(v != batch_versions[-1] for v in batch_versions) < batch_rows, (
            "its last version is needed"
        )
        all_rows += rows
        since = version
    assert (all_rows, since) == (list(range(len(versions))), 11)


def test_batch_size_of_one_and_of_all() -> None:
    for size, expected in ((1, [(4, [0]), (5, [1, 2]), (8, [3])]), (1000, [(8, [0, 1, 2, 3])])):
        batches = by_version(change([4, 5, 5, 7]), 8, size)
        assert [(version, rows_of(batch)) for version, batch in batches] == expected
    bare = Changes(bare_rows(3), np.ones(3, dtype=np.int64), "change_feed", {4: 1, 5: 1, 6: 3})
    assert [(v, len(batch.table)) for v, batch in by_version(bare, 7, 1)] == [(4, 1), (7, 2)]
    for changes in (change(None, 3), change([]), change(None, 0)):
        assert by_version(changes, 6, 1) == [(6, changes)], "without versions there is one batch"


def request(*columns: str, since: int = 1) -> ChangeRequest:
    return ChangeRequest("t", "id", since, 5, columns)


@pytest.fixture
def reads(monkeypatch: MonkeyPatch) -> list[tuple[Any, ...]]:
    result: list[tuple[Any, ...]] = []

    def read(source: Any, since: int, until: int, columns: Any, **more: Any) -> Changes:
        result.append((source, since, until, columns, more["table_id"]))
        return change(None, 1)

    monkeypatch.setattr(decide, "read_changes", read)
    return result


def shared_changes() -> SharedChanges:
    """Changes of a fake run, in which a table's source is its name."""
    run: Any = SimpleNamespace(step=lambda text: None, source=lambda table: f"source of {table}")
    return SharedChanges(run, run)


def test_announced_columns_are_read_once(reads: list[tuple[Any, ...]]) -> None:
    changes = shared_changes()
    changes.announce([request("a", "b"), request("b", "c"), request("z", since=2)])
    first, _ = changes.read(request("a", "b"))
    again, elapsed = changes.read(request("b", "c"))
    assert again is first
    assert elapsed == 0
    assert reads == [("source of t", 1, 5, ("a", "b", "c"), "id")]
    changes.read(request("z", since=2))
    changes.read(request("y", since=3))
    assert reads[1:] == [
        ("source of t", 2, 5, ("z",), "id"),
        ("source of t", 3, 5, ("y",), "id"),  # not announced
    ]


def test_first_read_includes_the_time_for_the_size(
    reads: list[tuple[Any, ...]], monkeypatch: MonkeyPatch
) -> None:
    def entries(since: int, until: int) -> None:
        time.sleep(0.02)

    changes = shared_changes()
    monkeypatch.setattr(changes.tables, "source", lambda _: SimpleNamespace(entries=entries))
    assert changes.size(request("a").span) is None
    assert changes.read(request("a"))[1] >= 20
    assert changes.read(request("a"))[1] == 0


def test_lost_column_affects_one_query(
    reads: list[tuple[Any, ...]], monkeypatch: MonkeyPatch
) -> None:
    original = decide.read_changes

    def read(source: Any, since: int, until: int, columns: Any, **more: Any) -> Changes:
        if "b" in columns:
            raise SchemaChangedError("Column `b` was replaced")
        return original(source, since, until, columns, **more)

    monkeypatch.setattr(decide, "read_changes", read)
    changes = shared_changes()
    changes.announce([request("a"), request("a", "b"), request("c")])
    changes.read(request("a"))
    with pytest.raises(SchemaChangedError):
        changes.read(request("a", "b"))
    changes.read(request("c"))
    assert [columns for _, _, _, columns, _ in reads] == [("a",), ("c",)]


QUERIES = {
    "keyed": "SELECT g, SUM(x) v FROM t GROUP BY g HAVING SUM(x) > 5",
    "spread": "SELECT g, COUNT(x) n FROM t GROUP BY g HAVING COUNT(x) > 4",
    "doubles": "SELECT g, SUM(f) v FROM t GROUP BY g HAVING SUM(f) > 2.5",
    "money": "SELECT g, AVG(m) v FROM t WHERE x > 0 GROUP BY g HAVING AVG(m) > 1",
    "rows": "SELECT x FROM t WHERE x > 1 AND f < 2",
    "nested": "SELECT n, COUNT(*) c FROM (SELECT g, COUNT(*) n FROM t GROUP BY g) GROUP BY n "
    "HAVING COUNT(*) > 1",
    "global": "SELECT SUM(x) v FROM t WHERE f > 0",
    "extreme": "SELECT g, MAX(x) v FROM t GROUP BY g HAVING MAX(x) > 3",
}
GROUPED = set(QUERIES) - {"extreme"}
"""Partial aggregates cannot maintain extremes, so their changes are never grouped."""
KEYED = ("doubles", "money", "nested")


def random_rows(rng: random.Random, count: int) -> pa.Table:
    def choices(values: list[object]) -> list[object]:
        return [rng.choice(values) for _ in range(count)]

    doubles = [None, 0.0, -0.0, 0.1, 1e16, -1e16, 2.5, float("inf"), float("nan")]
    columns = {
        "g": pa.array(choices([None, 0, 1, 2, 3, 4]), pa.int32()),
        "x": pa.array(choices([None, 0, 1, 2, 3, 5]), pa.int64()),
        "f": pa.array(choices(doubles)),
        "m": pa.array(choices([None, 0, 1, 25, 333]), pa.decimal128(9, 0)),
    }
    return pa.table(columns)


def cli_with(folder: Path, store: str, capsys: Capsys) -> Cli:
    queries = "".join(
        f'  {name}: {{sql: "{sql}", sketch: {{t: {"g" if name in KEYED else "x"}}}}}\n'
        for name, sql in QUERIES.items()
    )
    file = folder / f"{store}.yaml"
    file.write_text(
        "version: 1\ntables: {t: {path: t}}\n"
        "partitions: {t: {g: {boundaries: [1, 3]}, x: {boundaries: [1, 2]}}}\n"
        f"queries:\n{queries}store: .{store}\n"
    )
    return Cli(capsys, file)


def sketches_of(cli: Cli) -> dict[str, object]:
    status = cli.by_query("status")
    return {name: [s["ranges"] for s in one["sketches"]] for name, one in status.items()}


INCREMENTAL = ("--policy", "incremental")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
def test_grouped_and_ungrouped_changes_agree(tmp_path: Path, capsys: Capsys, spark: Any) -> None:
    rng = random.Random(4)
    table = str(tmp_path / "t")
    create_table(table, random_rows(rng, 40))
    large, small = (cli_with(tmp_path, name, capsys) for name in ("large", "small"))
    for cli in (large, small):
        cli.good("capture")
    commits = [
        lambda: write_deltalake(table, random_rows(rng, 12), mode="append"),
        lambda: DeltaTable(table).delete("x = 1"),
        lambda: DeltaTable(table).update(updates={"x": "x + 1"}, predicate="g = 2"),
        lambda: (
            write_deltalake(table, random_rows(rng, 9), mode="append"),
            DeltaTable(table).delete("g = 3"),
        ),
        lambda: DeltaTable(table).delete(),
        lambda: write_deltalake(table, random_rows(rng, 15), mode="append"),
    ]
    for number, commit in enumerate(commits):
        commit()
        limit = "1000" if number == 2 else "0"
        done = large.good("maintain", "--large-change", limit, *INCREMENTAL).results
        grouped = {r["query"] for r in done if r["reason_code"] == "grouped_by_spark"}
        assert number == 2 or grouped == GROUPED
        for result in small.good("maintain").results:
            assert result["reason_code"] != "grouped_by_spark"
        assert sketches_of(large) == sketches_of(small)
        if number in (3, 5):
            large.verified(is_exact=False)


@pytest.mark.spark
def test_spark_finds_broken_assumptions(tmp_path: Path, capsys: Capsys, spark: Any) -> None:
    rng, path = random.Random(5), str(tmp_path / "t")
    create_table(path, random_rows(rng, 40))
    cli = cli_with(tmp_path, "large", capsys).captured("--query", "keyed")
    words = ("maintain", "--query", "keyed", "--large-change", "0", *INCREMENTAL)
    write_deltalake(path, random_rows(rng, 3), mode="append")
    cli.good(*words)
    negative = random_rows(rng, 1).set_column(1, "x", pa.array([-7], pa.int64()))
    write_deltalake(path, negative, mode="append")
    assert cli(*words).error["code"] == "assumption_broken"


CASES: list[tuple[pa.DataType, SqlType, FactKind, list[Any], list[Any]]] = [
    (pa.int64(), LONG, FactKind.NONNEGATIVE, [0, 5], [-1, -(2**63)]),
    (pa.int64(), LONG, FactKind.NONPOSITIVE, [0, -5], [1, 2**63 - 1]),
    (pa.float64(), DOUBLE, FactKind.NONNEGATIVE, [0.0, -0.0, math.inf, math.nan], [-5e-324]),
    (pa.float64(), DOUBLE, FactKind.NONPOSITIVE, [0.0, -0.0, -math.inf], [5e-324, math.nan]),
    (pa.float64(), DOUBLE, FactKind.NAN_FREE, [0.0, math.inf, -math.inf], [math.nan]),
    (pa.float32(), FLOAT, FactKind.NAN_FREE, [0.0, math.inf], [math.nan]),
    (pa.float32(), FLOAT, FactKind.NONPOSITIVE, [-0.0], [1e-45, math.nan]),
    (pa.string(), STRING, FactKind.NOT_NULL, ["", "x"], []),
    (
        *(pa.decimal128(38, 38), decimal(38, 38), FactKind.NONNEGATIVE),
        *([Decimal(0), Decimal(1).scaleb(-38)], [Decimal(-1).scaleb(-38)]),
    ),
]


def comparable(values: list[Any]) -> list[Any]:
    """Values that can be compared, NaN included."""
    return [repr(value) if isinstance(value, float) else value for value in values]


@pytest.mark.spark
def test_spark_and_engine_find_the_same_values(tmp_path: Path, spark: Any) -> None:
    for number, (arrow, kind, fact, good, bad) in enumerate(CASES):
        values = pa.array([*good, None, *bad], arrow)
        expected = [None] if fact is FactKind.NOT_NULL else bad
        condition = broken_by(fact, ColumnRef("v", kind))
        outcome = Condition(condition).truth({"v": from_arrow(values, kind)}, len(values))
        engine = values.filter(pa.array(outcome.may_true)).to_pylist()
        name = str(tmp_path / f"{number}.parquet")
        pq.write_table(pa.table({"v": values}), name)
        frame = guarded(spark.read.parquet(name), ["v"])
        text = render_expr(condition, {"v": "v"}).sql(DIALECT)
        result = [row.v for row in frame.where(text).collect()]
        assert comparable(engine) == comparable(pa.array(expected, arrow).to_pylist())
        assert comparable(result) == comparable(engine)


MINIMUM = "SELECT g, MIN(x) m FROM t GROUP BY g HAVING MIN(x) < 100"
TOP = "SELECT q.g FROM (SELECT g, x FROM t ORDER BY x LIMIT 3) q WHERE q.g > 0"
JOINED = "SELECT a.g, MIN(b.x) m FROM t a JOIN t b ON a.g = b.g GROUP BY a.g HAVING MIN(b.x) < 9"


def part(group: int, *values: int) -> pa.Table:
    return pa.table({"g": pa.array([group] * len(values), pa.int64()), "x": pa.array(values)})


def write_groups(folder: Path) -> Path:
    """Three files of one group each; each query with a buffer of one and without a limit."""
    path, queries = str(folder / "t"), {}
    create_table(path, part(1, 1, 3, 5, 7, 9, 11))
    write_deltalake(path, part(2, 2, 4, 6, 8, 10, 12), mode="append")
    write_deltalake(path, part(3, 20, 21, 22, 23), mode="append")
    for name, sql in (("least", MINIMUM), ("top", TOP), ("joined", JOINED)):
        # A join tree would store everything too, but `explain` would give another reason.
        settings = {"sql": sql, "sketch": {"t": "g"}, "policy": "incremental", "join": "index"}
        queries[name] = {**settings, "buffer": 1}
        queries[f"{name}_all"] = settings
        queries[f"{name}_eager"] = {**settings, "buffer": 1, "maintain": "eager"}
    partitions = {"t": {"g": {"boundaries": [2, 3]}}}
    return write_files(folder, {"tables": "t", "partitions": partitions, "queries": queries})


@pytest.fixture
def cli(cli_once: CliOnce) -> Cli:
    def capture(cli: Cli) -> None:
        assert {result["mode"] for result in cli.good("capture").results} == {"exact"}

    return cli_once("refill", write_groups, capture)


@pytest.mark.slow
def test_only_exhausted_groups_are_refilled(cli: Cli) -> None:
    cli.table("t").delete("x IN (1, 3, 5)")
    result = cli.by_query("maintain")
    assert result["least"]["action"] == "exact"
    # Only the file of group 1 can contain its rows: three of six remain.
    assert (result["least"]["refilled_groups"], result["least"]["refilled_rows"]) == (1, 3)
    assert "refilled the buffers of 1 group from 3 rows" in result["least"]["reason"]
    assert (result["joined"]["refilled_groups"], result["least_all"]["refilled_groups"]) == (0, 0)
    assert "refilled the buffers of 1 group" in cli.by_query("status")["least"]["last_reason"]


@pytest.mark.slow
def test_bounded_and_unbounded_queries_agree(cli: Cli) -> None:
    refilled = 0
    for step, rows in enumerate([part(1, 2), part(3, 0, 1), part(2, 50)]):
        # Two versions per run: an eager query must refill at the first one, not at the end.
        cli.table("t").delete(f"x < {3 * step + 3}")
        cli.append("t", rows)
        refilled += sum(r["refilled_groups"] for r in cli.good("maintain").results)
        sketches = sketches_of(cli)
        for name in ("least", "top", "joined"):
            assert sketches[name] == sketches[f"{name}_all"] == sketches[f"{name}_eager"], (
                step,
                sketches,
            )
    assert refilled > 5


@pytest.mark.slow
def test_failed_refill_changes_nothing(cli: Cli) -> None:
    cli.table("t").delete("x IN (1, 3, 5)")
    files = {Path(uri): cli.folder / Path(uri).name for uri in cli.table("t").file_uris()}
    before = sketches_of(cli)
    for path, aside in files.items():
        shutil.move(path, aside)
    assert cli("maintain", "--query", "least").code != 0
    assert sketches_of(cli) == before
    for path, aside in files.items():
        shutil.move(aside, path)
    assert cli.one("maintain", "--query", "least")["refilled_groups"] == 1
    cli.good("maintain")
    sketches = sketches_of(cli)
    assert sketches["least"] == sketches["least_all"]


def test_explain_describes_buffers(cli_once: CliOnce) -> None:
    cli = cli_once("to refill", write_groups)
    reasons = {r["query"]: r["reason"] for r in cli.good("explain").results}
    assert "keep the best 1" in reasons["least"]
    assert "keep everything, because only the query could refill them" in reasons["joined"]
    assert reasons["least_all"] == "every operator is maintained incrementally"


@pytest.mark.slow
def test_changed_buffer_changes_the_definition(cli: Cli) -> None:
    cli.edit('"buffer": 1', '"buffer": 2')
    assert cli("maintain", "--query", "least_eager").error["code"] == "definition_changed"


def test_files_that_cannot_contain_a_value_are_skipped(tmp_path: Path) -> None:
    """Texts compare by bytes, and -0.0 equals 0.0. Without values, all files are read."""
    for text, number in (("a", -0.0), ("d", 3.0), ("é", 5.0)):
        rows = pa.table({"s": [text, f"{text}b"], "d": [number, number]})
        write_deltalake(str(tmp_path), rows, mode="append")
    snapshot = open_source("t", str(tmp_path)).snapshot()

    def result(column: str, kind: SqlType, *values: object) -> list[object]:
        values_by_column = {column: from_arrow(pa.array(values), kind)}
        files = prune_to_values(snapshot, values_by_column)
        return sorted(read_rows(snapshot, ["s"], files).column("s").to_pylist())

    assert result("s", STRING, "é", "bb") == ["é", "éb"]
    assert result("d", DOUBLE, 0.0) == ["a", "ab"]
    assert len(prune_to_values(snapshot, {})) == 3


WORKLOAD = """\
version: 1
tables: {t: {path: t}}
partitions: {t: {g: {boundaries: [2]}}}
queries:
  rows: {sql: "SELECT * FROM t WHERE g > 1", answer: true}
  groups: {sql: "SELECT g, COUNT(*) AS n FROM (SELECT DISTINCT * FROM t) GROUP BY g"}
"""
BEFORE = {"g": "col-1", "v": "col-2", "w": "col-3"}


def columns(physical: dict[str, str], **kinds: str) -> dict[str, Any]:
    mapping = "delta.columnMapping"
    fields = []
    for name, stored in physical.items():
        words = {f"{mapping}.id": int(stored[-1]), f"{mapping}.physicalName": stored}
        fields.append(handmade.field(name, kinds.get(name, "integer"), **words))
    return handmade.metadata(fields, configuration={f"{mapping}.mode": "name"})


def write_mapped(folder: Path) -> None:
    table = folder / "t"
    handmade.commit(table, 0, handmade.protocol("columnMapping"), columns(BEFORE))
    values = {"col-1": [1, 3], "col-2": [0, 9], "col-3": [9, 0]}
    rows = pa.table({name: pa.array(each, pa.int32()) for name, each in values.items()})
    name = handmade.write_file(table, "a.parquet", rows)
    handmade.commit(table, 1, handmade.add(name, 2, (table / name).stat().st_size))
    write_files(folder, WORKLOAD)


@pytest.mark.parametrize(
    ("columns_after", "kinds", "message"),
    [
        ({"g": "col-1", "w": "col-3"}, {}, "`v` was dropped"),
        ({**BEFORE, "x": "col-4"}, {}, "`x`"),
        ({"g": "col-1", "u": "col-2", "w": "col-3"}, {}, "`u`"),
        (BEFORE, {"w": "long"}, "`w`"),
        ({"g": "col-1", "w": "col-3", "v": "col-2"}, {}, "order of columns"),
    ],
    ids=["dropped", "added", "renamed", "retyped", "reordered"],
)
def test_changed_columns_are_reported(
    cli_once: CliOnce, columns_after: dict[str, str], kinds: dict[str, str], message: str
) -> None:
    cli = cli_once("mapped columns", write_mapped, Cli.captured)
    handmade.commit(cli.folder / "t", 2, columns(columns_after, **kinds))
    ran = cli("maintain", "--policy", "incremental")
    assert ran.code == 7
    for failure in ran.error["failures"]:
        assert failure["code"] == "schema_changed", failure
        assert message in failure["message"], failure
    assert {result["reason_code"] for result in cli.good("maintain").results} == {"schema_changed"}
