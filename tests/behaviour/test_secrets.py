"""Keys and tokens of a workload: in no output, no file of the store, no error and no log.

Law: every command is run, where it works and where it fails, in text, in JSON and with `-vv`; each
secret is looked for as written, and in all that is left on the disk.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import write_deltalake

import impctl
from impctl.errors import ImpctlError
from impctl.tables.write.maintenance import create_table
from tests.support.small_workload import ROWS

SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKIAZQ7SECRETONE",
    "AWS_SECRET_ACCESS_KEY": "zq7/secret+two=",
    "AWS_SESSION_TOKEN": "zq7-secret-three",
    "azure_storage_sas_key": "sv=zq7&sig=secret%2Ffour",
    "spark.hadoop.fs.s3a.secret.key": "zq7secretfive",
    "spark.hadoop.fs.azure.account.key.x.dfs.core.windows.net": "zq7secretsix==",
    "spark.ssl.keyStorePassword": "zq7secretseven",
    "spark.my.auth.header": "Bearer zq7secreteight",
}
NEEDLES = (
    "AKIAZQ7SECRETONE",
    "zq7",
    "secret+two",
    "secret%2Ffour",
    "secret/four",
)

WORKLOAD = """\
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
      AWS_SECRET_ACCESS_KEY: SECRET_TWO
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
    ("check",),
    ("explain",),
    ("plan",),
    ("capture",),
    ("status",),
    ("rewrite",),
    ("apply", "old"),
    ("maintain", "--dry-run"),
    ("maintain",),
    ("doctor",),
    ("gc",),
    ("bench",),
)


def write(folder: Path, table: str = "t", extra: str = "", conf: str = "") -> Path:
    file = folder / "w.yaml"
    text = WORKLOAD.replace("TABLE", table).replace("EXTRA\n", extra).replace("CONF\n", conf)
    file.write_text(text.replace("SECRET_TWO", SECRETS["AWS_SECRET_ACCESS_KEY"]))
    return file


def run(folder: Path, *arguments: str) -> str:
    """All that a process of its own says, streams of its children too."""
    env = {**os.environ, "ZQ_KEY": SECRETS["AWS_ACCESS_KEY_ID"]}
    command = [sys.executable, "-P", "-m", "impctl", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.stdout + done.stderr
    return f"{done.stdout}{done.stderr}\nexit {done.returncode}"


def check_kept(said: str, what: object) -> None:
    for needle in NEEDLES:
        at = said.find(needle)
        assert at < 0, (what, needle, said[max(0, at - 300) : at + 60])


def check_files(folder: Path) -> None:
    """All files but the workload's own, names included."""
    looked = 0
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "w.yaml":
            check_kept(path.read_bytes().decode("latin-1") + path.name, path)
            looked += 1
    assert looked


@pytest.mark.long
@pytest.mark.slow
def test_commands_that_work(tmp_path: Path) -> None:
    create_table(str(tmp_path / "t"), ROWS)
    write(tmp_path)
    for flags in (("--json",), ("-vv",)):
        for command, *rest in COMMANDS:
            if command == "bench" or (command == "apply" and "-vv" in flags):
                continue
            said = run(tmp_path, command, "w.yaml", *rest, *flags)
            check_kept(said, (command, flags))
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
def test_commands_that_fail(case: str, tmp_path: Path) -> None:
    create_table(str(tmp_path / "t"), ROWS)
    write(tmp_path, *BAD[case])
    for command, flags in (("status", ("--json",)), ("capture", ("-vv",)), ("doctor", ("-v",))):
        said = run(tmp_path, command, "w.yaml", *flags)
        assert "exit 1" not in said, said
        check_kept(said, (case, command))
    check_files(tmp_path)


def test_python_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZQ_KEY", SECRETS["AWS_ACCESS_KEY_ID"])
    with impctl.open(write(tmp_path, "s3://bucket/zt")) as workload:
        check_kept(repr(workload), "repr")
        with pytest.raises(ImpctlError) as caught:
            workload.capture()
        check_kept(f"{caught.value!r} {caught.value} {caught.value.hint}", "error")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
@pytest.mark.usefixtures("launched_here")
def test_spark_with_its_whole_log(tmp_path: Path) -> None:
    create_table(str(tmp_path / "t"), ROWS)
    write(tmp_path)
    check_kept(run(tmp_path, "capture", "w.yaml"), "capture")
    write_deltalake(str(tmp_path / "t"), ROWS, mode="append")
    said = run(tmp_path, "query", "w.yaml", "-vv")
    assert "exit 0" in said, said
    assert "spark WARN" in said
    check_kept(said, "query")
    check_files(tmp_path)
