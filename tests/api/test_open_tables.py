"""Tables stay open between calls, and every call works on what they are now; a program's own Spark
session stays as it was, and answers do not depend on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import impctl
from impctl.errors import EvaluationError, ImpctlError, ImpctlWarning, UsageError
from impctl.service import context
from impctl.spark.session import FIXED, is_connect, session_beside
from impctl.store.store import Store
from impctl.tables.write.maintenance import create_table
from tests.support.refused import refused

WORKLOAD = """\
version: 1
tables: {t: {path: t}, u: {path: u}}
queries:
  q:
    sql: SELECT g, COUNT(*) AS n FROM t GROUP BY g HAVING COUNT(*) > 1 ORDER BY g
    answer: true
store: .impctl
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    for name in ("t", "u"):
        create_table(str(tmp_path / name), pa.table({"g": [1, 1, 2]}))
    path = tmp_path / "w.yaml"
    path.write_text(WORKLOAD)
    return path


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that were opened by reading their whole log."""
    names: list[str] = []
    whole = context.open_source

    def open_source(name: str, *more: Any) -> Any:
        names.append(name)
        return whole(name, *more)

    monkeypatch.setattr(context, "open_source", open_source)
    return names


def groups(workload: impctl.OpenWorkload) -> list[tuple[Any, ...]]:
    return list(workload.query("q", by="state").rows)


@pytest.mark.slow
def test_a_log_is_read_once_and_then_followed(file: Path, opened: list[str]) -> None:
    with impctl.open(file) as workload:
        workload.capture()
        assert groups(workload) == [(1, 2)]
        write_deltalake(str(file.parent / "t"), pa.table({"g": [2, 3]}), mode="append")
        assert groups(workload) == [(1, 2), (2, 2)]
        DeltaTable(str(file.parent / "t")).delete("g = 1")
        assert groups(workload) == [(2, 2)]
    assert opened == ["t"]


def test_another_table_at_the_path_is_seen(file: Path, opened: list[str]) -> None:
    with impctl.open(file) as workload:
        workload.capture()
        shutil.rmtree(file.parent / "t")
        create_table(str(file.parent / "t"), pa.table({"g": [7, 7]}))
        with pytest.warns(ImpctlWarning, match="recaptured"):
            assert groups(workload) == [(7, 2)]
        shutil.rmtree(file.parent / "t")
        with pytest.raises(ImpctlError, match="does not exist"):
            groups(workload)
    assert opened.count("t") > 1


def test_another_path_in_the_file_is_another_table(file: Path, opened: list[str]) -> None:
    with impctl.open(file) as workload:
        workload.capture()
        write_deltalake(str(file.parent / "u"), pa.table({"g": [2]}), mode="append")
        file.write_text(WORKLOAD.replace("{path: t}", "{path: ./u}"))
        with pytest.warns(ImpctlWarning, match="recaptured"):
            assert groups(workload) == [(1, 2), (2, 2)]


def test_from_time_to_time_all_are_opened_anew(
    file: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with impctl.open(file) as workload:
        workload.capture()
        monkeypatch.setattr(context, "_LONGEST", 0.0)
        groups(workload)
    assert opened == ["t", "t"]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries whose whole state was read from the store."""
    names: list[str] = []
    load_runs = Store.load_runs

    def noted(self: Store, query: str, beginning: str = "") -> Any:
        if not beginning:
            names.append(query)
        return load_runs(self, query, beginning)

    monkeypatch.setattr(Store, "load_runs", noted)
    return names


@pytest.mark.slow
def test_state_stays_from_one_maintain_to_the_next(file: Path, loaded: list[str]) -> None:
    table = file.parent / "t"
    with impctl.open(file) as workload, impctl.open(file) as other:
        workload.capture()
        for number in range(4):
            write_deltalake(str(table), pa.table({"g": [number, 2]}), mode="append")
            workload.maintain()
        assert loaded == ["q"], "the first one loads it"
        # Who maintains meanwhile leaves state that is not ours.
        write_deltalake(str(table), pa.table({"g": [5, 5]}), mode="append")
        other.maintain()
        write_deltalake(str(table), pa.table({"g": [6, 6]}), mode="append")
        workload.maintain()
        assert loaded == ["q"] * 3
        workload.capture()
        DeltaTable(str(table)).delete("g = 1")
        workload.maintain()
        assert loaded == ["q"] * 4
        assert groups(workload) == [(2, 6), (5, 2), (6, 2)]
        assert groups(workload) == list(workload.query("q", by="engine").rows)


def test_a_closed_workload_keeps_nothing(file: Path) -> None:
    workload = impctl.open(file)
    workload.capture()
    write_deltalake(str(file.parent / "t"), pa.table({"g": [7, 7]}), mode="append")
    workload.maintain()
    assert workload._states is not None
    workload.close()
    assert workload._states is None


HOSTILE = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "Asia/Tokyo",
    "spark.sql.groupByOrdinal": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
}

ALONE = """
import sys, impctl
with impctl.open(sys.argv[1]) as opened:
    opened.capture("q")
    print(sorted(opened.query("q").rows))
    try:
        opened.query(sql="SELECT 1 / (x - x) FROM t")
    except impctl.ImpctlError as error:
        print(type(error).__name__)
with impctl.open(sys.argv[1]) as opened:
    print(opened.verify("q", results=True)[0].results_equal)
"""


class Conf:
    """Settings of a session that can take only some of them at run time."""

    def __init__(self, fixed: dict[str, str]) -> None:
        self.values = dict(fixed)
        self.fixed = set(fixed)

    @property
    def getAll(self) -> dict[str, str]:  # noqa: N802  # as Spark spells it
        return self.values

    def isModifiable(self, name: str) -> bool:  # noqa: N802
        return name not in self.fixed

    def get(self, name: str, default: str | None) -> str | None:
        return self.values.get(name, default)

    def set(self, name: str, value: str) -> None:
        assert name not in self.fixed
        self.values[name] = value


class Session:
    """A session whose new sessions have `conf`."""

    version = "4.3.0"

    def __init__(self, conf: Conf) -> None:
        self.conf = conf

    def newSession(self) -> Session:  # noqa: N802
        return self


@pytest.mark.parametrize("name", ["spark.sql.ansi.enabled", "spark.sql.legacy.something"])
def test_a_setting_that_cannot_be_set_right_is_refused_by_name(name: str) -> None:
    session: Any = Session(Conf({name: "false"}))
    with refused(UsageError, "spark_setting_refused", name):
        session_beside(session, {})


def test_a_setting_that_is_right_already_need_not_be_set() -> None:
    session: Any = Session(Conf({"spark.sql.ansi.enabled": "TRUE"}))
    conf: Any = session_beside(session, {"spark.sql.session.timeZone": "+02:00"}).conf
    assert conf.values["spark.sql.session.timeZone"] == "+02:00"
    assert FIXED.items() - conf.values.items() == {("spark.sql.ansi.enabled", "true")}


def test_settings_asked_for_that_change_meaning_are_refused() -> None:
    session: Any = Session(Conf({}))
    with pytest.raises(UsageError):
        session_beside(session, {"spark.sql.ansi.enabled": "false"})


@pytest.fixture
def mine(spark: Any) -> Any:
    """A session with settings under which queries mean something else, and a view named `t`."""
    session = spark.newSession()
    for name, value in HOSTILE.items():
        session.conf.set(name, value)
    session.createDataFrame([(99,)], "g int").createOrReplaceTempView("t")
    yield session
    # As the next test expects it.
    spark.createDataFrame([], "nothing int")


@pytest.mark.spark
def test_a_session_stays_as_it_was(folder: Path, mine: Any) -> None:
    before, active = mine.conf.getAll, type(mine).active()
    with impctl.open(folder / "w.yaml", spark=mine) as opened:
        opened.capture("q", "none")
        answer = opened.query("q")
        assert sorted(answer.rows) == [(0, 3, 45), (3, 3, 45)]
        # No file is read, so that Spark is given rows by Python, which activates the session.
        assert opened.query("none").rows == ()
        assert type(mine).active() is active
        assert opened.verify("q", results=True)[0].results_equal
        with pytest.raises(EvaluationError):
            opened.query(sql="SELECT 1 / (x - x) AS broken FROM t")
        frame = opened.dataframe("q")
    assert frame.sparkSession is not mine
    assert frame.sparkSession.conf.get("spark.sql.session.timeZone") == "UTC"
    assert frame.sparkSession.conf.get("spark.sql.parquet.datetimeRebaseModeInRead") == "CORRECTED"
    assert "spark.sql.legacy.timeParserPolicy" not in frame.sparkSession.conf.getAll
    assert mine.conf.getAll == before
    assert mine.table("t").collect()[0].g == 99
    assert [view.name for view in frame.sparkSession.catalog.listTables()] == []
    assert mine.range(1).count() == 1


@pytest.mark.spark
def test_a_frame_is_lazy_and_goes_together_with_ones_own(folder: Path, mine: Any) -> None:
    if is_connect(mine):
        pytest.skip("Spark Connect joins no frames of two sessions; see the next test")
    opened = impctl.open(folder / "w.yaml", spark=mine)
    opened.capture("q")
    frame = opened.dataframe("q")
    names = mine.createDataFrame([(0, "zero"), (3, "three")], "g long, name string")
    assert {row.name for row in names.join(frame, "g").collect()} == {"zero", "three"}
    for file in (folder / "t").glob("*.parquet"):
        file.unlink()
    # `mine` ignores missing files; a frame of impctl does not, wherever it is computed.
    with pytest.raises(Exception, match="FILE_NOT_EXIST|FileNotFound"):
        names.join(frame, "g").count()


@pytest.mark.spark
def test_a_session_of_connect_that_fits_is_worked_in(folder: Path, spark: Any) -> None:
    """Frames can be joined with one's own, and nothing of the session is changed."""
    if not is_connect(spark):
        pytest.skip("a test of Spark Connect: set SPARK_REMOTE")
    before = spark.conf.getAll
    with impctl.open(folder / "w.yaml", spark=spark) as opened:
        opened.capture("q")
        frame = opened.dataframe("q")
    assert frame.sparkSession is spark
    names = spark.createDataFrame([(0, "zero"), (3, "three")], "g long, name string")
    assert {row.name for row in names.join(frame, "g").collect()} == {"zero", "three"}
    assert spark.conf.getAll == before
    assert [view.name for view in spark.catalog.listTables()] == []


@pytest.mark.spark
def test_the_running_session_is_found_from_another_thread(folder: Path, mine: Any) -> None:
    before, active = mine.conf.getAll, type(mine).active()
    opened = impctl.open(folder / "w.yaml")
    opened.capture("q")
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(opened.query("q").row_count))
    thread.start()
    thread.join()
    assert result == [2]
    assert mine.conf.getAll == before
    assert type(mine).active() is active


@pytest.mark.spark
def test_without_a_session_spark_is_started_and_nothing_is_printed(folder: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ALONE, str(folder / "w.yaml")],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        check=False,
    )
    assert ran.stderr == ""
    assert ran.stdout == "[(0, 3, 45), (3, 3, 45)]\nEvaluationError\nTrue\n"
