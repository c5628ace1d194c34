"""New Delta tables, for demo and bench data only.

Law: never writes where a table stands; impctl creates no table of a user's own.
Out of scope: later versions (`tables.write.updates`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from deltalake import write_deltalake

from impctl.errors import StorageError, UsageError
from impctl.tables.failures import READ_FAILURES, failure_text
from impctl.tables.snapshot import CHANGE_FEED
from impctl.types import ColumnName


def create_table(
    path: str,
    data: pa.Table | pa.RecordBatchReader | pa.Schema,
    *,
    change_feed: bool = True,
    partition_by: Sequence[ColumnName] = (),
    configuration: Mapping[str, str] | None = None,
    file_bytes: int | None = None,
) -> None:
    """Write version 0 of a new table; a schema alone gives an empty one.

    `file_bytes` is about how large a data file gets (default: as deltalake has it).

    UsageError where something stands at the path already.
    """
    rows = data.empty_table() if isinstance(data, pa.Schema) else data
    properties = {CHANGE_FEED: "true"} if change_feed else {}
    try:
        write_deltalake(
            path,
            rows,
            mode="error",
            partition_by=list(partition_by) or None,
            configuration={**properties, **(configuration or {})},
            target_file_size=file_bytes,
        )
    except READ_FAILURES as error:
        text = failure_text(error)
        if "already exists" in text.lower():
            raise UsageError(
                f"A table already exists at this path: {path}",
                hint="choose another path, or remove the folder first",
            ) from error
        raise StorageError(
            f"The table could not be written: {text}", hint=f"check that `{path}` can be written"
        ) from error
