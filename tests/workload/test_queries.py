"""Queries: names, SQL text, sketch, policy and mode."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
import yaml

from impctl.workload.models import MaintainMode, Policy

from .conftest import Load, Problems

HEAD = "version: 1\ntables: {sales: {path: p}}\nqueries:\n"


def test_all_that_a_query_says(load: Load) -> None:
    query = load(
        HEAD + "  q-1.a: {sql: SELECT 1, sketch: {sales: Total Price}, policy: strict, "
        "maintain: eager}\n"
    ).queries["q-1.a"]
    assert (query.name, query.sql) == ("q-1.a", "SELECT 1")
    assert query.sketch == {"sales": "Total Price"}
    assert (query.policy, query.maintain) == (Policy.STRICT, MaintainMode.EAGER)
    assert (query.location.line, query.location.column) == (4, 3)


def test_parameters_have_the_types_that_yaml_gives_them(load: Load) -> None:
    text = HEAD + (
        "  q: {sql: a, params: {i: -5, m: 0.50, d: 1.0e+2, s: '5', n: no, y: 2024-01-31, "
        "t: 2024-01-31T12:00:00Z, b: true, v: '${V:-x}', w: '${W}'}}\n"
    )
    params = load(text, {"W": "1"}).queries["q"].params
    assert params == {
        "i": -5,
        "m": Decimal("0.50"),
        "d": 100.0,
        "s": "5",
        "n": "no",
        "y": date(2024, 1, 31),
        "t": datetime(2024, 1, 31, 12, tzinfo=UTC),
        "b": True,
        "v": "x",
        "w": "1",
    }
    kinds = [type(value) for value in params.values()]
    assert kinds == [int, Decimal, float, str, str, date, datetime, bool, str, str]
    assert load(HEAD + "  q: {sql: a}\n").queries["q"].params == {}


def test_sql_is_taken_as_it_stands(load: Load) -> None:
    text = HEAD + "  q:\n    sql: |\n      SELECT 'a$$b'  -- ${N:-note}\n        FROM sales\n\n"
    assert load(text).queries["q"].sql == "SELECT 'a$b'  -- note\n  FROM sales\n"


def test_a_choice_from_a_variable(load: Load, problems: Problems) -> None:
    text = HEAD + "  q: {sql: a, policy: '${P}'}\n"
    assert load(text, {"P": "full"}).queries["q"].policy is Policy.FULL
    assert "must be one of" in problems(text, {"P": "Full"})[0]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("q: {}", "4:6 Key `sql` is missing in `queries.q` | add `sql:`"),
        ("q: {sql: ''}", "4:12 `queries.q.sql` is empty | write some text"),
        (
            "q: {sql: }",
            f"4:{12 if yaml.__with_libyaml__ else 11} `queries.q.sql` must be text, "
            "not nothing | write the text",
        ),
        ("q: {sql: [a]}", "4:12 `queries.q.sql` must be text, not a list | write a single value"),
        ("q: SELECT 1", "4:6 `queries.q` must be a mapping, not text | write `key: value` pairs"),
        (
            "q: {sql: a, params: {a.b: 1}}",
            "4:24 `a.b` cannot be the name of a parameter | use letters, digits and `_`, and do "
            "not start with a digit",
        ),
        (
            "q: {sql: a, params: {a-b: 1}}",
            "4:24 `a-b` cannot be the name of a parameter | use letters, digits and `_`, and do "
            "not start with a digit",
        ),
        (
            "q: {sql: a, params: {x: null}}",
            "4:27 `queries.q.params.x` has no value for the SQL | write a number, text, a date, a "
            "timestamp, or true or false",
        ),
        (
            "q: {sql: a, policy: incremetal}",
            "4:23 `queries.q.policy` must be one of `auto`, `incremental`, `strict`, `full` "
            "| did you mean `incremental`?",
        ),
        (
            "q: {sql: a, maintain: true}",
            "4:25 `queries.q.maintain` must be text, not true or false | put quotes around it",
        ),
        (
            "q: {sql: a, sketch: {sale: price}}",
            "4:24 Table `sale` in `queries.q.sketch` is not declared under `tables` "
            "| did you mean `sales`?",
        ),
        (
            "q: {sql: a, sketch: price}",
            "4:23 `queries.q.sketch` must be a mapping, or `none` | write `table: column`, or "
            "`none` for a query without a sketch",
        ),
        (
            "q: {sql: a, sketch: {sales: 1}}",
            "4:31 `queries.q.sketch.sales` must be text, not a whole number | put quotes around it",
        ),
        (
            "q a: {sql: a}",
            "4:3 `q a` cannot be the name of a query | use letters, digits, `_`, `-` and `.`, "
            "at most 128 characters",
        ),
    ],
)
def test_queries_that_make_no_sense(problems: Problems, query: str, expected: str) -> None:
    assert problems(f"{HEAD}  {query}\n") == [expected]


def test_all_that_is_wrong_with_a_query_is_told(problems: Problems) -> None:
    result = problems(f"{HEAD}  ../q: {{sqle: a}}\n")
    assert len(result) == 3, "the name, the unknown and the missing key"


@pytest.mark.parametrize(
    "name", ["", "-q", ".", "..", ".a", "a b", "a/b", "a\\n", "a\\nb", "ü", "a" * 129]
)
def test_names_serve_on_a_command_line_and_as_file_names(problems: Problems, name: str) -> None:
    assert "cannot be the name of a query" in problems(f'{HEAD}  "{name}": {{sql: a}}\n')[0]


def test_good_names(load: Load) -> None:
    names = ["q", "Q_1", "7", "a-b.c", "_x", "a" * 128]
    entries = "".join(f'  "{name}": {{sql: a}}\n' for name in names)
    assert list(load(HEAD + entries).queries) == names
