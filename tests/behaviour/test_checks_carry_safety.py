"""Barriers whose safety rests on a CHECK constraint keep their rows, as they do by statistics.

The totals of three groups are 100, 90 and 80, so the first two need the ranges 0 and 1 of `id`,
whatever is made of them above; range 1 alone shows 90 and 30. With the fact from statistics all
this was right; with a CHECK the core plan was judged without it, and had no barriers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.compile.compile import choose_way
from impctl.data.schema import LONG, Column, Schema
from impctl.errors import InvariantError
from impctl.rules.optimize import apply_rules, core_of
from impctl.safety.judge import Fact, FactKind, FactSource, carried, check_safety
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import Mode
from impctl.sql.statement import parse_query
from impctl.store.store import Store
from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Capsys, Cli

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
    g, at, x = (pa.array(list(column), pa.int64()) for column in zip(*values, strict=True))
    return pa.table({"g": g, "id": at, "x": x})


ROWS = rows((1, 1, 100), (2, 11, 90), (3, 12, 30), (3, 21, 50))


def opened(folder: Path, capsys: Capsys, *, is_checked: bool, data: pa.Table = ROWS) -> Cli:
    """The tables, `x` told not to be negative by a CHECK or by statistics alone."""
    path = str(folder / "t")
    create_table(path, data)
    create_table(str(folder / "u"), pa.table({"g": pa.array([2, 3], pa.int64())}))
    if is_checked:
        DeltaTable(path).alter.add_constraint({"c": "x >= 0"})
    lines = [
        "version: 1",
        "tables: {t: {path: t}, u: {path: u}}",
        "partitions: {t: {id: {boundaries: [10, 20]}}}",
        "queries:",
        *(f'  {n}: {{sql: "{sql}", sketch: {{t: id}}}}' for n, sql in QUERIES.items()),
        "store: .impctl",
    ]
    return Cli.over(capsys, folder, "\n".join(lines) + "\n")


def sketch_of_t(result: Mapping[str, Any]) -> list[int]:
    (sketch,) = [entry for entry in result["sketches"] if entry["table"] == "t"]
    return list(sketch["fragments"])


def stored(folder: Path) -> dict[str, list[int]]:
    """The stored ranges of `id`, by query."""
    with Store.open(folder / ".impctl", create=False) as store:
        kept = {name: store.load(name) for name in QUERIES}
    return {
        name: list(sketch.fragments)
        for name, query in kept.items()
        if query is not None
        for sketch in query.sketches
        if sketch.partition.table == "t"
    }


BY = pytest.mark.parametrize("is_checked", [True, False], ids=["check", "statistics"])


@pytest.mark.slow
@BY
def test_a_capture_keeps_the_rows_of_a_barrier(
    tmp_path: Path, capsys: Capsys, is_checked: bool
) -> None:
    captured = opened(tmp_path, capsys, is_checked=is_checked).good("capture").results
    assert {r["query"]: sketch_of_t(r) for r in captured} == dict.fromkeys(QUERIES, [0, 1])
    assert {bool(r["assumptions"]) for r in captured} == {not is_checked}


@pytest.mark.slow
@BY
def test_a_maintained_sketch_keeps_them(tmp_path: Path, capsys: Capsys, is_checked: bool) -> None:
    data = rows((1, 1, 60), (2, 11, 90), (3, 21, 50))
    cli = opened(tmp_path, capsys, is_checked=is_checked, data=data)
    cli.good("capture")
    write_deltalake(str(tmp_path / "t"), rows((1, 2, 40), (3, 12, 30)), mode="append")
    assert {r["action"] for r in cli.good("maintain").results} == {"exact"}
    assert stored(tmp_path) == dict.fromkeys(QUERIES, [0, 1])


@pytest.mark.slow
@BY
def test_a_reuse_for_a_smaller_limit_has_them(
    tmp_path: Path, capsys: Capsys, is_checked: bool
) -> None:
    cli = opened(tmp_path, capsys, is_checked=is_checked)
    cli.good("capture", "--query", "joined")
    asked = QUERIES["joined"].replace("LIMIT 2", "LIMIT 1")
    (result,) = cli.good("rewrite", "--sql", asked).results
    assert result["reuse"]["query"] == "joined"
    assert sketch_of_t(result) == [0, 1]


CATALOG = {
    "t": Schema((Column("g", LONG), Column("id", LONG), Column("x", LONG))),
    "u": Schema((Column("g", LONG),)),
}
CHECK = Fact("t", "x", FactKind.NONNEGATIVE, FactSource.CONSTRAINT)


@pytest.mark.parametrize("name", QUERIES)
def test_a_verdict_carries_its_facts_and_an_unsafe_one_is_not_used(name: str) -> None:
    read = parse_query(QUERIES[name], CATALOG)
    query = replace(read, root=apply_rules(read.root))
    sketched = {"t#1": "id"}
    verdict = check_safety(query, sketched, [CHECK])
    assert (verdict.safe, verdict.facts, verdict.assumptions) == (True, (CHECK,), ())
    core = replace(query, root=core_of(read.root))
    inner = carried(verdict, core, sketched)
    assert inner.barriers == 1
    with pytest.raises(InvariantError):
        carried(replace(verdict, facts=()), core, sketched)
    ranges = {"t#1": RangePartition("t", "id", LONG, (10, 20))}
    assert choose_way(core.root, verdict, inner, ranges).mode is Mode.EXACT
    unsafe = check_safety(core, sketched, ())
    for both in ((verdict, unsafe), (unsafe, inner)):
        with pytest.raises(InvariantError):
            choose_way(core.root, *both, ranges)


NUMBERED = (
    "SELECT g, COUNT(*) n FROM (SELECT g, id, ROW_NUMBER() OVER (PARTITION BY id"
    " ORDER BY x DESC, g) r FROM t WHERE x >= 50) q WHERE r <= 1 GROUP BY g HAVING COUNT(*) < 2"
)
"""Numbered within the sketched column, then counted by another: over part of the rows too few."""


@pytest.mark.spark
def test_numbers_within_keys_may_be_grouped_by_other_columns(
    tmp_path: Path, capsys: Capsys, spark: Any
) -> None:
    cli = opened(tmp_path, capsys, is_checked=False)
    lines = cli.workload.read_text().splitlines()
    queries = lines.index("queries:")
    numbered = f'  numbered: {{sql: "{NUMBERED}", sketch: {{t: id}}}}'
    cli.workload.write_text("\n".join([*lines[: queries + 1], numbered, lines[-1]]) + "\n")
    (captured,) = cli.good("capture").results
    assert (captured["mode"], sketch_of_t(captured)) == ("exact", [0, 1, 2])
    table = DeltaTable(str(tmp_path / "t"))
    for predicate in ("id = 21", "id = 11"):
        table.delete(predicate)
        write_deltalake(table, rows((1, 12, 70), (3, 15, 60), (2, 22, 9)), mode="append")
        cli.good("maintain")
        assert len(cli.verified()) == 1


def test_which_ranks_are_barriers_does_not_depend_on_facts() -> None:
    query = parse_query(NUMBERED, CATALOG)
    query = replace(query, root=apply_rules(query.root))
    for facts in ((), (CHECK,)):
        verdict = check_safety(query, {"t#1": "id"}, facts)
        assert (verdict.safe, verdict.barriers) == (True, 1)
    kept = parse_query(
        NUMBERED.replace("COUNT(*) < 2", "SUM(x) > 2")
        .replace("g, id", "g, x, id")
        # A filter that tells the sign would be a fact of its own.
        .replace("x >= 50", "x >= -50"),
        CATALOG,
    )
    kept = replace(kept, root=apply_rules(kept.root))
    assert check_safety(kept, {"t#1": "id"}, (CHECK,)).barriers == 0
    assert not check_safety(kept, {"t#1": "id"}, ()).safe


@pytest.mark.spark
def test_answers_and_recaptures_in_spark_agree(tmp_path: Path, capsys: Capsys, spark: Any) -> None:
    cli = opened(tmp_path, capsys, is_checked=True)
    cli.good("capture")
    for batch in (rows((2, 3, 5), (3, 22, 40)), rows((4, 15, 130))):
        write_deltalake(str(tmp_path / "t"), batch, mode="append")
        cli.good("maintain")
    cli.verified()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
@BY
def test_nan_does_no_harm_to_a_double_that_is_never_negative(
    tmp_path: Path, capsys: Capsys, spark: Any, is_checked: bool
) -> None:
    """NaN is the greatest value: what lacks it is at most what has it, and so is a sum."""
    cli = opened(tmp_path, capsys, is_checked=is_checked, data=doubles(ROWS, 50.0))
    captured = cli.good("capture").results
    assert {r["query"]: sketch_of_t(r) for r in captured} == dict.fromkeys(QUERIES, [0, 1])
    assert {bool(r["assumptions"]) for r in captured} == {not is_checked}
    # A file of NaN alone has no bounds in the log, so that statistics would say nothing.
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
