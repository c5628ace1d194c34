"""Names of tables in the workload file: defaults, dotted keys, aliases, one path twice."""

from __future__ import annotations

import pytest

from tests.workload.conftest import Load, Problems

NAMED = """\
version: 1
catalog: main
schema: shop
tables:
  sales: {path: s, names: [legacy.umsatz, "`a b`.`c.d`"]}
  hr.people: {path: p}
  again: {path: ./s}
  other: {path: s, storage_options: {endpoint: x}}
queries: {q: {sql: SELECT 1, sketch: {again: a}}}
partitions: {main.shop.SALES: {a: {ranges: 2}}}
updates: [{name: u, delete: {table: legacy.umsatz, where: a = 1}}]
"""


def test_all_names_lead_to_one_entry(load: Load) -> None:
    result = load(NAMED)
    assert list(result.tables) == ["sales", "hr.people", "other"]
    for name in ("sales", "shop.Sales", "legacy.umsatz", "again", "main.`a b`.`c.d`"):
        assert result.names.called(name) == "sales", name
    assert result.names.called("hr.people") == "hr.people"
    assert result.names.called("people") is None
    assert result.names.called("other") == "other"
    assert result.queries["q"].sketch == {"sales": "a"}
    assert result.partitions[0].table == "sales"
    assert result.updates[0].table == "sales"


def test_an_entry_with_partitions_is_a_source_of_its_own(load: Load) -> None:
    result = load(
        "version: 1\ntables: {t: {path: a}, few: {path: a}, same: {path: a}}\n"
        "queries: {q: {sql: SELECT 1}}\n"
        "partitions: {t: {a: {ranges: 9}}, few: {a: {ranges: 2}}}\n"
    )
    assert list(result.tables) == ["t", "few"]
    assert [part.table for part in result.partitions] == ["t", "few"]
    assert result.names.called("same") == "t"


def test_without_defaults_names_are_as_sparks_own(load: Load) -> None:
    result = load("version: 1\ntables: {t: {path: t}}\nqueries: {q: {sql: SELECT 1}}\n")
    for name in ("t", "default.t", "spark_catalog.default.T"):
        assert result.names.called(name) == "t"
    assert result.names.called("shop.t") is None


def test_names_that_are_none_are_problems_at_their_place(problems: Problems) -> None:
    result = problems(
        "version: 1\ncatalog: a.b\nschema: 7up\nqueries: {q: {sql: SELECT 1}}\n"
        "tables:\n  t: {path: a, names: [a.b.c.d, 'x y']}\n"
    )
    assert [line.split(" | ")[0] for line in result] == [
        "2:10 `catalog` cannot be `a.b`",
        "3:9 `schema` cannot be `7up`",
        "6:24 `a.b.c.d` cannot be the name of a table",
        "6:33 `x y` cannot be the name of a table",
    ]


SHOP = """\
version: 1
schema: shop
queries: {q: {sql: SELECT 1}}
tables:
  sales: {path: a}
"""


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        (SHOP + "  shop.sales: {path: b}", "6:3", "have the same name"),
        (SHOP + "  b: {path: b, names: [Sales]}", "6:24", "have the same name"),
        (SHOP + "  b: {path: b, names: [spark_catalog.SHOP.`sales`]}", "6:24", "the same name"),
        (SHOP.replace("1}}", "1, sketch: {sales: a, shop.sales: b}}}"), "3:49", "appears twice"),
        (
            SHOP + "partitions: {sales: {a: {ranges: 2}}, SALES: {A: {ranges: 3}}}",
            "6:47",
            "is partitioned twice",
        ),
    ],
)
def test_two_names_for_one_or_one_for_two_are_a_problem(
    problems: Problems, text: str, place: str, said: str
) -> None:
    (result,) = problems(f"{text}\n")
    assert result.startswith(f"{place} ")
    assert said in result


def test_views_are_read_by_their_whole_names(load: Load) -> None:
    result = load(
        "version: 1\nschema: s\ntables: {t: {path: a}}\nqueries: {q: {sql: SELECT 1}}\n"
        "views: {v: SELECT * FROM t, main.x.w: SELECT 2}\n"
    )
    assert [(full, view.name) for full, view in result.views.items()] == [
        (("spark_catalog", "s", "v"), "v"),
        (("main", "x", "w"), "main.x.w"),
    ]


def test_views_called_as_something_else_or_nothing_are_problems(problems: Problems) -> None:
    result = problems(
        "version: 1\nschema: s\ntables: {t: {path: a}}\nqueries: {q: {sql: SELECT 1}}\n"
        "views:\n  s.T: SELECT 1\n  v: SELECT 2\n  S.v: SELECT 3\n  a-b: SELECT 4\n  e: ''\n"
    )
    assert [line.split(" | ")[0] for line in result] == [
        "6:3 View `s.T` has the same name as `t`",
        "8:3 View `S.v` has the same name as `v`",
        "9:3 `a-b` cannot be the name of a view",
        "10:6 `views.e` is empty",
    ]


EXPIRING = """\
version: 1
tables:
  links: {{path: links, expiry: {}}}
  again: {{path: links, expiry: {{column: SEEN_AT, after: 60m}}}}
  longer: {{path: links, expiry: {{column: seen_at, after: 2h}}}}
  whole: {{path: links}}
queries: {{q: {{sql: SELECT 1}}}}
"""


def test_one_path_with_other_expiries_is_several_sources(load: Load) -> None:
    result = load(EXPIRING.format("{column: seen_at, after: 1 hour}"))
    assert list(result.tables) == ["links", "longer", "whole"]
    assert result.names.called("again") == "links"
    assert result.names.called("whole") == "whole"
    expiry = result.tables["links"].expiry
    assert (expiry.column, expiry.after, expiry.location.line) == ("seen_at", 3_600_000_000, 3)
    assert result.tables["whole"].expiry is None


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{column: seen_at}", "`after`"),
        ("{after: 1h}", "`column`"),
        ("{column: seen_at, after: 5}", "is not a duration"),
        ("{column: seen_at, after: 0s}", "is not a duration"),
        ("{column: seen_at, after: soon}", "is not a duration"),
        ("{column: '', after: 1h}", "column"),
        ("{column: seen_at, after: 1h, by: x}", "`by`"),
        ("1 hour", "mapping"),
    ],
)
def test_expiries_that_say_nothing_are_problems(
    problems: Problems, written: str, said: str
) -> None:
    (result,) = problems(EXPIRING.format(written))
    assert said in str(result)
