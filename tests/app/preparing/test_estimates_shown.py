"""What `explain` and `capture` say of estimates: every candidate, upkeep, those not needed."""

from __future__ import annotations

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
