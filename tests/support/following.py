"""A process that follows, `impctl maintain --follow --json` or `changes`, read line by line."""

from __future__ import annotations

import io
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from impctl.cli.application import build_app
from impctl.cli.boundary import run

PATIENCE = 60.0
"""Seconds after which something that should happen has not; nothing waits for so long."""


class Following:
    """The process, with its lines."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._rest = b""

    def line(self, within: float = PATIENCE) -> dict[str, Any]:
        """The next line."""
        result = self._read(within)
        assert result is not None, self.stderr()
        return result

    def is_silent(self, seconds: float) -> bool:
        """Whether no line comes for so long."""
        return self._read(seconds) is None

    def _read(self, within: float) -> dict[str, Any] | None:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        while b"\n" not in self._rest:
            ready, _, _ = select.select([descriptor], [], [], within)
            more = os.read(descriptor, 65_536) if ready else b""
            if not more:
                return None
            self._rest += more
        first, _, self._rest = self._rest.partition(b"\n")
        result = json.loads(first)
        assert isinstance(result, dict)
        return result

    def end(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def stderr(self) -> str:
        """All it said there, once it has ended."""
        self.process.kill()
        return self.process.communicate()[1].decode()


@contextmanager
def following(workload: Path, *options: str, command: str = "maintain") -> Iterator[Following]:
    """The process for as long as the block runs."""
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
    """What a program in this process prints; `react` gets each run's line once it is flushed."""

    def __init__(self, react: Callable[[dict[str, Any]], object]) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []
        self._react = react

    def flush(self) -> None:
        for line in self.getvalue().splitlines()[len(self.lines) :]:
            self.lines.append(json.loads(line))
            if "run" in self.lines[-1]:
                self._react(self.lines[-1])


def followed(
    workload: Path,
    *options: str,
    command: str = "maintain",
    react: Callable[[dict[str, Any]], object] = lambda line: None,
) -> tuple[int, list[dict[str, Any]]]:
    """Follow in this process until it ends; the exit code and the lines.

    `react` is called between two runs. It may change tables and files, and raise signals.
    """
    shown = _Lines(react)
    options = options if "--interval" in options else ("--interval", "10ms", *options)
    with redirect_stdout(shown):
        code = run(build_app(), [command, str(workload), "--follow", "--json", *options])
        shown.flush()
    return code, shown.lines


def impctl(*words: str) -> dict[str, Any]:
    """Run impctl in this process, which is another one than the one that follows; its document."""
    shown = io.StringIO()
    with redirect_stdout(shown):
        run(build_app(), [*words, "--json"])
    result = json.loads(shown.getvalue())
    assert isinstance(result, dict)
    return result
