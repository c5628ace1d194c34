"""Limits the memory of engine runs over tables.

Law: bounds what is held, not what is mapped from files, which the kernel can take back. Checked
before large arrays are made (`data.memory`), so that a run exceeds it by small ones only. Nothing
is bounded if the machine's memory is unknown.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from impctl.data.memory import SMALL, bounded, give_back, held_memory
from impctl.errors import OutOfMemoryError, out_of_memory
from impctl.workload.scalars import share_from, size_from

if TYPE_CHECKING:
    from impctl.service.context import Context
    from impctl.service.settings import Settings
    from impctl.workload.models import Workload

MEMORY_EXCEEDED = "memory_exceeded"

_SHARE = 0.5
"""Default share of the machine's or the cgroup's memory."""

_FILL = 50_000_000
_TIMES = 4
"""Memory to fill a join: a constant, and a multiple of the stored bytes of its largest side
(measured: 28 MB for 3 MB, 163 to 174 for 28, 355 for 84)."""

_BATCHES = 24

_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_from(text: str) -> int:
    """Bytes of a size such as `500MB`, `2GiB` or `25%` of the machine; ValueError otherwise."""
    share = share_from(text)
    if share is None:
        amount = size_from(text)
    else:
        machine = machine_memory()
        if machine is None:
            raise ValueError(text)
        amount = int(machine * share)
    if amount <= 0:
        raise ValueError(text)
    return amount


def memory_of(settings: Settings, workload: Workload) -> int | None:
    """Bytes that a process may use; None if not set, or a share of an unknown size."""
    written = workload.budget.memory
    if settings.memory is not None or written is None:
        return settings.memory
    try:
        return memory_from(written)
    except ValueError:
        return None


def largest_side(memory: int | None) -> int | None:
    """The largest stored side of a join, in bytes, that fits in this memory; None if unbounded."""
    return None if memory is None else max(0, memory - _FILL) // _TIMES


def machine_memory() -> int | None:
    """Bytes available to the process: of the machine, or of its cgroup if less."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
    for name in _CGROUPS:
        try:
            text = Path(name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            memory = min(memory, int(text))
    return memory


class MemoryLimit:
    """What may be allocated from now on; `limit` None is a share of the machine."""

    def __init__(self, limit: int | None) -> None:
        machine = machine_memory()
        self.bytes = limit if limit is not None or machine is None else int(machine * _SHARE)
        self._before = held_memory() or 0

    def check(self, more: int = 0) -> None:
        """OutOfMemoryError if so many more bytes would exceed the limit."""
        if self.bytes is None or not self._is_exceeded(self.bytes, more):
            return
        # Allocators keep what was freed; that is not in use.
        give_back()
        if self._is_exceeded(self.bytes, more):
            raise too_large(self.bytes)

    def _is_exceeded(self, limit: int, more: int) -> bool:
        used = held_memory()
        return used is not None and used - self._before + more > limit


@contextmanager
def limited_to(limit: MemoryLimit) -> Iterator[None]:
    """Make no large arrays beyond the limit, or the system's memory: OutOfMemoryError."""
    try:
        with bounded(limit.check):
            yield
    except MemoryError as error:
        raise out_of_memory(error) from None


@contextmanager
def within_memory(ctx: Context) -> Iterator[MemoryLimit]:
    """The limit of a run of the engine, which applies inside the block."""
    limit = MemoryLimit(memory_of(ctx.settings, ctx.workload))
    with limited_to(limit):
        yield limit


def batch_size(limit: int | None) -> int | None:
    """Bytes of rows to read at once: steps take several times as many while the next batch is read,
    and all that must be a small part of the limit."""
    return None if limit is None else max(SMALL, limit // _BATCHES)


def too_large(limit: int) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"The engine would need more than {limit / 1e6:,.0f} MB of memory",
        hint="omit `--by` to let Spark answer, or allow more with `--memory`",
        code=MEMORY_EXCEEDED,
    )
