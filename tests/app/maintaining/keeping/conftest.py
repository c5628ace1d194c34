"""Whatever is chosen, read, and kept again under a budget is so without Spark."""

from __future__ import annotations

import pytest

from impctl.app.workbench.sessions import OwnSession


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_spark(*_: object) -> None:
        raise AssertionError("Spark was asked for")

    monkeypatch.setattr(OwnSession, "open", no_spark)
