"""Answers written to files: whole or not at all, and read back as they were."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from impctl.app.writing import file as writing
from impctl.app.writing.file import check_goal, write_answer
from impctl.app.writing.formats import RowsFormat
from impctl.app.writing.json_values import json_rows
from impctl.app.writing.lines import text_of
from impctl.errors import StorageError, UnsupportedError, UsageError
from tests.app.writing.every_type import every_type


def test_each_ending_says_its_format(tmp_path: Path) -> None:
    table = every_type().drop_columns(["nothing"])
    for ending in (".parquet", ".csv", ".jsonl", ".CSV"):
        write_answer(table, tmp_path / f"a{ending}")
    read = pq.read_table(tmp_path / "a.parquet")
    assert read.schema.equals(table.schema)
    # As texts, since NaN is not equal to itself.
    assert json_rows(read) == json_rows(table)
    for one in (RowsFormat.CSV, RowsFormat.JSONL):
        written = (tmp_path / f"a.{one}").read_bytes()
        assert written == "".join(text_of(table, one)).encode()
    assert (tmp_path / "a.CSV").read_bytes() == (tmp_path / "a.csv").read_bytes()


def test_parquet_has_each_name_once(tmp_path: Path) -> None:
    write_answer(pa.table([[1], [2]], ["x", "x"]), tmp_path / "a.parquet")
    assert pq.read_table(tmp_path / "a.parquet").to_pydict() == {"x": [1], "x_2": [2]}


@pytest.mark.parametrize("name", ["a", "a.json", "a.parquet.gz", ".csv", "-"])
def test_another_ending_is_refused_with_those_there_are(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_goal(tmp_path / name)
    assert caught.value.code == "answer_ending"
    assert all(ending in str(caught.value.hint) for ending in (".parquet", ".csv", ".jsonl"))


def test_what_is_in_the_way_is_told_before(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for path, about in (("no/a.csv", "no folder"), ("folder.csv", "it is a folder")):
        with pytest.raises(StorageError, match=about) as caught:
            check_goal(tmp_path / path)
        assert caught.value.code == "answer_not_written"
    check_goal(tmp_path / "a.csv")
    assert not (tmp_path / "no").exists()


def broken_pieces(table: pa.Table, one: RowsFormat) -> Iterator[bytes]:
    yield b"half"
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupted_pieces(table: pa.Table, one: RowsFormat) -> Iterator[bytes]:
    yield b"half"
    raise KeyboardInterrupt


def test_a_full_disk_leaves_what_stood_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goal = tmp_path / "a.csv"
    goal.write_text("old")
    monkeypatch.setattr(writing, "_pieces", broken_pieces)
    with pytest.raises(StorageError, match="No space left") as caught:
        write_answer(every_type(), goal)
    assert caught.value.exit_code == 6
    monkeypatch.setattr(writing, "_pieces", interrupted_pieces)
    with pytest.raises(KeyboardInterrupt):
        write_answer(every_type(), goal)
    assert goal.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.csv"]


def test_a_file_keeps_its_rights_and_a_link_its_goal(tmp_path: Path) -> None:
    goal, link = tmp_path / "kept" / "a.csv", tmp_path / "b.csv"
    goal.parent.mkdir()
    goal.write_text("old")
    goal.chmod(0o640)
    link.symlink_to(goal)
    write_answer(pa.table({"a": [1]}), link)
    assert link.is_symlink()
    assert goal.read_text() == "a\n1\n"
    assert stat.S_IMODE(goal.stat().st_mode) == 0o640
    before = os.umask(0o027)
    try:
        write_answer(pa.table({"a": [1]}), tmp_path / "new.csv")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new.csv").stat().st_mode) == 0o640


def test_a_type_that_parquet_lacks_is_told(tmp_path: Path) -> None:
    table = pa.table({"i": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    with pytest.raises(UnsupportedError) as caught:
        write_answer(table, tmp_path / "a.parquet")
    assert caught.value.code == "answer_type"
    assert os.listdir(tmp_path) == []
