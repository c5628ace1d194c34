"""Files taken out of the system's cache, so that the next reader finds them on the disk.

Law: what is written is synced first; where the system offers no such advice, nothing happens. A
catalog is left alone: closing a file takes the locks from whoever has it open in this process.
Out of scope: caches of the disk itself, and of a machine below this one.
"""

from __future__ import annotations

import os
from pathlib import Path

_CATALOG = ".sqlite"


def out_of_cache(folder: Path) -> None:
    """Every file below the folder but catalogs."""
    advise = getattr(os, "posix_fadvise", None)
    if advise is None:
        return
    os.sync()
    for file in folder.rglob("*"):
        if file.is_file() and _CATALOG not in file.name:
            handle = os.open(file, os.O_RDONLY)
            try:
                advise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)
