"""The names in a workload file, quickly and whatever else is wrong with it: for completion.

Law: checks nothing and resolves no variable; a file that cannot be read has no names. Only names
that could stand on a command line as they are come out. Out of scope: reading it (`workload.load`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from impctl.workload.names import NAME_PATTERN

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LARGEST = 1 << 20


def names_in(file: Path, section: str) -> tuple[str, ...]:
    """Names of the queries, tables or updates (`section`) of the file, in its order."""
    try:
        if not file.is_file() or file.stat().st_size > _LARGEST:
            return ()
        result = yaml.load(file.read_bytes(), _LOADER)[section]
    except (OSError, ValueError, TypeError, KeyError, RecursionError, yaml.YAMLError):
        return ()
    if isinstance(result, dict):
        names = list(result)
    elif isinstance(result, list):
        names = [entry.get("name") for entry in result if isinstance(entry, dict)]
    else:
        names = []
    return tuple(
        name for name in names if isinstance(name, str) and re.fullmatch(NAME_PATTERN, name)
    )
