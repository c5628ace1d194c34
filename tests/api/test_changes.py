"""What came and went of a kept answer, for programs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import impctl
from impctl.errors import UsageError
from tests.support.change_reader import applied
from tests.support.kept_workload import answer_at, grow, write_workload

pytestmark = pytest.mark.filterwarnings("ignore:the sketch of query:impctl.ImpctlWarning")
"""The tables are so small that no sketch saves anything."""


def test_changes_as_arrow_and_in_files(tmp_path: Path) -> None:
    with impctl.open(write_workload(tmp_path, ("plain", "groups"))) as opened:
        opened.capture()
        whole = opened.changes("plain", whole=True)
        assert isinstance(whole, impctl.ChangesResult)
        before = applied(Counter(), whole.to_arrow())
        assert before == answer_at(tmp_path, "plain", {"a": 0})
        grow(tmp_path)
        found = opened.changes("plain")
        assert (found.since, found.versions, found.by) == ({"a": 0}, {"a": 1}, "state")
        assert found.columns == ("_change", "_copies", "s", "d")
        now = answer_at(tmp_path, "plain", {"a": 1})
        assert applied(before, found.to_arrow()) == now
        assert opened.changes("plain", since=0).row_count == found.row_count
        done = opened.maintain(changes=tmp_path / "out")
        (path,) = done[0].change_files
        assert applied(before, pq.read_table(path)) == now
        assert opened.changes("plain").row_count == 0
        # A call without a folder writes nothing.
        grow(tmp_path)
        assert opened.maintain()[0].change_files == ()


def test_an_answer_that_is_not_kept(tmp_path: Path) -> None:
    file = write_workload(tmp_path, ("plain",))
    file.write_text(file.read_text().replace("answer: true", "answer: false"))
    with impctl.open(file) as opened:
        opened.capture()
        with pytest.raises(UsageError, match="No answer of query `plain` is kept"):
            opened.changes("plain")
