"""`init` on existing tables, and each check of `doctor`."""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.errors import UsageError
from impctl.service import doctor, init
from impctl.service.doctor import Installed, schedule_of
from impctl.service.settings import ENVVARS
from impctl.tables.write.maintenance import create_table
from impctl.workload.schema import workload_json_schema
from tests.behaviour.test_bad_input import held_lock
from tests.support.kept_workload import log_entry, set_time
from tests.support.run_cli import (
    ROWS,
    WORKLOAD,
    Capsys,
    Cli,
    CliOnce,
    MonkeyPatch,
    Ran,
    write_files,
)
from tests.tables import handmade


def finding_of(ran: Ran, check: str) -> dict[str, Any]:
    (finding,) = [result for result in ran.results if result["check"] == check]
    return finding


@pytest.fixture
def captured(cli_once: CliOnce) -> Cli:
    workload = WORKLOAD.replace("POLICY", "incremental")
    return cli_once("examined", partial(write_files, workload=workload, t=ROWS), Cli.captured)


@pytest.fixture
def sound_java(tmp_path_factory: pytest.TempPathFactory, monkeypatch: MonkeyPatch) -> Path:
    """A fake Java with a `release` file, which creates a file when it is started."""
    home = tmp_path_factory.mktemp("jdk")
    (home / "bin").mkdir()
    (home / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="21.0.4"\n')
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\ntouch {home}/started\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    return home


@pytest.fixture(autouse=True)
def no_jvm(sound_java: Path) -> Iterator[None]:
    yield
    assert not (sound_java / "started").exists(), "a JVM was started"


def test_all_is_well(captured: Cli, sound_java: Path) -> None:
    ran = captured.good("doctor", "--every", "1d")
    assert {result["level"] for result in ran.results} == {"ok"}
    assert f"Java 21 at {sound_java}/bin/java (JAVA_HOME)" == finding_of(ran, "java")["message"]
    assert "10 rows in 1 file" in finding_of(ran, "readable")["message"]
    assert "1 query" in finding_of(ran, "checksums")["message"]
    assert ran.document["error"] is None


def test_before_the_first_capture_nothing_is_created(cli: Cli) -> None:
    ran = cli.good("doctor")
    assert "No store yet" in finding_of(ran, "store_opens")["message"]
    assert not (cli.folder / ".impctl").exists()


def test_misspelled_variables_give_a_warning(cli: Cli, monkeypatch: MonkeyPatch) -> None:
    for entry in ENVVARS:
        monkeypatch.delenv(entry.name, raising=False)
    assert finding_of(cli.good("doctor"), "variables")["message"] == "No impctl variable is set"
    monkeypatch.setenv("IMPCTL_LOCK_TIMEOUT", "7")
    monkeypatch.setenv("IMPCTL_STORE", "")  # counts as not set
    monkeypatch.setenv("IMPCTL_" + "LOCK_TIMOUT", "9")
    for name, value in (("LOCK_TIMOUT", "9"), ("REGION", "of the workload file")):
        monkeypatch.setenv("IMPCTL_" + name, value)
    ran = cli.good("doctor")
    listed, misspelled = [result for result in ran.results if result["check"] == "variables"]
    expected = "Variables that are set: `IMPCTL_LOCK_TIMEOUT` (seconds to wait for another writer)"
    assert listed["message"] == expected
    assert (misspelled["level"], misspelled["fix"]) == (
        "warning",
        "did you mean `IMPCTL_LOCK_TIMEOUT`?",
    )
    assert "_LOCK_TIMOUT`" in misspelled["message"]


@pytest.mark.parametrize(
    ("release", "code", "message", "fix"),
    [
        ('JAVA_VERSION="1.8.0_292"\n', 2, "JAVA_HOME has Java 8", ""),
        ("", 0, "", "--spark"),
        (None, 2, "No Java 17 or newer found", "JAVA_HOME"),
    ],
    ids=["old", "unknown version", "none"],
)
def test_unsuitable_java(
    cli: Cli,
    sound_java: Path,
    monkeypatch: MonkeyPatch,
    release: str | None,
    code: int,
    message: str,
    fix: str,
) -> None:
    """No other Java is on PATH or installed as a package."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("impctl.spark.session.find_spec", lambda name: None)
    (sound_java / "release").unlink()
    if release:
        (sound_java / "release").write_text(release)
    elif release is None:
        monkeypatch.delenv("JAVA_HOME")
    ran = cli("doctor")
    java = finding_of(ran, "java")
    assert (ran.code, java["level"]) == (code, "problem" if code else "warning")
    assert message in java["message"]
    assert fix in java["fix"]
    if code:
        assert (ran.error["code"], ran.error["hint"]) == ("problems_found", java["fix"])


@pytest.mark.parametrize(
    ("version", "required", "is_supported"),
    [
        *((version, ">=4.1,<5", True) for version in ("4.1", "4.1.0")),
        *((version, ">=4.1,<5", False) for version in ("4.1.0rc1", "5.0.0")),
        ("10.2", ">=9.9", True),
        *((version, ">=0.16,!=0.26.0", version[-1] == "1") for version in ("0.26.0", "0.26.1")),
        ("3.11.7", ">=3.11,<3.14", True),
        ("1.6.6+local", "==1.6.6", True),
        *((version, "~=2.2", version == "2.4") for version in ("2.4", "3.0")),
        ("7", "", True),
    ],
)
def test_version_ranges(version: str, required: str, is_supported: bool) -> None:
    assert Installed("package", required, version).is_supported is is_supported


def test_requirements_match_the_package() -> None:
    names = {one.name: one for one in doctor.installed()}
    # The bounds may have any order in built metadata.
    assert set(names["python"].wanted.split(",")) == {">=3.11", "<3.14"}
    assert {"pyspark", "deltalake", "pyarrow"} <= set(names)
    assert "duckdb" not in names


def test_unsupported_package_names_a_fix(cli: Cli, monkeypatch: MonkeyPatch) -> None:
    packages = (Installed("python", ">=3.11", "3.11.7"), Installed("deltalake", ">=1.6,<2", "1.5"))
    monkeypatch.setattr("impctl.service.doctor.installed", lambda: packages)
    ran = cli("doctor")
    (outdated,) = [result for result in ran.results if result["subject"] == "deltalake"]
    assert (ran.code, outdated["level"]) == (2, "problem")
    assert outdated["fix"] == 'run `pip install "deltalake>=1.6,<2"`'


@pytest.fixture
def one_file(tmp_path: Path) -> Callable[..., None]:
    def write(folder: str, rows: pa.Table, *features: str, **words: Any) -> None:
        name = handmade.write_file(tmp_path / folder, "a.parquet", rows)
        metadata = handmade.metadata([handmade.field("id", "long")])
        added = handmade.add(name, len(rows), **words)
        handmade.commit(tmp_path / folder, 0, handmade.protocol(*features), metadata, added)

    return write


def test_unreadable_tables_hide_no_other_finding(cli: Cli, one_file: Callable[..., None]) -> None:
    one_file("f", pa.table({"id": [1]}), "fooBar")
    cli.edit("  t: {path: t}", "  t: {path: t}\n  u: {path: gone}\n  f: {path: f}")
    ran = cli("doctor")
    by_table = {result["subject"]: result for result in ran.results if result["area"] == "table"}
    levels = {name: result["level"] for name, result in by_table.items()}
    assert levels == {"t": "ok", "u": "problem", "f": "problem"}
    assert (ran.code, by_table["f"]["exit_code"]) == (3, 3)
    assert "`fooBar`" in by_table["f"]["message"]


def test_change_feed_is_off(cli: Cli) -> None:
    write_deltalake(cli.folder / "plain", ROWS)
    cli.edit("{path: t}", "{path: plain}")
    feed = finding_of(cli.good("doctor"), "change_feed")
    assert feed["level"] == "warning"
    assert "delta.enableChangeDataFeed" in feed["fix"]
    assert f"delta.`{cli.path('plain')}` SET TBLPROPERTIES" in feed["fix"]
    call = feed["fix"].split("with deltalake ")[1]
    eval(call, {"DeltaTable": DeltaTable})  # noqa: S307 - the suggested call
    assert finding_of(cli.good("doctor"), "change_feed")["level"] == "ok"


@pytest.mark.parametrize(
    ("every", "level", "code"), [("1d", "ok", 0), ("5d", "warning", 0), ("8d", "problem", 2)]
)
def test_retention_against_the_schedule(cli: Cli, every: str, level: str, code: int) -> None:
    """Deleted files are kept for a week unless the table says otherwise."""
    ran = cli("doctor", "--every", every)
    schedule = finding_of(ran, "schedule")
    assert (ran.code, schedule["level"]) == (code, level)
    assert "kept for 7 days (`delta.deletedFileRetentionDuration`)" in schedule["message"]
    assert (schedule["fix"] is None) is (level == "ok")


def test_a_pending_change_as_old_as_the_retention(captured: Cli) -> None:
    properties = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    captured.table("t").alter.set_table_properties(properties)
    schedule = finding_of(captured.good("doctor"), "schedule")
    assert schedule["level"] == "warning"
    assert "may be removed at any time" in schedule["message"]


def assert_history_refused(cli: Cli, message: str) -> None:
    """`doctor` reports the failure that `maintain` would have."""
    ran = cli("doctor")
    history = finding_of(ran, "history")
    assert (ran.code, history["level"], history["exit_code"]) == (7, "problem", 7)
    assert message in history["message"]
    assert cli("maintain").code == 7


def test_missing_history(captured: Cli) -> None:
    captured.append("t", ROWS.slice(0, 2))
    captured.append("t", ROWS.slice(2, 2))
    captured.table("t").create_checkpoint()
    for version in (0, 1):
        log_entry(captured.path("t"), version).unlink()
    assert_history_refused(captured, "sketch of `q`")


def test_vacuumed_file_is_missing_history(cli: Cli) -> None:
    cli.table("t").alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
    cli.good("capture")
    write_deltalake(cli.path("t"), ROWS.slice(0, 3), mode="overwrite")
    cli.table("t").vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert_history_refused(cli, "vacuumed")


def truncate_state(store: Path, _: MonkeyPatch) -> None:
    with closing(sqlite3.connect(store / "catalog.sqlite")) as connection:
        connection.execute("UPDATE run SET content = substr(content, 1, 40)")
        connection.commit()


def overwrite_catalog(store: Path, _: MonkeyPatch) -> None:
    catalog = store / "catalog.sqlite"
    catalog.write_bytes(b"not a database at all" * 200)
    for ending in ("-wal", "-shm"):
        catalog.with_name(catalog.name + ending).unlink(missing_ok=True)


def let_others_write(store: Path, _: MonkeyPatch) -> None:
    (store / "catalog.sqlite").chmod(0o666)


def fill_folder(store: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MOST_FILES", 10)
    for number in range(30):
        (store / f"other-{number}").touch()


def leave_state(store: Path, _: MonkeyPatch) -> None:
    (store / "state").mkdir(exist_ok=True)
    (store / "state" / "0123.arrow").write_bytes(b"x" * 100)


def fill_disk(_: Path, monkeypatch: MonkeyPatch) -> None:
    usage = type("usage", (), {"free": 1000})()
    monkeypatch.setattr("impctl.service.doctor.shutil.disk_usage", lambda path: usage)


Damage = Callable[[Path, MonkeyPatch], None]


@pytest.mark.parametrize(
    ("damage", "code", "check", "fix"),
    [
        (truncate_state, 7, "checksums", "impctl capture"),
        (overwrite_catalog, 7, "store_opens", ""),
        (let_others_write, 2, "permissions", "chmod -R go-w"),
        (fill_folder, 0, "store_folder", "set `store` to a separate folder"),
        (leave_state, 0, "leftovers", "impctl gc"),
        (fill_disk, 6, "disk_space", "free space"),
    ],
)
def test_problems_of_a_store(
    captured: Cli, monkeypatch: MonkeyPatch, damage: Damage, code: int, check: str, fix: str
) -> None:
    before = [one["level"] for one in captured.good("doctor").results if one["check"] == check]
    assert before in ([], ["ok"])
    store = captured.folder / ".impctl"
    damage(store, monkeypatch)
    files = {*store.rglob("*")}
    ran = captured("doctor")
    finding = finding_of(ran, check)
    assert (ran.code, finding["level"]) == (code, "problem" if code else "warning")
    assert fix in finding["fix"]
    assert finding["subject"] == ("q" if check == "checksums" else str(store))
    assert files <= {*store.rglob("*")}, "a check removes nothing"
    assert check != "disk_space" or finding["message"].startswith("1 kB free, the store uses ")
    assert check == "disk_space" or finding_of(ran, "disk_space")["level"] == "ok"


def test_the_lock_and_its_holder(captured: Cli) -> None:
    with held_lock(captured.folder / ".impctl") as holder:
        locks = [finding_of(captured.good("doctor"), "lock")]
        holder.kill()
        holder.wait()
        locks.append(finding_of(captured.good("doctor"), "lock"))
    for lock, is_dead in zip(locks, (False, True), strict=True):
        assert lock["level"] == "warning"
        assert f"process {holder.pid} on host" in lock["message"]
        assert ("interrupted run" in lock["message"]) is is_dead


def test_invalid_workload_hides_no_software(cli: Cli) -> None:
    cli.workload.write_text("version: 1\ntabels: {}\n")
    ran = cli("doctor")
    assert ran.refusal == (2, "workload_invalid")
    assert finding_of(ran, "java")["level"] == "ok"


def test_secrets_of_the_workload_stay_secret(cli: Cli, capsys: Capsys) -> None:
    jars = "spark: {conf: {spark.jars.packages: 'https://me:hunter2@host/delta-spark.jar'}}"
    cli.edit('spark: {master: "local[2]"}', jars)
    cli.edit("{path: t}", "{path: t, storage_options: {k: hunter2}}")
    ran = cli.good("doctor")
    assert "`spark.jars.packages`" in finding_of(ran, "delta_jar")["message"]
    assert "hunter2" not in json.dumps(ran.document)


@pytest.mark.parametrize("text", ["", "soon", "-1d", "0d", "1", "1 fortnight"])
def test_invalid_times_between_runs(text: str) -> None:
    with pytest.raises(UsageError):
        schedule_of(text)


@pytest.mark.parametrize(
    ("text", "hours"), [("90m", 1.5), ("6h", 6), ("1d", 24), ("2 weeks", 336), ("1d 12h", 36)]
)
def test_times_between_runs(text: str, hours: float) -> None:
    assert schedule_of(text).total_seconds() == hours * 3600


def test_text_fits_and_quiet_is_short(
    captured: Cli, monkeypatch: MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    capsys.readouterr()
    assert run(build_app(), ["doctor", str(captured.workload), "--every", "8d"]) == 2
    normal = capsys.readouterr()
    assert run(build_app(), ["doctor", str(captured.workload), "--every", "8d", "-q"]) == 2
    quiet = capsys.readouterr()
    long_lines = [line for line in normal.out.splitlines() if len(line) > 80]
    assert all(str(captured.folder) in line for line in long_lines)
    assert "\n  ok       " in normal.out
    assert "  ok       " not in quiet.out
    assert "  problem  History is kept for 7 days" in quiet.out
    assert "fix: run more often" in quiet.out
    assert normal.err.startswith("error: Found a problem with table `t` [problems_found]\nhint: ")


@pytest.mark.spark
def test_spark_on_request(cli: Cli, spark: Any, monkeypatch: MonkeyPatch) -> None:
    session = finding_of(cli.good("doctor", "--spark"), "spark_session")
    assert session["level"] == "ok"
    assert "started and answered" in session["message"]
    reads = finding_of(cli.good("doctor", "--spark"), "spark_reads")
    assert (reads["area"], reads["subject"], reads["level"]) == ("table", "t", "ok")
    assert reads["message"] == "Spark read a file of 10 rows"


def commit_times(cli: Cli) -> list[str]:
    results = cli.good("doctor").results
    return [result["message"] for result in results if result["check"] == "commit_times"]


def test_commit_times_in_the_future_or_out_of_order(cli: Cli) -> None:
    cli.append("t", ROWS.slice(0, 1))
    cli.append("t", ROWS.slice(0, 1))
    assert commit_times(cli) == []
    set_time(cli.path("t"), 2, time.time() + 10_800)
    (message,) = commit_times(cli)
    assert "version 2" in message
    assert "3 h ahead" in message
    for version in (1, 2):
        set_time(cli.path("t"), version, 10_000.0)
    (message,) = commit_times(cli)  # Equal times are fine.
    assert "version 1 has the time 1970-01-01 02:46:40Z" in message


def add_tables(cli: Cli, tmp_path: Path) -> None:
    """Add `odd`, with an invalid file, and `bare`, without rows, before `t`."""
    write_deltalake(str(tmp_path / "odd"), pa.table({"x": [1]}))
    (data,) = (tmp_path / "odd").glob("*.parquet")
    data.write_bytes(b"no Parquet at all")
    write_deltalake(str(tmp_path / "bare"), pa.table({"x": pa.array([], pa.int64())}))
    more = "tables:\n  odd: {path: odd}\n  bare: {path: bare}\n"
    cli.edit("tables:\n", more, 1)


@pytest.mark.spark
def test_unreadable_table_hides_no_other(cli: Cli, spark: Any) -> None:
    add_tables(cli, cli.folder)
    ran = cli("doctor", "--spark")
    by_table = {r["subject"]: r for r in ran.results if r["check"] == "spark_reads"}
    levels = {name: entry["level"] for name, entry in by_table.items()}
    assert levels == {"odd": "problem", "bare": "ok", "t": "ok"}
    assert by_table["odd"]["fix"]
    messages = [by_table[name]["message"] for name in ("bare", "t")]
    assert messages == ["the table has no file for Spark to read", "Spark read a file of 10 rows"]


Init = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def impctl(tmp_path: Path, monkeypatch: MonkeyPatch, capsys: Capsys) -> Init:
    """Run a command in an empty folder. Return its exit code and document."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        return run(build_app(), [*words, "--json"]), json.loads(capsys.readouterr().out)

    return call


DAYS = pa.array([date(2024, 1, 1 + row % 28) for row in range(5000)], pa.date32())
VISITS = pa.table(
    {
        "visit": pa.array(range(5000), pa.int64()),
        "day": DAYS,
        "page": pa.array([f"/p{row % 90}" for row in range(5000)]),
        "is_new": pa.array([row % 2 == 0 for row in range(5000)]),
        "flag": pa.array([row % 2 for row in range(5000)], pa.int32()),
        "tags": pa.array([["a"]] * 5000),
    }
)


def test_init_output_passes_check(impctl: Init, tmp_path: Path) -> None:
    create_table(str(tmp_path / "visits"), VISITS)
    code, document = impctl("init", "visits")
    (result,) = document["results"]
    assert (code, result["file"], result["tables"]) == (0, "impctl.yaml", ["visits"])
    text = (tmp_path / "impctl.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=impctl.schema.json\n")
    assert "visits: {path: visits}" in text
    assert "visit: {ranges: 100}  # bigint, at most 5,000 values" in text
    assert "day: {ranges: 28}  # date, at most 28 values" in text
    for name in ("is_new", "flag", "tags"):
        assert f"    {name}: {{" not in text
    assert json.loads((tmp_path / "impctl.schema.json").read_text()) == workload_json_schema()
    for words in next_commands(result):
        assert impctl(*words)[0] == 0, words
    (stored,) = impctl("status", "impctl.yaml")[1]["results"]
    assert not stored["stale"]
    written = [".impctl", "impctl.schema.json", "impctl.yaml", "visits"]
    assert sorted(path.name for path in tmp_path.iterdir()) == written


def next_commands(result: dict[str, Any]) -> list[list[str]]:
    """The printed commands as a shell reads them; all name the file."""
    commands = [shlex.split(command)[1:] for command in result["next_commands"]]
    assert {words[1] for words in commands} == {result["file"]}
    return commands


@pytest.mark.slow
def test_names_special_in_yaml_or_sql(impctl: Init, tmp_path: Path) -> None:
    rows = pa.table(
        {
            "select": pa.array(range(9), pa.int64()),
            "y": pa.array(range(9), pa.int64()),
            "a `b` ${HOME} é: #": pa.array([f"x{number // 2}" for number in range(9)]),
        }
    )
    folders = ('we ird $sal"es', "select", "123", "sub/select", "Select")
    for folder in folders:
        create_table(str(tmp_path / folder), rows)
    code, document = impctl("init", *folders, "--out", "my files/w.yaml")
    assert code == 0, document
    assert impctl(*next_commands(document["results"][0])[0])[0] == 0
    tables = ["we_ird_sal_es", "select", "t_123", "select_2", "Select_3"]
    assert document["results"][0]["tables"] == tables
    code, document = impctl("check", "my files/w.yaml")
    supported = [entry["supported"] for entry in document["results"]]
    assert (code, supported) == (0, [True] * 5)
    assert impctl("capture", "my files/w.yaml")[0] == 0


def test_a_group_by_column_of_any_name_works(impctl: Init, tmp_path: Path) -> None:
    for number, name in enumerate(("a `b` $c", "order", "é", "1st", "Yes", "group", "x.y")):
        rows = pa.table({name: pa.array([f"v{row % 5}" for row in range(20)])})
        create_table(str(tmp_path / f"t{number}"), rows)
    code, document = impctl("init", *(f"t{number}" for number in range(7)))
    assert code == 0, document
    assert impctl("capture", "impctl.yaml")[0] == 0


def test_overwriting_needs_force(impctl: Init, tmp_path: Path) -> None:
    create_table(str(tmp_path / "t"), VISITS)
    file, schema = tmp_path / "impctl.yaml", tmp_path / "impctl.schema.json"
    schema.write_text("{}")
    assert impctl("init", "t")[0] == 2
    assert schema.read_text() == "{}"
    assert not file.exists()
    schema.unlink()
    file.write_text("mine")
    code, document = impctl("init", "t")
    assert (code, document["error"]["code"]) == (2, "usage")
    assert file.read_text() == "mine"
    assert impctl("init", "t", "--force")[0] == 0
    assert file.read_text().startswith("# yaml-language-server")
    os.mkfifo(tmp_path / "w.yaml")
    assert impctl("init", "t", "--out", "w.yaml", "--force")[0] == 2
    assert (tmp_path / "w.yaml").is_fifo()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["init"], 2),
        (["init", "nowhere"], 3),
        (["init", "--demo", "a", "b"], 2),
        (["init", "--demo", "--out", "x.yaml"], 2),
    ],
)
def test_bad_flags(impctl: Init, tmp_path: Path, words: list[str], code: int) -> None:
    exit_code, document = impctl(*words)
    assert (exit_code, document["ok"]) == (code, False)
    assert document["error"]["hint"]
    assert list(tmp_path.iterdir()) == []


def test_a_table_without_a_column_for_ranges(impctl: Init, tmp_path: Path) -> None:
    create_table(str(tmp_path / "t"), pa.table({"ok": [True, False]}))
    code, document = impctl("init", "t")
    assert code == 2
    assert "split into ranges" in document["error"]["message"]
    assert not (tmp_path / "impctl.yaml").exists()


def test_mapped_names_and_tables_without_statistics(
    impctl: Init, tmp_path: Path, one_file: Callable[..., None]
) -> None:
    one_file("h", pa.table({"id": [1, 2, 3]}), stats=None)
    assert impctl("init", "h")[0] == 0
    assert "unknown rows in 1 file" in (tmp_path / "impctl.yaml").read_text()


@pytest.mark.spark
def test_demo_runs_its_printed_commands(impctl: Init, monkeypatch: MonkeyPatch, spark: Any) -> None:
    """It has a tenth of its rows here; `tests/test_wheel.py` uses all of them."""
    monkeypatch.delenv("IMPCTL_BY")
    monkeypatch.setattr(init, "DEMO_ROWS", 100_000)
    assert impctl("init", "--demo")[0] == 0
    assert impctl("init", "--demo")[0] == 2
    code, document = impctl("init", "--demo", "a $demo")
    documents = {}
    for words in next_commands(document["results"][0]):
        flags = ("--query", "best_days") if words[0] == "verify" else ()
        code, documents[words[0]] = impctl(*words, *flags)
        assert code == 0, words
    attributes = [one["attributes"] for one in documents["explain"]["results"]]
    chosen = [next(entry for entry in each if entry["chosen"]) for each in attributes]
    expected = [entry["expected"]["files"] for entry in chosen]
    assert [one["left"][0]["files"] for one in documents["capture"]["results"]] == expected
    assert len(documents["query"]["results"][0]["rows"]) == 2
    assert documents["changes"]["results"][0]["rows"] == [["insert", 1, 90000001, "449100.00"]]
    assert {one["reason_code"] for one in documents["maintain"]["results"]} == {"incremental"}
    assert [one["results_equal"] for one in documents["verify"]["results"]] == [True]


@pytest.mark.slow
def test_two_files_in_a_folder_have_two_stores(impctl: Init, tmp_path: Path) -> None:
    create_table(str(tmp_path / "visits"), VISITS)
    assert impctl("init", "visits")[0] == 0
    assert impctl("init", "visits", "--out", "sales.yaml")[0] == 0
    for file in ("impctl.yaml", "sales.yaml"):
        assert impctl("capture", file)[0] == 0
        assert "shared_store" not in findings_by_check(impctl("doctor", file)[1])
    assert (tmp_path / ".impctl").is_dir()
    assert (tmp_path / "sales.impctl").is_dir()


def test_shared_store_gives_a_warning(impctl: Init, tmp_path: Path) -> None:
    create_table(str(tmp_path / "visits"), VISITS)
    assert impctl("init", "visits", "--out", "a.yaml")[0] == 0
    text = (tmp_path / "a.yaml").read_text()
    for name, store in (("b.yml", "store: "), ("c.yaml", "store: other")):
        (tmp_path / name).write_text(text.replace("store: ", store))
    (tmp_path / "broken.yaml").write_text("version: [")
    finding = findings_by_check(impctl("doctor", "a.yaml")[1])["shared_store"]
    (query,) = impctl("check", "a.yaml")[1]["results"]
    fix = "give each file a separate `store`, as `impctl init` does"
    assert (finding["level"], finding["fix"]) == ("warning", fix)
    assert finding["message"] == (
        f"Other files use this store too: b.yml; of `{query['query']}` only the file captured "
        "last has a sketch"
    )


def findings_by_check(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {result["check"]: result for result in document["results"]}
