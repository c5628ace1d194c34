"""Secrets are never shown; malicious SQL, Delta logs and output paths do no harm."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake
from sqlglot.dialects.spark import Spark
from sqlglot.tokens import TokenType

import impctl
from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.errors import ImpctlError, Problem, WorkloadError, masked
from impctl.service import context
from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import ROWS, WORKLOAD, Capsys, Cli, python
from tests.tables import handmade

ACCESS_KEY = "AKIAZQ7SECRETONE"
NEEDLES = (*("AKIAZQ7SECRETONE", "zq7", "secret+two", "secret%2Ffour", "secret/four"),)

SECRET_WORKLOAD = """\
version: 1
tables:
  t:
    path: TABLE
    storage_options:
      AWS_ENDPOINT_URL: http://127.0.0.1:9
      AWS_REGION: us-east-1
      AWS_ALLOW_HTTP: true
      max_retries: 0
      retry_timeout: 1s
      connect_timeout: 1s
EXTRA
      AWS_ACCESS_KEY_ID: ${ZQ_KEY}
      AWS_SECRET_ACCESS_KEY: zq7/secret+two=
      AWS_SESSION_TOKEN: ${ZQ_TOKEN:-zq7-secret-three}
      azure_storage_sas_key: sv=zq7&sig=secret%2Ffour
partitions:
  t: {g: {boundaries: [2, 4, 6]}}
queries:
  q:
    sql: SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY g HAVING COUNT(*) > 2
    sketch: {t: g}
updates:
  - {name: old, delete: {table: t, where: "x = 5"}}
store: .impctl
spark:
  master: "local[2]"
  conf:
    spark.hadoop.fs.s3a.secret.key: zq7secretfive
    spark.hadoop.fs.azure.account.key.x.dfs.core.windows.net: zq7secretsix==
    spark.ssl.keyStorePassword: zq7secretseven
    spark.my.auth.header: Bearer zq7secreteight
    spark.logConf: true
CONF
"""
COMMANDS = (
    *(("check",), ("explain",), ("plan",), ("capture",), ("status",), ("rewrite",)),
    *(("apply", "old"), ("maintain", "--dry-run"), ("maintain",), ("doctor",), ("gc",), ("bench",)),
)


def write(folder: Path, table: str = "t", extra: str = "", conf: str = "") -> Path:
    file = folder / "w.yaml"
    text = SECRET_WORKLOAD.replace("TABLE", table).replace("EXTRA\n", extra)
    file.write_text(text.replace("CONF\n", conf))
    return file


def run_in_process(folder: Path, *arguments: str) -> str:
    """The output of a separate process, including that of its children."""
    process = python("-m", "impctl", *arguments, cwd=folder, ZQ_KEY=ACCESS_KEY)
    assert process.stdout + process.stderr
    return f"{process.stdout}{process.stderr}\nexit {process.returncode}"


def check_no_secret(output: str, label: object) -> None:
    for needle in NEEDLES:
        position = output.find(needle)
        assert position < 0, (label, needle, output[max(0, position - 300) : position + 60])


def check_files(folder: Path) -> None:
    """Check names and contents of all files except the workload file."""
    checked = 0
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "w.yaml":
            check_no_secret(path.read_bytes().decode("latin-1") + path.name, path)
            checked += 1
    assert checked


@pytest.mark.long
@pytest.mark.slow
def test_successful_commands(tmp_path: Path) -> None:
    create_table(str(tmp_path / "t"), ROWS)
    write(tmp_path)
    for flags in (("--json",), ("-vv",)):
        for command, *rest in COMMANDS:
            if command == "bench" or (command == "apply" and "-vv" in flags):
                continue
            output = run_in_process(tmp_path, command, "w.yaml", *rest, *flags)
            check_no_secret(output, (command, flags))
    check_files(tmp_path)


BAD = {
    "unreachable": ("s3://bucket/zt", "", ""),
    "abfss": ("abfss://c@a.dfs.core.windows.net/zt", "", ""),
    "option": ("s3://bucket/zt", "      AWS_CONDITIONAL_PUT: zq7-oops\n", ""),
    "setting": ("t", "", "    spark.sql.ansi.enabled: zq7-oops\n"),
    "legacy": ("t", "", "    spark.sql.legacy.x: zq7-oops\n"),
    "variable": ("t", "      token: zq7${NOT_THERE_AT_ALL}\n", ""),
    "unclosed": ("t", "      token: zq7secret${NOT\n", ""),
    "nested": ("t", "      token: {a: zq7secret}\n", ""),
    "key": ("t", "      token: !!x zq7secret\n", ""),
    "broken": ("t", "      token: [zq7secret\n", ""),
}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("case", BAD)
def test_failing_commands(case: str, tmp_path: Path) -> None:
    create_table(str(tmp_path / "t"), ROWS)
    write(tmp_path, *BAD[case])
    for command, flags in (("status", ("--json",)), ("capture", ("-vv",)), ("doctor", ("-v",))):
        output = run_in_process(tmp_path, command, "w.yaml", *flags)
        assert "exit 1" not in output, output
        check_no_secret(output, (case, command))
    check_files(tmp_path)


def test_python_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZQ_KEY", ACCESS_KEY)
    with impctl.open(write(tmp_path, "s3://bucket/zt")) as workload:
        check_no_secret(repr(workload), "repr")
        with pytest.raises(ImpctlError) as caught:
            workload.capture()
        check_no_secret(f"{caught.value!r} {caught.value} {caught.value.hint}", "error")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
@pytest.mark.usefixtures("launched_here")
def test_spark_log(tmp_path: Path) -> None:
    create_table(str(tmp_path / "t"), ROWS)
    write(tmp_path)
    check_no_secret(run_in_process(tmp_path, "capture", "w.yaml"), "capture")
    write_deltalake(str(tmp_path / "t"), ROWS, mode="append")
    output = run_in_process(tmp_path, "query", "w.yaml", "-vv")
    assert "exit 0" in output, output
    assert "spark WARN" in output
    check_no_secret(output, "query")
    check_files(tmp_path)


SECRET = "tellNobody"
SIGNED = (
    "https://a.blob.core.windows.net/c/t?sv=1&sig=SECRET&se=2",
    "https://a/t?X-Amz-Algorithm=h&X-Amz-Credential=SECRET%2F1&X-Amz-Signature=SECRET",
    "https://a/t?X-Amz-Security-Token=SECRET",
    "https://a/t?AWSAccessKeyId=SECRET&Expires=1&Signature=SECRET%2B%3D",
    "https://a/t?GoogleAccessId=SECRET&X-Goog-Signature=SECRET",
    "https://a/t?TOKEN=SECRET#x",
    "https://a/t?x=1&access_token=SECRET",
    "https://a/t%3Fsig%3DSECRET%26se%3D1",
    "https://SECRET@a/t",
    "https://me:SECRET@a/t",
    "s3a://AKIA:SEC/SECRET+/x@bucket/t",
    "sftp://me:SECRET@a/t",
    "https://a/t#access_token=SECRET&x=1",
    "s3a://me:a@SECRET@bucket/t",
    "sftp://me:SEC@SECRET@a/t",
)
HARMLESS = (
    "abfss://box@account.dfs.core.windows.net/t",
    "s3://bucket/a@b/c?versionId=1",
    "file:///data/t",
    "/data/signature=1/t",
    "ratio a:b@c, e-mail me@example.org, sig=1",
)


@pytest.mark.parametrize("uri", SIGNED)
def test_credentials_are_masked(uri: str) -> None:
    text = masked(f"Reading `{uri.replace('SECRET', SECRET)}` failed")
    assert SECRET not in text
    assert "***" in text
    assert text.endswith("` failed")


@pytest.mark.parametrize("text", HARMLESS)
def test_other_text_is_unchanged(text: str) -> None:
    assert masked(text) == text


def test_errors_are_masked() -> None:
    uri = SIGNED[0].replace("SECRET", SECRET)
    error = WorkloadError(uri, [Problem(uri, hint=uri)])
    (problem,) = error.problems
    texts = [error.message, str(error), error.hint, problem.message, problem.hint]
    texts += [ImpctlError("x", hint=uri).hint]
    assert [SECRET in str(text) for text in texts] == [False] * 6


def sign(cli: Cli, secret: str, path: str) -> None:
    uri = f"file://{path}?sv=1&sig={secret}"
    text = WORKLOAD.replace("POLICY", "incremental").replace("{path: t}", f"{{path: '{uri}'}}")
    cli.workload.write_text(text)


def test_signature_is_not_stored_and_does_not_identify_a_table(
    cli: Cli, tmp_path: Path, table: str
) -> None:
    sign(cli, SECRET, table)
    cli.good("capture")
    files = [file for file in (tmp_path / ".impctl").rglob("*") if file.is_file()]
    assert files
    assert [file for file in files if SECRET.encode() in file.read_bytes()] == []
    sign(cli, "another", table)
    assert cli.good("maintain").results[0]["action"] == "none"


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--json"], ["-vv"]])
@pytest.mark.parametrize("command", ["doctor", "check", "plan"])
def test_outputs_are_masked(
    cli: Cli, capsys: Capsys, tmp_path: Path, command: str, flags: list[str]
) -> None:
    sign(cli, SECRET, str(tmp_path / "gone"))
    assert run(build_app(), [command, str(cli.workload), *flags])
    assert_masked("".join(capsys.readouterr()))


@pytest.mark.parametrize(
    "flags", [["-vv"], *(pytest.param(flags, marks=pytest.mark.slow) for flags in ([], ["--json"]))]
)
def test_masked_in_processes(cli: Cli, tmp_path: Path, flags: list[str]) -> None:
    """This includes what libraries print while loading and at exit."""
    sign(cli, SECRET, str(tmp_path / "gone"))
    process = python("-m", "impctl", "capture", cli.workload, *flags)
    assert process.returncode
    assert_masked(process.stdout + process.stderr)


def assert_masked(printed: str) -> None:
    assert SECRET not in printed
    assert re.search(r"sig=\*\*\*", printed)


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["a", "s3://", "a:", "&x.", "?key=", "://a:b@"])
def test_masking_long_text_is_fast(piece: str) -> None:
    text = "://" + piece * (200_000 // len(piece))
    before = time.process_time()
    masked(text)
    assert time.process_time() - before < 5


LOGGED_ROWS = pa.table({"g": [1, 2, 3], "x": [10, 20, 30]})
CHANGED_ROWS = pa.table({"g": [9], "x": [90], "_change_type": ["insert"]})
FIELDS = [handmade.field("g", handmade.LONG), handmade.field("x", handmade.LONG)]
LOGGED_WORKLOAD = """\
version: 1
tables: {t: {path: t}}
partitions: {t: {g: {boundaries: [2]}}}
queries:
  q: {sql: "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 5", answer: true}
"""
OPTIONS = "endpoint_override=127.0.0.1:{port}&scheme=http"
REMOTE = [
    f"s3://b/x.parquet?{OPTIONS}",
    f"S3://b/x.parquet?{OPTIONS}",
    f"s3a://b/x.parquet?{OPTIONS}",
    f"s3://b%2Fx.parquet?{OPTIONS}",
    f"s3://key:secret@b/x.parquet?{OPTIONS}&allow_bucket_creation=true",
    f"gs://b/x.parquet?{OPTIONS}",
    f"gcs://anonymous@b/x.parquet?{OPTIONS}",
    "abfs://c@127.0.0.1:{port}/x.parquet?enable_tls=false",
    "az://c/x.parquet?blob_storage_authority=127.0.0.1:{port}&blob_storage_scheme=http",
    "hdfs://127.0.0.1:{port}/x.parquet",
    "http://127.0.0.1:{port}/x.parquet",
    "file://127.0.0.1:{port}/x.parquet",
    "//127.0.0.1:{port}/x.parquet",
]
LOCAL = [
    *("/{outside}", "file:///{outside}", "../outside.parquet", "a/../../outside.parquet"),
    *("%2e%2e/outside.parquet", "..%2Foutside.parquet", "link.parquet", "linked/outside.parquet"),
    *("pipe.parquet", "device.parquet", "folder.parquet"),
]
ENTRIES = ("add", "added later", "changed", "removed")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, list[bytes]]]:
    """A local listening port, and the requests it received. The environment has AWS keys."""
    requests: list[bytes] = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            requests.append(self.request.recv(4096))

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "of-the-user")
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.05,))
        thread.start()
        yield listening.server_address[1], requests
        listening.shutdown()
        thread.join()


@pytest.fixture
def hostile(tmp_path: Path, capsys: Capsys) -> Callable[[str, str], Cli]:
    """Creates a table whose log names a bad file in one of `ENTRIES`, captured if possible."""
    outside = pa.table({"g": [7], "x": [70]})
    handmade.write_file(tmp_path, "outside.parquet", outside)

    def make(name: str, entry: str) -> Cli:
        folder = tmp_path / f"{len(os.listdir(tmp_path))}"
        table = folder / "t"
        table.mkdir(parents=True)
        (folder / "outside.parquet").hardlink_to(tmp_path / "outside.parquet")
        (table / "link.parquet").symlink_to("../outside.parquet")
        (table / "linked").symlink_to("..")
        os.mkfifo(table / "pipe.parquet")
        (table / "device.parquet").symlink_to("/dev/zero")
        (table / "folder.parquet").mkdir()
        bad = name.replace("{outside}", str(folder / "outside.parquet").lstrip("/"))
        first = handmade.added(table, "first.parquet", LOGGED_ROWS)
        feed = {"configuration": {"delta.enableChangeDataFeed": "true"}}
        actions = [first, handmade.add(bad, 3)] if entry == "add" else [first]
        handmade.create(table, FIELDS, *actions, **feed)
        cli = Cli.over(capsys, folder, LOGGED_WORKLOAD)
        if entry != "add":
            cli.good("capture")
            handmade.commit(table, 1, *_later(table, entry, bad))
        return cli

    return make


def _later(table: Path, entry: str, bad: str) -> list[dict[str, Any]]:
    match entry:
        case "added later":
            return [handmade.add(bad, 3)]
        case "changed":
            cdc = {"path": bad, "partitionValues": {}, "size": 1, "dataChange": False}
            return [
                {"cdc": cdc},
                handmade.added(table, "second.parquet", CHANGED_ROWS.select(["g", "x"])),
            ]
        case _:
            return [handmade.remove(bad, size=1, partitionValues={}, dataChange=True)]


def distribute(names: Sequence[str], values: Sequence[str]) -> list[Any]:
    """Distribute the values among the names; long tests run the remaining values for each name."""
    result = []
    for i, name in enumerate(names):
        part = values[i :: len(names)]
        rest = [each for each in values if each not in part]
        result.append(pytest.param(name, part, id=name))
        marks = (pytest.mark.slow, pytest.mark.long)
        result.append(pytest.param(name, rest, id=f"{name}-rest", marks=marks))
    return result


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("entry", "names"), distribute(ENTRIES, REMOTE))
def test_no_request_is_sent(
    entry: str,
    names: Sequence[str],
    server: tuple[int, list[bytes]],
    hostile: Callable[[str, str], Cli],
) -> None:
    port, requests = server
    for name in names:
        cli = hostile(name.replace("{port}", str(port)), entry)
        check_not_opened(cli, entry)
        assert requests == [], (name, entry)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("entry", "names"), distribute(ENTRIES, LOCAL))
def test_no_other_file_is_opened(
    entry: str, names: Sequence[str], hostile: Callable[[str, str], Cli]
) -> None:
    for name in names:
        check_not_opened(hostile(name, entry), entry)


def check_not_opened(cli: Cli, entry: str) -> None:
    """Commands that need the file refuse to open it, and no result has a row of it."""
    query = ("query", "--query", "q", "--by", "engine")
    maintain = ("maintain", "--policy", "incremental")
    first = ("capture",) if entry == "add" else maintain
    runs = [cli(*words) for words in (first, query, ("check",))]
    codes = {ran.error["code"] for ran in runs if ran.code}
    assert all(ran.code in (0, 3) for ran in runs), codes
    assert entry == "removed" or codes & {"file_outside_table", "data_file_irregular"}, codes
    if runs[1].code == 0:
        (answer,) = runs[1].results
        assert 7 not in dict(answer["rows"])


STATEMENTS = [
    *("DROP TABLE t", "INSERT INTO t VALUES (1, 1, 'x')", "INSERT OVERWRITE t SELECT * FROM t"),
    *("INSERT OVERWRITE DIRECTORY '/tmp/x' USING parquet SELECT * FROM t", "UPDATE t SET x = 1"),
    *("DELETE FROM t", "MERGE INTO t USING t AS s ON t.g = s.g WHEN MATCHED THEN DELETE"),
    *("TRUNCATE TABLE t", "CREATE TABLE c AS SELECT * FROM t"),
    "CREATE OR REPLACE TEMPORARY VIEW t AS SELECT 1 AS g",
    *("CREATE FUNCTION f AS 'java.lang.Runtime'", "ALTER TABLE t ADD COLUMNS (y INT)"),
    *("ADD JAR '/tmp/x.jar'", "SET spark.sql.ansi.enabled = false", "RESET", "USE other"),
    *("CACHE TABLE t", "REFRESH TABLE t", "OPTIMIZE t", "VACUUM t RETAIN 0 HOURS"),
    *("EXPLAIN SELECT g FROM t", "DESCRIBE t", "SHOW TABLES", "CALL system.x()"),
    *("EXECUTE IMMEDIATE 'DROP TABLE t'", "BEGIN DROP TABLE t; END", "DECLARE v = 1"),
    *("LOAD DATA INPATH '/tmp/x' INTO TABLE t", "COPY INTO t FROM '/tmp/x'"),
    *("GRANT SELECT ON t TO x", "TABLE t", "VALUES (1)", "FROM t INSERT INTO t SELECT g, x, note"),
    "FROM t |> DROP g",
]
QUERIES = [
    "SELECT g INTO c FROM t",
    "WITH c AS (DELETE FROM t) SELECT * FROM c",
    "WITH c AS (INSERT INTO t VALUES (1, 1, 'x')) SELECT * FROM t",
    "WITH c AS (SELECT 1 AS g) INSERT INTO t SELECT g, g, 'x' FROM c",
    "WITH c AS (SELECT g FROM t) DELETE FROM t",
    "WITH c AS (INSERT INTO t VALUES (1, 1, 'x')) SELECT g FROM (SELECT g FROM t)",
    "SELECT g FROM (WITH c AS (DROP TABLE t) SELECT g FROM t)",
    "WITH c AS (SELECT * FROM parquet.`/etc/passwd`) SELECT g FROM t",
    "WITH c AS (SELECT reflect('java.lang.System', 'exit', 1) FROM t) SELECT g FROM t",
    "WITH `text./etc/passwd` AS (SELECT g FROM t) SELECT * FROM text.`/etc/passwd`",
    "WITH c AS (SELECT g FROM t), c AS (DELETE FROM t) SELECT g FROM c",
    "SELECT * FROM parquet.`/etc/passwd`",
    "SELECT * FROM text.`/etc/passwd`",
    "SELECT * FROM delta.`/tmp/x`",
    "SELECT * FROM csv.'/etc/passwd'",
    "SELECT * FROM binaryFile.`/etc/passwd`",
    "SELECT t.g FROM t JOIN json.`/etc/passwd` p ON t.g = p.g",
    "SELECT g FROM t WHERE g IN (SELECT value FROM text.`/etc/passwd`)",
    "SELECT * FROM read_files('/etc/passwd')",
    "SELECT * FROM table_changes('t', 0)",
    "SELECT * FROM IDENTIFIER('t')",
    "SELECT IDENTIFIER('g') FROM t",
    "SELECT * FROM IDENTIFIER(:word)",
    "SELECT * FROM other_catalog.default.t",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM global_temp.t",
    "SELECT reflect('java.lang.System', 'exit', 1) FROM t",
    "SELECT java_method('java.lang.Runtime', 'getRuntime') FROM t",
    "SELECT try_reflect('java.lang.System', 'getenv') FROM t",
    "SELECT `reflect`('java.lang.System', 'exit', 1) FROM t",
    "SELECT g FROM t WHERE reflect('java.lang.System', 'getenv', 'HOME') = 'x'",
    "SELECT g FROM t GROUP BY g HAVING java_method('java.lang.System', 'lineSeparator') = 'x'",
    "SELECT TRANSFORM(g) USING 'cat /etc/passwd' AS (a) FROM t",
    "FROM t SELECT TRANSFORM(g) USING 'sh' AS (a)",
    "MAP g USING 'sh' FROM t",
    "SELECT g FROM t TIMESTAMP AS OF '2020-01-01'",
    "SELECT g FROM t@v0",
    "SELECT ${env:HOME} FROM t",
    "SELECT $g FROM t",
    "SELECT @@version FROM t",
    "SELECT g FROM t WHERE note = :word' OR 1=1 --",
    "SELECT g FROM t WHERE note = :`word`",
    "SELECT g FROM t WHERE :word",
    "SELECT :word(g) FROM t",
    "SELECT g FROM :word",
    "SELECT g FROM t WHERE note = :other",
    "SELECT g FROM t WHERE note = ?",
]
STACKED = [
    *(f"SELECT g FROM t{between}{statement}" for statement in STATEMENTS[:4] for between in
      ("; ", ";\n", " ;; ", "; -- c\n", "; /* c */ ", " /*;*/ ; ", "\n;\u00a0")),
    "SELECT g FROM t WHERE note = ''; DROP TABLE t; --'",
    "SELECT g FROM t WHERE note = '\\''; DROP TABLE t; --'",
    "SELECT g FROM t WHERE note = \u2018x\u2019; DROP TABLE t",
    "/* SELECT g FROM t */ DROP TABLE t",
    "-- SELECT g FROM t\nDROP TABLE t",
    "--\rSELECT g FROM t\rDROP TABLE t",
    "/*+ x */ DROP TABLE t",
    "/*! DROP TABLE t */ DROP TABLE t",
    "(SELECT g FROM t) DROP TABLE t",
    "(DROP TABLE t)",
    "((DELETE FROM t))",
    "SELECT (DELETE FROM t) FROM t",
]  # fmt: skip
ATTACKS = [*STATEMENTS, *QUERIES, *STACKED]

EXPRESSIONS = [
    *("1 = 1; DROP TABLE t", "1 = 1); DELETE FROM t WHERE (1 = 1", "1 = 1 UNION SELECT 1 FROM t"),
    *("1 = 1 GROUP BY g", "1 = 1 LIMIT 1", "TRUE FROM t; DROP TABLE t", "g IN (SELECT g FROM t)"),
    *("g = (SELECT MAX(g) FROM t)", "EXISTS (SELECT 1 FROM parquet.`/etc/passwd`)"),
    "reflect('java.lang.System', 'exit', 1) = 1",
    *("java_method('java.lang.System', 'exit', 1) = 1", "IDENTIFIER('g') = 1"),
    *("note = 'x' -- ' AND FALSE; DROP TABLE t\n; DELETE FROM t", "note = ''; DROP TABLE t; --'"),
    *(":word = 'x'", "1; DROP TABLE t", "x FROM t, t", "x, 1", "*"),
]
TEXTS = [
    *("x' OR '1'='1", "x'; DROP TABLE t; --", "x\\' OR 1=1 --", "\\", "\\'; DELETE FROM t; --"),
    *('" OR ""="', "` OR `g` = `g", "\u2018 OR \u2019", "\uff07 OR \uff07\uff07=\uff07"),
    *("\u02bc; DROP TABLE t", "*/ DROP TABLE t /*", "--", ":word", ":low"),
    *("${spark.sql.ansi.enabled}", "$(id)", "\n; DROP TABLE t\n", "\r\n\t\b", "%' OR note LIKE '%"),
    "reflect('java.lang.System','exit',1)",
]

NAMED = "SELECT g, note, x FROM t WHERE note = :word AND x >= :low"


@pytest.fixture
def guarded_cli(tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A workload whose Spark cannot start: a test fails if SQL gets that far."""

    no_spark = Mock(side_effect=AssertionError("Spark was to start"))
    monkeypatch.setattr(context.OwnSession, "open", no_spark)
    create_table(str(tmp_path / "t"), ROWS)
    cli = Cli(capsys, tmp_path / "w.yaml")
    write_escapes(cli, q={"sql": NAMED, "params": {"word": "a", "low": 2}})
    cli.good("capture")
    return cli


def write_escapes(
    cli: Cli, updates: tuple[dict[str, Any], ...] = (), **queries: dict[str, Any]
) -> None:
    document = yaml.safe_load(WORKLOAD.replace("POLICY", "incremental"))
    document["queries"] = queries
    document["updates"] = list(updates)
    cli.workload.write_text(yaml.safe_dump(document))


def check_refused(cli: Cli, label: str, command: str, *arguments: str) -> None:
    ran = cli(command, *arguments)
    assert ran.code in (2, 3), (label, ran.document)
    error = ran.error
    assert error["code"] != "unexpected", (label, error)
    assert error["hint"], (label, error)
    assert "AssertionError" not in error["message"], (label, error)


@pytest.mark.filterwarnings("ignore::impctl.ImpctlWarning")
@pytest.mark.slow
@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.long)])
def test_attacks_in_the_workload(guarded_cli: Cli, count: int) -> None:
    """Run each attack with one command in turn, or with all three."""
    for number, attack in enumerate(ATTACKS):
        write_escapes(guarded_cli, q={"sql": attack, "params": {"word": "t", "low": 2}})
        commands = cycle(("check", "capture", "query"))
        for command in islice(commands, number % 3, number % 3 + count):
            check_refused(guarded_cli, attack, command)


@pytest.mark.filterwarnings("ignore::impctl.ImpctlWarning")
@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_attacks_in_calls(guarded_cli: Cli, count: int) -> None:
    """Run each attack with one call in turn, or with all three."""
    with impctl.open(guarded_cli.workload) as workload:
        calls = (workload.rewrite, workload.query, workload.dataframe)
        for number, attack in enumerate(ATTACKS):
            for call in islice(cycle(calls), number % 3, number % 3 + count):
                with pytest.raises(ImpctlError) as caught:
                    call(sql=attack)
                assert caught.value.exit_code in (2, 3), attack
                assert caught.value.hint, attack


@pytest.mark.filterwarnings("ignore::impctl.ImpctlWarning")
@pytest.mark.slow
def test_attack_in_updates(guarded_cli: Cli) -> None:
    version = DeltaTable(str(guarded_cli.workload.parent / "t")).version()
    batches = []
    for text in EXPRESSIONS:
        batches.append({"delete": {"table": "t", "where": text}})
        batches.append({"update": {"table": "t", "set": {"x": "1"}, "where": text}})
        batches.append({"update": {"table": "t", "set": {"x": text}}})
    for name in ("x = 1, g", "x`; DROP TABLE t", '"x"', "x\u00a0", "t.x"):
        batches.append({"update": {"table": "t", "set": {name: "1"}}})
    for batch in batches:
        write_escapes(guarded_cli, ({"name": "u", **batch},), q={"sql": "SELECT g FROM t"})
        check_refused(guarded_cli, repr(batch), "apply", "u")
    assert DeltaTable(str(guarded_cli.workload.parent / "t")).version() == version


def string_literals(sql: str) -> list[str]:
    """The string literals of the SQL, by sqlglot's Spark tokenizer."""
    return [token.text for token in Spark().tokenize(sql) if token.token_type is TokenType.STRING]


@pytest.mark.filterwarnings("ignore::impctl.ImpctlWarning")
@pytest.mark.slow
def test_parameters_stay_literals(guarded_cli: Cli) -> None:
    """Any text becomes one literal of the rewritten query; numeric parameters reject text."""
    plain = guarded_cli.good("rewrite", "--param", "word=b").results[0]["sql"]
    for text in TEXTS:
        result = guarded_cli.one("rewrite", "--param", f"word={text}")
        assert string_literals(result["sql"]) == [text], result["sql"]
        assert len(result["sql"]) < len(plain) + 8 * len(text)
        check_refused(guarded_cli, text, "rewrite", "--param", f"low={text}")
        check_refused(guarded_cli, text, "rewrite", "--param", f"{text}=1")
    for text in ("1 OR 1=1", "1;", "0x1", "1 --", "(1)", "1L", "NULL", "x", "\u0661"):
        check_refused(guarded_cli, text, "query", "--param", f"low={text}")
    with impctl.open(guarded_cli.workload) as workload:
        for text in TEXTS:
            assert string_literals(workload.rewrite(params={"word": text}).sql) == [text]
            for odd in (text, [text], {text: 1}, text.encode()):
                with pytest.raises(ImpctlError) as caught:
                    workload.rewrite(params={"low": odd})  # type: ignore[dict-item]
                assert caught.value.code == "parameter_type"


OUTPUT_WORKLOAD = """\
version: 1
tables: {t: {path: t}, u: {path: deep/u}}
partitions: {t: {g: {boundaries: [2]}}}
queries:
  q: {sql: "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 5", answer: true}
updates:
  - {name: more, insert: {table: t, file: batch.csv}}
"""
LINKS = {
    "to-data.csv": "t/data.parquet",
    "to-log.csv": "t/_delta_log/00000000000000000000.json",
    "to-next-entry.csv": "t/_delta_log/00000000000000000001.json",
    "to-table": "t",
    "to-log": "t/_delta_log",
    "to-store": ".impctl",
    "to-catalog.csv": ".impctl/catalog.sqlite",
    "to-workload.csv": "w.yaml",
    "to-batch.csv": "batch.csv",
    "to-link.csv": "to-data.csv",
}
TARGETS = [
    *("t", "t/data.parquet", "t/new.{end}", "t/new/folder/new.{end}", "t/_delta_log"),
    *("t/_delta_log/00000000000000000000.json", "t/_delta_log/00000000000000000001.json"),
    *("t/_delta_log/_last_checkpoint", "t/_delta_log/new.{end}", "t/../t/new.{end}"),
    *("deep/u/new.{end}", "deep/u/_delta_log/new.{end}", "other/new.{end}"),
    *("other/_delta_log/00000000000000000000.json", ".impctl", ".impctl/catalog.sqlite"),
    *(".impctl/state/new.{end}", ".impctl/new.{end}", "elsewhere/catalog.sqlite"),
    *("elsewhere/new.{end}", "w.yaml", "batch.csv"),
    *LINKS,
    *("to-table/new.{end}", "to-log/00000000000000000001.json", "to-store/new.{end}"),
]
ALLOWED = {
    "init": {"w.yaml", "to-workload.csv", "batch.csv", "to-batch.csv"},
    "store": {".impctl", "to-store", "elsewhere"},
}
"""Files that an option may write, with `--force` or as stores."""
OUTPUT_OPTIONS = {
    "query": ("csv", ["query", "{w}", "--query", "q", "--by", "engine", "--out", "{out}"]),
    "changes": ("jsonl", ["changes", "{w}", "--query", "q", "--all", "--out", "{out}"]),
    "files": ("json", ["rewrite", "{w}", "--query", "q", "--files", "{out}"]),
    "maintain": ("prom", ["maintain", "{w}", "--metrics", "{out}"]),
    "gain": ("prom", ["gain", "{w}", "--metrics", "{out}"]),
    "feed": ("feed", ["maintain", "{w}", "--changes", "{out}"]),
    "store": ("store", ["capture", "{w}", "--store", "{out}"]),
    "init": ("yaml", ["init", "{t}", "--out", "{out}", "--force"]),
    "demo": ("demo", ["init", "--demo", "{out}", "--force"]),
    "record": ("json", ["bench", "{w}", "--out", "{out}"]),
    "page": ("html", ["bench", "{w}", "--report", "{out}"]),
    "example": ("data", ["bench", "--generate", "{out}", "--rows", "10"]),
}


def write_folder(folder: Path, capsys: Capsys) -> Cli:
    """A folder with tables, a captured workload, stores and symbolic links."""
    rows = pa.table({"g": [1, 2, 3], "x": [10, 20, 30]})
    for name in ("t", "deep/u", "other"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        create_table(str(folder / name), rows)
    (folder / "batch.csv").write_text("g,x\n1,1\n")
    cli = Cli.over(capsys, folder, OUTPUT_WORKLOAD)
    cli.good("capture")
    shutil.copytree(folder / ".impctl", folder / "elsewhere")
    for name, goal in LINKS.items():
        (folder / name).symlink_to(goal)
    return cli


def file_digests(folder: Path) -> dict[str, str]:
    """Digests of all files and targets of symbolic links, except for SQLite's files beside a
    catalog."""
    result = {}
    for parent, _, files in os.walk(folder):
        for name in files:
            path = Path(parent) / name
            if path.is_symlink():
                result[str(path.relative_to(folder))] = os.readlink(path)
            elif not name.startswith(("catalog", "ledger", "lock")):
                result[str(path.relative_to(folder))] = hashlib.md5(path.read_bytes()).hexdigest()
    return result


@pytest.mark.parametrize(("option", "targets"), distribute([*OUTPUT_OPTIONS], TARGETS))
def test_files_are_unchanged(
    option: str, targets: Sequence[str], tmp_path: Path, capsys: Capsys
) -> None:
    end, template = OUTPUT_OPTIONS[option]
    cli = write_folder(tmp_path, capsys)
    before = file_digests(tmp_path)
    for target in targets:
        if target in ALLOWED.get(option, ()):
            continue
        out = tmp_path / target.replace("{end}", end)
        values = {"{w}": str(cli.workload), "{out}": str(out), "{t}": str(tmp_path / "t")}
        code = run(build_app(), [values.get(word, word) for word in template])
        assert code in (2, 6), target
        assert file_digests(tmp_path) == before, target
    assert "Traceback" not in capsys.readouterr().err
