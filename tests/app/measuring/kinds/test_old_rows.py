"""The column by which old rows are told apart."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.app.measuring.kinds.old_rows import _spelled
from impctl.errors import UsageError
from impctl.tables.source import open_source


def test_a_key_is_a_column_of_whole_numbers_in_any_letters(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, pa.table({"Number": [1, 2], "name": ["a", "b"]}))
    snapshot = open_source("t", path).snapshot()
    assert _spelled(snapshot, "number") == "Number"
    for name in ("name", "id"):
        with pytest.raises(UsageError, match=f"no column `{name}` of whole numbers"):
            _spelled(snapshot, name)
