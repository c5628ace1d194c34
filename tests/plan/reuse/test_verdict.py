"""Whose sketch may serve whom: the published table, the counter-examples, texts that differ.

Every refused case proves itself: the sketch of the captured query changes the asked answer.
"""

from __future__ import annotations

import pytest

from impctl.plan.fingerprint import fingerprint, template
from tests.plan.reuse.refused import POSITIVE, REFUSED, TABLE, Case


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_refused_with_its_reason(case: Case) -> None:
    verdict = case.verdict()
    assert not verdict.allowed
    assert verdict.reason == case.reason


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_allowing_it_would_change_the_answer(case: Case) -> None:
    assert case.is_harmed()


RANGE = "SELECT g, count(*) AS n FROM t WHERE x >= {} AND x < {} GROUP BY g HAVING count(*) >= {}"
IMPLIED = "the query needs only rows that the sketch was captured for"


@pytest.mark.parametrize(
    ("captured", "asked", "allowed"),
    [
        ((0, 100, 10), (0, 100, 15), True),
        ((0, 100, 10), (20, 80, 10), True),
        ((0, 100, 10), (20, 80, 9), False),
        ((0, 100, 10), (0, 120, 10), False),
        ((0, 100, 10), (-1, 100, 10), False),
    ],
)
def test_the_published_table(
    captured: tuple[int, ...], asked: tuple[int, ...], allowed: bool
) -> None:
    texts = (RANGE.format(*captured), RANGE.format(*asked))
    for column in ("g", "p"):
        assert Case("table", TABLE, "{}", texts, sketch=(column, (2,))).verdict().allowed is allowed


@pytest.mark.parametrize(
    ("captured", "asked"),
    [
        ("GROUP BY g HAVING count(*) <= 10", "GROUP BY g HAVING count(*) <= 8"),
        ("WHERE g < 'm' GROUP BY g HAVING avg(v) > 3",
         "WHERE g < 'c' GROUP BY g HAVING avg(v) > 3"),
        ("GROUP BY g ORDER BY count(*) DESC LIMIT 10", "GROUP BY g ORDER BY count(*) DESC LIMIT 5"),
        ("GROUP BY g HAVING count(*) BETWEEN 10 AND 20",
         "GROUP BY g HAVING count(*) BETWEEN 12 AND 18"),
        ("WHERE x < 10 GROUP BY g HAVING max(v) > 5", "WHERE x < 8 GROUP BY g HAVING max(v) > 5"),
        ("WHERE x IN (1, 2, 3) GROUP BY g HAVING sum(v) > 5",
         "WHERE x IN (3) GROUP BY g HAVING sum(v) > 5.5"),
        ("GROUP BY g HAVING max(v) > 5 OR count(*) > 3",
         "GROUP BY g HAVING max(v) > 6 OR count(*) > 4"),
    ],
)  # fmt: skip
def test_positive_controls(captured: str, asked: str) -> None:
    values = (captured, asked)
    verdict = Case("control", TABLE, "SELECT g FROM t {}", values, facts=(POSITIVE,)).verdict()
    assert verdict.allowed, verdict.reason
    assert verdict.reason == IMPLIED


def test_a_maximum_below_other_rows_keeps_its_whole_group() -> None:
    """CE-15: a sketch of one witness row would lose the group; sketches hold the whole lineage."""
    witness = Case(
        "CE-15",
        {"t": ("g x p a", ((1, 9, 1, 100), (1, 7, 2, 6)))},
        "SELECT g, max(a) AS m FROM t WHERE x < {} GROUP BY g HAVING max(a) > 5",
        (10, 8),
        sketch=("p", (2,)),
    )
    assert witness.verdict().allowed
    assert not witness.is_harmed()


def test_a_table_with_the_same_columns_is_another_table() -> None:
    tables, values = {"t": TABLE["t"], "s": TABLE["t"]}, ("t WHERE x > 1", "s WHERE x > 2")
    verdict = Case("tables", tables, "SELECT g FROM {}", values).verdict()
    assert not verdict.allowed
    assert verdict.reason == "the queries differ in more than the constants in their conditions"


def test_a_query_with_another_text_is_the_same_query() -> None:
    captured = "SELECT g AS h, count(*) AS n FROM t GROUP BY g HAVING count(*) > 1"
    asked = "select u.g, COUNT( * ) m from t as u group by u.g having count(*) > 1"
    verdict = Case("texts", TABLE, "{}", (captured, asked), sketch=("p", (2,))).verdict()
    assert verdict.allowed
    assert verdict.reason == "it was captured for the same conditions and limits"
    assert verdict.accesses == {"t#1": "t#1"}


def test_accesses_are_matched_by_place() -> None:
    captured = "WITH a AS (SELECT * FROM t) SELECT t.g FROM t JOIN a ON t.g = a.g WHERE t.x > 1"
    asked = "SELECT b.g FROM t AS b JOIN t AS a ON b.g = a.g WHERE b.x > 2"
    case = Case("accesses", TABLE, "{}", (captured, asked))
    verdict = case.verdict()
    assert verdict.allowed, verdict.reason
    here, there = case.queries
    assert template(here.root) == template(there.root)
    assert set(verdict.accesses) == {"t#1", "t#2"}


def test_a_template_leaves_out_constants_of_conditions_and_limits_only() -> None:
    def key(sql: str) -> str:
        return template(Case("", TABLE, "{}", (sql, sql), sketch=("g", ())).queries[0].root)

    base = key("SELECT g FROM t WHERE x IN (1, 2) GROUP BY g HAVING sum(v) > 5 LIMIT 3")
    assert base == key("SELECT g FROM t WHERE x IN (4) GROUP BY g HAVING sum(v) > 5.5 LIMIT 9")
    assert base != key("SELECT g FROM t WHERE x IN (1, 2) GROUP BY g HAVING sum(v) >= 5 LIMIT 3")
    assert base != key("SELECT g FROM t WHERE p IN (1, 2) GROUP BY g HAVING sum(v) > 5 LIMIT 3")
    assert base != key("SELECT g FROM t WHERE x IN (1, 2) GROUP BY g HAVING sum(v+1) > 5 LIMIT 3")
    other = Case("", TABLE, "SELECT g FROM t WHERE x > {}", (1, 2), sketch=("g", ()))
    plans = [query.root for query in other.queries]
    assert template(plans[0]) == template(plans[1])
    assert fingerprint(plans[0]) != fingerprint(plans[1])


def test_a_condition_that_sees_the_sign_of_zero_cuts_a_group_in_two() -> None:
    """Group 0.0 has both zeros of the captured query and one of the asked: it is another group."""
    tables = {"t": ("g v", ((0.0, 1), (-0.0, 2), (1.0, 3)))}
    text = "SELECT g FROM t WHERE {} GROUP BY g HAVING count(*) < 2"
    zeros = ("CAST(g AS STRING) IN ('0.0', '-0.0')", "CAST(g AS STRING) IN ('0.0')")
    verdict = Case("zeros", tables, text, zeros, sketch=("g", (0.5,))).verdict()
    assert not verdict.allowed
    assert "changes the values that it compares" in verdict.reason
    plain = ("g IN (0.0D, 1.0D)", "g IN (0.0D)")
    assert Case("plain", tables, text, plain, sketch=("g", (0.5,))).verdict().allowed


@pytest.mark.parametrize(
    ("captured", "asked"),
    [
        ("-s > '10'", "-s > '5'"),
        ("-s > '5'", "-s > '10'"),
        ("+s > '5'", "+s > '10'"),
        ("-s <> '05'", "-s IN ('5')"),
        ("lower(collate(s, 'UTF8_LCASE')) > 'B'", "lower(collate(s, 'UTF8_LCASE')) > 'a'"),
        ("trim(collate(s, 'UTF8_LCASE')) > 'B'", "trim(collate(s, 'UTF8_LCASE')) > 'a'"),
        ("ucase(collate(s, 'UTF8_LCASE')) > 'B'", "ucase(collate(s, 'UTF8_LCASE')) > 'a'"),
        (
            "replace(s, '-', collate('+', 'UTF8_LCASE')) > 'B'",
            "replace(s, '-', collate('+', 'UTF8_LCASE')) > 'a'",
        ),
        ("rpad(CAST(s AS BINARY), 9) > 'B'", "rpad(CAST(s AS BINARY), 9) > 'a'"),
    ],
)
def test_what_is_no_plain_text_to_spark_has_no_order_of_texts(captured: str, asked: str) -> None:
    tables = {"t": ("s p", (("-7", 1), ("-70", 2)))}
    values, sql = (captured, asked), "SELECT p FROM t WHERE {}"
    assert not Case("no plain texts", tables, sql, values, sketch=("p", (2,))).verdict().allowed
