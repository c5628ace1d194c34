"""Random queries on real Delta tables: capture and recapture in Spark, maintenance in between.

The counterpart of tests/circuits/test_against_reference.py with Spark as the oracle: after every
batch the maintained sketch covers the recaptured one, equals it unless a sum of doubles was too
close to call, and the query gives the same with its sketch as without.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake

from impctl.service import fill as loading
from impctl.sketch.partition import RangePartition
from impctl.store.store import Store
from impctl.tables.write.maintenance import create_table
from tests.support.random_queries import (
    PARTITIONS,
    Row,
    random_change,
    random_row,
    random_sql,
    table_of,
)
from tests.support.run_cli import Capsys, Cli

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CASES = 8 * int(os.environ.get("IMPCTL_FUZZ", "1"))
BATCHES = 2

WORKLOAD = """\
version: 1
tables:
  t: {{path: {path}}}
partitions:
  t:
    {column}: {{boundaries: {boundaries}}}
queries:
  q:
    sql: >-
      {sql}
    sketch: {{t: {column}}}
store: {store}
"""


def boundaries_of(partition: RangePartition) -> str:
    """The partition's boundaries as the workload file writes them."""
    scale = partition.type.scale
    values = [
        f'"{value}"' if isinstance(value, str) else str(value / 10**scale if scale else value)
        for value in partition.boundaries
    ]
    return f"[{', '.join(values)}]"


def written(folder: Path, case: int, sql: str, partition: RangePartition) -> Path:
    file = folder / f"w{case}.yaml"
    text = WORKLOAD.format(
        path=f"t{case}",
        column=partition.attribute,
        boundaries=boundaries_of(partition),
        sql=sql,
        store=f".impctl/{case}",
    )
    file.write_text(text)
    return file


def changed(table: str, rows: list[Row], rng: random.Random) -> None:
    """One batch: an append where only rows come, else the whole table written anew."""
    change, weights = random_change(rng, rows)
    if change and all(weight > 0 for weight in weights):
        write_deltalake(table, table_of(change), mode="append")
    else:
        write_deltalake(table, table_of(rows), mode="overwrite")


def was_unsure(folder: Path, case: int) -> bool:
    """Whether some group was ever kept because a sum of doubles was too close to call."""
    with Store.open(folder / ".impctl" / str(case), create=False) as store:
        stored = store.load("q")
    assert stored is not None
    return bool(stored.state_meta["unsure"])


def safe_workload(
    capsys: Capsys, folder: Path, case: int, sql: str, rng: random.Random
) -> Cli | None:
    """The query with some partition it is safe on; None where there is none."""
    for partition in rng.sample(PARTITIONS, len(PARTITIONS)):
        cli = Cli(capsys, written(folder, case, sql, partition))
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
        (verified,) = cli.good("verify", "--results").results
        assert verified["covers"], (label, verified)
        is_exact = mode == "exact" and not was_unsure(folder, case)
        assert not is_exact or verified["slack"] == 0, (label, verified, rows)
        assert verified["results_equal"] is True, (label, verified, rows)
    return mode


def test_maintained_equals_recaptured_in_spark(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    seen: dict[str, int] = {}
    for case in range(CASES):
        # Every second one is captured from partial aggregates of Spark.
        monkeypatch.setattr(loading, "_LARGEST_LOAD", -1 if case % 2 else 1000)
        outcome = one_case(case, tmp_path, capsys)
        seen[outcome] = seen.get(outcome, 0) + 1
    assert seen.get("exact", 0) >= CASES // 3, seen
