"""Views put into texts: once, before all else, under names that capture nothing."""

from __future__ import annotations

import pytest

from impctl.errors import QueryError
from impctl.plan.fingerprint import fingerprint
from impctl.sql.names import TableNames
from impctl.sql.statement import parse_query
from impctl.sql.views import Views, expand_views
from tests.support.schemas import schema_of

TABLES = {"t": schema_of("k int, x int")}
NAMES = TableNames({("c", "s", "t"): "t"}, catalog="c", schema="s")
VIEWS: Views = {
    ("c", "s", "big"): ("big", "SELECT k, x FROM s.t WHERE x > 5 -- only big ones"),
    ("c", "s", "twice"): ("twice", "SELECT b.k, b.x FROM big b JOIN big ON big.k = b.k;"),
    ("c", "o", "far"): ("o.far", "WITH big AS (SELECT 1 AS k FROM t) SELECT k FROM big"),
    ("c", "s", "a"): ("a", "SELECT * FROM b"),
    ("c", "s", "b"): ("b", "SELECT * FROM (SELECT * FROM s.a)"),
}
BIG = "(SELECT k, x FROM t WHERE x > 5)"


def expanded(sql: str) -> str:
    return expand_views(sql, VIEWS, NAMES, name="q").sql


@pytest.mark.parametrize(
    ("sql", "same"),
    [
        ("SELECT k FROM big", f"SELECT k FROM {BIG} big"),
        ("SELECT big.k FROM s.BIG", f"SELECT big.k FROM {BIG} big"),
        ("SELECT c.s.big.k FROM c.s.big", f"SELECT big.k FROM {BIG} big"),
        ("SELECT v.k FROM `big` AS v", f"SELECT v.k FROM {BIG} v"),
        ("/* a */ WITH c AS (SELECT * FROM big) SELECT k FROM c", f"SELECT k FROM {BIG} c"),
        ("(SELECT k FROM big) UNION ALL SELECT k FROM t",
         f"(SELECT k FROM {BIG} b) UNION ALL SELECT k FROM t"),
        ("SELECT k FROM twice",
         f"SELECT k FROM (SELECT b.k, b.x FROM {BIG} b JOIN {BIG} big ON big.k = b.k) y"),
        # A WITH entry of the query is nearer than a view, and no view sees it.
        ("WITH big AS (SELECT * FROM t) SELECT k FROM big", "SELECT k FROM t"),
        ("WITH t AS (SELECT * FROM t WHERE k = 1) SELECT big.k FROM big",
         f"SELECT k FROM {BIG} big"),
        ("WITH x AS (SELECT * FROM big), big AS (SELECT * FROM t) "
         "SELECT x.k FROM x JOIN big ON x.k = big.k",
         f"SELECT x.k FROM {BIG} x JOIN t big ON x.k = big.k"),
        ("WITH big AS (SELECT * FROM big) SELECT k FROM big", f"SELECT k FROM {BIG} big"),
        ("SELECT far.k FROM o.far", "SELECT far.k FROM (SELECT 1 AS k FROM t) far"),
        ("SELECT k FROM t WHERE k IN (SELECT k FROM big)",
         f"SELECT k FROM t WHERE k IN (SELECT k FROM {BIG} b)"),
    ],
)  # fmt: skip
def test_a_view_is_read_as_its_text_in_place_of_its_name(sql: str, same: str) -> None:
    query = parse_query(expanded(sql), TABLES, names=NAMES)
    wanted = parse_query(same, TABLES, names=NAMES)
    assert fingerprint(query.root) == fingerprint(wanted.root)


@pytest.mark.parametrize(
    "sql", ["SELECT k AS big FROM t", "WITH big AS (SELECT 1 AS a) SELECT * FROM big", "SELECT k"]
)
def test_a_text_without_views_stays_letter_by_letter(sql: str) -> None:
    assert expanded(sql) == sql


def test_views_stand_before_the_entries_of_a_recursion() -> None:
    step = "SELECT big.x FROM r JOIN big ON r.n = big.k"
    sql = f"WITH RECURSIVE r(n) AS (SELECT k FROM big UNION {step}) SELECT n FROM r"
    text = expanded(sql)
    assert text.startswith("WITH RECURSIVE big AS (")
    assert len(text.split("x > 5")) == 2
    inside = sql.replace("FROM big", f"FROM {BIG} big").replace("JOIN big", f"JOIN {BIG} big")
    plans = [parse_query(each, TABLES, names=NAMES).root for each in (text, inside)]
    assert fingerprint(plans[0]) == fingerprint(plans[1])


@pytest.mark.parametrize(
    ("sql", "is_expanded"),
    [
        # Under RECURSIVE an entry is in sight in itself, without the word it is not.
        ("WITH RECURSIVE big AS (SELECT k FROM t UNION SELECT k FROM big) SELECT k FROM big", 0),
        ("WITH big AS (SELECT k FROM t UNION SELECT k FROM big) SELECT k FROM big", 1),
        (
            "WITH RECURSIVE c AS (SELECT k FROM big), big AS (SELECT k FROM t) SELECT k FROM c",
            1,
        ),
    ],
)
def test_a_recursive_entry_hides_a_view_in_itself(sql: str, is_expanded: int) -> None:
    assert expanded(sql).count("x > 5") == is_expanded


def test_a_view_used_twice_stands_once_in_the_text() -> None:
    assert expanded("SELECT a.k FROM twice a, big b").count("x > 5") == 1


def test_views_in_a_circle_are_refused_with_the_circle() -> None:
    with pytest.raises(QueryError) as caught:
        expanded("SELECT * FROM a")
    assert caught.value.code == "view_circle"
    assert "`a` -> `b` -> `a`" in caught.value.message
    place = caught.value.location
    assert (place.file, place.line, place.column) == ("query `view b`", 1, 30)


def test_every_place_leads_back_to_its_letter() -> None:
    sql = "WITH c AS (SELECT 1 AS one)\nSELECT s.big.k\nFROM s.big, o.far f"
    result = expand_views(sql, VIEWS, NAMES, name="q")
    texts: dict[str | None, str] = {**dict(VIEWS.values()), None: sql}
    for word, owner in (("x > 5", "big"), ("SELECT 1 AS k", "o.far"), ("1 AS one", None),
                        ("f", None)):  # fmt: skip
        at = result.sql.rindex(word) if word == "f" else result.sql.index(word)
        line = result.sql.count("\n", 0, at) + 1
        column = at - (result.sql.rfind("\n", 0, at) + 1) + 1
        name, offset = result.written_at(line, column)
        assert name == owner, word
        assert texts[name][offset:].startswith(word), word
