"""Of every range that is let through all rows are read, needed by the sketch or not.

A group seen in part passes `COUNT(*) < 8` where the whole does not: so ranges closed between
others, and ranges that another access at the same place of the text needs, must be whole too.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.service import filters
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import FragmentSet, exact_filter, range_filter
from impctl.tables.prune import prune
from impctl.tables.rows import PartedRead, ReadPart
from impctl.tables.snapshot import Snapshot
from tests.support.run_cli import Capsys, Cli

pytestmark = pytest.mark.spark

GROUPS = 80
SPREAD = "SELECT g, COUNT(*) AS n FROM t GROUP BY g HAVING COUNT(*) < 8"
SHARED = """\
WITH c AS (SELECT g, h FROM t) SELECT a.g, b.h
FROM (SELECT g FROM c GROUP BY g HAVING COUNT(*) < 8) a,
  (SELECT h FROM c GROUP BY h HAVING COUNT(*) < 8) b"""


def written(folder: Path, files: list[list[tuple[int, int]]]) -> None:
    for rows in files:
        columns = {name: pa.array([row[at] for row in rows]) for at, name in enumerate("gh")}
        write_deltalake(str(folder / "t"), pa.table(columns), mode="append")


def workload(folder: Path, sql: str, capsys: Capsys) -> Cli:
    quoted = sql.replace("\n", " ")
    return Cli.over(
        capsys,
        folder,
        "version: 1\n"
        "tables: {t: {path: t}}\n"
        "partitions: {t: {g: {ranges: 200}, h: {ranges: 200}}}\n"
        f'queries: {{q: {{sql: "{quoted}"}}}}\n'
        "store: .impctl\n"
        'spark: {master: "local[2]"}\n',
    )


@pytest.fixture
def spread(tmp_path: Path, capsys: Capsys) -> Cli:
    """Odd groups have ten rows and fail: some beside even groups, which pass, some apart."""
    beside = [
        [(g, 0) for g in (k, k + 1) for _ in range(1 if g % 2 == 0 else 3)] for k in range(GROUPS)
    ]
    far = [[(g, 0)] * 5 for g in range(1, GROUPS, 2)]
    written(tmp_path, beside + far)
    cli = workload(tmp_path, SPREAD, capsys)
    (captured,) = cli.good("capture").results
    assert len(captured["sketches"][0]["fragments"]) > 32, "more ranges than a filter has"
    return cli


def test_a_range_closed_between_others_is_read_whole(spread: Cli) -> None:
    (result,) = spread.good("verify", "--results").results
    assert (result["covers"], result["results_equal"]) == (True, True)


def test_verify_finds_that_files_of_every_range_lose_rows_of_few(
    spread: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parted(snapshot: Snapshot, fragments: FragmentSet, partition: RangePartition) -> PartedRead:
        wanted = range_filter(fragments, partition)
        files = prune(snapshot, [exact_filter(fragments, partition)])
        return PartedRead(wanted, (ReadPart(files, wanted),))

    monkeypatch.setattr(filters, "parted_read", parted)
    assert spread("verify", "--results").error["code"] == "sketch_unsound"


def test_accesses_at_one_place_with_two_attributes(tmp_path: Path, capsys: Capsys) -> None:
    """Group 5 fails with 15 rows; three of them are in the range of h that the other one needs."""
    low = [(g, 20 + g) for g in range(2) for _ in range(3)]
    rest = [(g, (g * 7 + i) % 9) for g in range(2, 10) for i in range(12)]
    written(tmp_path, [low + rest + [(5, 20)] * 3])
    cli = workload(tmp_path, SHARED, capsys)
    (captured,) = cli.good("capture").results
    assert sorted(sketch["attribute"] for sketch in captured["sketches"]) == ["g", "h"]
    cli.verified(is_exact=False)
