"""What `explain` and `capture` say of estimates: every candidate, upkeep, columns of odd values.

Whatever a column holds, an estimate comes out or is left away; a capture never fails for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.app.preparing import choice, estimate
from impctl.tables.write.laid_out import create_laid_out_table
from tests.support.run_cli import Cli

ROWS, FILES = 40_000, 40


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Groups of a hundred rows in the order of files, four hundred rows an hour."""
    monkeypatch.setattr(estimate, "LEAST_ROWS", 1_000)
    monkeypatch.setattr(choice, "LEAST_ROWS", 1_000)
    at = np.arange(ROWS)
    price = np.where(at >= ROWS * 9 // 10, 3, 1)
    rows = pa.table({"key": at // 100, "hour": at // 400, "price": price, "id": at})
    step = ROWS // FILES
    create_laid_out_table(str(tmp_path / "t"), (rows.slice(i, step) for i in range(0, ROWS, step)))
    file = tmp_path / "w.yaml"
    sql = "SELECT key, SUM(price) AS s FROM t GROUP BY 1 HAVING SUM(price) > 200"
    file.write_text(
        f'version: 1\ntables: {{t: {{path: t}}}}\nqueries: {{q: {{sql: "{sql}"}}}}\nstore: s\n'
    )
    return Cli(capsys, file)


def safe(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {entry["attribute"]: entry for entry in entries if entry["safe"]}


@pytest.mark.slow
def test_explain_shows_every_candidate_and_what_its_upkeep_takes(cli: Cli) -> None:
    (found,) = cli.good("explain").results
    entries = safe(found["attributes"])
    assert entries["key"]["chosen"]
    assert {"hour", "id"} <= set(entries)
    expected = {name: entry["expected"] for name, entry in entries.items()}
    for name in ("key", "hour", "id"):
        assert expected[name]["files_low"] <= 4 <= expected[name]["files_high"]
        assert expected[name]["files"] == pytest.approx(4, abs=1)
    assert expected["key"]["upkeep"] == 0, "the range of a group follows from its key"
    assert expected["hour"]["upkeep"] == pytest.approx(20 * ROWS / 100, rel=0.2)
    assert expected["id"]["upkeep"] > 2 * expected["hour"]["upkeep"]


def test_capture_tells_what_it_foresaw_of_what_may_be_taken(cli: Cli) -> None:
    (found,) = cli.good("capture").results
    entries = safe(found["considered"])
    assert entries["key"]["chosen"]
    assert entries["hour"]["expected"] is None, "it cannot be better than `key`"
    (left,) = found["left"]
    assert left["expected"] == entries["key"]["expected"]
    assert left["expected"]["files_low"] <= left["files"] == 4 <= left["expected"]["files_high"]


def test_of_two_that_leave_as_much_the_one_that_is_cheaper_to_keep_is_taken(cli: Cli) -> None:
    """The file names `id` first, which takes counters for ten ranges of every group."""
    text = cli.workload.read_text()
    cli.workload.write_text(
        text + "partitions: {t: {id: {fragments: 4000}, hour: {fragments: 100}}}\n"
    )
    (found,) = cli.good("explain").results
    entries = safe(found["attributes"])
    assert entries["id"]["expected"]["files"] == entries["hour"]["expected"]["files"]
    assert entries["hour"]["chosen"]
    assert "less to read" in entries["id"]["reason"]


ODD_ROWS, ODD_FILES = 4_000, 8

COLUMNS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "two_valued": (pa.bool_(), lambda at: at * 2 >= ODD_ROWS),
    "infinite": (
        pa.float64(),
        lambda at: -math.inf if at == 0 else math.inf if at == ODD_ROWS - 1 else at / 7,
    ),
    "not_a_number": (pa.float64(), lambda at: math.nan if at % 50 == 0 else at / 7),
    "far_apart": (pa.float64(), lambda at: (at * 2 - ODD_ROWS) * (1.7e308 / ODD_ROWS)),
    "wide": (pa.int64(), lambda at: (at - ODD_ROWS // 2) * (2**64 // ODD_ROWS - 1)),
    "missing": (pa.int64(), lambda at: None),
    "missing_text": (pa.string(), lambda at: None if at > ODD_ROWS // ODD_FILES else f"{at:05}"),
    "long_text": (pa.string(), lambda at: "a" * 200 + f"{at:05}"),
    "odd_text": (pa.string(), lambda at: "" if at == 0 else chr(0x10FFFF) * 3 + f"{at:05}"),
    "days": (pa.date32(), lambda at: date(1, 1, 1) + timedelta(days=at * 900)),
    "moment": (
        pa.timestamp("us", tz="UTC"),
        lambda at: datetime(1, 1, 2, tzinfo=UTC) + timedelta(days=at * 900),
    ),
    "money": (pa.decimal128(38, 2), lambda at: Decimal((at - ODD_ROWS // 2) * 10**30).scaleb(-2)),
}


LIMITS = ("COUNT(*) > 0", "SUM(id) > 900000000", "MAX(id) < 600")
GROUPED = {
    f"{grouped}_{at}": f"SELECT {grouped}, few, COUNT(*) AS n FROM t GROUP BY 1, 2 HAVING {limit}"
    for grouped in (*COLUMNS, "few")
    for at, limit in enumerate(LIMITS)
}
NOTHING_LEFT = {
    f"nothing_{at}": f"SELECT id, few, two_valued FROM t WHERE {asked}"
    for at, asked in enumerate(("id < 0", "missing = 3", "NOT two_valued AND id > 3990"))
}


def test_odd_values_have_an_estimate_or_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grouped by any column, with every limit, and where no file or no row is left."""
    monkeypatch.setattr(estimate, "LEAST_ROWS", 1_000)
    monkeypatch.setattr(choice, "LEAST_ROWS", 1_000)
    at = range(ODD_ROWS)
    columns = {name: pa.array(map(make, at), kind) for name, (kind, make) in COLUMNS.items()}
    rows = pa.table({"id": pa.array(at), "few": pa.array([i // 500 for i in at]), **columns})
    step = ODD_ROWS // ODD_FILES
    parts = (rows.slice(i, step) for i in range(0, ODD_ROWS, step))
    create_laid_out_table(str(tmp_path / "t"), parts)
    lines = "".join(
        f'  {name}: {{sql: "{sql}"}}\n' for name, sql in (GROUPED | NOTHING_LEFT).items()
    )
    (tmp_path / "w.yaml").write_text(f"version: 1\ntables: {{t: {{path: t}}}}\nqueries:\n{lines}")
    found = Cli(capsys, tmp_path / "w.yaml").good("explain").results
    assert len(found) == len(GROUPED) + len(NOTHING_LEFT)
    for one in found:
        entries = [entry for entry in one["attributes"] if entry["safe"]]
        reasons = " ".join(entry["reason"] for entry in entries)
        if one["query"] in GROUPED:
            assert any(entry["chosen"] for entry in entries), one["query"]
        for entry in entries:
            expected = entry["expected"]
            if expected is not None:
                low, high = expected["files_low"], expected["files_high"]
                assert 0 <= low <= expected["files"] <= high + 1, one["query"]
                assert high <= ODD_FILES == expected["files_total"]
            elif one["query"] in GROUPED:
                assert "no estimate" in reasons or all(e["expected"] is None for e in entries)
