"""Plans remembered: the very same for the same text over the same schemas, else read anew."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping

import pytest

from impctl.data.schema import LONG, Column, Schema
from impctl.errors import QueryError
from impctl.plan.fingerprint import fingerprint
from impctl.plan.nodes import TopK, nodes_of
from impctl.rules.optimize import KEPT, Planned, PlannedQueries, apply_rules, core_of
from impctl.sql.statement import parse_query
from tests.support.schemas import schema_of

SQL = "SELECT a, SUM(b) AS s FROM t GROUP BY a HAVING SUM(b) > 5"


@pytest.fixture
def planned() -> Callable[..., Planned]:
    return PlannedQueries().of


def schema(*names: str) -> Schema:
    return Schema(tuple(Column(name, LONG) for name in names))


def test_a_plan_is_what_reading_and_the_rules_give(planned: Callable[..., Planned]) -> None:
    result = planned(SQL, {"t": schema("a", "b")}, name="q", zone="UTC")
    query = parse_query(SQL, {"t": schema("a", "b")}, name="q")
    assert result.query == query
    assert result.ruled.root == apply_rules(query.root)
    assert result.core == core_of(query.root)


def test_it_is_remembered_while_the_tables_that_it_reads_stay_the_same(
    planned: Callable[..., Planned],
) -> None:
    first = planned(SQL, {"t": schema("a", "b"), "u": schema("x")}, name="q", zone="UTC")
    again = planned(SQL, {"t": schema("a", "b"), "u": schema("y")}, name="q", zone="UTC")
    assert again is first, "table `u` is not read"


@pytest.mark.parametrize(
    "change",
    [
        {"catalog": {"t": schema("b", "a")}},
        {"catalog": {"t": schema("a", "b", "c")}},
        {"catalog": {"t": schema_of("a string, b bigint")}},
        {"catalog": {"t": schema("a", "b"), "T2": schema("a")}},
        {"zone": "+02:00"},
        {"name": "other"},
        {"sql": SQL + " "},
    ],
    ids=str,
)
def test_whatever_else_changes_is_read_anew(
    planned: Callable[..., Planned], change: dict[str, object]
) -> None:
    given = {"sql": SQL, "catalog": {"t": schema("a", "b")}, "name": "q", "zone": "UTC"}
    first = planned(**given)
    other = planned(**(given | change))
    assert other is not first
    fresh = parse_query(**(given | change))  # type: ignore[arg-type]
    assert other.query == fresh
    assert planned(**(given | change)) is other


def test_an_error_is_not_remembered(planned: Callable[..., Planned]) -> None:
    with pytest.raises(QueryError):
        planned(SQL, {"t": schema("a")}, name="q", zone="UTC")
    with pytest.raises(QueryError):
        planned(SQL, {"u": schema("a", "b")}, name="q", zone="UTC")
    assert planned(SQL, {"t": schema("a", "b")}, name="q", zone="UTC").query.sql == SQL
    with pytest.raises(QueryError, match="b"):
        planned(SQL, {"t": schema("a")}, name="q", zone="UTC")


def test_what_is_remembered_is_bounded_and_what_was_not_asked_for_longest_goes() -> None:
    catalog = {"t": schema("a", "b")}
    queries = PlannedQueries()

    def ask(number: int) -> Planned:
        sql = f"SELECT a FROM t WHERE b > {number}"
        return queries.of(sql, catalog, name="q", zone="UTC")

    first, second = ask(0), ask(1)
    for number in range(2, KEPT + 1):
        ask(number)
        assert ask(0) is first
    assert len(queries) == KEPT
    assert ask(1) is not second


class Tables(Mapping[str, Schema]):
    """A catalog as a run has one: it holds on to much else."""

    def __getitem__(self, table: str) -> Schema:
        if table != "t":
            raise KeyError(table)
        return schema("a", "b")

    def __iter__(self) -> Iterator[str]:
        return iter(("t",))

    def __len__(self) -> int:
        return 1


@pytest.mark.slow
def test_no_catalog_is_kept(planned: Callable[..., Planned]) -> None:
    catalog = Tables()
    gone = weakref.ref(catalog)
    planned(SQL, catalog, name="q", zone="UTC")
    del catalog
    gc.collect()
    assert gone() is None
    assert planned(SQL, Tables(), name="q", zone="UTC").query.sql == SQL


@pytest.mark.parametrize(
    ("sql", "cut"),
    [
        ("SELECT a FROM t WHERE b > 5 LIMIT 3", 3),
        ("(SELECT a FROM t WHERE b > 5) LIMIT 0", 0),
        ("SELECT * FROM (SELECT a FROM t WHERE b > 5 LIMIT 3) AS virtual_table", 3),
        ("SELECT a FROM t WHERE b > 5 LIMIT ALL", None),
    ],
)
def test_a_last_limit_without_order_leaves_the_plan_of_the_whole_answer(
    planned: Callable[..., Planned], sql: str, cut: int | None
) -> None:
    catalog = {"t": schema("a", "b")}
    result = planned(sql, catalog, name="q", zone="UTC")
    whole = planned("SELECT a FROM t WHERE b > 5", catalog, name="q", zone="UTC")
    assert result.query.cut == cut
    assert (result.query.sql, result.ruled.sql) == (sql, sql)
    assert fingerprint(result.ruled.root) == fingerprint(whole.ruled.root)
    assert fingerprint(result.core) == fingerprint(whole.core)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a FROM t ORDER BY b LIMIT 3",
        "SELECT a FROM t LIMIT 3 OFFSET 1",
        "SELECT a + 1 AS c FROM (SELECT a FROM t LIMIT 3)",
        "SELECT COUNT(*) AS n FROM (SELECT a FROM t LIMIT 3)",
        "SELECT a FROM t UNION ALL (SELECT a FROM t LIMIT 3)",
        "SELECT a FROM t WHERE a IN (SELECT b FROM t LIMIT 3)",
    ],
)
def test_any_other_limit_stays_in_the_plan(planned: Callable[..., Planned], sql: str) -> None:
    result = planned(sql, {"t": schema("a", "b")}, name="q", zone="UTC")
    assert result.query.cut is None
    assert any(isinstance(node, TopK) for node in nodes_of(result.query.root))
