"""Random plans, queries, answers and uses of sketches on real tables, with Spark as the oracle."""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec import Struct

from impctl.service import fill as loading
from impctl.sketch.sketch import RangePartition
from impctl.tables.write.maintenance import create_table
from tests.behaviour.spark_trials import AnswerTally, SparkTally, run_answers, run_case
from tests.support.kept_workload import stored
from tests.support.random_cases import random_cases
from tests.support.random_queries import (
    FIRST_ROWS,
    PARTITIONS,
    QUERIES,
    Row,
    random_change,
    random_row,
    random_sql,
    rows,
    table_of,
)
from tests.support.run_cli import Capsys, Cli

_TINY = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}
"""Planning and compiling cost more than a few rows do."""


@pytest.fixture
def tiny(spark: Any) -> Iterator[Any]:
    """The session, made for rows that can be counted by hand."""
    before = {key: spark.conf.get(key, None) for key in _TINY}
    for key, value in _TINY.items():
        spark.conf.set(key, value)
    yield spark
    for key, value in before.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)


@pytest.mark.spark
@random_cases(9, 20, 100, all_when_long=True)
def test_a_sketch_changes_no_answer(tiny: Any, cases: range) -> None:
    tally = SparkTally()
    for seed in cases:
        run_case(tiny, seed, tally)
    assert tally.undecided == []
    assert tally.failed <= len(cases) // 20
    assert tally.judged > len(cases) // 3
    assert min(tally.reused, tally.checked, tally.barriers) > len(cases) // 20


@pytest.mark.spark
@pytest.mark.slow
@random_cases(25, 25, 300)
def test_random_answers_are_sparks(spark: Any, cases: range) -> None:
    tally = AnswerTally()
    for seed in cases:
        run_answers(spark, seed, tally)
    assert tally.run > len(cases) * 3 // 4
    assert tally.kept > len(cases) // 4
    assert tally.ordered > len(cases) // 2
    # Spark may fail on a row that the engine need not look at; then there is no answer to compare.
    assert len(tally.unnoticed) <= len(cases) // 50


CASES = 8 * int(os.environ.get("IMPCTL_FUZZ", "1"))
BATCHES = 2


def written(folder: Path, capsys: Capsys, case: int, sql: str, partition: RangePartition) -> Cli:
    column, scale = partition.attribute, partition.type.scale
    # As the workload file writes them.
    boundaries = [
        value / 10**scale if scale and not isinstance(value, str) else value
        for value in partition.boundaries
    ]
    return Cli.asking(
        capsys,
        folder,
        {"q": {"sql": sql, "sketch": {"t": column}}},
        {"t": {"path": f"t{case}"}},
        f"w{case}.yaml",
        partitions={"t": {column: {"boundaries": boundaries}}},
        store=f".impctl/{case}",
    )


def changed(table: str, rows: list[Row], rng: random.Random) -> None:
    """One batch: an append where only rows come, else the whole table written anew."""
    change, weights = random_change(rng, rows)
    if change and all(weight > 0 for weight in weights):
        write_deltalake(table, table_of(change), mode="append")
    else:
        write_deltalake(table, table_of(rows), mode="overwrite")


def was_unsure(folder: Path, case: int) -> bool:
    """Whether some group was ever kept because a sum of doubles was too close to call."""
    return bool(stored(folder, "q", f".impctl/{case}").state_meta.get("unsure"))


def safe_workload(
    capsys: Capsys, folder: Path, case: int, sql: str, rng: random.Random
) -> Cli | None:
    """The query with some partition it is safe on; None where there is none."""
    for partition in rng.sample(PARTITIONS, len(PARTITIONS)):
        cli = written(folder, capsys, case, sql, partition)
        if cli("capture", "--dry-run").code == 0:
            return cli
    return None


def one_case(case: int, folder: Path, capsys: Capsys) -> str:
    rng = random.Random(1_000_000 + case)
    sql = random_sql(rng)
    rows = [random_row(rng) for _ in range(rng.randint(0, 12))]
    table = str(folder / f"t{case}")
    create_table(table, table_of(rows))
    cli = safe_workload(capsys, folder, case, sql, rng)
    if cli is None:
        return "unsafe on every attribute"
    label = f"case {case}: {cli.workload.read_text()}"
    mode = str(cli.good("capture").results[0]["mode"])
    for _ in range(BATCHES):
        changed(table, rows, rng)
        ran = cli("maintain")
        if ran.code == 3 and ran.error["code"] == "sketch_unsafe":
            return "a fact was broken, and nothing else is safe"
        (maintained,) = ran.results
        assert maintained["action"] in (mode, "none"), (label, maintained)
        verified = cli.one("verify", "--results")
        assert verified["covers"], (label, verified)
        is_exact = mode == "exact" and not was_unsure(folder, case)
        assert not is_exact or verified["slack"] == 0, (label, verified, rows)
        assert verified["results_equal"] is True, (label, verified, rows)
    return mode


@pytest.mark.spark
@pytest.mark.slow
def test_maintained_equals_recaptured_in_spark(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    seen: Counter[str] = Counter()
    for case in range(CASES):
        # Every second one is captured from partial aggregates of Spark.
        monkeypatch.setattr(loading, "_LARGEST_LOAD", -1 if case % 2 else 1000)
        seen[one_case(case, tmp_path, capsys)] += 1
    assert seen["exact"] >= CASES // 3, seen


SCHEMA = pa.schema(
    {"g": pa.int64(), "h": pa.int64(), "x": pa.int64(), "d": pa.float64(), "s": pa.string()}
)
CONDITIONS = (
    *("", "", " WHERE h < 15", " WHERE x > 0", " WHERE d >= 5 AND g < 50"),
    " WHERE g BETWEEN 3 AND 40 OR h = 2",
)
UsedRow = tuple[int | None, int, int, float | None, str | None]


class RandomUse(Struct, frozen=True):
    """The files of a table, one query over it, and how many ranges are asked for, if any."""

    files: tuple[pa.Table, ...]
    sql: str
    ranges: int | None


def random_use(seed: int) -> RandomUse:
    rng = Random(f"use {seed}")
    rows = _rows(rng)
    size = max(1, len(rows) // rng.choice((1, 7, 40)))
    files = [rows[at : at + size] for at in range(0, len(rows), size)]
    ranges = rng.choice((None, 5, 40, 300))
    return RandomUse(tuple(map(table_of_used_rows, files)), _sql(rng), ranges)


def table_of_used_rows(rows: list[UsedRow]) -> pa.Table:
    return pa.table(list(map(list, zip(*rows, strict=True))), schema=SCHEMA)


def _rows(rng: Random) -> list[UsedRow]:
    groups = rng.choice((10, 60, 200))
    rows = [_row(rng, groups) for _ in range(rng.choice((50, 400)))]
    order = rng.choice(("g", "nearly", "h", "none"))
    if order in ("g", "nearly"):
        rows.sort(key=lambda row: -1 if row[0] is None else row[0])
    if order == "h":
        rows.sort(key=lambda row: row[1])
    if order == "nearly":
        for _ in range(len(rows) // 20):
            one, other = rng.randrange(len(rows)), rng.randrange(len(rows))
            rows[one], rows[other] = rows[other], rows[one]
    return rows


def _row(rng: Random, groups: int) -> UsedRow:
    group = rng.randrange(groups) if rng.random() > 0.03 else None
    number: float | None = float(rng.randint(-3, 40))
    if rng.random() < 0.05:
        number = rng.choice((math.nan, None))
    text = None if group is None else f"k{group:03}"
    return group, rng.randint(-3, 20), rng.randint(0, 6), number, text


def _sql(rng: Random) -> str:
    key, other = rng.choice("gshd"), rng.choice("gh")
    where = rng.choice(CONDITIONS)
    grouped = f"SELECT {key}, COUNT(*) AS n FROM t{where} GROUP BY {key} HAVING"
    shared = rng.choice("gh")
    if rng.random() < 0.3:
        return rng.choice(_with_subqueries(rng, grouped, key, shared))
    return rng.choice(
        (
            f"{grouped} {_having(rng)}",
            f"{grouped} {_having(rng)} AND {_having(rng)}",
            f"WITH c AS (SELECT * FROM t{where}) SELECT p.{shared}, q.n"
            f" FROM (SELECT {shared} FROM c GROUP BY {shared} HAVING {_having(rng)}) p"
            f" JOIN (SELECT {other}, COUNT(*) AS n FROM c GROUP BY {other}"
            f" HAVING {_having(rng)}) q ON p.{shared} = q.{other}",
            f"SELECT p.g, q.n FROM (SELECT g FROM t{where} GROUP BY g HAVING {_having(rng)}) p"
            f" JOIN (SELECT g, COUNT(*) AS n FROM t GROUP BY g HAVING {_having(rng)}) q"
            " ON p.g = q.g",
            f"SELECT g, x, h FROM t{where or ' WHERE x > 3'}",
            f"SELECT {other}, SUM(x) AS s FROM t{where} GROUP BY {other}"
            f" ORDER BY s DESC, {other} LIMIT 5",
        )
    )


def _with_subqueries(rng: Random, grouped: str, key: str, shared: str) -> tuple[str, ...]:
    """Subqueries of one value, and IN and EXISTS under OR."""
    few = rng.choice((" WHERE x > 4", " WHERE h < 3", " WHERE h > 90", " WHERE g = 3"))
    value = rng.choice(("AVG(x)", "MAX(h)", "COUNT(*)", "MIN(x)"))
    sign = rng.choice("<>")
    return (
        f"{grouped} {_having(rng)} OR {key} IN (SELECT {key} FROM t{few})",
        f"SELECT g, x, h FROM t{few} OR EXISTS (SELECT 1 FROM t u WHERE u.{shared} = t.h AND"
        " u.x > 5)",
        f"SELECT g, x, h FROM t WHERE x {sign} 1 + (SELECT {value} FROM t{few})",
        f"{grouped} SUM(x) {sign} 2 * (SELECT {value} FROM t{few})",
        f"SELECT {key}, (SELECT DISTINCT h FROM t WHERE h = 3) AS one, SUM(x) AS s FROM t"
        f" GROUP BY {key} HAVING {_having(rng)}",
        f"SELECT g, x FROM t WHERE x {sign} 0.5 * (SELECT AVG(x) FROM t u WHERE u.{shared} ="
        f" t.{shared})",
        f"SELECT {value} AS n FROM t{few} ORDER BY n LIMIT 3",
    )


def _having(rng: Random) -> str:
    bound = rng.randint(1, 12)
    return rng.choice(
        (
            f"COUNT(*) < {bound}",
            f"COUNT(*) > {bound}",
            f"SUM(x) BETWEEN {bound} AND {bound + 8}",
            f"SUM(x) > {bound}",
            f"AVG(x) < {bound / 2}",
            f"MIN(x) = {bound % 4}",
            f"MAX(d) > {bound}",
            f"COUNT(DISTINCT x) = {bound % 4}",
        )
    )


def arriving(seed: int, files: tuple[pa.Table, ...]) -> Iterator[pa.Table]:
    """A few rows more, now and then."""
    rng = Random(f"arriving {seed}")
    if rng.random() < 0.5:
        rows = pa.concat_tables(files)
        yield rows.take([rng.randrange(rows.num_rows) for _ in range(9)])


def judge(folder: Path, seed: int, capsys: Capsys) -> dict[str, Any] | None:
    """The result through the sketch, None where none can be captured; AssertionError if wrong."""
    case = random_use(seed)
    path = folder / str(seed)
    path.mkdir()
    create_table(str(path / "t"), case.files[0])
    for file in case.files[1:]:
        write_deltalake(str(path / "t"), file, mode="append")
    ranges = {name: {"ranges": case.ranges} for name in "ghsd"}
    partitions = {} if case.ranges is None else {"t": ranges}
    cli = Cli.asking(capsys, path, {"q": case.sql}, partitions=partitions)
    if code := cli("capture").code:
        assert code == 3, "refused, and nothing else"
        return None
    for own_rows in arriving(seed, case.files):
        write_deltalake(str(path / "t"), own_rows, mode="append")
    plain = cli.one("query", "--sketch", "never")
    for choice in ("auto", "always"):
        result = cli.one("query", "--sketch", choice)
        assert sorted(map(repr, result["rows"])) == sorted(map(repr, plain["rows"])), case.sql
    return result


@pytest.mark.spark
@random_cases(1, 1, 6, first=8)
def test_the_answer_is_the_same(tmp_path: Path, capsys: Capsys, cases: range) -> None:
    match = [judge(tmp_path, case, capsys) for case in cases]
    captured = [result for result in match if result is not None]
    assert len(captured) > len(cases) // 2
    assert any(result["files_kept"] < result["files_total"] for result in captured)


BOUNDED = {
    "least": "SELECT g, MIN(x) m FROM t WHERE s <> 'b' GROUP BY g HAVING MIN(x) < 2",
    "greatest": QUERIES["extremes"],
    "bounded_rows": FIRST_ROWS["top_skipping"],
    "bounded_groups": FIRST_ROWS["numbered"],
    "bounded_below": FIRST_ROWS["top_joined"],
}
PARTS = {
    # No sketch of a full join is safe.
    "operators": {name: sql for name, sql in QUERIES.items() if name != "full"},
    "below": {name: sql for name, sql in FIRST_ROWS.items() if name.startswith("top")},
    "ranked": {name: sql for name, sql in FIRST_ROWS.items() if not name.startswith("top")},
    "bounded": {name: {"sql": sql, "buffer": 1} for name, sql in BOUNDED.items()},
}
ROUNDS = 2 * int(os.environ.get("IMPCTL_FUZZ", "1"))
"""By hand: `IMPCTL_FUZZ=3` for six."""


def opened(tmp_path: Path, capsys: Capsys, part: str) -> Cli:
    rng = random.Random(5)
    create_table(str(tmp_path / "t"), rows(rng, 40, is_left=True))
    create_table(str(tmp_path / "u"), rows(rng, 12, is_left=False))
    partitions = {
        "t": {"g": {"boundaries": [1, 2, 3, 4]}, "x": {"boundaries": [0, 1, 2, 3]}},
        "u": {"g": {"boundaries": [1, 3]}, "y": {"boundaries": [0, 2]}},
    }
    return Cli.asking(capsys, tmp_path, PARTS[part], "tu", partitions=partitions)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_all_is_exact_and_right(tmp_path: Path, capsys: Capsys, spark: Any, part: str) -> None:
    cli = opened(tmp_path, capsys, part)
    captured = cli.good("capture").results
    assert {r["query"]: r["mode"] for r in captured} == dict.fromkeys(PARTS[part], "exact")
    rng = random.Random(11)
    refilled = 0
    for turn in range(ROUNDS):
        write_deltalake(str(tmp_path / "t"), rows(rng, 6, is_left=True), mode="append")
        if turn % 2 == 0:
            write_deltalake(str(tmp_path / "u"), rows(rng, 3, is_left=False), mode="append")
        if turn % 3 != 2:
            best = "x = 5" if turn == 0 else f"g = {rng.randrange(6)}"
            DeltaTable(str(tmp_path / "t")).delete(best)
            DeltaTable(str(tmp_path / "u")).update(updates={"y": "y + 1"}, predicate="g < 2")
        for result in cli.good("maintain").results:
            assert result["action"] in ("exact", "none"), result
            refilled += result["refilled_groups"]
        if turn % 2:
            # Where ORDER BY leaves ties, two runs may answer differently.
            cli.verified(may_tie="top_counted")
    assert (refilled > 0) == (part == "bounded")
