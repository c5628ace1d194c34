"""Facts from a table's constraints and statistics: which are used, assumed or ignored."""

from __future__ import annotations

import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction
from msgspec import Struct, field
from msgspec.structs import replace

from impctl.compile.compile import plan_maintenance
from impctl.data.schema import LONG, Column, Schema
from impctl.errors import InvariantError
from impctl.rules.optimize import apply_rules, core_of
from impctl.safety.facts import Fact, FactKind, FactSource
from impctl.safety.judge import carried_verdict, check_safety
from impctl.service.prepare import _stated_by_checks
from impctl.sketch.sketch import MaintenanceMode, RangePartition
from impctl.sql.statement import parse_query
from impctl.tables.snapshot import take_snapshot
from impctl.tables.write.maintenance import create_table
from tests.support.kept_workload import stored
from tests.support.random_cases import random_cases
from tests.support.run_cli import Capsys, Cli
from tests.tables import handmade

MAX_ABOVE_50 = "SELECT g, MAX(x) s FROM t GROUP BY g HAVING COALESCE(MAX(x), 100) > 50"
"""A sketch on `k` is safe only while no `x` is NULL."""
NUMBERS = pa.table(
    {"g": [1, 2], "k": [5, 1], "x": [10, 60]},
    schema=pa.schema([("g", pa.int64()), ("k", pa.int64()), pa.field("x", pa.int64(), False)]),
)


@pytest.fixture
def sum_cli(cli: Cli) -> Cli:
    """HAVING SUM(x) > 20, sketched on x: safe only if x is never negative."""
    text = cli.workload.read_text().replace("COUNT(*) > 2", "SUM(x) > 20")
    cli.workload.write_text(text.replace("sketch: {t: g}", "sketch: {t: x}"))
    return cli


def workload(folder: Path, capsys: Capsys, sql: str) -> Cli:
    """One query over `t`, sketched on `k`."""
    return Cli.over(
        capsys,
        folder,
        "version: 1\ntables: {t: {path: t}}\npartitions: {t: {k: {boundaries: [3]}}}\n"
        f"queries: {{q: {{sql: '{sql}', sketch: {{t: k}}}}}}\n",
    )


UNSAFE = (3, "sketch_unsafe")


def assumptions(cli: Cli) -> list[str]:
    result: list[str] = cli.one("capture", "--dry-run")["assumptions"]
    return result


def test_statistics_are_assumptions(sum_cli: Cli) -> None:
    assert assumptions(sum_cli) == ["`t.x` >= 0"]


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        ("x >= 0", []),
        ("x > 0 AND (g IS NULL OR g < 100)", []),
        # An OR gives no sign: the fact from statistics stays an assumption.
        ("x > 0 OR g IS NULL", ["`t.x` >= 0"]),
    ],
)
def test_check_is_not_an_assumption(
    sum_cli: Cli, table: str, check: str, expected: list[str]
) -> None:
    DeltaTable(table).alter.add_constraint({"c": check})
    assert assumptions(sum_cli) == expected


def test_check_on_a_double_allows_nan(tmp_path: Path, capsys: Capsys) -> None:
    rows = pa.table({"g": [1, 2], "k": [1, 1], "d": [-10.0, -10.0]})
    path = str(tmp_path / "t")
    write_deltalake(path, rows)
    DeltaTable(path).alter.add_constraint({"c": "d <= 0"})
    nan = pa.array(np.array([math.copysign(math.nan, -1)]))
    write_deltalake(path, pa.table({"g": [1], "k": [5], "d": nan}), mode="append")
    sql = "SELECT g, SUM(d) s FROM t GROUP BY g HAVING SUM(d) < -5"
    assert workload(tmp_path, capsys, sql)("capture", "--dry-run").refusal == UNSAFE


def test_not_null_is_ignored_if_files_lack_column(tmp_path: Path, capsys: Capsys) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, NUMBERS.select(["g", "k"]))
    DeltaTable(path).alter.add_columns([Field("x", PrimitiveType("long"), nullable=False)])
    write_deltalake(path, NUMBERS, mode="append")
    assert workload(tmp_path, capsys, MAX_ABOVE_50)("capture", "--dry-run").refusal == UNSAFE


@pytest.mark.slow
def test_not_null_from_statistics_is_assumed(tmp_path: Path, capsys: Capsys) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, NUMBERS)
    cli = workload(tmp_path, capsys, MAX_ABOVE_50)
    assert assumptions(cli) == ["`t.x` has no NULL"]
    cli.good("capture")
    write_deltalake(path, NUMBERS, mode="append")
    cli.good("maintain")
    # A file without the column, as a careless writer might add.
    pq.write_table(NUMBERS.select(["g", "k"]), tmp_path / "t" / "late.parquet")
    size = (tmp_path / "t" / "late.parquet").stat().st_size
    action = AddAction("late.parquet", size, {}, 0, True, "{}")
    delta = DeltaTable(path)
    delta.create_write_transaction([action], mode="append", schema=delta.schema())
    ran = cli("maintain", "--policy", "incremental")
    assert ran.refusal == (7, "assumption_broken")
    assert "`t.x` has no NULL" in ran.error["message"]


@pytest.mark.parametrize(
    ("check", "kinds"),
    [
        ("x >= 0", [FactKind.NONNEGATIVE]),
        ("x < -1", [FactKind.NONPOSITIVE]),
        ("fine >= 0.0", [FactKind.NONNEGATIVE]),
        ("fine >= 0", []),
        ("fine <= CAST(0 AS BIGINT)", []),
    ],
)
def test_rounding_checks_give_no_sign(tmp_path: Path, check: str, kinds: list[FactKind]) -> None:
    """`fine >= 0` casts -4E-38 to DECIMAL(38, 37), which rounds it to 0."""
    empty = pa.table({"x": pa.array([], pa.int32()), "fine": pa.array([], pa.decimal128(38, 38))})
    create_table(str(tmp_path / "t"), empty)
    snapshot = take_snapshot(DeltaTable(str(tmp_path / "t")), "t", None)
    facts = _stated_by_checks(replace(snapshot, configuration={"delta.constraints.c": check}), "t")
    assert [fact.kind for fact in facts] == kinds


TOTALS = "SELECT g, SUM(x) s FROM t GROUP BY g"
FIRST = f"SELECT g, s FROM ({TOTALS}) a ORDER BY s DESC, g LIMIT 2"
RANKED = f"SELECT g, s, RANK() OVER (ORDER BY s DESC) r FROM ({TOTALS}) a"
QUERIES = {
    "joined": f"SELECT q.g, q.s FROM ({FIRST}) q JOIN u ON q.g = u.g",
    "filtered": f"SELECT g, s FROM ({FIRST}) q WHERE s < 95",
    "grouped": f"SELECT s % 4 k, COUNT(*) n FROM ({FIRST}) q GROUP BY s % 4 HAVING SUM(s) < 95",
    "ranked": f"SELECT q.g, q.s FROM ({RANKED}) q JOIN u ON q.g = u.g WHERE q.r <= 2",
    "chosen": f"SELECT u.g FROM u WHERE u.g IN (SELECT g FROM ({FIRST}) q)",
}


def rows(*values: tuple[int, int, int]) -> pa.Table:
    g, id, x = (pa.array(list(column), pa.int64()) for column in zip(*values, strict=True))
    return pa.table({"g": g, "id": id, "x": x})


CHECKED_ROWS = rows((1, 1, 100), (2, 11, 90), (3, 12, 30), (3, 21, 50))


def constrained_cli(
    folder: Path, capsys: Capsys, *, is_checked: bool, data: pa.Table = CHECKED_ROWS
) -> Cli:
    """The tables; a CHECK, or else statistics, state that `x` is nonnegative."""
    path = str(folder / "t")
    create_table(path, data)
    create_table(str(folder / "u"), pa.table({"g": pa.array([2, 3], pa.int64())}))
    if is_checked:
        DeltaTable(path).alter.add_constraint({"c": "x >= 0"})
    return Cli.asking(
        capsys,
        folder,
        {name: {"sql": sql, "sketch": {"t": "id"}} for name, sql in QUERIES.items()},
        "tu",
        partitions={"t": {"id": {"boundaries": [10, 20]}}},
    )


def sketch_of_t(result: Mapping[str, Any]) -> list[int]:
    (sketch,) = [entry for entry in result["sketches"] if entry["table"] == "t"]
    return list(sketch["ranges"])


def stored_of_t(folder: Path) -> dict[str, list[int]]:
    """The stored ranges of `id`, by query."""
    return {
        name: list(sketch.ranges)
        for name in QUERIES
        for sketch in stored(folder, name).sketches
        if sketch.partition.table == "t"
    }


BY_CHECK_OR_STATISTICS = pytest.mark.parametrize(
    "is_checked", [True, False], ids=["check", "statistics"]
)


@pytest.mark.slow
@BY_CHECK_OR_STATISTICS
def test_capture_covers_barriers(tmp_path: Path, capsys: Capsys, is_checked: bool) -> None:
    captured = constrained_cli(tmp_path, capsys, is_checked=is_checked).good("capture").results
    assert {r["query"]: sketch_of_t(r) for r in captured} == dict.fromkeys(QUERIES, [0, 1])
    assert {bool(r["assumptions"]) for r in captured} == {not is_checked}


@pytest.mark.slow
@BY_CHECK_OR_STATISTICS
def test_maintenance_covers_barriers(tmp_path: Path, capsys: Capsys, is_checked: bool) -> None:
    data = rows((1, 1, 60), (2, 11, 90), (3, 21, 50))
    cli = constrained_cli(tmp_path, capsys, is_checked=is_checked, data=data)
    cli.good("capture")
    write_deltalake(str(tmp_path / "t"), rows((1, 2, 40), (3, 12, 30)), mode="append")
    assert cli.actions() == {"exact"}
    assert stored_of_t(tmp_path) == dict.fromkeys(QUERIES, [0, 1])


@pytest.mark.slow
@BY_CHECK_OR_STATISTICS
def test_reuse_for_smaller_limit(tmp_path: Path, capsys: Capsys, is_checked: bool) -> None:
    cli = constrained_cli(tmp_path, capsys, is_checked=is_checked)
    cli.good("capture", "--query", "joined")
    sql = QUERIES["joined"].replace("LIMIT 2", "LIMIT 1")
    result = cli.one("rewrite", "--sql", sql)
    assert result["reuse"]["query"] == "joined"
    assert sketch_of_t(result) == [0, 1]


CATALOG = {
    "t": Schema((Column("g", LONG), Column("id", LONG), Column("x", LONG))),
    "u": Schema((Column("g", LONG),)),
}
CHECK = Fact("t", "x", FactKind.NONNEGATIVE, FactSource.CONSTRAINT)


@pytest.mark.parametrize("name", QUERIES)
def test_verdicts_carry_facts_and_unsafe_ones_are_rejected(name: str) -> None:
    parsed = parse_query(QUERIES[name], CATALOG)
    query = replace(parsed, root=apply_rules(parsed.root))
    sketched = {"t#1": "id"}
    verdict = check_safety(query, sketched, [CHECK])
    assert (verdict.safe, verdict.facts, verdict.assumptions) == (True, (CHECK,), ())
    core = replace(query, root=core_of(parsed.root))
    inner = carried_verdict(verdict, core, sketched)
    assert inner.barriers == 1
    with pytest.raises(InvariantError):
        carried_verdict(replace(verdict, facts=()), core, sketched)
    ranges = {"t#1": RangePartition("t", "id", LONG, (10, 20))}
    assert plan_maintenance(core.root, verdict, inner, ranges).mode is MaintenanceMode.EXACT
    unsafe = check_safety(core, sketched, ())
    for verdicts in ((verdict, unsafe), (unsafe, inner)):
        with pytest.raises(InvariantError):
            plan_maintenance(core.root, *verdicts, ranges)


NUMBERED = (
    "SELECT g, COUNT(*) n FROM (SELECT g, id, ROW_NUMBER() OVER (PARTITION BY id"
    " ORDER BY x DESC, g) r FROM t WHERE x >= 50) q WHERE r <= 1 GROUP BY g HAVING COUNT(*) < 2"
)
"""Row numbers within the sketched column, counted by another one, need all rows."""


@pytest.mark.spark
def test_row_number_within_the_sketched_column(tmp_path: Path, capsys: Capsys, spark: Any) -> None:
    cli = constrained_cli(tmp_path, capsys, is_checked=False)
    document = json.loads(cli.workload.read_text())
    document["queries"] = {"numbered": {"sql": NUMBERED, "sketch": {"t": "id"}}}
    cli.workload.write_text(json.dumps(document))
    captured = cli.one("capture")
    assert (captured["mode"], sketch_of_t(captured)) == ("exact", [0, 1, 2])
    table = DeltaTable(str(tmp_path / "t"))
    for predicate in ("id = 21", "id = 11"):
        table.delete(predicate)
        write_deltalake(table, rows((1, 12, 70), (3, 15, 60), (2, 22, 9)), mode="append")
        cli.good("maintain")
        assert len(cli.verified()) == 1


def test_rank_barriers_do_not_depend_on_facts() -> None:
    query = parse_query(NUMBERED, CATALOG)
    query = replace(query, root=apply_rules(query.root))
    for facts in ((), (CHECK,)):
        verdict = check_safety(query, {"t#1": "id"}, facts)
        assert (verdict.safe, verdict.barriers) == (True, 1)
    unbounded = parse_query(
        NUMBERED.replace("COUNT(*) < 2", "SUM(x) > 2")
        .replace("g, id", "g, x, id")
        # A filter that implies the sign would be a separate fact.
        .replace("x >= 50", "x >= -50"),
        CATALOG,
    )
    unbounded = replace(unbounded, root=apply_rules(unbounded.root))
    assert check_safety(unbounded, {"t#1": "id"}, (CHECK,)).barriers == 0
    assert not check_safety(unbounded, {"t#1": "id"}, ()).safe


@pytest.mark.spark
def test_results_and_recaptures_match_spark(tmp_path: Path, capsys: Capsys, spark: Any) -> None:
    cli = constrained_cli(tmp_path, capsys, is_checked=True)
    cli.good("capture")
    for batch in (rows((2, 3, 5), (3, 22, 40)), rows((4, 15, 130))):
        write_deltalake(str(tmp_path / "t"), batch, mode="append")
        cli.good("maintain")
    cli.verified()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
@BY_CHECK_OR_STATISTICS
def test_nan_does_not_break_nonnegative_doubles(
    tmp_path: Path, capsys: Capsys, spark: Any, is_checked: bool
) -> None:
    """NaN is the greatest value, so a sum without it never exceeds the one with it."""
    cli = constrained_cli(tmp_path, capsys, is_checked=is_checked, data=doubles(CHECKED_ROWS, 50.0))
    captured = cli.good("capture").results
    assert {r["query"]: sketch_of_t(r) for r in captured} == dict.fromkeys(QUERIES, [0, 1])
    assert {bool(r["assumptions"]) for r in captured} == {not is_checked}
    # A file with only NaN has no bounds in the log, and so no usable statistics.
    for batch in (rows((3, 2, 7), (5, 22, 1)), rows((1, 15, 0), (1, 15, 0))):
        write_deltalake(str(tmp_path / "t"), doubles(batch, math.nan), mode="append")
        cli.good("maintain")
        cli.verified(is_exact=False)
    if not is_checked:
        write_deltalake(str(tmp_path / "t"), doubles(batch, -5e-324), mode="append")
        ran = cli("maintain", "--policy", "incremental")
        assert ran.code == 7, ran.document


def doubles(table: pa.Table, last: float) -> pa.Table:
    """The table with `x` a DOUBLE, and `last` in its last row."""
    x = [*map(float, table["x"].to_pylist()[:-1]), last]
    return table.set_column(2, "x", pa.array(x, pa.float64()))


Row = tuple[int, int, int | None]
Action = dict[str, Any]

PROTOCOL_QUERIES: dict[str, tuple[str, Callable[[int], bool] | None]] = {
    "more": ("SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 50", lambda s: s > 50),
    "less": ("SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) < -50", lambda s: s < -50),
    "all": ("SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING MIN(x) IS NOT NULL", None),
}
_OF_7 = {"minReaderVersion": 1, "minWriterVersion": 7}
_PROTOCOLS: tuple[Mapping[str, Any], ...] = (
    *({"minReaderVersion": 1, "minWriterVersion": writer} for writer in (1, 2, 3, 4)),
    *(
        {**_OF_7, "writerFeatures": [one]}
        for one in ("appendOnly", "checkConstraints", "invariants")
    ),
)
_CHECKS = ("x >= 0", "x <= 0", "x > -5", "x IS NOT NULL AND x >= 0", "x >= 0 OR g > 1")


class HandWrittenTable(Struct, dict=True):
    """A table whose log entries and files are written by the test."""

    folder: Path
    rng: random.Random
    rows: list[Row] = field(default_factory=list)
    version: int = -1

    def create(self) -> None:
        rng = self.rng
        actions: list[Action] = [self.protocol(), self.any_metadata()]
        if rng.random() < 0.8:
            actions.append(self.file(self.good_rows()))
        self.commit(actions)

    def step(self) -> None:
        """Add rows that satisfy or violate the constraints, or change protocol or metadata."""
        match self.rng.randrange(6):
            case 0:
                self.commit([self.protocol()])
            case 1:
                self.commit([self.any_metadata()])
            case 2 | 3:
                self.commit([self.file(self.good_rows())])
            case _:
                self.commit([self.file(self.any_rows())])

    def commit(self, actions: list[Action]) -> None:
        self.version += 1
        handmade.commit(self.folder, self.version, *actions)

    def protocol(self, writer: int | None = None) -> Action:
        """A protocol action with this writer version, or a random one."""
        if writer is None:
            return {"protocol": self.rng.choice(_PROTOCOLS)}
        return {"protocol": {"minReaderVersion": 1, "minWriterVersion": writer}}

    def any_metadata(self) -> Action:
        rng = self.rng
        return self.metadata(
            constraint=rng.choice(_CHECKS) if rng.random() < 0.7 else None,
            invariant=rng.choice(_CHECKS) if rng.random() < 0.3 else None,
            is_required=rng.random() < 0.3,
        )

    def metadata(
        self,
        *,
        constraint: str | None = None,
        invariant: str | None = None,
        is_required: bool = False,
    ) -> Action:
        """A metadata action with constraints on the column `x`."""
        invariants = {} if invariant is None else {"delta.invariants": _invariant(invariant)}
        fields = [
            handmade.field("g", "long"),
            handmade.field("id", "long"),
            handmade.field("x", "long", nullable=not is_required, **invariants),
        ]
        configuration = {} if constraint is None else {"delta.constraints.c": constraint}
        return handmade.metadata(fields, configuration=configuration)

    def good_rows(self) -> list[Row]:
        sign = self.rng.choice((1, 1, -1))
        return [(g, id, sign * abs(x or 0)) for g, id, x in self.any_rows()]

    def any_rows(self) -> list[Row]:
        rng = self.rng
        values = (100, 90, 60, 30, -60, -100, 0, None)
        return [
            (rng.randrange(3), rng.randrange(30), rng.choice(values))
            for _ in range(rng.randint(1, 4))
        ]

    def file(self, rows: Sequence[Row], *, has_statistics: bool | None = None) -> Action:
        self.rows += rows
        columns = [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)]
        table = pa.table(dict(zip(("g", "id", "x"), columns, strict=True)))
        name = handmade.write_file(self.folder, f"part-{self.version + 1}.parquet", table)
        size = (self.folder / name).stat().st_size
        # Without row counts, Spark would do the capture.
        if has_statistics is None:
            has_statistics = self.rng.random() < 0.6
        statistics = _statistics(table) if has_statistics else handmade.stats(len(table))
        return handmade.add(name, len(table), size, stats=statistics)


def _invariant(condition: str) -> str:
    return json.dumps({"expression": {"expression": condition}})


def _statistics(table: pa.Table) -> str:
    columns = {name: table[name].to_pylist() for name in table.column_names}
    non_null = {name: [v for v in values if v is not None] for name, values in columns.items()}
    limits = {name: (min(values), max(values)) for name, values in non_null.items() if values}
    nulls = {name: values.count(None) for name, values in columns.items()}
    return handmade.stats(len(table), nulls, **limits)


def expected(rows: list[Row], name: str) -> Counter[tuple[int, int | None]]:
    groups: dict[int, list[int]] = defaultdict(list)
    for g, _, x in rows:
        groups[g] += [] if x is None else [x]
    passes = PROTOCOL_QUERIES[name][1]
    sums = ((g, sum(values)) for g, values in groups.items() if values)
    return Counter((g, s) for g, s in sums if passes is None or passes(s))


def protocol_cli(folder: Path, capsys: Capsys) -> Cli:
    """A CLI for the queries over the table `t` in the folder."""
    queries = {name: sql for name, (sql, _) in PROTOCOL_QUERIES.items()}
    partitions = {"t": {"id": {"boundaries": [10, 20]}}}
    return Cli.asking(capsys, folder, queries, partitions=partitions)


def run_case(folder: Path, capsys: Capsys, seed: int) -> Iterator[str]:
    """Capture and maintain sketches over a random table; compare each result and yield outcomes."""
    rng = random.Random(seed)
    table = HandWrittenTable(folder / "t", rng)
    table.create()
    cli = protocol_cli(folder, capsys)
    captured = {r["query"] for r in cli("capture").document["results"]}
    yield from (f"captured {name}" for name in captured)
    for _ in range(3):
        for name in PROTOCOL_QUERIES:
            ran = cli("query", "--query", name, "--by", "engine", "--sketch", "always")
            if ran.code:
                yield f"refused: {ran.error['code']}"
                continue
            (result,) = ran.results
            answer = Counter((row[0], row[1]) for row in result["rows"])
            assert answer == expected(table.rows, name), (seed, name, table.version)
            is_read = name in captured and not result["unused_sketches"]
            yield "read through a sketch" if is_read else "read whole"
        table.step()
        cli("maintain")


@random_cases(2, 6, 2500, also="1 20")
def test_random_protocols(cases: Collection[int], tmp_path: Path, capsys: Capsys) -> None:
    counts: Counter[str] = Counter()
    for seed in cases:
        folder = tmp_path / str(seed)
        folder.mkdir()
        counts.update(run_case(folder, capsys, seed))
    assert counts["captured all"] == len(cases), counts
    assert counts["read through a sketch"] > len(cases), counts
    assert counts["captured more"] > len(cases) // 4, counts


def test_constraint_without_protocol(tmp_path: Path, capsys: Capsys) -> None:
    """With writer version 1 or 2, delta-rs inserts rows that violate constraints."""
    table = HandWrittenTable(tmp_path / "t", Random(0))
    rows = table.file([(1, 1, 100), (2, 2, 90), (1, 12, -60)], has_statistics=True)
    table.commit([table.protocol(2), table.metadata(constraint="x >= 0"), rows])
    cli = protocol_cli(tmp_path, capsys)
    assert cli("capture", "--query", "more").refusal == UNSAFE
    assert cli.one("query", "--query", "more", "--by", "engine")["rows"] == [[2, 90]]


@pytest.mark.parametrize("has_statistics", [True, False])
def test_broken_constraint(tmp_path: Path, capsys: Capsys, has_statistics: bool) -> None:
    table = HandWrittenTable(tmp_path / "t", Random(0))
    first = table.file([(1, 1, 100), (2, 2, 90)], has_statistics=has_statistics)
    table.commit([table.protocol(3), table.metadata(constraint="x >= 0"), first])
    cli = protocol_cli(tmp_path, capsys)
    captured = cli.one("capture", "--query", "more")
    assert captured["assumptions"] == ([] if has_statistics else ["`t.x` >= 0"])
    table.commit([table.file([(1, 12, -60)], has_statistics=has_statistics)])
    assert cli("maintain", "--query", "more", "--policy", "incremental").code != 0
    arguments = ("query", "--query", "more", "--by", "engine", "--sketch", "never")
    assert cli.one(*arguments)["rows"] == [[2, 90]]


def test_column_mapping_needs_its_protocol(tmp_path: Path, capsys: Capsys) -> None:
    table = HandWrittenTable(tmp_path / "t", Random(0))
    metadata = table.metadata()
    metadata["metaData"]["configuration"]["delta.columnMapping.mode"] = "name"
    rows = table.file([(1, 1, 100)], has_statistics=True)
    table.commit([table.protocol(2), metadata, rows])
    ran = protocol_cli(tmp_path, capsys)("capture", "--query", "more")
    assert ran.refusal == (3, "column_mapping_mode")
