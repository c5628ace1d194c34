"""Random plans, queries, results and sketch uses on real tables, with Spark as the oracle."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

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
"""For a few rows, planning and compiling cost the most."""


@pytest.fixture
def tiny_spark(spark: Any) -> Iterator[Any]:
    """The session, configured for tiny tables."""
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
def test_sketches_keep_results(tiny_spark: Any, cases: range) -> None:
    tally = SparkTally()
    for seed in cases:
        run_case(tiny_spark, seed, tally)
    assert tally.undecided == []
    assert tally.failed <= len(cases) // 20
    assert tally.judged > len(cases) // 4
    assert min(tally.reused, tally.checked, tally.barriers) > len(cases) // 20


@pytest.mark.spark
@pytest.mark.slow
@random_cases(25, 25, 300)
def test_random_results_match(spark: Any, cases: range) -> None:
    tally = AnswerTally()
    for seed in cases:
        run_answers(spark, seed, tally)
    assert tally.run > len(cases) * 3 // 4
    assert tally.kept > len(cases) // 4
    assert tally.ordered > len(cases) // 2
    # Spark may fail on a row that the engine does not evaluate; then there is nothing to compare.
    assert len(tally.unnoticed) <= len(cases) // 50


CASES = 8 * int(os.environ.get("IMPCTL_FUZZ", "1"))
BATCHES = 2


def case_cli(folder: Path, capsys: Capsys, case: int, sql: str, partition: RangePartition) -> Cli:
    column, scale = partition.attribute, partition.type.scale
    # As written in the workload file.
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


def change_table(table: str, rows: list[Row], rng: random.Random) -> None:
    """Change the table: append if rows are only inserted, else overwrite it."""
    change, weights = random_change(rng, rows)
    if change and all(weight > 0 for weight in weights):
        write_deltalake(table, table_of(change), mode="append")
    else:
        write_deltalake(table, table_of(rows), mode="overwrite")


def was_unsure(folder: Path, case: int) -> bool:
    """Whether a group was kept because its sum of doubles was too close to call."""
    return bool(stored(folder, "q", f".impctl/{case}").state_meta.get("unsure"))


def safe_workload(
    capsys: Capsys, folder: Path, case: int, sql: str, rng: random.Random
) -> Cli | None:
    """A CLI for the query with a partition it is safe on; None if there is none."""
    for partition in rng.sample(PARTITIONS, len(PARTITIONS)):
        cli = case_cli(folder, capsys, case, sql, partition)
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
        change_table(table, rows, rng)
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
def test_maintenance_equals_recapture(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    counts: Counter[str] = Counter()
    for case in range(CASES):
        # Odd cases are captured from partial aggregates of Spark.
        monkeypatch.setattr(loading, "_LARGEST_LOAD", -1 if case % 2 else 1000)
        counts[one_case(case, tmp_path, capsys)] += 1
    assert counts["exact"] >= CASES // 3, counts


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
"""`IMPCTL_FUZZ=3` runs six."""


def part_cli(tmp_path: Path, capsys: Capsys, part: str) -> Cli:
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
def test_all_exact_and_correct(tmp_path: Path, capsys: Capsys, spark: Any, part: str) -> None:
    cli = part_cli(tmp_path, capsys, part)
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
        if turn % 2 and part == "operators":
            # The random plans above compare results of these operators.
            for result in cli.good("verify").results:
                assert (result["covers"], result["slack"]) == (True, 0), result
        elif turn % 2:
            # If ORDER BY leaves ties, two runs may return different rows.
            cli.verified(may_tie="top_counted")
    assert (refilled > 0) == (part == "bounded")
