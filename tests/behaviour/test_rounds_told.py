"""`verify` of a recursion takes a join in Spark per round: each is told, on stderr, to who asks."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Capsys, Cli

pytestmark = pytest.mark.spark

LINKS = [(1, 7), (1, 8), (7, 12), (12, 7), (12, 29)]
WORKLOAD = """\
version: 1
tables: {links: {path: links}}
partitions: {links: {src: {boundaries: [7, 8, 12]}}}
queries:
  reach:
    sql: >
      WITH RECURSIVE r(n) AS (SELECT dst FROM links WHERE src = 1
      UNION SELECT l.dst FROM r JOIN links l ON r.n = l.src) SELECT n FROM r WHERE n = 12
    sketch: {links: src}
    lineage: LINEAGE
store: .impctl
"""


def rounds(links: list[tuple[int, int]]) -> list[str]:
    """One search after the other, from what 1 leads to."""
    new = {dst for src, dst in links if src == 1}
    every, told = set(new), list[str]()
    while new:
        number = len(told) + 1
        told.append(f"reach: round {number} of r, rows so far: {len(every)}, new: {len(new)}")
        new = {dst for src, dst in links if src in new} - every
        every |= new
    return ["reach: initial rows of r", *told]


RANGES = [f"reach: ranges for {part}" for part in ("the query", "the base of r", "the step of r")]
BACK = [
    # To 12 from 7, to 7 from 12, which is there already.
    "reach: round 1 back through r, rows so far: 1, new: 1",
    "reach: round 2 back through r, rows so far: 2, new: 1",
]


def network(tmp_path: Path, capsys: Capsys, lineage: str) -> Cli:
    sources, targets = zip(*LINKS, strict=True)
    create_table(str(tmp_path / "links"), pa.table({"src": sources, "dst": targets}))
    cli = Cli.over(capsys, tmp_path, WORKLOAD.replace("LINEAGE", lineage))
    cli.good("capture")
    return cli


@pytest.mark.slow
@pytest.mark.long
def test_each_round_is_told_and_each_back_from_the_answer(tmp_path: Path, capsys: Capsys) -> None:
    told = network(tmp_path, capsys, "answer").good("verify", "-v").stderr.splitlines()
    assert told[told.index("recapturing reach") + 1 :] == [
        *rounds(LINKS),
        RANGES[0],
        *BACK,
        *RANGES[1:],
    ]


def test_rounds_over_the_sketch_are_told_apart(tmp_path: Path, capsys: Capsys) -> None:
    told = network(tmp_path, capsys, "witness").good("verify", "-v").stderr.splitlines()
    assert told[told.index("recapturing reach") + 1 :] == [
        *rounds(LINKS),
        *RANGES,
        *(f"{line} (over the sketch)" for line in rounds(LINKS)),
        *(f"{line} (over the tables)" for line in rounds(LINKS)),
    ]


@pytest.mark.slow
@pytest.mark.long
def test_who_does_not_ask_hears_nothing(tmp_path: Path, capsys: Capsys) -> None:
    cli = network(tmp_path, capsys, "all")
    assert cli.good("verify").stderr == ""
    assert cli.good("verify", "-q").stderr == ""
