"""Amounts of bytes as people write them: `500MB`, `2GB`, `2GiB`.

Law: a text is one amount of whole bytes or refused; a number without a unit is bytes.
Out of scope: shares of a machine (`app.workbench.memory_limit`).
"""

from __future__ import annotations

import re

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
SIZE_HINT = "write a size such as 500MB, 2GB or 2GiB"


def size_from(text: str) -> int:
    """The bytes of a size; 0 is one. ValueError for what is none."""
    found = _WRITTEN.fullmatch(text.strip())
    unit = None if found is None else _UNITS.get(found.group(2).lower())
    if found is None or unit is None:
        raise ValueError(text)
    return int(float(found.group(1)) * unit)
