"""Whatever is chosen, read, and kept again under a budget is so without Spark."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from impctl.service.context import OwnSession


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = AssertionError("Spark was asked for")
    monkeypatch.setattr(OwnSession, "open", Mock(side_effect=asked))
