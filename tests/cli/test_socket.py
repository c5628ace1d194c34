"""Commands that a process which follows answers over a socket: the same, or done as without it.

Real processes throughout: one follows, others ask.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.cli.socket import wire
from impctl.cli.socket.asking import answered_elsewhere

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

WORKLOAD = """
version: 1
tables: {t: {path: t}}
partitions: {t: {a: {boundaries: [2, 4, 6]}}}
queries:
  q:
    sql: SELECT a, SUM(b) AS total FROM t GROUP BY a HAVING SUM(b) > 10 ORDER BY a
    answer: true
"""
MAIN = "from impctl.cli.main import main; main()"
WHO = """
import atexit, os, sys
atexit.register(lambda: os.write(3, b"itself" if "typer" in sys.modules else b"asked"))
"""
"""Told when a command ends: whether it had loaded what does its work."""
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("IMPCTL_")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("socket")
    table = pa.table({"a": [1, 3, 5], "b": [20, 5, 30]})
    write_deltalake(tmp_path / "t", table, configuration={"delta.enableChangeDataFeed": "true"})
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    assert run(tmp_path, "capture", "w.yaml").code == 0
    return tmp_path


class Ran:
    """What a command printed and how it ended; `who` did it."""

    def __init__(self, code: int, out: str, err: str, who: str) -> None:
        self.code, self.out, self.err, self.who = code, out, err, who

    @property
    def said(self) -> tuple[int, str, str]:
        """All but the times in it."""
        timed = re.compile(r'"[a-z_]*_ms":\s*[-0-9.e]+|[0-9.]+ m?s\b|"at": "[^"]*"')
        return self.code, timed.sub("", self.out), timed.sub("", self.err)


def start(folder: Path, *words: str, **environment: str) -> tuple[subprocess.Popen[str], int]:
    read, write = os.pipe()
    code = f"import os; os.dup2({write}, 3); os.set_inheritable(3, False)\n{WHO}{MAIN}"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=folder,
        env={**ENVIRONMENT, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=[write],
    )
    os.close(write)
    return process, read


def ended(process: subprocess.Popen[str], read: int) -> Ran:
    out, err = process.communicate(timeout=60)
    with os.fdopen(read, "rb") as pipe:
        who = pipe.read().decode()
    return Ran(process.returncode, out, err, who)


def run(folder: Path, *words: str, **environment: str) -> Ran:
    return ended(*start(folder, *words, **environment))


def follow(folder: Path, path: Path, code: str = MAIN) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, "maintain", "w.yaml", "--follow", "--interval", "100ms"]
        + ["--socket", str(path)],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    until = time.monotonic() + 60
    while not answers(path):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    return process


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def gone(path: Path) -> None:
    until = time.monotonic() + 30
    while path.exists():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture(scope="module")
def listened(folder: Path) -> Iterator[Path]:
    """The socket of a process that follows."""
    path = folder / "s"
    process = follow(folder, path)
    yield path
    process.terminate()
    assert process.wait(30) == 0
    assert not path.exists()


@pytest.mark.parametrize(
    "words",
    [
        ("query", "w.yaml"),
        ("query", "w.yaml", "--json", "--query", "q"),
        ("query", "w.yaml", "--format", "csv"),
        ("query", "w.yaml", "--by", "engine", "--where", "a = 5"),
        ("query", "w.yaml", "--query", "none"),
        ("query", "none.yaml"),
        ("query", "w.yaml", "--limit", "x"),
        ("status", "w.yaml", "--json"),
        ("maintain", "w.yaml", "--json"),
        ("maintain", "w.yaml", "--dry-run", "--detailed-exitcode"),
        ("query", "--help"),
    ],
)
def test_it_is_said_and_ends_as_without(folder: Path, listened: Path, words: Sequence[str]) -> None:
    alone = run(folder, *words)
    there = run(folder, *words, "--socket", str(listened))
    assert (alone.who, there.who) == ("itself", "asked")
    assert there.said == alone.said


def test_the_callers_folder_and_variables_count(folder: Path, listened: Path) -> None:
    (folder / "deep").mkdir(exist_ok=True)
    ran = run(
        folder / "deep",
        "query",
        "../none.yaml",
        "--out",
        "o.csv",
        "--by",
        "state",
        IMPCTL_SOCKET=str(listened),
    )
    assert (ran.code, ran.who) == (2, "asked")
    ran = run(folder / "deep", "query", "../w.yaml", "--out", "o.csv", IMPCTL_SOCKET=str(listened))
    assert (ran.code, ran.who) == (0, "asked")
    assert (folder / "deep" / "o.csv").read_text().startswith("a,total\n1,20\n5,30\n")
    ran = run(folder, "query", "w.yaml", IMPCTL_SOCKET=str(listened), IMPCTL_POLICY="nonsense")
    assert (ran.code, ran.who) == (2, "asked")


def test_changes_are_seen_and_maintained(folder: Path, listened: Path) -> None:
    for at in range(3):
        write_deltalake(folder / "t", pa.table({"a": [7 + at], "b": [50]}), mode="append")
        ran = run(folder, "query", "w.yaml", "--json", "--socket", str(listened))
        assert (ran.code, ran.who) == (0, "asked")
        (result,) = json.loads(ran.out)["results"]
        assert result["rows"][-1] == [7 + at, 50]
        assert result["by"] == "state"


def test_many_at_once(folder: Path, listened: Path) -> None:
    begun = [start(folder, "status", "w.yaml", "--socket", str(listened)) for _ in range(8)]
    ran = [ended(*one) for one in begun]
    assert [(one.code, one.who) for one in ran] == [(0, "asked")] * 8
    assert len({one.out for one in ran}) == 1


def test_it_is_its_owners_alone(listened: Path) -> None:
    assert listened.stat().st_mode & 0o777 == 0o600


def test_what_takes_no_socket_does_its_work_itself(folder: Path, listened: Path) -> None:
    ran = run(folder, "explain", "w.yaml", IMPCTL_SOCKET=str(listened))
    assert (ran.code, ran.who) == (0, "itself")


def test_a_second_process_is_refused_and_the_first_goes_on(folder: Path, listened: Path) -> None:
    ran = run(
        folder, "maintain", "w.yaml", "--follow", "--max-runs", "1", "--socket", str(listened)
    )
    assert ran.code == 2
    assert "socket_taken" in ran.err
    assert run(folder, "status", "w.yaml", "--socket", str(listened)).who == "asked"


def test_absent_and_dead_sockets_are_as_none(folder: Path) -> None:
    path = folder / "dead"
    assert run(folder, "status", "w.yaml", "--socket", str(path)).said[0] == 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(path))
    path.chmod(0o600)
    ran = run(folder, "status", "w.yaml", "--socket", str(path))
    assert (ran.code, ran.who) == (0, "itself")
    process = follow(folder, path)
    assert run(folder, "status", "w.yaml", "--socket", str(path)).who == "asked"
    process.kill()
    process.wait()
    gone(path)
    ran = run(folder, "status", "w.yaml", "--socket", str(path))
    assert (ran.code, ran.who) == (0, "itself")


@pytest.mark.parametrize("kind", ["file", "long"])
def test_a_path_where_nothing_can_listen_is_refused(folder: Path, kind: str) -> None:
    path = folder / ("taken" if kind == "file" else "s" * 120)
    if kind == "file":
        path.write_text("mine")
    ran = run(folder, "maintain", "w.yaml", "--follow", "--max-runs", "1", "--socket", str(path))
    assert ran.code == 2
    assert "socket_failed" in ran.err
    assert kind == "long" or path.read_text() == "mine"


def test_a_socket_that_others_may_write_to_is_not_asked(folder: Path, listened: Path) -> None:
    listened.chmod(0o666)
    ran = run(folder, "status", "w.yaml", "--socket", str(listened))
    listened.chmod(0o600)
    assert (ran.code, ran.who) == (0, "itself")


def test_another_users_process_is_no_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = socket.socketpair()
    with one, other:
        assert wire.is_own_peer(one)
        monkeypatch.setattr(os, "geteuid", lambda: -7)
        assert not wire.is_own_peer(one)


PATCHED = """
from impctl.cli.socket import answering
{patch}
answering.main()
"""


def serving(folder: Path, patch: str) -> tuple[subprocess.Popen[bytes], Path]:
    """What listens, with something in it changed."""
    path = folder / "patched"
    process = subprocess.Popen(
        [sys.executable, "-c", PATCHED.format(patch=patch), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdout.close()
    return process, path


def closed(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(30) == 0


@pytest.mark.parametrize(
    "patch",
    [
        "answering.mark_now = lambda: 'changed since'",
        "answering.PROGRAM = ['0.0.9', answering.PROGRAM[1]]",
        "answering.is_own_peer = lambda connection: False",
        "answering.MOST = 0",
        "import os; os.fork = lambda: open('/no/process/to/be/had')",
    ],
)
def test_who_may_not_be_answered_does_its_work_itself(folder: Path, patch: str) -> None:
    process, path = serving(folder, patch)
    ran = run(folder, "status", "w.yaml", "--socket", str(path))
    assert (ran.code, ran.who) == (0, "itself")
    closed(process)


FULL = """
whole, tries = answering.socket.socket.accept, [1, 2, 3]
def accept(self):
    if tries:
        tries.pop()
        raise OSError(24, "Too many open files")
    return whole(self)
answering.socket.socket.accept = accept
"""


def test_who_cannot_be_taken_in_at_once_is_taken_in_later(folder: Path) -> None:
    process, path = serving(folder, FULL)
    ran = run(folder, "status", "w.yaml", "--socket", str(path))
    assert ran.code == 0
    assert ran.who != "itself"
    closed(process)


SLOW = "answering._loaded = lambda: lambda words: (__import__('time').sleep(30), 0)[1]"


def test_a_signal_ends_the_command_that_does_the_work(folder: Path) -> None:
    process, path = serving(folder, SLOW)
    asking, read = start(folder, "status", "w.yaml", "--socket", str(path))
    (child,) = children(process.pid)
    time.sleep(0.3)
    asking.send_signal(signal.SIGTERM)
    ran = ended(asking, read)
    assert ran.code != 0
    assert ran.who == "asked"
    assert not Path(f"/proc/{child}").exists()
    closed(process)


def test_work_that_was_killed_is_not_done_again(folder: Path) -> None:
    process, path = serving(folder, SLOW)
    asking, read = start(folder, "status", "w.yaml", "--socket", str(path))
    (child,) = children(process.pid)
    time.sleep(0.3)
    os.kill(child, signal.SIGKILL)
    ran = ended(asking, read)
    assert (ran.code, ran.who, ran.out) == (128 + signal.SIGKILL, "asked", "")
    closed(process)


def test_work_whose_end_nobody_can_tell_is_an_error(folder: Path) -> None:
    process, path = serving(folder, SLOW)
    asking, read = start(folder, "status", "w.yaml", "--socket", str(path))
    (child,) = children(process.pid)
    time.sleep(0.3)
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
    os.kill(child, signal.SIGKILL)
    ran = ended(asking, read)
    assert (ran.code, ran.who) == (1, "asked")
    assert "has ended" in ran.err


def children(pid: int) -> list[int]:
    until = time.monotonic() + 30
    while True:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if found:
            return [int(one) for one in found]
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (["query"], {}),
        (["maintain", "--follow", "--socket", "s"], {}),
        (["capture", "--socket", "s"], {}),
        (["query", "--", "--socket", "s"], {}),
        ([], {"IMPCTL_SOCKET": "s"}),
        (["query"], {"IMPCTL_SOCKET": ""}),
        (["query", "/dev/fd/63", "--socket", "s"], {}),
        (["query", "--out=/proc/self/fd/5"], {"IMPCTL_SOCKET": "s"}),
    ],
)
def test_these_ask_nobody(
    words: list[str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no(*_: Any) -> bool:
        raise AssertionError("looked for a socket")

    monkeypatch.setattr("impctl.cli.socket.asking.is_own_file", no)
    assert answered_elsewhere(words, environment) is None
