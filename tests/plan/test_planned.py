"""Plans remembered: the very same for the same text over the same schemas, else read anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from impctl.data.schema import LONG, STRING, Column, Schema
from impctl.errors import QueryError
from impctl.plan import planned as room
from impctl.plan.parse import parse_query
from impctl.plan.planned import planned
from impctl.plan.rules import apply_rules, core_of

SQL = "SELECT a, SUM(b) AS s FROM t GROUP BY a HAVING SUM(b) > 5"


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    room._remembered.clear()
    yield
    room._remembered.clear()


def schema(*names: str) -> Schema:
    return Schema(tuple(Column(name, LONG) for name in names))


def test_a_plan_is_what_reading_and_the_rules_give() -> None:
    found = planned(SQL, {"t": schema("a", "b")}, name="q", zone="UTC")
    query = parse_query(SQL, {"t": schema("a", "b")}, name="q")
    assert found.query == query
    assert found.ruled.root == apply_rules(query.root)
    assert found.core == core_of(query.root)


def test_it_is_remembered_while_the_tables_that_it_reads_stay_the_same() -> None:
    first = planned(SQL, {"t": schema("a", "b"), "u": schema("x")}, name="q", zone="UTC")
    again = planned(SQL, {"t": schema("a", "b"), "u": schema("y")}, name="q", zone="UTC")
    assert again is first, "table `u` is not read"


@pytest.mark.parametrize(
    "change",
    [
        {"catalog": {"t": schema("b", "a")}},
        {"catalog": {"t": schema("a", "b", "c")}},
        {"catalog": {"t": Schema((Column("a", STRING), Column("b", LONG)))}},
        {"catalog": {"t": schema("a", "b"), "T2": schema("a")}},
        {"zone": "+02:00"},
        {"name": "other"},
        {"sql": SQL + " "},
    ],
    ids=str,
)
def test_whatever_else_changes_is_read_anew(change: dict[str, object]) -> None:
    given = {"sql": SQL, "catalog": {"t": schema("a", "b")}, "name": "q", "zone": "UTC"}
    first = planned(**given)  # type: ignore[arg-type]
    other = planned(**(given | change))  # type: ignore[arg-type]
    assert other is not first
    fresh = parse_query(**(given | change))  # type: ignore[arg-type]
    assert other.query == fresh
    assert planned(**(given | change)) is other  # type: ignore[arg-type]


def test_an_error_is_not_remembered() -> None:
    with pytest.raises(QueryError):
        planned(SQL, {"t": schema("a")}, name="q", zone="UTC")
    with pytest.raises(QueryError):
        planned(SQL, {"u": schema("a", "b")}, name="q", zone="UTC")
    assert planned(SQL, {"t": schema("a", "b")}, name="q", zone="UTC").query.sql == SQL
    with pytest.raises(QueryError, match="b"):
        planned(SQL, {"t": schema("a")}, name="q", zone="UTC")


def test_what_is_remembered_is_bounded_and_the_oldest_goes() -> None:
    catalog = {"t": schema("a", "b")}
    for number in range(room._KEPT + 5):
        planned(f"SELECT a FROM t WHERE b > {number}", catalog, name="q", zone="UTC")
    assert len(room._remembered) == room._KEPT
    assert not any(key[0][-3:] == "> 4" for key in room._remembered)
