"""`maintain --follow` by triggers, as a real process: what waits, how long, and what is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.app.test_follow import FILE, append, is_right, workload
from tests.support.following import followed, following, impctl

__all__ = ["workload"]


@pytest.fixture
def triggered(workload: Path) -> Path:
    """`many` waits for three rows of `t`, `other` for four seconds after a change of `u`."""
    text = FILE.replace(
        "    policy: incremental\n  other",
        "    policy: incremental\n    trigger: {rows: 3}\n  other",
    )
    text = text.replace("maintain: eager", "trigger: {fresh_within: 500ms, rows: 1000}")
    workload.write_text(text)
    return workload


def queries(line: dict[str, Any]) -> set[str]:
    return {result["query"] for result in line["results"]}


@pytest.mark.slow
def test_each_query_waits_for_its_own(triggered: Path) -> None:
    with following(triggered) as process:
        append(triggered, "t", 5, 5)
        append(triggered, "u", 3)
        line = process.line()
        assert queries(line) == {"other"}
        assert line["run"]["late_ms"] is not None, "it has a bound"
        assert process.is_silent(0.3), "two rows are not three"
        append(triggered, "t", 7)
        line = process.line()
        assert queries(line) == {"many"}
        assert line["results"][0]["changes"] == 3
        assert line["run"]["late_ms"] is None
        assert process.end() == 0
    assert is_right(triggered, "many")
    assert is_right(triggered, "other")


@pytest.mark.slow
def test_what_another_process_maintained_is_not_pending_any_more(triggered: Path) -> None:
    with following(triggered, "--query", "many") as process:
        append(triggered, "t", 5, 5)
        assert process.is_silent(0.3)
        assert impctl("maintain", str(triggered), "--query", "many")["ok"]
        append(triggered, "t", 7, 7)
        assert process.is_silent(0.3)
        append(triggered, "t", 7)
        assert process.line()["results"][0]["changes"] == 3
        assert process.end() == 0


@pytest.mark.slow
def test_what_is_maintained_at_commits_leaves_the_others_their_changes(triggered: Path) -> None:
    """A run pins the tables of all: what it saw has to reach the query that waited."""
    text = triggered.read_text()
    both = text.replace(
        "store:",
        '  each:\n    sql: "SELECT g, COUNT(*) n FROM t GROUP BY g HAVING COUNT(*) > 3"\n'
        "    sketch: {t: g}\nstore:",
    )
    triggered.write_text(both)
    assert impctl("capture", str(triggered), "--query", "each")["ok"]
    with following(triggered, "--query", "many", "--query", "each") as process:
        for _ in range(2):
            append(triggered, "t", 5)
            assert queries(process.line()) == {"each"}
        append(triggered, "t", 5)
        seen: set[str] = set()
        while "many" not in seen:
            seen |= queries(process.line())
        assert process.end() == 0
    assert is_right(triggered, "many")


def test_late_runs_and_others_are_told_apart(triggered: Path) -> None:
    """A bound that is over, and three rows."""

    def react(line: dict[str, Any]) -> None:
        append(triggered, "t", 7)

    append(triggered, "t", 5, 5)
    append(triggered, "u", 3)
    code, lines = followed(triggered, "--max-runs", "2", react=react)
    assert code == 0
    assert [queries(line) for line in lines] == [{"other"}, {"many"}]
    assert lines[0]["run"]["late_ms"] is not None, "it has a bound"
    assert (lines[1]["results"][0]["changes"], lines[1]["run"]["late_ms"]) == (3, None)


def test_bounds_and_flags_that_go_are_told_in_the_first_line(workload: Path) -> None:
    append(workload, "t", 5)
    options = ("--query", "many", "--max-wait", "50ms", "--interval", "100ms", "--max-runs", "2")
    code, (first, second) = followed(workload, *options, react=lambda _: append(workload, "t", 5))
    assert code == 0
    assert [text.rpartition(" ")[2] for text in first["warnings"]] == [
        *("[max_wait_deprecated]", "[fresh_impossible]")
    ]
    assert second["warnings"] == []
    assert second["run"]["late_ms"] >= 0
