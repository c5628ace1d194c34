"""Parts of a shuffle: by bytes, unless somebody chose, and the session is left as it was."""

from __future__ import annotations

from typing import Any

import pytest

from impctl.spark.session import PARTITIONS, is_connect, shuffles_for

pytestmark = pytest.mark.spark

MEGABYTE = 1 << 20


def inside(spark: Any, size: int) -> str:
    with shuffles_for(spark, size):
        return str(spark.conf.get(PARTITIONS))


@pytest.fixture
def fresh(spark: Any) -> Any:
    """A session of its own, with Spark's default."""
    session = spark.newSession()
    session.conf.set(PARTITIONS, "200")
    session.conf.unset(PARTITIONS)
    if session.conf.get(PARTITIONS) != "200":
        pytest.skip("the installation has another number")
    return session


def test_a_small_read_has_few_parts_and_a_large_one_spark_s_own(fresh: Any) -> None:
    few = str(max(8, 0 if is_connect(fresh) else 2 * fresh.sparkContext.defaultParallelism))
    assert inside(fresh, 0) == few
    assert inside(fresh, 400 * MEGABYTE) == "100"
    assert inside(fresh, 400 * MEGABYTE + 1) == "101"
    assert inside(fresh, 2000 * MEGABYTE) == "200"
    assert fresh.conf.get(PARTITIONS) == "200"


def test_what_somebody_chose_stays(fresh: Any) -> None:
    fresh.conf.set(PARTITIONS, "64")
    assert inside(fresh, 0) == "64"
    assert fresh.conf.get(PARTITIONS) == "64"


def test_a_failure_leaves_the_session_as_it_was(fresh: Any) -> None:
    with pytest.raises(ZeroDivisionError), shuffles_for(fresh, 0):
        raise ZeroDivisionError
    assert fresh.conf.get(PARTITIONS) == "200"
