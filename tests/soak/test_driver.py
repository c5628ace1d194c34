"""The soak's checks fail where something is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from impctl.engine.batch import Batch
from impctl.engine.result_rows import KeptRows
from impctl.sketch.sketch import FragmentSet
from impctl.store.records import MaintainCommit
from impctl.store.store import Store
from impctl.workload.models import AnsweredBy
from tests.soak.driver import Soak
from tests.soak.writer import running_writer
from tests.support.run_records import run_record

pytestmark = pytest.mark.slow


@pytest.fixture
def soak(tmp_path: Path) -> Iterator[Soak]:
    with running_writer() as writer:
        yield Soak(tmp_path, 3, writer)


def store_sketch(folder: Path, query: str, *, more: int = 0, fewer: int = 0) -> None:
    """The stored sketch of the first access with fragments added, or left out."""
    with Store.open(folder / ".impctl") as store, store.lock(10, "a test"):
        stored = store.load(query)
        assert stored is not None
        sketch = stored.sketches[0]
        ids, size = set(sketch.fragments.ids), sketch.partition.size
        ids |= set(sorted(set(range(size)) - ids)[:more])
        wrong = FragmentSet.of(sorted(ids)[fewer:], size)
        assert wrong != sketch.fragments
        record = run_record("exact", versions=stored.versions)
        store.commit_maintain(
            MaintainCommit(
                query,
                stored.generation,
                stored.pins,
                record,
                sketches=((sketch.access, wrong),),
            )
        )


def test_a_fragment_that_is_missing(soak: Soak) -> None:
    store_sketch(soak.folder, "top", fewer=1)
    with pytest.raises(AssertionError, match="top"):
        soak.check()
    with pytest.raises(AssertionError, match="SELECT"):
        soak.check_answer("top")


def test_a_fragment_too_many_of_an_exact_sketch(soak: Soak) -> None:
    store_sketch(soak.folder, "by_day", more=1)
    soak.check_answer("by_day")
    with pytest.raises(AssertionError, match="by_day"):
        soak.check()


def test_a_row_of_an_answer_that_is_missing(soak: Soak, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = KeptRows.whole

    def without_the_last(kept: KeptRows) -> Batch:
        rows = whole(kept)
        return rows.take(np.arange(len(rows) - 1))

    soak.check_asked("regions", AnsweredBy.STATE)
    soak.check_asked("regions", AnsweredBy.ENGINE)
    monkeypatch.setattr(KeptRows, "whole", without_the_last)
    for by in (AnsweredBy.STATE, AnsweredBy.ENGINE):
        with pytest.raises(AssertionError, match="regions"):
            soak.check_asked("regions", by)


def test_an_answer_of_another_version(soak: Soak, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is looked at after every operation, whether it is asked for or not."""
    monkeypatch.setattr("tests.crash.small.kept_answer", lambda *_: pa.table({"shop": [1]}))
    soak._used.clear()
    with pytest.raises(AssertionError, match="by_shop"):
        soak.check()


def test_a_file_that_gc_does_not_know(soak: Soak) -> None:
    (soak.folder / ".impctl" / "strange").touch()
    with pytest.raises(AssertionError):
        soak.run(0)
