"""Fixtures that every room's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

# How long an example takes says more about the machine than about the code.
settings.register_profile("impctl", deadline=None)
settings.load_profile("impctl")


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One small local Spark session for all tests marked `spark`."""
    from impctl.spark.session import SparkSettings, close_session, open_session

    conf = {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "4"}
    session = open_session(SparkSettings("local[2]", conf))
    yield session
    close_session(session)
