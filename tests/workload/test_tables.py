"""Tables of the workload file: names, credentials, expected changes, partitions."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from impctl.workload.models import ExpectedChanges
from tests.support.random_cases import FEW
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


def test_all_names_refer_to_one_entry(load: Load) -> None:
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


def test_an_entry_with_partitions_is_a_separate_source(load: Load) -> None:
    result = load(
        "version: 1\ntables: {t: {path: a}, few: {path: a}, same: {path: a}}\n"
        "queries: {q: {sql: SELECT 1}}\n"
        "partitions: {t: {a: {ranges: 9}}, few: {a: {ranges: 2}}}\n"
    )
    assert list(result.tables) == ["t", "few"]
    assert [part.table for part in result.partitions] == ["t", "few"]
    assert result.names.called("same") == "t"


def test_default_names_are_those_of_spark(load: Load) -> None:
    result = load("version: 1\ntables: {t: {path: t}}\nqueries: {q: {sql: SELECT 1}}\n")
    for name in ("t", "default.t", "spark_catalog.default.T"):
        assert result.names.called(name) == "t"
    assert result.names.called("shop.t") is None


def test_invalid_names_are_located(problems: Problems) -> None:
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
    ("text", "location", "message"),
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
def test_ambiguous_names_are_a_problem(
    problems: Problems, text: str, location: str, message: str
) -> None:
    (result,) = problems(f"{text}\n")
    assert result.startswith(f"{location} ")
    assert message in result


def test_views_have_qualified_names(load: Load) -> None:
    result = load(
        "version: 1\nschema: s\ntables: {t: {path: a}}\nqueries: {q: {sql: SELECT 1}}\n"
        "views: {v: SELECT * FROM t, main.x.w: SELECT 2}\n"
    )
    assert [(full, view.name) for full, view in result.views.items()] == [
        (("spark_catalog", "s", "v"), "v"),
        (("main", "x", "w"), "main.x.w"),
    ]


def test_invalid_names_of_views_are_problems(problems: Problems) -> None:
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


def test_one_path_with_several_expiries_is_several_sources(load: Load) -> None:
    result = load(EXPIRING.format("{column: seen_at, after: 1 hour}"))
    assert list(result.tables) == ["links", "longer", "whole"]
    assert result.names.called("again") == "links"
    assert result.names.called("whole") == "whole"
    expiry = result.tables["links"].expiry
    assert (expiry.column, expiry.after, expiry.location.line) == ("seen_at", 3_600_000_000, 3)
    assert result.tables["whole"].expiry is None


def test_credentials(load: Load, problems: Problems) -> None:
    text = (
        "version: 1\ncredentials: ambient\nqueries: {q: {sql: SELECT 1}}\n"
        "tables: {a: {path: 's3://b/a'}, c: {path: 's3://b/a', credentials: options}}\n"
    )
    tables = load(text).tables
    assert {name: spec.ambient for name, spec in tables.items()} == {"a": True, "c": False}
    plain = load(text.replace("credentials: ambient\n", "")).tables
    assert [(spec.ambient, spec.names) for spec in plain.values()] == [(False, ("c",))]
    (problem,) = problems(text.replace("ambient", "somewhere"))
    assert "`credentials` must be one of `options`, `ambient`" in problem


DECEMBER = 1_796_083_200.0
"""2026-12-01 in UTC."""


def text(changes: str) -> str:
    return (
        "version: 1\nqueries: {q: {sql: SELECT 1}}\ntables:\n  t:\n    path: t\n"
        f"    changes: {changes}\n"
    )


def expected_changes(load: Load, changes: str, **env: str) -> Any:
    return load(text(changes), env).tables["t"].coming


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("{every: 1h}", ExpectedChanges(3600.0, None, 0.0, None, None)),
        ("{every: 1h, rows: 200, deletes: 5%}", ExpectedChanges(3600.0, 200, 0.05, None, None)),
        ("{every: 90s, rows: 1, deletes: 100 %}", ExpectedChanges(90.0, 1, 1.0, None, None)),
        ("{until: 2026-12-01}", ExpectedChanges(None, None, 0.0, None, DECEMBER)),
        ("{from: '2026-12-01', every: 7d}", ExpectedChanges(604800.0, None, 0.0, DECEMBER, None)),
        (
            "{from: 2026-12-01 01:00:00+01:00, until: 2026-12-01 00:00:01}",
            ExpectedChanges(None, None, 0.0, DECEMBER, DECEMBER + 1),
        ),
        ("{every: '${E}', rows: 2}", ExpectedChanges(60.0, 2, 0.0, None, None)),
    ],
)
def test_expected_changes(load: Load, entry: str, expected: ExpectedChanges) -> None:
    assert expected_changes(load, entry, E="1m") == (expected,)
    assert expected_changes(load, f"[{entry}, {{every: 2h}}]", E="1m") == (
        expected,
        ExpectedChanges(7200.0, None, 0.0, None, None),
    )


def test_never_differs_from_no_expectation(load: Load) -> None:
    assert load(text("never")).tables["t"].never_changes
    assert expected_changes(load, "'${W}'", W="never") == ()
    without = load("version: 1\nqueries: {q: {sql: SELECT 1}}\ntables: {t: {path: t}}\n")
    assert without.tables["t"].coming is None
    assert not without.tables["t"].never_changes


def test_no_message_shows_the_value_of_a_variable(problems: Problems) -> None:
    (result,) = problems(text("{until: '${E}'}"), {"E": "secret"})
    assert "secret" not in result
    assert "${E}" in result


def test_entries_of_one_table_must_agree(load: Load, problems: Problems) -> None:
    head = "version: 1\nqueries: {q: {sql: SELECT 1}}\ntables:\n"
    loaded = load(f"{head}  t: {{path: a}}\n  u: {{path: a, changes: never}}\n")
    assert loaded.tables["t"].never_changes
    (result,) = problems(
        f"{head}  t: {{path: a, changes: {{every: 1h}}}}\n  u: {{path: a, changes: never}}\n"
    )
    assert result.startswith("5:3 Tables `t` and `u` are the same table, with different `changes`")


NO_RESET = settings(FEW, suppress_health_check=[HealthCheck.function_scoped_fixture])


def section(partition: str) -> str:
    return f"partitions: {{sales: {{price: {partition}}}}}\n"


@pytest.mark.parametrize(
    ("boundaries", "values"),
    [
        ("[601, 1001, 1501]", (601, 1001, 1501)),
        ("[1]", (1,)),
        ("[-1.5, 0, 2.5]", (-1.5, 0, 2.5)),
        ("[B, a, ä]", ("B", "a", "ä")),
        (
            "['9.5', '10.25', '123456789012345678901.5']",
            ("9.5", "10.25", "123456789012345678901.5"),
        ),
        ("['10', '9']", ("10", "9")),
        ("['2', '2.0']", ("2", "2.0")),
        ("[2022-01-01, 2022-02-01]", (date(2022, 1, 1), date(2022, 2, 1))),
        ("['2022-01-01', '2022-02-01']", ("2022-01-01", "2022-02-01")),
        (
            "[2022-01-01 00:00:00, 2022-01-01 00:00:01]",
            (datetime(2022, 1, 1), datetime(2022, 1, 1, 0, 0, 1)),
        ),
    ],
)
def test_boundaries(load_extra: Load, boundaries: str, values: tuple[Any, ...]) -> None:
    (spec,) = load_extra(section(f"{{boundaries: {boundaries}}}")).partitions
    assert spec.boundaries == values
    assert [type(value) for value in spec.boundaries] == [type(value) for value in values]
    assert (spec.table, spec.column, spec.ranges) == ("sales", "price", None)
    assert (spec.location.line, spec.location.column) == (4, 22)


def test_a_problem_is_located_at_the_value(extra_problems: Problems) -> None:
    text = "partitions:\n  sales:\n    price:\n      boundaries:\n        - 2\n        - 1\n"
    assert extra_problems(text)[0].startswith("6:11 ")


@given(st.lists(st.integers() | st.floats(allow_nan=False, allow_infinity=False), min_size=1))
@NO_RESET
def test_boundaries_must_increase(
    load_extra: Load, extra_problems: Problems, values: list[float]
) -> None:
    text = section(f"{{boundaries: {values!r}}}")
    increase = all(low < high for low, high in zip(values, values[1:], strict=False))
    if increase:
        assert load_extra(text).partitions[0].boundaries == tuple(values)
    else:
        assert "must increase" in extra_problems(text)[0]


@pytest.mark.parametrize("number", [1, 16, 100_000])
def test_ranges(load_extra: Load, number: int) -> None:
    (spec,) = load_extra(section(f"{{ranges: {number}}}")).partitions
    assert (spec.ranges, spec.boundaries) == (number, None)


def test_ranges_from_a_variable(load_extra: Load, extra_problems: Problems) -> None:
    text = "partitions:\n  sales:\n    price:\n      ranges: ${N:-16}\n"
    assert load_extra(text).partitions[0].ranges == 16
    assert load_extra(text, {"N": "8"}).partitions[0].ranges == 8
    assert "not text" in extra_problems(text, {"N": "many"})[0]


def test_the_old_name_of_the_key_is_accepted(load_extra: Load, extra_problems: Problems) -> None:
    (spec,) = load_extra(section("{fragments: 16}")).partitions
    assert (spec.ranges, spec.is_old_key) == (16, True)
    (spec,) = load_extra(section("{ranges: 16}")).partitions
    assert (spec.ranges, spec.is_old_key) == (16, False)
    (result,) = extra_problems(section("{fragments: 16, ranges: 16}"))
    assert "either `boundaries` or `ranges`" in result
