"""A sketch captured by another release, or under another reading of the SQL, is not used as it is.

The tables stay as they are, so that by versions alone the sketch is current.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import impctl
from impctl.compile import build
from impctl.errors import RecaptureNeededError
from impctl.rules import optimize
from impctl.service import prepare
from impctl.store.store import Store
from tests.support.run_cli import Cli
from tests.support.small_workload import WORKLOAD

Capture = Callable[[], None]


def reads_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a fault that was mended since: no group is large enough."""
    parse = optimize.parse_query

    def read(sql: str, *arguments: Any, **named: Any) -> Any:
        return parse(sql.replace("> 2", "> 9"), *arguments, **named)

    monkeypatch.setattr(optimize, "parse_query", read)


def is_another_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "stamped", "0.0.9:{}".format)


def is_no_known_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """As stored before a state told its release."""
    monkeypatch.setattr("impctl.service.capture.template_id", lambda _: "")


BEFORE = [reads_otherwise, is_another_release, is_no_known_release]
RELEASES = [is_another_release, is_no_known_release]


def set_policy(folder: Path, policy: str) -> None:
    (folder / "w.yaml").write_text(WORKLOAD.replace("POLICY", policy))


def fragments(folder: Path) -> tuple[int, ...]:
    with Store.open(folder / ".impctl", create=False) as store:
        result = store.load("q")
    assert result is not None
    return tuple(result.sketches[0].fragments.ids)


@pytest.fixture(params=BEFORE)
def captured_before(
    request: pytest.FixtureRequest, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> Cli:
    with monkeypatch.context() as patch:
        request.param(patch)
        cli.good("capture")
    return cli


@pytest.mark.slow
def test_it_is_captured_anew_before_it_is_used(captured_before: Cli, tmp_path: Path) -> None:
    set_policy(tmp_path, "auto")
    captured_before.good("rewrite")
    assert fragments(tmp_path) == (0, 1)
    assert captured_before.good("maintain").results[0]["action"] == "none"


@pytest.mark.slow
def test_the_policy_decides_whether_it_is(captured_before: Cli, tmp_path: Path) -> None:
    before = fragments(tmp_path)
    assert captured_before.good("rewrite").results[0]["sketches"] == []
    ran = captured_before("rewrite", "--require-sketch")
    assert (ran.code, ran.error["code"]) == (7, "engine_changed")
    assert "impctl capture" in ran.error["hint"]
    set_policy(tmp_path, "strict")
    assert captured_before("rewrite").code == 4
    assert fragments(tmp_path) == before


@pytest.mark.parametrize("before", RELEASES)
def test_a_run_that_reads_no_sql_tells_the_release(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, before: Callable[[pytest.MonkeyPatch], None]
) -> None:
    with monkeypatch.context() as patch:
        before(patch)
        cli.good("capture")
    (status,) = cli.good("status").results
    assert "another release" in status["stale_reason"]
    ran = cli("maintain")
    assert (ran.code, ran.error["code"]) == (7, "engine_changed")
    ran = cli.good("maintain", "--policy", "auto")
    assert (ran.results[0]["action"], ran.results[0]["reason_code"]) == (
        "recapture",
        "engine_changed",
    )
    with monkeypatch.context() as patch:
        patch.setattr(prepare, "bind", None)
        assert cli.good("maintain").results[0]["action"] == "none"


def test_a_program_gets_the_error_too(captured_before: Cli, tmp_path: Path) -> None:
    with (
        impctl.open(tmp_path / "w.yaml") as opened,
        pytest.raises(RecaptureNeededError) as caught,
    ):
        opened.rewrite("q", require_sketch=True)
    assert caught.value.code == "engine_changed"


def test_it_is_not_used_for_its_own_version_either(captured_before: Cli) -> None:
    ran = captured_before("rewrite", "--at", "0")
    assert (ran.code, ran.error["code"]) == (7, "engine_changed")


@pytest.mark.slow
def test_its_ranges_are_evened_out_once_it_is_captured_anew(
    captured_before: Cli, tmp_path: Path
) -> None:
    set_policy(tmp_path, "auto")
    captured_before.good("capture", "--rebalance")
    assert fragments(tmp_path) == (0, 1)
