"""Warnings after a capture: a sketch that holds too much, a table that lies in no order."""

from __future__ import annotations

import warnings
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake

import impctl
from impctl.errors import ImpctlWarning, TableError
from impctl.service import advice, capture
from impctl.tables.write import maintenance as writing
from tests.support.run_cli import Cli

ROWS = 12_000
FILES = 8


@pytest.fixture(autouse=True)
def _a_small_table_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 10,000 rows on advice is given, which otherwise takes ten times as many."""
    assert advice._ROWS_WORTH_ADVICE == 100_000
    monkeypatch.setattr(advice, "_ROWS_WORTH_ADVICE", 10_000)


def told(
    folder: Path, values: np.ndarray, having: str, ranges: str = "ranges: 20", files: int = FILES
) -> list[str]:
    """What capturing warns of; the table lies in so many files in the order of the values."""
    for part in np.array_split(values, files):
        write_deltalake(str(folder / "t"), pa.table({"g": part}), mode="append")
    (folder / "w.yaml").write_text(
        f"version: 1\ntables: {{t: {{path: t}}}}\npartitions: {{t: {{g: {{"
        f"{ranges}}}}}}}\n"
        f"queries: {{q: {{sql: 'SELECT g, COUNT(*) n FROM t GROUP BY g HAVING {having}'}}}}\n"
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        impctl.open(folder / "w.yaml").capture()
    assert all(warning.category is ImpctlWarning for warning in caught)
    return [str(warning.message) for warning in caught]


def groups(rows: int = ROWS) -> np.ndarray:
    return np.arange(rows, dtype=np.int64) % 1000


@pytest.mark.slow
def test_a_table_in_no_order_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A table this small would be one file, which no order helps.
    monkeypatch.setattr(writing, "_LEAST_BYTES", 1 << 12)
    (result,) = told(tmp_path, groups(), "g < 30")
    assert "on `t.g` skips almost no files" in result
    assert "spans 100% of the ranges" in result
    assert "impctl cluster" in result


FEW_PLACES = np.concatenate([groups(1000), np.zeros(ROWS, np.int64)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [np.sort(groups()), groups(ROWS - 3_200), FEW_PLACES],
    ids=["sorted", "small", f"one file of {FILES}"],
)
def test_a_table_that_no_order_would_help_is_not(tmp_path: Path, values: np.ndarray) -> None:
    assert told(tmp_path, values, "g < 30 AND g > 0") == []


def test_an_empty_sketch_leaves_out_every_file(tmp_path: Path) -> None:
    assert told(tmp_path, groups(), "g < 0") == []


@pytest.mark.parametrize("ranges", ["boundaries: [333, 666]", "ranges: 21"])
def test_a_sorted_table_of_two_files_is_sorted(tmp_path: Path, ranges: str) -> None:
    assert told(tmp_path, np.sort(groups()), "g >= 480 AND g < 520", ranges, files=2) == []


@pytest.mark.parametrize("error", [TableError("no statistics"), ValueError("no statistics")])
def test_advice_that_fails_is_no_failure_of_the_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(capture, "warnings_of", Mock(side_effect=error))
    (result,) = told(tmp_path, groups(1000), "g < 30")
    assert result.startswith(
        "query `q` was captured, but impctl could not estimate what its sketch saves"
    )
    assert "no statistics" in result
    with impctl.open(tmp_path / "w.yaml") as workload:
        assert not workload.status()[0].stale


@pytest.mark.slow
def test_a_sketch_that_holds_nearly_everything_is_told_so_alone(tmp_path: Path) -> None:
    (result,) = told(tmp_path, groups(), "g >= 0")
    assert "skips almost nothing" in result


def test_small_files_of_many_commits_are_told(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for part in np.array_split(np.sort(groups(40_000)), 10):
        write_deltalake(str(path), pa.table({"g": part}), mode="append")
    for _ in range(15):
        rows = pa.table({"g": np.array([0, 500, 999])})
        write_deltalake(str(path), rows, mode="append")
    (tmp_path / "w.yaml").write_text(
        "version: 1\ntables: {t: {path: t}}\npartitions: {t: {g: {ranges: 20}}}\n"
        "queries: {q: {sql: 'SELECT g, COUNT(*) n FROM t GROUP BY g HAVING g < 30'}}\nstore: st\n"
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        impctl.open(tmp_path / "w.yaml").capture()
    (result,) = (str(warning.message) for warning in caught)
    assert "skips none of the 15 small files (of 25)" in result
    assert "OPTIMIZE" in result


def test_doctor_says_the_same_at_any_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (told_then,) = told(tmp_path, groups(), "g < 30")
    ran = Cli(capsys, tmp_path / "w.yaml")("doctor")
    (result,) = (one for one in ran.results if one["check"] == "skips_little")
    assert (result["level"], result["subject"]) == ("warning", "q")
    said = f"{result['message']}; {result['fix']}"
    assert said[1:] == told_then[1:]
