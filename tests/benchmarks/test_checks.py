"""The checks of the measures: a wrong result, sketch or circuit is reported; recursive queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.data import DataRequest
from benchmarks.figures import OptionValue
from benchmarks.large_joins.partners import partners_table
from benchmarks.measures import mixed, recursion_cost, rewritten_cost
from benchmarks.measures.deletions import deletions_of
from benchmarks.measures.mixed import Ratio, sequence
from benchmarks.measures.mixed_strategies import Spent
from benchmarks.measures.recursion_cost import are_same_rows
from benchmarks.peers.simulation import Scheme, Simulation
from benchmarks.recursion.circuit import Kept
from benchmarks.tables import write_network
from benchmarks.trees import semi_joins
from benchmarks.trees.joined_rows import MOST, joined_rows
from benchmarks.trees.semi_joins import NoSemiJoinsError, put_rows, sketch_question
from benchmarks.trees.streams import Step, Stream, outlived, there_and_back, window
from benchmarks.trees.ways import Choices, Followed, choices_of
from benchmarks.update_stream import UpdateStream, pool_of
from impctl.bench.record import Cell
from impctl.errors import NotExactError, UsageError
from impctl.measure.duckdb import ParquetSql, duckdb_answers
from impctl.measure.kinds import CallTimes
from impctl.measure.scratch import AgainstRecapture, scratch_copy
from impctl.plan.nodes import Plan
from impctl.service.context import Context, SilentReporter, open_context
from impctl.service.settings import Settings
from impctl.sketch.sketch import RangeSet
from impctl.workload.models import JoinStrategy
from tests.benchmarks.measured_cells import case_of, cells_of, joined_context, values

WORKLOAD = """\
version: 1
tables:
  links: {path: links}
  near: {path: field/near}
  seed: {path: field/seed}
  triggered: {path: field/triggered}
queries:
  pairs:
    sql: >-
      WITH RECURSIVE r(x, y) AS (SELECT src, dst FROM links UNION
      SELECT l.src, r.y FROM links l JOIN r ON l.dst = r.x) SELECT x, y FROM r
    sketch: {links: src}
  few:
    sql: >-
      WITH RECURSIVE r(n) AS (SELECT dst FROM links WHERE src < 2 UNION
      SELECT l.dst FROM r JOIN links l ON r.n = l.src) SELECT n FROM r
    sketch: {links: src}
  costs:
    sql: >-
      WITH RECURSIVE p(n, c) AS (SELECT dst, cost FROM links WHERE src < 2 UNION
      SELECT l.dst, p.c + l.cost FROM p JOIN links l ON p.n = l.src)
      SELECT n, MIN(c) AS c FROM p GROUP BY n
    sketch: {links: src}
  regions:
    sql: >-
      WITH RECURSIVE a(region, sensor) AS (SELECT s.region, s.sensor FROM seed s
      JOIN triggered t ON s.sensor = t.sensor UNION SELECT a.region, n.dst FROM a
      JOIN triggered t ON a.sensor = t.sensor JOIN near n ON a.sensor = n.src)
      SELECT region, sensor FROM a
    sketch: {triggered: sensor}
  unsketched: {sql: "SELECT src FROM links WHERE dst < 3", sketch: none}
  strange: {sql: "SELECT sensor FROM triggered", sketch: {triggered: nothing}}
store: .impctl
"""


@contextmanager
def network_context(folder: Path) -> Iterator[Context]:
    """Open the workload, with its tables written below the folder."""
    networks = {"links": ("transit_stub", 100, 25, None), "field": ("sensors", 36, None, None)}
    with generated_context(folder, WORKLOAD, networks) as ctx:
        yield ctx


@contextmanager
def generated_context(
    folder: Path, text: str, networks: Mapping[str, tuple[str, int, int | None, int | None]]
) -> Iterator[Context]:
    """Open a workload of this text; tables are networks of this shape, rows, groups and files."""
    for table, (shape, rows, groups, files) in networks.items():
        request = DataRequest(table, "network", rows=rows, groups=groups, shape=shape, files=files)
        write_network(request, folder, SilentReporter())
    (folder / "w.yaml").write_text(text)
    with open_context(Settings(folder / "w.yaml")) as ctx:
        yield ctx


NO_SCIPY = "scipy is not installed"
LEAST_COSTS = (
    "WITH RECURSIVE p(n, c) USING KEY (n) AS ("
    "SELECT dst, min(cost) FROM links WHERE src < 2 GROUP BY dst UNION "
    "SELECT l.dst, min(p.c + l.cost) FROM p JOIN links l ON p.n = l.src "
    "LEFT JOIN recurring.p AS o ON o.n = l.dst "
    "WHERE o.c IS NULL OR p.c + l.cost < o.c GROUP BY l.dst) SELECT n, c FROM p"
)


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    with network_context(tmp_path_factory.mktemp("network")) as ctx:
        yield ctx


@pytest.fixture(autouse=True)
def _no_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recursion_cost, "has_scipy", lambda: False)


def cells(ctx: Context, query: str, **options: OptionValue) -> list[Cell]:
    return cells_of(case_of(ctx, "recursion", query, **options))


@pytest.mark.slow
def test_cheapest_paths_and_a_query_for_duckdb(ctx: Context) -> None:
    pytest.importorskip("duckdb")
    (cell,) = cells(ctx, "costs", changes=5, sources=2, search="paths", duckdb=LEAST_COSTS, steps=7)
    assert (cell.covers, cell.equal, cell.note) == (True, True, NO_SCIPY)
    assert cell.metrics["delete_ms"].runs == cell.metrics["insert_wall_ms"].runs == 7
    assert cell.metrics["duckdb_cpu_ms"].runs == 2
    (wrong,) = cells(ctx, "costs", changes=5, duckdb=LEAST_COSTS.replace("src < 2", "src < 1"))
    assert wrong.equal is False


@pytest.mark.parametrize("rival", ["duckdb", "search"])
def test_a_rivals_wrong_answer_is_reported(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, rival: str
) -> None:
    def wrong(*_: object) -> tuple[pa.Table, CallTimes]:
        return pa.table({"n": pa.array([0], pa.int64())}), CallTimes(1.0, 1.0)

    if rival == "duckdb":
        pytest.importorskip("duckdb")
        monkeypatch.setattr(recursion_cost.DuckDb, "asked", wrong)
    else:
        monkeypatch.setattr(recursion_cost, "searched", wrong)
    (cell,) = cells(ctx, "few", changes=5, sources=2)
    assert (cell.equal, cell.covers) == (False, True)


def test_a_small_table_is_noted(ctx: Context) -> None:
    few, many = cells(ctx, "few", changes=(5, 101))
    assert few.equal
    assert (many.metrics, many.note) == ({}, "not run: `links` has 100 rows")


@pytest.mark.parametrize("part", ["sketch", "answer"])
def test_wrong_circuits_are_reported(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    right = Kept.answer
    monkeypatch.setattr(ParquetSql, "is_installed", staticmethod(lambda: False))
    if part == "sketch":
        monkeypatch.setattr(Kept, "against", lambda *_: AgainstRecapture(False, 0))
    else:
        lengths = iter(range(1, 100))
        monkeypatch.setattr(Kept, "answer", lambda self: right(self).slice(next(lengths) % 2))
    (cell,) = cells(ctx, "few", changes=5)
    assert (cell.covers, cell.equal) == (part == "answer", part == "sketch")


def test_rows_are_compared_as_bags() -> None:
    table = pa.table({"a": [1, 2, 2], "b": [3, 4, 4]})
    assert are_same_rows(table, pa.table({"x": [2, 1, 2], "y": [4, 3, 4]}))
    assert are_same_rows(table, table.cast(pa.schema({"a": pa.int32(), "b": pa.int64()})))
    assert not are_same_rows(table, pa.table({"a": [1, 1, 2], "b": [3, 3, 4]}))
    assert not are_same_rows(table, table.slice(1))
    assert not are_same_rows(table, table.select(["a"]))


def peer_cells(ctx: Context, query: str, **options: OptionValue) -> list[Cell]:
    return cells_of(case_of(ctx, "peers", query, **options))


def test_regions_and_their_seeds(ctx: Context) -> None:
    options: dict[str, OptionValue] = {"program": "regions", "schemes": "absorption_lazy"}
    result = peer_cells(ctx, "regions", **options, shares=(0.5, 1.0))
    assert [cell.equal for cell in result] == [True, True]
    options = {**options, "schemes": ("dred", "absorption_lazy"), "phase": "delete", "shares": 1.0}
    deleted = peer_cells(ctx, "regions", **options)
    assert all(cell.equal for cell in deleted)
    # Only sensors near the seeds are left.
    assert values(deleted[1])["provenance_bytes"] > 0


def test_a_wrong_scheme_is_reported(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Simulation.answer
    monkeypatch.setattr(Simulation, "answer", lambda self: right(self) - {min(right(self))})
    (cell,) = peer_cells(ctx, "pairs", schemes=str(Scheme.DRED))
    assert cell.equal is False


OVER_FILES = """\
version: 1
tables: {trees: {path: trees}}
partitions: {trees: {src: {ranges: 10}}}
queries:
  one_tree:
    sql: >-
      WITH RECURSIVE r(n) AS (SELECT dst FROM trees WHERE src = 0 UNION
      SELECT l.dst FROM r JOIN trees l ON r.n = l.src) SELECT n FROM r
    sketch: {trees: src}
store: .impctl
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    """Ten trees of 1,000 nodes in ten files."""
    folder = tmp_path_factory.mktemp("files")
    networks = {"trees": ("forest", 10_000, 1_000, 10)}
    with generated_context(folder, OVER_FILES, networks) as ctx:
        yield ctx


def one_tree(ctx: Context) -> Cell:
    (cell,) = cells_of(case_of(ctx, "rewritten", "one_tree"))
    return cell


@pytest.mark.slow
def test_one_tree_of_ten(files: Context) -> None:
    cell = one_tree(files)
    result = values(cell)
    # Its links are in the first range, up to rounding, which may share a file.
    assert (result["answer_rows"], result["sketched_rows"]) == (999, 10_000)
    assert 0.0999 <= result["rows_share"] <= 0.21
    assert result["files_share"] in (pytest.approx(0.1), pytest.approx(0.2))
    assert result["fragments_share"] <= 0.2
    if ParquetSql.is_installed():
        assert (cell.equal, cell.note) == (True, "")
        for unit, gain, loaded in (
            ("_ms", "gain_ratio", "loaded_ratio"),
            ("_cpu_ms", "cpu_gain_ratio", "loaded_cpu_ratio"),
        ):
            for ratio, variant in ((gain, "plain"), (loaded, "loaded")):
                expected = result[f"duckdb_{variant}{unit}"] / result[f"duckdb_sketch{unit}"]
                assert result[ratio] == pytest.approx(expected)
        assert cell.metrics["duckdb_plain_ms"].runs == 2


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["duckdb_plain_ms", "duckdb_sketch_ms", "loaded"])
def test_wrong_answers_are_reported(
    files: Context, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    """For each of the three runs."""
    pytest.importorskip("duckdb")

    wrong = pa.table({"n": pa.array([0])})

    def answers(*args: Any) -> tuple[dict[str, Any], str]:
        works, note = duckdb_answers(*args)
        return {**works, variant: lambda: wrong}, note

    if variant == "loaded":
        monkeypatch.setattr(rewritten_cost, "_loaded", lambda _: wrong)
    else:
        monkeypatch.setattr(rewritten_cost, "duckdb_answers", answers)
    assert one_tree(files).equal is False


GOOD = AgainstRecapture(covers=True, slack=0)


def answers(*values: int) -> tuple[pa.Table, ...]:
    return tuple(pa.table({"a": [value]}) for value in values)


def run(total: float, tables: tuple[pa.Table, ...], checked: AgainstRecapture = GOOD) -> Any:
    return mixed._Run(Spent(query_ms=total), 0.0, tables, 1, checked)


def test_a_wrong_run_of_a_mixed_workload_is_reported() -> None:
    case = case_of(None, "mixed", "q", repeat=3)
    expected = answers(1, 2)
    wrong = [run(1.0, answers(1, 2)), run(1.0, answers(1, 3))]
    assert mixed._cell(case, {}, wrong, expected, 4).equal is False
    small = [run(1.0, expected), run(1.0, expected, AgainstRecapture(covers=False, slack=2))]
    cell = mixed._cell(case, {}, small, expected, 4)
    assert (cell.covers, cell.slack, cell.equal) == (False, 2, None)


def test_mixed_deletions_delete_each_row_once() -> None:
    keys = np.arange(100)
    parts = [part.tolist() for part in deletions_of((False, True), keys, 8, seed=3)]
    assert sorted(key for part in parts for key in part) == keys.tolist()
    assert [len(part) for part in parts] == [8] * 12 + [4]
    left = sorted(set(range(100)) - set(parts[0]))
    assert parts[1] == left[:8]
    assert parts == [part.tolist() for part in deletions_of((False, True), keys, 8, seed=3)]
    assert parts != [part.tolist() for part in deletions_of((False, True), keys, 8, seed=4)]


def test_a_sequence_repeats_its_block() -> None:
    result = sequence(Ratio(2, 3), 12, 4, seed=1)
    assert [each.constants is None for each in result] == [True, True, False, False, False] * 3
    constants = [each.constants for each in result if each.constants is not None]
    assert set(constants) <= set(range(4))
    assert result == sequence(Ratio(2, 3), 12, 4, seed=1)
    assert result != sequence(Ratio(2, 3), 12, 4, seed=2)


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    with joined_context(tmp_path_factory.mktemp("joined")) as ctx:
        yield ctx


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "when"), [("tree", "before"), ("tree", "last"), ("index", "before"), ("duckdb", "last")]
)
def test_ways_with_wrong_sketches_are_reported(
    joined: Context, monkeypatch: pytest.MonkeyPatch, way: str, when: str
) -> None:
    """The sketches are empty before timing, or only at the end."""
    step_calls: list[bool] = []
    steps = Followed.step

    def step(self: Followed, change: Step) -> float:
        step_calls.append(True)
        return steps(self, change)

    def changed(sketches: Mapping[str, RangeSet]) -> Mapping[str, RangeSet]:
        # Each of two ways takes two steps before.
        if (len(step_calls) > 4) != (when == "last"):
            return sketches
        return {access: part.minus(part) for access, part in sketches.items()}

    monkeypatch.setattr(Followed, "step", step)

    if way == "duckdb":
        pytest.importorskip("duckdb")
        original = semi_joins.SketchQuestion.asked
        monkeypatch.setattr(
            semi_joins.SketchQuestion, "asked", lambda self, c: changed(original(self, c))
        )
    else:
        ranges = Followed.ranges

        def wrong(self: Followed) -> Mapping[str, RangeSet]:
            sketches = ranges(self)
            return changed(sketches) if (self.work[0] > 0) == (way == "tree") else sketches

        monkeypatch.setattr(Followed, "ranges", wrong)
    (cell,) = cells_of(case_of(joined, "trees", "pair", changes=40))
    if way == "tree":
        assert cell.covers is False
    else:
        assert (cell.slack or 0) > 0


def test_equal_seeds_give_equal_tables(joined: Context) -> None:
    pool = pool_of(joined.tables, "s", "id", 1)
    assert pool.first_key == 200
    result = []
    for seed in (1, 1, 2):
        with scratch_copy(joined, ("s",)) as scratch:
            stream = UpdateStream(scratch.tables, pool, seed)
            for _ in range(5):
                stream.commit(7)
            snapshot = scratch.tables.repin("s").snapshot()
            result.append(((snapshot.rows or 0) - 200, snapshot.version))
    assert result[0] == result[1] != result[2]
    assert all(rows % 7 == 0 and version == 5 for rows, version in result)


def test_a_key_must_hold_whole_numbers(joined: Context) -> None:
    with pytest.raises(UsageError, match="no column `a_text` of whole numbers"):
        pool_of(joined.tables, "s", "a_text", 1)


def choices(ctx: Context, query: str) -> Choices:
    return choices_of(ctx, ctx.workload.queries[query])


def core_of(result: Choices) -> Plan:
    core = result.way(JoinStrategy.INDEX).core
    assert core is not None
    return core


def counted(result: Choices) -> int | None:
    return joined_rows(core_of(result), result.partitions, result.tables())


@pytest.mark.parametrize(
    ("query", "reason"), [("top", "LIMIT"), ("both", "UNION"), ("single", "nothing is joined")]
)
def test_queries_without_semi_joins_are_reported(joined: Context, query: str, reason: str) -> None:
    result = choices(joined, query)
    with pytest.raises(NoSemiJoinsError, match=reason):
        sketch_question(core_of(result), result.partitions)


def test_joined_rows_of_every_prefix_are_counted(joined: Context) -> None:
    pytest.importorskip("duckdb")
    connection = ParquetSql.open()
    assert connection is not None
    result = choices(joined, "hop3")
    put_rows(connection, result.tables())
    # The relation with a condition is first.
    texts = (
        "SELECT COUNT(*) FROM g a, g b WHERE a.dst = b.src AND b.value < 300",
        "SELECT COUNT(*) FROM g a, g b, g c "
        "WHERE a.dst = b.src AND b.dst = c.src AND c.value < 300",
    )
    expected = sum(connection.run(text).column(0)[0].as_py() for text in texts)
    assert counted(result) == expected > 300
    connection.close()


def test_uncountable_joins_count_as_too_large(
    joined: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    too_many = NotExactError("a count beyond 62 bits", code="count_too_large", hint="none")
    name = "benchmarks.trees.joined_rows.Followed"
    monkeypatch.setattr(name, Mock(side_effect=too_many))
    assert counted(choices(joined, "hop3")) == MOST


def rows(table: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(zip(*table.to_pydict().values(), strict=True))


def tables() -> dict[str, pa.Table]:
    sizes = {"r": (60, 6, 1), "s": (20, 2, 2), "t": (5, 1, 3)}
    return {name: partners_table(*size) for name, size in sizes.items()}


def replayed(stream: Stream, steps: int) -> list[tuple[int, Mapping[str, pa.Table]]]:
    """Apply the steps to bags of rows and compare them with the stream."""
    bags = {name: rows(table) for name, table in stream.start.items()}
    result = []
    for step in islice(stream.steps, steps):
        for name, change in step.changes().items():
            changed = zip(*change.rows.to_pydict().values(), strict=True)
            for row, weight in zip(changed, change.weights, strict=True):
                bags[name][row] += int(weight)
            assert min(bags[name].values()) >= 0, "only existing rows are deleted"
            assert +bags[name] == rows(step.after[name])
        assert step.rows == sum(len(change.rows) for change in step.changes().values())
        result.append((step.rows, step.after))
    return result


def test_rows_are_inserted_and_deleted() -> None:
    stream = there_and_back(tables(), ("r", "s"), 16, 1)
    assert stream.start.keys() == {"r", "s", "t"}
    steps = replayed(stream, 6)
    assert [count for count, _ in steps] == [16] * 6, "twelve of sixty rows, four of twenty"
    assert [len(after["r"]) for _, after in steps] == [72, 60] * 3


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
def test_a_window_moves_in_order_and_wraps(share: float) -> None:
    stream = window(tables(), ("r", "s"), 16, order="id", share=share)
    size = int(60 * share)
    assert sorted(stream.start["r"].column("id").to_pylist()) == list(range(size))
    assert len(stream.start["t"]) == 5
    steps = replayed(stream, 25)
    for step, (count, after) in enumerate(steps, start=1):
        ids = set(after["r"].column("id").to_pylist())
        assert ids == {(6 * step + offset) % 60 for offset in range(size)}
        assert count == 2 * (6 + 2)


@pytest.mark.parametrize("lives", [1, 2, 3])
def test_rows_outlive_their_partners(lives: int) -> None:
    stream = outlived(tables(), ("r", "s"), 4, key="c", lives=lives, seed=1)
    assert len(stream.start["r"]) == 60 - 4 * 3, "half of the six rows of four keys"
    steps = replayed(stream, 4 * lives)
    assert [count for count, _ in steps] == [8, 8 + 2 * (12 // lives)] * (2 * lives)
    ids = [frozenset(after["r"].column("id").to_pylist()) for _, after in steps]
    start = frozenset(stream.start["r"].column("id").to_pylist())
    assert all(ids[2 * i] != start for i in range(1, lives))
    # After as many rounds, all rows that move have left the start.
    moving = start - ids[2 * lives - 1]
    assert len(moving) == 12
    first, second = (present["s"].column("c").to_pylist() for present in (tables(), steps[0][1]))
    removed_keys = set(first) - set(second)
    for _, after in steps:
        present = Counter(after["r"].column("c").to_pylist())
        assert {present[key] for key in removed_keys} == {3}, "as many of each key at any time"
    assert ids[-1] == start, "the other half has had its turn"
    assert [len(after["s"]) for _, after in steps] == [12, 20] * (2 * lives)
