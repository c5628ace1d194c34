"""Random operations on one store, and tests that the checks detect errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from impctl.engine.batch import Batch
from impctl.engine.result_rows import KeptRows
from impctl.service.settings import SOAK
from impctl.sketch.sketch import RangeSet
from impctl.store.records import MaintainCommit
from impctl.store.store import Store
from impctl.workload.models import AnsweredBy
from tests.soak.driver import QUERIES, Soak
from tests.soak.writer import running_writer
from tests.support.kept_workload import run_record

_COUNT, _, _SEED = os.environ.get(SOAK, "30").partition("@")
OPERATIONS, SEED = int(_COUNT), int(_SEED or 1)


@pytest.mark.slow
@pytest.mark.timeout(900 + 10 * OPERATIONS)
def test_random_operations(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    with running_writer() as writer:
        soak = Soak(tmp_path, SEED, writer)
        soak.run(OPERATIONS)
    for name, count in sorted(soak.done.items()):
        record_property(name, count)
    print(f"seed {SEED}, {OPERATIONS} operations: {dict(sorted(soak.done.items()))}")  # noqa: T201
    print(f"{soak.answers} answers, {soak.sketches} sketches, {dict(soak.slack)}")  # noqa: T201
    assert soak.answers >= OPERATIONS // 6
    assert soak.sketches > OPERATIONS * len(QUERIES)
    assert soak.done["answers with rows"] > soak.answers // 2
    assert soak.done["uses of stored sketches"] > OPERATIONS // 4
    assert soak.done["killed"] >= soak.done["shots"] // 4


@pytest.fixture
def soak(tmp_path: Path) -> Iterator[Soak]:
    with running_writer() as writer:
        yield Soak(tmp_path, 3, writer)


def store_sketch(folder: Path, query: str, *, more: int = 0, fewer: int = 0) -> None:
    """Add or remove ranges of the stored sketch of the first access."""
    with Store.open(folder / ".impctl") as store, store.lock(10, "a test"):
        stored = store.load(query)
        assert stored is not None
        sketch = stored.sketches[0]
        ids, size = set(sketch.ranges.ids), sketch.partition.size
        ids |= set(sorted(set(range(size)) - ids)[:more])
        wrong = RangeSet.of(sorted(ids)[fewer:], size)
        assert wrong != sketch.ranges
        record = run_record("exact", versions=stored.versions)
        changed = ((sketch.access, wrong),)
        commit = MaintainCommit(query, stored.generation, stored.pins, record, sketches=changed)
        store.commit_maintain(commit)


@pytest.mark.slow
def test_missing_range_is_found(soak: Soak) -> None:
    store_sketch(soak.folder, "top", fewer=1)
    with pytest.raises(AssertionError, match="top"):
        soak.check()
    with pytest.raises(AssertionError, match="SELECT"):
        soak.check_answer("top")


@pytest.mark.slow
def test_extra_range_of_exact_sketch_is_found(soak: Soak) -> None:
    store_sketch(soak.folder, "by_day", more=1)
    soak.check_answer("by_day")
    with pytest.raises(AssertionError, match="by_day"):
        soak.check()


@pytest.mark.slow
def test_missing_result_row_is_found(soak: Soak, monkeypatch: pytest.MonkeyPatch) -> None:
    original = KeptRows.whole

    def without_the_last(kept_rows: KeptRows) -> Batch:
        rows = original(kept_rows)
        return rows.take(np.arange(len(rows) - 1))

    soak.check_query("regions", AnsweredBy.STATE)
    soak.check_query("regions", AnsweredBy.ENGINE)
    monkeypatch.setattr(KeptRows, "whole", without_the_last)
    for by in (AnsweredBy.STATE, AnsweredBy.ENGINE):
        with pytest.raises(AssertionError, match="regions"):
            soak.check_query("regions", by)


@pytest.mark.slow
def test_wrong_stored_result_is_found(soak: Soak, monkeypatch: pytest.MonkeyPatch) -> None:
    """Materialized results are checked after every operation, even without a query."""
    answer = pa.table({"shop": [1]})
    monkeypatch.setattr("tests.crash.processes.materialized_result", lambda *_: answer)
    soak._used.clear()
    with pytest.raises(AssertionError, match="by_shop"):
        soak.check()


@pytest.mark.slow
def test_unknown_file_is_found(soak: Soak) -> None:
    (soak.folder / ".impctl" / "strange").touch()
    with pytest.raises(AssertionError):
        soak.run(0)
