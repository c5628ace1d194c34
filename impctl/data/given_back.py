"""Memory that nobody uses given back to the machine.

Law: nothing that is in use is touched, so that only time depends on it.
Cost: some milliseconds; pages that are used again are zeroed again.
Out of scope: how much a run may take (`app.workbench.memory_limit`).
"""

from __future__ import annotations

import ctypes
from functools import cache

import pyarrow as pa


def give_back() -> None:
    """Give the machine what allocators keep for what comes next.

    For where one large piece of work ends and another begins, whose arrays are of other sizes.
    Where the C library has no such call, Arrow's part alone.
    """
    pa.default_memory_pool().release_unused()
    trim = getattr(_c_library(), "malloc_trim", None)
    if trim is not None:
        trim(0)


@cache
def _c_library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):
        return None
