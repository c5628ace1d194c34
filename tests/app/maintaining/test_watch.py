"""What a process that follows looks at between two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.app.maintaining import watch as looking
from impctl.app.maintaining.watch import Watch
from impctl.app.workbench.settings import Settings
from impctl.app.workbench.workbench import open_workbench
from impctl.errors import StorageError
from impctl.tables.write.create import create_table
from tests.support.small_workload import ROWS, WORKLOAD


def test_a_log_that_could_not_be_read_is_no_news_until_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_table(str(tmp_path / "t"), ROWS)
    (tmp_path / "w.yaml").write_text(WORKLOAD.replace("POLICY", "auto"))
    watch = Watch()

    def away(*_: Any) -> Any:
        # As an object store answers, which a test has none of.
        raise StorageError("Table `t` cannot be reached")

    with open_workbench(Settings(tmp_path / "w.yaml")) as desk:
        watch.pinned()
        desk.tables.source("t")
        watch.saw(desk)
        assert not watch.is_due(desk)
        with monkeypatch.context() as patch:
            patch.setattr(looking, "has_new_log", away)
            patch.setattr(looking, "log_end", away)
            patch.setattr(looking, "pinned_anew", away)
            assert watch.is_due(desk)
            watch.saw(desk.next_run(watch.pinned()))  # the run could not open it either
            assert not watch.is_due(desk)
            # It came back while the run was still at it, which had found none.
            run = desk.next_run(watch.pinned())
            patch.setattr(looking, "log_end", lambda _: "another")
            patch.setattr(looking, "has_new_log", lambda _: True)
            watch.saw(run)
            assert watch.is_due(desk)
        write_deltalake(str(tmp_path / "t"), pa.table(ROWS), mode="append")
        assert watch.is_due(desk)
