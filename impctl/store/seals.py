"""A checksum on every catalog row, because SQLite keeps none on its pages.

Law: a row that was altered on disk, in any column, is never read as if it were whole.
Out of scope: checksums of run contents (`store.states`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from impctl.store.faults import damaged

Value = str | int | float | bytes | None


def seal_of(*values: Value) -> int:
    """Checksum over values of exactly the types that SQLite hands back."""
    return zlib.crc32(repr(values).encode("utf-8", "surrogatepass"))


def sealed(*values: Value) -> tuple[Value, ...]:
    """The values with their seal behind them: a row to insert."""
    return (*values, seal_of(*values))


def digest_of(rows: Iterable[tuple[Any, ...]]) -> int:
    """Checksum over the seals of rows in their order: none may go missing or come back."""
    return seal_of(*(row[-1] for row in rows))


def opened(row: tuple[Any, ...], path: Path, what: str) -> tuple[Any, ...]:
    """The values of a row whose last column is its seal; StateCorruptError where they differ."""
    values, held = row[:-1], row[-1]
    if seal_of(*values) != held:
        raise damaged(path, f"a row of `{what}` does not match its checksum")
    return values
