"""`maintain --follow` alone and beside other processes: lines, locks, signals, retries."""

from __future__ import annotations

import io
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.errors import LockHeldError, StorageError
from impctl.service.context import open_context
from impctl.service.schedule import daemon as daemon_module
from impctl.service.schedule.daemon import Retries, TableWatch, _Following
from impctl.service.settings import FollowRequest, Settings
from impctl.store.store import Store
from impctl.tables.write.maintenance import create_table
from tests.behaviour.test_bad_input import held_lock
from tests.support.kept_workload import stored
from tests.support.run_cli import ROWS, WORKLOAD, Cli, CliOnce, MonkeyPatch, write_files

SQL = {
    "many": "SELECT g, COUNT(*) n FROM t GROUP BY g HAVING COUNT(*) > 2",
    "other": "SELECT g, SUM(x) s FROM u GROUP BY g HAVING SUM(x) > 20",
}


def followed_text(many: str = "", other: str = ", maintain: eager") -> str:
    """The workload, with more settings of its queries."""
    ranges = "{g: {boundaries: [2, 4, 6]}}"
    settings_of = {"many": f"{{t: g}}{many}", "other": f"{{u: g}}{other}"}
    queries = "".join(
        f'  {name}: {{sql: "{SQL[name]}", policy: incremental, sketch: {settings}}}\n'
        for name, settings in settings_of.items()
    )
    head = "version: 1\ntables: {t: {path: t}, u: {path: u}}\n"
    return f"{head}partitions: {{t: {ranges}, u: {ranges}}}\nqueries:\n{queries}store: .impctl\n"


def rows(*groups: int) -> pa.Table:
    values = pa.array(groups, pa.int64())
    return pa.table({"g": values, "x": pa.array([10] * len(groups), pa.int64())})


@pytest.fixture
def workload(cli_once: CliOnce) -> Path:
    start = rows(0, 0, 0, 3, 3, 5)
    write = partial(write_files, workload=followed_text(), t=start, u=start)
    return cli_once("followed workload", write, Cli.captured).workload


def append(workload: Path, table: str, *groups: int) -> None:
    write_deltalake(str(workload.parent / table), rows(*groups), mode="append")


def sketch(store: Path, query: str) -> tuple[int, ...]:
    return tuple(stored(store.parent, query, store.name).sketches[0].ranges.ids)


def is_fresh_capture(workload: Path, *queries: str) -> bool:
    """Whether the followed sketches equal those of a capture into an empty store."""
    fresh = workload.parent / "fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    for query in queries:
        captured = impctl("capture", str(workload), "--query", query, "--store", str(fresh))
        assert captured["ok"], captured
    store = workload.parent / ".impctl"
    return all(sketch(store, query) == sketch(fresh, query) for query in queries)


def run_of(line: dict[str, Any]) -> tuple[int, int]:
    return line["run"]["number"], line["run"]["exit_code"]


@pytest.mark.slow
def test_runs_print_lines_in_process(workload: Path) -> None:
    def react(line: dict[str, Any]) -> None:
        if line["run"]["number"] == 1:
            append(workload, "t", 5)
        elif line["run"]["number"] == 2:
            append(workload, "u", 3)
            append(workload, "u", 5)
        else:
            signal.raise_signal(signal.SIGTERM)

    append(workload, "t", 5)
    code, (first, second, third) = followed(workload, react=react)
    assert code == 0, "a service that was stopped"
    assert (first["command"], first["ok"], first["schema_version"]) == ("maintain", True, 1)
    assert [run_of(line) for line in (first, second, third)] == [(1, 0), (2, 0), (3, 0)]
    (result,) = first["results"]
    assert (result["query"], result["action"], result["changes"]) == ("many", "exact", 1)
    assert second["results"][0]["added"] == [2]
    # An eager query has a sketch for each version.
    (result,) = third["results"]
    assert [step["versions"]["u"] for step in result["steps"]] == [1, 2]
    assert is_fresh_capture(workload, "many", "other")


@pytest.mark.slow
def test_other_processes_may_maintain_capture_or_replace_store(workload: Path) -> None:
    options = ("--query", "many", "--pending-rows", "3", "--max-wait", "1h")
    with following(workload, *options) as process:
        append(workload, "t", 1, 1, 3)
        assert process.line()["results"][0]["changes"] == 3
        # Two rows are too few for the follower, so another process maintains them.
        # The follower is stopped meanwhile: it may take an opened store for a changed one.
        process.process.send_signal(signal.SIGSTOP)
        append(workload, "t", 1, 5)
        ran = impctl("maintain", str(workload), "--query", "many")
        process.process.send_signal(signal.SIGCONT)
        assert ran["results"][0]["action"] == "exact"
        append(workload, "t", 5, 7, 7)
        maintained_three(process)
        assert is_fresh_capture(workload, "many")
        process.process.send_signal(signal.SIGSTOP)
        append(workload, "t", 7)
        assert impctl("capture", str(workload), "--query", "many")["ok"]
        process.process.send_signal(signal.SIGCONT)
        append(workload, "t", 9, 9, 9)
        maintained_three(process)
        assert is_fresh_capture(workload, "many")
        (workload.parent / ".impctl").rename(workload.parent / "away")
        assert impctl("capture", str(workload), "--query", "many")["ok"]
        append(workload, "t", 3, 3, 3)
        line = process.line()
        while line["error"] is not None and line["error"]["code"] == "not_captured":
            line = process.line()  # it looked while there was no store
        assert [result["changes"] for result in line["results"]] == [3], line
        assert process.end() == 0
    assert is_fresh_capture(workload, "many")


def maintained_three(process: Following) -> None:
    line = process.line()
    assert line["ok"], line
    assert [result["changes"] for result in line["results"]] == [3]


@pytest.mark.slow
def test_failing_query_does_not_stop_others(workload: Path) -> None:
    with following(workload) as process:
        narrow = pa.table({"g": pa.array([1], pa.int64())})
        path = str(workload.parent / "u")
        write_deltalake(path, narrow, mode="overwrite", schema_mode="overwrite")
        line = process.line()
        assert (line["error"]["query"], line["error"]["code"]) == ("other", "column_unknown")
        assert line["run"]["retry_ms"] is None
        assert process.is_silent(0.3), "a permanent error is not retried"
        append(workload, "t", 5, 5)
        line = process.line()
        assert [result["query"] for result in line["results"]] == ["many"]
        assert line["error"]["query"] == "other"
        assert process.end() == 0
    assert is_fresh_capture(workload, "many")


@pytest.mark.slow
def test_unreadable_table_is_reported_once(workload: Path) -> None:
    broken = workload.parent / "u" / "_delta_log" / f"{1:020d}.json"
    with following(workload) as process:
        append(workload, "t", 5)
        assert process.line()["ok"]
        broken.write_text("this is no log entry")
        line = process.line()
        assert line["error"]["query"] == "other"
        assert process.is_silent(0.3)
        broken.unlink()
        append(workload, "u", 3)
        line = process.line()
        assert (line["ok"], line["results"][0]["query"]) == (True, "other")
        assert process.end() == 0
    assert is_fresh_capture(workload, "other")


@pytest.mark.slow
def test_postponed_query_delays_no_other(workload: Path) -> None:
    with following(workload) as process:
        append(workload, "u", 3)
        assert process.line()["ok"]
        process.process.send_signal(signal.SIGSTOP)
        append(workload, "u", 5)
        file = newest_file(workload.parent / "u")
        moved = file.rename(file.with_suffix(".away"))
        file.symlink_to(file.name)  # to itself, which nobody can read
        process.process.send_signal(signal.SIGCONT)
        pause = 0.0
        while pause < 1000:
            line = process.line()
            assert (line["error"]["query"], line["error"]["code"]) == ("other", "storage_failed")
            pause = line["run"]["retry_ms"]
        # The other query is maintained long before the next retry of the failing one.
        append(workload, "t", 5)
        line = process.line()
        assert (line["ok"], line["run"]["retry_ms"]) == (True, None)
        assert [result["query"] for result in line["results"]] == ["many"]
        file.unlink()
        moved.rename(file)
        line = process.line()
        assert (line["ok"], [result["query"] for result in line["results"]]) == (True, ["other"])
        assert process.end() == 0
    assert is_fresh_capture(workload, "many", "other")


def newest_file(table: Path) -> Path:
    return max(table.glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)


@pytest.mark.slow
@pytest.mark.usefixtures("heard_signals")
def test_held_lock_is_retried_with_growing_pauses(workload: Path) -> None:
    with following(workload, "--lock-timeout", "0") as process:
        append(workload, "t", 5)
        assert process.line()["ok"]
        with held_lock(workload.parent / ".impctl") as holder:
            append(workload, "t", 5)
            lines = [process.line() for _ in range(4)]
            assert {line["error"]["code"] for line in lines} == {"lock_held"}
            assert str(holder.pid) in lines[0]["error"]["message"]
            pauses = [line["run"]["retry_ms"] for line in lines]
            # 30 ms, doubled each time, times a random factor of 0.5 to 1.
            assert all(15 * 2**n <= pause <= 30 * 2**n for n, pause in enumerate(pauses))
        line = process.line()
        while not line["ok"]:
            line = process.line()
        assert line["results"][0]["added"] == [2]
        assert process.end(signal.SIGINT) == 130
        assert process.line()["error"]["code"] == "interrupted"
    assert is_fresh_capture(workload, "many")


@pytest.mark.slow
def test_second_signal_aborts_the_run_cleanly(workload: Path) -> None:
    with following(workload) as process:
        append(workload, "t", 5)
        assert process.line()["ok"]
        with held_lock(workload.parent / ".impctl"):
            before = sketch(workload.parent / ".impctl", "many")
            append(workload, "t", 5, 5)
            assert process.is_silent(0.5), "it waits for the lock, ten seconds long"
            process.process.send_signal(signal.SIGTERM)
            assert process.is_silent(0.2)
            assert process.process.poll() is None, "the run may be finished"
            assert process.end() == 0
            assert sketch(workload.parent / ".impctl", "many") == before
    assert impctl("maintain", str(workload), "--lock-timeout", "1")["ok"]
    assert is_fresh_capture(workload, "many")


def test_changed_workload_file_ends_it(workload: Path) -> None:
    def react(line: dict[str, Any]) -> None:
        if line["run"]["number"] == 1:
            workload.touch()
            append(workload, "t", 5)
        elif line["run"]["number"] == 2:
            workload.write_text(workload.read_text() + "# changed\n")

    append(workload, "t", 5)
    code, lines = followed(workload, react=react)
    assert code == 6
    assert [line["ok"] for line in lines] == [True, True, False], "the same content is the same"
    assert lines[-1]["error"]["code"] == "workload_changed"


@pytest.mark.slow
def test_replaced_table_is_recaptured(workload: Path) -> None:
    folder = workload.parent
    with following(workload, "--query", "many", "--policy", "auto") as process:
        append(workload, "t", 5)
        assert process.line()["results"][0]["action"] == "exact"
        create_table(str(folder / "new"), rows(9, 9, 9))
        append(workload, "new", 9)
        shutil.rmtree(folder / "t")
        (folder / "new").rename(folder / "t")
        line = process.line()
        while not line["results"]:
            line = process.line()  # it looked while there was no table
        assert line["results"][0]["reason_code"] == "table_recreated"
        assert process.end() == 0
    assert is_fresh_capture(workload, "many")
    assert sketch(workload.parent / ".impctl", "many") == (3,)


@pytest.mark.slow
def test_waiting_process_ends_at_once(workload: Path) -> None:
    with following(workload, "--interval", "1h") as process:
        append(workload, "t", 5)
        process.line()
        assert process.end() == 0


@pytest.mark.slow
def test_closed_output_ends_it(workload: Path) -> None:
    with following(workload) as process:
        process.process.stdout.close()
        append(workload, "t", 5)
        assert process.process.wait(PATIENCE) == 0


def resident(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (size,) = (line.split()[1] for line in lines if line.startswith("VmRSS"))
    return int(size) / 1024


@pytest.mark.long
@pytest.mark.slow
def test_memory_does_not_grow(workload: Path) -> None:
    sizes = []
    with following(workload, "--interval", "5ms") as process:
        for number in range(300):
            append(workload, "t" if number % 2 else "u", number % 9)
            assert process.line()["ok"]
            if number % 50 == 49:
                sizes.append(resident(process.process.pid))
        assert process.end() == 0
    assert sizes[-1] - sizes[0] < 25, sizes
    assert is_fresh_capture(workload, "many")


@pytest.fixture
def triggered(workload: Path) -> Path:
    """`many` waits for three rows of `t`, `other` for four seconds after a change of `u`."""
    bound = ", trigger: {fresh_within: 500ms, rows: 1000}"
    workload.write_text(followed_text(", trigger: {rows: 3}", bound))
    return workload


def queries_in(line: dict[str, Any]) -> set[str]:
    return {result["query"] for result in line["results"]}


@pytest.mark.slow
def test_late_ms_is_for_bounds_only(triggered: Path) -> None:
    """One run is due by an exceeded bound, one by three rows."""

    def react(line: dict[str, Any]) -> None:
        append(triggered, "t", 7)

    append(triggered, "t", 5, 5)
    append(triggered, "u", 3)
    code, lines = followed(triggered, "--max-runs", "2", react=react)
    assert code == 0
    assert [queries_in(line) for line in lines] == [{"other"}, {"many"}]
    assert lines[0]["run"]["late_ms"] is not None, "it has a bound"
    assert (lines[1]["results"][0]["changes"], lines[1]["run"]["late_ms"]) == (3, None)


def test_first_line_warns_of_bounds_and_deprecated_flags(workload: Path) -> None:
    append(workload, "t", 5)
    options = ("--query", "many", "--max-wait", "50ms", "--interval", "100ms", "--max-runs", "2")
    code, (first, second) = followed(workload, *options, react=lambda _: append(workload, "t", 5))
    assert code == 0
    codes = [text.rpartition(" ")[2] for text in first["warnings"]]
    assert codes == ["[max_wait_deprecated]", "[fresh_impossible]"]
    assert second["warnings"] == []
    assert second["run"]["late_ms"] >= 0


@pytest.fixture
def process(cli: Cli) -> Iterator[_Following]:
    """A follower of `q` (on commit), `three` and `night`, after its first look."""
    queries = "".join(
        f'  {name}: {{sql: "SELECT g, SUM(x) s FROM t GROUP BY g HAVING SUM(x) > {limit}", '
        f"sketch: {{t: g}}, policy: incremental, trigger: {trigger}}}\n"
        for name, limit, trigger in (("three", 20, "{rows: 3}"), ("night", 21, "{point: nightly}"))
    )
    cli.edit("store: .impctl\n", f"{queries}store: .impctl\n")
    cli.good("capture")
    with open_context(Settings(cli.workload, lock_timeout=0.0)) as ctx:
        result = _Following(ctx, ctx.sketched(None), None, FollowRequest(interval=1.0))
        run_once(result)
        assert run_once(result) == []
        yield result


def run_once(process: _Following) -> list[str]:
    """Do one iteration of the loop. Return the queries of its run."""
    ready, due = process.scheduler.due()
    if not ready and not due:
        return []
    process.run(ready, due, lambda outcome, run: None)
    return [*ready, *(item.query for item in due)]


def append_rows(table: str, rows: int) -> None:
    write_deltalake(table, ROWS.slice(0, rows), mode="append")


@pytest.mark.slow
def test_triggers_apply(process: _Following, table: str) -> None:
    append_rows(table, 2)
    assert run_once(process) == ["q"]
    assert run_once(process) == []
    append_rows(table, 1)
    assert run_once(process) == ["q", "three"]
    assert run_once(process) == []


@pytest.mark.slow
def test_commits_between_look_and_run_are_new(process: _Following, table: str) -> None:
    append_rows(table, 1)
    ready, due = process.scheduler.due()
    assert (ready, due) == (["q"], [])
    append_rows(table, 2)
    process.run(ready, due, lambda outcome, run: None)
    assert "three" in run_once(process)


@pytest.fixture
def failing_look(process: _Following, monkeypatch: MonkeyPatch) -> Any:
    @contextmanager
    def failing() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(process, "_waiting_at", lambda ctx: None)
            yield

    return failing


@pytest.mark.slow
def test_failed_look_loses_nothing(process: _Following, table: str, failing_look: Any) -> None:
    append_rows(table, 3)
    with failing_look():
        process.scheduler.due()
    assert run_once(process) == ["q", "three"]


def test_lock_postpones_work_another_process_may_do(
    process: _Following, cli: Cli, monkeypatch: MonkeyPatch
) -> None:
    append_rows(cli.path("t"), 3)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "lock", Mock(side_effect=LockHeldError("another process writes")))
        assert run_once(process) == ["q", "three"]
        assert run_once(process) == [], "both are put off"
    cli.good("maintain")
    monkeypatch.setattr("time.monotonic", lambda: 1e9)
    assert "three" not in run_once(process)
    assert process.scheduler.retries.next_due() is None, (
        "queries that are not due are not postponed"
    )
    assert process.scheduler.pause() > 0


@pytest.mark.slow
def test_failed_look_is_repeated(process: _Following, table: str, failing_look: Any) -> None:
    append_rows(table, 1)
    ready, due = process.scheduler.due()
    append_rows(table, 2)
    with failing_look():
        process.run(ready, due, lambda outcome, run: None)
    assert "three" in run_once(process)


def test_unreadable_log_is_not_a_change(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    file = write_files(tmp_path, WORKLOAD.replace("POLICY", "auto"), t=ROWS)
    watch = TableWatch()
    # Like an object store that cannot be reached.
    unreachable = Mock(side_effect=StorageError("Table `t` cannot be reached"))
    with open_context(Settings(file)) as ctx:
        watch.pinned()
        ctx.tables.source("t")
        watch.saw(ctx)
        assert not watch.is_due(ctx)
        with monkeypatch.context() as patch:
            for name in ("has_new_log", "log_end", "open_newest"):
                patch.setattr(daemon_module, name, unreachable)
            assert watch.is_due(ctx)
            watch.saw(ctx.next_run(watch.pinned()))  # the run could not open it either
            assert not watch.is_due(ctx)
            # The log came back during a run that had not found it.
            run = ctx.next_run(watch.pinned())
            patch.setattr(daemon_module, "log_end", lambda _: "another")
            patch.setattr(daemon_module, "has_new_log", lambda _: True)
            watch.saw(run)
            assert watch.is_due(ctx)
        write_deltalake(str(tmp_path / "t"), pa.table(ROWS), mode="append")
        assert watch.is_due(ctx)


@pytest.fixture
def retries(monkeypatch: MonkeyPatch) -> Callable[[float], Retries]:
    """Retries with pauses that are not random."""
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    return Retries


def test_pauses_grow_per_query(retries: Any) -> None:
    state = retries(2.0)
    assert [state.failed(["a"], 100.0) for _ in range(4)] == [2.0, 4.0, 8.0, 16.0]
    assert state.failed(["b"], 100.0) == 2.0
    assert state.next_due() == 102.0
    assert [state.waiting(now) for now in (102.0, 116.0)] == [{"a"}, set()]


def test_success_resets_the_pause(retries: Any) -> None:
    state = retries(2.0)
    for now in (0.0, 2.0):
        state.failed(["a"], now)
    for query in ("a", "never failed"):
        state.went_well(query)
    assert (state.next_due(), state.waiting(0.0)) == (None, frozenset())
    assert state.failed(["a"], 10.0) == 2.0


def test_joint_failures_are_due_together_after_the_shortest_pause(retries: Any) -> None:
    state = retries(1.0)
    state.failed(["a", "b"], 0.0)
    assert state.waiting(0.5) == {"a", "b"}
    state.failed(["b"], 1.0)
    assert state.failed(["a", "b", "c"], 3.0) == 1.0
    waiting = [{"a", "b", "c"}, {"a", "b"}, {"b"}, set()]
    assert [state.waiting(now) for now in (3.5, 4.0, 5.0, 7.0)] == waiting
    assert state.failed([], 9.0) is None


@pytest.mark.parametrize(("first", "longest"), [(2.0, 60.0), (300.0, 300.0)])
def test_pauses_grow_to_a_minute_or_the_interval(
    retries: Any, first: float, longest: float
) -> None:
    state = retries(first)
    pauses = [state.failed(["a"], 0.0) for _ in range(2000)]
    assert (pauses[0], pauses[-1]) == (first, longest)
    assert state.next_due() == longest


PATIENCE = 60.0
"""Seconds after which an expected event is missing. No test should wait for so long."""


class Following:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._rest = b""

    def line(self, within: float = PATIENCE) -> dict[str, Any]:
        result = self._read(within)
        assert result is not None, self.stderr()
        return result

    def is_silent(self, seconds: float) -> bool:
        return self._read(seconds) is None

    def _read(self, within: float) -> dict[str, Any] | None:
        descriptor = self.process.stdout.fileno()
        while b"\n" not in self._rest:
            ready, _, _ = select.select([descriptor], [], [], within)
            more = os.read(descriptor, 65_536) if ready else b""
            if not more:
                return None
            self._rest += more
        first, _, self._rest = self._rest.partition(b"\n")
        return json.loads(first)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def stderr(self) -> str:
        self.process.kill()
        return self.process.communicate()[1].decode()


@contextmanager
def following(workload: Path, *options: str, command: str = "maintain") -> Iterator[Following]:
    words = [sys.executable, "-P", "-m", "impctl", command, str(workload), "--follow", "--json"]
    options = options if "--interval" in options else ("--interval", "30ms", *options)
    process = subprocess.Popen(
        [*words, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    try:
        yield Following(process)
    finally:
        process.kill()
        process.communicate()


class _Lines(io.StringIO):
    """Output of a program in this process. `react` gets each run's line when it is flushed."""

    def __init__(self, react: Callable[[dict[str, Any]], object]) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []
        self._react = react

    def flush(self) -> None:
        for line in self.getvalue().splitlines()[len(self.lines) :]:
            self.lines.append(json.loads(line))
            if "run" in self.lines[-1]:
                self._react(self.lines[-1])


React = Callable[[dict[str, Any]], object]


def followed(
    workload: Path, *options: str, command: str = "maintain", react: React = lambda line: None
) -> tuple[int, list[dict[str, Any]]]:
    """Follow in this process until it ends. Return the exit code and the lines.

    `react` is called between two runs. It may change tables and files, and raise signals.
    """
    shown = _Lines(react)
    options = options if "--interval" in options else ("--interval", "10ms", *options)
    with redirect_stdout(shown):
        code = run(build_app(), [command, str(workload), "--follow", "--json", *options])
        shown.flush()
    return code, shown.lines


def impctl(*words: str) -> dict[str, Any]:
    """Run impctl in this process, beside the following one. Return its document."""
    output = io.StringIO()
    with redirect_stdout(output):
        run(build_app(), [*words, "--json"])
    return json.loads(output.getvalue())
