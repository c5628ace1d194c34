"""A new table of exactly the data files that are given, in one commit; for bench data only.

Law: as for `tables.write.create`; what is told of the files is what other writers of Delta tell:
row counts, and per column least and greatest value and how many are NULL.
Out of scope: which rows go into which file (the caller's matter).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import Schema
from deltalake.transaction import AddAction, create_table_with_add_actions

from impctl.tables.snapshot import CHANGE_FEED

_LONGEST = 32
"""Characters of a text from which other writers cut it; such a text is left out here."""


def create_laid_out_table(path: str, files: Iterable[pa.Table]) -> int:
    """Write version 0 of a new table, one data file per table of rows; returns the rows."""
    folder = Path(path)
    folder.mkdir(parents=True)
    parts = iter(files)
    first = next(parts)
    added, rows = [], 0
    for number, part in enumerate(chain([first], parts)):
        file = folder / f"part-{number:05d}.parquet"
        pq.write_table(part, file, compression="snappy")
        stated = json.dumps(dict(_statistics(part)))
        now = int(datetime.now(UTC).timestamp() * 1000)
        added.append(AddAction(file.name, file.stat().st_size, {}, now, True, stated))
        rows += len(part)
    schema = Schema.from_arrow(first.schema)
    create_table_with_add_actions(path, schema, added, configuration={CHANGE_FEED: "true"})
    return rows


def _statistics(part: pa.Table) -> Iterator[tuple[str, Any]]:
    yield "numRecords", len(part)
    low, high = {}, {}
    for name in part.column_names:
        result = pc.min_max(part.column(name)).as_py()
        if result["min"] is not None and all(_is_told(value) for value in result.values()):
            low[name], high[name] = (_plain(result[side]) for side in ("min", "max"))
    yield "minValues", low
    yield "maxValues", high
    yield "nullCount", {name: part.column(name).null_count for name in part.column_names}


def _is_told(value: Any) -> bool:
    """Whether other writers tell it as it is: JSON has no infinity, and long texts are cut."""
    return math.isfinite(value) if isinstance(value, float) else len(str(value)) < _LONGEST


def _plain(value: Any) -> Any:
    """As the log writes it."""
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value if isinstance(value, bool | int | float | str) else str(value)
