"""Equal for the same meaning, different for another one."""

from __future__ import annotations

import pytest

from impctl.plan.fingerprint import fingerprint
from tests.plan.catalogs import plan_of
from tests.plan.golden_pairs import pairs

BASE = (
    "SELECT brand, sum(price) AS rev FROM sales WHERE price > 3 GROUP BY brand HAVING count(*) > 1"
)


@pytest.mark.parametrize(
    "same",
    [
        BASE.lower(),
        BASE.replace(" ", "\n  "),
        "-- a remark\n" + BASE,
        BASE.replace("rev", "revenue"),
        "SELECT s.brand b, SUM(s.PRICE) FROM Sales AS s WHERE s.price > 3 GROUP BY 1 "
        "HAVING count(1) > 1",
        "SELECT * FROM (SELECT brand, sum(price) FROM sales WHERE price > 3 GROUP BY brand "
        "HAVING count(*) > 1) q",
    ],
)
def test_the_same_meaning(same: str) -> None:
    assert fingerprint(plan_of(same)) == fingerprint(plan_of(BASE))


def test_every_difference_in_meaning_shows() -> None:
    texts = [
        BASE,
        BASE.replace("> 3", "> 4"),
        BASE.replace("> 3", ">= 3"),
        BASE.replace("> 3", "> 3L"),
        BASE.replace("> 3", "> 3.0"),
        BASE.replace("> 3", "> '3'"),
        BASE.replace("sum(price)", "sum(numSold)"),
        BASE.replace("sum(price)", "max(price)"),
        BASE.replace("sum(price)", "sum(DISTINCT price)"),
        BASE.replace("sum(price)", "sum(price) FILTER (WHERE ok)"),
        BASE.replace("brand", "ok"),
        "SELECT DISTINCT * FROM (" + BASE + ")",
        BASE + " ORDER BY brand LIMIT 3",
        BASE + " ORDER BY brand DESC LIMIT 3",
        BASE + " ORDER BY brand LIMIT 4",
        BASE + " ORDER BY brand NULLS LAST LIMIT 3",
        *(sql for sql, _ in pairs("parse")[1:]),
    ]
    result = {fingerprint(plan_of(text)) for text in texts}
    assert len(result) == len(texts)


def test_it_is_a_stable_digest() -> None:
    digest = fingerprint(plan_of("SELECT brand FROM stock"))
    assert digest == fingerprint(plan_of("SELECT brand FROM stock"))
    assert len(digest) == 64
    assert int(digest, 16) > 0
