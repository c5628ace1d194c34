"""Errors with another message or location keep their other parts; counts in words; stopwatch."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable

import pytest

from impctl.errors import (
    ImpctlError,
    InvariantError,
    Location,
    Problem,
    ProblemsFoundError,
    QueriesFailedError,
    QueryError,
    UsageError,
    WorkloadError,
    count_text,
)
from impctl.stopwatch import Stopwatch

LOCATION = Location("w.yaml", 7, 3)
ERRORS = [
    QueryError("no column", hint="look", code="column_unknown", location=Location("q", 1, 2)),
    UsageError("no flag"),
    InvariantError("a sum differs"),
    ProblemsFoundError("two problems", hint="mend them", exit_code=6),
    WorkloadError("wrong", [Problem("a", LOCATION, "b"), Problem("c")]),
    QueriesFailedError(
        "one failed", results=(1,), failures={"q": QueryError("x")}, gravest=QueryError("x")
    ),
]


def raised(error: ImpctlError) -> ImpctlError:
    """Raise and catch the error, with a cause, a traceback and a note."""

    def fail() -> None:
        try:
            raise KeyError("k")
        except KeyError as cause:
            error.add_note("while reading")
            raise error from cause

    with pytest.raises(ImpctlError) as caught:
        fail()
    return caught.value


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    ("change", "part", "value"),
    [
        (lambda error: error.at(LOCATION), "location", LOCATION),
        (lambda error: error.saying("Figure `f`: so"), "message", "Figure `f`: so"),
    ],
    ids=["at", "saying"],
)
def test_other_parts_are_kept(
    error: ImpctlError, change: Callable[[ImpctlError], ImpctlError], part: str, value: object
) -> None:
    original = raised(error)
    before, trace = dict(vars(original)), traceback.format_exception(original)
    result = change(original)
    assert type(result) is type(original)
    assert vars(result) == {**before, part: value}
    assert (result.exit_code, result.code) == (original.exit_code, original.code)
    assert str(result) == result.message
    assert isinstance(result.__cause__, KeyError)
    assert result.__traceback__ is original.__traceback__
    assert traceback.format_exception(result) == [
        line.replace(original.message, result.message) for line in trace
    ]
    result.add_note("said later")
    assert (vars(original), traceback.format_exception(original)) == (before, trace)


def test_new_messages_hide_secrets_too() -> None:
    changed = UsageError("no").saying("cannot read https://me:secret@host/t?sig=abc")
    assert "secret" not in changed.message + str(changed)
    assert "abc" not in changed.message


def test_new_hints_hide_secrets_too() -> None:
    original = UsageError("no", hint="look")
    changed = original.hinting("see https://me:secret@host/t?sig=abc")
    assert changed.hint is not None
    assert "secret" not in changed.hint
    assert "abc" not in changed.hint
    assert (changed.message, original.hint) == ("no", "look")


def test_an_error_without_a_cause_keeps_its_context() -> None:
    def fail() -> None:
        try:
            raise KeyError("k")
        except KeyError:
            raise QueryError("no")  # noqa: B904  # like other code

    with pytest.raises(QueryError) as caught:
        fail()
    result = caught.value.at(LOCATION)
    assert isinstance(result.__context__, KeyError)
    assert not result.__suppress_context__


def test_a_count_of_one_is_singular() -> None:
    assert [count_text(count, "row") for count in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]
    assert count_text(1_000, "row") == "1,000 rows"


def test_a_noun_may_have_its_plural() -> None:
    assert [count_text(count, "entry", "entries") for count in (1, 2)] == ["1 entry", "2 entries"]


def test_a_stopwatch_in_milliseconds() -> None:
    before = time.perf_counter()
    watch = Stopwatch()
    time.sleep(0.002)
    first = watch.ms
    upper_bound = (time.perf_counter() - before) * 1000
    assert 2.0 <= first <= upper_bound
    assert watch.ms > first
