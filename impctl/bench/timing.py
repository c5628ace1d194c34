"""Timing: repeats and medians, and the machine: its noise and what it is."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import numpy.typing as npt

from impctl.bench.record import Metric
from impctl.stopwatch import Stopwatch

# Law: a measurement is the median of its runs. Compared ways are timed in turns, so that drift
# affects all alike.

WARM_UP = 4
"""Runs of a query that are not counted: Spark compiles and recompiles it in the first ones."""

_WARM_MS = 10_000.0
"""Limit of warming up: a run of seconds is compiled during the run."""


def milliseconds(work: Callable[[], object]) -> float:
    """Time one call."""
    watch = Stopwatch()
    work()
    return watch.ms


def warm_up(work: Callable[[], object], *, done: int = 0) -> None:
    """Call it until it ran WARM_UP times, `done` of them before, or 10 s have passed."""
    watch = Stopwatch()
    while done < WARM_UP and watch.ms < _WARM_MS:
        work()
        done += 1


def in_turns(calls: Mapping[str, Callable[[], object]], runs: int) -> dict[str, Metric]:
    """Time `runs` calls each; all are called once before any again."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(runs):
        for name, call in calls.items():
            times[name].append(milliseconds(call))
    return {name: Metric.of(values) for name, values in times.items()}


# The yardstick. Law: the work is the same in every run and exercises what measurements rely on:
# numbers, a file, a sync. Differences of its medians are noise.

_NUMBERS = 400_000
_BYTES = 1 << 20
_RUNS = 5


def yardstick(folder: Path) -> float:
    """Time a fixed piece of work with a file in `folder`; the median in milliseconds."""
    numbers = np.random.default_rng(0).random(_NUMBERS)
    file = folder / ".impctl-yardstick"
    try:
        _work(numbers, file)  # not counted
        return in_turns({"": lambda: _work(numbers, file)}, _RUNS)[""].median
    finally:
        file.unlink(missing_ok=True)


def noise_of(medians: Sequence[float]) -> float:
    """The share by which medians of the yardstick differ; 0 for fewer than two."""
    return max(medians) / min(medians) - 1 if len(medians) > 1 else 0.0


def _work(numbers: npt.NDArray[np.float64], file: Path) -> None:
    # The default sort is ten times as fast on processors with AVX-512, a stable one is not.
    ordered = np.sort(numbers, kind="stable")
    with file.open("wb") as stream:
        stream.write(ordered.tobytes()[:_BYTES])
        stream.flush()
        os.fsync(stream.fileno())


# Law: only facts read from the running system; what is unreadable is omitted, never guessed.

_PACKAGES = ("pyspark", "deltalake", "pyarrow", "numpy", "duckdb", "scipy")


def describe_machine() -> dict[str, str]:
    """Processor, cores, memory, Python, relevant packages, and the commit of this code."""
    facts = {
        "cpu": _cpu(),
        "cores": _cores(),
        "memory_gb": _memory(),
        "python": platform.python_version(),
        "commit": _commit(),
    }
    for package in ("impctl", *_PACKAGES):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    return {name: fact for name, fact in facts.items() if fact}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor())


def _cores() -> str:
    if hasattr(os, "sched_getaffinity"):
        return str(len(os.sched_getaffinity(0)))
    return str(os.cpu_count() or "")


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f}"
    except (AttributeError, ValueError, OSError):
        return ""


def _commit() -> str:
    """The commit of this checkout, marked if changed since; empty if installed, even below another
    repository."""
    folder = Path(__file__).resolve().parents[1]
    if not _git(folder, "ls-files", "--", "bench/timing.py"):
        return ""
    commit = _git(folder, "rev-parse", "--short", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".")
    return f"{commit}-dirty" if commit and changed else commit


def _git(folder: Path, *words: str) -> str:
    """The output of git; empty if it fails or is missing."""
    try:
        result = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout.strip()
