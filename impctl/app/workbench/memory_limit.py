"""How much memory a run of the engine over tables may take, and how much the process has taken.

Law: a bound on what is held, not on what is mapped from files, which the kernel can take back; a
run that passes it ends before the machine does. Where a machine cannot tell, nothing is bounded.
Out of scope: what becomes of a run that ends so (whoever began it).
"""

from __future__ import annotations

import os
import re
from mmap import PAGESIZE
from pathlib import Path

from impctl.errors import EvaluationError
from impctl.workload.scalars import size_from

MEMORY_EXCEEDED = "memory_exceeded"
"""The code of the error of what would take more than it may."""

_SHARE = 0.5
"""Of the machine's memory, or of the cgroup's, by default."""

_SHARE_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_CGROUPS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def memory_from(text: str) -> int:
    """Bytes of a size such as `500MB`, `2GiB` or `25%` of the machine; ValueError for others."""
    share = _SHARE_WRITTEN.fullmatch(text.strip())
    if share is None:
        amount = size_from(text)
    else:
        whole = machine_memory()
        if whole is None or float(share.group(1)) > 100:
            raise ValueError(text)
        amount = int(whole * float(share.group(1)) / 100)
    if amount <= 0:
        raise ValueError(text)
    return amount


def machine_memory() -> int | None:
    """Bytes that the process may come to: of the machine, or of its cgroup where that has less."""
    try:
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
    for name in _CGROUPS:
        try:
            text = Path(name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            whole = min(whole, int(text))
    return whole


def held_memory() -> int | None:
    """Bytes of its own that the process holds now, mapped files aside."""
    try:
        resident, shared = Path("/proc/self/statm").read_text(encoding="ascii").split()[1:3]
        return (int(resident) - int(shared)) * PAGESIZE
    except (OSError, ValueError):
        return None


class MemoryLimit:
    """What may still be taken from now on; `limit` None is a share of the machine."""

    def __init__(self, limit: int | None) -> None:
        whole = machine_memory()
        self.bytes = limit if limit is not None or whole is None else int(whole * _SHARE)
        self._before = held_memory() or 0

    def check(self) -> None:
        """EvaluationError where more was taken since."""
        held = held_memory()
        if self.bytes is not None and held is not None and held - self._before > self.bytes:
            raise too_large(self.bytes)


def too_large(limit: int) -> EvaluationError:
    """The error for what would take more than that."""
    return EvaluationError(
        f"The engine would take more than {limit / 1e6:,.0f} MB of memory",
        hint="leave `--by` out, and Spark answers; or give more with `--memory`",
        code=MEMORY_EXCEEDED,
    )
