"""A small workload end to end: measured, checked, kept, compared with itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from impctl.bench.break_even import break_evens
from impctl.bench.record import RecordKind, record_from_json
from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Cli
from tests.support.small_workload import ROWS


def test_a_record_compared_with_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from impctl.bench.record import record_to_json
    from impctl.cli.application import build_app
    from impctl.cli.boundary import run
    from tests.cli.examples import RECORD

    file = tmp_path / "r.json"
    file.write_text(record_to_json(RECORD))
    assert run(build_app(), ["bench", "--compare", str(file), str(file)]) == 0
    assert "nothing differs beyond the noise" in capsys.readouterr().out
    assert run(build_app(), ["bench", "--compare", str(file), str(tmp_path / "none.json")]) == 2
    assert "cannot be read: No such file or directory" in capsys.readouterr().err


WORKLOAD = """\
version: 1
name: small
tables: {t: {path: t}}
partitions: {t: {g: {boundaries: [2, 4, 6]}, x: {boundaries: [10, 20]}}}
queries:
  by_g: {sql: "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 1", sketch: {t: g}}
  hashed: {sql: SELECT g FROM t WHERE md5(note) > '' GROUP BY g HAVING MAX(x) > 1, sketch: {t: x}}
  wrong: {sql: SELECT nothing FROM t, sketch: {t: g}}
"""


@pytest.mark.spark
@pytest.mark.parametrize(
    "only",
    [
        "--only changes --only skipping --only capture",
        pytest.param("", id="all figures", marks=(pytest.mark.long, pytest.mark.slow)),
    ],
)
def test_from_the_workload_to_the_comparison(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], only: str
) -> None:
    create_table(str(tmp_path / "t"), ROWS)
    file = tmp_path / "w.yaml"
    file.write_text(WORKLOAD)
    out, page = tmp_path / "record.json", tmp_path / "record.html"
    words = ("--delta-rows", "1", "--delta-rows", "20", "--repeat", "2", *only.split())
    ran = Cli(capsys, file)("bench", *words, "--out", str(out), "--report", str(page))

    # A query that cannot be read is named in every figure, one that is only recaptured in one.
    assert ran.code == 3
    assert ran.error["query"] in ("hashed", "wrong")
    record = record_from_json(out.read_text(), "record.json")
    assert (record.kind, record.suite, record.repeat) == (RecordKind.WORKLOAD, "small", 2)
    assert record.tables == {"t": len(ROWS)}
    wrong = [f"Figure `{figure.name}`, query wrong" for figure in record.figures]
    assert [text.split(": ")[0] for text in record.failures] == [
        "Figure `changes`, query hashed",
        *wrong,
    ]
    assert "can only be recaptured" in record.failures[0]

    costs = record.cells_of("changes")
    assert [cell.labels["changes"] for cell in costs] == [1, 20]
    for cell in costs:
        assert (cell.labels["query"], cell.covers, cell.slack) == ("by_g", True, 0)
        assert cell.metrics["recapture_ratio"].median > 0
        assert cell.metrics["maintain_ms"].runs == 4
    (even,) = break_evens(record)
    assert even.labels == {"query": "by_g"}
    for saved in record.cells_of("skipping"):
        assert saved.equal is True
        assert {"plain_ms", "sketch_ms", "rows_share"} <= saved.metrics.keys()
    first, recaptured = record.cells_of("capture")
    assert {"recapture_ms", "capture_ms"} <= first.metrics.keys()
    assert {"plain_ms", "recapture_ms"} == recaptured.metrics.keys()
    assert (first.covers, recaptured.covers) == (True, True)

    # Nothing of the copies is left, and the table and its store are as they were.
    kept = {"t", "w.yaml", "record.json", "record.html"}
    assert {path.name for path in tmp_path.iterdir()} == kept
    text = page.read_text()
    assert "Workload small" in text
    assert "Break-even" in text
    assert run(build_app(), ["bench", "--compare", str(out), str(out)]) == 0
    assert "nothing differs beyond the noise" in capsys.readouterr().out
    assert run(build_app(), ["bench", str(out), "--report", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_text() == text
