"""Metadata that a table's protocol does not back is never believed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from random import Random

import pytest

from tests.behaviour.protocol_cases import HandWritten, Row, one_table, over_table
from tests.support.random_cases import random_cases
from tests.support.run_cli import Capsys


@random_cases(2, 12, 2500, also="1 20")
def test_answers_through_sketches_are_right(
    cases: Collection[int], tmp_path: Path, capsys: Capsys
) -> None:
    seen: Counter[str] = Counter()
    for seed in cases:
        folder = tmp_path / str(seed)
        folder.mkdir()
        seen.update(one_table(folder, capsys, seed))
    assert seen["captured all"] == len(cases), seen
    assert seen["read through a sketch"] > len(cases), seen
    assert seen["captured more"] > len(cases) // 4, seen


def test_a_constraint_under_a_protocol_without_it_is_not_believed(
    tmp_path: Path, capsys: Capsys
) -> None:
    """delta-rs puts in what breaks a constraint of a table of protocol 1 and 2."""
    table = HandWritten(tmp_path / "t", Random(0))
    protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    metadata = table.metadata(constraint="x >= 0", invariant=None, is_required=False)
    rows = [(1, 1, 100), (2, 2, 90), (1, 12, -60)]
    table.commit([protocol, metadata, table.file(rows, has_statistics=True)])
    cli = over_table(tmp_path, capsys)
    assert cli("capture", "--query", "more").refusal == (3, "sketch_unsafe")
    result = cli.one("query", "--query", "more", "--by", "engine")
    assert result["rows"] == [[2, 90]]


@pytest.mark.parametrize("has_statistics", [True, False])
def test_a_constraint_holds_as_long_as_the_rows_keep_it(
    tmp_path: Path, capsys: Capsys, has_statistics: bool
) -> None:
    table = HandWritten(tmp_path / "t", Random(0))
    protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 3}}
    metadata = table.metadata(constraint="x >= 0", invariant=None, is_required=False)
    rows: list[Row] = [(1, 1, 100), (2, 2, 90)]
    table.commit([protocol, metadata, table.file(rows, has_statistics=has_statistics)])
    cli = over_table(tmp_path, capsys)
    captured = cli.one("capture", "--query", "more")
    assert captured["assumptions"] == ([] if has_statistics else ["`t.x` >= 0"])
    table.commit([table.file([(1, 12, -60)], has_statistics=has_statistics)])
    assert cli("maintain", "--query", "more", "--policy", "incremental").code != 0
    result = cli.one("query", "--query", "more", "--by", "engine", "--sketch", "never")
    assert result["rows"] == [[2, 90]]


def test_mapped_columns_need_a_protocol_that_maps_them(tmp_path: Path, capsys: Capsys) -> None:
    table = HandWritten(tmp_path / "t", Random(0))
    metadata = table.metadata(constraint=None, invariant=None, is_required=False)
    metadata["metaData"]["configuration"]["delta.columnMapping.mode"] = "name"
    protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    table.commit([protocol, metadata, table.file([(1, 1, 100)], has_statistics=True)])
    ran = over_table(tmp_path, capsys)("capture", "--query", "more")
    assert ran.refusal == (3, "column_mapping_mode")
