"""`impctl` in processes of its own, and what they said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Done:
    """A process that ended."""

    code: int
    document: dict[str, Any]
    stderr: str


Spoken = subprocess.CompletedProcess[str]


def spoken(*command: str) -> Spoken:
    """A command run to its end, whatever that is, with this process's modules."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, env=environment
    )


def start(workload: Path, command: str, *words: str, **environment: str) -> subprocess.Popen[str]:
    """`impctl COMMAND WORKLOAD --json ...`, running."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "impctl", command, str(workload), "--json", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )


def end(process: subprocess.Popen[str]) -> Done:
    """The exit code and the document, which must be there and whole."""
    out, err = process.communicate(timeout=300)
    assert "Traceback" not in err, err
    return Done(process.returncode, json.loads(out), err)


def ran(workload: Path, command: str, *words: str) -> Done:
    """Run to the end."""
    return end(start(workload, command, *words))


def until_open(process: subprocess.Popen[str], store: Path) -> float:
    """Wait until the process has the catalog open, or has ended; when that was.

    Loading takes most of a short run and writes nothing: shots go behind it.
    """
    catalog = str((store / "catalog.sqlite").resolve())
    while process.poll() is None:
        with suppress(OSError):
            for name in os.listdir(f"/proc/{process.pid}/fd"):
                if os.readlink(f"/proc/{process.pid}/fd/{name}") == catalog:
                    return time.monotonic()
        time.sleep(0.002)
    return time.monotonic()
