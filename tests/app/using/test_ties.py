"""Answers that tie at a LIMIT: which differences are two right answers, and which are not."""

from __future__ import annotations

import pytest

from impctl.data.schema import LONG, Column, Schema
from impctl.service.verify import CutOrder, Rows, cut_order
from impctl.sql.statement import parse_query

SCHEMA = {"t": Schema((Column("g", LONG), Column("x", LONG)))}
TOP = CutOrder((1,), 3, False)
MINE: Rows = [["a", 9], ["b", 7], ["c", 5]]


def order_of(sql: str) -> CutOrder | None:
    return cut_order(parse_query(sql, SCHEMA).root)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            "SELECT g, SUM(x) AS s FROM t GROUP BY g ORDER BY s DESC LIMIT 3",
            CutOrder((1,), 3, False),
        ),
        ("SELECT x, g FROM t ORDER BY g, x LIMIT 2 OFFSET 4", CutOrder((1, 0), 2, True)),
        ("SELECT g FROM t ORDER BY x LIMIT 2", None),
        ("SELECT g FROM t ORDER BY g", None),
        ("SELECT g FROM t LIMIT 2", None),
        ("SELECT g FROM (SELECT g FROM t ORDER BY g LIMIT 2) GROUP BY g", None),
    ],
)
def test_where_an_order_is_cut(sql: str, expected: CutOrder | None) -> None:
    assert order_of(sql) == expected


@pytest.mark.parametrize(
    ("theirs", "is_right"),
    [
        ([["a", 9], ["b", 7], ["d", 5]], True),
        ([["a", 9], ["b", 7], ["d", 4]], False),
        ([["a", 9], ["e", 7], ["c", 5]], False),
        ([["a", 9], ["b", 7]], False),
        ([["a", 9], ["c", 5], ["d", 5]], False),
    ],
)
def test_only_rows_at_the_cut_may_be_others(theirs: Rows, is_right: bool) -> None:
    assert TOP.are_both_right(MINE, theirs) is is_right


def test_fewer_rows_than_the_limit_were_not_cut() -> None:
    assert not CutOrder((1,), 4, False).are_both_right(MINE, [["a", 9], ["b", 7], ["d", 5]])


def test_an_offset_cuts_at_the_front() -> None:
    theirs: Rows = [["z", 9], ["b", 7], ["c", 5]]
    assert not TOP.are_both_right(MINE, theirs)
    assert CutOrder((1,), 3, True).are_both_right(MINE, theirs)
