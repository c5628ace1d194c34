"""One server for all tests of a process, and a bucket for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.outside.object_stores.lake import Lake, ObjectStore, object_store
from tests.support.run_cli import Capsys


@pytest.fixture(scope="session")
def server() -> Iterator[ObjectStore]:
    with object_store() as result:
        yield result


@pytest.fixture(scope="session")
def bucket_numbers() -> Iterator[int]:
    """One number for each bucket."""
    return count()


@pytest.fixture
def lake(
    server: ObjectStore,
    bucket_numbers: Iterator[int],
    tmp_path: Path,
    capsys: Capsys,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Lake]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    bucket = f"lake-{next(bucket_numbers)}"
    server.make_bucket(bucket)
    yield Lake(server, bucket, tmp_path, capsys)
    server.delay(0)
    server.hollow("")
