"""Names that could be the clock's or an alias's are an alias's, as for Spark."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from impctl.plan.sql.clock import Clock
from impctl.plan.sql.parameters import bind

CLOCK = Clock(datetime(2026, 3, 1, 12, tzinfo=UTC))


@pytest.mark.parametrize("alias", ["AS current_date", "current_date", "AS `Current_Date`"])
def test_a_bare_name_that_is_an_alias_is_not_the_clocks(alias: str) -> None:
    inner = f"SELECT * FROM (SELECT day {alias} FROM t) WHERE "
    found = bind(f"{inner}current_date > DATE '2020-01-01'", {}, name="q", clock=CLOCK)
    assert found.sql == f"{inner}current_date > DATE '2020-01-01'"
    assert not found.moments
    found = bind(f"{inner}current_date > current_date()", {}, name="q", clock=CLOCK)
    assert found.sql == f"{inner}current_date > DATE '2026-03-01'"


def test_a_string_that_says_so_is_no_name() -> None:
    sql = "SELECT 'current_date' FROM t WHERE day > current_date"
    found = bind(sql, {}, name="q", clock=CLOCK)
    assert found.sql == "SELECT 'current_date' FROM t WHERE day > DATE '2026-03-01'"
