"""Boundaries in the column's type, drift of ranges, and `--rebalance`."""

from __future__ import annotations

import math
import random
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.data.schema import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Column,
    Schema,
    SqlType,
    decimal,
    other,
)
from impctl.errors import Location, UsageError
from impctl.service.parameters import parsed
from impctl.service.partitions import candidates, is_partitionable, partition_of
from impctl.sketch.sketch import RangePartition
from impctl.store.store import Store
from impctl.types import ParameterValue
from impctl.workload.models import BoundaryLiteral, PartitionSpec
from tests.store.builders import sketches_at
from tests.support.kept_workload import stored
from tests.support.random_cases import random_cases
from tests.support.run_cli import Capsys, Cli, CliOf, CliOnce, refused, write_files

LOCATION = Location("w.yaml", 7, 5)


def fake_run(kind: SqlType, *boundaries: BoundaryLiteral, column: str = "a") -> Any:
    """The parts of a run that a partition is built from."""
    schema = Schema((Column("a", kind), Column("other", LONG)))
    spec = PartitionSpec("t", column, boundaries or None, None if boundaries else 4, LOCATION)
    tables = SimpleNamespace(snapshot=lambda table: SimpleNamespace(schema=schema))
    return SimpleNamespace(workload=SimpleNamespace(partitions=[spec]), tables=tables)


def partition(kind: SqlType, *boundaries: BoundaryLiteral) -> RangePartition:
    return partition_of(fake_run(kind, *boundaries), "t", "a")


EAST = timezone(timedelta(hours=2))
NOON = datetime(2022, 1, 17, 12)
MICROS = 1_642_420_800_000_000
DIGITS = "1234567890123456789012345678901234567.8"


@pytest.mark.parametrize(
    ("kind", "value", "canonical"),
    [
        *((BYTE, -128, -128), (SHORT, 32767, 32767), (INTEGER, 5, 5), (INTEGER, 5.0, 5)),
        *((INTEGER, "-7", -7), (LONG, 2**63 - 1, 2**63 - 1), (LONG, 1e3, 1000), (FLOAT, 0.5, 0.5)),
        *((DOUBLE, 1, 1.0), (DOUBLE, 0.1, 0.1), (DOUBLE, -1e308, -1e308), (decimal(10, 2), 5, 500)),
        *((decimal(10, 2), 1.25, 125), (decimal(10, 2), "1.20", 120)),
        (decimal(10, 2), "-0.010", -1),
        (decimal(38, 1), DIGITS, int(DIGITS.replace(".", ""))),
        *((decimal(38, 0), 10**38 - 1, 10**38 - 1), (STRING, "é😀", "é😀"), (STRING, "", "")),
        *((STRING, "1", "1"), (DATE, date(1970, 1, 1), 0), (DATE, date(1969, 12, 31), -1)),
        *((DATE, "2022-01-17", 19009), (TIMESTAMP, NOON, MICROS)),
        (TIMESTAMP, NOON.replace(tzinfo=UTC), MICROS),
        (TIMESTAMP, NOON.replace(tzinfo=EAST), MICROS - 7_200_000_000),
        (TIMESTAMP, "2022-01-17 12:00:00", MICROS),
        (TIMESTAMP, "2022-01-17T14:00:00+02:00", MICROS),
        (TIMESTAMP, date(2022, 1, 17), MICROS - 43_200_000_000),
        (TIMESTAMP, NOON.replace(microsecond=1), MICROS + 1),
        (TIMESTAMP, datetime(1969, 12, 31, 23, 59, 59, 999_999), -1),
        (TIMESTAMP_NTZ, NOON, MICROS),
        (TIMESTAMP_NTZ, "2022-01-17 12:00:00.000001", MICROS + 1),
        (TIMESTAMP_NTZ, date(1970, 1, 1), 0),
    ],
)
def test_boundary_has_canonical_form(
    kind: SqlType, value: BoundaryLiteral, canonical: int | float | str
) -> None:
    result = partition(kind, value)
    assert result == RangePartition("t", "a", kind, (canonical,))
    assert type(result.boundaries[0]) is type(canonical)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *((INTEGER, value) for value in (1.5, "one", "")),
        *((LONG, value) for value in (date(2022, 1, 17), NOON, "NaN")),
        *((DOUBLE, value) for value in ("x", date(2022, 1, 17))),
        *((decimal(10, 2), value) for value in (1.255, "0.001")),
        (decimal(10, 0), "1e-1"),
        *((STRING, value) for value in (5, 0.5, date(2022, 1, 17))),
        *((DATE, value) for value in (19009, NOON, "17.1.2022", "2022-02-30")),
        *((TIMESTAMP, value) for value in (1_642_420_800, "noon")),
        (TIMESTAMP_NTZ, 0.5),
    ],
)
def test_boundary_of_another_type_is_refused(kind: SqlType, value: BoundaryLiteral) -> None:
    with refused(UsageError, "boundary_type", r"is not a value of `t\.a`") as error:
        partition(kind, value)
    assert error.value.location == LOCATION
    assert str(kind) in str(error.value)


@pytest.mark.parametrize("kind", [INTEGER, decimal(10, 2)])
def test_one_wrong_boundary_is_refused(kind: SqlType) -> None:
    with pytest.raises(UsageError, match=r"2\.005"):
        partition(kind, 1, 2.005, 3)


def test_boundaries_are_ordered_by_column_type() -> None:
    assert partition(LONG, "9", "10").boundaries == (9, 10)
    with pytest.raises(UsageError, match="must increase"):
        partition(STRING, "9", "10")


def test_equal_boundaries_are_refused() -> None:
    with refused(UsageError, "boundaries_not_increasing"):
        partition(decimal(10, 2), "1.0", "1.00")


PARTITIONABLE = [BYTE, SHORT, INTEGER, LONG, FLOAT, DOUBLE, decimal(38, 2), STRING, DATE]
PARTITIONABLE += [TIMESTAMP, TIMESTAMP_NTZ]


@pytest.mark.parametrize("kind", PARTITIONABLE, ids=str)
def test_partitionable_columns(kind: SqlType) -> None:
    assert is_partitionable(Column("a", kind))
    assert candidates(fake_run(kind, column="A"), "t") == ("a",)


@pytest.mark.parametrize("kind", [BOOLEAN, BINARY, other("array<int>")], ids=str)
def test_unpartitionable_columns(kind: SqlType) -> None:
    assert not is_partitionable(Column("a", kind))
    with refused(UsageError, "column_not_partitionable") as error:
        candidates(fake_run(kind), "t")
    assert error.value.location == LOCATION


def test_unknown_column_is_refused() -> None:
    with refused(UsageError, "column_unknown", "no column `ohter`") as error:
        candidates(fake_run(LONG, column="ohter"), "t")
    assert (error.value.location, error.value.hint) == (LOCATION, "did you mean `other`?")


def test_candidates_of_other_tables_are_ignored() -> None:
    assert candidates(fake_run(LONG, column="nowhere"), "u") == ()


NOON_2024, WEST = datetime(2024, 1, 31, 12), timezone(timedelta(hours=-18))


@pytest.mark.parametrize(
    ("text", "example", "expected"),
    [
        *(("7000", 1, 7000), ("-1", 1, -1), ("+1", 1, 1), (str(2**63 - 1), 1, 2**63 - 1)),
        *(("0.75", Decimal(1), Decimal("0.75")), ("2", Decimal(1), Decimal(2))),
        *(("-.5", Decimal(1), Decimal("-0.5")), ("50", 1.0, 50.0), ("2.5e3", 1.0, 2500.0)),
        *(("TRUE", False, True), ("false", True, False), ("' OR 1=1", "x", "' OR 1=1")),
        *(("", "x", ""), ("7", "x", "7")),
        ("2024-02-29", date(2024, 1, 1), date(2024, 2, 29)),
        ("2024-01-31 12:00:00", NOON_2024, NOON_2024),
        ("2024-01-31T12:00:00Z", NOON_2024, NOON_2024.replace(tzinfo=UTC)),
        ("2024-01-31 12:00:00.5", NOON_2024, NOON_2024.replace(microsecond=500_000)),
        ("2024-01-31 12:00:00-18:00", NOON_2024, NOON_2024.replace(tzinfo=WEST)),
    ],
)
def test_valid_parameter_is_parsed(
    text: str, example: ParameterValue, expected: ParameterValue
) -> None:
    result = parsed(text, example)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("text", "example"),
    [
        *((value, 1) for value in ("", " 1", "1 ", "1.0", "1e3", "0x1", "1_0", "one", "NULL", "١")),
        (str(2**63), 1),
        ("9" * 30, 1),
        *((value, Decimal(1)) for value in ("", ".", "1e3", "NaN", "1" * 39, "0." + "1" * 39)),
        *((value, 1.0) for value in ("nan", "inf", "1e999", "1d", "")),
        *((value, True) for value in ("1", "yes", "")),
        *((value, date(2024, 1, 1)) for value in ("2024-02-30", "2024-1-1", "today", "20240101")),
        *((value, NOON_2024) for value in ("2024-01-31", "2024-01-31 25:00:00", "now")),
        *((f"2024-01-31 12:00:00{zone}", NOON_2024) for zone in ("+18:01", "-23:59", "+01:60")),
    ],
)
def test_invalid_parameter_is_none(text: str, example: ParameterValue) -> None:
    assert parsed(text, example) is None


QUERIES = {
    "grouped": "SELECT g, SUM(v) s FROM t GROUP BY g HAVING SUM(v) > 900",
    "keyed": "SELECT x, SUM(v) s FROM t GROUP BY x HAVING SUM(v) > 12",
    "doubles": "SELECT d, COUNT(*) n FROM t GROUP BY d HAVING COUNT(*) > 12",
    "rows": "SELECT x, v FROM t WHERE v > 7",
    "joined": "SELECT t.g, COUNT(*) n FROM t JOIN u ON t.g = u.g GROUP BY t.g HAVING COUNT(*) > 9",
    "touched": "SELECT x, percentile(v, 0.5) m FROM t GROUP BY x HAVING percentile(v, 0.5) > 5",
}
SKETCH_COLUMNS = {"doubles": "d"}


def rows(rng: random.Random, count: int, low: int, high: int) -> pa.Table:
    doubles = [None, math.nan, -0.0, 0.0, math.inf, *(v / 8 for v in range(low, high))]
    columns = {
        "x": pa.array(rng.choices([None, *range(low, high)], k=count), pa.int64()),
        "d": pa.array(rng.choices(doubles, k=count), pa.float64()),
        "g": pa.array(rng.choices(range(12), k=count), pa.int32()),
        "v": pa.array(rng.choices(range(10), k=count), pa.int64()),
    }
    return pa.table(columns)


@pytest.fixture
def cli(cli_of: CliOf) -> Cli:
    workload = {
        "partitions": {"t": {"x": {"ranges": 12}, "d": {"ranges": 12}}},
        "queries": {
            name: {"sql": sql, "sketch": {"t": SKETCH_COLUMNS.get(name, "x")}}
            for name, sql in QUERIES.items()
        },
    }
    u = pa.table({"g": pa.array(range(4), pa.int32())})
    return cli_of(workload, t=rows(random.Random(3), 300, 0, 60), u=u)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
def test_rebalanced_sketches_verify(cli: Cli, spark: Any) -> None:
    modes = {r["query"]: r["mode"] for r in cli.good("capture").results}
    assert modes == {**dict.fromkeys(QUERIES, "exact"), "touched": "touch"}
    rng = random.Random(4)
    for step in range(2):
        low = 60 + 90 * step
        cli.append("t", rows(rng, 400, low, low + 90))
        cli.table("t").delete(f"x > {10 * step} AND x < {10 * step + 25}")
        results = cli.good("maintain", "--imbalance", "2").results
        assert {r["action"] for r in results} == {"exact", "touch"}
        assert {r["query"] for r in results if r["ranges"]["drifted"]} >= {"grouped", "touched"}
        rebalanced = cli.by_query("capture", "--rebalance")
        assert {r["action"] for r in rebalanced.values()} == {"rebalance"}
        assert "derived" in rebalanced["grouped"]["reason"]
        assert "rows of split" not in rebalanced["keyed"]["reason"]
        assert "recaptured" in rebalanced["joined"]["reason"]
        cli.verified(may_slack="touched")
        cli.append("t", rows(rng, 20, 0, low + 90))
        assert {r["action"] for r in cli.good("maintain").results} == {"exact", "touch"}
        cli.verified(may_slack="touched")


WORKLOAD = """\
version: 1
tables: {{t: {{path: t}}}}
partitions: {{t: {{g: {{ranges: {ranges}}}}}}}
queries: {{q: {{sql: "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 100"}}}}
store: st
"""


def clustered_rows(rng: np.random.Generator, count: int) -> pa.Table:
    """Values clustered around three centers."""
    centre = rng.integers(0, 400, 3)
    g = rng.choice(centre, count) + rng.geometric(0.05, count)
    return pa.table({"g": g, "x": rng.integers(0, 20, count)})


def largest(folder: Path) -> int:
    """Row count of the largest range, computed from the table."""
    (sketch,) = stored(folder, "q", "st").sketches
    boundaries = np.array(sketch.partition.boundaries)
    values = DeltaTable(str(folder / "t")).to_pyarrow_table()["g"].to_numpy()
    return int(np.bincount(np.searchsorted(boundaries, values, side="right")).max())


@pytest.mark.slow
@random_cases(1, 2, 20)
def test_rebalance_never_grows_the_largest_range(
    tmp_path: Path, capsys: Capsys, cases: range
) -> None:
    improved = 0
    for seed in cases:
        rng, folder = np.random.default_rng(seed), tmp_path / str(seed)
        folder.mkdir()
        random_choice = random.Random(seed)
        write_deltalake(str(folder / "t"), clustered_rows(rng, 300))
        file = folder / "w.yaml"
        file.write_text(WORKLOAD.format(ranges=random_choice.choice([4, 12, 40])))
        cli = Cli(capsys, file)
        cli.good("capture")
        for _ in range(3):
            rows = clustered_rows(rng, random_choice.choice([10, 300]))
            write_deltalake(str(folder / "t"), rows, mode="append")
            # If fewer ranges are requested, the capture reduces them.
            file.write_text(WORKLOAD.format(ranges=random_choice.choice([2, 4, 12, 40])))
            cli.good("maintain")
            before = largest(folder)
            result = cli.one("capture", "--rebalance")
            improved += result["action"] == "rebalance" and largest(folder) < before
            assert largest(folder) <= before, (seed, result["reason"])
    assert improved


FILE = """
version: 1
tables: {t: {path: t}, e: {path: e}}
partitions:
  t: {x: {ranges: 8}, g: {boundaries: [2, 4]}}
  e: {x: {ranges: 8}}
queries:
  big: {sql: "SELECT g, SUM(v) s FROM t GROUP BY g HAVING SUM(v) > 100", sketch: {t: x}}
  kept: {sql: "SELECT x, v FROM t WHERE v > 7", sketch: {t: x}}
  fixed: {sql: "SELECT g, SUM(v) s FROM t GROUP BY g HAVING SUM(v) > 100", sketch: {t: g}}
  empty: {sql: "SELECT x FROM e WHERE v > 7", sketch: {e: x}}
store: .impctl
"""


def table(low: int, high: int) -> pa.Table:
    values = [None, *range(low, high)]
    columns = {
        "x": pa.array(values, pa.int64()),
        "g": pa.array([i % 7 for i in range(len(values))], pa.int32()),
        "v": pa.array([i % 10 for i in range(len(values))], pa.int64()),
    }
    return pa.table(columns)


@pytest.fixture
def drifting(cli_once: CliOnce) -> Cli:
    write = partial(write_files, workload=FILE, t=table(0, 100), e=table(0, 0))
    return cli_once("drifting", write, Cli.captured)


def drift(cli: Cli) -> dict[str, dict[str, Any]]:
    """Append rows beyond the last boundary and maintain."""
    cli.append("t", table(100, 600))
    return cli.by_query("maintain")


@pytest.mark.slow
def test_maintain_reports_drift_and_rebalance_fixes_it(drifting: Cli) -> None:
    big = drift(drifting)["big"]["ranges"]
    assert big["drifted"]
    assert big["imbalance"] > 4 * big["at_capture"]
    assert big["hint"] == "run `impctl capture --rebalance`"
    again = drifting.by_query("maintain")["big"]
    assert (again["action"], again["ranges"]) == ("none", big)

    rebalanced = drifting.by_query("capture", "--rebalance")
    assert rebalanced["big"]["action"] == rebalanced["kept"]["action"] == "rebalance"
    assert "state derived from the stored one and" in rebalanced["big"]["reason"]
    assert rebalanced["fixed"]["action"] == "none"
    assert "the workload file sets the `boundaries` of `t.g`" in rebalanced["fixed"]["reason"]
    for result in drifting.good("maintain").results:
        assert (result["action"], bool(result["ranges"]["drifted"])) == ("none", False), result
    status = drifting.one("status", "--query", "big")
    (ranges,) = status["ranges"]
    assert (ranges["table"], ranges["attribute"], ranges["ranges"]) == ("t", "x", 8)
    assert (ranges["rows"], ranges["hint"]) == (600, None)
    assert ranges["imbalance"] < 2
    assert status["last_action"] == "rebalance"


@pytest.mark.slow
def test_second_rebalance_does_nothing(drifting: Cli) -> None:
    drift(drifting)
    drifting.good("capture", "--rebalance", "--query", "big")
    again = drifting.one("capture", "--rebalance", "--query", "big")
    assert again["action"] == "none"
    assert again["reason"] == "splitting or merging ranges would not help"


def test_rebalance_maintains_stale_sketches_first(drifting: Cli) -> None:
    drifting.append("t", table(100, 600))
    big = drifting.one("capture", "--rebalance", "--query", "big")
    assert (big["action"], big["versions"]) == ("rebalance", {"t": 1})


@pytest.mark.slow
def test_earlier_versions_keep_their_ranges(drifting: Cli) -> None:
    def first_sketch() -> Any:
        with Store.open(drifting.folder / ".impctl") as store:
            return sketches_at(store, {"t": 0}, "big")

    drift(drifting)
    before, first_before = stored(drifting.folder, "big").sketches[0], first_sketch()
    drifting.good("capture", "--rebalance", "--query", "big")
    after = stored(drifting.folder, "big").sketches[0]
    assert first_sketch() == first_before is not None
    assert after.partition != before.partition
    old, new = (drifting.one("rewrite", "--query", "big", "--at", version) for version in "01")
    assert old["sketches"][0]["ranges"] == list(first_before[0].ranges.ids)
    assert old["sketches"][0]["total"] == first_before[0].partition.ranges
    assert new["sketches"][0]["ranges"] == list(after.ranges.ids)


def test_a_dry_run_writes_nothing(drifting: Cli) -> None:
    drift(drifting)
    before = drifting.good("status").results
    big = drifting.one("capture", "--rebalance", "--dry-run", "--query", "big")
    reason = "would even out `t.x`: of 8 ranges, 1 split and 7 merged with neighbors, 8 in total"
    assert (big["action"], big["reason"]) == ("none", reason)
    assert drifting.good("status").results == before


@pytest.mark.slow
def test_drift_threshold_is_a_setting(drifting: Cli) -> None:
    drift(drifting)
    big = drifting.one("status", "--query", "big", "--imbalance", "100")
    assert not big["ranges"][0]["drifted"]


@pytest.mark.slow
def test_rebalance_of_a_table_that_was_empty(drifting: Cli) -> None:
    """One range holds everything until it is split."""
    drifting.table("e").delete()
    drifting.append("e", table(0, 80))
    assert drifting.one("maintain", "--query", "empty")["ranges"]["drifted"]
    rebalanced = drifting.one("capture", "--rebalance", "--query", "empty")
    assert (rebalanced["action"], rebalanced["sketches"][0]["total"]) == ("rebalance", 8)


def test_rebalance_names_uncaptured_queries(drifting: Cli) -> None:
    drifting.edit("  empty:", '  new: {sql: "SELECT x FROM t WHERE v > 3"}\n  empty:')
    ran = drifting("capture", "--rebalance", "--query", "new", "--query", "big")
    assert ran.refusal == (7, "not_captured")
    assert [r["query"] for r in ran.results] == ["big"]
