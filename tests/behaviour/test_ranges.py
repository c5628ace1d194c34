"""Proposed ranges at the limits of types, and ranges that are read without a filter."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.service import filters
from impctl.sketch.sketch import RangePartition, RangeSet, exact_filter, range_filter
from impctl.tables.rows import PartedRead, ReadPart
from impctl.tables.snapshot import Snapshot
from impctl.tables.statistics import prune
from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Capsys, Cli

LIMITS: dict[str, tuple[pa.DataType, Any, Any]] = {
    "byte": (pa.int8(), -(2**7), 2**7 - 1),
    "short": (pa.int16(), -(2**15), 2**15 - 1),
    "int": (pa.int32(), -(2**31), 2**31 - 1),
    "long": (pa.int64(), -(2**63), 2**63 - 1),
    "narrow": (pa.decimal128(3, 1), Decimal("-99.9"), Decimal("99.9")),
    "wide": (pa.decimal128(38, 2), Decimal("-" + "9" * 36 + ".99"), Decimal("9" * 36 + ".99")),
    "single": (pa.float32(), float("-inf"), float("inf")),
    "double": (pa.float64(), -1.7976931348623157e308, 1.7976931348623157e308),
    "day": (pa.date32(), date.min, date.max),
    "moment": (pa.timestamp("us"), datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)),
}


def rows(first: int) -> pa.Table:
    """Rows with the least and greatest value of each type, and a unique key."""
    columns = {
        name: pa.array([low, low, high, high, high], kind)
        for name, (kind, low, high) in LIMITS.items()
    }
    return pa.table({"id": pa.array(range(first, first + 5), pa.int64()), **columns})


@pytest.fixture
def extremes_cli(tmp_path: Path, capsys: Capsys) -> Cli:
    path = str(tmp_path / "t")
    create_table(path, rows(0))
    for first in (5, 10):
        # The last value of a file starts others, so a range is proposed after it.
        write_deltalake(path, rows(first).slice(2), mode="append")
    sql = "SELECT {0}, COUNT(*) AS n FROM t GROUP BY {0} HAVING COUNT(*) > 2"
    queries = {name: {"sql": sql.format(name), "sketch": {"t": name}} for name in LIMITS}
    return Cli.asking(capsys, tmp_path, queries)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
def test_proposed_ranges_at_type_limits(extremes_cli: Cli) -> None:
    extremes_cli.good("capture")
    extremes_cli.verified(is_exact=False)


GROUPS = 80
SPREAD = "SELECT g, COUNT(*) AS n FROM t GROUP BY g HAVING COUNT(*) < 8"
SHARED = """\
WITH c AS (SELECT g, h FROM t) SELECT a.g, b.h
FROM (SELECT g FROM c GROUP BY g HAVING COUNT(*) < 8) a,
  (SELECT h FROM c GROUP BY h HAVING COUNT(*) < 8) b"""


def write_files(folder: Path, files: list[list[tuple[int, int]]]) -> None:
    for rows in files:
        columns = {name: pa.array([row[index] for row in rows]) for index, name in enumerate("gh")}
        write_deltalake(str(folder / "t"), pa.table(columns), mode="append")


def workload(folder: Path, sql: str, capsys: Capsys) -> Cli:
    partitions = {"t": {"g": {"ranges": 200}, "h": {"ranges": 200}}}
    return Cli.asking(capsys, folder, {"q": sql}, partitions=partitions)


@pytest.fixture
def spread_cli(tmp_path: Path, capsys: Capsys) -> Cli:
    """Even groups pass. Odd ones have ten rows and fail, in files with even groups or without."""
    mixed_files = [
        [(g, 0) for g in (k, k + 1) for _ in range(1 if g % 2 == 0 else 3)] for k in range(GROUPS)
    ]
    odd_files = [[(g, 0)] * 5 for g in range(1, GROUPS, 2)]
    write_files(tmp_path, mixed_files + odd_files)
    cli = workload(tmp_path, SPREAD, capsys)
    captured = cli.one("capture")
    assert len(captured["sketches"][0]["ranges"]) > 32, "more ranges than a filter has"
    return cli


@pytest.mark.spark
def test_range_between_others_is_read_fully(spread_cli: Cli) -> None:
    result = spread_cli.one("verify", "--results")
    assert (result["covers"], result["results_equal"]) == (True, True)


@pytest.mark.spark
def test_verify_detects_rows_lost_by_pruning_files(
    spread_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parted(snapshot: Snapshot, ranges: RangeSet, partition: RangePartition) -> PartedRead:
        predicate = range_filter(ranges, partition)
        files = prune(snapshot, [exact_filter(ranges, partition)])
        return PartedRead(predicate, (ReadPart(files, predicate),))

    monkeypatch.setattr(filters, "parted_read", parted)
    assert spread_cli("verify", "--results").error["code"] == "sketch_unsound"


@pytest.mark.spark
def test_shared_access_with_two_attributes(tmp_path: Path, capsys: Capsys) -> None:
    """Group 5 fails with 15 rows; three are in the range of h that the other access needs."""
    low = [(g, 20 + g) for g in range(2) for _ in range(3)]
    rest = [(g, (g * 7 + i) % 9) for g in range(2, 10) for i in range(12)]
    write_files(tmp_path, [low + rest + [(5, 20)] * 3])
    cli = workload(tmp_path, SHARED, capsys)
    assert sorted(sketch["attribute"] for sketch in cli.one("capture")["sketches"]) == ["g", "h"]
    cli.verified(is_exact=False)
