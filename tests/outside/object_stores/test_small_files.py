"""Texts below a table's root in an object store, by one request where they are short."""

from __future__ import annotations

import pytest

from impctl.tables import storage
from impctl.tables.storage import read_text
from tests.outside.object_stores.lake import Lake


@pytest.mark.parametrize(
    ("characters", "requests"), [(0, 3), (1, 1), (99, 1), (100, 3), (101, 3), (1000, 3)]
)
def test_they_are_read_whole_whatever_their_length(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, characters: int, requests: int
) -> None:
    monkeypatch.setattr(storage, "_AT_FIRST", 100)
    text = "".join(chr(97 + at % 26) for at in range(characters))
    lake.server.put(f"{lake.bucket}/t/a.json", text.encode())
    lake.asked()
    assert read_text(lake.uri("t"), lake.options, "a.json") == text
    assert len(lake.asked()) <= requests


def test_one_that_is_missing_is_asked_for_once(lake: Lake) -> None:
    lake.make("t")
    lake.asked()
    with pytest.raises(FileNotFoundError):
        read_text(lake.uri("t"), lake.options, "_delta_log/missing.json")
    assert len(lake.asked()) == 1
