"""How much memory a run of the engine over tables may take, and how much the process has taken.

Law: a bound on what is held, not on what is mapped from files, which the kernel can take back. It
is checked before large arrays are made (`data.memory`), so that a run ends before it exceeds it by
more than small ones. Where a machine cannot tell, nothing is bounded.
Out of scope: what becomes of a run that ends so (whoever began it).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from impctl.data.memory import SMALL, bounded, give_back, held_memory
from impctl.errors import OutOfMemoryError, out_of_memory
from impctl.workload.yaml import share_from, size_from

if TYPE_CHECKING:
    from impctl.service.settings import Settings
    from impctl.workload.models import Workload

MEMORY_EXCEEDED = "memory_exceeded"
"""The code of the error of what would take more than it may."""

_SHARE = 0.5
"""Of the machine's memory, or of the cgroup's, by default."""

_FILL = 50_000_000
_TIMES = 4
"""What filling a join takes: so much, and so many times the bytes that its largest side is kept in
(measured: 28 MB for 3 MB, 163 to 174 for 28, 355 for 84)."""

_BATCHES = 24
"""Batches of rows that a limit has room for."""

_CGROUPS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def memory_from(text: str) -> int:
    """Bytes of a size such as `500MB`, `2GiB` or `25%` of the machine; ValueError for others."""
    share = share_from(text)
    if share is None:
        amount = size_from(text)
    else:
        whole = machine_memory()
        if whole is None:
            raise ValueError(text)
        amount = int(whole * share)
    if amount <= 0:
        raise ValueError(text)
    return amount


def memory_of(settings: Settings, workload: Workload) -> int | None:
    """Bytes that a process may take; None where neither run nor workload say, or where they say a
    share of what nobody knows."""
    told = workload.budget.memory
    if settings.memory is not None or told is None:
        return settings.memory
    try:
        return memory_from(told)
    except ValueError:
        return None


def largest_side(memory: int | None) -> int | None:
    """The largest side of a join, in bytes as it is kept, that so much memory can be filled with;
    None without a bound."""
    return None if memory is None else max(0, memory - _FILL) // _TIMES


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


class MemoryLimit:
    """What may still be taken from now on; `limit` None is a share of the machine."""

    def __init__(self, limit: int | None) -> None:
        whole = machine_memory()
        self.bytes = limit if limit is not None or whole is None else int(whole * _SHARE)
        self._before = held_memory() or 0

    def check(self, more: int = 0) -> None:
        """OutOfMemoryError where so many bytes more would exceed the limit."""
        if self.bytes is None or not self._is_exceeded(self.bytes, more):
            return
        # Allocators keep what was freed; that is not in use.
        give_back()
        if self._is_exceeded(self.bytes, more):
            raise too_large(self.bytes)

    def _is_exceeded(self, limit: int, more: int) -> bool:
        held = held_memory()
        return held is not None and held - self._before + more > limit


@contextmanager
def held_to(limit: MemoryLimit) -> Iterator[None]:
    """Within it no large arrays are made beyond the limit: OutOfMemoryError, also where the system
    has no more memory."""
    try:
        with bounded(limit.check):
            yield
    except MemoryError as error:
        raise out_of_memory(error) from None


def batch_size(limit: int | None) -> int | None:
    """Bytes of rows to be read at once: steps take several times as many, the next batch is read
    meanwhile, and all that is to be little of the limit."""
    return None if limit is None else max(SMALL, limit // _BATCHES)


def too_large(limit: int) -> OutOfMemoryError:
    """The error for what would take more than that."""
    return OutOfMemoryError(
        f"The engine would need more than {limit / 1e6:,.0f} MB of memory",
        hint="omit `--by` to let Spark answer, or allow more with `--memory`",
        code=MEMORY_EXCEEDED,
    )
