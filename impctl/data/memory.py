"""Memory of the process: its size, the bound of a run, and returning it to the system.

Law: large arrays are announced with `reserve` before they are made; within `bounded` this fails
where they would exceed the bound. Small arrays are not announced: a run may exceed its bound by
these and by the temporaries of one operation. Memory mapped from files does not count, because the
kernel can reclaim it. Where the system does not report a process's memory, nothing is bounded.
Cost: some microseconds for each large array.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from mmap import PAGESIZE

SMALL = 1 << 20  # Bytes that need not be reserved

_CHECK: ContextVar[Callable[[int], None] | None] = ContextVar("memory_check", default=None)


def reserve(size: int) -> None:
    """Announce arrays of `size` bytes; raises the error of `bounded` if they would be too large."""
    if size >= SMALL:
        check = _CHECK.get()
        if check is not None:
            check(size)


@contextmanager
def bounded(check: Callable[[int], None]) -> Iterator[None]:
    """Call `check` with the bytes before they are allocated; it raises to prevent that. An outer
    bound still holds. Applies to this thread, and to others that run in a copy of its context."""
    outer = _CHECK.get()

    def check_all(size: int) -> None:
        check(size)
        if outer is not None:
            outer(size)

    token = _CHECK.set(check_all)
    try:
        yield
    finally:
        _CHECK.reset(token)


def held_memory() -> int | None:
    """Return the process's own memory in bytes, without mapped files."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            resident, shared = file.read().split()[1:3]
        return (int(resident) - int(shared)) * PAGESIZE
    except (OSError, ValueError):
        return None


def give_back() -> None:
    """Return unused memory of the allocators to the system. For the boundary between two large
    pieces of work whose arrays differ in size. Memory in use is not touched. Where the C library
    has no such call, only Arrow's pool is released."""
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:  # else there is nothing of it, and loading it takes long
        arrow.default_memory_pool().release_unused()
    trim = getattr(_c_library(), "malloc_trim", None)
    if trim is not None:
        trim(0)


@cache
def _c_library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):
        return None
