"""What is followed: durations, what does not go together, lines, and the end when it is asked."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import typer

from impctl.cli import follow as cli_following
from impctl.cli.follow import Stopping, until_asked
from impctl.cli.options import seconds
from impctl.cli.output.text import json_line, text_line
from impctl.errors import LockHeldError, SchemaChangedError
from impctl.service.results import Failure, FollowedRun, MaintainResult, Outcome

RUN = FollowedRun(3, "2026-01-02T03:04:05.678Z", 12.34, 6, 1500.0)


@pytest.mark.parametrize(
    ("text", "value"), [("500ms", 0.5), ("5s", 5), ("0.2", 0.2), ("2m", 120), ("1h", 3600)]
)
def test_durations(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "0", "0s", "-1s", "5 weeks", "s", "nan", "1e3", "9" * 20])
def test_no_durations(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        seconds(text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--interval", "5s"], "Option `--interval` requires `--follow` or `--due`"),
        (["--max-runs", "5"], "Option `--max-runs` requires `--follow`"),
        (["--max-wait", "5s"], "Option `--max-wait` requires `--follow`"),
        (["--due", "--max-wait", "5s"], "Option `--max-wait` requires `--follow`"),
        (["--follow", "--due"], "Options `--follow` and `--due` exclude each other"),
        (["--point", "p", "--follow"], "Options `--follow` and `--point` exclude each other"),
        (["--point", "p", "--due"], "Options `--due` and `--point` exclude each other"),
        (["--point", "p", "--query", "q"], "Options `--point` and `--query` exclude each other"),
        (["--follow", "--dry-run"], "Options `--follow` and `--dry-run` exclude each other"),
    ],
)
def test_what_does_not_go_together(
    fake: Any, impctl: Callable[..., Any], words: list[str], message: str
) -> None:
    ran = impctl("maintain", "w.yaml", *words)
    assert ran.code == 2
    assert message in ran.stderr
    assert fake.calls == []


def outcome() -> Outcome:
    done = MaintainResult(
        query="q",
        table="t",
        attribute="a",
        total=4,
        action="exact",
        reason_code="incremental",
        reason="",
        since={"t": 1},
        versions={"t": 2},
        added=(),
        removed=(),
        changes=7,
        elapsed_ms=1,
        read_ms=1,
        engine_ms=1,
        commit_ms=1,
    )
    failed = (
        Failure("p", SchemaChangedError("Column `x`\nchanged")),
        Failure(None, LockHeldError("Store is locked")),
    )
    return Outcome((done,), ("slow",), failed)


def test_a_run_is_one_line_of_text() -> None:
    stream = io.StringIO()
    text_line(outcome(), RUN, stream)
    assert stream.getvalue() == (
        "2026-01-02T03:04:05.678Z run 3, 12.3 ms: q exact, 7 changes; p failed: Column `x` changed "
        "[schema_changed]; run failed: Store is locked [lock_held]; warning: slow; "
        "retry in 1.5 s\n"
    )


def test_a_run_is_one_line_of_json() -> None:
    stream = io.StringIO()
    json_line(outcome(), RUN, stream)
    (line,) = stream.getvalue().splitlines()
    document = json.loads(line)
    assert (document["command"], document["ok"]) == ("maintain", False)
    assert document["run"] == {
        "number": 3,
        "started_at": "2026-01-02T03:04:05.678Z",
        "elapsed_ms": 12.34,
        "exit_code": 6,
        "retry_ms": 1500.0,
        "late_ms": None,
    }
    assert document["error"]["failures"][0]["code"] == "schema_changed"


def shown(monkeypatch: pytest.MonkeyPatch, asked: int | None) -> list[str]:
    """What a job wrote that finds a, b and c, and after a hears a signal or loses its reader."""
    written: list[str] = []
    monkeypatch.setattr(cli_following, "give_up", lambda number: written.append("given up"))

    def write(result: str, run: FollowedRun) -> None:
        if asked is None and written:
            raise BrokenPipeError
        written.append(result)

    def watch(stop: Stopping, show: Callable[[str, FollowedRun], None]) -> None:
        for result in "abc":
            if stop.is_asked:
                return
            show(result, RUN)
            if asked is not None:
                signal.raise_signal(asked)

    try:
        until_asked(watch, write)
    except KeyboardInterrupt:
        written.append("interrupted")
    return written


@pytest.mark.usefixtures("heard_signals")
def test_who_follows_ends_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, signal.SIGTERM) == ["a"]
    assert shown(monkeypatch, signal.SIGINT) == ["a", "interrupted"]


def test_nobody_is_followed_for_when_the_reader_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, None) == ["a", "given up"]


@pytest.mark.parametrize(
    ("asked", "ends"), [(signal.SIGTERM, True), (signal.SIGINT, False), (None, False)]
)
@pytest.mark.usefixtures("heard_signals")
def test_a_run_that_is_given_up_ends_as_the_signal_says(asked: int | None, ends: bool) -> None:
    def watch(stop: Stopping, show: Callable[[str, FollowedRun], None]) -> None:
        if asked is None:
            raise KeyboardInterrupt
        signal.raise_signal(asked)
        signal.raise_signal(asked)

    with nullcontext() if ends else pytest.raises(KeyboardInterrupt):
        until_asked(watch, lambda result, run: None)
