"""What Spark refuses of recursion is known without it, and nothing else is said of it."""

from __future__ import annotations

from typing import Any

import pytest

from impctl.errors import NotReadError, QueryError
from impctl.sql.recursive import is_refused_by_spark
from impctl.sql.text import read_text
from tests.plan.network import read

BASE = "SELECT dst FROM links WHERE src = 1"
STEP = "SELECT l.dst FROM r JOIN links l ON r.n = l.src"
ALL = f"WITH RECURSIVE r(n) AS ({BASE} UNION ALL {STEP})"

REFUSED = {
    "UNION": f"WITH RECURSIVE r(n) AS ({BASE} UNION {STEP}) SELECT n FROM r",
    "not used": f"WITH RECURSIVE r(n) AS ({BASE} UNION {STEP}) SELECT src FROM links",
    "in FROM": f"SELECT n FROM (WITH RECURSIVE r(n) AS ({BASE} UNION {STEP}) SELECT n FROM r)",
    "in brackets": f"WITH RECURSIVE r(n) AS (({BASE} UNION {STEP})) SELECT n FROM r",
    "the last of three": (
        f"WITH RECURSIVE r(n) AS ({BASE} UNION ALL {BASE} UNION {STEP}) SELECT n FROM r"
    ),
    "of INTERSECT": f"WITH RECURSIVE r(n) AS ({BASE} INTERSECT {STEP}) SELECT n FROM r",
    "of EXCEPT ALL": f"WITH RECURSIVE r(n) AS ({BASE} EXCEPT ALL {STEP}) SELECT n FROM r",
    "of one part": f"WITH RECURSIVE r(n) AS ({STEP}) SELECT n FROM r",
    "with a limit": f"WITH RECURSIVE r(n) AS (({BASE} UNION ALL {STEP}) LIMIT 3) SELECT n FROM r",
    "a table's name": (
        "WITH RECURSIVE links(n) AS (SELECT 1 UNION SELECT n FROM links) SELECT n FROM links"
    ),
    "with a WITH": (
        f"WITH RECURSIVE r(n) AS (WITH q AS (SELECT 1) {BASE} UNION {STEP}) SELECT n FROM r"
    ),
    "CYCLE": f"{ALL} CYCLE n SET c USING p SELECT n FROM r",
    "SEARCH": f"{ALL} SEARCH DEPTH FIRST BY n SET o SELECT n FROM r",
    "USING KEY": f"WITH RECURSIVE r(n) USING KEY (n) AS ({BASE} UNION ALL {STEP}) SELECT n FROM r",
}
LEFT_TO_IT = {
    "UNION ALL": f"{ALL} SELECT n FROM r",
    "in brackets": f"WITH RECURSIVE r(n) AS (({BASE} UNION ALL {STEP})) SELECT n FROM r",
    "of three": f"WITH RECURSIVE r(n) AS ({BASE} UNION {BASE} UNION ALL {STEP}) SELECT n FROM r",
    "UNION above": f"{ALL} SELECT n FROM r UNION SELECT src FROM links SORT BY 1",
    "reads no row of its own": f"WITH RECURSIVE r(n) AS ({BASE} UNION {BASE}) SELECT n FROM r",
    "reads another of its name": (
        "WITH RECURSIVE r(n) AS (SELECT 1L UNION SELECT n FROM "
        "(WITH r(n) AS (SELECT 2L) SELECT n FROM r)) SELECT n FROM r"
    ),
    "not RECURSIVE": "WITH links AS (SELECT src FROM links UNION SELECT 2) SELECT src FROM links",
}


@pytest.mark.parametrize("sql", REFUSED.values(), ids=REFUSED)
def test_what_spark_refuses_is_told_by_the_text(sql: str) -> None:
    assert is_refused_by_spark(read_text(sql, "q")[1])


@pytest.mark.parametrize("sql", LEFT_TO_IT.values(), ids=LEFT_TO_IT)
def test_what_spark_may_run_is_left_to_it(sql: str) -> None:
    assert not is_refused_by_spark(read_text(sql, "q")[1])


@pytest.mark.spark
def test_spark_says_the_same(spark: Any) -> None:
    from pyspark.errors import AnalysisException, ParseException

    spark.sql("SELECT 1L AS src, 7L AS dst").createOrReplaceTempView("links")
    for sql in LEFT_TO_IT.values():
        spark.sql(sql)
    for sql in REFUSED.values():
        with pytest.raises((AnalysisException, ParseException)):
            spark.sql(sql)


def test_a_construct_beside_the_recursion_is_a_mistake_too() -> None:
    with pytest.raises(QueryError, match="uses SORT BY in SELECT") as caught:
        read(f"WITH RECURSIVE r(n) AS ({BASE} UNION {STEP}) SELECT n FROM r SORT BY n")
    assert not isinstance(caught.value, NotReadError)
    # A query that nobody runs is not kept without a sketch either.
    assert "sketch: none" not in caught.value.hint
    assert "Spark" in caught.value.hint


def test_beside_one_that_spark_runs_it_is_left_to_spark() -> None:
    with pytest.raises(NotReadError, match="uses SORT BY in SELECT") as caught:
        read(f"{ALL} SELECT n FROM r SORT BY n")
    assert "sketch: none" in caught.value.hint


def test_two_that_read_each_other_are_for_nobody() -> None:
    with pytest.raises(QueryError, match="mutual recursion") as caught:
        read(
            f"WITH RECURSIVE r(n) AS ({BASE} UNION ALL SELECT n FROM s), s AS (SELECT n FROM r) "
            "SELECT n FROM r"
        )
    assert not isinstance(caught.value, NotReadError)
