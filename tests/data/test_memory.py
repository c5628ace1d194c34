"""Memory given back, with and without a C library that can."""

from __future__ import annotations

import pyarrow as pa
import pytest

from impctl.data import memory


def test_what_is_in_use_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    held = pa.array(range(100_000))
    memory.give_back()
    monkeypatch.setattr(memory, "_c_library", lambda: None)
    memory.give_back()
    assert held[99_999].as_py() == 99_999
