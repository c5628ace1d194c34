"""Choosing what to sketch: safe together, wanted ones first, a reason for each candidate."""

from __future__ import annotations

import pytest

from impctl.errors import UnsafeSketchError
from impctl.safety.choose import Choice, choose_attributes
from impctl.safety.facts import Fact, FactKind, FactSource
from impctl.sql.statement import parse_query
from tests.support.schemas import schema_of

CATALOG = {
    "sales": schema_of("brand string, price int, sold int"),
    "brands": schema_of("name string, country string"),
}
POSITIVE = tuple(
    Fact("sales", column, FactKind.NONNEGATIVE, FactSource.STATISTICS)
    for column in ("price", "sold")
)
REVENUE = (
    "SELECT brand, SUM(price * sold) AS rev FROM sales GROUP BY brand"
    " HAVING SUM(price * sold) > 5000"
)
AVERAGE = "SELECT brand, AVG(price) FROM sales GROUP BY brand HAVING AVG(price) > 500"


def chosen(sql: str, *facts: Fact, **options: object) -> Choice:
    candidates = options.pop("candidates", {"sales": ("price", "brand")})
    wanted = options.pop("wanted", {})
    return choose_attributes(
        parse_query(sql, CATALOG),
        candidates,  # type: ignore[arg-type]
        facts,
        wanted,  # type: ignore[arg-type]
        **options,  # type: ignore[arg-type]
    )


def test_a_grouping_attribute_is_preferred_when_nothing_else_decides() -> None:
    result = chosen(REVENUE, *POSITIVE)
    assert result.sketched == {"sales#1": "brand"}
    assert result.verdict.safe
    assert [(c.column, c.safe, c.chosen) for c in result.considered] == [
        ("price", True, False),
        ("brand", True, True),
    ]
    assert result.considered[0].reason == "safe, but `brand` is a grouping attribute"


def test_cost_decides_before_anything_else() -> None:
    costs = {("sales", "price"): 10.0, ("sales", "brand"): 500.0}
    result = chosen(REVENUE, *POSITIVE, weigh=lambda options: costs)
    assert result.sketched == {"sales#1": "price"}
    assert set(result.verdict.assumptions) == set(POSITIVE)
    assert result.considered[1].reason == "safe, but `price` is expected to read less"


def test_the_order_of_candidates_decides_among_equals() -> None:
    result = chosen(
        "SELECT brand, price FROM sales WHERE sold > 3", candidates={"sales": ("sold", "price")}
    )
    assert result.sketched == {"sales#1": "price"}, "price comes out of the query as a key"
    result = chosen(
        "SELECT brand FROM sales WHERE sold > 3", candidates={"sales": ("sold", "price")}
    )
    assert result.sketched == {"sales#1": "sold"}
    assert result.considered[1].reason == "safe, but `sold` is preferred"


def test_an_unsafe_candidate_says_why() -> None:
    result = chosen(AVERAGE)
    assert result.sketched == {"sales#1": "brand"}
    price = result.considered[0]
    assert not price.safe
    assert price.reason == (
        "HAVING compares `AVG(price)`, which can be larger or smaller over part of a group than"
        " over all of it"
    )
    assert price.span is not None


def test_what_is_wanted_is_taken() -> None:
    result = chosen(REVENUE, *POSITIVE, wanted={"sales": "price"})
    assert result.sketched == {"sales#1": "price"}


def test_what_is_wanted_but_unsafe_is_refused_with_the_safe_ones() -> None:
    with pytest.raises(UnsafeSketchError) as caught:
        chosen(AVERAGE, wanted={"sales": "price"}, name="q_avg")
    assert caught.value.message == (
        "A sketch of `sales.price` is not safe for query `q_avg`: HAVING compares `AVG(price)`,"
        " which can be larger or smaller over part of a group than over all of it"
    )
    assert caught.value.hint == "safe for this query: `sales.brand`"
    assert str(caught.value.location) == "query `q_avg`:1:59"
    assert caught.value.exit_code == 3


def test_nothing_safe_is_refused() -> None:
    with pytest.raises(UnsafeSketchError, match="the only candidate is not safe") as caught:
        chosen(AVERAGE, candidates={"sales": ("price",)})
    assert "add `sales.brand` under `partitions`" in (caught.value.hint or "")
    with pytest.raises(UnsafeSketchError, match="no candidate attribute"):
        chosen(AVERAGE, candidates={})


def test_a_wanted_table_that_is_not_read_is_refused() -> None:
    with pytest.raises(UnsafeSketchError, match="does not read table `brands`"):
        chosen(AVERAGE, wanted={"brands": "name"})


JOIN = (
    "SELECT brand, AVG(price) FROM sales JOIN brands ON brand = name GROUP BY brand"
    " HAVING AVG(price) > 500"
)


def test_accesses_are_safe_together() -> None:
    candidates = {"sales": ("brand",), "brands": ("country", "name")}
    result = chosen(JOIN, candidates=candidates)
    assert result.sketched == {"sales#1": "brand", "brands#1": "name"}
    assert result.verdict.safe


def test_keys_that_exclude_each_other_are_not_taken_together() -> None:
    sql = (
        "SELECT brand, country, n FROM (SELECT brand, COUNT(*) AS n FROM sales GROUP BY brand"
        " HAVING COUNT(*) > 2) a LEFT JOIN brands ON brand = name"
    )
    result = chosen(sql, candidates={"sales": ("price",), "brands": ("country",)})
    assert result.sketched == {"sales#1": "price"}
    brands = next(c for c in result.considered if c.access == "brands#1")
    assert not brands.safe

    union = (
        "SELECT name, COUNT(*) FROM (SELECT brand AS name, price FROM sales UNION ALL"
        " SELECT name, 1 FROM brands) a GROUP BY name HAVING COUNT(*) > 2"
    )
    both = chosen(union, candidates={"sales": ("price",), "brands": ("country",)})
    assert both.sketched == {"sales#1": "price", "brands#1": "country"}


def test_wanted_attributes_that_exclude_each_other_are_refused() -> None:
    sql = (
        "SELECT brand FROM sales JOIN (SELECT country, name FROM brands ORDER BY country LIMIT 1) b"
        " ON brand = name"
    )
    # The top row of brands is a choice among ties: either table alone may be sketched.
    assert chosen(sql, candidates={"brands": ("country",)}).sketched == {"brands#1": "country"}
    with pytest.raises(UnsafeSketchError):
        chosen(sql, wanted={"brands": "country", "sales": "brand"})


def test_every_access_of_a_table_gets_its_own_sketch() -> None:
    sql = (
        "SELECT a.brand FROM sales a WHERE a.price > 3 AND NOT EXISTS"
        " (SELECT 1 FROM sales b WHERE b.brand = a.brand AND b.price > a.price)"
    )
    result = chosen(sql, wanted={"sales": "price"})
    assert result.sketched == {"sales#1": "price"}
    second = next(c for c in result.considered if c.access == "sales#2")
    assert not second.safe
    assert second.reason.startswith("NOT EXISTS")
