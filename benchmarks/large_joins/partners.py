"""A table in which every key has so many rows: who is joined to it has as many partners.

A row has a unique `id`, a key `a`, another key `c` that tells nothing of `a`, and a whole number
`b`. Two such tables with equally many keys have the same keys, 0, 1, ...; with a third one between
them, joined on `a` and on `c`, they make a path.

Law: equal arguments give equal rows. Every key has exactly `partners` rows, the last one perhaps
fewer; `id` tells nothing of either key. Out of scope: writing the table (`tables`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from impctl.errors import UsageError

Integers = npt.NDArray[np.int64]

MEASURES = 100
"""Values of `b`: 0 up to one less."""


def partners_table(rows: int, partners: int, seed: int) -> pa.Table:
    """The table; columns `id`, `a`, `c` and `b`, all whole numbers of 64 bits."""
    if rows < 1 or partners < 1:
        raise UsageError(
            f"A table of {rows} rows has no keys of {partners} rows each",
            hint="give numbers above 0",
        )
    random = np.random.default_rng(seed)
    columns = {
        "id": np.arange(rows, dtype=np.int64),
        "a": _keys(rows, partners, random),
        "c": _keys(rows, partners, random),
        "b": random.integers(0, MEASURES, rows, dtype=np.int64),
    }
    return pa.table({name: pa.array(values) for name, values in columns.items()})


def _keys(rows: int, partners: int, random: np.random.Generator) -> Integers:
    keys: Integers = random.permutation(rows) // partners
    return keys
