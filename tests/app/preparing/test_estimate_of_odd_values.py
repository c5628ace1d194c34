"""Estimates over columns of odd values: infinite, missing, two-valued, long, far apart.

Whatever a column holds, an estimate comes out or is left away; a capture never fails for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from impctl.app.preparing import choice, estimate
from impctl.tables.write.laid_out import create_laid_out_table
from tests.support.run_cli import Cli

ROWS, FILES = 4_000, 8

COLUMNS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "two_valued": (pa.bool_(), lambda at: at * 2 >= ROWS),
    "infinite": (
        pa.float64(),
        lambda at: -math.inf if at == 0 else math.inf if at == ROWS - 1 else at / 7,
    ),
    "not_a_number": (pa.float64(), lambda at: math.nan if at % 50 == 0 else at / 7),
    "far_apart": (pa.float64(), lambda at: (at * 2 - ROWS) * (1.7e308 / ROWS)),
    "wide": (pa.int64(), lambda at: (at - ROWS // 2) * (2**64 // ROWS - 1)),
    "missing": (pa.int64(), lambda at: None),
    "missing_text": (pa.string(), lambda at: None if at > ROWS // FILES else f"{at:05}"),
    "long_text": (pa.string(), lambda at: "a" * 200 + f"{at:05}"),
    "odd_text": (pa.string(), lambda at: "" if at == 0 else chr(0x10FFFF) * 3 + f"{at:05}"),
    "days": (pa.date32(), lambda at: date(1, 1, 1) + timedelta(days=at * 900)),
    "moment": (
        pa.timestamp("us", tz="UTC"),
        lambda at: datetime(1, 1, 2, tzinfo=UTC) + timedelta(days=at * 900),
    ),
    "money": (pa.decimal128(38, 2), lambda at: Decimal((at - ROWS // 2) * 10**30).scaleb(-2)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("odd")
    at = range(ROWS)
    columns = {name: pa.array(map(make, at), kind) for name, (kind, make) in COLUMNS.items()}
    rows = pa.table({"id": pa.array(at), "few": pa.array([i // 500 for i in at]), **columns})
    step = ROWS // FILES
    create_laid_out_table(str(found / "t"), (rows.slice(i, step) for i in range(0, ROWS, step)))
    return found


@pytest.mark.parametrize("having", ["COUNT(*) > 0", "SUM(id) > 900000000", "MAX(id) < 600"])
@pytest.mark.parametrize("grouped", [*COLUMNS, "few"])
def test_an_estimate_or_none(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    grouped: str,
    having: str,
) -> None:
    monkeypatch.setattr(estimate, "LEAST_ROWS", 1_000)
    monkeypatch.setattr(choice, "LEAST_ROWS", 1_000)
    sql = f"SELECT {grouped}, few, COUNT(*) AS n FROM t GROUP BY 1, 2 HAVING {having}"
    file = folder / f"{grouped}.yaml"
    file.write_text(f'version: 1\ntables: {{t: {{path: t}}}}\nqueries: {{q: {{sql: "{sql}"}}}}\n')
    (found,) = Cli(capsys, file).good("explain").results
    safe = [entry for entry in found["attributes"] if entry["safe"]]
    assert any(entry["chosen"] for entry in safe)
    reasons = " ".join(entry["reason"] for entry in safe)
    for entry in safe:
        expected = entry["expected"]
        if expected is None:
            assert "no estimate" in reasons or all(e["expected"] is None for e in safe)
        else:
            assert 0 <= expected["files_low"] <= expected["files"] <= expected["files_high"] + 1
            assert expected["files_high"] <= FILES == expected["files_total"]


@pytest.mark.parametrize("asked", ["id < 0", "missing = 3", "NOT two_valued AND id > 3990"])
def test_where_no_file_or_no_row_is_left(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setattr(estimate, "LEAST_ROWS", 1_000)
    monkeypatch.setattr(choice, "LEAST_ROWS", 1_000)
    sql = f"SELECT id, few, two_valued FROM t WHERE {asked}"
    file = folder / "nothing.yaml"
    file.write_text(f'version: 1\ntables: {{t: {{path: t}}}}\nqueries: {{q: {{sql: "{sql}"}}}}\n')
    (found,) = Cli(capsys, file).good("explain").results
    for entry in found["attributes"]:
        if entry["expected"] is not None:
            assert 0 <= entry["expected"]["files_low"] <= entry["expected"]["files_high"] <= FILES
