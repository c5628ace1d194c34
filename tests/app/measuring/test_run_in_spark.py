"""A tiny suite and a small workload end to end: measured, checked, kept, compared with itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from impctl.bench.break_even import break_evens
from impctl.bench.record import RecordKind
from impctl.bench.record_json import record_from_json
from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.tables.write.create import create_table
from tests.support.run_cli import Cli
from tests.support.small_workload import ROWS

SUITE = """\
version: 1
title: Tiny
seed: 3
scale: 0.5
repeat: 2
data:
  t: {example: synthetic, rows: 4000, groups: 20}
  u: {example: synthetic, rows: 400, groups: 20, seed: 2}
workload:
  tables: {t: {path: t}, u: {path: u}}
  partitions: {t: {a: {ranges: 10}}}
  queries:
    one: {sql: SELECT a FROM t GROUP BY a HAVING AVG(c) < 5, sketch: {t: a}}
    joined:
      sql: SELECT t.a FROM t JOIN u ON t.a = u.id GROUP BY t.a HAVING AVG(t.c) < 5
      sketch: {t: a}
    wrong: {sql: SELECT nothing FROM t, sketch: {t: a}}
figures:
  costs:
    title: Costs
    measure: maintain
    with: {changes: [10], shares: [0.1], kind: [insert, delete]}
    cases: [{query: one, tables: 1}, {query: wrong, tables: 0}, {query: joined, tables: 2}]
    chart: {x: changes, y: [maintain_ms, recapture_ms], series: [tables, kind], log: [x, y]}
  capture:
    title: Capture
    measure: capture
    cases: [{query: joined}]
    chart: {x: query, y: [capture_ms]}
  saved: {title: Saved, measure: query, cases: [{query: one}], chart: {x: query, y: [plain_ms]}}
"""


@pytest.mark.spark
def test_from_the_file_to_the_comparison(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = tmp_path / "tiny.yaml"
    suite.write_text(SUITE)
    out, data = tmp_path / "record.json", tmp_path / "data"
    ran = Cli(capsys, suite)("bench", "--data", str(data), "--out", str(out))

    # The case that fails costs its own cells only, and decides the exit code.
    assert ran.code == 3
    assert ran.error["query"] == "wrong"
    assert ran.error["message"].startswith("Figure `costs`, tables 0: ")
    printed, written = ran.results
    assert written == {"kind": "record", "path": str(out)}
    record = record_from_json(out.read_text(), "record.json")
    assert record_from_json(json.dumps(ran.document), "envelope") == record
    assert record.failures == (ran.error["message"],)
    assert (record.scale, record.repeat, record.seed) == (0.5, 2, 3)
    assert record.tables == {"t": 2000, "u": 200}
    assert record.machine["spark"].startswith(("local[", "sc://"))

    costs = record.cells_of("costs")
    assert len(costs) == 2 * 2 * 2
    assert {cell.labels["changes"] for cell in costs} == {10, 200}
    assert {cell.labels["share"] for cell in costs} == {0.005, 0.1}
    for cell in costs:
        assert (cell.covers, cell.slack) == (True, 0)
        assert cell.metrics["maintain_ms"].runs == 2
        parts = sum(cell.metrics[f"{name}_ms"].low for name in ("read", "engine", "commit"))
        assert 0 < parts <= cell.metrics["maintain_ms"].high
    (capture,) = record.cells_of("capture")
    assert capture.covers is True
    assert {"plain_ms", "recapture_ms", "capture_ms", "state_bytes"} <= capture.metrics.keys()
    (saved,) = record.cells_of("saved")
    assert saved.equal is True
    assert 0 < saved.metrics["fragments_share"].median < 1

    # Nothing is left of the copies, and the tables were made once.
    assert {path.name for path in data.iterdir()} == {
        "t", "u", ".t.request.json", ".u.request.json",
    }  # fmt: skip
    compared = Cli(capsys, suite)("check")
    assert compared.results[0]["figures"] == ["costs", "capture", "saved"]


def test_a_record_compared_with_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from impctl.bench.record_json import record_to_json
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


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
def test_from_the_workload_to_the_comparison(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_table(str(tmp_path / "t"), ROWS)
    file = tmp_path / "w.yaml"
    file.write_text(WORKLOAD)
    out, page = tmp_path / "record.json", tmp_path / "record.html"
    words = ("--delta-rows", "1", "--delta-rows", "20", "--repeat", "2")
    ran = Cli(capsys, file)("bench", *words, "--out", str(out), "--report", str(page))

    # A query that cannot be read is named in every figure, one that is only recaptured in one.
    assert ran.code == 3
    assert ran.error["query"] in ("hashed", "wrong")
    record = record_from_json(out.read_text(), "record.json")
    assert (record.kind, record.suite, record.repeat) == (RecordKind.WORKLOAD, "small", 2)
    assert record.tables == {"t": len(ROWS)}
    assert [text.split(": ")[0] for text in record.failures] == [
        "Figure `changes`, query hashed",
        "Figure `changes`, query wrong",
        "Figure `skipping`, query wrong",
        "Figure `capture`, query wrong",
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
