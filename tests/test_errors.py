"""An error said anew, at another place, is the same error; counts in words; one clock."""

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

PLACE = Location("w.yaml", 7, 3)
ERRORS = [
    QueryError("no column", hint="look", code="column_unknown", location=Location("q", 1, 2)),
    UsageError("no flag"),
    InvariantError("a sum differs"),
    ProblemsFoundError("two problems", hint="mend them", exit_code=6),
    WorkloadError("wrong", [Problem("a", PLACE, "b"), Problem("c")]),
    QueriesFailedError(
        "one failed", results=(1,), failures={"q": QueryError("x")}, gravest=QueryError("x")
    ),
]


def raised(error: ImpctlError) -> ImpctlError:
    """The error as one that was caught: with a cause, a trace and a note."""

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
        (lambda error: error.at(PLACE), "location", PLACE),
        (lambda error: error.saying("Figure `f`: so"), "message", "Figure `f`: so"),
    ],
    ids=["at", "saying"],
)
def test_all_its_parts_stay(
    error: ImpctlError, change: Callable[[ImpctlError], ImpctlError], part: str, value: object
) -> None:
    known = raised(error)
    before, trace = dict(vars(known)), traceback.format_exception(known)
    result = change(known)
    assert type(result) is type(known)
    assert vars(result) == {**before, part: value}
    assert (result.exit_code, result.code) == (known.exit_code, known.code)
    assert str(result) == result.message
    assert isinstance(result.__cause__, KeyError)
    assert result.__traceback__ is known.__traceback__
    assert traceback.format_exception(result) == [
        line.replace(known.message, result.message) for line in trace
    ]
    result.add_note("said later")
    assert (vars(known), traceback.format_exception(known)) == (before, trace)


def test_what_is_said_anew_hides_secrets_too() -> None:
    saying = UsageError("no").saying("cannot read https://me:secret@host/t?sig=abc")
    assert "secret" not in saying.message + str(saying)
    assert "abc" not in saying.message


def test_a_hint_given_anew_hides_secrets_too() -> None:
    known = UsageError("no", hint="look")
    hinting = known.hinting("see https://me:secret@host/t?sig=abc")
    assert hinting.hint is not None
    assert "secret" not in hinting.hint
    assert "abc" not in hinting.hint
    assert (hinting.message, known.hint) == ("no", "look")


def test_an_error_without_a_cause_keeps_what_it_came_out_of() -> None:
    def fail() -> None:
        try:
            raise KeyError("k")
        except KeyError:
            raise QueryError("no")  # noqa: B904  # as code of others does

    with pytest.raises(QueryError) as caught:
        fail()
    result = caught.value.at(PLACE)
    assert isinstance(result.__context__, KeyError)
    assert not result.__suppress_context__


def test_one_alone_is_told_in_the_singular() -> None:
    assert [count_text(count, "row") for count in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]
    assert count_text(1_000, "row") == "1,000 rows"


def test_a_noun_may_bring_its_plural() -> None:
    assert [count_text(count, "entry", "entries") for count in (1, 2)] == ["1 entry", "2 entries"]


def test_it_counts_milliseconds_and_goes_on() -> None:
    before = time.perf_counter()
    watch = Stopwatch()
    time.sleep(0.002)
    first = watch.ms
    most = (time.perf_counter() - before) * 1000
    assert 2.0 <= first <= most
    assert watch.ms > first
