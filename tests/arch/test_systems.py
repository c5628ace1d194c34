"""No file but the few that say so uses what only POSIX systems have, and all import without it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

from tests.support.sources import PACKAGE, texts

_MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog")
_LISTED = {
    "os": """
        geteuid getuid getegid getgid getgroups killpg getpgid setsid fork wait4 pread
        pwrite preadv pwritev fchmod fchown chown uname O_NOFOLLOW O_CLOEXEC O_DIRECT
        O_DIRECTORY sched_getaffinity getloadavg sysconf posix_fadvise statvfs mkfifo
        set_blocking
    """,
    "signal": """
        SIGALRM SIGHUP SIGKILL SIGQUIT SIGUSR1 SIGUSR2 SIGPIPE SIGCHLD setitimer ITIMER_REAL
        alarm pthread_sigmask sigwait
    """,
}
_NAMES = {module: names.split() for module, names in _LISTED.items()}
_ALLOWED = {
    "store/disk.py": {"fcntl", "os.geteuid"},
    "cli/interrupt.py": {"signal.setitimer", "signal.ITIMER_REAL"},
    "store/states.py": {"os.posix_fadvise"},
    "bench/machine.py": {"os.sched_getaffinity", "os.sysconf"},
    "spark/session.py": {"os.sysconf", "signal.SIGKILL"},
    "service/memory_limit.py": {"os.sysconf"},
}
"""What is used behind a question whether it is there."""

_HIDING = """
import importlib, os, pkgutil, signal, sys
import asyncio, concurrent.futures, multiprocessing, subprocess, tempfile, logging.handlers
import deltalake, numpy, pyarrow.dataset, pyarrow.fs, pydantic, rich.console, rich.progress
import sqlglot, sortedcontainers, typer.main, typer.testing, yaml, bitarray, pyspark.sql
for name in {modules!r}:
    sys.modules[name] = None
for module, names in ((os, {os!r}), (signal, {signal!r})):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
import impctl
for found in pkgutil.walk_packages(impctl.__path__, "impctl."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
from impctl.cli.interrupt import handle_alarm, set_alarm
handle_alarm(None), set_alarm(60), set_alarm(0)
from impctl.cli.follow import stopping
with stopping() as stop:
    stop.ask(); stop.wait(60)
print("all imported")
"""


def _used(tree: ast.AST) -> set[str]:
    result: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names} & set(_MODULES)
        elif isinstance(node, ast.ImportFrom):
            result |= {node.module or ""} & set(_MODULES)
            if node.module in _NAMES:
                result |= {f"{node.module}.{a.name}" for a in node.names} & _qualified()
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            result |= {f"{node.value.id}.{node.attr}"} & _qualified()
    return result


def _qualified() -> set[str]:
    return {f"{module}.{name}" for module, names in _NAMES.items() for name in names}


def test_posix_only_names_stand_where_they_are_asked_for() -> None:
    names = [*_MODULES, *(name for names in _NAMES.values() for name in names)]
    mentioned = re.compile(rf"\b({'|'.join(names)})\b")
    result = {
        path.relative_to(PACKAGE).as_posix(): _used(ast.parse(text))
        for path, text in texts().items()
        if mentioned.search(text)
    }
    assert {name: used for name, used in result.items() if used} == _ALLOWED


@pytest.mark.slow
def test_every_module_imports_without_them() -> None:
    code = _HIDING.format(modules=_MODULES, os=_NAMES["os"], signal=_NAMES["signal"])
    run = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False
    )
    assert run.stdout == "all imported\n", run.stderr
