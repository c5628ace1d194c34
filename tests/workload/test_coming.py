"""`changes` of a table: never, one expectation or several; everything wrong is told with place."""

from __future__ import annotations

from typing import Any

import pytest

from impctl.workload.models import ComingSpec
from tests.workload.conftest import Load, Problems

DECEMBER = 1_796_083_200.0
"""2026-12-01 in UTC."""


def text(changes: str) -> str:
    return (
        "version: 1\nqueries: {q: {sql: SELECT 1}}\ntables:\n  t:\n    path: t\n"
        f"    changes: {changes}\n"
    )


def coming(load: Load, changes: str, **env: str) -> Any:
    return load(text(changes), env).tables["t"].coming


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{every: 1h}", ComingSpec(3600.0, None, 0.0, None, None)),
        ("{every: 1h, rows: 200, deletes: 5%}", ComingSpec(3600.0, 200, 0.05, None, None)),
        ("{every: 90s, rows: 1, deletes: 100 %}", ComingSpec(90.0, 1, 1.0, None, None)),
        ("{until: 2026-12-01}", ComingSpec(None, None, 0.0, None, DECEMBER)),
        ("{from: '2026-12-01', every: 7d}", ComingSpec(604800.0, None, 0.0, DECEMBER, None)),
        (
            "{from: 2026-12-01 01:00:00+01:00, until: 2026-12-01 00:00:01}",
            ComingSpec(None, None, 0.0, DECEMBER, DECEMBER + 1),
        ),
        ("{every: '${E}', rows: 2}", ComingSpec(60.0, 2, 0.0, None, None)),
    ],
)
def test_one_expectation(load: Load, written: str, expected: ComingSpec) -> None:
    assert coming(load, written, E="1m") == (expected,)
    assert coming(load, f"[{written}, {{every: 2h}}]", E="1m") == (
        expected,
        ComingSpec(7200.0, None, 0.0, None, None),
    )


def test_never_and_nothing_are_two_things(load: Load) -> None:
    assert load(text("never")).tables["t"].never_changes
    assert coming(load, "'${W}'", W="never") == ()
    silent = load("version: 1\nqueries: {q: {sql: SELECT 1}}\ntables: {t: {path: t}}\n")
    assert silent.tables["t"].coming is None
    assert not silent.tables["t"].never_changes


@pytest.mark.parametrize(
    ("written", "place", "part"),
    [
        ("always", "6:14", "must be `never`, a mapping, or a list of mappings"),
        ("7", "6:14", "must be text"),
        ("[]", "6:14", "is empty"),
        ("{}", "6:14", "is empty"),
        ("[never]", "6:15", "must be a mapping"),
        ("{often: 1h}", "6:15", "Key `often` is unknown"),
        ("{every: 5}", "6:22", "`5` is not a duration"),
        ("{every: 0s}", "6:22", "`0s` is not a duration"),
        ("{every: -1s}", "6:22", "`-1s` is not a duration"),
        ("{every: 10 parsecs}", "6:22", "`10 parsecs` is not a duration"),
        ("{every: }", "6:22", "is not a duration"),
        ("{every: 1h, rows: 0}", "6:32", "must be from 1 to"),
        ("{every: 1h, rows: 1.5}", "6:32", "must be a whole number"),
        ("{rows: 5}", "6:21", "needs `every`"),
        ("{every: 1h, deletes: 5%}", "6:35", "needs `rows`"),
        ("{every: 1h, rows: 5, deletes: 5}", "6:44", "is not a share"),
        ("{every: 1h, rows: 5, deletes: 101%}", "6:44", "is not a share"),
        ("{until: soon}", "6:22", "`soon` is not a date or a time"),
        ("{until: 5}", "6:22", "`5` is not a date or a time"),
        ("{until: 2026-02-30}", "6:22", "does not exist in the calendar"),
        ("{until: '2026-02-30'}", "6:22", "does not exist in the calendar"),
        ("{from: 2026-12-01, until: 2026-12-01}", "6:40", "must be later than `from`"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(
    problems: Problems, written: str, place: str, part: str
) -> None:
    (result,) = problems(text(written))
    assert result.startswith(f"{place} ")
    assert part in result
    assert "`tables.t.changes" in result


def test_no_message_shows_the_value_of_a_variable(problems: Problems) -> None:
    (result,) = problems(text("{every: '${E}'}"), {"E": "secret"})
    assert "secret" not in result
    assert "${E}" in result


def test_two_entries_for_one_table_say_the_same(load: Load, problems: Problems) -> None:
    head = "version: 1\nqueries: {q: {sql: SELECT 1}}\ntables:\n"
    one = load(f"{head}  t: {{path: a}}\n  u: {{path: a, changes: never}}\n")
    assert one.tables["t"].never_changes
    (result,) = problems(
        f"{head}  t: {{path: a, changes: {{every: 1h}}}}\n  u: {{path: a, changes: never}}\n"
    )
    assert result.startswith("5:3 Tables `t` and `u` are the same table, with different `changes`")
