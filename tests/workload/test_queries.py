"""Queries, defaults, updates and triggers: loaded values and problems."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import takewhile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impctl.workload.models import (
    ChangeSpec,
    DeleteSpec,
    InsertSpec,
    JoinStrategy,
    LineageMode,
    MaintainMode,
    Policy,
    SimpleTrigger,
    StateKept,
    Trigger,
)
from impctl.workload.scalars import MACROS, ScalarFault, read_cron, seconds_in, written
from tests.support.random_cases import CHARACTERS, FEW
from tests.workload.conftest import Load, Problems

HEAD = "version: 1\ntables: {sales: {path: p}}\nqueries:\n"


def test_all_keys_of_a_query(load: Load) -> None:
    query = load(
        HEAD + "  q-1.a: {sql: SELECT 1, sketch: {sales: Total Price}, policy: strict, "
        "maintain: eager}\n"
    ).queries["q-1.a"]
    assert (query.name, query.sql) == ("q-1.a", "SELECT 1")
    assert query.sketch == {"sales": "Total Price"}
    assert (query.policy, query.maintain) == (Policy.STRICT, MaintainMode.EAGER)
    assert (query.location.line, query.location.column) == (4, 3)


def test_parameters_have_yaml_types(load: Load) -> None:
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


def test_sql_text_is_not_changed(load: Load) -> None:
    text = HEAD + "  q:\n    sql: |\n      SELECT 'a$$b'  -- ${N:-note}\n        FROM sales\n\n"
    assert load(text).queries["q"].sql == "SELECT 'a$b'  -- note\n  FROM sales\n"


def test_a_choice_from_a_variable(load: Load, problems: Problems) -> None:
    text = HEAD + "  q: {sql: a, policy: '${P}'}\n"
    assert load(text, {"P": "full"}).queries["q"].policy is Policy.FULL
    assert "must be one of" in problems(text, {"P": "Full"})[0]


def test_valid_names_of_queries(load: Load) -> None:
    names = ["q", "Q_1", "7", "a-b.c", "_x", "a" * 128]
    entries = "".join(f'  "{name}": {{sql: a}}\n' for name in names)
    assert list(load(HEAD + entries).queries) == names


BARE_HEAD = "version: 1\ntables: {t: {path: a}}\n"


def test_defaults_of_queries(load: Load) -> None:
    queries = load(
        f"{BARE_HEAD}defaults: {{answer: true, policy: strict, buffer: 7}}\n"
        "queries:\n"
        "  a: {sql: SELECT 1}\n"
        "  b: {sql: SELECT 1, answer: false, policy: full, buffer: all}\n"
        "  c: {sql: SELECT 1, sketch: none}\n"
        "  d: {sql: SELECT 1, lineage: witness}\n"
    ).queries
    assert [query.answer for query in queries.values()] == [True, False, False, False]
    assert [query.policy for query in queries.values()] == [
        Policy.STRICT,
        Policy.FULL,
        Policy.STRICT,
        Policy.STRICT,
    ]
    assert [query.buffer for query in queries.values()] == [7, "all", 7, 7]
    assert queries["d"].lineage is LineageMode.WITNESS


def test_problems_of_defaults_are_reported_once(problems: Problems) -> None:
    result = problems(
        f"{BARE_HEAD}defaults: {{answer: maybe, policy: hasty, sql: x, "
        "trigger: {every: 1h, cron: '@daily'}}\n"
        "queries: {a: {sql: SELECT 1}, b: {sql: SELECT 1}}\n"
    )
    assert len(result) == 4
    assert all("`defaults" in problem for problem in result)


def test_state_and_join_are_exclusive(load: Load, problems: Problems) -> None:
    """A query cannot have both; a query's `join` overrides a default `state`."""
    queries = load(
        f"{BARE_HEAD}defaults: {{state: least}}\n"
        "queries:\n"
        "  a: {sql: SELECT 1}\n"
        "  b: {sql: SELECT 1, state: keep, join: auto}\n"
        "  c: {sql: SELECT 1, join: index}\n"
    ).queries
    assert [query.state for query in queries.values()] == [StateKept.LEAST, StateKept.KEEP, None]
    assert queries["c"].join is JoinStrategy.INDEX
    (problem,) = problems(
        f"{BARE_HEAD}defaults: {{join: index}}\nqueries: {{a: {{sql: SELECT 1, state: keep}}}}\n"
    )
    assert "cannot be combined with `join: index`" in problem


def section(action: str) -> str:
    return f"updates:\n  - {{name: u, {action}}}\n"


def test_an_insert_of_rows(load_extra: Load) -> None:
    (update,) = load_extra(
        section(
            "insert: {table: sales, rows: [{a: 1, b: x, c: 1.5, d: true, e: null, f: 2022-01-01, "
            "g: 2022-01-01 01:02:03, h: '007', i: no, j: ''}, {a: 2}]}"
        )
    ).updates
    assert isinstance(update, InsertSpec)
    assert (update.name, update.table, update.file) == ("u", "sales", None)
    assert update.rows == (
        {
            "a": 1,
            "b": "x",
            "c": 1.5,
            "d": True,
            "e": None,
            "f": date(2022, 1, 1),
            "g": datetime(2022, 1, 1, 1, 2, 3),
            "h": "007",
            "i": "no",
            "j": "",
        },
        {"a": 2},
    )
    assert (update.location.line, update.location.column) == (5, 5)


def test_a_variable_in_a_row_is_typed_unless_quoted(load_extra: Load) -> None:
    text = (
        "updates:\n  - name: u\n    insert:\n      table: sales\n      rows:\n"
        "        - a: ${V}\n          b: '${V}'\n          c: x${V}\n"
    )
    (update,) = load_extra(text, {"V": "12"}).updates
    assert isinstance(update, InsertSpec)
    assert update.rows == ({"a": 12, "b": "12", "c": "x12"},)


@pytest.mark.parametrize("uri", ["s3://bucket/b.parquet", "file:///x/b.parquet", "/abs/b.parquet"])
def test_an_insert_of_a_file(load_extra: Load, tmp_path: Path, uri: str) -> None:
    text = (
        f"updates:\n  - {{name: a, insert: {{table: sales, file: sub/../b.csv}}}}\n"
        f"  - {{name: b, insert: {{table: sales, file: '{uri}'}}}}\n"
    )
    first, second = load_extra(text).updates
    assert isinstance(first, InsertSpec)
    assert isinstance(second, InsertSpec)
    assert (first.rows, first.file) == (None, str(tmp_path / "b.csv"))
    assert second.file == uri


def test_a_delete_and_a_change(load_extra: Load) -> None:
    delete, change, everywhere = load_extra(
        "updates:\n"
        "  - {name: d, delete: {table: sales, where: sid = 3}}\n"
        "  - name: c\n"
        "    update: {table: sales, set: {p: p * 2, n: 1, m: 1.50, t: true}, where: a > 1}\n"
        "  - {name: e, update: {table: sales, set: {p: \"'x'\"}}}\n"
    ).updates
    assert isinstance(delete, DeleteSpec)
    assert (delete.table, delete.where) == ("sales", "sid = 3")
    assert isinstance(change, ChangeSpec)
    assert change.assignments == {"p": "p * 2", "n": "1", "m": "1.50", "t": "true"}
    assert change.where == "a > 1"
    assert isinstance(everywhere, ChangeSpec)
    assert everywhere.where is None


def test_names_of_updates(extra_problems: Problems) -> None:
    delete = "delete: {table: sales, where: a}"
    result = extra_problems(
        f"updates:\n- {{name: a, {delete}}}\n- {{name: b, {delete}}}\n- {{name: a, {delete}}}\n"
        f"- {{{delete}}}\n- {{name: 'a b', {delete}}}\n- {{name: 7, {delete}}}\n"
    )
    assert [problem.split(" | ")[0] for problem in result] == [
        "4:10 Update `a` appears twice",
        "5:3 Key `name` is missing in `updates[4]`",
        "6:10 `a b` cannot be the name of an update",
        "7:10 `updates[6].name` must be text, not a whole number",
    ]
    assert "the first is on line 5" in result[0]


@pytest.mark.parametrize("value", ["{}", "x", "", "{name: a}"])
def test_updates_are_a_list(extra_problems: Problems, value: str) -> None:
    assert "`updates` must be a list" in extra_problems(f"updates: {value}\n")[0]


def with_trigger(trigger: str) -> str:
    return f"{BARE_HEAD}queries:\n  q: {{sql: SELECT 1, trigger: {trigger}}}\n"


@pytest.mark.parametrize(
    ("text", "trigger"),
    [
        ("commit", Trigger(alone=SimpleTrigger.COMMIT)),
        ("use", Trigger(alone=SimpleTrigger.USE)),
        ("{rows: 10000}", Trigger(rows=10_000)),
        ("{every: 15m}", Trigger(every=900.0)),
        ("{every: 1d, timezone: Europe/Vienna}", Trigger(every=86_400.0, timezone="Europe/Vienna")),
        ("{fresh_within: 90s, rows: 7}", Trigger(fresh_within=90.0, rows=7)),
        ("{fresh_within: 1.5 h}", Trigger(fresh_within=5_400.0)),
        ("{point: nightly, cheap: true}", Trigger(point="nightly", cheap=True)),
        ("{point: nightly, ready_within: 500ms}", Trigger(point="nightly", ready_within=0.5)),
        (
            '{cron: "0 6 * * 1-5", timezone: Asia/Tokyo, ready_within: 5s}',
            Trigger(cron=read_cron("0 6 * * 1-5"), timezone="Asia/Tokyo", ready_within=5.0),
        ),
        ("{cron: '@daily', cheap: false}", Trigger(cron=read_cron("0 0 * * *"))),
    ],
)
def test_triggers(load: Load, text: str, trigger: Trigger) -> None:
    assert load(with_trigger(text)).queries["q"].trigger == trigger


def test_the_default_trigger(load: Load) -> None:
    queries = load(
        f"{BARE_HEAD}defaults: {{trigger: {{fresh_within: 1h}}}}\n"
        "queries:\n"
        "  a: {sql: SELECT 1}\n"
        "  b: {sql: SELECT 1, trigger: commit}\n"
        "  c: {sql: SELECT 1, trigger: {rows: 5}}\n"
    ).queries
    # A trigger is not merged with the default: `c` waits only for rows.
    assert [query.trigger for query in queries.values()] == [
        Trigger(fresh_within=3_600.0),
        Trigger(alone=SimpleTrigger.COMMIT),
        Trigger(rows=5),
    ]
    assert load(with_trigger("use").replace(", trigger: use", "")).queries["q"].trigger is None


def test_a_trigger_from_variables(load: Load) -> None:
    result = load(
        with_trigger('{fresh_within: "${BOUND}", point: "${POINT:-noon}"}'), {"BOUND": "10m"}
    )
    assert result.queries["q"].trigger == Trigger(fresh_within=600.0, point="noon")


def test_all_problems_of_a_trigger_are_reported(problems: Problems) -> None:
    assert len(problems(with_trigger("{every: 5, cron: x, timezone: y, cheap: z}"))) == 5


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("5s", 5.0), ("2 m", 120.0), ("1.5h", 5_400.0), ("7d", 604_800.0)]
    + [("1 hour", 3_600.0), ("2 days", 172_800.0), ("90seconds", 90.0), ("1.5 minutes", 90.0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert seconds_in(text) == seconds_in(text, needs_unit=True) == seconds
    assert seconds_in(written(seconds)) == seconds
    if text == "5s":  # options may omit the unit
        assert (seconds_in("5"), seconds_in("5", needs_unit=True)) == (seconds, None)


@pytest.mark.parametrize("text", ["", "0", "-1s", "1 week", "s", "1e3s", "inf", "nan", "1:30"])
def test_invalid_durations(text: str) -> None:
    assert seconds_in(text) is None


def test_a_trigger_in_words(load: Load) -> None:
    text = "{fresh_within: 90s, rows: 5, cron: '@daily', timezone: Asia/Tokyo, cheap: true}"
    trigger = load(with_trigger(text)).queries["q"].trigger
    assert trigger.text == "fresh_within 90s, rows 5, cron 0 0 * * * Asia/Tokyo, cheap"


PAGE = Path(__file__).parents[2] / "docs" / "scheduling.md"


def test_triggers_of_the_documentation_are_valid(load: Load) -> None:
    texts = re.findall(r"^\| `([^`]+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    triggers = [text for text in texts if not text.startswith(("impctl", "trigger"))]
    assert len(triggers) == 7
    assert all(load(with_trigger(text)).queries["q"].trigger is not None for text in triggers)
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    trigger = load(f"{BARE_HEAD}{block}").queries["q_top"].trigger
    assert trigger == Trigger(fresh_within=600.0, rows=10_000)


def times(text: str, year: int, days: int) -> list[datetime]:
    """Times of a crontab in the first days of a year."""
    start = datetime(year, 1, 1)
    occurrences = read_cron(text).after(start - timedelta(seconds=1))
    return list(takewhile(lambda time: time < start + timedelta(days=days), occurrences))


ALL = tuple(range(60))


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("0 6 * * *", ((0,), (6,), ALL[1:32], (1,), ALL[:7])),
        ("*/15 * * * *", ((0, 15, 30, 45), ALL[:24], ALL[1:32], (1,), ALL[:7])),
        ("5/20 0-3 * * *", ((5, 25, 45), (0, 1, 2, 3), ALL[1:32], (1,), ALL[:7])),
        ("1,3,2 23 * * *", ((1, 2, 3), (23,), ALL[1:32], (1,), ALL[:7])),
        ("10-20/5,59 8-18/4 * * *", ((10, 15, 20, 59), (8, 12, 16), ALL[1:32], (1,), ALL[:7])),
        ("*/40 */24 * * *", ((0, 40), (0,), ALL[1:32], (1,), ALL[:7])),
        ("  7   009 * * *  ", ((7,), (9,), ALL[1:32], (1,), ALL[:7])),
        # A range of one value has only that value, with any step.
        ("5-5/20 3-03/2 * * *", ((5,), (3,), ALL[1:32], (1,), ALL[:7])),
    ],
)
def test_minutes_and_hours(text: str, fields: tuple[tuple[int, ...], ...]) -> None:
    assert fields_of(times(text, 2026, 31)) == fields


def fields_of(moments: Sequence[datetime]) -> tuple[tuple[int, ...], ...]:
    rows = [(m.minute, m.hour, m.day, m.month, m.isoweekday() % 7) for m in moments]
    return tuple(tuple(sorted(set(field))) for field in zip(*rows, strict=True))


@pytest.mark.parametrize(
    ("text", "months", "weekdays"),
    [
        ("0 0 * jan,DEC *", (1, 12), ALL[:7]),
        ("0 0 * 3-11/4 *", (3, 7, 11), ALL[:7]),
        ("0 0 * * 1-5", ALL[1:13], (1, 2, 3, 4, 5)),
        ("0 0 * * 7", ALL[1:13], (0,)),
        ("0 0 * * 0,7", ALL[1:13], (0,)),
        ("0 0 * * 5-7", ALL[1:13], (0, 5, 6)),
        ("0 0 * * Fri-Sun", ALL[1:13], (0, 5, 6)),
        ("0 0 * * 7-0", ALL[1:13], (0,)),
        ("0 0 * * sun-SAT/6", ALL[1:13], (0, 6)),
        ("0 0 * * */2", ALL[1:13], (0, 2, 4, 6)),
        ("0 0 * * mon", ALL[1:13], (1,)),
    ],
)
def test_months_and_weekdays(text: str, months: tuple[int, ...], weekdays: tuple[int, ...]) -> None:
    assert fields_of(times(text, 2026, 365))[3:] == (months, weekdays)


def days_of(text: str, year: int) -> list[str]:
    return [f"{time:%m-%d}" for time in times(text, year, 366) if time.year == year]


def test_a_day_matches_either_field_if_both_are_set() -> None:
    # The 13th, and every Friday: February 2026 has Fridays on 6, 13, 20 and 27.
    assert days_of("0 0 13 2 5", 2026) == ["02-06", "02-13", "02-20", "02-27"]
    assert days_of("0 0 1 3 5", 2026) == ["03-01", "03-06", "03-13", "03-20", "03-27"]
    # If one of them is `*`, the other one decides.
    assert days_of("0 0 13 2 *", 2026) == ["02-13"]
    assert days_of("0 0 * 2 5", 2026) == ["02-06", "02-13", "02-20", "02-27"]
    # A star with a step counts as set.
    assert days_of("0 0 */20 2 5", 2026) == ["02-01", "02-06", "02-13", "02-20", "02-21", "02-27"]
    assert days_of("0 0 15 2 */6", 2026)[:4] == ["02-01", "02-07", "02-08", "02-14"]


def test_days_that_only_some_months_or_years_have() -> None:
    assert days_of("0 0 29 2 *", 2027) == []
    assert days_of("0 0 29 2 *", 2028) == ["02-29"]
    assert days_of("0 0 31 * *", 2026) == [
        *("01-31", "03-31", "05-31", "07-31", "08-31", "10-31", "12-31")
    ]


def test_macros_of_crontabs() -> None:
    assert read_cron("@daily") == read_cron("0 0 * * *")
    assert read_cron(" @HOURLY") == read_cron("0 * * * *")
    assert days_of("@weekly", 2026)[:2] == ["01-04", "01-11"]
    assert days_of("@monthly", 2026)[:3] == ["01-01", "02-01", "03-01"]
    assert days_of("@yearly", 2026) == days_of("@annually", 2026) == ["01-01"]
    assert all(read_cron(macro) for macro in MACROS)


REFUSED_CRONTABS = {
    "0 fields": [""],
    "1 field in": ["0"],
    "6 fields": ["0 6 * * 1-5 2026", "0 0 6 * * 1"],
    "minute is out of range": ["60 * * * *", "9" * 14 + " * * * *", "9" * 5000 + " * * * *"],
    "hour is out of range": ["* 24 * * *"],
    "day of month is out of range": ["* * 0 * *", "* * 32 * *"],
    "month is out of range": ["* * * 13 *", "* * * 0 *"],
    "day of week is out of range": ["* * * * 8"],
    "step of 0": ["*/0 * * * *"],
    "runs backwards": ["5-1 * * * *", "* * * * 5-2"],
    "minute is not valid": [
        *("-5 * * * *", "1, * * * *", "1- * * * *", "*/ * * * *", "*/-1 * * * *"),
        *("1.5 * * * *", "٣ * * * *", "*/" + "9" * 5000 + " * * * *"),
    ],
    "month is not valid": ["0 0 * mon *"],
    "`@` word is unknown": ["@reboot", "@daily 0"],
    "`L` (the last day": ["0 0 L * *", "0 0 * * 5L"],
    "`W` (the weekday nearest": ["0 0 15W * *"],
    "`#` (the n-th weekday": ["0 0 * * 5#3"],
    "`?` (any day)": ["0 0 ? * 1"],
    "never occur": ["0 0 30 2 *", "0 0 31 2,4,6,9,11 *"],
}


@pytest.mark.parametrize("expected", REFUSED_CRONTABS)
def test_invalid_crontabs(expected: str) -> None:
    for text in REFUSED_CRONTABS[expected]:
        with pytest.raises(ScalarFault) as caught:
            read_cron(text)
        assert expected in caught.value.message
        assert caught.value.hint


@pytest.mark.parametrize("text", ["* * * * * ", "0 0 30 2 1"])
def test_unusual_crontabs_are_accepted(text: str) -> None:
    assert read_cron(text)


PIECES = st.sampled_from([*"*07-,/ L#@", "59", "60", "mon", "feb"])


@FEW
@given(st.lists(PIECES, max_size=14).map("".join) | st.text(CHARACTERS, max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        cron = read_cron(text)
    except ScalarFault:
        return
    assert read_cron(cron.written) == cron
    # A valid crontab occurs within eight years, the longest time to a 29 February.
    assert next(cron.after(datetime(2026, 1, 1))) < datetime(2034, 3, 1)
