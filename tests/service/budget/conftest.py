"""Under a budget, state is chosen, read and restored without Spark."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from impctl.service.context import OwnSession


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    error = AssertionError("Spark was asked for")
    monkeypatch.setattr(OwnSession, "open", Mock(side_effect=error))
