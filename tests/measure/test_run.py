"""Measuring a workload: figures, sizes, each measure on small tables, and failures per case."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake
from msgspec.structs import replace
from sqlglot import exp

from benchmarks.registry import MEASURES
from impctl.bench import timing
from impctl.bench.record import Cell, Metric, record_from_json, record_to_json
from impctl.bench.summary import break_evens
from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.data.schema import LONG
from impctl.errors import ImpctlError, StorageError, TableError, UnsupportedError, UsageError
from impctl.expr.functions import SEVERAL_ROWS, one_row
from impctl.expr.nodes import ColumnRef
from impctl.measure import duckdb
from impctl.measure import run as run_module
from impctl.measure.duckdb import (
    NotOffered,
    ParquetSql,
    SqlFailed,
    _translated,
    duckdb_plain,
    duckdb_query_metrics,
    duckdb_recapture,
)
from impctl.measure.files import check_outputs, compare_files, generate, report_file, write_outputs
from impctl.measure.kinds import MeasuredCase, _real_share
from impctl.measure.run import run_workload
from impctl.measure.scratch import AgainstRecapture, captured, sample_rows, scratch_copy
from impctl.service.context import Context, SilentReporter, open_context
from impctl.service.prepare import prepare
from impctl.service.results import Outcome, Record, RecordKind, most_severe
from impctl.service.settings import Example, GenerateRequest, MeasureRequest, Settings
from impctl.spark.expressions import render_expr
from impctl.tables.files import why_not_plain
from impctl.tables.snapshot import Snapshot
from impctl.tables.source import open_source
from impctl.tables.write.maintenance import create_table
from tests.cli.examples import RECORD
from tests.support.run_cli import ROWS, Capsys, Cli
from tests.tables import handmade
from tests.tables.handmade import VectoredTable

WORKLOAD = """\
version: 1
name: mine
tables: {t: {path: tables/t}}
queries: {good: {sql: SELECT 1 FROM t}, bad: {sql: SELECT 2 FROM t}}
"""

ONE = {"maintain_ms": Metric.of([1.0])}


def changes(case: MeasuredCase, *sizes: tuple[float, ...]) -> Iterator[Cell]:
    """Yield a cell of `good`, labelled with the sizes; `bad` can only be recaptured."""
    if case.query.name == "bad":
        raise UnsupportedError("Query `bad` can only be recaptured", hint="see `impctl explain`")
    yield case.cell(ONE, {"sizes": str(tuple(chain(*sizes)))}, checked=AgainstRecapture(True, 0))


def same(case: MeasuredCase) -> Iterator[Cell]:
    yield case.cell(ONE, {"repeat": case.repeat}, equal=True)


def failing(case: MeasuredCase, *_: object) -> Iterator[Cell]:
    """Yield two cells of `good`; one of `bad`, then fail."""
    yield case.cell(ONE, {"at": 1}, checked=AgainstRecapture(True, 0))
    if case.query.name == "bad":
        raise TableError("The table is gone", hint="bring it back")
    yield case.cell(ONE, {"at": case.repeat})


def unsound(case: MeasuredCase) -> Iterator[Cell]:
    yield case.cell(ONE, {"at": 1}, checked=AgainstRecapture(False, 0))
    yield case.cell(ONE, {"at": 2}, equal=False)


def broken(case: MeasuredCase) -> Iterator[Cell]:
    yield case.cell(ONE)
    raise KeyError("a bug")


def stopped(case: MeasuredCase) -> Iterator[Cell]:
    yield case.cell(ONE)
    raise KeyboardInterrupt


def use(monkeypatch: pytest.MonkeyPatch, measure: str, work: Callable[..., Iterator[Cell]]) -> None:
    monkeypatch.setattr(run_module, f"measure_{measure}", work)


@pytest.fixture
def workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workload file, measured by the functions above; its table is not opened."""
    for name, work in {"maintain": changes, "query": same, "capture": same, "ways": same}.items():
        use(monkeypatch, name, work)
    # Measuring noise takes a third of a second.
    monkeypatch.setattr(run_module, "yardstick", lambda folder: 10.0)
    (tmp_path / "tables").mkdir()
    path = tmp_path / "w.yaml"
    path.write_text(WORKLOAD)
    return path


@pytest.fixture
def failures(workload: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, but `changes` fails for `bad`, `skipping` finds errors, `capture` has a bug and
    `ways` is interrupted."""
    works = {"maintain": failing, "query": unsound, "capture": broken, "ways": stopped}
    for name, work in works.items():
        use(monkeypatch, name, work)
    return workload


def measured_run(
    workload: Path, request: MeasureRequest | None = None, *queries: str, rows: tuple[int, ...] = ()
) -> tuple[Record, Outcome]:
    with open_context(Settings(workload)) as ctx:
        options = MeasureRequest() if request is None else request
        outcome = run_workload(ctx, options, queries, delta_rows=rows)
    record = outcome.results[0]
    assert isinstance(record, Record)
    return record, outcome


def only(*figures: str, out: Path | None = None) -> MeasureRequest:
    return MeasureRequest(figures, repeat=7, out=out)


def decisive(outcome: Outcome) -> ImpctlError:
    failure = most_severe(outcome)
    assert failure is not None
    return failure.error


def test_every_figure_has_every_query_and_a_valid_chart(
    workload: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "measure_maintain", lambda case, *_: same(case))
    record, _ = measured_run(workload)
    measures = {"changes": "maintain", "skipping": "query", "capture": "capture", "ways": "ways"}
    assert [figure.name for figure in record.figures] == [*measures]
    for figure in record.figures:
        queries = [cell.labels["query"] for cell in record.cells_of(figure.name)]
        assert queries == ["good", "bad"]
        drawable, chart = MEASURES[measures[figure.name]].drawable, figure.chart
        assert {chart.x, *chart.series} <= {"query", *drawable.labels}
        assert all(map(drawable.has, chart.y))


def test_the_record_of_a_workload(workload: Path) -> None:
    record, outcome = measured_run(workload)
    assert record.kind is RecordKind.WORKLOAD
    assert (record.suite, record.title) == ("mine", "Workload mine")
    assert (record.scale, record.repeat, record.seed) == (1.0, 3, 1)
    assert record_from_json(record_to_json(record), "r.json") == record
    (cell,) = record.cells_of("changes")
    # Row counts are realistic; shares give a break-even on a table of any size.
    assert cell.labels == {"query": "good", "sizes": "(10, 100, 1000, 0.01, 0.1)"}
    assert [cell.labels["query"] for cell in record.cells_of("skipping")] == ["good", "bad"]

    # A query that cannot be maintained is reported, and nothing else is lost.
    (failure,) = outcome.failures
    assert (failure.query, failure.error.exit_code) == ("bad", 3)
    expected = "Figure `changes`, query bad: Query `bad` can only be recaptured"
    assert record.failures == (expected,)


def test_only_selected_figures(
    workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = lambda folder: float((folder / "noise").write_text("1"))  # noqa: E731
    monkeypatch.setattr(run_module, "yardstick", noise)
    out, page = tmp_path / "r.json", tmp_path / "r.html"
    request = MeasureRequest(only=("skipping", "changes"), repeat=7, out=out, report=page)
    record, outcome = measured_run(workload, request, "good", rows=(5, 50))
    assert [figure.name for figure in record.figures] == ["skipping", "changes"]
    assert [cell.labels for cell in record.cells] == [
        {"query": "good", "repeat": 7},
        {"query": "good", "sizes": "(5, 50)"},
    ]
    assert outcome.failures == ()
    assert record_from_json(out.read_text(), "r.json") == record
    text = page.read_text()
    assert "Workload mine" in text
    assert "the suite" not in text
    (comparison,) = compare_files(out, out, SilentReporter()).results
    assert getattr(comparison, "suite", "") == "mine"
    # The folder in which noise was measured is removed too.
    assert {path.name for path in tmp_path.iterdir()} == {"tables", "w.yaml", "r.json", "r.html"}
    assert list((tmp_path / "tables").iterdir()) == []


def test_unknown_names_are_refused(workload: Path) -> None:
    with pytest.raises(UsageError) as caught:
        measured_run(workload, only("change"))
    assert caught.value.message == "There is no figure `change`"
    assert caught.value.hint == "did you mean `changes`?"
    with pytest.raises(UsageError) as caught:
        measured_run(workload, None, "godo")
    assert (caught.value.code, caught.value.hint) == ("query_unknown", "did you mean `good`?")


def test_the_default_kind_of_a_record_is_suite(workload: Path) -> None:
    record, _ = measured_run(workload)
    older = record_to_json(record).replace('"kind": "workload"', '"other": 0')
    assert record_from_json(older, "r.json") == replace(record, kind=RecordKind.SUITE)


def test_a_failure_only_ends_its_case(failures: Path) -> None:
    record, outcome = measured_run(failures, only("changes"))
    labels = [(cell.labels["query"], cell.labels["at"]) for cell in record.cells]
    assert labels == [("good", 1), ("good", 7), ("bad", 1)]
    assert record.failures == ("Figure `changes`, query bad: The table is gone",)
    (failure,) = outcome.failures
    assert (failure.query, failure.error.exit_code) == ("bad", 3)
    assert failure.error.hint == "bring it back"
    assert [figure.name for figure in record.figures] == ["changes"]


def test_a_failed_check_is_the_worst_failure(failures: Path) -> None:
    record, outcome = measured_run(failures, only("changes", "skipping"))
    assert decisive(outcome).exit_code == 5
    assert record.failures[1:3] == (
        "Figure `skipping`, query good, at 1: The maintained sketch of query `good` is too small",
        "Figure `skipping`, query good, at 2: Query `good` has a different result with its sketch "
        "than without",
    )
    assert len(record.cells_of("skipping")) == 4


def test_a_bug_is_reported_and_only_ends_its_case(failures: Path) -> None:
    record, outcome = measured_run(failures, only("changes", "capture"))
    assert len(record.cells_of("changes")) == 3
    assert len(record.cells_of("capture")) == 2
    error = decisive(outcome)
    # It outranks the missing table: exit code 1 means a bug, whatever else failed.
    assert error.exit_code == 1
    assert "Unexpected error, KeyError" in error.message
    assert isinstance(error.__cause__, KeyError)


def test_an_interrupt_keeps_finished_cells(failures: Path, tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    with pytest.raises(KeyboardInterrupt):
        measured_run(failures, only("changes", "ways", out=out))
    record = record_from_json(out.read_text(), "record.json")
    assert [figure.name for figure in record.figures] == ["changes", "ways"]
    assert [cell.figure for cell in record.cells] == ["changes", "changes", "changes", "ways"]


def test_each_figure_has_its_noise(workload: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 10.0, 15.0])
    monkeypatch.setattr(run_module, "yardstick", lambda folder: next(times))
    record, _ = measured_run(workload, only("changes", "capture"))
    assert (record.figure_noise, record.noise) == ({"changes": 0.0, "capture": 0.5}, 0.5)


def test_cells_of_one_case_share_a_fingerprint(failures: Path) -> None:
    def fingerprints(text: str) -> dict[object, str]:
        failures.write_text(text)
        record, _ = measured_run(failures, only("changes"))
        return {cell.labels["query"]: cell.fingerprint for cell in record.cells}

    before = fingerprints(WORKLOAD)
    assert len(set(before.values())) == 2
    assert fingerprints(WORKLOAD.replace("SELECT 1 FROM t", "SELECT  1 FROM t")) == before
    after = fingerprints(WORKLOAD.replace("SELECT 1 FROM t", "SELECT 3 FROM t"))
    assert after["good"] != before["good"]
    assert after["bad"] == before["bad"]


def test_no_temporary_file_is_left(workload: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "record.json"
    _, outcome = measured_run(workload, only("changes", out=out))
    assert out.is_file()
    assert [path.name for path in out.parent.iterdir()] == ["record.json"]
    assert outcome.results[1].path == str(out)  # type: ignore[union-attr]


@pytest.mark.parametrize("target", ["file/record.json", "folder"])
def test_unwritable_files_are_reported_before_measuring(
    workload: Path, tmp_path: Path, target: str
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError) as caught:
        measured_run(workload, only(out=tmp_path / target))
    assert caught.value.exit_code == 6
    assert "The record could not be written to" in caught.value.message
    assert not list((tmp_path / "tables").iterdir())
    assert (tmp_path / "file").read_text() == "mine"


def test_checking_outputs_keeps_files(tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    out.write_text("an earlier one")
    check_outputs(MeasureRequest(out=out, report=tmp_path / "new" / "page.html"), {})
    assert out.read_text() == "an earlier one"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["new", "record.json"]
    with pytest.raises(UsageError, match="name the same file"):
        check_outputs(MeasureRequest(out=out, report=out), {})


def test_a_full_disk_loses_no_figure(
    workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(os, "replace", Mock(side_effect=full))
    record, outcome = measured_run(workload, only(out=tmp_path / "record.json"))
    assert {cell.figure for cell in record.cells} == {"changes", "skipping", "capture", "ways"}
    assert outcome.failures[-1].error.message.endswith("No space left on device")
    assert len(outcome.results) == 1
    assert not list(tmp_path.glob("*.part"))


@pytest.fixture
def record(tmp_path: Path) -> Path:
    file = tmp_path / "r.json"
    file.write_text(record_to_json(RECORD))
    return file


def test_a_full_device_is_reported(record: Path, tmp_path: Path) -> None:
    """Through a link, because a run as root would replace the device by a file."""
    target = tmp_path / "full"
    target.symlink_to("/dev/full")
    with pytest.raises(StorageError, match="No space left on device"):
        report_file(record, target, SilentReporter())
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    assert os.readlink(target) == "/dev/full"


def test_a_pipe_gets_the_page(record: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()), daemon=True)
    reader.start()
    report_file(record, pipe, SilentReporter())
    assert stat.S_ISFIFO(os.lstat(pipe).st_mode)
    reader.join(10)
    assert received[0].rstrip().endswith("</html>")


def test_a_link_to_a_file_stays_a_link(record: Path, tmp_path: Path) -> None:
    page = tmp_path / "elsewhere" / "page.html"
    page.parent.mkdir()
    page.write_text("old")
    target = tmp_path / "page.html"
    target.symlink_to(page)
    report_file(record, target, SilentReporter())
    assert target.is_symlink()
    assert page.read_text().rstrip().endswith("</html>")
    assert [path.name for path in page.parent.iterdir()] == ["page.html"]


def test_checking_outputs_opens_no_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_outputs(MeasureRequest(out=pipe), {})
    assert stat.S_ISFIFO(os.lstat(pipe).st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    assert write_outputs(MeasureRequest(), RECORD) == ()


def ids(values: Iterable[int]) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def uncounted(folder: Path, *groups: list[int]) -> Snapshot:
    """Create a table of one file per group of values, without statistics."""
    names = [
        handmade.write_file(folder, f"{i}.parquet", ids(values)) for i, values in enumerate(groups)
    ]
    schema = handmade.metadata([handmade.field("id", handmade.LONG)])
    added = [handmade.add(name, 0, stats=None) for name in names]
    handmade.commit(folder, 0, handmade.protocol(), schema, *added)
    return open_source("t", str(folder)).snapshot()


def sampled(snapshot: Snapshot, size: int = 2000) -> list[int]:
    return sample_rows(snapshot, size, np.random.default_rng(1)).column("id").to_pylist()


def test_uncounted_rows_are_sampled_uniformly(tmp_path: Path) -> None:
    snapshot = uncounted(tmp_path / "t", [1], [2, 3, 4], [])
    assert snapshot.rows is None
    result = sampled(snapshot)
    assert len(result) == 2000
    assert all(400 < result.count(value) < 600 for value in (1, 2, 3, 4))


def test_an_empty_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is empty"):
        sampled(uncounted(tmp_path / "t", []))


def test_deleted_rows_are_not_sampled(tmp_path: Path) -> None:
    table = VectoredTable(tmp_path / "t", ids(range(10)))
    table.append(ids([10]))
    table.delete(lambda rows: pc.is_in(rows["id"], pa.array(range(1, 10))))
    result = sampled(open_source("t", str(tmp_path / "t")).snapshot())
    assert set(result) == {0, 10}
    assert 900 < result.count(10) < 1100


def test_a_record_compared_with_itself(record: Path, tmp_path: Path, capsys: Capsys) -> None:
    assert run(build_app(), ["bench", "--compare", str(record), str(record)]) == 0
    assert "nothing differs beyond the noise" in capsys.readouterr().out
    assert run(build_app(), ["bench", "--compare", str(record), str(tmp_path / "none.json")]) == 2
    assert "cannot be read: No such file or directory" in capsys.readouterr().err


SMALL_WORKLOAD = """\
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
def test_from_workload_to_comparison(
    spark: Any, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, only: str
) -> None:
    monkeypatch.setattr(timing, "WARM_UP", 1)
    create_table(str(tmp_path / "t"), ROWS)
    file = tmp_path / "w.yaml"
    file.write_text(SMALL_WORKLOAD)
    out, page = tmp_path / "record.json", tmp_path / "record.html"
    words = ("--delta-rows", "1", "--delta-rows", "20", "--repeat", "2", *only.split())
    completed = Cli(capsys, file)("bench", *words, "--out", str(out), "--report", str(page))

    # An unreadable query fails in every figure, one that is only recaptured in one.
    assert completed.code == 3
    assert completed.error["query"] in ("hashed", "wrong")
    record = record_from_json(out.read_text(), "record.json")
    assert (record.kind, record.suite, record.repeat) == (RecordKind.WORKLOAD, "small", 2)
    assert record.tables == {"t": len(ROWS)}
    wrong = [f"Figure `{figure.name}`, query wrong" for figure in record.figures]
    assert [text.split(": ")[0] for text in record.failures] == [
        "Figure `changes`, query hashed",
        *wrong,
    ]
    assert "can only be recaptured" in record.failures[0]

    cells = record.cells_of("changes")
    assert [cell.labels["changes"] for cell in cells] == [1, 20]
    for cell in cells:
        assert (cell.labels["query"], cell.covers, cell.slack) == ("by_g", True, 0)
        assert cell.metrics["recapture_ratio"].median > 0
        assert cell.metrics["maintain_ms"].runs == 4
    (break_even,) = break_evens(record)
    assert break_even.case == "by_g"
    for skipping_cell in record.cells_of("skipping"):
        assert skipping_cell.equal is True
        assert {"plain_ms", "sketch_ms", "rows_share"} <= skipping_cell.metrics.keys()
    first, recaptured = record.cells_of("capture")
    assert {"recapture_ms", "capture_ms"} <= first.metrics.keys()
    assert {"plain_ms", "recapture_ms"} == recaptured.metrics.keys()
    assert (first.covers, recaptured.covers) == (True, True)

    # No copies are left, and the folder has only the expected files.
    kept = {"t", "w.yaml", "record.json", "record.html"}
    assert {path.name for path in tmp_path.iterdir()} == kept
    text = page.read_text()
    assert "Workload small" in text
    assert "Break-even" in text
    assert run(build_app(), ["bench", "--compare", str(out), str(out)]) == 0
    assert "nothing differs beyond the noise" in capsys.readouterr().out
    assert run(build_app(), ["bench", str(out), "--report", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_text() == text


MEASURED_WORKLOAD = """\
version: 1
tables:
  t: {path: t}
  s: {path: s}
partitions:
  t: {a: {ranges: 20}, b: {ranges: 20}}
queries:
  window:
    sql: SELECT a, AVG(c) AS ac FROM t GROUP BY a HAVING AVG(c) > :low AND AVG(c) < :high
    params: {low: 10, high: 20}
    sketch: {t: a}
  join:
    sql: SELECT t.a, AVG(s.b) AS sb FROM t JOIN s ON t.a = s.a GROUP BY t.a HAVING AVG(t.c) < 20
    sketch: {t: a}
    join: index
  top: {sql: "SELECT id, a FROM t ORDER BY a LIMIT 10", sketch: {t: a}}
  groups: {sql: "SELECT a, MAX(c) AS m FROM t GROUP BY a HAVING MAX(c) > 90", sketch: {t: b}}
  rows: {sql: "SELECT id FROM t WHERE b < 5 AND c > 1", sketch: {t: b}}
  sums: {sql: "SELECT a, SUM(id) AS s, COUNT(*) AS n FROM t GROUP BY a HAVING AVG(id) > 2500"}
  leaders: {sql: "SELECT a, SUM(id) AS s FROM t GROUP BY a ORDER BY s DESC LIMIT 5"}
  mixing:
    sql: SELECT s.b, COUNT(*) AS n FROM t JOIN s ON t.a = s.a GROUP BY s.b HAVING COUNT(*) > 60
    sketch: {t: a, s: c}
spark: {master: "local[2]", conf: {spark.sql.shuffle.partitions: 4}}
"""


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    folder = tmp_path_factory.mktemp("suite")
    for table, rows in (("t", 5000), ("s", 500)):
        request = GenerateRequest(folder, Example.SYNTHETIC, table=table, rows=rows, groups=100)
        generate(request, SilentReporter())
    (folder / "w.yaml").write_text(MEASURED_WORKLOAD)
    with open_context(Settings(folder / "w.yaml")) as ctx:
        yield ctx


@pytest.mark.parametrize(
    ("share", "size", "total", "expected"),
    [
        (0.1, 100, 1000, 0.1),
        (0.01, 123, 12345, 0.01),
        (0.1, 1, 7, 1 / 7),
        (0.01, 1, 7, 1 / 7),
        (0.1, 1, 0, 0.1),
    ],
)
def test_shares_are_exact(share: float, size: int, total: int, expected: float) -> None:
    assert _real_share(share, size, total) == expected


@pytest.mark.parametrize("query", ["window", "join", "mixing", "groups", "rows"])
def test_duckdb_finds_the_same_sketch(ctx: Context, query: str) -> None:
    pytest.importorskip("duckdb")
    with scratch_copy(ctx, ("t", "s")) as scratch:
        measured = captured(scratch, ctx.workload.queries[query])
        expected = {sketch.access: sketch.ranges for sketch in measured.stored.sketches}
        assert any(len(ranges) for ranges in expected.values())
        connection = ParquetSql.open()
        assert connection is not None
        assert duckdb_recapture(connection, measured, expected)() == expected
        empty = {access: ranges.minus(ranges) for access, ranges in expected.items()}
        with pytest.raises(NotOffered, match="a different sketch"):
            duckdb_recapture(connection, measured, empty)
        assert duckdb_plain(connection, scratch.tables, measured.prepared)
        connection.close()


def test_late_failures_of_duckdb_are_noted(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when memory runs out, or a file is removed, between the check and the timed runs."""
    pytest.importorskip("duckdb")
    connection = ParquetSql.open()
    assert connection is not None
    missing = ("t", ["/nowhere/gone.parquet"])
    monkeypatch.setattr(ParquetSql, "open", lambda: connection)
    monkeypatch.setattr(timing, "milliseconds", lambda run: connection.view(*missing) or 0.0)
    with scratch_copy(ctx, ("t",)) as scratch:
        measured = captured(scratch, ctx.workload.queries["rows"])
        expected = pa.table({"id": []})
        monkeypatch.setattr(duckdb, "same_answer", lambda result, rows: True)
        metrics, note = duckdb_query_metrics(measured, expected, 3)
        assert not metrics
        assert "DuckDB failed after one successful answer: IO Error" in note
        with pytest.raises(SqlFailed, match="Connection"):
            connection.run("SELECT 1")


def test_duckdb_reads_partition_columns(tmp_path: Path, capsys: Capsys) -> None:
    pytest.importorskip("duckdb")
    rows = pa.table(
        {
            "p": ["a b", "50% off", "ä/ö", None, None, "a b"],
            "d": pa.array([1, 1, 2, 2, 2, 3], pa.int32()).cast(pa.date32()),
            "x": [2, 3, 4, 5, 6, 1],
        }
    )
    write_deltalake(str(tmp_path / "t"), rows, partition_by=["p", "d"])
    sql = "SELECT p, d, SUM(x) AS s FROM t GROUP BY p, d HAVING SUM(x) > 1"
    cli = Cli.asking(capsys, tmp_path, {"q": sql})
    with open_context(Settings(cli.workload)) as ctx:
        prepared = prepare(ctx, ctx.workload.queries["q"])
        connection = ParquetSql.open()
        assert connection is not None
        result = duckdb_plain(connection, ctx.tables, prepared)()
        connection.close()
    assert isinstance(result, pa.Table)
    rows_read = {(row["p"], str(row["d"]), int(row["s"])) for row in result.to_pylist()}
    first, second = "1970-01-02", "1970-01-03"
    assert rows_read == {
        ("a b", first, 2),
        ("50% off", first, 3),
        ("ä/ö", second, 4),
        (None, second, 11),
    }


def test_partitions_without_folders_are_not_plain(tmp_path: Path) -> None:
    name = handmade.write_file(tmp_path / "h", "a.parquet", pa.table({"id": [1]}))
    added = handmade.add(name, 1, partitionValues={"p": "a"})
    columns = {"id": "long", "p": "string"}
    path = handmade.create(tmp_path / "h", columns, added, partition_columns=["p"])
    snapshot = open_source("h", path).snapshot()
    assert why_not_plain(snapshot, reads_folders=True) == "it has partition columns"


@pytest.mark.parametrize("rows", [1, 2])
def test_duckdb_refuses_a_second_subquery_row(rows: int) -> None:
    duckdb = pytest.importorskip("duckdb")
    check = render_expr(one_row(ColumnRef("q.n", LONG), None), {"q.n": "n"})
    subquery = exp.select(exp.alias_(exp.Literal.number(rows), "n")).subquery("q")
    text = _translated(exp.select("n").from_(subquery).where(check))
    if rows == 1:
        assert duckdb.sql(text).fetchall() == [(1,)]
    else:
        with pytest.raises(duckdb.Error, match=SEVERAL_ROWS):
            duckdb.sql(text).fetchall()
