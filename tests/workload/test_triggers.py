"""The key `trigger`: what it says, and every way to write it wrongly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from impctl.workload.models import Alone, Trigger, read_cron, seconds_in, written
from tests.workload.conftest import Load, Problems

HEAD = "version: 1\ntables: {t: {path: a}}\n"


def query(trigger: str) -> str:
    return f"{HEAD}queries:\n  q: {{sql: SELECT 1, trigger: {trigger}}}\n"


@pytest.mark.parametrize(
    ("said", "trigger"),
    [
        ("commit", Trigger(alone=Alone.COMMIT)),
        ("use", Trigger(alone=Alone.USE)),
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
def test_what_a_trigger_says(load: Load, said: str, trigger: Trigger) -> None:
    assert load(query(said)).queries["q"].trigger == trigger


def test_queries_have_that_of_the_defaults(load: Load) -> None:
    queries = load(
        f"{HEAD}defaults: {{trigger: {{fresh_within: 1h}}}}\n"
        "queries:\n"
        "  a: {sql: SELECT 1}\n"
        "  b: {sql: SELECT 1, trigger: commit}\n"
        "  c: {sql: SELECT 1, trigger: {rows: 5}}\n"
    ).queries
    # A trigger is taken whole: `c` waits for rows alone.
    assert [query.trigger for query in queries.values()] == [
        Trigger(fresh_within=3_600.0),
        Trigger(alone=Alone.COMMIT),
        Trigger(rows=5),
    ]
    assert load(query("use").replace(", trigger: use", "")).queries["q"].trigger is None


def test_what_comes_from_a_variable(load: Load) -> None:
    result = load(query('{fresh_within: "${BOUND}", point: "${POINT:-noon}"}'), {"BOUND": "10m"})
    assert result.queries["q"].trigger == Trigger(fresh_within=600.0, point="noon")


@pytest.mark.parametrize(
    ("said", "says", "hint"),
    [
        ("{fresh_within: ^10}", "must be a duration such as 10m", "its unit"),
        ("{fresh_within: ^'10'}", "must be a duration such as 10m", "its unit"),
        ("{fresh_within: ^-1s}", "must be a duration such as 10m", "above 0"),
        ("{fresh_within: ^0s}", "must be a duration such as 10m", "above 0"),
        ("{fresh_within: ^0.0ms}", "must be a duration such as 10m", "above 0"),
        ("{fresh_within: ^10 parsecs}", "must be a duration such as 10m", "`10m`"),
        ("{fresh_within: ^[10m]}", "a duration such as 10m, not a list", "single"),
        ("{fresh_within: ^1e3s}", "must be a duration such as 10m", "above 0"),
        ("{fresh_within: ^99999999999d}", "must be a duration such as 10m", "above 0"),
        ("{fresh_within: ^}", "must be a duration such as 10m", "above 0"),
        ("{ready_within: 5s, every: ^0s}", "must be a duration such as 10m", "above 0"),
        ("{every: ^2d}", "from 1s to 1d", "`cron`"),
        ("{every: ^10ms}", "from 1s to 1d", "`commit`"),
        ("{rows: ^0}", "must be from 1", "10000"),
        ("{rows: ^many}", "must be a whole number", "number"),
        ("{every: 1h, cron: ^'@daily'}", "cannot be combined", "remove one"),
        (
            "{^commit: true, rows: 5}",
            "`commit` in `queries.q.trigger` cannot be combined with other keys",
            "commit`",
        ),
        (
            "{^use: true}",
            "`use` in `queries.q.trigger` cannot be combined with other keys",
            "trigger: use",
        ),
        ("{cron: ^'0 0 6 * * 1'}", "6 fields instead of 5", "day of week"),
        ("{cron: ^'0 0 L * *'}", "`L` (the last day", "another trigger"),
        ("{cron: '@daily', timezone: ^Mars/Base}", "time zone that this machine", "Vienna"),
        ("{every: 1h, timezone: ^../../etc/passwd}", "time zone that this machine", "Vienna"),
        ("{rows: 5, timezone: ^UTC}", "requires `every` or `cron`", "add one"),
        ("{rows: 5, ready_within: ^1s}", "requires `every` or `cron` or `point`", "add one"),
        ("^{cheap: true}", "does not specify a time or condition", "`fresh_within`"),
        ("^{}", "does not specify a time or condition", "`fresh_within`"),
        ("{cheap: ^1, rows: 5}", "`true` or `false`", "quotes"),
        ("{point: ^'a b'}", "cannot be the name of a point", "letters"),
        ("{^freshwithin: 10m}", "`freshwithin` is unknown", "did you mean `fresh_within`"),
        ("^daily", "must be one of `commit`, `use`", "one of these"),
        ("^[commit]", "text, not a list", "single"),
    ],
)
def test_what_is_refused(problems: Problems, said: str, says: str, hint: str) -> None:
    """`^` stands before the place that is told."""
    (result,) = problems(query(said.replace("^", "")))
    place, _, rest = result.partition(" ")
    told, _, told_hint = rest.partition(" | ")
    assert says in told
    assert hint in told_hint
    assert place == f"4:{query(said).splitlines()[3].index('^') + 1}"


def test_defaults_that_are_wrong_are_told_once(problems: Problems) -> None:
    result = problems(
        f"{HEAD}defaults: {{trigger: {{every: 1h, cron: '@daily'}}}}\n"
        "queries: {a: {sql: SELECT 1}, b: {sql: SELECT 1}}\n"
    )
    assert len(result) == 1
    assert "`defaults.trigger` cannot be combined" in result[0]


def test_several_problems_are_all_told(problems: Problems) -> None:
    assert len(problems(query("{every: 5, cron: x, timezone: y, cheap: z}"))) == 5


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("5s", 5.0), ("2 m", 120.0), ("1.5h", 5_400.0), ("7d", 604_800.0)]
    + [("1 hour", 3_600.0), ("2 days", 172_800.0), ("90seconds", 90.0), ("1.5 minutes", 90.0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert seconds_in(text) == seconds_in(text, needs_unit=True) == seconds
    assert seconds_in(written(seconds)) == seconds


def test_a_bare_number_is_for_flags() -> None:
    assert seconds_in("30") == 30.0
    assert seconds_in("30", needs_unit=True) is None


@pytest.mark.parametrize("text", ["", "0", "-1s", "1 week", "s", "1e3s", "inf", "nan", "1:30"])
def test_what_is_no_duration(text: str) -> None:
    assert seconds_in(text) is None


def test_a_trigger_in_words(load: Load) -> None:
    said = "{fresh_within: 90s, rows: 5, cron: '@daily', timezone: Asia/Tokyo, cheap: true}"
    trigger = load(query(said)).queries["q"].trigger
    assert trigger.text == "fresh_within 90s, rows 5, cron 0 0 * * * Asia/Tokyo, cheap"


PAGE = Path(__file__).parents[2] / "docs" / "scheduling.md"


def test_what_the_page_shows_can_be_read(load: Load) -> None:
    said = re.findall(r"^\| `([^`]+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    triggers = [text for text in said if not text.startswith(("impctl", "trigger"))]
    assert len(triggers) == 7
    assert all(load(query(text)).queries["q"].trigger is not None for text in triggers)
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    trigger = load(f"{HEAD}{block}").queries["q_top"].trigger
    assert trigger == Trigger(fresh_within=600.0, rows=10_000)
